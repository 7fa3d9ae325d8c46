"""The queue of requests that wait for a worker, served run by run in turn."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testnuc._dispatch.inflight import InFlightRequest, ScheduledRun

__all__ = ["FairQueue"]


class FairQueue:
    """A queue for each run; runs take turns, so that a short one does not wait for a long one.

    Parameters
    ----------
    per_call : int
        Most requests in a bundle.
    low_water : int
        A run may take more asks when no more of its requests than this wait.
    mixed : bool
        Whether a bundle may hold several requests about one text, and some with examples.
    """

    def __init__(self, per_call: int, *, low_water: int, mixed: bool) -> None:
        self._per_call = per_call
        self._low_water = low_water
        self._mixed = mixed
        #: In the order of their turns; none is empty.
        self._queues: OrderedDict[ScheduledRun, deque[InFlightRequest]] = OrderedDict()
        self._size = 0
        #: Runs that have more asks at hand, so that none of their calls need go out half full.
        self._held_back: set[ScheduledRun] = set()

    def __len__(self) -> int:
        """Return the number of requests."""
        return self._size

    def is_full(self, run: ScheduledRun) -> bool:
        """Whether so many requests of a run wait that it takes no more asks."""
        queue = self._queues.get(run)
        return queue is not None and len(queue) > self._low_water

    def put(self, run: ScheduledRun, request: InFlightRequest) -> None:
        """Queue a request on behalf of a run."""
        queue = self._queues.get(run)
        if queue is None:
            self._queues[run] = queue = deque()
        queue.append(request)
        self._size += 1

    def hold_back(self, run: ScheduledRun) -> None:
        """Skip a run from now on while its requests do not fill a call."""
        self._held_back.add(run)

    def let_go(self, run: ScheduledRun) -> None:
        """Skip a run no longer."""
        self._held_back.discard(run)

    def take(self) -> list[InFlightRequest]:
        """Remove a bundle that fits in one call; empty where nothing is ready."""
        for _ in range(len(self._queues)):
            run, queue = next(iter(self._queues.items()))
            self._queues.move_to_end(run)
            if len(queue) < self._per_call and run in self._held_back:
                continue
            before = len(queue)
            bundle = self._bundle(queue)
            self._size -= before - len(queue)
            if not queue:
                del self._queues[run]
            if len(queue) <= self._low_water:
                run.room.set()
            if bundle:
                return bundle
        return []

    def _bundle(self, queue: deque[InFlightRequest]) -> list[InFlightRequest]:
        bundle: list[InFlightRequest] = []
        hashes: set[bytes] = set()
        while queue and len(bundle) < self._per_call:
            if not queue[0].waiters:
                # its runs have ended, the last one in another lane
                queue.popleft()
                continue
            ask = queue[0].ask
            if not self._mixed and bundle and (ask.demonstrations or ask.text_hash in hashes):
                break
            bundle.append(queue.popleft())
            hashes.add(ask.text_hash)
            if ask.demonstrations and not self._mixed:
                break
        return bundle

    def remove(self, run: ScheduledRun) -> deque[InFlightRequest]:
        """Remove a run; returns its requests."""
        queue = self._queues.pop(run, None)
        if queue is None:
            return deque()
        self._size -= len(queue)
        return queue

    def clear(self) -> None:
        """Drop all requests."""
        self._queues.clear()
        self._size = 0
