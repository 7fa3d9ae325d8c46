"""Rate limit, concurrency and budget of a whole job, held by one named actor.

Every worker that calls a provider has a `LimitsClient` (see `testnuc.ray.limits_client`), which
calls `acquire` for permits and reservations, and `settle` when they are returned. Requests that
are made at the same time travel in one call.

A worker that sends nothing for `SILENCE` seconds counts as dead, and so does the previous process
of an actor that was restarted: its permits are free again, and its reservations are booked in full,
because they may have been spent.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from testnuc.errors import TestNUCError
from testnuc.limits import Admission, BudgetAccount, Meter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from testnuc.limits import Limits, Mark, Permit, Reservation
    from testnuc.types import Usage

#: Seconds after which a silent worker counts as dead.
SILENCE = 20.0

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

    def __init__(
        self,
        limits: Limits,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
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
