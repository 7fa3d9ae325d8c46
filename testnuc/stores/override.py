"""A store whose pool is kept elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from testnuc.protocols import Index, Store

__all__ = ["with_pool"]


class _WithPool:
    def __init__(self, store: Store, pool: Index) -> None:
        self._store = store
        self._pool = pool

    def pool(self, embedder: str) -> Index:
        del embedder
        return self._pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def with_pool(store: Store, pool: Index) -> Store:
    """Return the store for predictions and embeddings, with a pool that is not its own.

    For a client whose neighbors are to be the texts that it was given, whatever else the store's
    own pool has come to hold.
    """
    return cast("Store", _WithPool(store, pool))
