"""Predictions on their way to the server: those that arrive together are written together."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from testnuc.errors import StoreError
from testnuc.stores.postgres import queries as sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testnuc.protocols import StoredPrediction
    from testnuc.stores.postgres.database import PostgresDatabase
    from testnuc.types import Prediction

__all__ = ["Writer"]

#: Most rows in one statement.
_GROUP = 1_000
#: How often to look again for a prediction that another process stored, and then dropped.
_ATTEMPTS = 5


class Writer:
    """Stores predictions; a caller that is cancelled undoes nothing.

    While one statement is under way, the rows of all other callers wait and then share the next:
    hundreds of concurrent callers cost one connection and a few commits.

    Parameters
    ----------
    database : PostgresDatabase
    """

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._waiting: deque[
            tuple[Sequence[StoredPrediction], asyncio.Future[list[Prediction]]]
        ] = deque()
        self._pump: asyncio.Task[None] | None = None
        #: Scopes that have a row.
        self._scopes: set[bytes] = set()

    async def put(self, rows: Sequence[StoredPrediction]) -> list[Prediction]:
        """Store predictions; returns what stands."""
        if not rows:
            return []
        future: asyncio.Future[list[Prediction]] = asyncio.get_running_loop().create_future()
        self._waiting.append((rows, future))
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._write(), name="testnuc-store")
        return await future

    async def drain(self) -> None:
        """Wait until all is written."""
        if self._pump is not None and not self._pump.done():
            await asyncio.wait([self._pump])

    async def _write(self) -> None:
        while self._waiting:
            group = [self._waiting.popleft()]
            size = len(group[0][0])
            while self._waiting and size + len(self._waiting[0][0]) <= _GROUP:
                group.append(self._waiting.popleft())
                size += len(group[-1][0])
            try:
                standing = await self._store([row for rows, _ in group for row in rows])
            except BaseException as exc:
                for _, future in group:
                    if not future.done():
                        future.set_exception(exc)
                        future.exception()  # whoever is cancelled does not ask for it
                if not isinstance(exc, Exception):
                    raise
                continue
            for rows, future in group:
                if not future.done():
                    future.set_result([standing[row.key] for row in rows])

    async def _store(self, rows: Sequence[StoredPrediction]) -> dict[bytes, Prediction]:
        first: dict[bytes, StoredPrediction] = {}
        for row in rows:
            first.setdefault(row.key, row)
        standing: dict[bytes, Prediction] = {}
        for _ in range(_ATTEMPTS):
            left = [row for key, row in first.items() if key not in standing]
            if not left:
                return standing
            unknown = {row.scope for row in left} - self._scopes
            if unknown:
                await self._database.run(partial(sql.note_scopes, scopes=sorted(unknown)))
                self._scopes |= unknown
            new = await self._database.run(partial(sql.insert_predictions, rows=left))
            standing.update((key, first[key].prediction) for key in new)
            others = [row.key for row in left if row.key not in new]
            if others:
                # in a statement of its own: only that sees what was committed during the first
                standing.update(
                    await self._database.run(partial(sql.select_predictions, keys=others))
                )
                # a row that is neither new nor there lacks its scope: somebody dropped it
                self._scopes.clear()
        raise StoreError("predictions vanish as soon as they are stored; who deletes them?")
