"""The tables, and how a file is brought to their newest form.

Content never changes under its name: a prediction or a vector that is stored stays as it is, so
that whoever comes second reads what stands. Rows of the pool are numbered from 0 in the order of
arrival, the same for every process, and a number is not used again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from testnuc.errors import StoreError

if TYPE_CHECKING:
    import sqlite3

__all__ = ["APPLICATION_ID", "POOL_SHIFT", "first_id", "migrate"]

#: "tNUC", in the header of every store: tells our files from those of other programs.
APPLICATION_ID = 0x744E5543

#: ``pool.id`` is the embedder's id, shifted by so many bits, plus the number in its pool: one
#: integer key needs no index beside the table, and the rows of one pool lie together.
POOL_SHIFT = 40

_MIGRATIONS: tuple[tuple[str, ...], ...] = (
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
            label TEXT,                  -- NULL: said something outside the label set
            confidence REAL,             -- NULL: unknown
            said TEXT                    -- NULL: the label, literally
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE embedders (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            dim INTEGER NOT NULL,
            size INTEGER NOT NULL DEFAULT 0,      -- numbers given in its pool
            removals INTEGER NOT NULL DEFAULT 0,  -- texts taken out of its pool
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
            label TEXT,                  -- known from a person
            removed INTEGER              -- the how-manieth removal; NULL: it is in the pool
        )
        """,
        "CREATE UNIQUE INDEX pool_vector ON pool (vector) WHERE removed IS NULL",
        "CREATE INDEX pool_removed ON pool (removed) WHERE removed IS NOT NULL",
    ),
    (
        """
        CREATE TABLE batches (
            id BLOB PRIMARY KEY,         -- ours, known before the provider's
            scope BLOB NOT NULL,
            facts TEXT NOT NULL,         -- JSON: what it takes to read the answers
            requests INTEGER NOT NULL,
            created REAL NOT NULL,       -- seconds since the epoch
            items BLOB NOT NULL,         -- keys of each request; empty once it has ended
            remote TEXT,                 -- the provider's id; NULL: it may have none
            outcome TEXT,                -- NULL: it has not ended
            usage TEXT,                  -- JSON, once it has ended
            owner BLOB NOT NULL,         -- who creates it, or looks for it
            until REAL NOT NULL          -- for how long it is left to the owner
        ) WITHOUT ROWID
        """,
        "CREATE INDEX batches_open ON batches (scope) WHERE outcome IS NULL",
    ),
)


def first_id(embedder: int) -> int:
    """Return the ``pool.id`` of number 0 in an embedder's pool."""
    return embedder << POOL_SHIFT


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Bring the tables to their newest form; one process does it, others wait.

    Raises
    ------
    StoreError
        The file was written by a newer version.
    """
    if _version(connection, path) == len(_MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for number in range(_version(connection, path), len(_MIGRATIONS)):
            for statement in _MIGRATIONS[number]:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection, path: str) -> int:
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if found > len(_MIGRATIONS):
        raise StoreError(
            f"the store {path} has schema {found}, but this version of testnuc knows schemas up "
            f"to {len(_MIGRATIONS)}; upgrade testnuc, or give another path"
        )
    return found
