"""A store in this process's memory: predictions last as long as the client."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray

    from testnuc.protocols import StoredBatch, StoredPrediction
    from testnuc.types import Prediction, Usage

__all__ = ["MemoryStore"]


class MemoryStore:
    """Predictions and batches in a dict each.

    Embeddings are not kept here: the pool holds those of its texts, and an embedding costs no call.
    """

    durable = False

    def __init__(self) -> None:
        self._rows: dict[bytes, StoredPrediction] = {}
        self._facts: dict[bytes, dict[str, Any]] = {}
        self._batches: dict[bytes, StoredBatch] = {}
        #: Who holds a batch, and until when.
        self._holders: dict[bytes, tuple[bytes, float]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> list[StoredPrediction]:
        """Return all that is stored."""
        return list(self._rows.values())

    async def open(self) -> None:
        """Do nothing: memory is ready."""

    async def close(self) -> None:
        """Keep everything: a store that was given to several clients outlives each of them."""

    def pool(self, embedder: str) -> None:
        """Return None: the client keeps its own pool."""
        del embedder

    async def describe(self, scope: bytes, facts: Mapping[str, Any]) -> None:
        """Note what a scope is."""
        self._facts[scope] = dict(facts)

    async def count(self, scope: bytes) -> int:
        """Return how many texts have a prediction of this scope."""
        return len({row.text_hash for row in self._rows.values() if row.scope == scope})

    async def forget(self, *, model: str | None = None, scope: bytes | None = None) -> int:
        """Drop the predictions of a model, or of a scope."""
        gone = [
            row.key
            for row in self._rows.values()
            if row.scope == scope
            or (model is not None and self._facts.get(row.scope, {}).get("model") == model)
        ]
        for key in gone:
            del self._rows[key]
        return len(gone)

    async def get_predictions(self, keys: Sequence[bytes]) -> list[Prediction | None]:
        """Return the stored prediction of each key."""
        get = self._rows.get
        return [None if (row := get(key)) is None else row.prediction for key in keys]

    async def put_predictions(self, rows: Sequence[StoredPrediction]) -> list[Prediction]:
        """Store predictions; the first one under a key wins."""
        keep = self._rows.setdefault
        return [keep(row.key, row).prediction for row in rows]

    async def get_vectors(
        self, embedder: str, hashes: Sequence[bytes]
    ) -> list[NDArray[np.float16] | None]:
        """Return None for each text."""
        del embedder
        return [None] * len(hashes)

    async def put_vectors(
        self, embedder: str, hashes: Sequence[bytes], vectors: NDArray[np.float16]
    ) -> None:
        """Keep nothing."""

    async def put_batch(self, batch: StoredBatch, owner: bytes, seconds: float) -> None:
        """Note a batch that is about to be created."""
        self._batches.setdefault(batch.id, batch)
        await self.claim_batch(batch.id, owner, seconds)

    async def claim_batch(self, batch: bytes, owner: bytes, seconds: float) -> bool:
        """Hold an open batch that nobody else holds."""
        found = self._batches.get(batch)
        if found is None or found.outcome is not None:
            return False
        holder, until = self._holders.get(batch, (owner, 0.0))
        if holder != owner and until > time.monotonic():
            return False
        self._holders[batch] = owner, time.monotonic() + seconds
        return True

    async def note_batch(self, batch: bytes, remote_id: str) -> None:
        """Note the provider's id of a batch."""
        self._batches[batch] = replace(self._batches[batch], remote_id=remote_id)

    async def end_batch(self, batch: bytes, outcome: str, usage: Usage) -> bool:
        """End a batch; False: it had ended already."""
        found = self._batches.get(batch)
        if found is None or found.outcome is not None:
            return False
        self._batches[batch] = replace(found, items=b"", outcome=outcome, usage=usage)
        return True

    async def batches(
        self, scope: bytes | None = None, *, ended: bool = False
    ) -> list[StoredBatch]:
        """Return the open batches, oldest first; `ended`: all."""
        found = [
            batch
            for batch in self._batches.values()
            if (scope is None or batch.scope == scope) and (ended or batch.outcome is None)
        ]
        return sorted(found, key=lambda batch: (batch.created, batch.id))
