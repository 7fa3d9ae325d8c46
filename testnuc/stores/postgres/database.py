"""A connection pool that retries after connection loss."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, TypeVar

from testnuc.errors import TestNUCError
from testnuc.stores.postgres.errors import driver, is_transient, store_error
from testnuc.stores.postgres.schema import migrate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from testnuc.stores.postgres.address import Address

__all__ = ["PostgresDatabase"]

_T = TypeVar("_T")
_log = logging.getLogger("testnuc")

#: Timeouts in seconds: of a connection attempt, of a statement on the server, and what the client
#: waits beyond the latter.
_CONNECT_TIMEOUT = 10.0
_STATEMENT_TIMEOUT = 60.0
_CLIENT_MARGIN = 15.0
#: Seconds of retries before the first successful connection.
_FIRST_RETRY_TIME = 5.0
#: First and longest back-off between retries, in seconds.
_BACKOFF = (0.05, 2.0)
#: Seconds to wait for running statements on close.
_CLOSE_TIMEOUT = 10.0


class PostgresDatabase:
    """Runs functions on pooled connections; opened on first use, also after `close`.

    Parameters
    ----------
    address : Address
    connections : int
        Maximum number of open connections.
    patience : float
        Seconds to retry while the server is unavailable, before `StoreError` is raised.
    """

    def __init__(self, address: Address, *, connections: int, patience: float) -> None:
        self.address = address
        self._connections = connections
        self._patience = patience
        self._pool: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._was_open = False

    async def open(self) -> None:
        """Connect, and apply pending migrations.

        Raises
        ------
        StoreError
            The database cannot be used.
        """
        await self.run(_no_op)

    async def run(self, work: Callable[[Any], Awaitable[_T]]) -> _T:
        """Run `work` on a connection; retries on another one after connection loss.

        `work` must be idempotent: its transaction may have been committed although the connection
        was lost before the confirmation arrived.
        """
        started = time.monotonic()
        pause, longest = _BACKOFF
        while True:
            pool = connection = None
            try:
                pool = await self._open_pool()
                async with pool.acquire() as connection:
                    return await work(connection)
            except TestNUCError:
                raise
            except Exception as exc:
                pg = driver()
                # another user of this store may have closed it during the wait for a connection
                closed = isinstance(exc, pg.InterfaceError) and (
                    pool is not self._pool or (connection is not None and connection.is_closed())
                )
                waited = time.monotonic() - started
                most = self._patience if self._was_open else min(self._patience, _FIRST_RETRY_TIME)
                if not (closed or is_transient(exc)) or waited > most:
                    raise store_error(exc, self.address) from exc
                _log.info(
                    "the store %s failed (%s); retrying",
                    self.address.public,
                    type(exc).__name__,
                )
                if not isinstance(exc, (pg.DeadlockDetectedError, pg.SerializationError)):
                    await self._expire_idle(pool)
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def close(self) -> None:
        """Wait for running statements, then close all connections."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        if self._loop is not asyncio.get_running_loop():
            _terminate(pool)
            return
        try:
            await asyncio.wait_for(pool.close(), _CLOSE_TIMEOUT)
        except TimeoutError:
            pool.terminate()

    async def _expire_idle(self, pool: Any) -> None:
        """Expire idle connections, which may be as broken as the one that failed."""
        if pool is not None and pool is self._pool:
            with contextlib.suppress(driver().InterfaceError):
                await pool.expire_connections()

    async def _open_pool(self) -> Any:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # connections are bound to the event loop they were opened in
            if self._pool is not None:
                _terminate(self._pool)
            self._pool, self._loop, self._opening = None, loop, asyncio.Lock()
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


def _terminate(pool: Any) -> None:
    """Close the connections of an event loop that has ended."""
    with contextlib.suppress(Exception):
        pool.terminate()


async def _no_op(connection: Any) -> None:
    del connection
