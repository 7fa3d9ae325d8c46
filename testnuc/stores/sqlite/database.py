"""Asynchronous access to one SQLite file: one writer thread, a few reader threads.

Group commit: writes that arrive during a transaction share the next one, so a thousand concurrent
callers cost a handful of transactions.

Predictions and vectors are write-once: a second writer reads the stored row. Pool rows are numbered
from 0 in insertion order, equal for every process, and a number is never reused.
"""

import asyncio
import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from sqlite3 import Connection
from typing import Any, Literal, TypeVar

from testnuc.errors import StoreError
from testnuc.stores.sql_store import DAMAGE, DamagedRowError, damaged, migrations

_T = TypeVar("_T")
#: What to run in a transaction, its outcome, and since when it waits.
_Job = tuple["Callable[[Connection], Any]", asyncio.Future[Any], float]

_log = logging.getLogger("testnuc")

#: Seconds to wait for the write lock of another process, the first of them without a word.
_BUSY_TIMEOUT = 60.0
_SILENT = 5.0
#: Most writes per transaction.
_MAX_GROUP = 512
_READERS = 2
#: Size limit of the write-ahead log after a checkpoint, in bytes.
_WAL_LIMIT = 64 << 20
_WRITER_CACHE_KIB = 32 << 10


class SqliteDatabase:
    """Runs functions on connections in threads; opened on first use, and never after `close`.

    `path` is absolute, and `synchronous` SQLite's pragma.
    """

    def __init__(self, path: str, *, synchronous: Literal["normal", "full"]) -> None:
        self.path = path
        self._synchronous = synchronous
        # guards the attributes below: a job must never be put on a queue without a writer
        self._lock = threading.Lock()
        self._queue: SimpleQueue[_Job | None] | None = None
        self._writer: threading.Thread | None = None
        self._readers: ThreadPoolExecutor | None = None
        #: The connections of the readers, by thread.
        self._connections: dict[int, Connection] = {}
        self._opened = False
        #: The file that is open: what is written after it was deleted would be lost.
        self._file: tuple[int, int] | None = None
        #: Where its threads are; a forked child has none of them.
        self._process: int | None = None
        #: Whether it is closed, and not to be opened by what comes late.
        self.closed = False
        #: Since when the oldest write waits; None: none does.
        self._oldest: float | None = None
        #: When a write failed, of which the log has not said that it is over.
        self._failed_at: float | None = None

    @property
    def oldest_write(self) -> float:
        """For how many seconds the oldest write has waited, for the lock or for its commit."""
        return 0.0 if (since := self._oldest) is None else time.monotonic() - since

    async def open(self) -> None:
        """Create the file if missing, and apply pending migrations."""
        self._check_process()
        if not self._opened:
            await self.write(lambda _: None)

    async def write(self, work: Callable[[Connection], _T]) -> _T:
        """Run `work` in a transaction; returns after the commit.

        Cancelling the caller does not roll back. `work` may run again after a rollback.
        """
        self._check_process()
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._require_open()
            if self._queue is None:
                self._process = os.getpid()
                self._queue = SimpleQueue()
                self._writer = threading.Thread(
                    target=self._write, args=(self._queue,), name="testnuc-write", daemon=True
                )
                self._writer.start()
            self._queue.put((work, future, time.monotonic()))
        return await future

    async def read(self, work: Callable[[Connection], _T]) -> _T:
        """Run a read-only `work`; it sees all earlier commits."""
        await self.open()
        with self._lock:
            self._require_open()
            if self._readers is None:
                self._readers = ThreadPoolExecutor(_READERS, "testnuc-read")
            running = self._readers.submit(self._read, self._connections, work)
        return await asyncio.wrap_future(running)

    async def close(self) -> None:
        """Complete pending work and close the file."""
        self._check_process()
        with self._lock:
            self.closed = True
            queue, writer, readers = self._queue, self._writer, self._readers
            connections, self._connections = self._connections, {}
            self._queue = self._writer = self._readers = None
            self._opened = False
        try:
            if readers is not None:
                await asyncio.to_thread(_end, readers, connections)
        finally:
            # the last connection to close checkpoints and deletes the log; if two close at the
            # same time, neither may see itself as the last
            if queue is not None:
                queue.put(None)
        if writer is not None:
            await asyncio.to_thread(writer.join)

    def _check_process(self) -> None:
        # before any lock is taken, which a thread may have held at the fork
        if self._process not in {None, os.getpid()}:
            raise StoreError(
                f"the store {self.path} was opened before fork(); open it in the child process"
            )

    def _require_open(self) -> None:
        if self.closed:
            # what comes later than `close` would open the file again, and nobody would close it
            raise StoreError(
                f"the store {self.path} is closed; `await store.open()` opens it again"
            )

    def connect(self) -> Connection:
        """Return a new connection, for use by one thread."""
        try:
            # `close` closes connections of reader threads that have ended
            connection = sqlite3.connect(
                self.path, timeout=_BUSY_TIMEOUT, isolation_level=None, check_same_thread=False
            )
            try:
                connection.execute(f"PRAGMA synchronous = {self._synchronous}")
                connection.execute("PRAGMA trusted_schema = OFF")
            except BaseException:
                connection.close()
                raise
        except (sqlite3.Error, UnicodeDecodeError) as exc:
            raise self.translated(exc) from exc
        return connection

    def translated(self, error: BaseException, *, reading: bool = True) -> BaseException:
        """Return the `StoreError` for an error of SQLite or a damaged row; others unchanged."""
        if isinstance(error, sqlite3.Error):
            translated = _store_error(error, self.path)
        elif isinstance(error, DAMAGE if reading else (DamagedRowError, UnicodeDecodeError)):
            translated = damaged(self.path, error)
        else:
            return error
        translated.__cause__ = error
        return translated

    def _read(self, connections: dict[int, Connection], work: Callable[[Connection], _T]) -> _T:
        """Run `work` on the connection of this thread."""
        thread = threading.get_ident()
        if thread not in connections:
            connections[thread] = self.connect()
        try:
            return work(connections[thread])
        except (sqlite3.Error, *DAMAGE) as exc:
            raise self.translated(exc) from exc

    def _write(self, queue: SimpleQueue[_Job | None]) -> None:
        """Run jobs until a None arrives (the writer thread)."""
        try:
            connection = self._open_for_writing()
        except BaseException as exc:  # noqa: BLE001 - passed on to all callers
            with self._lock:
                if self._queue is queue:
                    self._queue = self._writer = None
            # no job can be put on this queue any more
            failure = self.translated(exc, reading=False)
            _deliver([(job, failure) for job in _drain(queue) if job is not None])
            return
        try:
            last = False
            while not last:
                first = queue.get()
                jobs = [first, *_drain(queue, _MAX_GROUP - 1)]
                last = None in jobs
                self._oldest = None if first is None else first[2]
                if writes := [job for job in jobs if job is not None]:
                    self._commit(connection, writes)
                self._oldest = None
        finally:
            connection.close()

    def _open_for_writing(self) -> Connection:
        check_file(self.path)
        connection = self.connect()
        try:
            require_store(connection, self.path)
            self._when_free(connection, "PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT}")
            connection.execute(f"PRAGMA cache_size = -{_WRITER_CACHE_KIB}")
            migrate(connection, self.path)
            connection.execute("PRAGMA busy_timeout = 100")  # `_when_free` waits
            self._file = _identity(self.path)
        except BaseException:
            connection.close()
            raise
        self._opened = True
        return connection

    def _commit(self, connection: Connection, jobs: Sequence[_Job]) -> None:
        results: list[Any] = []
        begun = False
        try:
            if self._file != _identity(self.path):
                raise StoreError(  # noqa: TRY301
                    f"the store {self.path} was deleted or replaced while it was open; nothing "
                    "more is stored. Run again"
                )
            self._when_free(connection, "BEGIN IMMEDIATE")
            begun = True
            for work, *_ in jobs:
                results.append(work(connection))
            connection.execute("COMMIT")
        except BaseException as exc:  # noqa: BLE001 - passed on to the callers
            if connection.in_transaction:
                # may fail on a full disk; closing the connection rolls back as well
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            if begun and len(jobs) > 1 and len(results) < len(jobs):
                # one job failed: run each alone, so that the others succeed
                for job in jobs:
                    self._commit(connection, [job])
                return
            if isinstance(exc, sqlite3.Error):
                self._failed_at = time.monotonic()
            failure = self.translated(exc, reading=False)
            _deliver([(job, failure) for job in jobs])
        else:
            # not at once: on a full disk, what is small may still fit
            if self._failed_at is not None and time.monotonic() - self._failed_at > _SILENT:
                self._failed_at = None
                _log.info("the store %s takes writes again", self.path)
            _deliver(list(zip(jobs, results, strict=True)))

    def _when_free(self, connection: Connection, statement: str) -> None:
        """Run a statement that needs a lock; the log says so if another process has it for long."""
        started, said = time.monotonic(), False
        while True:
            try:
                connection.execute(statement).fetchone()
                break
            except sqlite3.OperationalError as exc:
                busy = getattr(exc, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
                if not busy or (waited := time.monotonic() - started) > _BUSY_TIMEOUT:
                    raise
            if waited > _SILENT and not said:
                said = True
                held = "the store %s is locked by another process; writes wait; lsof shows which"
                _log.warning(held, self.path)
            time.sleep(0.01)
        if said:
            _log.info("the store %s is not locked any more", self.path)


def _identity(path: str) -> tuple[int, int] | None:
    """Return which file has a path; None: there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - a fifth of the time, at each commit
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _store_error(error: sqlite3.Error, path: str) -> StoreError:
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}:
        return read_only(path)
    if code in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}:
        # a full disk is an I/O error, too, where a file beside the store cannot grow
        why = "the disk is full" if code == sqlite3.SQLITE_FULL else "perhaps the disk is full"
        said = f"cannot grow: {why} ({error}); free disk space: nothing stored is lost"
    elif code == sqlite3.SQLITE_NOTADB:
        said = "is not an SQLite file and was not changed; use another, or restore a corrupt store"
    elif code == sqlite3.SQLITE_CORRUPT:
        said = f"is corrupt ({error}); restore a backup, or delete it and start with an empty store"
    elif code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        said = f"is locked by another process ({error}); stop that process, or run again later"
    elif code == sqlite3.SQLITE_CANTOPEN:
        said = f"cannot be opened ({error}); check the permissions of the file and of its folder"
    else:
        # it had all tables when it was opened
        gone = "no such table" in str(error)
        said = "was deleted or replaced while it was open" if gone else "failed"
        said += f": {type(error).__name__}: {error}"
    return StoreError(f"the store {path} {said}")


def _end(threads: ThreadPoolExecutor, connections: dict[int, Connection]) -> None:
    threads.shutdown()
    for connection in connections.values():
        connection.close()


def _drain(queue: SimpleQueue[_Job | None], most: int | None = None) -> list[_Job | None]:
    """Return queued jobs without blocking, up to and including a None."""
    jobs: list[_Job | None] = []
    with suppress(Empty):
        while most is None or len(jobs) < most:
            jobs.append(queue.get_nowait())
            if jobs[-1] is None:
                break
    return jobs


def _deliver(outcomes: list[tuple[_Job, Any]]) -> None:
    """Resolve the futures of the jobs; one wake-up per event loop is twice as fast as one each."""
    done = [(future, outcome) for (_, future, _), outcome in outcomes]
    for loop in {future.get_loop() for future, _ in done}:
        mine = [(future, outcome) for future, outcome in done if future.get_loop() is loop]
        # the loop may be closed
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_set, mine)


def _set(outcomes: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, outcome in outcomes:
        if future.done():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


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
    if file.exists() and not file.is_file():
        # to open a pipe waits for somebody who writes to it
        kind = "folder" if file.is_dir() else "pipe or a device"
        raise StoreError(f"the store {path} is a {kind}; use the path of a file")
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
            f"the store {path} is in a folder that this user may not write to, but SQLite creates "
            "files there; change the owner of the folder, or move the store to a writable folder"
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
