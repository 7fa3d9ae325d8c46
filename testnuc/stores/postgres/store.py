"""The store of a fleet: predictions, vectors, pools and leases in one PostgreSQL database."""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

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

#: Up to here it is quicker to compare a batch with all texts than to ask the server's graph.
EXACT_BELOW = 20_000
#: Vectors and keys in one statement.
_CHUNK = 2_000


class PostgresStore:
    """Predictions, embeddings and the pool in a PostgreSQL database with pgvector.

    Any number of processes may use it at once. Neighbors are searched for in the database. What a
    method has stored is committed when it returns.

    Parameters
    ----------
    url : str
        ``postgresql://user:password@host:port/database``; options after a ``?`` are the driver's,
        but for ``schema``, where the tables are (default ``testnuc``).
    connections : int
        Most connections at a time.
    patience : float
        Seconds to go on trying when the server is away, before a `StoreError`.
    exact_below : int
        Number of texts below which the search is exact.
    lease_seconds : float
        How long others wait for what a process that was killed had begun to ask.

    Raises
    ------
    InvalidInputError
        An argument is wrong.

    Notes
    -----
    Nothing is opened before it is used, and a store that was closed opens again when it is used:
    one object may serve several clients.
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
        if connections < 1:
            raise InvalidInputError(f"connections is {connections}; give at least 1")
        if not lease_seconds > 0:
            raise InvalidInputError(f"lease_seconds is {lease_seconds}; give a positive number")
        self.lease_seconds = lease_seconds
        self._address = Address(url)
        self._database = PostgresDatabase(self._address, connections=connections, patience=patience)
        self._writer = Writer(self._database)
        self._exact_below = exact_below
        self._embedders: dict[str, sql.EmbedderRow] = {}
        # leases are of this object: two clients that share it do not share their leases
        self._owner = secrets.token_bytes(16)
        self._calls = count()
        self._running: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"PostgresStore({self._address.public!r})"

    async def open(self) -> None:
        """Connect, and bring the tables up to date.

        Raises
        ------
        StoreError
            The server cannot be reached, lacks pgvector, refuses the user, or holds tables of a
            newer version.
        MissingDependencyError
            asyncpg is not installed.
        """
        await self._database.open()
        await self._database.run(leasing.drop_stale)

    async def close(self) -> None:
        """Finish what was begun and let go of all connections."""
        await self._writer.drain()
        mine = [t for t in self._running if t.get_loop() is asyncio.get_running_loop()]
        if mine:
            await asyncio.wait(mine)
        await self._database.close()

    def pool(self, embedder: str) -> Index:
        """Return the pool of an embedder, which lives in this store."""
        return PostgresPool(self, self._database, embedder, exact_below=self._exact_below)

    async def describe(self, scope: bytes, facts: Mapping[str, Any]) -> None:
        """Note what a scope is."""
        await self._database.run(partial(sql.describe, scope=scope, facts=facts))

    async def count(self, scope: bytes) -> int:
        """Return how many texts have a prediction of this scope."""
        return await self._database.run(partial(sql.count, scope=scope))

    async def forget(self, *, model: str | None = None, scope: bytes | None = None) -> int:
        """Drop the predictions of a model, or of a scope."""
        return await self._database.run(partial(sql.forget, model=model, scope=scope))

    async def get_predictions(self, keys: Sequence[bytes]) -> list[Prediction | None]:
        """Return the stored prediction of each key."""
        found: dict[bytes, Prediction] = {}
        for start in range(0, len(keys), _CHUNK):
            part = keys[start : start + _CHUNK]
            found |= await self._database.run(partial(sql.select_predictions, keys=part))
        return [found.get(key) for key in keys]

    async def put_predictions(self, rows: Sequence[StoredPrediction]) -> list[Prediction]:
        """Store predictions; returns what stands: the first one stored under a key wins."""
        return await self._writer.put(rows)

    async def get_vectors(
        self, embedder: str, hashes: Sequence[bytes]
    ) -> list[NDArray[np.float16] | None]:
        """Return the stored embedding of each text."""
        known = await self.embedder(embedder)
        found: list[NDArray[np.float16] | None] = []
        if known is None:
            return [None] * len(hashes)
        for start in range(0, len(hashes), _CHUNK):
            part = hashes[start : start + _CHUNK]
            found += await self._database.run(
                partial(sql.select_vectors, embedder=known, hashes=part)
            )
        return found

    async def put_vectors(
        self, embedder: str, hashes: Sequence[bytes], vectors: NDArray[np.float16]
    ) -> None:
        """Store embeddings where there are none yet; one that is there stays."""
        if not len(hashes):
            return
        known = await self.require_embedder(embedder, vectors.shape[1])
        for start in range(0, len(hashes), _CHUNK):
            part = slice(start, start + _CHUNK)
            await self.finish(
                self._database.run(
                    partial(
                        sql.insert_vectors,
                        embedder=known.id,
                        hashes=hashes[part],
                        vectors=vectors[part],
                    )
                )
            )

    async def put_batch(self, batch: StoredBatch, owner: bytes, seconds: float) -> None:
        """Note a batch that is about to be created, held by `owner`."""
        work = partial(batches.insert, batch=batch, owner=owner, seconds=seconds)
        await self.finish(self._database.run(work))

    async def claim_batch(self, batch: bytes, owner: bytes, seconds: float) -> bool:
        """Hold an open batch that nobody else holds; False: somebody does, or it has ended."""
        work = partial(batches.claim, batch=batch, owner=owner, seconds=seconds)
        return await self._database.run(work)

    async def note_batch(self, batch: bytes, remote_id: str) -> None:
        """Note the provider's id of a batch."""
        work = partial(batches.note, batch=batch, remote_id=remote_id)
        await self.finish(self._database.run(work))

    async def end_batch(self, batch: bytes, outcome: str, usage: Usage) -> bool:
        """End a batch; False: it had ended already, and what is stored stays."""
        # of this call alone: a repetition after a connection broke is told from a second end
        once = secrets.token_bytes(16)
        work = partial(batches.end, batch=batch, outcome=outcome, usage=usage, owner=once)
        return await self.finish(self._database.run(work))

    async def batches(
        self, scope: bytes | None = None, *, ended: bool = False
    ) -> list[StoredBatch]:
        """Return the open batches (of a scope), oldest first; `ended`: all there ever were."""
        return await self._database.run(partial(batches.select, scope=scope, ended=ended))

    async def scopes(self) -> list[tuple[bytes, dict[str, Any]]]:
        """Return each scope and its facts."""
        return await self._database.run(paging.all_scopes)

    async def embedders(self) -> list[tuple[str, int]]:
        """Return name and dimension of each embedder that vectors are stored of."""
        return await self._database.run(paging.all_embedders)

    async def predictions(self, after: bytes = b"", count: int = 1_000) -> list[StoredPrediction]:
        """Return the next `count` predictions after a key; fewer: there are no more."""
        return await self._database.run(
            partial(paging.page_of_predictions, after=after, count=count)
        )

    async def vectors(
        self, embedder: str, after: bytes = b"", count: int = 1_000
    ) -> list[tuple[bytes, NDArray[np.float16]]]:
        """Return the next `count` vectors after a text's hash; fewer: there are no more."""
        known = await self.embedder(embedder)
        if known is None:
            return []
        return await self._database.run(
            partial(paging.page_of_vectors, embedder=known, after=after, count=count)
        )

    async def lease(self, keys: Sequence[bytes], seconds: float) -> list[bool]:
        """Ask to be the only one who asks for these predictions.

        Returns
        -------
        list of bool
            True: nobody else will ask before so many seconds have passed. False: somebody else
            does, or has: look again for the prediction.
        """
        mine = await self._database.run(
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
        """Hold leases for so many seconds from now; False: it ran out and was taken or ended."""
        mine = await self._database.run(
            partial(leasing.renew, keys=keys, owner=self._owner, seconds=seconds)
        )
        return [key in mine for key in keys]

    async def release(self, keys: Sequence[bytes]) -> None:
        """End leases without an answer; `put_predictions` ends those that have one."""
        await self._database.run(partial(leasing.release, keys=keys, owner=self._owner))

    async def embedder(self, name: str) -> sql.EmbedderRow | None:
        """Return what is known of an embedder; its counts may be old."""
        known = self._embedders.get(name)
        if known is None:
            known = await self._database.run(partial(sql.select_embedder, name=name))
            if known is not None:
                self._embedders[name] = known
        return known

    async def require_embedder(self, name: str, dim: int) -> sql.EmbedderRow:
        """Return an embedder, whose tables are made where it is new.

        Raises
        ------
        StoreError
            The store holds vectors of another dimension under this name.
        """
        known = await self.embedder(name)
        if known is None:
            if not 1 <= dim <= MAX_DIM:
                raise EmbeddingError(
                    f"the embedder {name!r} gives vectors of dimension {dim}; pgvector stores 1 to "
                    f"{MAX_DIM}"
                )
            await self._database.run(partial(create_texts, name=name, dim=dim))
            known = await self.embedder(name)
        if known is None:
            raise StoreError(f"the embedder {name!r} vanished from {self._address.public}")
        known.require(dim)
        return known

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a change to its end, also when the caller is cancelled."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()
