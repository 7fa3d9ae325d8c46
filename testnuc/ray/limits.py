"""Rate limit, concurrency and budget of a whole job.

`SharedLimits` holds them, in one named actor. Every worker that calls a provider has a
`LimitsClient`, which calls `acquire` for permits and reservations, and `settle` when they are
returned. Requests that are made at the same time travel in one call.

A worker that sends nothing for `SILENCE` seconds counts as dead, and so does the previous process
of an actor that was restarted: its permits are free again, and its reservations are booked in full,
because they may have been spent.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from testnuc.errors import TestNUCError
from testnuc.limits import Admission, BudgetAccount, Meter, Permit, Reservation

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from testnuc.limits import Budget, Limits, Mark
    from testnuc.types import Usage

#: Seconds after which a silent worker counts as dead.
SILENCE = 20.0

#: Headers with the limits of a provider.
_LIMIT_HEADERS = ("x-ratelimit-", "anthropic-ratelimit-")
#: Seconds between two calls of `settle` at most: the worker is alive.
_HEARTBEAT = 5.0
#: Most in-flight calls of `acquire`: one waits, and one has new requests.
_MOST_POLLS = 2

#: The actor that a worker lives in, and a name of its own: different after a restart.
WorkerId = tuple[str, str]
#: The number of a request; a method of `Admission` or `BudgetAccount`, and its arguments.
LimitsCall = tuple[int, str, tuple[Any, ...], dict[str, Any]]
#: The number of a request; None, or why it is refused.
Granted = tuple[int, Exception | None]


class _Worker:
    """The requests of one worker that wait, and what it holds."""

    def __init__(self, now: float) -> None:
        self.seen_at = now
        self.changed = asyncio.Event()
        self.granted: list[Granted] = []
        self.waiting: dict[int, asyncio.Task[None]] = {}
        self.permits: dict[int, Permit] = {}
        self.reservations: dict[int, Reservation] = {}
        #: Cancelled before they arrived: calls of one worker may overtake each other.
        self.cancelled: set[int] = set()


class SharedLimits:
    """Limits that all workers of a job share; the waits of its `RetryPolicy` bound the pauses."""

    def __init__(self, limits: Limits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._admission = Admission(limits.rate, limits.concurrency, limits.retry, clock=clock)
        self._account = None if limits.budget is None else BudgetAccount(limits.budget)
        self._clock = clock
        self._workers: dict[WorkerId, _Worker] = {}
        self._failure: Exception | None = None
        self._counts: dict[WorkerId, Mark] = {}

    async def acquire(self, worker: WorkerId, requests: Sequence[LimitsCall]) -> list[Granted]:
        """Queue requests for permits and reservations; return what is granted, once there is any.

        An earlier call of the same worker that still waits returns at once, so that a worker has
        at most two in flight.
        """
        state = self._seen(worker)
        for request in requests:
            number = request[0]
            if number in state.cancelled:
                state.cancelled.discard(number)
            else:
                waiting = asyncio.create_task(self._grant(state, request), name="testnuc-grant")
                state.waiting[number] = waiting
        state.changed.set()
        if not state.granted:
            state.changed.clear()
            await state.changed.wait()
        granted, state.granted = state.granted, []
        return granted

    async def settle(self, worker: WorkerId, settled: Sequence[LimitsCall], counts: Mark) -> None:
        """Return permits and reservations, and note what the worker's meter has counted so far."""
        state = self._seen(worker)
        self._counts[worker] = counts
        for number, method, arguments, options in settled:
            if method == "cancel":
                self._cancel(state, number)
            elif method == "book":
                assert self._account is not None
                self._account.book(*arguments)
            # neither: it was held by a worker that was taken for dead
            elif number in state.permits:
                self._return_permit(state.permits.pop(number), method, arguments, options)
            elif number in state.reservations:
                getattr(self._account, method)(state.reservations.pop(number), *arguments)

    async def usage(self) -> Usage:
        """Return what all workers counted, dead ones included."""
        return Meter.sum(self._counts.values())

    async def in_flight(self) -> int:
        """Return the number of calls in flight."""
        return self._admission.in_flight

    async def fail(self, error: Exception) -> None:
        """Note why the job fails; the first error stays."""
        self._failure = self._failure or error

    async def failure(self) -> Exception | None:
        """Return why the job failed: Ray's own exception holds only the text of ours."""
        return self._failure

    async def _grant(self, state: _Worker, request: LimitsCall) -> None:
        number, method, arguments, options = request
        refusal = None
        try:
            if method == "acquire":
                permit = await self._admission.acquire(*arguments, **options)
                state.permits[number] = permit
            else:
                assert self._account is not None
                state.reservations[number] = await self._account.reserve(*arguments)
        except Exception as error:  # noqa: BLE001 - raised in the worker
            refusal = error
        state.waiting.pop(number, None)
        state.granted.append((number, refusal))
        state.changed.set()

    def _return_permit(
        self, permit: Permit, method: str, arguments: tuple[Any, ...], options: Mapping[str, Any]
    ) -> None:
        headers, *facts = arguments
        if headers:
            self._admission.observe(permit, headers)
        getattr(self._admission, method)(permit, *facts, **options)

    def _cancel(self, state: _Worker, number: int) -> None:
        if number in state.waiting:
            state.waiting.pop(number).cancel()
        elif number in state.permits:
            self._admission.abandoned(state.permits.pop(number))
        elif number in state.reservations:
            assert self._account is not None
            self._account.release(state.reservations.pop(number))
        else:
            state.cancelled.add(number)

    def _seen(self, worker: WorkerId) -> _Worker:
        """Return the state of a worker, and remove those of dead ones."""
        now = self._clock()
        state = self._workers.pop(worker, None)
        for other, silent in list(self._workers.items()):
            # the earlier process of an actor that was restarted is dead, too
            if now - silent.seen_at > SILENCE or (state is None and other[0] == worker[0]):
                self._remove(self._workers.pop(other))
        state = self._workers[worker] = state or _Worker(now)
        state.seen_at = now
        return state

    def _remove(self, state: _Worker) -> None:
        for number, task in state.waiting.items():
            task.cancel()
            # a worker that was only slow raises, instead of waiting for ever
            state.granted.append((number, TestNUCError(f"silent for more than {SILENCE:g} s")))
        for permit in state.permits.values():
            self._admission.failed(permit)
        for reservation in state.reservations.values():
            assert self._account is not None
            self._account.keep(reservation)
        state.changed.set()


