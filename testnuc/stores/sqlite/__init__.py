"""The SQLite store: one database file, with the vector index in files beside it."""

from testnuc.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
