"""The store of one host: predictions, vectors and pools in one SQLite file."""

from __future__ import annotations

import os
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from testnuc.errors import InvalidInputError
from testnuc.stores.sqlite import batch_queries as batches
from testnuc.stores.sqlite import export_queries as paging
from testnuc.stores.sqlite import queries as sql
from testnuc.stores.sqlite.database import SQLiteDatabase
from testnuc.stores.sqlite.pool import SqlitePool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray

    from testnuc.protocols import Index, StoredBatch, StoredPrediction
    from testnuc.types import Prediction, Usage

__all__ = ["SqliteStore"]

#: Vectors written in one transaction: others that write wait for it.
_CHUNK = 2_000


class SqliteStore:
    """Predictions, embeddings and the pool in one SQLite file.

    Several processes on one host may use the file at once. What a method has stored outlives the
    process, however it ends.

    Parameters
    ----------
    path : str or path
        The file; made where there is none. Its folder must exist, on a disk of this host.
    synchronous : {"normal", "full"}
        What a loss of power may cost: what the system had not written to the disk yet ("normal"),
        or nothing ("full", which waits for the disk at every commit). The file stays sound in both.

    Notes
    -----
    Nothing is opened before it is used, and a store that was closed opens again when it is used:
    one object may serve several clients.
    """

    durable = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Literal["normal", "full"] = "normal",
    ) -> None:
        given = os.fspath(path)
        if not isinstance(given, str) or not given or given == ":memory:":
            raise InvalidInputError(
                f"the path of the store is {given!r}; give the path of a file, or store=None for "
                "a store in memory"
            )
        if synchronous not in {"normal", "full"}:
            raise InvalidInputError(f"synchronous is {synchronous!r}; choose from normal, full")
        #: The file, wherever the process may go.
        self.path = Path(given).absolute()
        self._database = SQLiteDatabase(str(self.path), synchronous=synchronous)

    def __repr__(self) -> str:
        return f"SqliteStore({str(self.path)!r})"

    async def open(self) -> None:
        """Make the file if there is none, and bring it up to date.

        Raises
        ------
        StoreError
            The file is damaged, another program's, read-only or of a newer version; nothing was
            changed.
        """
        await self._database.open()

    async def close(self) -> None:
        """Finish what was begun and let go of the file."""
        await self._database.close()

    def pool(self, embedder: str) -> Index:
        """Return the pool of an embedder, which lives in this store."""
        digest = blake2b(embedder.encode(), digest_size=8).hexdigest()
        return SqlitePool(self._database, embedder, Path(f"{self.path}.index") / digest)

    async def describe(self, scope: bytes, facts: Mapping[str, Any]) -> None:
        """Note what a scope is."""
        await self._database.write(lambda c: sql.describe(c, scope, facts))

    async def count(self, scope: bytes) -> int:
        """Return how many texts have a prediction of this scope."""
        found: int = await self._database.read(
            lambda c: c.execute(
                "SELECT count(DISTINCT text) FROM predictions "
                "WHERE scope = (SELECT id FROM scopes WHERE scope = ?)",
                (scope,),
            ).fetchone()[0]
        )
        return found

    async def forget(self, *, model: str | None = None, scope: bytes | None = None) -> int:
        """Drop the predictions of a model, or of a scope."""
        return await self._database.write(lambda c: sql.forget(c, model, scope))

    async def get_predictions(self, keys: Sequence[bytes]) -> list[Prediction | None]:
        """Return the stored prediction of each key."""
        return await self._database.read(lambda c: sql.select_predictions(c, keys))

    async def put_predictions(self, rows: Sequence[StoredPrediction]) -> list[Prediction]:
        """Store predictions; returns what stands: the first one stored under a key wins."""
        return await self._database.write(lambda c: sql.insert_predictions(c, rows))

    async def get_vectors(
        self, embedder: str, hashes: Sequence[bytes]
    ) -> list[NDArray[np.float16] | None]:
        """Return the stored embedding of each text."""
        return await self._database.read(lambda c: sql.select_vectors(c, embedder, hashes))

    async def put_vectors(
        self, embedder: str, hashes: Sequence[bytes], vectors: NDArray[np.float16]
    ) -> None:
        """Store embeddings where there are none yet; one that is there stays."""
        for start in range(0, len(hashes), _CHUNK):
            part = slice(start, start + _CHUNK)
            await self._database.write(
                partial(
                    sql.insert_vectors,
                    embedder=embedder,
                    hashes=hashes[part],
                    vectors=vectors[part],
                )
            )

    async def put_batch(self, batch: StoredBatch, owner: bytes, seconds: float) -> None:
        """Note a batch that is about to be created, held by `owner`."""
        await self._database.write(lambda c: batches.insert(c, batch, owner, seconds))

    async def claim_batch(self, batch: bytes, owner: bytes, seconds: float) -> bool:
        """Hold an open batch that nobody else holds; False: somebody does, or it has ended."""
        return await self._database.write(lambda c: batches.claim(c, batch, owner, seconds))

    async def note_batch(self, batch: bytes, remote_id: str) -> None:
        """Note the provider's id of a batch."""
        await self._database.write(lambda c: batches.note(c, batch, remote_id))

    async def end_batch(self, batch: bytes, outcome: str, usage: Usage) -> bool:
        """End a batch; False: it had ended already, and what is stored stays."""
        return await self._database.write(lambda c: batches.end(c, batch, outcome, usage))

    async def batches(
        self, scope: bytes | None = None, *, ended: bool = False
    ) -> list[StoredBatch]:
        """Return the open batches (of a scope), oldest first; `ended`: all there ever were."""
        return await self._database.read(lambda c: batches.select(c, scope, ended=ended))

    async def scopes(self) -> list[tuple[bytes, dict[str, Any]]]:
        """Return each scope and its facts."""
        return await self._database.read(paging.all_scopes)

    async def embedders(self) -> list[tuple[str, int]]:
        """Return name and dimension of each embedder that vectors are stored of."""
        return await self._database.read(paging.all_embedders)

    async def predictions(self, after: bytes = b"", count: int = 1_000) -> list[StoredPrediction]:
        """Return the next `count` predictions after a key; fewer: there are no more."""
        return await self._database.read(lambda c: paging.page_of_predictions(c, after, count))

    async def vectors(
        self, embedder: str, after: bytes = b"", count: int = 1_000
    ) -> list[tuple[bytes, NDArray[np.float16]]]:
        """Return the next `count` vectors after a text's hash; fewer: there are no more."""
        return await self._database.read(
            lambda c: paging.page_of_vectors(c, embedder, after, count)
        )
