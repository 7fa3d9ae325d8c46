"""Rate limit, concurrency and budget of a whole job, kept in one place.

`SharedLimits` lives in one named actor; every worker that calls a provider has a `Line` to it, and
a transport whose admission and account are at the other end of that line.

A worker *tells*: asks for permits and money, and what became of them; whatever gathers while one
message is on its way goes with the next. It *hears* what it was granted, by a call that returns
when there is something. A worker that has not listened for `SILENCE` seconds is dead, and so is one
whose actor was started again: its permits are free, and what it had reserved is booked, because it
may have been spent.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from testnuc.errors import TestNUCError
from testnuc.limits import Admission, BudgetAccount, Meter, Permit, Reservation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from testnuc.limits import Budget, Mark, RateLimit, RetryPolicy
    from testnuc.results import Usage

__all__ = ["SILENCE", "Line", "RemoteAccount", "RemoteAdmission", "SharedLimits"]

#: Seconds after which a worker that does not listen is taken for dead.
SILENCE = 20.0
#: Seconds that a call to `SharedLimits.hear` lasts at most.
_POLL = 5.0
_GATES = ("x-ratelimit-", "anthropic-ratelimit-")

#: Kind, number, and what belongs to the kind.
Message = tuple[Any, ...]
#: The number of what was asked for, and None or why it is refused.
Granted = tuple[int, Exception | None]


class _Worker:
    """What one worker asked for and holds."""

    def __init__(self, now: float) -> None:
        self.heard_at = now
        self.changed = asyncio.Event()
        self.granted: list[Granted] = []
        self.asks: dict[int, asyncio.Task[None]] = {}
        self.permits: dict[int, Permit] = {}
        self.reservations: dict[int, Reservation] = {}

    def grant(self, number: int, refusal: Exception | None = None) -> None:
        self.granted.append((number, refusal))
        self.changed.set()


class SharedLimits:
    """What may be sent and spent by all workers of a job.

    Parameters
    ----------
    rate_limit : RateLimit, optional
    max_concurrency : int
        Most calls in flight, of all workers together.
    retry : RetryPolicy, optional
        Whose waits bound the pauses.
    budget : Budget, optional
    clock : callable
        Monotonic seconds.
    """

    def __init__(
        self,
        rate_limit: RateLimit | None,
        max_concurrency: int,
        retry: RetryPolicy | None,
        budget: Budget | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admission = Admission(rate_limit, max_concurrency, retry, clock=clock)
        self._account = None if budget is None else BudgetAccount(budget)
        self._clock = clock
        self._workers: dict[tuple[str, str], _Worker] = {}
        self._failure: Exception | None = None
        self._counts: dict[tuple[str, str], Mark] = {}

    async def tell(self, worker: tuple[str, str], messages: list[Message], counts: Mark) -> None:
        """Take the messages of a worker, and what its meter counted so far."""
        line = self._line(worker)
        self._counts[worker] = counts
        for kind, number, *facts in messages:
            getattr(self, f"_on_{kind}")(line, number, *facts)

    async def hear(self, worker: tuple[str, str]) -> list[Granted]:
        """Return what was granted since the last time, as soon as there is something."""
        line = self._line(worker)
        line.heard_at = self._clock()
        self._bury()
        if not line.granted:
            line.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL):
                    await line.changed.wait()
        line.heard_at = self._clock()
        granted, line.granted = line.granted, []
        return granted

    async def usage(self) -> Usage:
        """Return what all workers counted, dead ones included."""
        return Meter.sum(self._counts.values())

    async def in_flight(self) -> int:
        """Return how many calls are in flight."""
        return self._admission.in_flight

    async def fail(self, error: Exception) -> None:
        """Note why the job fails; the first error stays."""
        self._failure = self._failure or error

    async def failure(self) -> Exception | None:
        """Return why the job failed: Ray tells of it in its own words alone."""
        return self._failure

    def _line(self, worker: tuple[str, str]) -> _Worker:
        line = self._workers.get(worker)
        if line is None:
            # an actor that was started again has a new line, and its old one is dead
            self._bury(worker[0])
            line = self._workers[worker] = _Worker(self._clock())
        return line

    def _bury(self, actor: str | None = None) -> None:
        now = self._clock()
        dead = [
            name
            for name, worker in self._workers.items()
            if name[0] == actor or now - worker.heard_at > SILENCE
        ]
        for name in dead:
            line = self._workers.pop(name)
            for task in line.asks.values():
                task.cancel()
            for permit in line.permits.values():
                self._admission.failed(permit)
            for reservation in line.reservations.values():
                assert self._account is not None
                self._account.keep(reservation)

    def _on_permit(
        self,
        line: _Worker,
        number: int,
        size: tuple[int, int],
        again: bool,  # noqa: FBT001 - a field of a message
    ) -> None:
        async def admit() -> None:
            line.permits[number] = await self._admission.acquire(*size, again=again)

        self._grant(line, number, admit())

    def _on_reserve(self, line: _Worker, number: int, pico_usd: int, tokens: int) -> None:
        async def reserve() -> None:
            assert self._account is not None
            line.reservations[number] = await self._account.reserve(pico_usd, tokens)

        self._grant(line, number, reserve())

    @staticmethod
    def _grant(line: _Worker, number: int, asked: Awaitable[None]) -> None:
        async def wait() -> None:
            try:
                await asked
            except Exception as refusal:  # noqa: BLE001 - raised where it was asked for
                line.grant(number, refusal)
            else:
                line.grant(number)
            finally:
                line.asks.pop(number, None)

        line.asks[number] = asyncio.create_task(wait(), name="testnuc-grant")

    def _on_cancel(self, line: _Worker, number: int) -> None:
        task = line.asks.pop(number, None)
        if task is not None:
            task.cancel()
        permit = line.permits.pop(number, None)
        if permit is not None:
            self._admission.abandoned(permit)
        self._on_release(line, number)

    def _on_answered(
        self, line: _Worker, number: int, headers: Mapping[str, str] | None, *tokens: int | None
    ) -> None:
        permit = self._taken(line, number, headers)
        if permit is not None:
            self._admission.answered(permit, *tokens)

    def _on_refused(
        self,
        line: _Worker,
        number: int,
        headers: Mapping[str, str] | None,
        wait: float | None,
        load: bool,  # noqa: FBT001 - a field of a message
    ) -> None:
        permit = self._taken(line, number, headers)
        if permit is not None:
            self._admission.refused(permit, wait, load=load)

    def _on_failed(self, line: _Worker, number: int, headers: Mapping[str, str] | None) -> None:
        permit = self._taken(line, number, headers)
        if permit is not None:
            self._admission.failed(permit)

    def _taken(
        self, line: _Worker, number: int, headers: Mapping[str, str] | None
    ) -> Permit | None:
        # unknown where its worker was taken for dead and spoke again
        permit = line.permits.pop(number, None)
        if permit is not None and headers:
            self._admission.observe(permit, headers)
        return permit

    def _on_settle(self, line: _Worker, number: int, pico_usd: int, tokens: int) -> None:
        reservation = line.reservations.pop(number, None)
        if reservation is not None and self._account is not None:
            self._account.settle(reservation, pico_usd, tokens)

    def _on_keep(self, line: _Worker, number: int) -> None:
        reservation = line.reservations.pop(number, None)
        if reservation is not None and self._account is not None:
            self._account.keep(reservation)

    def _on_release(self, line: _Worker, number: int) -> None:
        reservation = line.reservations.pop(number, None)
        if reservation is not None and self._account is not None:
            self._account.release(reservation)


class Limits(Protocol):
    """The other end of a line: `SharedLimits`, or an actor that holds it."""

    async def tell(self, worker: tuple[str, str], messages: list[Message], counts: Mark) -> None:
        """See `SharedLimits.tell`."""

    async def hear(self, worker: tuple[str, str]) -> list[Granted]:
        """See `SharedLimits.hear`."""


class Line:
    """One worker's line to the limits that it shares; belongs to one event loop.

    Parameters
    ----------
    limits : Limits
    counts : callable
        What the worker's meter counted so far.
    actor : str
        The actor that it lives in: the same one when that was started again.
    """

    def __init__(self, limits: Limits, counts: Callable[[], Mark], actor: str = "") -> None:
        self._limits = limits
        self._counts = counts
        unique = uuid4().hex
        self._worker = (actor or unique, unique)
        self._numbers = count()
        self._messages: list[Message] = []
        self._news = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._told = asyncio.Event()
        #: Why the limits cannot be reached.
        self.broken: Exception | None = None

    def open(self) -> None:
        """Begin to talk and to listen."""
        self._tasks = [
            asyncio.create_task(self._talk(), name="testnuc-talk"),
            asyncio.create_task(self._listen(), name="testnuc-listen"),
        ]

    async def close(self) -> None:
        """Hang up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def say(self, *message: Any) -> None:
        """Send a message with the next ones."""
        self._messages.append(message)
        self._news.set()

    async def flush(self) -> None:
        """Wait until all is told, the counts of the meter included."""
        self._told.clear()
        self._news.set()
        while not self._told.is_set() and self.broken is None:
            await self._told.wait()

    async def ask(self, kind: str, *facts: Any) -> int:
        """Wait until something is granted; returns its number."""
        if self.broken is not None:
            raise self.broken
        number = next(self._numbers)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self.say(kind, number, *facts)
        try:
            await future
        except asyncio.CancelledError:
            # granted or not by now: it goes back
            self.say("cancel", number)
            raise
        finally:
            self._waiting.pop(number, None)
        return number

    async def _talk(self) -> None:
        with self._breaking():
            while True:
                await self._news.wait()
                self._news.clear()
                messages, self._messages = self._messages, []
                await self._limits.tell(self._worker, messages, self._counts())
                if not self._news.is_set():
                    self._told.set()

    async def _listen(self) -> None:
        with self._breaking():
            while True:
                for number, refusal in await self._limits.hear(self._worker):
                    future = self._waiting.get(number)
                    if future is None or future.done():
                        continue
                    if refusal is None:
                        future.set_result(None)
                    else:
                        future.set_exception(refusal)

    def _breaking(self) -> _Breaking:
        return _Breaking(self)

    def end(self, error: Exception) -> None:
        """Fail all who wait, and all who will ask."""
        self.broken = TestNUCError(f"the limits that this job shares cannot be reached: {error}")
        self.broken.__cause__ = error
        self._told.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self.broken)


