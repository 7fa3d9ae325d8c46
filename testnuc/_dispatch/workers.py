"""Workers: tasks that take requests from the queue, as many as its work needs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from testnuc._dispatch.inflight import InFlightRequest
    from testnuc._dispatch.queue import FairQueue

__all__ = ["WorkerPool"]


class WorkerPool:
    """A bounded number of workers, each started when there is work and ended when there is none.

    Parameters
    ----------
    limit : int
        Most workers, but for those whose calls back off; see `lend`.
    per_call : int
        Most requests that a worker takes at a time.
    queue : FairQueue
    serve : callable
        Awaitable; sends a bundle of requests and must not raise.
    """

    def __init__(
        self,
        limit: int,
        per_call: int,
        queue: FairQueue,
        serve: Callable[[list[InFlightRequest]], Awaitable[None]],
    ) -> None:
        self._limit = limit
        self._per_call = per_call
        self._queue = queue
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()
        #: Workers whose call backs off.
        self._lent = 0
        self._closed = False

    def __len__(self) -> int:
        """Return the number of workers at work."""
        return len(self._tasks)

    def lend(self, workers: int) -> None:
        """Raise the limit while calls back off (a negative number: lower it again).

        A failed call would otherwise keep its place from others for as long as it waits. Calls in
        flight are bounded elsewhere; here they may at most be twice as many.
        """
        self._lent += workers
        if workers > 0:
            self.hire()

    def hire(self) -> None:
        """Start as many workers as the queue needs and the limit allows."""
        free = self._most - len(self._tasks)
        if self._closed or free <= 0:
            return
        for _ in range(min(free, -(-len(self._queue) // self._per_call))):
            self._tasks.add(asyncio.create_task(self._work(), name="testnuc-worker"))

    async def close(self, drain: float) -> None:
        """Wait for the workers, at most `drain` seconds, and cancel those that are left."""
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
        return self._limit + min(self._lent, self._limit)

    async def _work(self) -> None:
        try:
            while len(self._tasks) <= self._most and (bundle := self._queue.take()):
                for request in bundle:
                    request.sent = True
                await self._serve(bundle)
        finally:
            # in the same step in which it found no work: else `hire` would still count on it
            worker = asyncio.current_task()
            assert worker is not None
            self._tasks.discard(worker)
