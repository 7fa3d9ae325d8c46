"""The shared store: PostgreSQL with pgvector, which many processes use at once."""

from __future__ import annotations

from testnuc.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
