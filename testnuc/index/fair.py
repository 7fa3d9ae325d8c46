"""A lock for one who takes it again and again beside others who need it once."""

from __future__ import annotations

import threading

__all__ = ["FairLock"]


class FairLock:
    """A lock that nobody gets twice while another waits: an addition takes it again and again."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        # who waits for the lock holds the turn: whoever comes back for the lock stands behind
        with self._turn:
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
