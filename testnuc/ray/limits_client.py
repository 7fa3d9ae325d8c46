"""A worker's line to the limits that it shares, and the transport's ends of it."""

from __future__ import annotations

import asyncio
import time
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from testnuc.errors import TestNUCError
from testnuc.limits import Permit, Reservation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from testnuc.limits import Budget, Mark
    from testnuc.ray.limits_actor import Granted, Message

__all__ = ["Limits", "Line", "RemoteAccount", "RemoteAdmission"]

#: Headers by which providers tell of their limits.
_GATES = ("x-ratelimit-", "anthropic-ratelimit-")


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
        number = await self._line.ask("reserve", pico_usd, tokens, calls)
        return _RemoteReservation(number, (pico_usd, tokens, calls))

    def settle(self, reservation: Reservation, pico_usd: int, tokens: int, calls: int = 1) -> None:
        """Book what a call did cost."""
        self._close("settle", reservation, pico_usd, tokens, calls)

    def book(self, pico_usd: int, tokens: int, calls: int) -> None:
        """Book what was spent without a reservation."""
        self._line.say("book", -1, pico_usd, tokens, calls)

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
