"""A lock without starvation."""

from __future__ import annotations

import threading

__all__ = ["FairLock"]


class FairLock:
    """A lock that alternates between two threads that both want it.

    Without it, an addition that re-acquires the lock for each chunk would starve a search.
    """

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        # a waiting thread holds `_next`, so a thread that re-acquires the lock queues behind it
        with self._next:
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
