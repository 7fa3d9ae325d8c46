"""Synchronization of the vector index with the database: load, catch up, save.

The database is the source of truth. The index files only avoid rebuilding the graph, which takes
minutes; they are verified when opened, and rebuilt if damaged.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from typing import TYPE_CHECKING

import numpy as np
import orjson

from testnuc.errors import StoreError
from testnuc.index import DamagedIndexError, NearestVectors, ranks_of
from testnuc.stores.sql_store import DAMAGE
from testnuc.stores.sqlite import queries as sql

if TYPE_CHECKING:
    from pathlib import Path

    from testnuc.index import SavedIndex
    from testnuc.stores.sqlite.database import SqliteDatabase

_log = logging.getLogger("testnuc.stores")

#: Rows read from SQLite at a time.
_CHUNK = 2_000
#: Rows compared between the index files and the database.
_COMPARED = 64
#: The index is saved after a quarter of its size in new rows, within these bounds.
_SAVE_EVERY = (20_000, 100_000)
#: Least number of unsaved rows for a save on close.
_SAVE_ON_CLOSE = 1_000
#: Age in seconds at which an unreferenced file is deleted; a killed process leaves such files.
_ORPHAN_AGE = 86_400.0
_ATTEMPTS = 5


class IndexSync:
    """Synchronizes a `NearestVectors` with a pool of the store.

    `folder` has the index files and no others; pools smaller than `exact_below` are not saved. All
    methods are called from one thread. Other threads read attributes, which are replaced and never
    mutated.
    """

    def __init__(
        self, database: SqliteDatabase, embedder: str, folder: Path, *, exact_below: int
    ) -> None:
        self._database = database
        self._embedder = embedder
        self._folder = folder
        self._exact_below = exact_below
        self._connection: sqlite3.Connection | None = None
        self._saved: SavedIndex | None = None
        #: The saved record whose files proved to be damaged.
        self._damaged: str | None = None
        #: None while the pool has never had a text.
        self.nearest: NearestVectors | None = None
        #: Removals that were applied to `nearest`.
        self.removals = 0
        #: Whether `load` found damaged files and rebuilt the index.
        self.rebuilt = False

    def load(self) -> None:
        """Open the saved index and catch up with the database."""
        try:
            self._connection = self._database.connect()
            for _ in range(_ATTEMPTS):
                now = sql.state(self._connection, self._embedder)
                if now is None or now.saved is None:
                    break
                try:
                    self.nearest, self._saved = self._opened(now)
                    break
                except DamagedIndexError as exc:
                    again = sql.state(self._connection, self._embedder)
                    if again is not None and again.saved != now.saved:
                        # another process has saved meanwhile and deleted the old files
                        continue
                    _log.warning(
                        "the index in %s cannot be used (%s): rebuilding it from %d vectors",
                        self._folder,
                        exc,
                        now.size,
                    )
                    self._damaged, self.rebuilt = now.saved, True
                    break
            self.catch_up()
        except BaseException as exc:
            # what could not be opened, nobody closes
            self._release()
            if isinstance(exc, (sqlite3.Error, *DAMAGE)):
                raise self._database.translated(exc) from exc
            raise

    def catch_up(self) -> None:
        """Apply additions and removals of this process and of others."""
        assert self._connection is not None
        try:
            now = sql.state(self._connection, self._embedder)
            if now is None:
                return
            nearest = self.nearest or NearestVectors(now.dim, exact_below=self._exact_below)
            while len(nearest) < now.size:
                self._add_rows(nearest, now)
                self.nearest = nearest
                if self._unsaved() >= min(max(len(nearest) // 4, _SAVE_EVERY[0]), _SAVE_EVERY[1]):
                    self.save()
            if now.removals > self.removals:
                # removals are read later than `now`, so they may include later rows
                rows = self._connection.execute(
                    "SELECT id FROM pool WHERE id >= ? AND id < ? AND removed > ?",
                    (now.first, now.first + len(nearest), self.removals),
                )
                nearest.remove(np.array([row - now.first for (row,) in rows], dtype=np.int64))
                self.removals = now.removals
            self.nearest = nearest
        except (sqlite3.Error, *DAMAGE) as exc:
            raise self._database.translated(exc) from exc

    def _add_rows(self, nearest: NearestVectors, now: sql.PoolState) -> None:
        assert self._connection is not None
        start, end = len(nearest), min(len(nearest) + _CHUNK, now.size)
        rows = sql.texts_between(self._connection, now, "hash, vectors.vector", start, end)
        if len(rows) != end - start:
            raise StoreError(
                f"the store is corrupt: texts are missing among the pool rows {start} to {end}; "
                "restore a backup"
            )
        vectors = sql.to_vectors([vector for _, vector in rows], now.dim)
        nearest.add(vectors, ranks_of([text_hash for text_hash, _ in rows]))

    def close(self) -> None:
        """Save the index if enough rows are unsaved, and close the connection."""
        if self._connection is None:
            return
        try:
            if self._unsaved() >= min(_SAVE_ON_CLOSE, self._exact_below):
                self.save()
        finally:
            self._release()

    def _release(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self.nearest is not None:
            self.nearest.close()

    def save(self) -> None:
        """Save the index; a failure is logged and only makes the next opening slower."""
        if self.nearest is None or len(self.nearest) < self._exact_below:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for _ in range(_ATTEMPTS):
                if self._try_to_save(self.nearest):
                    return
        except (OSError, sqlite3.Error, StoreError) as exc:
            _log.warning("the index in %s could not be saved: %s", self._folder, exc)

    def _opened(self, now: sql.PoolState) -> tuple[NearestVectors, SavedIndex]:
        assert self._connection is not None
        saved = now.index()
        assert saved is not None
        nearest = NearestVectors.open(self._folder, saved, exact_below=self._exact_below)
        # the files may belong to another copy of the store whose content diverged
        some = np.unique(np.linspace(0, saved.rows - 1, _COMPARED).astype(np.int64))
        texts = sql.texts_of(self._connection, now, some.tolist())
        ranks = ranks_of([texts[i].hash for i in some.tolist() if i in texts])
        if not np.array_equal(nearest.ranks(some), ranks):
            nearest.close()
            raise DamagedIndexError("its texts differ from those of the store")
        return nearest, saved

    def _unsaved(self) -> int:
        """Return the number of rows that the next opening would have to add again."""
        if self.nearest is None or len(self.nearest) < self._exact_below:
            return 0
        unsaved, unsaved_graph = len(self.nearest), self.nearest.graph_rows
        if self._saved is not None:
            unsaved -= self._saved.rows
            unsaved_graph -= self._saved.graph_rows
        return max(unsaved, unsaved_graph)

    def _try_to_save(self, nearest: NearestVectors) -> bool:
        assert self._connection is not None
        now = sql.state(self._connection, self._embedder)
        assert now is not None
        before = None
        if now.saved != self._damaged:
            with contextlib.suppress(DamagedIndexError):
                before = now.index()
        saved = nearest.save(self._folder, before)
        if saved == before:
            self._saved = saved
            return True
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            won = self._connection.execute(
                "UPDATE embedders SET saved = ? WHERE id = ? AND saved IS ?",
                (orjson.dumps(saved.facts()).decode(), now.embedder, now.saved),
            ).rowcount
        finally:
            self._connection.execute("COMMIT")
        old = before.files() if before is not None else set()
        if not won:
            # another process has saved first: share its files
            self._delete(saved.files() - old)
            return False
        # the reference to the old files must leave the disk before the files do
        self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        self._delete(old - saved.files())
        self._delete(self._orphans(saved))
        self._saved = saved
        return True

    def _orphans(self, saved: SavedIndex) -> set[str]:
        used, oldest = saved.files(), time.time() - _ORPHAN_AGE
        return {
            path.name
            for path in self._folder.iterdir()
            if path.name not in used and path.stat().st_mtime < oldest
        }

    def _delete(self, names: set[str]) -> None:
        for name in names:
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()
