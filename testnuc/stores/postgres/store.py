"""`PostgresStore`: predictions, embeddings, pools, leases and batches of many hosts."""

import asyncio
import secrets
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

from testnuc._base.arrays import Float16s
from testnuc._base.checks import checked_whole
from testnuc.errors import InvalidInputError, StoreError
from testnuc.protocols import StoredPrediction
from testnuc.stores.postgres.database import PostgresDatabase
from testnuc.stores.postgres.driver import Address
from testnuc.stores.postgres.pool import PostgresPool, insert_vectors
from testnuc.stores.sql_store import LONGEST_LEASE, SqlStore, rows_of, to_prediction
from testnuc.types import Prediction

#: Below this size, comparing a batch with all texts is faster than searching the server's graph.
EXACT_BELOW = 20_000
#: Keys per statement.
_CHUNK = 2_000
#: Most predictions per statement that writes some.
_MAX_GROUP = 1_000
#: Attempts to insert or read a row that another process inserts and deletes meanwhile.
_ATTEMPTS = 5
#: Own leases on the keys $1, locked in their order.
_MINE = "key IN (SELECT key FROM leases WHERE key = ANY($1) AND owner = $2 ORDER BY key FOR UPDATE)"


class PostgresStore(SqlStore):
    """Stores predictions, embeddings and pools in a PostgreSQL database with pgvector.

    Many processes can use it at the same time. Nearest neighbors are searched in the database.
    Writes are committed when a method returns.

    Parameters
    ----------
    url : str
        ``postgresql://user:password@host:port/database``. The option ``?schema=name`` sets the
        schema of the tables (default ``testnuc``); other options are passed to the driver.
    connections : int
        Maximum number of open connections.
    patience : float
        Seconds to retry while the server is unavailable, before `StoreError` is raised.
    exact_below : int
        Number of texts below which the search is exact.
    lease_seconds : float
        Lifetime of a lease, in seconds: how long other workers wait for a prediction that a killed
        process had requested.

    Notes
    -----
    Connections are opened on first use. Several clients can share one object: after as many `close`
    as `open`, they are closed, and only `open` opens them again.
    """

    _now = "clock_timestamp()"
    _second = "interval '1 second'"
    database: PostgresDatabase

    def __init__(
        self,
        url: str,
        *,
        connections: int = 8,
        patience: float = 60.0,
        exact_below: int = EXACT_BELOW,
        lease_seconds: float = 30.0,
    ) -> None:
        checked_whole("connections", connections, least=1)
        if not lease_seconds > 0:
            raise InvalidInputError(f"lease_seconds is {lease_seconds}; give a positive number")
        self.lease_seconds = lease_seconds
        self.address = Address(url)
        database = PostgresDatabase(self.address, connections=connections, patience=patience)
        super().__init__(database, self.address.public)
        #: Group commit: predictions that arrive during a statement share the next one, so hundreds
        #: of concurrent callers cost one connection and a few commits.
        self._pending: deque[
            tuple[Sequence[StoredPrediction], asyncio.Future[list[Prediction]]]
        ] = deque()
        self._writing: asyncio.Task[None] | None = None
        #: Scopes that have a row.
        self._scopes: set[bytes] = set()
        self._exact_below = exact_below
        # leases belong to this object, not to the process
        self._owner = secrets.token_bytes(16)
        self._calls = count()

    async def _tidy(self) -> None:
        # of processes that ended long ago
        await self.database.execute(
            "DELETE FROM leases WHERE key IN ("
            "SELECT key FROM leases WHERE until < clock_timestamp() - interval '1 hour' "
            "ORDER BY key FOR UPDATE SKIP LOCKED)"
        )

    async def close(self) -> None:
        """Complete pending work and close all connections, unless another user opened them, too."""
        if self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])
        await super().close()

    def pool(self, embedder: str) -> PostgresPool:
        return PostgresPool(self.database, embedder, exact_below=self._exact_below)

    async def _rows(self, statement: str, *values: Any) -> list[Any]:
        return await self.database.fetch(statement, *values)

    async def _change(self, statement: str, *values: Any) -> int:
        return await self.database.finish(self.database.execute(statement, *values))

    async def get_predictions(self, keys: Sequence[bytes]) -> list[Prediction | None]:
        found: dict[bytes, Prediction] = {}
        for start in range(0, len(keys), _CHUNK):
            found |= await self._stored(keys[start : start + _CHUNK])
        return [found.get(key) for key in keys]

    async def put_predictions(self, rows: Sequence[StoredPrediction]) -> list[Prediction]:
        # cancelling the caller does not undo its write
        if not rows:
            return []
        future: asyncio.Future[list[Prediction]] = asyncio.get_running_loop().create_future()
        self._pending.append((rows, future))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name="testnuc-store")
        return await future

    async def get_vectors(self, embedder: str, hashes: Sequence[bytes]) -> list[Float16s | None]:
        return await self.pool(embedder).stored_vectors(hashes, pooled=False)

    async def _put_vectors(self, embedder: str, hashes: Sequence[bytes], vectors: Float16s) -> None:
        known = await self.database.require_embedder(embedder, vectors)
        work = partial(insert_vectors, known=known, hashes=hashes, vectors=vectors)
        await self.database.finish(self.database.run(work))

    async def erase(self, hashes: Sequence[bytes]) -> set[bytes]:
        """Delete everything of texts but what was learned; returns those that were there."""
        delete = "DELETE FROM {} WHERE {} = ANY($1) RETURNING {}"
        rows = await self._rows(delete.format("predictions", "text", "text"), hashes)
        for embedder, _ in await self.embedders():
            pool = self.pool(embedder)
            await pool.remove(hashes)
            for table in ("{texts}", "{removed}"):
                rows += await pool.read(delete.format(table, "hash", "hash"), [(hashes,)])
        return {text for (text,) in rows}

    async def vectors(
        self, embedder: str, after: bytes = b"", count: int = 1_000
    ) -> list[tuple[bytes, Float16s]]:
        query = "SELECT hash, vector FROM {texts} WHERE hash > $1 ORDER BY hash LIMIT $2"
        return [
            (text_hash, vector)
            async for rows, vectors in self.pool(embedder).vectors(query, [(after, count)])
            for (text_hash,), vector in zip(rows, vectors, strict=True)
        ]

    async def lease(self, keys: Sequence[bytes], seconds: float) -> list[bool]:
        """Acquire leases, so that no other worker requests these predictions.

        True: the lease was granted for `seconds`. False: another worker holds the lease, or the
        prediction has been stored; read it again.
        """
        # a retry after a lost connection has the same owner and call, and gets the same leases
        rows = await self.database.fetch(
            """
            INSERT INTO leases (key, owner, call, until)
            SELECT u.key, $2, $3, clock_timestamp() + make_interval(secs => $4)
            FROM unnest($1::bytea[]) u (key) ORDER BY u.key
            ON CONFLICT (key) DO UPDATE
            SET owner = excluded.owner, call = excluded.call, until = excluded.until
            WHERE leases.until <= clock_timestamp()
               -- the clock was set back
               OR leases.until > clock_timestamp() + make_interval(secs => $5)
               OR (leases.owner = excluded.owner AND leases.call = excluded.call)
            RETURNING key
            """,
            sorted(set(keys)),
            self._owner,
            next(self._calls),
            seconds,
            max(seconds, LONGEST_LEASE),
        )
        mine = {key for (key,) in rows}
        # A lease ends in the transaction that stores its prediction, so it may be free because the
        # prediction was stored after the caller's lookup. A new statement sees that commit.
        stored = await self._stored(list(mine)) if mine else {}
        if stored:
            await self.release(list(stored))
        return [key in mine and key not in stored for key in keys]

    @property
    def breaks(self) -> int:
        """Changes when leases may have been lost: a crash of the server empties their table."""
        return self.database.breaks

    async def renew(self, keys: Sequence[bytes], seconds: float) -> list[bool]:
        """Extend leases to `seconds` from now; False if a lease has expired and was taken."""
        statement = (
            "UPDATE leases SET until = clock_timestamp() + make_interval(secs => $3) "
            f"WHERE {_MINE} RETURNING key"
        )
        mine = {key for (key,) in await self.database.fetch(statement, keys, self._owner, seconds)}
        return [key in mine for key in keys]

    async def release(self, keys: Sequence[bytes]) -> None:
        """Release leases without a prediction; `put_predictions` releases all others."""
        await self.database.execute(f"DELETE FROM leases WHERE {_MINE}", keys, self._owner)

    async def _write(self) -> None:
        while self._pending:
            group = [self._pending.popleft()]
            size = len(group[0][0])
            while self._pending and size + len(self._pending[0][0]) <= _MAX_GROUP:
                group.append(self._pending.popleft())
                size += len(group[-1][0])
            try:
                stored = await self._write_group([row for rows, _ in group for row in rows])
            except BaseException as exc:
                for _, future in group:
                    if not future.done():
                        future.set_exception(exc)
                        future.exception()  # a cancelled caller never retrieves it
                if not isinstance(exc, Exception):
                    raise
                continue
            for rows, future in group:
                if not future.done():
                    future.set_result([stored[row.key] for row in rows])

    async def _write_group(self, rows: Sequence[StoredPrediction]) -> dict[bytes, Prediction]:
        first: dict[bytes, StoredPrediction] = {}
        for row in rows:
            first.setdefault(row.key, row)
        stored: dict[bytes, Prediction] = {}
        for _ in range(_ATTEMPTS):
            left = [row for key, row in first.items() if key not in stored]
            if not left:
                return stored
            unknown = {row.scope for row in left} - self._scopes
            if unknown:
                await self.database.execute(
                    "INSERT INTO scopes (scope, facts) SELECT u.scope, '{}' "
                    "FROM unnest($1::bytea[]) u (scope) ORDER BY 1 ON CONFLICT DO NOTHING",
                    sorted(unknown),
                )
                self._scopes |= unknown
            new = await self._insert(left)
            stored.update((key, first[key].prediction) for key in new)
            others = [row.key for row in left if row.key not in new]
            if others:
                # a separate statement sees what was committed during the first one
                stored.update(await self._stored(others))
                # a row that is neither new nor stored lacks its scope, which was deleted
                self._scopes.clear()
        raise StoreError("rows disappeared after commit; is another process deleting them?")

    async def _stored(self, keys: Sequence[bytes]) -> dict[bytes, Prediction]:
        rows = await self.database.fetch(
            "SELECT key, label, confidence, said FROM predictions WHERE key = ANY($1)", keys
        )
        with rows_of(self.place):
            return {key: to_prediction(*said) for key, *said in rows}

    async def _insert(self, rows: Sequence[StoredPrediction]) -> set[bytes]:
        """Insert predictions of distinct keys and release their leases; returns the new keys.

        All queries lock rows in the order of their keys, which prevents deadlocks. A lease that is
        locked by another transaction is left to expire: its prediction is stored.
        """
        rows = sorted(rows, key=lambda row: row.key)
        stored = await self.database.fetch(
            """
            WITH ended AS (
                DELETE FROM leases WHERE key IN (
                    SELECT key FROM leases WHERE key = ANY($1) ORDER BY key FOR UPDATE SKIP LOCKED
                )
            )
            INSERT INTO predictions (key, scope, text, sample, label, confidence, said)
            SELECT u.key, s.id, u.text, u.sample, u.label, u.confidence, u.said
            FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::int[], $5::text[], $6::float8[],
                        $7::text[]) u (key, scope, text, sample, label, confidence, said)
            JOIN scopes s ON s.scope = u.scope
            ORDER BY u.key
            ON CONFLICT DO NOTHING
            RETURNING key
            """,
            [row.key for row in rows],
            [row.scope for row in rows],
            [row.text_hash for row in rows],
            [row.sample for row in rows],
            [row.prediction.label for row in rows],
            [row.prediction.confidence for row in rows],
            [row.prediction.said for row in rows],
        )
        return {key for (key,) in stored}
