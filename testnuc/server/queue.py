"""How many texts are taken at a time, and when to come back."""

from __future__ import annotations

import asyncio
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING

from testnuc.server.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Place", "Queue"]

#: Seconds over which the pace is averaged.
_MEMORY = 10.0
_LONGEST = 60


class Queue:
    """Counts the texts that are being labeled or wait for it; refuses what is beyond a limit.

    What is refused has cost nothing yet but the reading of its body.

    Parameters
    ----------
    limit : int
        Texts.
    clock : callable
        Seconds that only grow.
    """

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.limit = limit
        #: Texts in it.
        self.pending = 0
        self._clock = clock
        self._done = 0.0
        self._since = clock()
        self._empty = asyncio.Event()
        self._empty.set()

    @contextmanager
    def admit(self, texts: int) -> Iterator[Place]:
        """Take so many texts in while the context lasts.

        Raises
        ------
        Refused
            429: there is no room.
        """
        if self.pending + texts > self.limit:
            after = self.retry_after(texts)
            raise Refused(
                429,
                "queue_full",
                f"{self.pending} texts are waiting already, of which at most {self.limit} may; "
                f"send this again in {after} s",
                headers={"Retry-After": str(after)},
            )
        place = Place(self, texts)
        self.pending += texts
        self._empty.clear()
        try:
            yield place
        finally:
            place.leave(place.texts)

    def retry_after(self, texts: int) -> int:
        """Return in how many whole seconds so many texts will find room at the present pace."""
        pace = self._recent(self._clock()) / _MEMORY
        wanted = self.pending + texts - self.limit
        if pace <= 0:
            return 1
        return min(max(1, math.ceil(wanted / pace)), _LONGEST)

    async def empty(self) -> None:
        """Wait until nobody is in it."""
        await self._empty.wait()

    def leave(self, texts: int) -> None:
        """Count texts that are done."""
        now = self._clock()
        self._done = self._recent(now) + texts
        self._since = now
        self.pending -= texts
        if not self.pending:
            self._empty.set()

    def _recent(self, now: float) -> float:
        return self._done * math.exp((self._since - now) / _MEMORY)


class Place:
    """The texts of one request in a queue."""

    __slots__ = ("_queue", "texts")

    def __init__(self, queue: Queue, texts: int) -> None:
        self._queue = queue
        #: Texts that are still in the queue.
        self.texts = texts

    def leave(self, texts: int = 1) -> None:
        """Make room for others before the request is over."""
        self.texts -= texts
        self._queue.leave(texts)
