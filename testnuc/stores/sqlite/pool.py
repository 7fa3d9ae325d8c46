"""The pool that lives in the store: texts in SQLite, vectors in files that are mapped."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from testnuc.errors import EmbeddingError, StoreError
from testnuc.index import EXACT_BELOW
from testnuc.protocols import Matches
from testnuc.stores.sqlite import pool_queries as sql
from testnuc.stores.sqlite.index_sync import Keeper
from testnuc.stores.sqlite.queries import select_vectors

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from testnuc.protocols import PoolText
    from testnuc.stores.sqlite.database import SQLiteDatabase

__all__ = ["SqlitePool"]

#: Texts added in one transaction, and read in one go: others wait for it.
_CHUNK = 2_000


class SqlitePool:
    """The texts of one embedder's pool; an `Index` whose content outlives the process.

    Several processes may add to it and search it. Numbers are the same in all of them, so a number
    is a snapshot everywhere; what others add is seen by the next search that names no snapshot.

    Parameters
    ----------
    database : SQLiteDatabase
    embedder : str
        Name of the embedder.
    folder : Path
        Where the files of the index are.
    exact_below : int
        Number of vectors below which the search is exact.
    """

    def __init__(
        self,
        database: SQLiteDatabase,
        embedder: str,
        folder: Path,
        *,
        exact_below: int = EXACT_BELOW,
    ) -> None:
        self._database = database
        self._embedder = embedder
        self._keeper = Keeper(database, embedder, folder, exact_below=exact_below)
        # One thread changes the index, another searches it between the chunks of an addition.
        self._changer = ThreadPoolExecutor(1, thread_name_prefix="testnuc-index")
        self._searcher = ThreadPoolExecutor(1, thread_name_prefix="testnuc-search")
        self._opening: asyncio.Future[None] | None = None
        self._changing = 0
        self._closed = False

    def __len__(self) -> int:
        nearest = self._keeper.nearest
        return 0 if nearest is None else len(nearest) - self._keeper.removals

    async def open(self) -> None:
        """Load the index, or build what is missing of it.

        Raises
        ------
        StoreError
            The store cannot be used.
        """
        await self._database.open()
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._change(self._keeper.load))
        await asyncio.shield(self._opening)

    async def add(self, texts: Sequence[PoolText], vectors: NDArray[np.float16]) -> int:
        """Add the texts that are not there yet; see `testnuc.protocols.Index.add`.

        They are stored before this returns. A vector that is stored for a text stays.
        """
        await self.open()
        if not len(texts):
            now = await self._database.read(partial(sql.state, embedder=self._embedder))
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
            caught_up = self._change(self._keeper.catch_up)
            if start + _CHUNK >= len(texts):
                await caught_up
        return size

    async def remove(self, hashes: Sequence[bytes]) -> int:
        """Take texts out of the pool; returns how many were in it."""
        await self.open()
        count = await self._database.write(
            partial(sql.remove_texts, embedder=self._embedder, hashes=hashes)
        )
        await self._change(self._keeper.catch_up)
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
        await self.open()

        def look(c: sqlite3.Connection) -> tuple[sql.PoolState | None, NDArray[np.int64] | None]:
            now = sql.state(c, self._embedder)
            if now is None or exclude is None:
                return now, None
            return now, sql.numbers(c, now.embedder, exclude)

        now, own = await self._database.read(look)
        if now is not None and self._behind(now, upto):
            await self._change(self._keeper.catch_up)
        nearest = self._keeper.nearest
        if nearest is None:
            return Matches(
                np.full((len(vectors), k), -1, dtype=np.int64),
                np.zeros((len(vectors), k), dtype=np.float32),
            )
        if vectors.shape[1] != nearest.dim:
            raise EmbeddingError(
                f"the embedder gave vectors of dimension {vectors.shape[1]}, "
                f"but the pool holds dimension {nearest.dim}"
            )
        ids, similarities = await asyncio.get_running_loop().run_in_executor(
            self._searcher, lambda: nearest.search(vectors, k, exclude=own, limit=upto)
        )
        return Matches(ids, similarities)

    async def fetch(self, ids: NDArray[np.int64]) -> list[PoolText]:
        """Return the texts with these numbers."""
        texts: list[PoolText] = []
        wanted = ids.tolist()
        for start in range(0, len(wanted), _CHUNK):
            texts += await self._database.read(
                partial(self._texts, ids=wanted[start : start + _CHUNK])
            )
        return texts

    async def scan(self, start: int, count: int) -> tuple[list[PoolText], int | None]:
        """Return at most `count` texts numbered from `start`, and where to go on."""
        end = start + count

        def look(c: sqlite3.Connection) -> tuple[list[PoolText], int | None]:
            now = sql.state(c, self._embedder)
            if now is None:
                return [], None
            texts = sql.texts_between(c, now.embedder, start, end)
            return texts, end if end < now.size else None

        return await self._database.read(look)

    async def labels(self, hashes: Sequence[bytes]) -> list[str | None]:
        """Return the label that a person gave each text; None: none, or not in the pool."""
        return await self._database.read(
            partial(sql.labels_of, embedder=self._embedder, hashes=hashes)
        )

    async def stored_vectors(self, hashes: Sequence[bytes]) -> list[NDArray[np.float16] | None]:
        """Return the vector of each text that is in the pool."""
        return await self._database.read(
            lambda c: select_vectors(c, self._embedder, hashes, pooled=True)
        )

    async def close(self) -> None:
        """Save the index if that is worth it, and end the threads."""
        if self._closed:
            return
        self._closed = True
        await self._change(self._keeper.close)
        self._changer.shutdown(wait=False)
        self._searcher.shutdown(wait=False, cancel_futures=True)

    def _texts(self, connection: sqlite3.Connection, ids: Sequence[int]) -> list[PoolText]:
        now = sql.state(connection, self._embedder)
        found = {} if now is None else sql.texts_of(connection, now.embedder, ids)
        try:
            return [found[i] for i in ids]
        except KeyError as exc:
            raise StoreError(f"there is no text {exc} in the pool of {self._embedder!r}") from exc

    def _behind(self, now: sql.PoolState, upto: int | None) -> bool:
        """Whether a search has to wait for what another process did."""
        if self._changing:
            # an addition is under way: a search sees what is there, as it does in memory
            return False
        nearest = self._keeper.nearest
        size = 0 if nearest is None else len(nearest)
        return now.removals > self._keeper.removals or size < (now.size if upto is None else upto)

    def _change(self, work: Callable[[], None]) -> asyncio.Future[None]:
        """Run `work` where the index is changed; it goes on if its caller is cancelled."""
        self._changing += 1
        running = asyncio.wrap_future(self._changer.submit(work))
        running.add_done_callback(self._changed)
        return asyncio.shield(running)

    def _changed(self, running: asyncio.Future[None]) -> None:
        self._changing -= 1
        if not running.cancelled():
            running.exception()
