"""The pool of the SQLite store: texts and vectors in the database, their graph in a mapped file.

The database is the source of truth. The file only avoids rebuilding the graph, which takes minutes;
it is verified when opened, and rebuilt if damaged.
"""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np
import orjson

from testnuc._base.arrays import Float16s, Int64s
from testnuc.errors import StoreError
from testnuc.index.matching import Where, check_dim, empty_matches, ranks_of
from testnuc.index.memory_pool import run_until_closed
from testnuc.index.nearest import EXACT_BELOW, DamagedIndexError, Graph, NearestVectors, SavedGraph
from testnuc.protocols import Index, Matches, PoolText
from testnuc.stores.sql_store import DAMAGE, pool_text
from testnuc.stores.sqlite import queries as sql
from testnuc.stores.sqlite.database import POOL_SHIFT, SqliteDatabase

_T = TypeVar("_T")
_log = logging.getLogger("testnuc.stores")

#: Texts per transaction and per read; bounds how long others wait.
_CHUNK = 2_000
#: The graph is saved after a quarter of its size in new rows, within these bounds.
_SAVE_EVERY = (20_000, 100_000)
#: Least number of unsaved rows for a save on close.
_SAVE_ON_CLOSE = 1_000
#: Age in seconds at which an unreferenced file is deleted; a killed process leaves such files.
_ORPHAN_AGE = 86_400.0
_ATTEMPTS = 5


@dataclass(eq=False, repr=False)
class SqlitePool(Index):
    """The pool of one embedder.

    Texts are committed when `add` returns; existing vectors are not changed.

    Several processes can add and search. Row numbers are equal in all processes, so a snapshot is
    valid in all of them. A search without a snapshot includes texts that other processes added.
    With fewer vectors than `exact_below` the search is exact. `folder` has the file of the graph.
    """

    _database: SqliteDatabase
    _embedder: str
    folder: InitVar[Path]
    _: KW_ONLY
    exact_below: InitVar[int] = EXACT_BELOW

    def __post_init__(self, folder: Path, exact_below: int) -> None:
        self.index = IndexSync(self._database, self._embedder, folder, exact_below=exact_below)
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

    async def add(self, texts: Sequence[PoolText], vectors: Float16s) -> int:
        await self.open()
        if not len(texts):
            return await self._read(lambda _, now: now.size, 0)
        size = 0
        for start in range(0, len(texts), _CHUNK):
            part = slice(start, start + _CHUNK)
            insert = partial(
                sql.insert_texts,
                embedder=self._embedder,
                texts=texts[part],
                vectors=vectors[part],
            )
            # known texts do not wait for the write lock of another process
            known = await self._read(partial(sql.size_with, texts=texts[part]), None)
            size = await self._database.write(insert) if known is None else known
            # the graph grows while the next texts are stored
            caught_up = self._update(self.index.catch_up)
            if start + _CHUNK >= len(texts):
                await caught_up
        return size

    async def remove(self, hashes: Sequence[bytes]) -> int:
        await self.open()
        count = await self._database.write(lambda c: sql.remove_texts(c, self._embedder, hashes))
        await self._update(self.index.catch_up)
        return count

    async def search(self, vectors: Float16s, k: int, **where: Unpack[Where]) -> Matches:
        await self.open()
        exclude, upto, among = where.get("exclude"), where.get("upto"), where.get("among")

        def read(c: sqlite3.Connection, now: sql.PoolState) -> tuple[Any, Int64s | None]:
            if exclude is None:
                return now, None
            found = dict(sql.select_texts(c, now, exclude, "hash, pool.id"))
            rows = [found.get(h, now.first - 1) - now.first for h in exclude]
            return now, np.array(rows, dtype=np.int64)

        now, own = await self._read(read, (None, None))
        if now is not None and self._behind(now, upto):
            await self._update(self.index.catch_up)
        nearest = self.index.nearest
        if nearest is None:
            return empty_matches(len(vectors), k)
        check_dim(vectors, nearest.dim)
        ids, similarities = await run_until_closed(
            self._searcher, lambda: nearest.search(vectors, k, exclude=own, limit=upto, among=among)
        )
        return Matches(ids, similarities)

    async def fetch(self, ids: Int64s) -> list[PoolText]:
        numbers = ids.tolist()
        found: dict[int, PoolText] = dict(await self._in_parts(sql.texts_of, numbers))
        try:
            return [found[number] for number in numbers]
        except KeyError as exc:
            raise StoreError(f"the pool of {self._embedder!r} has no text {exc}") from exc

    async def scan(self, start: int, count: int) -> tuple[list[PoolText], int | None]:
        end = start + count

        def read(c: sqlite3.Connection, now: sql.PoolState) -> tuple[list[PoolText], int | None]:
            rows = sql.texts_between(c, now, "removed, text, hash, label", start, end)
            texts = [pool_text(text) for removed, *text in rows if removed is None]
            return texts, end if end < now.size else None

        return await self._read(read, ([], None))

    async def labels(self, hashes: Sequence[bytes]) -> list[str | None]:
        found = dict(await self._in_parts(sql.select_texts, hashes, columns="hash, label"))
        return [found.get(h) for h in hashes]

    async def rows(self, hashes: Sequence[bytes]) -> Int64s:
        number = f"pool.id & {(1 << POOL_SHIFT) - 1}"
        rows = await self._in_parts(sql.select_texts, hashes, columns=number)
        return np.unique(np.array([row for (row,) in rows], dtype=np.int64))

    async def labeled(self) -> dict[bytes, str]:
        return dict(await self._read(sql.labeled, ()))

    async def stored_vectors(self, hashes: Sequence[bytes]) -> list[Float16s | None]:
        return await self._database.read(
            lambda c: sql.select_vectors(c, self._embedder, hashes, pooled=True)
        )

    async def _read(self, work: Callable[..., _T], empty: Any) -> _T:
        """Run a read-only `work`; without vectors of the embedder, return `empty`."""

        def read(c: sqlite3.Connection) -> _T:
            now = sql.state(c, self._embedder)
            found: _T = empty if now is None else work(c, now)
            return found

        return await self._database.read(read)

    async def _in_parts(
        self, read: Callable[..., list[Any]], values: Sequence[Any], **options: Any
    ) -> list[Any]:
        """Read in parts: other reads, cancellation and `close` do not wait for a million."""
        found: list[Any] = []
        for start in range(0, len(values), _CHUNK):
            part = values[start : start + _CHUNK]
            found += await self._read(lambda c, now, p=part: read(c, now, p, **options), [])
        return found

    async def close(self) -> None:
        """Save the graph if needed, and stop the threads."""
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


