"""A connection pool that retries after connection loss."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from testnuc._base.arrays import Float16s
from testnuc.errors import EmbeddingError, StoreError, TestNUCError
from testnuc.stores.postgres.driver import Address, driver, is_transient, store_error
from testnuc.stores.postgres.schema import (
    MAX_DIM,
    EmbedderRow,
    create_texts,
    from_text,
    migrate,
    to_text,
)
from testnuc.stores.sql_store import DamagedRowError, check_vectors, damaged

_T = TypeVar("_T")
_log = logging.getLogger("testnuc")

#: Timeouts in seconds: of a connection attempt, of a statement on the server, and what the client
#: waits beyond the latter.
_CONNECT_TIMEOUT = 10.0
_STATEMENT_TIMEOUT = 60.0
_CLIENT_MARGIN = 15.0
#: Seconds of retries before the first successful connection.
_FIRST_RETRY_TIME = 5.0
#: How often a statement that others cancel is run again.
_CANCELED = 3
#: First and longest back-off between retries, in seconds.
_BACKOFF = (0.05, 2.0)
#: Seconds to wait for running statements on close.
_CLOSE_TIMEOUT = 10.0
#: Pools of a process that was forked: what would end them must not run in the child.
_INHERITED: list[Any] = []


class PostgresDatabase:
    """Runs functions on pooled connections; opened on first use, and never after `close`.

    While the server is unavailable, it retries for `patience` seconds before it raises
    `StoreError`.
    """

    def __init__(self, address: Address, *, connections: int, patience: float) -> None:
        self.address = address
        self._connections = connections
        self._patience = patience
        self._pool: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._process = 0
        self._was_open = False
        self._running: set[asyncio.Task[Any]] = set()
        self._embedders: dict[str, EmbedderRow] = {}
        #: Whether it is closed, and not to be opened by what comes late.
        self.closed = False
        #: Failures, and connections made: after a crash of the server there are more of them.
        self.breaks = 0

    async def open(self) -> None:
        """Connect, and apply pending migrations."""
        await self.run(_no_op)

    async def run(self, work: Callable[[Any], Awaitable[_T]]) -> _T:
        """Run `work` on a connection; retries on another one after connection loss.

        `work` must be idempotent: its transaction may have been committed although the connection
        was lost before the confirmation arrived.
        """
        started = time.monotonic()
        pause, longest = _BACKOFF
        canceled = 0
        while True:
            begun = time.monotonic()
            try:
                async with (await self._open_pool()).acquire() as connection:
                    return await work(connection)
            except TestNUCError:
                raise
            except Exception as exc:
                pg = driver()
                waited = time.monotonic() - started
                most = self._patience if self._was_open else min(self._patience, _FIRST_RETRY_TIME)
                # by others, as with pg_cancel_backend; the words of the server may be translated
                early = time.monotonic() - begun < _STATEMENT_TIMEOUT / 2
                canceled += (foreign := isinstance(exc, pg.QueryCanceledError) and early)
                again = is_transient(exc) or (foreign and canceled <= _CANCELED)
                if not again or waited > most:
                    raise store_error(exc, self.address, timed_out=not early) from exc
                self.breaks += 1
                _log.info(
                    "the store %s failed (%s); retrying", self.address.public, type(exc).__name__
                )
                if self._pool is not None:
                    # idle connections may be as broken as the one that failed
                    with contextlib.suppress(pg.InterfaceError):
                        await self._pool.expire_connections()
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def fetch(self, query: str, *values: Any) -> list[Any]:
        """Return the rows of one statement."""
        given = [_stored(value) for value in values]
        rows = await self.run(lambda c: c.fetch(query, *given))
        return [tuple(from_text(v) if type(v) is str else v for v in row) for row in rows]

    async def execute(self, query: str, *values: Any) -> int:
        """Run one statement; returns the number of rows that it changed."""
        given = [_stored(value) for value in values]
        done = await self.run(lambda c: c.execute(query, *given))
        return int(done.split()[-1])

    async def finish(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a write to completion, even if the caller is cancelled."""
        task = asyncio.create_task(work, name="testnuc-store")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        # its exception counts as read, also where its caller was cancelled
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(task)

    async def now(self, name: str) -> EmbedderRow | None:
        """Return the current row of an embedder; None if it has no vectors."""
        rows = await self.fetch(
            "SELECT id, name, dim, size, removals FROM embedders WHERE name = $1", name
        )
        if not rows:
            return None
        row = EmbedderRow(*rows[0])
        if not (1 <= row.dim <= MAX_DIM and 0 <= row.removals <= row.size):
            raise damaged(self.address.public, DamagedRowError(f"an embedder is {row}"))
        return row

    async def embedder(self, name: str) -> EmbedderRow | None:
        """Return the row of an embedder; its counts may be stale."""
        known = self._embedders.get(name) or await self.now(name)
        if known is not None:
            self._embedders[name] = known
        return known

    async def require_embedder(self, name: str, vectors: Float16s) -> EmbedderRow:
        """Return the row of an embedder for such vectors; creates its tables if it is new."""
        known, dim = await self.embedder(name), vectors.shape[1]
        if known is None:
            if not 1 <= dim <= MAX_DIM:
                raise EmbeddingError(
                    f"the embedder {name!r} returns vectors of dimension {dim}; pgvector supports "
                    f"1 to {MAX_DIM}"
                )
            await self.run(partial(create_texts, name=name, dim=dim))
            known = await self.embedder(name)
        if known is None:
            raise StoreError(
                f"the row of embedder {name!r} disappeared from {self.address.public}; is another "
                "process deleting it?"
            )
        check_vectors(name, known.dim, vectors)
        return known

    async def close(self) -> None:
        """Complete pending work, then close all connections."""
        mine = [t for t in self._running if t.get_loop() is asyncio.get_running_loop()]
        if mine:
            await asyncio.wait(mine)
        self.closed = True
        pool, self._pool = self._pool, None
        loop, self._loop = self._loop, None
        if pool is None:
            return
        if loop is not asyncio.get_running_loop():
            _terminate(pool)
            return
        try:
            await asyncio.wait_for(pool.close(), _CLOSE_TIMEOUT)
        except TimeoutError:
            pool.terminate()

    async def _open_pool(self) -> Any:
        if self.closed:
            raise StoreError(
                f"the store {self.address.public} is closed; `await store.open()` opens it again"
            )
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # connections are bound to the event loop they were opened in
            here = self._process == os.getpid()
            if here and self._loop is not None and self._loop.is_running():
                raise StoreError(
                    f"the store {self.address.public} is open in another event loop, which its "
                    "connections belong to; make a store for each loop"
                )
            if self._pool is not None and here:
                _terminate(self._pool)
            elif self._pool is not None:
                # of the process that was forked: closing would disturb its event loop
                _INHERITED.append(self._pool)
            self._pool, self._loop, self._opening = None, loop, asyncio.Lock()
            self._process = os.getpid()
        if self._pool is None:
            async with self._opening:
                if self._pool is None:
                    self._pool = await self._connect()
                    self._was_open = True
        return self._pool

    async def _connect(self) -> Any:
        pg = driver()
        url = self.address.reveal()
        try:
            connection = await pg.connect(url, timeout=_CONNECT_TIMEOUT)
        except (pg.ClientConfigurationError, ValueError):
            # the driver's message may quote a part of the password
            raise store_error(
                ValueError("the driver cannot parse the URL of the store"), self.address
            ) from None
        try:
            home = await migrate(connection, self.address)
        except BaseException:
            connection.terminate()
            raise
        await connection.close(timeout=_CONNECT_TIMEOUT)

        async def init(connection: Any) -> None:
            self.breaks += 1
            # raw bytes: decoding vector by vector would dominate the cost
            await connection.set_type_codec(
                "halfvec", schema=home, encoder=bytes, decoder=bytes, format="binary"
            )

        return await pg.create_pool(
            url,
            min_size=0,
            max_size=self._connections,
            timeout=_CONNECT_TIMEOUT,
            command_timeout=_STATEMENT_TIMEOUT + _CLIENT_MARGIN,
            init=init,
            # statements leave no session state that a reset would have to undo
            reset=_no_op,
            server_settings={
                "application_name": "testnuc",
                "search_path": f'"{self.address.schema}", "{home}"',
                "statement_timeout": str(int(_STATEMENT_TIMEOUT * 1e3)),
                # a stalled client must not block the row-number counter of the pool
                "idle_in_transaction_session_timeout": str(int(_STATEMENT_TIMEOUT * 1e3)),
                # JIT compilation takes longer than the searches
                "jit": "off",
            },
        )


def _stored(value: Any) -> Any:
    if isinstance(value, list):
        return [_stored(item) for item in value]
    return to_text(value) if isinstance(value, str) else value


def _terminate(pool: Any) -> None:
    """Close the connections of an event loop that has ended."""
    with contextlib.suppress(Exception):
        pool.terminate()


async def _no_op(connection: Any) -> None:
    del connection
