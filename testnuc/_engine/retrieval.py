"""Retrieve the neighbors of texts from the pool, and stored predictions from the store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

import numpy as np

from testnuc.protocols import Matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from testnuc._dispatch.predictor import Predictor
    from testnuc._engine.examples import ExampleFinder
    from testnuc.protocols import Index, Method, PoolText, Store
    from testnuc.types import Prediction

__all__ = ["SEARCH", "Retriever", "no_matches"]

#: Queries searched at a time, so that other searches wait milliseconds.
SEARCH = 1_024
#: Texts looked up in the store before control returns to the event loop.
_BLOCK = 256
#: Factor by which the search widens if too few neighbors have a prediction.
_WIDEN = 4


class Retriever:
    """Searches the pool and the stored predictions of one client.

    Parameters
    ----------
    method : Method
        Its predictions are looked up.
    neighbors : {"predict", "stored"}
        Whether all texts may be neighbors, or only those with a prediction.
    predictor : Predictor
        Computes the keys.
    pool : Index
    store : Store
    examples : ExampleFinder, optional
        Of a method with few-shot examples.
    """

    def __init__(
        self,
        method: Method,
        neighbors: Literal["predict", "stored"],
        *,
        predictor: Predictor,
        pool: Index,
        store: Store,
        examples: ExampleFinder | None,
    ) -> None:
        self._method = method
        self._neighbors = neighbors
        self._predictor = predictor
        self._pool = pool
        self._store = store
        self._examples = examples

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

        Parameters
        ----------
        texts : sequence of PoolText
        vectors : float16[len(texts), dim]
        k : int
        upto : int, optional
            The snapshot of the pool; default: the current one.
        together : bool
            Whether the texts of this batch, which will get predictions, can be neighbors.
        """
        batch = {entry.hash for entry in texts} if together else set()
        matches: Matches | None = None
        for start in range(0, len(texts), SEARCH):
            part = slice(start, start + SEARCH)
            hashes = [entry.hash for entry in texts[part]]
            if self._neighbors == "stored":
                found = await self._search_stored(vectors[part], hashes, k, upto, batch)
            else:
                found = await self._pool.search(vectors[part], k, exclude=hashes, upto=upto)
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
        batch: set[bytes],
    ) -> Matches:
        """Find the k nearest texts that have a prediction or get one in this batch."""
        ids = np.full((len(vectors), k), -1, dtype=np.int64)
        similarities = np.zeros((len(vectors), k), dtype=np.float32)
        usable: dict[int, bool] = {}
        rows = np.arange(len(vectors))
        want = k
        while len(rows) and want:
            found = await self._pool.search(
                vectors[rows], want, exclude=[hashes[i] for i in rows.tolist()], upto=upto
            )
            await self._note_usable(found.ids, batch, usable)
            missing = []
            for at, row in enumerate(rows.tolist()):
                good = [j for j, i in enumerate(found.ids[at].tolist()) if i >= 0 and usable[i]]
                good = good[:k]
                ids[row, : len(good)] = found.ids[at, good]
                similarities[row, : len(good)] = found.similarities[at, good]
                if len(good) < k and found.ids[at, -1] >= 0:
                    missing.append(row)
            rows = np.array(missing, dtype=np.int64)
            want *= _WIDEN
        return Matches(ids, similarities)

    async def _note_usable(
        self, ids: NDArray[np.int64], batch: set[bytes], usable: dict[int, bool]
    ) -> None:
        new = np.array([i for i in np.unique(ids).tolist() if i >= 0 and i not in usable], np.int64)
        entries = await self._pool.fetch(new)
        asked = [i for i, e in enumerate(entries) if e.label is None and e.hash not in batch]
        stored = await self.stored([entries[i] for i in asked])
        have = dict(zip(asked, stored, strict=True))
        for at, row in enumerate(new.tolist()):
            usable[row] = at not in have or have[at] is not None

    async def stored(self, entries: Sequence[PoolText]) -> list[Prediction | None]:
        """Return the prediction of each text if all of its samples are stored."""
        found: list[Prediction | None] = []
        for start in range(0, len(entries), _BLOCK):
            found += await self._stored_block(entries[start : start + _BLOCK])
            await asyncio.sleep(0)
        return found

    async def _stored_block(self, entries: Sequence[PoolText]) -> list[Prediction | None]:
        if self._examples is not None:
            return await self._examples.stored(entries)
        n = self._method.samples
        keys = [self._predictor.key(entry.text, sample) for entry in entries for sample in range(n)]
        found = await self._store.get_predictions(keys)
        samples = [[p for p in found[i : i + n] if p is not None] for i in range(0, len(found), n)]
        return [self._method.reduce(of) if len(of) == n else None for of in samples]


def no_matches(n: int) -> Matches:
    """Return the matches of n texts without neighbors."""
    return Matches(np.empty((n, 0), dtype=np.int64), np.empty((n, 0), dtype=np.float32))
