"""Load shedding: a limit of pending texts, and the Retry-After of rejected requests."""

from __future__ import annotations

import asyncio
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING

from testnuc.server.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Seconds over which throughput is averaged.
_MEMORY = 10.0
_LONGEST = 60


class Queue:
    """Counts pending texts, and rejects requests over a limit; `clock` gives monotonic seconds."""

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.limit = limit
        #: Texts being labeled or waiting.
        self.pending = 0
        self._clock = clock
        self._done = 0.0
        self._since = clock()
        self._empty = asyncio.Event()
        self._empty.set()

    @contextmanager
    def admit(self, texts: int) -> Iterator[Place]:
        """Count texts as pending until the context ends; over the limit, respond with 429."""
        if self.pending + texts > self.limit:
            after = self.retry_after(texts)
            raise RequestError(
                429,
                "queue_full",
                f"{self.pending} texts are pending, of at most {self.limit}; retry in {after} s",
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
        """Return the whole seconds until there is room, at the present throughput."""
        throughput = self._recent(self._clock()) / _MEMORY
        wanted = self.pending + texts - self.limit
        if throughput <= 0:
            return 1
        return min(max(1, math.ceil(wanted / throughput)), _LONGEST)

    async def empty(self) -> None:
        """Wait until no text is pending."""
        await self._empty.wait()

    def leave(self, texts: int) -> None:
        """Remove texts that are done."""
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
        #: Texts that are still pending.
        self.texts = texts

    def leave(self, texts: int = 1) -> None:
        """Remove texts before the request ends."""
        self.texts -= texts
        self._queue.leave(texts)
