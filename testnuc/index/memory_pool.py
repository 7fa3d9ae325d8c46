"""The pool: the distinct unlabeled texts that neighbors come from, held in this process."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from testnuc.errors import EmbeddingError
from testnuc.index import EXACT_BELOW, NearestVectors
from testnuc.protocols import Matches, PoolText

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Pool"]


class Pool:
    """Texts by number, their vectors in a `NearestVectors`; an `Index` for one process.

    One text is in the pool once, whatever the number of times it was added. Numbers are given in
    the order of arrival and never again, so that a number is a snapshot, too.
    """

    def __init__(self, *, exact_below: int = EXACT_BELOW) -> None:
        self._exact_below = exact_below
        self._rows: dict[bytes, int] = {}
        self._texts: list[PoolText] = []
        self._nearest: NearestVectors | None = None
        # One thread adds, so that rows arrive in the order of their numbers even when whoever
        # asked for it is cancelled; another searches, between the chunks of an addition.
        self._adder = ThreadPoolExecutor(1, thread_name_prefix="testnuc-add")
        self._searcher = ThreadPoolExecutor(1, thread_name_prefix="testnuc-search")

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, text_hash: bytes) -> bool:
        return text_hash in self._rows

    async def open(self) -> None:
        """Do nothing: a pool in memory starts empty."""

    async def add(self, texts: Sequence[PoolText], vectors: NDArray[np.float16]) -> int:
        """Add the texts that are not there yet; see `testnuc.protocols.Index.add`."""
        if self._nearest is None:
            self._nearest = NearestVectors(vectors.shape[1], exact_below=self._exact_below)
        if vectors.shape[1] != self._nearest.dim:
            raise EmbeddingError(
                f"the embedder gave vectors of dimension {vectors.shape[1]}, "
                f"but the pool holds dimension {self._nearest.dim}"
            )
        new = []
        for position, entry in enumerate(texts):
            row = self._rows.get(entry.hash)
            if row is None:
                self._rows[entry.hash] = len(self._texts)
                self._texts.append(entry)
                new.append(position)
            elif entry.label is not None:
                self._texts[row] = entry
        upto = len(self._texts)
        nearest, fresh = self._nearest, [texts[i].hash for i in new]
        # submitted in the same step in which the numbers were given: the order is the same
        added = self._adder.submit(lambda: nearest.add(vectors[new], _ranks(fresh)))
        await asyncio.shield(asyncio.wrap_future(added))
        return upto

    async def remove(self, hashes: Sequence[bytes]) -> int:
        """Take texts out of the pool; returns how many were in it."""
        rows = [row for h in hashes if (row := self._rows.pop(h, None)) is not None]
        if rows and self._nearest is not None:
            removed = self._adder.submit(self._nearest.remove, np.array(rows, dtype=np.int64))
            await asyncio.shield(asyncio.wrap_future(removed))
        return len(rows)

    async def search(
        self,
        vectors: NDArray[np.float16],
        k: int,
        *,
        exclude: Sequence[bytes] | None = None,
        upto: int | None = None,
    ) -> Matches:
        """Find the k nearest texts of each vector; see `testnuc.protocols.Index.search`."""
        if self._nearest is None:
            return Matches(
                np.full((len(vectors), k), -1, dtype=np.int64),
                np.zeros((len(vectors), k), dtype=np.float32),
            )
        own = None
        if exclude is not None:
            own = np.array([self._rows.get(h, -1) for h in exclude], dtype=np.int64)
        nearest = self._nearest
        ids, similarities = await asyncio.get_running_loop().run_in_executor(
            self._searcher, lambda: nearest.search(vectors, k, exclude=own, limit=upto)
        )
        return Matches(ids, similarities)

    async def fetch(self, ids: NDArray[np.int64]) -> list[PoolText]:
        """Return the texts with these numbers."""
        texts = self._texts
        return [texts[i] for i in ids.tolist()]

    async def scan(self, start: int, count: int) -> tuple[list[PoolText], int | None]:
        """Return at most `count` texts numbered from `start`, and where to go on."""
        end = start + count
        texts = [
            entry
            for row, entry in enumerate(self._texts[start:end], start)
            if self._rows.get(entry.hash) == row
        ]
        return texts, end if end < len(self._texts) else None

    async def labels(self, hashes: Sequence[bytes]) -> list[str | None]:
        """Return the label that a person gave each text."""
        rows = [self._rows.get(h) for h in hashes]
        return [None if row is None else self._texts[row].label for row in rows]

    async def stored_vectors(self, hashes: Sequence[bytes]) -> list[NDArray[np.float16] | None]:
        """Return the vector of each text that is in the pool."""
        nearest = self._nearest
        if nearest is None:
            return [None] * len(hashes)
        found: list[NDArray[np.float16] | None] = [None] * len(hashes)
        # a number is given before its vector has arrived: such a text is not there yet
        size = len(nearest)
        places = [
            (i, row)
            for i, h in enumerate(hashes)
            if (row := self._rows.get(h)) is not None and row < size
        ]
        if places:
            rows = nearest.vectors(np.array([row for _, row in places], dtype=np.int64))
            for (i, _), vector in zip(places, rows, strict=True):
                found[i] = vector
        return found

    async def close(self) -> None:
        """End the threads."""
        self._adder.shutdown(wait=False, cancel_futures=True)
        self._searcher.shutdown(wait=False, cancel_futures=True)


def _ranks(hashes: Sequence[bytes]) -> NDArray[np.uint64]:
    return np.array([int.from_bytes(h[:8], "big") for h in hashes], dtype=np.uint64)
