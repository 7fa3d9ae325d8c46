"""What a store keeps of a batch, so that any process can read its answers."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from testnuc.errors import InvalidInputError, StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from testnuc.labels import LabelSet
    from testnuc.protocols import StoredBatch, StoredPrediction, Task, WireProvider
    from testnuc.types import Prediction, Usage

__all__ = ["BatchStore", "Item", "Wanted", "facts_of", "pack", "require_batches", "unpack"]

_COUNT = struct.Struct("<I")
_WANTED = struct.Struct("<16s16sI")


class Wanted(NamedTuple):
    """One prediction that a request is to bring."""

    key: bytes
    text_hash: bytes
    sample: int


#: What one request asks for: one prediction for each of its texts, in their order.
Item = tuple[Wanted, ...]


@runtime_checkable
class BatchStore(Protocol):
    """A store that remembers batches; all of testnuc's own do.

    A batch is *open* until it has ended. An open batch without a remote id is held by whoever
    creates it, or looks for it, and for so many seconds only.
    """

    async def put_batch(self, batch: StoredBatch, owner: bytes, seconds: float) -> None:
        """Note a batch that is about to be created, held by `owner`."""

    async def claim_batch(self, batch: bytes, owner: bytes, seconds: float) -> bool:
        """Hold an open batch that nobody else holds; False: somebody does, or it has ended."""

    async def note_batch(self, batch: bytes, remote_id: str) -> None:
        """Note the provider's id of a batch."""

    async def end_batch(self, batch: bytes, outcome: str, usage: Usage) -> bool:
        """End a batch; False: it had ended already, and what is stored stays."""

    async def batches(
        self, scope: bytes | None = None, *, ended: bool = False
    ) -> list[StoredBatch]:
        """Return the open batches (of a scope), oldest first; `ended`: all there ever were."""

    async def get_predictions(self, keys: Sequence[bytes]) -> list[Prediction | None]:
        """Return the stored prediction of each key."""

    async def put_predictions(self, rows: Sequence[StoredPrediction]) -> list[Prediction]:
        """Store predictions; the first one under a key wins."""


def require_batches(store: object) -> BatchStore:
    """Return the store, if it can remember batches.

    Raises
    ------
    InvalidInputError
        It cannot.
    """
    if isinstance(store, BatchStore):
        return store
    raise InvalidInputError(
        f"lane='batch' needs a store that remembers batches, and {type(store).__name__} has no "
        "put_batch, claim_batch, note_batch, end_batch and batches; give store='path.db' or "
        "'postgresql://..', or implement testnuc.batch.BatchStore"
    )


def pack(items: Sequence[Item]) -> bytes:
    """Return items as a store keeps them."""
    parts = []
    for item in items:
        parts.append(_COUNT.pack(len(item)))
        parts += [_WANTED.pack(*wanted) for wanted in item]
    return b"".join(parts)


def unpack(stored: bytes) -> tuple[Item, ...]:
    """Return the items that were stored.

    Raises
    ------
    StoreError
        They are damaged.
    """
    items: list[Item] = []
    at = 0
    try:
        while at < len(stored):
            (count,) = _COUNT.unpack_from(stored, at)
            at += _COUNT.size
            stop = at + count * _WANTED.size
            items.append(tuple(map(Wanted._make, _WANTED.iter_unpack(stored[at:stop]))))
            if len(items[-1]) != count:
                raise StoreError("a stored batch is damaged: it is cut short")
            at = stop
    except struct.error as exc:
        raise StoreError(f"a stored batch is damaged: {exc}") from exc
    return tuple(items)


def facts_of(provider: WireProvider, labels: LabelSet, task: Task) -> Mapping[str, Any]:
    """Return what it takes to read the answers of a batch without its client."""
    return {
        "provider": provider.name,
        "model": provider.model,
        "base_url": provider.identity,
        "labels": list(labels.names),
        "none_label": labels.none_label,
        "confidence": task.confidence,
    }
