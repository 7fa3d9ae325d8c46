"""The schema, its migrations, and checks that a file is a store.

Predictions and vectors are write-once: a second writer reads the stored row. Pool rows are numbered
from 0 in insertion order, equal for every process, and a number is never reused.
"""

import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from sqlite3 import Connection

from testnuc.errors import StoreError
from testnuc.stores.sql_store import migrations

#: "tNUC", the SQLite application id in the header of every store file.
APPLICATION_ID = 0x744E5543

#: ``pool.id`` is the embedder's id, shifted by so many bits, plus the number in its pool. A single
#: integer key needs no separate index, and the rows of one pool are contiguous.
POOL_SHIFT = 40

_COMMENT = re.compile(r"--[^\n]*")

MIGRATIONS = migrations(__package__)


def _plain(statement: str) -> str:
    """Return a statement without comments and with single spaces."""
    return " ".join(_COMMENT.sub("", statement).split())


def migrate(connection: Connection, path: str) -> None:
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


def _version(connection: Connection, path: str) -> int:
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if not 0 <= found <= len(MIGRATIONS):
        raise StoreError(
            f"the store {path} has schema version {found}, but this version of testnuc supports "
            f"versions up to {len(MIGRATIONS)}; upgrade testnuc, or use another path"
        )
    return found


def check_file(path: str) -> None:
    """Raise an error if the path is no store and can be none; opening a file may modify it."""
    file = Path(path)
    if file.is_dir():
        raise StoreError(f"the store {path} is a folder; use the path of a file")
    folder = file.parent
    if not folder.is_dir():
        raise StoreError(
            f"cannot create the store {path}: the folder {folder} does not exist; create it, or "
            "correct the path"
        )
    if file.exists():
        if _application(file) not in {0, APPLICATION_ID}:
            raise _not_a_store(path)
        if not os.access(path, os.W_OK):
            raise read_only(path)
    if not os.access(folder, os.W_OK):
        raise StoreError(
            f"the store {path} is in a read-only folder, but SQLite creates files next to it; copy "
            "the store to a writable folder"
        )


def _application(file: Path) -> int:
    """Return the application id of a database without a lock, and without a change to its files.

    Not by `open`: when a process closes a file, it loses the locks that SQLite holds on it, also
    those of other connections (https://sqlite.org/howtocorrupt.html, 2.2).
    """
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        # else a file that another process is writing, read without a lock, may seem corrupt
        connection.execute("PRAGMA writable_schema = ON")
        return int(connection.execute("PRAGMA application_id").fetchone()[0])


def require_store(connection: Connection, path: str) -> None:
    """Raise an error if the file is the database of another program."""
    # one snapshot: another process may be creating the tables
    connection.execute("BEGIN")
    try:
        found = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        made = connection.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        ).fetchall()
    finally:
        connection.execute("ROLLBACK")
    # of a newer version it is not known what it has, and `migrate` refuses it
    known = found == APPLICATION_ID and 0 <= version <= len(MIGRATIONS)
    ours = {_plain(statement) for of in MIGRATIONS[:version] for statement in of}
    for kind, name, sql in made if known else ():
        # views, triggers and expressions would run whenever the store is read or written
        if _plain(str(sql)) not in ours:
            raise StoreError(
                f"the store {path} holds the {kind} {name!r:.60}, which testnuc does not create; "
                "it was not changed: use another store"
            )
    if found != APPLICATION_ID and (found != 0 or tables != 0):
        raise _not_a_store(path)


def _not_a_store(path: str) -> StoreError:
    return StoreError(
        f"{path} is the SQLite database of another program and was not changed; use another path "
        "for the store"
    )


def read_only(path: str) -> StoreError:
    """Return the error for a file that may not be written."""
    return StoreError(
        f"the store {path} is read-only; make it writable, or copy it to a writable folder"
    )
