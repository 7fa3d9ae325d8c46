"""Connections to one database: few, shared, and made anew when the server was away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, TypeVar

from testnuc.errors import TestNUCError
from testnuc.stores.postgres.errors import driver, passing, store_error
from testnuc.stores.postgres.schema import migrate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from testnuc.stores.postgres.address import Address

__all__ = ["PostgresDatabase"]

_T = TypeVar("_T")
_log = logging.getLogger("testnuc")

#: Seconds to wait for a connection.
_CONNECT = 10.0
#: Seconds after which the server gives up a statement; a little later the client gives it up.
_STATEMENT = 60.0
_GRACE = 15.0
#: Seconds to go on trying when there never was a connection.
_FIRST_PATIENCE = 5.0
#: Seconds between two tries: the first time, and at most.
_BACKOFF = (0.05, 2.0)
#: Seconds to wait for statements under way when closing.
_CLOSING = 10.0


class PostgresDatabase:
    """Runs work on connections; opened by the first work, and again after `close`.

    Parameters
    ----------
    address : Address
    connections : int
        Most connections at a time.
    patience : float
        Seconds to go on trying when the server is away, before a `StoreError`.
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
        """Connect, and bring the tables up to date.

        Raises
        ------
        StoreError
            The database cannot be used.
        """
        await self.run(_nothing)

    async def run(self, work: Callable[[Any], Awaitable[_T]]) -> _T:
        """Run `work` on a connection; again on another one, where the first broke.

        `work` must be harmless to repeat: its transaction may have been committed although the
        connection broke before that was heard of.
        """
        started = time.monotonic()
        pause, longest = _BACKOFF
        while True:
            pool = connection = None
            try:
                pool = await self._ready()
                async with pool.acquire() as connection:
                    return await work(connection)
            except TestNUCError:
                raise
            except Exception as exc:
                pg = driver()
                # whoever shares this store may have closed it while this waited for a connection
                closed = isinstance(exc, pg.InterfaceError) and (
                    pool is not self._pool or (connection is not None and connection.is_closed())
                )
                waited = time.monotonic() - started
                most = self._patience if self._was_open else min(self._patience, _FIRST_PATIENCE)
                if not (closed or passing(exc)) or waited > most:
                    raise store_error(exc, self.address) from exc
                _log.info(
                    "the store %s failed (%s); trying again",
                    self.address.public,
                    type(exc).__name__,
                )
                if not isinstance(exc, (pg.DeadlockDetectedError, pg.SerializationError)):
                    await self._renew(pool)
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def close(self) -> None:
        """Wait for statements under way, and let go of all connections."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        if self._loop is not asyncio.get_running_loop():
            _abandon(pool)
            return
        try:
            await asyncio.wait_for(pool.close(), _CLOSING)
        except TimeoutError:
            pool.terminate()

    async def _renew(self, pool: Any) -> None:
        """See that idle connections, which may be as broken as the one that failed, are left."""
        if pool is not None and pool is self._pool:
            with contextlib.suppress(driver().InterfaceError):
                await pool.expire_connections()

    async def _ready(self) -> Any:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # connections belong to the loop they were made in, which has ended
            if self._pool is not None:
                _abandon(self._pool)
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
            connection = await pg.connect(url, timeout=_CONNECT)
        except (pg.ClientConfigurationError, ValueError):
            # what was misread may be part of the password
            raise store_error(
                ValueError("the driver cannot read the URL of the store"), self.address
            ) from None
        try:
            home = await migrate(connection, self.address)
        except BaseException:
            connection.terminate()
            raise
        await connection.close(timeout=_CONNECT)

        async def init(connection: Any) -> None:
            # its bytes as they are: a codec that makes arrays one by one is what costs
            await connection.set_type_codec(
                "halfvec", schema=home, encoder=bytes, decoder=bytes, format="binary"
            )

        return await pg.create_pool(
            url,
            min_size=0,
            max_size=self._connections,
            timeout=_CONNECT,
            command_timeout=_STATEMENT + _GRACE,
            init=init,
            # nothing is left behind on a connection that a reset would have to undo
            reset=_nothing,
            server_settings={
                "application_name": "testnuc",
                "search_path": f'"{self.address.schema}", "{home}"',
                "statement_timeout": str(int(_STATEMENT * 1e3)),
                # a client that hangs must not hold up the pool's counter for everybody
                "idle_in_transaction_session_timeout": str(int(_STATEMENT * 1e3)),
                # compiling a search takes longer than the search
                "jit": "off",
            },
        )


def _abandon(pool: Any) -> None:
    """Drop the connections of a loop that has ended."""
    with contextlib.suppress(Exception):
        pool.terminate()


async def _nothing(connection: Any) -> None:
    del connection
