"""The PostgreSQL store: shared by many processes, with pgvector for the pool."""

from testnuc.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
