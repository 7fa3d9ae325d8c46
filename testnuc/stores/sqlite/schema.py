"""The schema and its migrations.

Predictions and vectors are write-once: a second writer reads the stored row. Pool rows are numbered
from 0 in insertion order, equal for every process, and a number is never reused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from testnuc.errors import StoreError

if TYPE_CHECKING:
    import sqlite3

#: "tNUC", the SQLite application id in the header of every store file.
APPLICATION_ID = 0x744E5543

#: ``pool.id`` is the embedder's id, shifted by so many bits, plus the number in its pool. A single
#: integer key needs no separate index, and the rows of one pool are contiguous.
POOL_SHIFT = 40

_COMMENT = re.compile(r"--[^\n]*")

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE scopes (
            id INTEGER PRIMARY KEY,
            scope BLOB NOT NULL UNIQUE,
            facts TEXT NOT NULL          -- JSON: model, labels
        )
        """,
        """
        CREATE TABLE predictions (
            key BLOB PRIMARY KEY,
            scope INTEGER NOT NULL REFERENCES scopes (id),
            text BLOB NOT NULL,          -- hash
            sample INTEGER NOT NULL,
            label TEXT,                  -- NULL: the answer is outside the label set
            confidence REAL,             -- NULL: unknown
            said TEXT                    -- the answer; NULL: equal to the label
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE embedders (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            dim INTEGER NOT NULL,
            size INTEGER NOT NULL DEFAULT 0,      -- numbers assigned in its pool
            removals INTEGER NOT NULL DEFAULT 0,  -- texts removed from its pool
            saved TEXT                            -- JSON: the files of its index
        )
        """,
        """
        CREATE TABLE vectors (
            id INTEGER PRIMARY KEY,
            embedder INTEGER NOT NULL REFERENCES embedders (id),
            hash BLOB NOT NULL,          -- of the text
            vector BLOB NOT NULL,        -- little-endian float16
            UNIQUE (embedder, hash)
        )
        """,
        """
        CREATE TABLE pool (
            id INTEGER PRIMARY KEY,
            vector INTEGER NOT NULL REFERENCES vectors (id),
            text TEXT NOT NULL,
            label TEXT,                  -- known label
            removed INTEGER              -- 1-based removal sequence number; NULL: in the pool
        )
        """,
        "CREATE UNIQUE INDEX pool_vector ON pool (vector) WHERE removed IS NULL",
        "CREATE INDEX pool_removed ON pool (removed) WHERE removed IS NOT NULL",
    ),
    (
        """
        CREATE TABLE batches (
            id BLOB PRIMARY KEY,         -- assigned before the batch is submitted
            scope BLOB NOT NULL,
            facts TEXT NOT NULL,         -- JSON: metadata for decoding the answers
            requests INTEGER NOT NULL,
            created REAL NOT NULL,       -- seconds since the epoch
            items BLOB NOT NULL,         -- keys of each request; empty once it has ended
            remote TEXT,                 -- the provider's id; NULL: not known to be submitted
            outcome TEXT,                -- NULL: open
            usage TEXT,                  -- JSON, once it has ended
            owner BLOB NOT NULL,         -- worker that holds the lease
            until REAL NOT NULL          -- expiry of the lease
        ) WITHOUT ROWID
        """,
        "CREATE INDEX batches_open ON batches (scope) WHERE outcome IS NULL",
    ),
    ("CREATE TABLE learned (scope BLOB PRIMARY KEY, data BLOB NOT NULL)",),
)


def plain(statement: str) -> str:
    """Return a statement without comments and with single spaces."""
    return " ".join(_COMMENT.sub("", statement).split())


def created(version: int) -> set[str]:
    """Return what is in a store of a version, in the form of `plain`."""
    return {plain(statement) for of in MIGRATIONS[:version] for statement in of}


def first_id(embedder: int) -> int:
    """Return the ``pool.id`` of number 0 in an embedder's pool."""
    return embedder << POOL_SHIFT


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Apply pending migrations; concurrent processes wait for the first one."""
    if _version(connection, path) == len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for number in range(_version(connection, path), len(MIGRATIONS)):
            for statement in MIGRATIONS[number]:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection, path: str) -> int:
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if not 0 <= found <= len(MIGRATIONS):
        raise StoreError(
            f"the store {path} has schema version {found}, but this version of testnuc supports "
            f"versions up to {len(MIGRATIONS)}; upgrade testnuc, or use another path"
        )
    return found
