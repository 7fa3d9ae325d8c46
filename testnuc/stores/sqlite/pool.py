"""The pool of the SQLite store: texts in the database, vectors in memory-mapped files."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from testnuc.errors import StoreError
from testnuc.index import EXACT_BELOW, check_dim, empty_matches
from testnuc.index.memory_pool import run_until_closed
from testnuc.protocols import Matches, PoolText
from testnuc.stores.sqlite import queries as sql
from testnuc.stores.sqlite.index_sync import IndexSync
from testnuc.stores.sqlite.schema import POOL_SHIFT

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from testnuc.stores.sqlite.database import SqliteDatabase

#: Texts per transaction and per read; bounds how long others wait.
_CHUNK = 2_000


class SqlitePool:
    """The pool of one embedder; a durable `Index`.

    Several processes can add and search. Row numbers are equal in all processes, so a snapshot is
    valid in all of them. A search without a snapshot includes texts that other processes added.
    With fewer vectors than `exact_below` the search is exact. `folder` has the index files.
    """

    def __init__(
        self,
        database: SqliteDatabase,
        embedder: str,
        folder: Path,
        *,
        exact_below: int = EXACT_BELOW,
    ) -> None:
        self._database = database
        self._embedder = embedder
        self.index = IndexSync(database, embedder, folder, exact_below=exact_below)
        # one thread changes the index, another searches it between the chunks of an addition
        self._updater = ThreadPoolExecutor(1, thread_name_prefix="testnuc-index")
        self._searcher = ThreadPoolExecutor(1, thread_name_prefix="testnuc-search")
        self._opening: asyncio.Future[None] | None = None
        self._updating: set[asyncio.Future[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        nearest = self.index.nearest
        return 0 if nearest is None else len(nearest) - self.index.removals

    async def open(self) -> None:
        """Load the index, or build it."""
        await self._database.open()
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._update(self.index.load))
        await asyncio.shield(self._opening)

    async def add(self, texts: Sequence[PoolText], vectors: NDArray[np.float16]) -> int:
        """Add texts; see `testnuc.protocols.Index.add`.

        They are committed when this returns. Existing vectors are not changed.
        """
        await self.open()
        if not len(texts):
            now = await self._database.read(lambda c: sql.state(c, self._embedder))
            return 0 if now is None else now.size
        size = 0
        for start in range(0, len(texts), _CHUNK):
            part = slice(start, start + _CHUNK)
            size = await self._database.write(
                partial(
                    sql.insert_texts,
                    embedder=self._embedder,
                    texts=texts[part],
                    vectors=vectors[part],
                )
            )
            # the graph grows while the next texts are stored
            caught_up = self._update(self.index.catch_up)
            if start + _CHUNK >= len(texts):
                await caught_up
        return size

    async def remove(self, hashes: Sequence[bytes]) -> int:
        """Remove texts from the pool; returns how many were in it."""
        await self.open()
        count = await self._database.write(lambda c: sql.remove_texts(c, self._embedder, hashes))
        await self._update(self.index.catch_up)
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
        await self.open()

        def read(c: sqlite3.Connection) -> tuple[sql.PoolState | None, NDArray[np.int64] | None]:
            now = sql.state(c, self._embedder)
            if now is None or exclude is None:
                return now, None
            found = dict(sql.select_texts(c, now.embedder, "hash, pool.id", exclude))
            rows = [found.get(h, now.first - 1) - now.first for h in exclude]
            return now, np.array(rows, dtype=np.int64)

        now, own = await self._database.read(read)
        if now is not None and self._behind(now, upto):
            await self._update(self.index.catch_up)
        nearest = self.index.nearest
        if nearest is None:
            return empty_matches(len(vectors), k)
        check_dim(vectors, nearest.dim)
        ids, similarities = await run_until_closed(
            self._searcher,
            lambda: nearest.search(vectors, k, exclude=own, limit=upto, among=among),
        )
        return Matches(ids, similarities)

    async def fetch(self, ids: NDArray[np.int64]) -> list[PoolText]:
        """Return the texts with these row numbers."""

        def read(some: list[int], c: sqlite3.Connection) -> list[PoolText]:
            now = sql.state(c, self._embedder)
            found = {} if now is None else sql.texts_of(c, now, some)
            try:
                return [found[i] for i in some]
            except KeyError as exc:
                raise StoreError(f"the pool of {self._embedder!r} has no text {exc}") from exc

        return await self._in_parts(read, ids.tolist())

    async def scan(self, start: int, count: int) -> tuple[list[PoolText], int | None]:
        """Return the texts of rows `start` to `start + count`, and the next start or None."""
        end = start + count

        def read(c: sqlite3.Connection) -> tuple[list[PoolText], int | None]:
            now = sql.state(c, self._embedder)
            if now is None:
                return [], None
            rows = sql.texts_between(c, now, "removed, text, hash, label", start, end)
            texts = [PoolText(*text) for removed, *text in rows if removed is None]
            return texts, end if end < now.size else None

        return await self._database.read(read)

    async def labels(self, hashes: Sequence[bytes]) -> list[str | None]:
        """Return the known label of each text; None if it has none or is not in the pool."""
        found = dict(await self._pooled("hash, label", hashes))
        return [found.get(h) for h in hashes]

    async def rows(self, hashes: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the row numbers of those texts that are in the pool, ascending."""
        number = f"pool.id & {(1 << POOL_SHIFT) - 1}"
        rows = await self._pooled(number, hashes)
        return np.unique(np.array([row for (row,) in rows], dtype=np.int64))

    async def labeled(self) -> dict[bytes, str]:
        """Return the known label of each text that has one, by hash."""

        def read(c: sqlite3.Connection) -> dict[bytes, str]:
            now = sql.state(c, self._embedder)
            if now is None:
                return {}
            rows = c.execute(
                "SELECT hash, label FROM pool JOIN vectors ON vectors.id = pool.vector "
                "WHERE pool.id >= ? AND pool.id < ? AND label IS NOT NULL AND removed IS NULL",
                (now.first, now.first + (1 << POOL_SHIFT)),
            )
            return dict(rows.fetchall())

        return await self._database.read(read)

    async def stored_vectors(self, hashes: Sequence[bytes]) -> list[NDArray[np.float16] | None]:
        """Return the vector of each text, float16[dim]; None if it is not in the pool."""
        return await self._database.read(
            lambda c: sql.select_vectors(c, self._embedder, hashes, pooled=True)
        )

    async def _pooled(self, columns: str, hashes: Sequence[bytes]) -> list[Any]:
        """Return columns of those texts that are in the pool."""

        def read(some: Sequence[bytes], c: sqlite3.Connection) -> list[Any]:
            now = sql.state(c, self._embedder)
            return [] if now is None else [*sql.select_texts(c, now.embedder, columns, some)]

        return await self._in_parts(read, hashes)

    async def _in_parts(
        self, read: Callable[[Any, sqlite3.Connection], list[Any]], values: Sequence[Any]
    ) -> list[Any]:
        """Read in parts: other reads, cancellation and `close` do not wait for a million."""
        found: list[Any] = []
        for start in range(0, len(values), _CHUNK):
            some = values[start : start + _CHUNK]
            found += await self._database.read(partial(read, some))
        return found

    async def close(self) -> None:
        """Save the index if needed, and stop the threads."""
        if self._closed:
            return
        self._closed = True
        await self._update(self.index.close)
        self._updater.shutdown(wait=False)
        self._searcher.shutdown(wait=False, cancel_futures=True)

    def _behind(self, now: sql.PoolState, upto: int | None) -> bool:
        """Return whether a search must first apply changes of other processes."""
        if self._updating:
            # during an addition, a search sees the rows added so far, as in memory
            return False
        nearest = self.index.nearest
        size = 0 if nearest is None else len(nearest)
        return now.removals > self.index.removals or size < (now.size if upto is None else upto)

    def _update(self, work: Callable[[], None]) -> asyncio.Future[None]:
        """Run `work` in the updater thread; cancelling the caller does not stop it."""
        if self._closed and work != self.index.close:
            raise StoreError("the pool is closed, and so is its client")
        running = asyncio.wrap_future(self._updater.submit(work))
        self._updating.add(running)
        running.add_done_callback(self._updating.discard)
        # its exception counts as read, also where its caller was cancelled
        running.add_done_callback(lambda done: done.cancelled() or done.exception())
        return asyncio.shield(running)
