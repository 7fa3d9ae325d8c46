"""Stores: what was paid for, kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testnuc.errors import InvalidInputError

if TYPE_CHECKING:
    import os

    from testnuc.protocols import Store

__all__ = ["resolve"]


def resolve(store: str | os.PathLike[str] | Store | None) -> Store:
    """Return the store that None (memory) means, or the object itself."""
    if store is None:
        from testnuc.stores.memory import MemoryStore

        return MemoryStore()
    if not callable(getattr(store, "get_predictions", None)):
        raise InvalidInputError(
            f"store is {store!r}; give None (memory) or an object that implements "
            "testnuc.protocols.Store"
        )
    return store  # type: ignore[return-value]
