"""Retrieve the neighbors of texts from the pool, and stored predictions from the store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from testnuc._engine.stored_voters import FilteredIndex, StoredVoters
from testnuc.protocols import Matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from testnuc._dispatch.predictor import Predictor
    from testnuc._engine.examples import ExampleFinder
    from testnuc.protocols import Index, Method, PoolText, Store
    from testnuc.types import Prediction

__all__ = ["SEARCH", "Retriever", "no_matches", "spread"]

#: Queries searched at a time, so that other searches wait milliseconds.
SEARCH = 1_024
#: Texts looked up in the store before control returns to the event loop.
_BLOCK = 256
#: Factor by which the search widens if too few neighbors have a prediction.
_WIDEN = 4
#: How far it widens, as a multiple of k; then the texts with a prediction are searched alone.
_WIDEST = 16


@dataclass
class Retriever:
    """Searches the pool and the stored predictions of one client."""

    method: Method
    #: Whether all texts may be neighbors, or only those with a prediction.
    neighbors: Literal["predict", "stored"]
    predictor: Predictor
    pool: Index
    store: Store
    #: Of a method with few-shot examples.
    examples: ExampleFinder | None

    async def search(
        self,
        texts: Sequence[PoolText],
        vectors: NDArray[np.float16],
        k: int,
        *,
        upto: int | None = None,
        together: bool = False,
    ) -> Matches:
        """Find the k nearest texts of each text, block by block.

        `upto` is the snapshot of the pool, the current one by default; `together`: the texts of
        this batch, which will get predictions, can be neighbors.
        """
        voters = StoredVoters(
            self.pool,
            self.store,
            self.predictor.scope,
            self.predictor.labels,
            self.stored,
            {entry.hash for entry in texts} if together else set(),
        )
        matches: Matches | None = None
        for start in range(0, len(texts), SEARCH):
            part = slice(start, start + SEARCH)
            hashes = [entry.hash for entry in texts[part]]
            if self.neighbors == "stored":
                found = await self._search_stored(vectors[part], hashes, k, upto, voters)
            else:
                found = await self.pool.search(vectors[part], k, exclude=hashes, upto=upto)
            if len(found.ids) == len(texts):
                return found
            if matches is None:
                # allocated once: concatenating parts would need twice the memory
                shape = (len(texts), found.ids.shape[1])
                matches = Matches(np.empty(shape, np.int64), np.empty(shape, np.float32))
            matches.ids[part] = found.ids
            matches.similarities[part] = found.similarities
        return no_matches(0) if matches is None else matches

    async def _search_stored(
        self,
        vectors: NDArray[np.float16],
        hashes: Sequence[bytes],
        k: int,
        upto: int | None,
        voters: StoredVoters,
    ) -> Matches:
        """Find the k nearest texts that have a prediction or get one in this batch."""
        ids = np.full((len(vectors), k), -1, dtype=np.int64)
        similarities = np.zeros((len(vectors), k), dtype=np.float32)

        async def keep(
            rows: NDArray[np.int64], found: Matches
        ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
            """Keep the first k voters of each row; returns where k vote, and where all do."""
            votes = await voters.votes(found.ids)
            rank = votes.cumsum(axis=1) - 1
            at, column = np.nonzero(votes & (rank < k))
            ids[rows[at], rank[at, column]] = found.ids[at, column]
            similarities[rows[at], rank[at, column]] = found.similarities[at, column]
            return votes.sum(axis=1) >= k, (votes == (found.ids >= 0)).all(axis=1)

        def excluded(rows: NDArray[np.int64]) -> list[bytes]:
            return [hashes[i] for i in rows.tolist()]

        rows, want = np.arange(len(vectors)), k
        filtered = self.pool if isinstance(self.pool, FilteredIndex) else None
        # where many texts have a prediction, the k nearest of them are among few of the nearest
        while len(rows) and want and (filtered is None or want <= _WIDEST * k):
            found = await self.pool.search(vectors[rows], want, exclude=excluded(rows), upto=upto)
            full, _ = await keep(rows, found)
            rows = rows[~full & (found.ids[:, -1] >= 0)]
            want *= _WIDEN
        while len(rows) and want and filtered is not None:
            found = await filtered.search(
                vectors[rows], k, exclude=excluded(rows), upto=upto, among=await voters.rows()
            )
            ids[rows], similarities[rows] = -1, 0
            _, exact = await keep(rows, found)
            rows = rows[~exact]
            if len(rows):
                await voters.verify()
        return Matches(ids, similarities)

    async def stored(self, entries: Sequence[PoolText]) -> list[Prediction | None]:
        """Return the prediction of each text if all of its samples are stored."""
        found: list[Prediction | None] = []
        for start in range(0, len(entries), _BLOCK):
            found += await self._stored_block(entries[start : start + _BLOCK])
            await asyncio.sleep(0)
        return found

    async def _stored_block(self, entries: Sequence[PoolText]) -> list[Prediction | None]:
        if self.examples is not None:
            return await self.examples.stored(entries)
        n = self.method.samples
        keys = [self.predictor.key(entry.text, sample) for entry in entries for sample in range(n)]
        found = await self.store.get_predictions(keys)
        samples = [[p for p in found[i : i + n] if p is not None] for i in range(0, len(found), n)]
        return [self.method.reduce(of) if len(of) == n else None for of in samples]


def no_matches(n: int) -> Matches:
    """Return the matches of n texts without neighbors."""
    return Matches(np.empty((n, 0), dtype=np.int64), np.empty((n, 0), dtype=np.float32))


def spread(matches: Matches, rows: Sequence[int], n: int) -> Matches:
    """Return the matches of n texts, of which only those at some rows were searched for."""
    shape = (n, matches.ids.shape[1])
    found = Matches(np.full(shape, -1, dtype=np.int64), np.zeros(shape, dtype=np.float32))
    found.ids[rows], found.similarities[rows] = matches.ids, matches.similarities
    return found
