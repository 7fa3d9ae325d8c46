"""The embedded store: one SQLite file, its index beside it."""

from __future__ import annotations

from testnuc.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
