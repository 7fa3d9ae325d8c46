"""`PostgresStore`: predictions, embeddings, pools, leases and batches of many hosts."""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from testnuc._base.checks import checked_whole
from testnuc.errors import EmbeddingError, InvalidInputError, StoreError
from testnuc.stores.postgres import batch_queries as batches
from testnuc.stores.postgres import export_queries as paging
from testnuc.stores.postgres import lease_queries as leasing
from testnuc.stores.postgres import queries as sql
from testnuc.stores.postgres.address import Address
from testnuc.stores.postgres.database import PostgresDatabase
from testnuc.stores.postgres.group_commit import Writer
from testnuc.stores.postgres.pool import PostgresPool
from testnuc.stores.postgres.schema import MAX_DIM, create_texts

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence
    from typing import Any, TypeVar

    from numpy.typing import NDArray

    from testnuc.protocols import Index, StoredBatch, StoredPrediction
    from testnuc.types import Prediction, Usage

    T = TypeVar("T")

__all__ = ["PostgresStore"]

#: Below this size, comparing a batch with all texts is faster than searching the server's graph.
EXACT_BELOW = 20_000
#: Vectors or keys per statement.
_CHUNK = 2_000


class PostgresStore:
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

    Raises
    ------
    InvalidInputError
        An argument is invalid.

    Notes
    -----
    Connections are opened on first use, and again on first use after `close`: several clients can
    share one object.
    """

    durable = True

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
        self.database = PostgresDatabase(self.address, connections=connections, patience=patience)
        self._writer = Writer(self.database)
        self._exact_below = exact_below
        self._embedders: dict[str, sql.EmbedderRow] = {}
        # leases belong to this object, not to the process
        self._owner = secrets.token_bytes(16)
        self._calls = count()
        self._running: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"PostgresStore({self.address.public!r})"

    async def open(self) -> None:
        """Connect, and apply pending migrations.

        Raises
        ------
        StoreError
            The server cannot be reached, lacks pgvector, rejects the user, or has the schema of a
            newer version of testnuc.
        MissingDependencyError
            asyncpg is not installed.
        """
        await self.database.open()
        await self.database.run(leasing.drop_stale)

    async def close(self) -> None:
        """Complete pending work and close all connections."""
        await self._writer.drain()
        mine = [t for t in self._running if t.get_loop() is asyncio.get_running_loop()]
        if mine:
            await asyncio.wait(mine)
        await self.database.close()

    def pool(self, embedder: str) -> Index:
        """Return the pool of an embedder."""
        return PostgresPool(self, self.database, embedder, exact_below=self._exact_below)

    async def describe(self, scope: bytes, facts: Mapping[str, Any]) -> None:
        """Store the metadata of a scope."""
        await self.database.run(partial(sql.describe, scope=scope, facts=facts))

    async def count(self, scope: bytes) -> int:
        """Return the number of texts with a prediction in this scope."""
        return await self.database.run(partial(sql.count, scope=scope))

    async def predicted(self, scope: bytes) -> list[bytes]:
        """Return the hashes of the texts with a prediction in this scope."""
        return await self.database.run(partial(sql.predicted, scope=scope))

    async def forget(self, *, model: str | None = None, scope: bytes | None = None) -> int:
        """Delete the predictions of a model, or of a scope; returns their number."""
        return await self.database.run(partial(sql.forget, model=model, scope=scope))

    async def get_predictions(self, keys: Sequence[bytes]) -> list[Prediction | None]:
        """Return the stored prediction for each key; None if missing."""
        found: dict[bytes, Prediction] = {}
        for start in range(0, len(keys), _CHUNK):
            part = keys[start : start + _CHUNK]
            found |= await self.database.run(partial(sql.select_predictions, keys=part))
        return [found.get(key) for key in keys]

    async def put_predictions(self, rows: Sequence[StoredPrediction]) -> list[Prediction]:
        """Store predictions; the first one under a key wins. Returns the stored ones."""
        return await self._writer.put(rows)

    async def get_vectors(
        self, embedder: str, hashes: Sequence[bytes]
    ) -> list[NDArray[np.float16] | None]:
        """Return the stored embedding of each text, float16[dim]; None if missing."""
        known = await self.embedder(embedder)
        found: list[NDArray[np.float16] | None] = []
        if known is None:
            return [None] * len(hashes)
        for start in range(0, len(hashes), _CHUNK):
            part = hashes[start : start + _CHUNK]
            found += await self.database.run(
                partial(sql.select_vectors, embedder=known, hashes=part)
            )
        return found

    async def put_vectors(
        self, embedder: str, hashes: Sequence[bytes], vectors: NDArray[np.float16]
    ) -> None:
        """Store embeddings, float16[len(hashes), dim]; existing ones are not changed."""
        if not len(hashes):
            return
        known = await self.require_embedder(embedder, vectors.shape[1])
        for start in range(0, len(hashes), _CHUNK):
            part = slice(start, start + _CHUNK)
            await self.finish(
                self.database.run(
                    partial(
                        sql.insert_vectors,
                        embedder=known.id,
                        hashes=hashes[part],
                        vectors=vectors[part],
                    )
                )
            )

    async def put_learned(self, scope: bytes, data: bytes) -> None:
        """Store what was learned, in place of what was there."""
        await self.finish(self.database.run(partial(sql.put_learned, scope=scope, data=data)))

    async def get_learned(self, scope: bytes) -> bytes | None:
        """Return what was learned; None if nothing was."""
        return await self.database.run(partial(sql.get_learned, scope=scope))

    async def drop_learned(self, scope: bytes) -> None:
        """Delete what was learned."""
        await self.finish(self.database.run(partial(sql.put_learned, scope=scope, data=None)))

    async def put_batch(self, batch: StoredBatch, owner: bytes, seconds: float) -> None:
        """Store a batch that is about to be submitted, leased by `owner`."""
        work = partial(batches.insert, batch=batch, owner=owner, seconds=seconds)
        await self.finish(self.database.run(work))

    async def claim_batch(self, batch: bytes, owner: bytes, seconds: float) -> bool:
        """Take or extend the lease of an open batch; False if it is leased or has ended."""
        work = partial(batches.claim, batch=batch, owner=owner, seconds=seconds)
        return await self.database.run(work)

    async def note_batch(self, batch: bytes, remote_id: str) -> None:
        """Store the provider's id of a batch."""
        work = partial(batches.note, batch=batch, remote_id=remote_id)
        await self.finish(self.database.run(work))

    async def end_batch(self, batch: bytes, outcome: str, usage: Usage) -> bool:
        """Mark a batch as ended; False if it had ended already (nothing is changed then)."""
        # unique per call: distinguishes a retry after a lost connection from a second call
        once = secrets.token_bytes(16)
        work = partial(batches.end, batch=batch, outcome=outcome, usage=usage, owner=once)
        return await self.finish(self.database.run(work))

    async def batches(
        self, scope: bytes | None = None, *, ended: bool = False
    ) -> list[StoredBatch]:
        """Return the open batches (of a scope), oldest first; `ended` includes ended ones."""
        return await self.database.run(partial(batches.select, scope=scope, ended=ended))

    async def scopes(self) -> list[tuple[bytes, dict[str, Any]]]:
        """Return all scopes and their metadata."""
        return await self.database.run(paging.all_scopes)

    async def embedders(self) -> list[tuple[str, int]]:
        """Return the name and dimension of each embedder in the store."""
        return await self.database.run(paging.all_embedders)

    async def learned(self) -> list[tuple[bytes, bytes]]:
        """Return all that was learned, with its key."""
        return await self.database.run(paging.all_learned)

    async def predictions(self, after: bytes = b"", count: int = 1_000) -> list[StoredPrediction]:
        """Return up to `count` predictions after a key, ordered by key; empty at the end."""
        return await self.database.run(
            partial(paging.page_of_predictions, after=after, count=count)
        )

    async def vectors(
        self, embedder: str, after: bytes = b"", count: int = 1_000
    ) -> list[tuple[bytes, NDArray[np.float16]]]:
        """Return up to `count` vectors after a text hash, ordered by hash; empty at the end."""
        known = await self.embedder(embedder)
        if known is None:
            return []
        return await self.database.run(
            partial(paging.page_of_vectors, embedder=known, after=after, count=count)
        )

    async def lease(self, keys: Sequence[bytes], seconds: float) -> list[bool]:
        """Acquire leases, so that no other worker requests these predictions.

        Returns
        -------
        list of bool
            True: the lease was granted for `seconds`. False: another worker holds the lease, or
            the prediction has been stored; read it again.
        """
        mine = await self.database.run(
            partial(
                leasing.lease,
                keys=keys,
                owner=self._owner,
                call=next(self._calls),
                seconds=seconds,
            )
        )
        return [key in mine for key in keys]

    async def renew(self, keys: Sequence[bytes], seconds: float) -> list[bool]:
        """Extend leases to `seconds` from now; False if a lease has expired and was taken."""
        mine = await self.database.run(
            partial(leasing.renew, keys=keys, owner=self._owner, seconds=seconds)
        )
        return [key in mine for key in keys]

    async def release(self, keys: Sequence[bytes]) -> None:
        """Release leases without a prediction; `put_predictions` releases all others."""
        await self.database.run(partial(leasing.release, keys=keys, owner=self._owner))

    async def embedder(self, name: str) -> sql.EmbedderRow | None:
        """Return the row of an embedder; its counts may be stale."""
        known = self._embedders.get(name)
        if known is None:
            known = await self.database.run(partial(sql.select_embedder, name=name))
            if known is not None:
                self._embedders[name] = known
        return known

    async def require_embedder(self, name: str, dim: int) -> sql.EmbedderRow:
        """Return the row of an embedder; creates its tables if it is new.

        Raises
        ------
        StoreError
            The store contains vectors of another dimension under this name.
        EmbeddingError
            pgvector cannot store vectors of this dimension.
        """
        known = await self.embedder(name)
        if known is None:
            if not 1 <= dim <= MAX_DIM:
                raise EmbeddingError(
                    f"the embedder {name!r} returns vectors of dimension {dim}; pgvector supports "
                    f"1 to {MAX_DIM}"
                )
            await self.database.run(partial(create_texts, name=name, dim=dim))
            known = await self.embedder(name)
        if known is None:
            raise StoreError(
                f"the row of embedder {name!r} disappeared from {self.address.public}; is another "
                "process deleting it?"
            )
        known.require(dim)
        return known

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a write to completion, even if the caller is cancelled."""
        task = asyncio.create_task(work, name="testnuc-store")
        self._running.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()
