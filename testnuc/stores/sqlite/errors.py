"""What can be wrong with a file, said so that its owner knows what to do."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from testnuc.errors import StoreError
from testnuc.stores.sqlite.schema import APPLICATION_ID

__all__ = ["check_file", "require_ours", "store_error"]

_MAGIC = b"SQLite format 3\0"
_APPLICATION_AT = slice(68, 72)


def check_file(path: str) -> None:
    """Look at the path before SQLite does: it would change what it opens.

    Raises
    ------
    StoreError
        No store is there, and none can be made.
    """
    file = Path(path)
    if file.is_dir():
        raise StoreError(f"the store {path} is a folder; give the path of a file")
    folder = file.parent
    if not folder.is_dir():
        raise StoreError(
            f"the store {path} cannot be made: there is no folder {folder}; create it, or correct "
            "the path"
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
            f"{path} is no store: it is not an SQLite file; it was left as it is. Give another path"
        )
    if head and int.from_bytes(head[_APPLICATION_AT], "big") not in {0, APPLICATION_ID}:
        raise _foreign(path)
    if head and not os.access(path, os.W_OK):
        raise _read_only(path)
    if not os.access(folder, os.W_OK):
        raise StoreError(
            f"the store {path} is in a folder that is read-only; SQLite keeps files beside it, so "
            "copy it to where you may write"
        )


def require_ours(connection: sqlite3.Connection, path: str) -> None:
    """See that the file is a store, or empty so that it may become one.

    Raises
    ------
    StoreError
        It is the file of another program.
    """
    # one snapshot: another process may be making the tables
    connection.execute("BEGIN")
    try:
        found = connection.execute("PRAGMA application_id").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    finally:
        connection.execute("ROLLBACK")
    if found != APPLICATION_ID and (found != 0 or tables != 0):
        raise _foreign(path)


def _foreign(path: str) -> StoreError:
    return StoreError(
        f"{path} is no store: it is the SQLite file of another program; it was left as it is. "
        "Give another path"
    )


def _read_only(path: str) -> StoreError:
    return StoreError(
        f"the store {path} is read-only; allow writing, or copy it to where you may write"
    )


def store_error(error: sqlite3.Error, path: str) -> StoreError:
    """Return what an error of SQLite means."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return StoreError(
            f"the store {path} cannot grow: the disk is full ({error}); what was stored before is "
            "intact. Make room and run again"
        )
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return StoreError(
            f"the store {path} is damaged ({error}); restore a copy of it, or move it away and "
            "start anew"
        )
    if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}:
        return _read_only(path)
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return StoreError(
            f"the store {path} is locked: another process has been writing to it for too long "
            f"({error}); end that process, or run again later"
        )
    if code == sqlite3.SQLITE_CANTOPEN:
        return StoreError(f"the store {path} cannot be opened ({error}); check its folder's rights")
    return StoreError(f"the store {path} failed: {type(error).__name__}: {error}")
