"""The pool that lives in the database, and is searched there."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from testnuc.errors import EmbeddingError
from testnuc.index import NearestVectors
from testnuc.protocols import Matches
from testnuc.stores.postgres import pool_queries as sql
from testnuc.stores.postgres.queries import (
    from_vectors,
    select_embedder,
    select_vectors,
    to_vectors,
)
from testnuc.stores.postgres.schema import index_texts

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from testnuc.protocols import PoolText
    from testnuc.stores.postgres.database import PostgresDatabase
    from testnuc.stores.postgres.queries import EmbedderRow

__all__ = ["Owner", "PostgresPool"]

#: Texts added in one transaction: others that add wait for it.
_ADDED = 500
#: Texts fetched in one statement.
_FETCHED = 2_000
#: Queries in one statement, and statements at a time.
_QUERIES = 32
_AT_ONCE = 4
#: Up to so many queries the server compares with all texts itself; for more, the vectors of a small
#: pool are sent over once, which is quicker than as many scans of its table.
_FEW = 8
#: Seconds between two looks at a graph that another process builds.
_BUILDING = 0.2
#: Candidates fetched beyond k, so that re-scoring can change their order.
_EXTRA = 8
#: How far below the k-th best score a candidate still is re-scored: more than float32's error.
_SLACK = 1e-4


class Owner(Protocol):
    """The store, as far as its pools know it."""

    async def embedder(self, name: str) -> EmbedderRow | None:
        """Return what is known of an embedder."""

    async def require_embedder(self, name: str, dim: int) -> EmbedderRow:
        """Return an embedder, whose tables are made where it is new."""

    async def finish(self, work: Coroutine[Any, Any, int]) -> int:
        """Run a change to its end, also when the caller is cancelled."""


class PostgresPool:
    """The texts of one embedder's pool; an `Index` that many processes add to and search.

    Numbers are the same in all of them, so a number is a snapshot everywhere.

    Parameters
    ----------
    store : Owner
    database : PostgresDatabase
    embedder : str
        Name of the embedder.
    exact_below : int
        Number of texts below which the search is exact.
    """

    def __init__(
        self, store: Owner, database: PostgresDatabase, embedder: str, *, exact_below: int
    ) -> None:
        self._store = store
        self._database = database
        self._name = embedder
        self._exact_below = exact_below
        self._count = 0
        self._indexed = False
        self._building: asyncio.Task[None] | None = None
        self._turn = asyncio.Semaphore(_AT_ONCE)

    def __len__(self) -> int:
        """Return how many texts there were when the pool was last used."""
        return self._count

    async def open(self) -> None:
        """Count the texts.

        Raises
        ------
        StoreError
            The store cannot be used.
        """
        await self._now()

    async def close(self) -> None:
        """Stop building a graph; the connections are the store's."""
        if self._building is not None:
            self._building.cancel()
            await asyncio.wait([self._building])

    async def add(self, texts: Sequence[PoolText], vectors: NDArray[np.float16]) -> int:
        """Add the texts that are not there yet; see `testnuc.protocols.Index.add`.

        They are stored before this returns. A vector that is stored for a text stays.
        """
        if not len(texts):
            now = await self._now()
            return 0 if now is None else now.size
        embedder = await self._store.require_embedder(self._name, vectors.shape[1])
        size = await self._store.finish(self._add(embedder, texts, vectors))
        await self._now()
        return size

    async def remove(self, hashes: Sequence[bytes]) -> int:
        """Take texts out of the pool; returns how many were in it."""
        embedder = await self._store.embedder(self._name)
        if embedder is None:
            return 0
        count = await self._store.finish(
            self._database.run(
                partial(sql.remove_texts, embedder=embedder, hashes=sorted(set(hashes)))
            )
        )
        await self._now()
        return count

    async def search(
        self,
        vectors: NDArray[np.float16],
        k: int,
        *,
        exclude: Sequence[bytes] | None = None,
        upto: int | None = None,
    ) -> Matches:
        """Find the k nearest texts of each vector; see `testnuc.protocols.Index.search`."""
        matches = Matches(
            np.full((len(vectors), k), -1, dtype=np.int64),
            np.zeros((len(vectors), k), dtype=np.float32),
        )
        now = await self._now()
        if now is None or not len(vectors) or not k:
            return matches
        if vectors.shape[1] != now.dim:
            raise EmbeddingError(
                f"the embedder gave vectors of dimension {vectors.shape[1]}, "
                f"but the pool holds dimension {now.dim}"
            )
        limit = now.size if upto is None else min(upto, now.size)
        own = list(exclude) if exclude is not None else [b""] * len(vectors)
        if limit < self._exact_below and len(vectors) > _FEW:
            await self._compare_here(matches, now, vectors, own, limit)
            return matches
        graph = limit >= self._exact_below and await self._graph(now, wait=len(vectors) > _FEW)
        step = _QUERIES if graph else 1
        tasks = [
            asyncio.create_task(
                self._search_there(
                    matches, slice(start, start + step), now, vectors, own, limit, graph=graph
                )
            )
            for start in range(0, len(vectors), step)
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return matches

    async def fetch(self, ids: NDArray[np.int64]) -> list[PoolText]:
        """Return the texts with these numbers."""
        embedder = await self._store.embedder(self._name)
        texts: list[PoolText] = []
        numbers = ids.tolist()
        for start in range(0, len(numbers) if embedder is not None else 0, _FETCHED):
            assert embedder is not None
            part = numbers[start : start + _FETCHED]
            texts += await self._database.run(
                partial(sql.texts_of, embedder=embedder, numbers=part)
            )
        return texts

    async def scan(self, start: int, count: int) -> tuple[list[PoolText], int | None]:
        """Return at most `count` texts numbered from `start`, and where to go on."""
        now = await self._now()
        if now is None:
            return [], None
        end = start + count
        texts = await self._database.run(
            partial(sql.texts_between, embedder=now, start=start, end=end)
        )
        return texts, end if end < now.size else None

    async def labels(self, hashes: Sequence[bytes]) -> list[str | None]:
        """Return the label that a person gave each text; None: none, or not in the pool."""
        embedder = await self._store.embedder(self._name)
        if embedder is None:
            return [None] * len(hashes)
        found: list[str | None] = []
        for start in range(0, len(hashes), _FETCHED):
            part = hashes[start : start + _FETCHED]
            found += await self._database.run(
                partial(sql.labels_of, embedder=embedder, hashes=part)
            )
        return found

    async def stored_vectors(self, hashes: Sequence[bytes]) -> list[NDArray[np.float16] | None]:
        """Return the vector of each text that is in the pool."""
        embedder = await self._store.embedder(self._name)
        if embedder is None:
            return [None] * len(hashes)
        found: list[NDArray[np.float16] | None] = []
        for start in range(0, len(hashes), _FETCHED):
            part = hashes[start : start + _FETCHED]
            found += await self._database.run(
                partial(select_vectors, embedder=embedder, hashes=part, pooled=True)
            )
        return found

    async def _now(self) -> EmbedderRow | None:
        """Return how far the pool has come."""
        now = await self._database.run(partial(select_embedder, name=self._name))
        self._count = 0 if now is None else now.size - now.removals
        return now

    async def _add(
        self, embedder: EmbedderRow, texts: Sequence[PoolText], vectors: NDArray[np.float16]
    ) -> int:
        size = 0
        for start in range(0, len(texts), _ADDED):
            part = slice(start, start + _ADDED)
            size = await self._database.run(
                partial(
                    sql.insert_texts, embedder=embedder, texts=texts[part], vectors=vectors[part]
                )
            )
        return size

    async def _graph(self, now: EmbedderRow, *, wait: bool) -> bool:
        """Return whether there is a graph; if there is none, it is built.

        It is made for the first search that needs it, not while texts are added: to build one is
        several times quicker than to add to one. A search that is cancelled does not stop it.
        """
        if not self._indexed:
            if self._building is None or self._building.done():
                self._building = asyncio.create_task(self._build(now), name="testnuc-graph")
                self._building.add_done_callback(_retrieve)
            if wait:
                await asyncio.shield(self._building)
        return self._indexed

    async def _build(self, now: EmbedderRow) -> None:
        build = partial(index_texts, number=now.id, dim=now.dim)
        while not await self._database.run(build):  # noqa: ASYNC110 - another process builds it
            await asyncio.sleep(_BUILDING)
        self._indexed = True

    async def _compare_here(
        self,
        matches: Matches,
        now: EmbedderRow,
        vectors: NDArray[np.float16],
        own: Sequence[bytes],
        limit: int,
    ) -> None:
        """Compare many queries with a pool that is small enough to be sent over."""
        parts = [
            await self._database.run(
                partial(
                    sql.rows_between, embedder=now, start=start, end=min(start + _FETCHED, limit)
                )
            )
            for start in range(0, limit, _FETCHED)
        ]
        if not parts:
            return
        hashes = [h for part, _, _ in parts for h in part]
        numbers = np.concatenate([part for _, part, _ in parts])
        pool = np.concatenate([part for _, _, part in parts])
        places = {h: place for place, h in enumerate(hashes)}
        exclude = np.array([places.get(h, -1) for h in own], dtype=np.int64)

        def compare() -> tuple[NDArray[np.int64], NDArray[np.float32]]:
            nearest = NearestVectors(now.dim, exact_below=len(pool) + 1)
            nearest.add(pool, _ranks(hashes))
            return nearest.search(vectors, matches.ids.shape[1], exclude=exclude)

        if len(pool):
            ids, similarities = await asyncio.to_thread(compare)
            matches.ids[:] = np.where(ids >= 0, numbers[ids], -1)
            matches.similarities[:] = similarities

    async def _search_there(
        self,
        matches: Matches,
        part: slice,
        now: EmbedderRow,
        vectors: NDArray[np.float16],
        own: Sequence[bytes],
        limit: int,
        *,
        graph: bool,
    ) -> None:
        """Let the server find candidates, then score and rank them as every index does."""
        async with self._turn:
            k = matches.ids.shape[1]
            queries = to_vectors(vectors[part])
            candidates = await self._candidates(now, queries, own[part], k, limit, graph=graph)
            hashes = sorted({h for row in candidates for h, _, _ in row})
            if not hashes:
                return
            stored = await self._database.run(partial(sql.vectors_of, embedder=now, hashes=hashes))
        place = {h: i for i, h in enumerate(hashes)}
        numbers = np.zeros(len(hashes), dtype=np.int64)
        found = np.full((len(queries), max(map(len, candidates))), -1, dtype=np.int64)
        for i, row in enumerate(candidates):
            for j, (h, number, _) in enumerate(row):
                found[i, j] = place[h]
                numbers[place[h]] = number

        def rank() -> None:
            from testnuc._kernels.rescore import rank_rows, rescore

            half = from_vectors((stored[h] for h in hashes), now.dim)
            scores = rescore(vectors[part].astype(np.float32), half.view(np.uint16), found)
            best, values = rank_rows(found, np.minimum(scores, np.float32(1)), _ranks(hashes), k)
            matches.ids[part] = np.where(best >= 0, numbers[best], -1)
            matches.similarities[part] = np.where(best >= 0, values, np.float32(0))

        await asyncio.to_thread(rank)

    async def _candidates(
        self,
        now: EmbedderRow,
        queries: Sequence[bytes],
        own: Sequence[bytes],
        k: int,
        limit: int,
        *,
        graph: bool,
    ) -> sql.Nearest:
        """Return what holds the k best of each query, its own text left out."""
        count = k + 1 + _EXTRA
        found: sql.Nearest = [[] for _ in queries]
        open_ = list(range(len(queries)))
        if graph:
            rows = await self._ask(sql.nearest_by_graph, now, queries, count, limit)
            for i, row in enumerate(rows):
                found[i] = [c for c in row if c[0] != own[i]]
            # a graph search that met too many texts outside the snapshot
            open_ = [i for i in open_ if len(found[i]) < min(k, limit - now.removals - 1)]
        while open_:
            rows = await self._ask(
                sql.nearest_by_scan, now, [queries[i] for i in open_], count, limit
            )
            unsure = []
            for i, row in zip(open_, rows, strict=True):
                found[i] = [c for c in row if c[0] != own[i]]
                # all that could be among the best k after re-scoring, ties at the edge included
                if len(row) == count and row[-1][2] >= found[i][k - 1][2] - _SLACK:
                    unsure.append(i)
            open_ = unsure
            count *= 4
        return found

    async def _ask(
        self, how: Any, now: EmbedderRow, queries: Sequence[bytes], count: int, limit: int
    ) -> sql.Nearest:
        found: sql.Nearest = await self._database.run(
            partial(how, embedder=now, queries=queries, count=count, limit=limit)
        )
        return found


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _ranks(hashes: Sequence[bytes]) -> NDArray[np.uint64]:
    return np.array([int.from_bytes(h[:8], "big") for h in hashes], dtype=np.uint64)