class _Breaking:
    """Ends a line where its body fails."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, Exception):
            self._line.end(error)
            return True
        return False


class _RemotePermit(Permit):
    __slots__ = ("headers", "number")

    def __init__(self, number: int, sent_at: float, size: tuple[int, int]) -> None:
        super().__init__(sent_at, size[0], size)
        self.number = number
        #: What the answer's headers tell of the provider's limits.
        self.headers: dict[str, str] | None = None


class _RemoteReservation(Reservation):
    __slots__ = ("number",)

    def __init__(self, number: int, amounts: tuple[int, int, int]) -> None:
        super().__init__(amounts)
        self.number = number


class RemoteAdmission:
    """Admits the calls of one worker, as far as the limits at the other end of the line do."""

    def __init__(self, line: Line, clock: Callable[[], float] = time.monotonic) -> None:
        self._line = line
        self._clock = clock

    def try_acquire(self, input_tokens: int = 0, max_output_tokens: int = 0) -> None:
        """Return None: only `acquire` can ask."""
        del input_tokens, max_output_tokens

    async def acquire(
        self, input_tokens: int = 0, max_output_tokens: int = 0, *, again: bool = False
    ) -> Permit:
        """Wait until a call may be sent."""
        size = (input_tokens, max_output_tokens)
        number = await self._line.ask("permit", size, again)
        return _RemotePermit(number, self._clock(), size)

    def observe(self, permit: Permit, headers: Mapping[str, str]) -> None:
        """Keep what is to be told when the permit goes back."""
        assert isinstance(permit, _RemotePermit)
        found = {k.lower(): v for k, v in headers.items() if k.lower().startswith(_GATES)}
        if found:
            # the server's clock, to read the dates in the others
            permit.headers = found | {"Date": headers.get("Date", "")}

    def answered(
        self, permit: Permit, input_tokens: int | None = None, output_tokens: int | None = None
    ) -> None:
        """Give a permit back after an answer."""
        self._give_back("answered", permit, input_tokens, output_tokens)

    def refused(self, permit: Permit, wait: float | None = None, *, load: bool = True) -> None:
        """Give a permit back after the server refused the request."""
        self._give_back("refused", permit, wait, load)

    def failed(self, permit: Permit) -> None:
        """Give a permit back after any other failure."""
        self._give_back("failed", permit)

    def _give_back(self, how: str, permit: Permit, *facts: Any) -> None:
        assert isinstance(permit, _RemotePermit)
        self._line.say(how, permit.number, permit.headers, *facts)


class RemoteAccount:
    """The budget at the other end of the line."""

    def __init__(self, line: Line, budget: Budget) -> None:
        self._line = line
        self._bounds_tokens = budget.usd is not None or budget.tokens is not None

    @property
    def bounds_tokens(self) -> bool:
        """Whether tokens, or the money they cost, are bounded."""
        return self._bounds_tokens

    async def reserve(self, pico_usd: int, tokens: int, calls: int = 1) -> Reservation:
        """Set the worst case of a call aside, once there is room for it."""
        number = await self._line.ask("reserve", pico_usd, tokens)
        return _RemoteReservation(number, (pico_usd, tokens, calls))

    def settle(self, reservation: Reservation, pico_usd: int, tokens: int, calls: int = 1) -> None:
        """Book what a call did cost."""
        del calls
        self._close("settle", reservation, pico_usd, tokens)

    def keep(self, reservation: Reservation) -> None:
        """Book the whole reservation."""
        self._close("keep", reservation)

    def release(self, reservation: Reservation) -> None:
        """Free a reservation."""
        self._close("release", reservation)

    def _close(self, how: str, reservation: Reservation, *facts: Any) -> None:
        assert isinstance(reservation, _RemoteReservation)
        if reservation.open:
            reservation.open = False
            self._line.say(how, reservation.number, *facts)
