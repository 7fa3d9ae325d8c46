"""`SqliteStore`: predictions, embeddings, pools and batches of one host."""

from __future__ import annotations

import os
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from testnuc._base.checks import checked_choice
from testnuc.errors import InvalidInputError
from testnuc.stores.sqlite import batch_queries as batches
from testnuc.stores.sqlite import export_queries as paging
from testnuc.stores.sqlite import queries as sql
from testnuc.stores.sqlite.database import SqliteDatabase
from testnuc.stores.sqlite.pool import SqlitePool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray

    from testnuc.protocols import Index, StoredBatch, StoredPrediction
    from testnuc.types import Prediction, Usage

__all__ = ["SqliteStore"]

#: Vectors per transaction; bounds how long other writers wait.
_CHUNK = 2_000


class SqliteStore:
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

    Raises
    ------
    InvalidInputError
        An argument is invalid.

    Notes
    -----
    The file is opened on first use, and again on first use after `close`: several clients can share
    one object.
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
                f"the path of the store is {given!r}; use the path of a file, or store=None for "
                "a store in memory"
            )
        checked_choice("synchronous", synchronous, ("normal", "full"))
        #: Absolute path of the file.
        self.path = Path(given).absolute()
        self.database = SqliteDatabase(str(self.path), synchronous=synchronous)

    def __repr__(self) -> str:
        return f"SqliteStore({str(self.path)!r})"

    async def open(self) -> None:
        """Create the file if missing, and apply pending migrations.

        Raises
        ------
        StoreError
            The file is corrupt, read-only, of another program or of a newer version of testnuc; it
            was not changed.
        """
        await self.database.open()

    async def close(self) -> None:
        """Complete pending work and close the file."""
        await self.database.close()

    def pool(self, embedder: str) -> Index:
        """Return the pool of an embedder."""
        digest = blake2b(embedder.encode(), digest_size=8).hexdigest()
        return SqlitePool(self.database, embedder, Path(f"{self.path}.index") / digest)

    async def describe(self, scope: bytes, facts: Mapping[str, Any]) -> None:
        """Store the metadata of a scope."""
        await self.database.write(lambda c: sql.describe(c, scope, facts))

    async def count(self, scope: bytes) -> int:
        """Return the number of texts with a prediction in this scope."""
        found: int = await self.database.read(
            lambda c: c.execute(
                "SELECT count(DISTINCT text) FROM predictions "
                "WHERE scope = (SELECT id FROM scopes WHERE scope = ?)",
                (scope,),
            ).fetchone()[0]
        )
        return found

    async def predicted(self, scope: bytes) -> list[bytes]:
        """Return the hashes of the texts with a prediction in this scope."""
        return await self.database.read(lambda c: sql.predicted(c, scope))

    async def forget(self, *, model: str | None = None, scope: bytes | None = None) -> int:
        """Delete the predictions of a model, or of a scope; returns their number."""
        return await self.database.write(lambda c: sql.forget(c, model, scope))

    async def get_predictions(self, keys: Sequence[bytes]) -> list[Prediction | None]:
        """Return the stored prediction for each key; None if missing."""
        return await self.database.read(lambda c: sql.select_predictions(c, keys))

    async def put_predictions(self, rows: Sequence[StoredPrediction]) -> list[Prediction]:
        """Store predictions; the first one under a key wins. Returns the stored ones."""
        return await self.database.write(lambda c: sql.insert_predictions(c, rows))

    async def get_vectors(
        self, embedder: str, hashes: Sequence[bytes]
    ) -> list[NDArray[np.float16] | None]:
        """Return the stored embedding of each text, float16[dim]; None if missing."""
        return await self.database.read(lambda c: sql.select_vectors(c, embedder, hashes))

    async def put_vectors(
        self, embedder: str, hashes: Sequence[bytes], vectors: NDArray[np.float16]
    ) -> None:
        """Store embeddings, float16[len(hashes), dim]; existing ones are not changed."""
        for start in range(0, len(hashes), _CHUNK):
            part = slice(start, start + _CHUNK)
            await self.database.write(
                partial(
                    sql.insert_vectors,
                    embedder=embedder,
                    hashes=hashes[part],
                    vectors=vectors[part],
                )
            )

    async def put_learned(self, scope: bytes, data: bytes) -> None:
        """Store what was learned, in place of what was there."""
        await self.database.write(lambda c: sql.put_learned(c, scope, data))

    async def get_learned(self, scope: bytes) -> bytes | None:
        """Return what was learned; None if nothing was."""
        return await self.database.read(lambda c: sql.get_learned(c, scope))

    async def drop_learned(self, scope: bytes) -> None:
        """Delete what was learned."""
        await self.database.write(lambda c: sql.put_learned(c, scope, None))

    async def put_batch(self, batch: StoredBatch, owner: bytes, seconds: float) -> None:
        """Store a batch that is about to be submitted, leased by `owner`."""
        await self.database.write(lambda c: batches.insert(c, batch, owner, seconds))

    async def claim_batch(self, batch: bytes, owner: bytes, seconds: float) -> bool:
        """Take or extend the lease of an open batch; False if it is leased or has ended."""
        return await self.database.write(lambda c: batches.claim(c, batch, owner, seconds))

    async def note_batch(self, batch: bytes, remote_id: str) -> None:
        """Store the provider's id of a batch."""
        await self.database.write(lambda c: batches.note(c, batch, remote_id))

    async def end_batch(self, batch: bytes, outcome: str, usage: Usage) -> bool:
        """Mark a batch as ended; False if it had ended already (nothing is changed then)."""
        return await self.database.write(lambda c: batches.end(c, batch, outcome, usage))

    async def batches(
        self, scope: bytes | None = None, *, ended: bool = False
    ) -> list[StoredBatch]:
        """Return the open batches (of a scope), oldest first; `ended` includes ended ones."""
        return await self.database.read(lambda c: batches.select(c, scope, ended=ended))

    async def scopes(self) -> list[tuple[bytes, dict[str, Any]]]:
        """Return all scopes and their metadata."""
        return await self.database.read(paging.all_scopes)

    async def embedders(self) -> list[tuple[str, int]]:
        """Return the name and dimension of each embedder in the store."""
        return await self.database.read(paging.all_embedders)

    async def learned(self) -> list[tuple[bytes, bytes]]:
        """Return all that was learned, with its key."""
        return await self.database.read(paging.all_learned)

    async def predictions(self, after: bytes = b"", count: int = 1_000) -> list[StoredPrediction]:
        """Return up to `count` predictions after a key, ordered by key; empty at the end."""
        return await self.database.read(lambda c: paging.page_of_predictions(c, after, count))

    async def vectors(
        self, embedder: str, after: bytes = b"", count: int = 1_000
    ) -> list[tuple[bytes, NDArray[np.float16]]]:
        """Return up to `count` vectors after a text hash, ordered by hash; empty at the end."""
        return await self.database.read(lambda c: paging.page_of_vectors(c, embedder, after, count))
