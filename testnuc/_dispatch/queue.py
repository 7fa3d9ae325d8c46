"""Queue of requests, served round-robin over runs, and the workers that take from it."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass

from testnuc._dispatch.inflight import InFlightRequest, ScheduledRun
from testnuc.transport.calls import ON_WAIT


@dataclass(eq=False)
class FairQueue:
    """Round-robin over one queue per run, so that a short run does not wait for a long one."""

    #: Most requests in a bundle.
    per_call: int
    _: KW_ONLY
    #: A run claims more asks once at most this many of its requests are queued.
    low_water: int
    #: Whether a bundle may hold several requests about one text, and some with examples.
    mixed: bool

    def __post_init__(self) -> None:
        #: Next run first; no queue is empty.
        self._queues: OrderedDict[ScheduledRun, deque[InFlightRequest]] = OrderedDict()
        self._size = 0
        #: Runs with more asks to come: their requests wait until they fill a call.
        self.held_back: set[ScheduledRun] = set()
        #: While True, nothing is taken.
        self.paused = False

    def __len__(self) -> int:
        """Return the number of requests."""
        return self._size

    def is_full(self, run: ScheduledRun) -> bool:
        """Whether a run has too many queued requests to claim more asks."""
        queue = self._queues.get(run)
        return queue is not None and len(queue) > self.low_water

    def put(self, run: ScheduledRun, request: InFlightRequest) -> None:
        """Queue a request on behalf of a run."""
        request.queued = True
        self._queues.setdefault(run, deque()).append(request)
        self._size += 1

    def take(self) -> list[InFlightRequest]:
        """Remove and return the requests of one call; empty if none is ready."""
        if self.paused:
            return []
        for _ in range(len(self._queues)):
            run, queue = next(iter(self._queues.items()))
            self._queues.move_to_end(run)
            if len(queue) < self.per_call and run in self.held_back:
                continue
            before = len(queue)
            bundle = self._bundle(queue)
            self._size -= before - len(queue)
            if not queue:
                del self._queues[run]
            if len(queue) <= self.low_water:
                run.room.set()
            if bundle:
                return bundle
        return []

    def _bundle(self, queue: deque[InFlightRequest]) -> list[InFlightRequest]:
        bundle: list[InFlightRequest] = []
        hashes: set[bytes] = set()
        while queue and len(bundle) < self.per_call:
            if not queue[0].waiters:
                # all waiting runs have ended, perhaps in another lane
                queue.popleft()
                continue
            ask = queue[0].ask
            if not self.mixed and bundle and (ask.demonstrations or ask.text_hash in hashes):
                break
            bundle.append(queue.popleft())
            hashes.add(ask.text_hash)
            if ask.demonstrations and not self.mixed:
                break
        return bundle

    def remove(self, run: ScheduledRun) -> deque[InFlightRequest]:
        """Remove a run and return its requests."""
        queue = self._queues.pop(run, deque[InFlightRequest]())
        self._size -= len(queue)
        return queue

    def clear(self) -> None:
        """Drop all requests."""
        self._queues.clear()
        self._size = 0


@dataclass(eq=False)
class WorkerPool:
    """A bounded number of worker tasks, started when requests are queued; idle workers end."""

    #: Most workers; more while calls back off.
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

    def _lend(self, workers: int) -> None:
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
        ON_WAIT.set(self._lend)
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
