"""The in-memory pool."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar, Unpack

import numpy as np

from testnuc._base.arrays import Float16s, Int64s
from testnuc._base.loop_thread import is_cancelled
from testnuc.errors import StoreError
from testnuc.index.matching import Where, check_dim, empty_matches, ranks_of
from testnuc.index.nearest import EXACT_BELOW, NearestVectors
from testnuc.protocols import Index, Matches, PoolText

_T = TypeVar("_T")
_CLOSED = "the pool is closed, and so is its client"


def run_until_closed(threads: ThreadPoolExecutor, work: Callable[[], _T]) -> Awaitable[_T]:
    """Start `work` in a pool's thread; raises `StoreError` if the pool is, or will be, closed."""
    try:
        running = threads.submit(work)
    except RuntimeError as exc:
        raise StoreError(_CLOSED) from exc
    return _result(running)


async def _result(running: Future[_T]) -> _T:
    try:
        return await asyncio.wrap_future(running)
    except asyncio.CancelledError:
        if running.cancelled() and not is_cancelled():
            raise StoreError(_CLOSED) from None
        raise


class Pool(Index):
    """Distinct texts and their vectors, in the memory of this process.

    Row numbers are assigned in insertion order and never reused, so a number is also a snapshot.
    The search is exact below `exact_below` vectors.
    """

    def __init__(self, *, exact_below: int = EXACT_BELOW) -> None:
        self._exact_below = exact_below
        self._rows: dict[bytes, int] = {}
        self._texts: list[PoolText] = []
        self._labels: dict[bytes, str] = {}
        self._nearest: NearestVectors | None = None
        # one thread adds, so that rows stay in the order of their numbers even if a caller is
        # cancelled; another searches between the chunks of an addition
        self._adder = ThreadPoolExecutor(1, thread_name_prefix="testnuc-add")
        self._searcher = ThreadPoolExecutor(1, thread_name_prefix="testnuc-search")

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, text_hash: bytes) -> bool:
        return text_hash in self._rows

    async def open(self) -> None:
        """Do nothing: memory needs no opening."""

    async def add(self, texts: Sequence[PoolText], vectors: Float16s) -> int:
        if self._nearest is None:
            if not len(texts):
                return 0
            self._nearest = NearestVectors(vectors.shape[1], exact_below=self._exact_below)
        if len(texts):
            check_dim(vectors, self._nearest.dim)
        new = []
        for position, entry in enumerate(texts):
            if entry.label is not None:
                self._labels[entry.hash] = entry.label
            row = self._rows.get(entry.hash)
            if row is None:
                self._rows[entry.hash] = len(self._texts)
                self._texts.append(entry)
                new.append(position)
            elif entry.label is not None:
                self._texts[row] = entry
        upto = len(self._texts)
        nearest, fresh = self._nearest, [texts[i].hash for i in new]
        if not new and upto <= len(nearest):
            # no other caller's rows are left to wait for either
            return upto
        # no await since the numbers were assigned: rows are added in the same order
        added = run_until_closed(
            self._adder, lambda: nearest.add(vectors[new], ranks_of(fresh)) if new else None
        )
        await asyncio.shield(added)
        return upto

    async def remove(self, hashes: Sequence[bytes]) -> int:
        rows = [row for h in hashes if (row := self._rows.pop(h, None)) is not None]
        for text_hash in hashes:
            self._labels.pop(text_hash, None)
        if rows and self._nearest is not None:
            gone, nearest = np.array(rows, dtype=np.int64), self._nearest
            await asyncio.shield(run_until_closed(self._adder, lambda: nearest.remove(gone)))
        return len(rows)

    async def search(self, vectors: Float16s, k: int, **where: Unpack[Where]) -> Matches:
        if self._nearest is None:
            return empty_matches(len(vectors), k)
        own = None
        if (exclude := where.get("exclude")) is not None:
            own = np.array([self._rows.get(h, -1) for h in exclude], dtype=np.int64)
        nearest, upto, among = self._nearest, where.get("upto"), where.get("among")
        ids, similarities = await run_until_closed(
            self._searcher, lambda: nearest.search(vectors, k, exclude=own, limit=upto, among=among)
        )
        return Matches(ids, similarities)

    async def fetch(self, ids: Int64s) -> list[PoolText]:
        return [self._texts[i] for i in ids.tolist()]

    async def scan(self, start: int, count: int) -> tuple[list[PoolText], int | None]:
        end = start + count
        texts = [
            entry
            for row, entry in enumerate(self._texts[start:end], start)
            if self._rows.get(entry.hash) == row
        ]
        return texts, end if end < len(self._texts) else None

    async def labels(self, hashes: Sequence[bytes]) -> list[str | None]:
        rows = [self._rows.get(h) for h in hashes]
        return [None if row is None else self._texts[row].label for row in rows]

    async def rows(self, hashes: Sequence[bytes]) -> Int64s:
        found = [row for h in hashes if (row := self._rows.get(h)) is not None]
        return np.unique(np.array(found, dtype=np.int64))

    async def labeled(self) -> dict[bytes, str]:
        return dict(self._labels)

    async def stored_vectors(self, hashes: Sequence[bytes]) -> list[Float16s | None]:
        if (nearest := self._nearest) is None:
            return [None] * len(hashes)
        # a text whose number is assigned may have a vector later
        size = len(nearest)
        rows = [self._rows.get(h, size) for h in hashes]
        return [nearest.vector(row) if row < size else None for row in rows]

    async def close(self) -> None:
        self._adder.shutdown(wait=False, cancel_futures=True)
        self._searcher.shutdown(wait=False, cancel_futures=True)
