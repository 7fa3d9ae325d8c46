"""Queries on batch jobs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import orjson

from testnuc.stores.batch_rows import from_row

if TYPE_CHECKING:
    import sqlite3

    from testnuc.protocols import StoredBatch
    from testnuc.types import Usage

__all__ = ["claim", "end", "insert", "note", "select"]


def insert(
    connection: sqlite3.Connection, batch: StoredBatch, owner: bytes, seconds: float
) -> None:
    """Insert a batch, leased by `owner`."""
    connection.execute(
        "INSERT INTO batches (id, scope, facts, requests, created, items, owner, until) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (
            batch.id,
            batch.scope,
            orjson.dumps(dict(batch.facts)).decode(),
            batch.requests,
            batch.created,
            batch.items,
            owner,
            time.time() + seconds,
        ),
    )


def claim(connection: sqlite3.Connection, batch: bytes, owner: bytes, seconds: float) -> bool:
    """Take or extend the lease of an open batch; False if it is leased or has ended."""
    now = time.time()
    done = connection.execute(
        "UPDATE batches SET owner = ?, until = ? "
        "WHERE id = ? AND outcome IS NULL AND (owner = ? OR until <= ?)",
        (owner, now + seconds, batch, owner, now),
    )
    return done.rowcount == 1


def note(connection: sqlite3.Connection, batch: bytes, remote_id: str) -> None:
    """Store the provider's id of a batch."""
    connection.execute("UPDATE batches SET remote = ? WHERE id = ?", (remote_id, batch))


def end(connection: sqlite3.Connection, batch: bytes, outcome: str, usage: Usage) -> bool:
    """Mark a batch as ended; False if it had ended already."""
    done = connection.execute(
        "UPDATE batches SET outcome = ?, usage = ?, items = x'' WHERE id = ? AND outcome IS NULL",
        (outcome, orjson.dumps(usage).decode(), batch),
    )
    return done.rowcount == 1


def select(
    connection: sqlite3.Connection, scope: bytes | None, *, ended: bool
) -> list[StoredBatch]:
    """Return the batches, oldest first."""
    rows = connection.execute(
        "SELECT id, scope, facts, requests, created, items, remote, outcome, usage FROM batches "
        "WHERE (?1 IS NULL OR scope = ?1) AND (?2 OR outcome IS NULL) ORDER BY created, id",
        (scope, ended),
    )
    return [from_row(row) for row in rows]