@dataclass(eq=False)
class IndexSync:
    """Synchronizes a `NearestVectors` with a pool of the store.

    `folder` has files of graphs and no others; pools smaller than `exact_below` are not saved. All
    methods are called from one thread. Other threads read attributes, which are replaced and never
    mutated.
    """

    database: SqliteDatabase
    embedder: str
    folder: Path
    _: KW_ONLY
    exact_below: int
    connection: sqlite3.Connection | None = None
    saved: SavedGraph | None = None
    #: The saved record whose file proved to be damaged.
    damaged: str | None = None
    #: None while the pool has never had a text.
    nearest: NearestVectors | None = None
    #: Removals that were applied to `nearest`.
    removals: int = 0

    def load(self) -> None:
        """Map the saved graph, and catch up with the database."""
        try:
            self.connection = self.database.connect()
            for _ in range(_ATTEMPTS):
                now = sql.state(self.connection, self.embedder)
                if now is None or now.saved is None:
                    break
                try:
                    saved = now.graph()
                    assert saved is not None
                    self.nearest = NearestVectors(
                        now.dim, exact_below=self.exact_below, graph=Graph.map(self.folder, saved)
                    )
                    self.saved = saved
                    break
                except DamagedIndexError as exc:
                    again = sql.state(self.connection, self.embedder)
                    if again is not None and again.saved != now.saved:
                        # another process has saved meanwhile and deleted the old file
                        continue
                    message = "the index in %s cannot be used (%s): rebuilding it from %d vectors"
                    _log.warning(message, self.folder, exc, now.size)
                    self.damaged = now.saved
                    break
            self.catch_up()
        except BaseException as exc:
            # what could not be opened, nobody closes
            self._release()
            if isinstance(exc, (sqlite3.Error, *DAMAGE)):
                raise self.database.translated(exc) from exc
            raise

    def catch_up(self) -> None:
        """Apply additions and removals of this process and of others."""
        assert self.connection is not None
        try:
            now = sql.state(self.connection, self.embedder)
            if now is None:
                return
            nearest = self.nearest
            if nearest is None:
                nearest = NearestVectors(now.dim, exact_below=self.exact_below)
            while len(nearest) < now.size:
                start, end = len(nearest), min(len(nearest) + _CHUNK, now.size)
                rows = sql.texts_between(self.connection, now, "hash, vectors.vector", start, end)
                if len(rows) != end - start:
                    raise StoreError(
                        f"the store is corrupt: texts are missing among the pool rows {start} to "
                        f"{end}; restore a backup"
                    )
                vectors = sql.to_vectors([vector for _, vector in rows], now.dim)
                nearest.add(vectors, ranks_of([text_hash for text_hash, _ in rows]))
                self.nearest = nearest
                if self._unsaved() >= min(max(len(nearest) // 4, _SAVE_EVERY[0]), _SAVE_EVERY[1]):
                    self.save()
            if now.removals > self.removals:
                # removals are read later than `now`, so they may include later rows
                statement = "SELECT id FROM pool WHERE id >= ? AND id < ? AND removed > ?"
                ends = (now.first, now.first + len(nearest))
                gone = self.connection.execute(statement, (*ends, self.removals))
                nearest.remove(np.array([row - now.first for (row,) in gone], dtype=np.int64))
                self.removals = now.removals
            self.nearest = nearest
        except (sqlite3.Error, *DAMAGE) as exc:
            raise self.database.translated(exc) from exc

    def close(self) -> None:
        """Save the graph if enough rows are unsaved, and close the connection."""
        if self.connection is None:
            return
        try:
            if self._unsaved() >= min(_SAVE_ON_CLOSE, self.exact_below):
                self.save()
        finally:
            self._release()

    def _release(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def save(self) -> None:
        """Save the graph; a failure is logged and only makes the next opening slower."""
        if not self._unsaved():
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for _ in range(_ATTEMPTS):
                if self._try_to_save():
                    return
        except (OSError, sqlite3.Error, StoreError) as exc:
            _log.warning("the index in %s could not be saved: %s", self.folder, exc)

    def _unsaved(self) -> int:
        """Return the number of rows that the next opening would have to insert into the graph."""
        if self.nearest is None or len(self.nearest) < self.exact_below:
            return 0
        return self.nearest.graph_rows - (0 if self.saved is None else self.saved.rows)

    def _try_to_save(self) -> bool:
        assert self.connection is not None
        assert self.nearest is not None
        assert self.nearest.graph is not None
        now = sql.state(self.connection, self.embedder)
        assert now is not None
        before = None
        with contextlib.suppress(DamagedIndexError):
            before = now.graph()
        if (
            before is not None
            and before.rows >= self.nearest.graph_rows
            and now.saved != self.damaged
            and (self.folder / before.file).is_file()
        ):
            self.saved = before
            return True
        saved = self.nearest.graph.save(self.folder)
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            statement = "UPDATE embedders SET saved = ? WHERE id = ? AND saved IS ?"
            values = (orjson.dumps(saved).decode(), now.embedder, now.saved)
            won = self.connection.execute(statement, values).rowcount
        finally:
            self.connection.execute("COMMIT")
        if not won:
            # another process has saved first
            self._delete({saved.file})
            return False
        # the reference to the old file must leave the disk before the file does
        self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        others, oldest = set(self.folder.iterdir()), time.time() - _ORPHAN_AGE
        orphans = {path.name for path in others if path.stat().st_mtime < oldest} - {saved.file}
        self._delete(orphans | (set() if before is None else {before.file}))
        self.saved = saved
        return True

    def _delete(self, names: set[str]) -> None:
        for name in names:
            with contextlib.suppress(OSError):
                (self.folder / name).unlink()