class _RemotePermit(Permit):
    __slots__ = ("headers", "number")

    def __init__(self, number: int, sent_at: float, size: tuple[int, int]) -> None:
        super().__init__(sent_at, size[0], size)
        self.number = number
        #: Rate limit headers of the answer.
        self.headers: dict[str, str] | None = None


class _RemoteReservation(Reservation):
    __slots__ = ("number",)

    def __init__(self, number: int, amounts: tuple[int, int, int]) -> None:
        super().__init__(amounts)
        self.number = number


class LimitsClient:
    """Admits the calls of one worker, and reserves money for them, as `SharedLimits` grants it.

    Is both an `AdmissionControl` and a `BudgetControl` of `testnuc.limits.protocols`; belongs to
    one event loop.

    Parameters
    ----------
    limits : SharedLimits or actor handle
    counts : callable
        Returns the counters of the worker's meter.
    actor : str
        The id of the Ray actor that it lives in; the same after a restart.
    """

    def __init__(
        self,
        limits: Any,
        counts: Callable[[], Mark],
        *,
        budget: Budget | None = None,
        actor: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # methods of an actor are called by `.remote(..)`
        self._acquire = getattr(limits.acquire, "remote", limits.acquire)
        self._settle = getattr(limits.settle, "remote", limits.settle)
        self._counts = counts
        #: Whether tokens, or the money they cost, are bounded.
        self.bounds_tokens = budget is not None and (
            budget.usd is not None or budget.tokens is not None
        )
        unique = uuid4().hex
        self._worker = (actor or unique, unique)
        self._clock = clock
        self._numbers = count()
        self._requests: list[LimitsCall] = []
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._polls = 0
        self._settled: list[LimitsCall] = []
        self._news = asyncio.Event()
        self._sending = asyncio.Lock()
        #: Only the actor knows of a pause.
        self.pause = 0.0
        #: Why the limits cannot be reached.
        self.broken: Exception | None = None

    def open(self) -> None:
        """Start to send settlements and heartbeats."""
        self._start(self._send_settlements(), "testnuc-settle")

    async def close(self) -> None:
        """Cancel all calls of the actor."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def flush(self) -> None:
        """Wait until all settlements and the counters of the meter have arrived."""
        async with self._sending:
            settled, self._settled = self._settled, []
            try:
                await self._settle(self._worker, settled, self._counts())
            except Exception as error:  # noqa: BLE001 - raised where calls are admitted
                self._break(error)

    # -- admission -------------------------------------------------------------------------------

    def try_acquire(self, input_tokens: int = 0, max_output_tokens: int = 0) -> None:
        """Return None: every permit comes from the actor."""
        del input_tokens, max_output_tokens

    async def acquire(
        self, input_tokens: int = 0, max_output_tokens: int = 0, *, again: bool = False
    ) -> Permit:
        """Wait until a call may be sent."""
        size = (input_tokens, max_output_tokens)
        number = await self._request("acquire", *size, again=again)
        return _RemotePermit(number, self._clock(), size)

    def observe(self, permit: Permit, headers: Mapping[str, str]) -> None:
        """Keep the rate limit headers until the permit is returned."""
        assert isinstance(permit, _RemotePermit)
        found = {k.lower(): v for k, v in headers.items() if k.lower().startswith(_LIMIT_HEADERS)}
        if found:
            # the server's clock, to read the dates in the others
            permit.headers = found | {"Date": headers.get("Date", "")}

    def answered(
        self, permit: Permit, input_tokens: int | None = None, output_tokens: int | None = None
    ) -> None:
        """Return a permit after an answer."""
        self._return_permit(permit, "answered", input_tokens, output_tokens)

    def refused(self, permit: Permit, wait: float | None = None, *, load: bool = True) -> None:
        """Return a permit after the server refused the request."""
        self._return_permit(permit, "refused", wait, load=load)

    def failed(self, permit: Permit) -> None:
        """Return a permit after any other failure."""
        self._return_permit(permit, "failed")

    def abandoned(self, permit: Permit) -> None:
        """Return a permit whose request was never sent."""
        self._return_permit(permit, "abandoned")

    def _return_permit(self, permit: Permit, method: str, *facts: Any, **options: Any) -> None:
        assert isinstance(permit, _RemotePermit)
        self._send(permit.number, method, permit.headers, *facts, **options)

    # -- budget ----------------------------------------------------------------------------------

    async def reserve(
        self,
        pico_usd: int,
        tokens: int,
        calls: int = 1,
        *,
        batch: bool = False,  # noqa: ARG002 - workers have no batch lane
    ) -> Reservation:
        """Reserve the worst case of a call, once the budget has room for it."""
        number = await self._request("reserve", pico_usd, tokens, calls)
        return _RemoteReservation(number, (pico_usd, tokens, calls))

    def settle(self, reservation: Reservation, pico_usd: int, tokens: int, calls: int = 1) -> None:
        """Book the actual cost of a call."""
        self._close(reservation, "settle", pico_usd, tokens, calls)

    def book(self, pico_usd: int, tokens: int, calls: int) -> None:
        """Book a cost that was not reserved."""
        self._send(-1, "book", pico_usd, tokens, calls)

    def keep(self, reservation: Reservation) -> None:
        """Book the whole reservation."""
        self._close(reservation, "keep")

    def release(self, reservation: Reservation) -> None:
        """Free a reservation."""
        self._close(reservation, "release")

    def _close(self, reservation: Reservation, method: str, *amounts: int) -> None:
        assert isinstance(reservation, _RemoteReservation)
        if reservation.open:
            reservation.open = False
            self._send(reservation.number, method, *amounts)

    # -- calls of the actor ----------------------------------------------------------------------

    def _send(self, number: int, method: str, *arguments: Any, **options: Any) -> None:
        self._settled.append((number, method, arguments, options))
        self._news.set()

    async def _request(self, method: str, *arguments: Any, **options: Any) -> int:
        """Wait until a permit or a reservation is granted; returns its number."""
        if self.broken is not None:
            raise self.broken
        number = next(self._numbers)
        granted = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._requests.append((number, method, arguments, options))
        if self._polls < _MOST_POLLS:
            self._polls += 1
            self._start(self._poll(), "testnuc-acquire")
        try:
            await granted
        except asyncio.CancelledError:
            # granted or not by now: it is returned
            self._send(number, "cancel")
            raise
        finally:
            self._waiting.pop(number, None)
        return number

    async def _poll(self) -> None:
        """Send requests, and resolve what is granted, for as long as one waits."""
        while self.broken is None and (self._requests or (self._waiting and self._polls == 1)):
            requests, self._requests = self._requests, []
            try:
                granted = await self._acquire(self._worker, requests)
            except Exception as error:  # noqa: BLE001 - raised where calls are admitted
                self._break(error)
                break
            for number, refusal in granted:
                future = self._waiting.get(number)
                if future is None or future.done():
                    continue
                if refusal is None:
                    future.set_result(None)
                else:
                    future.set_exception(refusal)
        self._polls -= 1

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_settlements(self) -> None:
        while self.broken is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_HEARTBEAT):
                    await self._news.wait()
            self._news.clear()
            await self.flush()

    def _break(self, error: Exception) -> None:
        """Fail all requests, those that wait and later ones."""
        self.broken = TestNUCError(f"the shared limits of this job cannot be reached: {error}")
        self.broken.__cause__ = error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self.broken)
