"""`SqliteStore`: predictions, embeddings, pools and batches of one host."""

import asyncio
import os
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from shutil import rmtree
from sqlite3 import Connection
from typing import Any, Literal

from testnuc._base.arrays import Float16s
from testnuc._base.checks import checked_choice
from testnuc.errors import InvalidInputError, StoreError
from testnuc.protocols import Index, StoredPrediction
from testnuc.stores.sql_store import SqlStore, to_prediction
from testnuc.stores.sqlite import queries as sql
from testnuc.stores.sqlite.database import SqliteDatabase
from testnuc.stores.sqlite.pool import SqlitePool
from testnuc.types import Prediction

#: Most tries to write what was erased out of the log, which others may be writing as well.
_TRIES = 100


class SqliteStore(SqlStore):
    """Stores predictions, embeddings and pools in one SQLite file.

    Several processes on one host can use the file at the same time. Writes are committed when a
    method returns, and survive a crash of the process.

    Parameters
    ----------
    path : str or path
        The database file, created if missing. Its folder must exist, on a local disk.
    synchronous : {"normal", "full"}
        SQLite's ``synchronous`` pragma. "normal": a power failure can lose the latest commits.
        "full": each commit waits for the disk. Neither corrupts the file.

    Notes
    -----
    The file is opened on first use. Several clients can share one object: after as many `close` as
    `open`, the file is closed, and only `open` opens it again.
    """

    _now = "((julianday('now') - 2440587.5) * 86400.0)"
    _second = "1.0"
    database: SqliteDatabase

    def __init__(
        self, path: str | os.PathLike[str], *, synchronous: Literal["normal", "full"] = "normal"
    ) -> None:
        given = os.fspath(path)
        if not isinstance(given, str) or not given or given == ":memory:":
            raise InvalidInputError(
                f"the path of the store is {given!r}; use the path of a file, or store=None for "
                "a store in memory"
            )
        checked_choice("synchronous", synchronous, ("normal", "full"))
        self.path = Path(given).absolute()
        super().__init__(SqliteDatabase(str(self.path), synchronous=synchronous), str(self.path))

    def pool(self, embedder: str) -> Index:
        digest = blake2b(embedder.encode(), digest_size=8).hexdigest()
        return SqlitePool(self.database, embedder, Path(f"{self.path}.index") / digest)

    async def _rows(self, statement: str, *values: Any) -> list[Any]:
        given = _by_name(values)
        return await self.database.read(lambda c: c.execute(statement, given).fetchall())

    async def _change(self, statement: str, *values: Any) -> int:
        given = _by_name(values)
        return await self.database.write(lambda c: c.execute(statement, given).rowcount)

    async def get_predictions(self, keys: Sequence[bytes]) -> list[Prediction | None]:
        def read(c: Connection) -> dict[bytes, Prediction]:
            statement = "SELECT key, label, confidence, said FROM predictions WHERE key IN"
            return {k: to_prediction(*said) for k, *said in sql.select_in(c, statement, keys)}

        found = await self.database.read(read)
        return [found.get(key) for key in keys]

    async def put_predictions(self, rows: Sequence[StoredPrediction]) -> list[Prediction]:
        return await self.database.write(lambda c: _insert_predictions(c, rows))

    async def get_vectors(self, embedder: str, hashes: Sequence[bytes]) -> list[Float16s | None]:
        return await self.database.read(lambda c: sql.select_vectors(c, embedder, hashes))

    async def _put_vectors(self, embedder: str, hashes: Sequence[bytes], vectors: Float16s) -> None:
        await self.database.write(lambda c: sql.insert_vectors(c, embedder, hashes, vectors))

    async def erase(self, hashes: Sequence[bytes]) -> set[bytes]:
        """Delete everything of texts but what was learned; returns those that were there."""
        found = await self.database.write(lambda c: sql.erase_texts(c, hashes))
        rmtree(f"{self.path}.index", ignore_errors=True)
        # what is deleted stays in free pages, and in the log, until these are written anew
        await self._rows("VACUUM")
        for _ in range(_TRIES):
            ((busy, *_),) = await self._rows("PRAGMA wal_checkpoint(TRUNCATE)")
            if not busy:
                return found
            await asyncio.sleep(0.1)
        raise StoreError(
            f"{self.path} is in use: what was erased is not in its tables any more, but in its "
            "log; erase again"
        )

    async def vectors(
        self, embedder: str, after: bytes = b"", count: int = 1_000
    ) -> list[tuple[bytes, Float16s]]:
        def read(c: Connection) -> list[tuple[bytes, Float16s]]:
            now = sql.state(c, embedder)
            if now is None:
                return []
            # without those that are erased
            rows = c.execute(
                "SELECT hash, vector FROM vectors WHERE embedder = ? AND hash > ? "
                "AND vector <> zeroblob(length(vector)) ORDER BY hash LIMIT ?",
                (now.embedder, after, count),
            ).fetchall()
            vectors = sql.to_vectors([blob for _, blob in rows], now.dim)
            return list(zip([text_hash for text_hash, _ in rows], vectors, strict=True))

        return await self.database.read(read)


def _by_name(values: Sequence[Any]) -> dict[str, Any]:
    """Return the values of the parameters ``$1``, ``$2``, .., which are names for SQLite.

    Python 3.12.0 to 3.12.3 warn of ``?1`` with a sequence.
    """
    return {str(number): value for number, value in enumerate(values, 1)}


def _insert_predictions(
    connection: Connection, rows: Sequence[StoredPrediction]
) -> list[Prediction]:
    """Insert predictions; the first one under a key wins. Returns the stored ones."""
    scopes: dict[bytes, int] = {}
    stored = []
    for row in rows:
        if row.scope not in scopes:
            insert = "INSERT INTO scopes (scope, facts) VALUES (?, '{}') ON CONFLICT DO NOTHING"
            connection.execute(insert, (row.scope,))
            found = connection.execute("SELECT id FROM scopes WHERE scope = ?", (row.scope,))
            (scopes[row.scope],) = found.fetchone()
        scope, new = scopes[row.scope], row.prediction
        done = connection.execute(
            "INSERT INTO predictions (key, scope, text, sample, label, confidence, said) "
            "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (row.key, scope, row.text_hash, row.sample, new.label, new.confidence, new.said),
        )
        if not done.rowcount:
            found = connection.execute(
                "SELECT label, confidence, said FROM predictions WHERE key = ?", (row.key,)
            )
            new = to_prediction(*found.fetchone())
        stored.append(new)
    return stored
