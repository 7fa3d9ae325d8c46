"""Group commit of predictions."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from testnuc.errors import StoreError
from testnuc.stores.sql_store import rows_of, to_prediction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testnuc.protocols import StoredPrediction
    from testnuc.stores.postgres.database import PostgresDatabase
    from testnuc.types import Prediction

#: Most rows per statement.
_MAX_GROUP = 1_000
#: Attempts to insert or read a row that another process inserts and deletes meanwhile.
_ATTEMPTS = 5


class Writer:
    """Stores predictions with group commit; cancelling a caller does not undo its write.

    Rows that arrive during a statement share the next one: hundreds of concurrent callers cost one
    connection and a few commits.
    """

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._pending: deque[
            tuple[Sequence[StoredPrediction], asyncio.Future[list[Prediction]]]
        ] = deque()
        self._task: asyncio.Task[None] | None = None
        #: Scopes that have a row.
        self._scopes: set[bytes] = set()

    async def put(self, rows: Sequence[StoredPrediction]) -> list[Prediction]:
        """Store predictions; the first one under a key wins. Returns the stored ones."""
        if not rows:
            return []
        future: asyncio.Future[list[Prediction]] = asyncio.get_running_loop().create_future()
        self._pending.append((rows, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write(), name="testnuc-store")
        return await future

    async def drain(self) -> None:
        """Wait until all pending rows are written."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def _write(self) -> None:
        while self._pending:
            group = [self._pending.popleft()]
            size = len(group[0][0])
            while self._pending and size + len(self._pending[0][0]) <= _MAX_GROUP:
                group.append(self._pending.popleft())
                size += len(group[-1][0])
            try:
                stored = await self._store([row for rows, _ in group for row in rows])
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

    async def _store(self, rows: Sequence[StoredPrediction]) -> dict[bytes, Prediction]:
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
                await self._database.execute(
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
                stored.update(await self.get(others))
                # a row that is neither new nor stored lacks its scope, which was deleted
                self._scopes.clear()
        raise StoreError("rows disappeared after commit; is another process deleting them?")

    async def get(self, keys: Sequence[bytes]) -> dict[bytes, Prediction]:
        """Return the stored predictions by key."""
        rows = await self._database.fetch(
            "SELECT key, label, confidence, said FROM predictions WHERE key = ANY($1)", keys
        )
        with rows_of(self._database.address.public):
            return {key: to_prediction(*said) for key, *said in rows}

    async def _insert(self, rows: Sequence[StoredPrediction]) -> set[bytes]:
        """Insert predictions of distinct keys and release their leases; returns the new keys.

        All queries lock rows in the order of their keys, which prevents deadlocks. A lease that is
        locked by another transaction is left to expire: its prediction is stored.
        """
        rows = sorted(rows, key=lambda row: row.key)
        stored = await self._database.fetch(
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
