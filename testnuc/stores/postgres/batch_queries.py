"""Queries on batch jobs; every statement is idempotent."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from testnuc.stores.batch_rows import from_row
from testnuc.stores.postgres.queries import from_text, to_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testnuc.protocols import StoredBatch
    from testnuc.types import Usage

__all__ = ["claim", "end", "insert", "note", "select"]


async def insert(connection: Any, batch: StoredBatch, owner: bytes, seconds: float) -> None:
    """Insert a batch, leased by `owner`."""
    await connection.execute(
        "INSERT INTO batches (id, scope, facts, requests, created, items, owner, until) "
        "VALUES ($1, $2, $3, $4, $5, $6, $7, clock_timestamp() + make_interval(secs => $8)) "
        "ON CONFLICT DO NOTHING",
        batch.id,
        batch.scope,
        # JSON escapes NUL, which PostgreSQL cannot store
        orjson.dumps(dict(batch.facts)).decode(),
        batch.requests,
        batch.created,
        batch.items,
        owner,
        seconds,
    )


async def claim(connection: Any, batch: bytes, owner: bytes, seconds: float) -> bool:
    """Take or extend the lease of an open batch; False if it is leased or has ended."""
    found = await connection.fetchval(
        "UPDATE batches SET owner = $2, until = clock_timestamp() + make_interval(secs => $3) "
        "WHERE id = $1 AND outcome IS NULL AND (owner = $2 OR until <= clock_timestamp()) "
        "RETURNING true",
        batch,
        owner,
        seconds,
    )
    return found is not None


async def note(connection: Any, batch: bytes, remote_id: str) -> None:
    """Store the provider's id of a batch."""
    await connection.execute(
        "UPDATE batches SET remote = $2 WHERE id = $1", batch, to_text(remote_id)
    )


async def end(connection: Any, batch: bytes, outcome: str, usage: Usage, owner: bytes) -> bool:
    """Mark a batch as ended; True for repeated calls of the owner that ended it."""
    found = await connection.fetchval(
        "UPDATE batches SET outcome = $2, usage = $3, items = ''::bytea, owner = $4 "
        "WHERE id = $1 AND (outcome IS NULL OR owner = $4) RETURNING true",
        batch,
        to_text(outcome),
        orjson.dumps(usage).decode(),
        owner,
    )
    return found is not None


async def select(connection: Any, scope: bytes | None, *, ended: bool) -> list[StoredBatch]:
    """Return the batches, oldest first."""
    rows = await connection.fetch(
        "SELECT id, scope, facts, requests, created, items, remote, outcome, usage FROM batches "
        "WHERE ($1::bytea IS NULL OR scope = $1) AND ($2 OR outcome IS NULL) ORDER BY created, id",
        scope,
        ended,
    )
    return [_batch(row) for row in rows]


def _batch(row: Sequence[Any]) -> StoredBatch:
    batch = from_row(row)
    return replace(batch, remote_id=from_text(batch.remote_id), outcome=from_text(batch.outcome))
