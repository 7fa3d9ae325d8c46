"""One SQLite file from an event loop: a thread that writes, a few that read.

Writes that arrive while the disk is at work are committed together afterwards: a thousand
concurrent callers cost a handful of transactions.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from testnuc.stores.sqlite.errors import check_file, require_ours, store_error
from testnuc.stores.sqlite.schema import migrate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

__all__ = ["SQLiteDatabase"]

_T = TypeVar("_T")

#: Seconds to wait for another process that writes.
_PATIENCE = 60.0
#: Most writes in one transaction.
_GROUP = 512
_READERS = 2
#: Bytes of the write-ahead log that are kept after it was copied to the file.
_LOG_KEPT = 64 << 20
_WRITER_CACHE_KIB = 32 << 10


@dataclass(frozen=True, slots=True)
class _Job:
    work: Callable[[sqlite3.Connection], Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class SQLiteDatabase:
    """Runs work on connections in threads; opened by the first work, and again after `close`.

    Parameters
    ----------
    path : str
        The file, absolute.
    synchronous : {"normal", "full"}
        Whether a commit waits until the disk has it ("full"), or until the system has it.
    """

    def __init__(self, path: str, *, synchronous: Literal["normal", "full"]) -> None:
        self.path = path
        self._synchronous = synchronous
        # guards what follows: who puts a job on the queue must know that somebody will take it
        self._lock = threading.Lock()
        self._queue: SimpleQueue[_Job | None] | None = None
        self._writer: threading.Thread | None = None
        self._readers: _Readers | None = None
        self._opened = False

    async def open(self) -> None:
        """Make the file if there is none, and bring its tables up to date."""
        if not self._opened:
            await self.write(lambda _: None)

    async def write(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `work` in a transaction; returns when it is committed.

        A caller that is cancelled does not undo it. `work` may run a second time, after a
        rollback.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        with self._lock:
            if self._queue is None:
                self._queue = SimpleQueue()
                self._writer = threading.Thread(
                    target=self._write, args=(self._queue,), name="testnuc-write", daemon=True
                )
                self._writer.start()
            self._queue.put(_Job(work, future, loop))
        return await future

    async def read(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `work`, which changes nothing; it sees all that was committed before."""
        await self.open()
        with self._lock:
            if self._readers is None:
                self._readers = _Readers(self)
            running = self._readers.submit(work)
        return await asyncio.wrap_future(running)

    async def close(self) -> None:
        """Finish what was begun and let go of the file."""
        with self._lock:
            queue, writer, readers = self._queue, self._writer, self._readers
            self._queue = self._writer = self._readers = None
            self._opened = False
        try:
            if readers is not None:
                await asyncio.to_thread(readers.close)
        finally:
            # the last connection to close copies the log to the file and removes it; two that
            # close at once may each take the other for the last
            if queue is not None:
                queue.put(None)
        if writer is not None:
            await asyncio.to_thread(writer.join)

    def connect(self) -> sqlite3.Connection:
        """Return a new connection; for a thread that keeps it to itself.

        Raises
        ------
        StoreError
            The file cannot be used.
        """
        try:
            # closed from the thread that closes the database, when its own has ended
            connection = sqlite3.connect(
                self.path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
            )
            try:
                connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as exc:
            raise store_error(exc, self.path) from exc
        return connection

    def translated(self, error: BaseException) -> BaseException:
        """Return the error that users see."""
        if isinstance(error, sqlite3.Error):
            known = store_error(error, self.path)
            known.__cause__ = error
            return known
        return error

    def _write(self, queue: SimpleQueue[_Job | None]) -> None:
        """Run jobs until there is a None."""
        try:
            connection = self._open_for_writing()
        except BaseException as exc:  # noqa: BLE001 - handed to all who wait for it
            with self._lock:
                if self._queue is queue:
                    self._queue = self._writer = None
            # nobody can put a job there any more
            failure = self.translated(exc)
            _deliver([(job, failure) for job in _waiting(queue) if job is not None])
            return
        try:
            last = False
            while not last:
                first = queue.get()
                jobs = [first, *_waiting(queue, _GROUP - 1)]
                last = None in jobs
                self._commit(connection, [job for job in jobs if job is not None])
        finally:
            connection.close()

    def _open_for_writing(self) -> sqlite3.Connection:
        check_file(self.path)
        connection = self.connect()
        try:
            require_ours(connection, self.path)
            _log_ahead(connection)
            connection.execute(f"PRAGMA journal_size_limit = {_LOG_KEPT}")
            connection.execute(f"PRAGMA cache_size = -{_WRITER_CACHE_KIB}")
            migrate(connection, self.path)
        except BaseException:
            connection.close()
            raise
        self._opened = True
        return connection

    def _commit(self, connection: sqlite3.Connection, jobs: Sequence[_Job]) -> None:
        if not jobs:
            return
        results: list[Any] = []
        begun = False
        try:
            connection.execute("BEGIN IMMEDIATE")
            begun = True
            for job in jobs:
                results.append(job.work(connection))  # noqa: PERF401 - what is done is counted
            connection.execute("COMMIT")
        except BaseException as exc:  # noqa: BLE001 - handed to whoever waits for it
            if connection.in_transaction:
                # the disk may be too full even for this; closing the connection rolls back, too
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            if begun and len(jobs) > 1 and len(results) < len(jobs):
                # one of them is at fault: the others must not fail with it
                for job in jobs:
                    self._commit(connection, [job])
                return
            failure = self.translated(exc)
            _deliver([(job, failure) for job in jobs])
        else:
            _deliver(list(zip(jobs, results, strict=True)))


class _Readers:
    """Threads with a connection each."""

    def __init__(self, database: SQLiteDatabase) -> None:
        self._database = database
        self._threads = ThreadPoolExecutor(_READERS, thread_name_prefix="testnuc-read")
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []

    def submit(self, work: Callable[[sqlite3.Connection], _T]) -> Future[_T]:
        return self._threads.submit(self._run, work)

    def close(self) -> None:
        self._threads.shutdown(wait=True)
        for connection in self._connections:
            connection.close()

    def _run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._database.connect()
            self._connections.append(connection)
        try:
            return work(connection)
        except sqlite3.Error as exc:
            raise store_error(exc, self._database.path) from exc


def _log_ahead(connection: sqlite3.Connection) -> None:
    """Turn the write-ahead log on; SQLite does not wait for others who do the same just now."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as exc:
            busy = getattr(exc, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _waiting(queue: SimpleQueue[_Job | None], most: int | None = None) -> list[_Job | None]:
    jobs: list[_Job | None] = []
    with contextlib.suppress(Empty):
        while most is None or len(jobs) < most:
            jobs.append(queue.get_nowait())
            if jobs[-1] is None:
                break
    return jobs


def _deliver(outcomes: list[tuple[_Job, Any]]) -> None:
    """Wake each event loop once for all of its jobs."""
    for loop in {job.loop for job, _ in outcomes}:
        mine = [(job.future, outcome) for job, outcome in outcomes if job.loop is loop]
        # a loop that is closed waits for nothing
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_set, mine)


def _set(outcomes: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, outcome in outcomes:
        if future.done():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
