"""Checks of the store file, and translation of SQLite errors to `StoreError`."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from testnuc.errors import StoreError
from testnuc.stores.sqlite.schema import APPLICATION_ID, MIGRATIONS, created, plain

_MAGIC = b"SQLite format 3\0"
_APPLICATION_AT = slice(68, 72)


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
    try:
        with file.open("rb") as content:
            head = content.read(100)
    except FileNotFoundError:
        head = b""
    except OSError as exc:
        raise StoreError(f"the store {path} cannot be read: {exc.strerror}") from exc
    if head and not head.startswith(_MAGIC):
        raise StoreError(
            f"{path} is not an SQLite file and was not changed; use another path for the store"
        )
    if head and int.from_bytes(head[_APPLICATION_AT], "big") not in {0, APPLICATION_ID}:
        raise _not_a_store(path)
    if head and not os.access(path, os.W_OK):
        raise _read_only(path)
    if not os.access(folder, os.W_OK):
        raise StoreError(
            f"the store {path} is in a read-only folder, but SQLite creates files next to it; copy "
            "the store to a writable folder"
        )


def require_store(connection: sqlite3.Connection, path: str) -> None:
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
    known, ours = found == APPLICATION_ID and 0 <= version <= len(MIGRATIONS), created(version)
    for kind, name, sql in made if known else ():
        # views, triggers and expressions would run whenever the store is read or written
        if plain(str(sql)) not in ours:
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


def _read_only(path: str) -> StoreError:
    return StoreError(
        f"the store {path} is read-only; make it writable, or copy it to a writable folder"
    )


def store_error(error: sqlite3.Error, path: str) -> StoreError:
    """Translate an error of SQLite."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}:
        # a full disk is an I/O error, too, where a file beside the store cannot grow
        why = "the disk is full" if code == sqlite3.SQLITE_FULL else "perhaps the disk is full"
        return StoreError(
            f"the store {path} cannot grow: {why} ({error}); data stored before is intact. Free "
            "disk space and run again"
        )
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return StoreError(
            f"the store {path} is corrupt ({error}); restore a backup, or delete it and start with "
            "an empty store"
        )
    if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}:
        return _read_only(path)
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return StoreError(
            f"the store {path} is locked by another process ({error}); stop that process, or run "
            "again later"
        )
    if code == sqlite3.SQLITE_CANTOPEN:
        return StoreError(
            f"the store {path} cannot be opened ({error}); check the permissions of its folder"
        )
    return StoreError(f"the store {path} failed: {type(error).__name__}: {error}")
