"""A store with another pool."""

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
    """Return a view of `store` that uses `pool` instead of the store's own pool.

    Predictions and embeddings still go to `store`. For clients whose neighbors must come from their
    own texts only, not from everything in the store's pool.
    """
    return cast("Store", _WithPool(store, pool))
