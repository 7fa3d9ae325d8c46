"""Worker tasks that take requests from the queue, started on demand."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from testnuc._dispatch.inflight import InFlightRequest
    from testnuc._dispatch.queue import FairQueue

__all__ = ["WorkerPool"]


@dataclass(eq=False)
class WorkerPool:
    """A bounded number of worker tasks, started when requests are queued; idle workers end."""

    #: Most workers; `lend` raises it while calls back off.
    limit: int
    #: Most requests in one call.
    per_call: int
    queue: FairQueue
    #: Sends the requests of one call, and must not raise.
    serve: Callable[[list[InFlightRequest]], Awaitable[None]]

    def __post_init__(self) -> None:
        #: In the order of their start, which is the order of their cancellation, too.
        self._tasks: dict[asyncio.Task[None], None] = {}
        #: Workers that have not run yet; they will take requests that are queued now.
        self._starting = 0
        #: Workers whose call is backing off.
        self._lent = 0
        self._closed = False

    def __len__(self) -> int:
        """Return the number of running workers."""
        return len(self._tasks)

    def lend(self, workers: int) -> None:
        """Raise the limit while calls back off (a negative number: lower it again).

        A call that backs off would otherwise block a worker. The limit at most doubles; calls in
        flight are bounded by `testnuc.limits`.
        """
        self._lent += workers
        if workers > 0:
            self.hire()

    def hire(self) -> None:
        """Start workers for the queued requests, up to the limit."""
        free = self._most - len(self._tasks)
        if self._closed or free <= 0:
            return
        calls = -(-len(self.queue) // self.per_call)
        for _ in range(min(free, calls - self._starting)):
            self._starting += 1
            self._tasks[asyncio.create_task(self._work(), name="testnuc-worker")] = None

    async def close(self, drain: float) -> None:
        """Wait up to `drain` seconds for the workers, then cancel the rest."""
        self._closed = True
        try:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=drain)
        finally:
            late = tuple(self._tasks)
            for worker in late:
                worker.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    @property
    def _most(self) -> int:
        return self.limit + min(self._lent, self.limit)

    async def _work(self) -> None:
        self._starting -= 1
        try:
            while len(self._tasks) <= self._most and (bundle := self.queue.take()):
                for request in bundle:
                    request.sent = True
                await self.serve(bundle)
        finally:
            # without an await after `take` returned nothing: `hire` must not count this worker
            worker = asyncio.current_task()
            assert worker is not None
            self._tasks.pop(worker, None)
