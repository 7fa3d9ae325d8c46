"""Rate limit, concurrency and budget of a whole job, kept in one place.

`SharedLimits` lives in one named actor; every worker that calls a provider has a `Line` to it (see
`testnuc.ray.limits_client`).

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
from typing import TYPE_CHECKING, Any

from testnuc.limits import Admission, BudgetAccount, Meter, Permit, Reservation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from testnuc.limits import Budget, Mark, RateLimit, RetryPolicy
    from testnuc.types import Usage

__all__ = ["SILENCE", "Granted", "Message", "SharedLimits"]

#: Seconds after which a worker that does not listen is taken for dead.
SILENCE = 20.0
#: Seconds that a call to `SharedLimits.hear` lasts at most.
_POLL = 5.0

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

    def _on_reserve(self, line: _Worker, number: int, *amounts: int) -> None:
        async def reserve() -> None:
            assert self._account is not None
            line.reservations[number] = await self._account.reserve(*amounts)

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

    def _on_book(self, line: _Worker, number: int, *amounts: int) -> None:
        del line, number
        assert self._account is not None
        self._account.book(*amounts)

    def _on_settle(self, line: _Worker, number: int, *amounts: int) -> None:
        reservation = line.reservations.pop(number, None)
        if reservation is not None and self._account is not None:
            self._account.settle(reservation, *amounts)

    def _on_keep(self, line: _Worker, number: int) -> None:
        reservation = line.reservations.pop(number, None)
        if reservation is not None and self._account is not None:
            self._account.keep(reservation)

    def _on_release(self, line: _Worker, number: int) -> None:
        reservation = line.reservations.pop(number, None)
        if reservation is not None and self._account is not None:
            self._account.release(reservation)
