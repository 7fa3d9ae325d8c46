"""The in-memory store."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from testnuc._base.arrays import Float16s
from testnuc.protocols import Store, StoredBatch, StoredPrediction
from testnuc.types import Prediction, Usage


class MemoryStore(Store):
    """Stores predictions and batches in dicts; methods beyond `Store` are those of `SqlStore`.

    Embeddings are not stored: the pool holds the vectors of its texts, and embedding a text takes
    no LLM call.
    """

    durable = False

    def __init__(self) -> None:
        self._rows: dict[bytes, StoredPrediction] = {}
        #: Scope -> hashes of the texts with a prediction.
        self._predicted: dict[bytes, set[bytes]] = {}
        self._facts: dict[bytes, dict[str, Any]] = {}
        self._learned: dict[bytes, bytes] = {}
        self._batches: dict[bytes, StoredBatch] = {}
        #: Batch id -> owner and expiry of its lease.
        self._leases: dict[bytes, tuple[bytes, float]] = {}

    def rows(self) -> list[StoredPrediction]:
        """Return all stored predictions."""
        return list(self._rows.values())

    async def open(self) -> None:
        """Do nothing: memory needs no opening."""

    async def close(self) -> None:
        """Do nothing: several clients can share the store, and each closes it."""

    def pool(self, embedder: str) -> None:
        """Return None: the client creates a pool in memory."""
        del embedder

    async def describe(self, scope: bytes, facts: Mapping[str, Any]) -> None:
        self._facts[scope] = dict(facts)

    async def count(self, scope: bytes) -> int:
        return len(self._predicted.get(scope, ()))

    async def predicted(self, scope: bytes) -> list[bytes]:
        return list(self._predicted.get(scope, ()))

    async def forget(self, *, model: str | None = None, scope: bytes | None = None) -> int:
        gone = [
            row.key
            for row in self._rows.values()
            if row.scope == scope
            or (model is not None and self._facts.get(row.scope, {}).get("model") == model)
        ]
        for key in gone:
            self._predicted.pop(self._rows.pop(key).scope, None)
        return len(gone)

    async def get_predictions(self, keys: Sequence[bytes]) -> list[Prediction | None]:
        get = self._rows.get
        return [None if (row := get(key)) is None else row.prediction for key in keys]

    async def put_predictions(self, rows: Sequence[StoredPrediction]) -> list[Prediction]:
        for row in rows:
            # the first row under a key stays
            kept = self._rows.setdefault(row.key, row)
            self._predicted.setdefault(kept.scope, set()).add(kept.text_hash)
        return [self._rows[row.key].prediction for row in rows]

    async def get_vectors(self, embedder: str, hashes: Sequence[bytes]) -> list[Float16s | None]:
        """Return None for each text."""
        del embedder
        return [None] * len(hashes)

    async def put_vectors(self, embedder: str, hashes: Sequence[bytes], vectors: Float16s) -> None:
        """Do nothing: embeddings are not stored."""

    async def swap_learned(self, scope: bytes, before: bytes | None, data: bytes) -> bool:
        if self._learned.get(scope) != before:
            return False
        self._learned[scope] = data
        return True

    async def get_learned(self, scope: bytes) -> bytes | None:
        return self._learned.get(scope)

    async def drop_learned(self, scope: bytes) -> None:
        self._learned.pop(scope, None)

    async def put_batch(self, batch: StoredBatch, owner: bytes, seconds: float) -> None:
        self._batches.setdefault(batch.id, batch)
        await self.claim_batch(batch.id, owner, seconds)

    async def claim_batch(self, batch: bytes, owner: bytes, seconds: float) -> bool:
        found = self._batches.get(batch)
        if found is None or found.outcome is not None:
            return False
        holder, until = self._leases.get(batch, (owner, 0.0))
        if holder != owner and until > time.monotonic():
            return False
        self._leases[batch] = owner, time.monotonic() + seconds
        return True

    async def note_batch(self, batch: bytes, remote_id: str) -> None:
        self._batches[batch] = replace(self._batches[batch], remote_id=remote_id)

    async def end_batch(self, batch: bytes, outcome: str, usage: Usage) -> bool:
        found = self._batches.get(batch)
        if found is None or found.outcome is not None:
            return False
        self._batches[batch] = replace(found, items=b"", outcome=outcome, usage=usage)
        return True

    async def batches(
        self, scope: bytes | None = None, *, ended: bool = False
    ) -> list[StoredBatch]:
        found = [
            batch
            for batch in self._batches.values()
            if (scope is None or batch.scope == scope) and (ended or batch.outcome is None)
        ]
        return sorted(found, key=lambda batch: (batch.created, batch.id))
