"""The PostgreSQL store: shared by many processes, with pgvector for the pool."""

from __future__ import annotations

from testnuc.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
