"""Stores: predictions, embeddings and pools in memory, SQLite or PostgreSQL."""

import os

from testnuc.errors import InvalidInputError
from testnuc.protocols import Store

__all__ = ["resolve"]


def resolve(store: str | os.PathLike[str] | Store | None) -> Store:
    """Return the store for the `store` argument of a client.

    None: in memory. ``postgresql://..``: PostgreSQL. Any other string, or a path: SQLite.
    """
    if store is None:
        from testnuc.stores.memory import MemoryStore

        return MemoryStore()
    if isinstance(store, str) and store.startswith(("postgresql://", "postgres://")):
        from testnuc.stores.postgres import PostgresStore

        return PostgresStore(store)
    if isinstance(store, str) and "://" in store:
        # the rest of the URL may contain a password
        raise InvalidInputError(
            f"store is a URL with the unsupported scheme {store.partition('://')[0]!r}; use a path "
            "(SQLite) or postgresql://user@host/database"
        )
    if isinstance(store, str | os.PathLike):
        from testnuc.stores.sqlite import SqliteStore

        return SqliteStore(store)
    if not callable(getattr(store, "get_predictions", None)):
        raise InvalidInputError(
            f"store is {store!r}; use None (memory), a path, postgresql://.., or an object that "
            "implements testnuc.protocols.Store"
        )
    return store
