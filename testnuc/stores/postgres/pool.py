"""The pool of the PostgreSQL store, searched in the database."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from testnuc.index import NearestVectors, check_dim, empty_matches, ranks_of
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

    from testnuc.protocols import Matches, PoolText
    from testnuc.stores.postgres.database import PostgresDatabase
    from testnuc.stores.postgres.queries import EmbedderRow

__all__ = ["Owner", "PostgresPool"]

#: Texts added per transaction; bounds how long other writers wait.
_ADD_CHUNK = 500
#: Texts fetched per statement.
_FETCH_CHUNK = 2_000
#: Queries per statement, and concurrent statements.
_QUERY_CHUNK = 32
_CONCURRENCY = 4
#: Up to this many queries, the server scans a small pool. For more, fetching its vectors once is
#: faster than that many table scans.
_FEW_QUERIES = 8
#: Seconds between polls while another process builds the graph.
_POLL_INTERVAL = 0.2
#: Candidates fetched beyond k, so that re-scoring can change their order.
_EXTRA = 8
#: Candidates this far below the k-th best score are re-scored: more than the error of float32.
_SCORE_SLACK = 1e-4


class Owner(Protocol):
    """The methods of the store that its pools call."""

    async def embedder(self, name: str) -> EmbedderRow | None:
        """Return the row of an embedder; its counts may be stale."""

    async def require_embedder(self, name: str, dim: int) -> EmbedderRow:
        """Return the row of an embedder; creates its tables if it is new."""

    async def finish(self, work: Coroutine[Any, Any, int]) -> int:
        """Run a write to completion, even if the caller is cancelled."""


class PostgresPool:
    """The pool of one embedder; an `Index` shared by many processes.

    Row numbers are equal in all processes, so a snapshot is valid in all of them.

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
        self._slots = asyncio.Semaphore(_CONCURRENCY)

    def __len__(self) -> int:
        """Return the number of texts as of the latest operation."""
        return self._count

    async def open(self) -> None:
        """Read the size of the pool.

        Raises
        ------
        StoreError
            The store cannot be used.
        """
        await self._now()

    async def close(self) -> None:
        """Cancel a running graph build; the store closes the connections."""
        if self._building is not None:
            self._building.cancel()
            await asyncio.wait([self._building])

    async def add(self, texts: Sequence[PoolText], vectors: NDArray[np.float16]) -> int:
        """Add texts; see `testnuc.protocols.Index.add`.

        They are committed when this returns. Existing vectors are not changed.
        """
        if not len(texts):
            now = await self._now()
            return 0 if now is None else now.size
        embedder = await self._store.require_embedder(self._name, vectors.shape[1])
        size = await self._store.finish(self._add(embedder, texts, vectors))
        await self._now()
        return size

    async def remove(self, hashes: Sequence[bytes]) -> int:
        """Remove texts from the pool; returns how many were in it."""
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
        among: NDArray[np.int64] | None = None,
    ) -> Matches:
        """Return the k nearest texts of each vector; see `testnuc.protocols.Index.search`.

        With `among`, only the texts with these row numbers, ascending, are searched.
        """
        matches = empty_matches(len(vectors), k)
        now = await self._now()
        if now is None or not len(vectors) or not k:
            return matches
        check_dim(vectors, now.dim)
        limit = now.size if upto is None else min(upto, now.size)
        own = list(exclude) if exclude is not None else [b""] * len(vectors)
        if among is not None:
            numbers = among[among < limit].tolist()
            parts = [
                partial(sql.rows_of, numbers=numbers[start : start + _FETCH_CHUNK])
                for start in range(0, len(numbers), _FETCH_CHUNK)
            ]
            await self._search_in_process(matches, now, vectors, own, parts)
            return matches
        if limit < self._exact_below and len(vectors) > _FEW_QUERIES:
            parts = [
                partial(sql.rows_between, start=start, end=min(start + _FETCH_CHUNK, limit))
                for start in range(0, limit, _FETCH_CHUNK)
            ]
            await self._search_in_process(matches, now, vectors, own, parts)
            return matches
        graph = limit >= self._exact_below and await self._graph(
            now, wait=len(vectors) > _FEW_QUERIES
        )
        step = _QUERY_CHUNK if graph else 1
        tasks = [
            asyncio.create_task(
                self._search_on_server(
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
        """Return the texts with these row numbers."""
        embedder = await self._store.embedder(self._name)
        texts: list[PoolText] = []
        numbers = ids.tolist()
        for start in range(0, len(numbers) if embedder is not None else 0, _FETCH_CHUNK):
            assert embedder is not None
            part = numbers[start : start + _FETCH_CHUNK]
            texts += await self._database.run(
                partial(sql.texts_of, embedder=embedder, numbers=part)
            )
        return texts

    async def scan(self, start: int, count: int) -> tuple[list[PoolText], int | None]:
        """Return the texts of rows `start` to `start + count`, and the next start or None."""
        now = await self._now()
        if now is None:
            return [], None
        end = start + count
        texts = await self._database.run(
            partial(sql.texts_between, embedder=now, start=start, end=end)
        )
        return texts, end if end < now.size else None

    async def labels(self, hashes: Sequence[bytes]) -> list[str | None]:
        """Return the known label of each text; None if it has none or is not in the pool."""
        embedder = await self._store.embedder(self._name)
        if embedder is None:
            return [None] * len(hashes)
        found: list[str | None] = []
        for start in range(0, len(hashes), _FETCH_CHUNK):
            part = hashes[start : start + _FETCH_CHUNK]
            found += await self._database.run(
                partial(sql.labels_of, embedder=embedder, hashes=part)
            )
        return found

    async def rows(self, hashes: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the row numbers of those texts that are in the pool, ascending."""
        embedder = await self._store.embedder(self._name)
        found: list[int] = []
        for start in range(0, len(hashes) if embedder is not None else 0, _FETCH_CHUNK):
            assert embedder is not None
            part = hashes[start : start + _FETCH_CHUNK]
            found += await self._database.run(
                partial(sql.numbers_of, embedder=embedder, hashes=part)
            )
        return np.unique(np.array(found, dtype=np.int64))

    async def labeled(self) -> dict[bytes, str]:
        """Return the known label of each text that has one, by hash."""
        embedder = await self._store.embedder(self._name)
        if embedder is None:
            return {}
        return await self._database.run(partial(sql.labeled, embedder=embedder))

    async def stored_vectors(self, hashes: Sequence[bytes]) -> list[NDArray[np.float16] | None]:
        """Return the vector of each text, float16[dim]; None if it is not in the pool."""
        embedder = await self._store.embedder(self._name)
        if embedder is None:
            return [None] * len(hashes)
        found: list[NDArray[np.float16] | None] = []
        for start in range(0, len(hashes), _FETCH_CHUNK):
            part = hashes[start : start + _FETCH_CHUNK]
            found += await self._database.run(
                partial(select_vectors, embedder=embedder, hashes=part, pooled=True)
            )
        return found

    async def _now(self) -> EmbedderRow | None:
        """Return the current row of the embedder, or None."""
        now = await self._database.run(partial(select_embedder, name=self._name))
        self._count = 0 if now is None else now.size - now.removals
        return now

    async def _add(
        self, embedder: EmbedderRow, texts: Sequence[PoolText], vectors: NDArray[np.float16]
    ) -> int:
        size = 0
        for start in range(0, len(texts), _ADD_CHUNK):
            part = slice(start, start + _ADD_CHUNK)
            size = await self._database.run(
                partial(
                    sql.insert_texts, embedder=embedder, texts=texts[part], vectors=vectors[part]
                )
            )
        return size

    async def _graph(self, now: EmbedderRow, *, wait: bool) -> bool:
        """Return whether the graph can be searched; starts a build if it is missing.

        The graph is built for the first search that needs it, not while texts are added: a bulk
        build is several times faster. Cancelling a search does not stop the build.
        """
        if not self._indexed:
            if self._building is None or self._building.done():
                self._building = asyncio.create_task(self._build(now), name="testnuc-graph")
                self._building.add_done_callback(_retrieve_exception)
            if wait:
                await asyncio.shield(self._building)
        return self._indexed

    async def _build(self, now: EmbedderRow) -> None:
        build = partial(index_texts, number=now.id, dim=now.dim)
        while not await self._database.run(build):  # noqa: ASYNC110 - another process builds it
            await asyncio.sleep(_POLL_INTERVAL)
        self._indexed = True

    async def _search_in_process(
        self,
        matches: Matches,
        now: EmbedderRow,
        vectors: NDArray[np.float16],
        own: Sequence[bytes],
        queries: Sequence[Any],
    ) -> None:
        """Fetch the vectors that `queries` select, and search them exactly."""
        parts = [await self._database.run(partial(query, embedder=now)) for query in queries]
        if not parts:
            return
        hashes = [h for part, _, _ in parts for h in part]
        numbers = np.concatenate([part for _, part, _ in parts])
        pool = np.concatenate([part for _, _, part in parts])
        places = {h: place for place, h in enumerate(hashes)}
        exclude = np.array([places.get(h, -1) for h in own], dtype=np.int64)

        def compare() -> tuple[NDArray[np.int64], NDArray[np.float32]]:
            nearest = NearestVectors(now.dim, exact_below=len(pool) + 1)
            nearest.add(pool, ranks_of(hashes))
            return nearest.search(vectors, matches.ids.shape[1], exclude=exclude)

        if len(pool):
            ids, similarities = await asyncio.to_thread(compare)
            matches.ids[:] = np.where(ids >= 0, numbers[ids], -1)
            matches.similarities[:] = similarities

    async def _search_on_server(
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
        """Search candidates on the server, then re-score and rank them in this process."""
        async with self._slots:
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
            best, values = rank_rows(found, np.minimum(scores, np.float32(1)), ranks_of(hashes), k)
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
        """Return candidates that include the k best of each query, without its own text."""
        count = k + 1 + _EXTRA
        found: sql.Nearest = [[] for _ in queries]
        pending = list(range(len(queries)))
        if graph:
            rows = await self._nearest(sql.nearest_by_graph, now, queries, count, limit)
            for i, row in enumerate(rows):
                found[i] = [c for c in row if c[0] != own[i]]
            # too many rows of the graph were outside the snapshot
            pending = [i for i in pending if len(found[i]) < min(k, limit - now.removals - 1)]
        while pending:
            rows = await self._nearest(
                sql.nearest_by_scan, now, [queries[i] for i in pending], count, limit
            )
            incomplete = []
            for i, row in zip(pending, rows, strict=True):
                found[i] = [c for c in row if c[0] != own[i]]
                # rows beyond `count` may be among the best k after re-scoring
                if len(row) == count and row[-1][2] >= found[i][k - 1][2] - _SCORE_SLACK:
                    incomplete.append(i)
            pending = incomplete
            count *= 4
        return found

    async def _nearest(
        self, query: Any, now: EmbedderRow, vectors: Sequence[bytes], count: int, limit: int
    ) -> sql.Nearest:
        found: sql.Nearest = await self._database.run(
            partial(query, embedder=now, queries=vectors, count=count, limit=limit)
        )
        return found


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
