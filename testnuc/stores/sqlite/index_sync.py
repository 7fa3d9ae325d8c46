"""The index of a stored pool: loaded, kept up to date, saved; all in one thread.

SQLite is what is true. The files beside it only save the minutes that a new graph takes: what they
hold is checked on opening, and built anew where it is not what was saved.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from typing import TYPE_CHECKING

import numpy as np

from testnuc.errors import StoreError
from testnuc.index import DamagedIndexError, NearestVectors
from testnuc.stores.sqlite import pool_queries as sql
from testnuc.stores.sqlite.errors import store_error

if TYPE_CHECKING:
    from pathlib import Path

    from testnuc.index import SavedIndex
    from testnuc.stores.sqlite.database import SQLiteDatabase

__all__ = ["Keeper"]

_log = logging.getLogger("testnuc.stores")

#: Rows read from SQLite at a time.
_CHUNK = 2_000
#: Rows whose content is compared between the files and SQLite.
_COMPARED = 64
#: Additions after which the index is saved: a part of its size, within these bounds.
_SAVED_EVERY = (20_000, 100_000)
#: Additions that are worth saving at the end.
_SAVED_AT_END = 1_000
#: Seconds after which a file that nobody claims was left by a process that was killed.
_FORGOTTEN = 86_400.0
_ATTEMPTS = 5


class Keeper:
    """Keeps a `NearestVectors` in step with a pool of the store.

    Parameters
    ----------
    database : SQLiteDatabase
    embedder : str
        Whose pool.
    folder : Path
        Where the files of the index are, and nothing else.
    exact_below : int
        See `NearestVectors`; smaller pools are not saved.

    Notes
    -----
    All methods are called from one thread; what others read is replaced, never changed.
    """

    def __init__(
        self, database: SQLiteDatabase, embedder: str, folder: Path, *, exact_below: int
    ) -> None:
        self._database = database
        self._embedder = embedder
        self._folder = folder
        self._exact_below = exact_below
        self._connection: sqlite3.Connection | None = None
        self._saved: SavedIndex | None = None
        #: What was noted as saved and proved to be damaged.
        self._damaged: str | None = None
        #: None: nothing was ever added.
        self.nearest: NearestVectors | None = None
        #: Removals that `nearest` knows of.
        self.removals = 0
        #: Rebuilt on opening because the files were not what was saved; for whoever wonders.
        self.rebuilt = False

    def load(self) -> None:
        """Open what was saved, and bring it up to date."""
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
                        # another process has saved meanwhile and taken the old files away
                        continue
                    _log.warning(
                        "the index in %s cannot be used (%s): building it anew from %d vectors",
                        self._folder,
                        exc,
                        now.size,
                    )
                    self._damaged, self.rebuilt = now.saved, True
                    break
            self.catch_up()
        except sqlite3.Error as exc:
            raise store_error(exc, self._database.path) from exc

    def catch_up(self) -> None:
        """Take over what was added and removed since, by this process or another."""
        assert self._connection is not None
        try:
            now = sql.state(self._connection, self._embedder)
            if now is None:
                return
            nearest = self.nearest or NearestVectors(now.dim, exact_below=self._exact_below)
            while len(nearest) < now.size:
                nearest.add(*sql.rows_from(self._connection, now, len(nearest), _CHUNK))
                self.nearest = nearest
                if self._unsaved() >= min(max(len(nearest) // 4, _SAVED_EVERY[0]), _SAVED_EVERY[1]):
                    self.save()
            if now.removals > self.removals:
                gone = sql.numbers_removed(self._connection, now.embedder, self.removals)
                # what was removed since is of a later state, and may be of later rows
                nearest.remove(gone[gone < len(nearest)])
                self.removals = now.removals
            self.nearest = nearest
        except sqlite3.Error as exc:
            raise store_error(exc, self._database.path) from exc

    def close(self) -> None:
        """Save what is worth it and let go of the file."""
        if self._connection is None:
            return
        try:
            if self._unsaved() >= min(_SAVED_AT_END, self._exact_below):
                self.save()
        finally:
            self._connection.close()
            self._connection = None
            if self.nearest is not None:
                self.nearest.close()

    def save(self) -> None:
        """Save the index; a failure costs time on the next opening, and nothing else."""
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
        # the files may be of another copy of the store that went another way
        some = np.unique(np.linspace(0, saved.rows - 1, _COMPARED).astype(np.int64))
        texts = sql.texts_of(self._connection, now.embedder, some.tolist())
        ranks = [int.from_bytes(texts[i].hash[:8], "big") for i in some.tolist() if i in texts]
        if nearest.ranks(some).tolist() != ranks:
            nearest.close()
            raise DamagedIndexError("it is of other texts")
        return nearest, saved

    def _unsaved(self) -> int:
        """Return how many additions the next opening would have to repeat."""
        if self.nearest is None or len(self.nearest) < self._exact_below:
            return 0
        rows, graph_rows = (
            (self._saved.rows, self._saved.graph_rows) if self._saved is not None else (0, 0)
        )
        return max(len(self.nearest) - rows, self.nearest.graph_rows - graph_rows)

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
            won = sql.replace_saved(self._connection, now.embedder, now.saved, saved)
        finally:
            self._connection.execute("COMMIT")
        kept = before.files() if before is not None else set()
        if not won:
            # another process was quicker: join its files
            self._discard(saved.files() - kept)
            return False
        # what points to the old files must be gone from the disk before they are
        self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        self._discard(kept - saved.files())
        self._discard(self._left_behind(saved))
        self._saved = saved
        return True

    def _left_behind(self, saved: SavedIndex) -> set[str]:
        mine, late = saved.files(), time.time() - _FORGOTTEN
        return {
            path.name
            for path in self._folder.iterdir()
            if path.name not in mine and path.stat().st_mtime < late
        }

    def _discard(self, names: set[str]) -> None:
        for name in names:
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()
