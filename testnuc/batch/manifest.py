"""The stored record of a batch: any process can decode its results."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from testnuc.errors import InvalidInputError, StoreError
from testnuc.protocols import Store, implements

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from testnuc.labels import LabelSet
    from testnuc.protocols import StoredBatch, Task, WireProvider
    from testnuc.types import Usage

_COUNT = struct.Struct("<I")
_WANTED = struct.Struct("<16s16sI")
#: Bit of a stored sample index: whether the prompt shows some of the labels.
_PARTIAL = 1 << 31


class RequestedPrediction(NamedTuple):
    """One prediction that a request asks for."""

    key: bytes
    text_hash: bytes
    sample: int
    #: Whether the prompt shows some of the labels, so that the answer can be none of them.
    partial: bool = False


#: The predictions of one request, one for each of its texts, in order.
Item = tuple[RequestedPrediction, ...]


@runtime_checkable
class BatchStore(Store, Protocol):
    """A store that supports batches; all of testnuc's own do.

    A batch is *open* until it has ended. An open batch without a remote id is claimed by the
    process that creates it, or searches it at the provider, for a limited time.
    """

    async def put_batch(self, batch: StoredBatch, owner: bytes, seconds: float) -> None:
        """Store a batch that is about to be created, claimed by `owner`."""

    async def claim_batch(self, batch: bytes, owner: bytes, seconds: float) -> bool:
        """Claim an open batch; False if another owner has a claim, or the batch has ended."""

    async def note_batch(self, batch: bytes, remote_id: str) -> None:
        """Store the provider's id of a batch."""

    async def end_batch(self, batch: bytes, outcome: str, usage: Usage) -> bool:
        """End a batch; False if it has ended already, which changes nothing."""

    async def batches(
        self, scope: bytes | None = None, *, ended: bool = False
    ) -> list[StoredBatch]:
        """Return the open batches (of a scope), oldest first; with `ended`, all batches."""


def require_batches(store: object) -> BatchStore:
    """Return the store, if it supports batches; else raise `InvalidInputError`."""
    if implements(store, BatchStore):
        return store
    raise InvalidInputError(
        f"lane='batch' needs a store with the methods put_batch, claim_batch, note_batch, "
        f"end_batch and batches, which {type(store).__name__} lacks; use store='path.db' or "
        "'postgresql://..', or implement testnuc.batch.BatchStore"
    )


def pack(items: Sequence[Item]) -> bytes:
    """Encode items for the store."""
    parts = []
    for item in items:
        parts.append(_COUNT.pack(len(item)))
        parts += [
            _WANTED.pack(key, text_hash, sample | _PARTIAL * partial)
            for key, text_hash, sample, partial in item
        ]
    return b"".join(parts)


def unpack(stored: bytes) -> tuple[Item, ...]:
    """Decode stored items; raises `StoreError` if they are damaged."""
    items: list[Item] = []
    at = 0
    try:
        while at < len(stored):
            (count,) = _COUNT.unpack_from(stored, at)
            at += _COUNT.size
            stop = at + count * _WANTED.size
            items.append(
                tuple(
                    RequestedPrediction(key, text_hash, sample & ~_PARTIAL, bool(sample & _PARTIAL))
                    for key, text_hash, sample in _WANTED.iter_unpack(stored[at:stop])
                )
            )
            if len(items[-1]) != count:
                raise StoreError("a stored batch is damaged: it is truncated")
            at = stop
    except struct.error as exc:
        raise StoreError(f"a stored batch is damaged: {exc}") from exc
    return tuple(items)


def facts_of(provider: WireProvider, labels: LabelSet, task: Task) -> Mapping[str, Any]:
    """Return all that is needed to decode the results of a batch without its client."""
    return {
        "provider": provider.name,
        "model": provider.model,
        "base_url": provider.identity,
        "labels": list(labels.names),
        "none_label": labels.none_label,
        "confidence": task.confidence,
        **({"multilabel": True} if labels.multilabel else {}),
    }
