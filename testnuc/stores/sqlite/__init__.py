"""The SQLite store: one database file, with the vector index in files beside it."""

from __future__ import annotations

from testnuc.stores.sqlite.store import SqliteStore, answered_texts

__all__ = ["SqliteStore", "answered_texts"]
