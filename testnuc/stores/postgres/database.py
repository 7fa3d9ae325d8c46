"""A connection pool that retries after connection loss; the schema, and the form of values.

Predictions and vectors are write-once: a second writer reads the stored row. Each embedder has its
own table, because a vector index has one dimension. Text has no NUL; vectors are binary halfvecs.

Pool texts are numbered from a counter in the embedder's row, which stays locked until the
transaction ends. Numbers are therefore committed in order and without gaps: a reader that sees the
counter at n sees every text with a number below n. A sequence does not guarantee this, since it
assigns numbers before the rows are visible.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from testnuc._base.arrays import Float16s
from testnuc.errors import EmbeddingError, StoreError, TestNUCError
from testnuc.stores.postgres.driver import Address, driver, is_transient, store_error
from testnuc.stores.sql_store import DamagedRowError, check_vectors, damaged, migrations

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

#: Key of the advisory lock for schema changes: "tNUC".
_LOCK = 0x744E5543
#: The first version with iterative index scans.
_MIN_PGVECTOR = (0, 8)
#: Largest dimension of a halfvec, and of an HNSW index on halfvec.
MAX_DIM = 16_000
MAX_GRAPH_DIM = 4_000
#: Timeout for building an index, in seconds.
_BUILD_TIMEOUT = 24 * 3600.0
#: Escape character for NUL, which PostgreSQL cannot store in text.
_ESCAPE = "\x1a"

_MIGRATIONS = migrations(__package__)


@dataclass(frozen=True, slots=True)
class EmbedderRow:
    """A row of the embedders table; its counts may be stale."""

    id: int
    name: str
    dim: int
    #: Numbers assigned in its pool.
    size: int
    #: Texts removed from its pool.
    removals: int

    @property
    def texts(self) -> str:
        """Its table of vectors, and of the texts in its pool."""
        return f"texts_{self.id}"

    @property
    def removed(self) -> str:
        """Its table of numbers that were removed from the pool."""
        return f"removed_{self.id}"


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
        try:
            connection = await pg.connect(self.address.url, timeout=_CONNECT_TIMEOUT)
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
            self.address.url,
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


async def migrate(connection: Any, address: Address) -> str:
    """Apply pending migrations; concurrent processes wait for the first one.

    Returns the schema of pgvector.
    """
    schema = address.schema
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        home = await _extension(connection, address)
        # CREATE .. IF NOT EXISTS needs the CREATE privilege even if the schema exists
        if not await connection.fetchval("SELECT 1 FROM pg_namespace WHERE nspname = $1", schema):
            await connection.execute(f'CREATE SCHEMA "{schema}"')
        await connection.execute(f'SET LOCAL search_path TO "{schema}", "{home}"')
        if await connection.fetchval("SELECT to_regclass($1)", f"{schema}.migrations") is None:
            await connection.execute(
                "CREATE TABLE migrations "
                "(number integer PRIMARY KEY, applied timestamptz NOT NULL DEFAULT now())"
            )
        done = await connection.fetchval("SELECT coalesce(max(number), 0) FROM migrations")
        if done > len(_MIGRATIONS):
            raise StoreError(
                f"the store {address.public} has schema version {done}, but this version of "
                f"testnuc supports versions up to {len(_MIGRATIONS)}; upgrade testnuc, or use "
                "another ?schema=name"
            )
        for number, statements in enumerate(_MIGRATIONS[done:], done + 1):
            for statement in statements:
                await connection.execute(statement)
            await connection.execute("INSERT INTO migrations (number) VALUES ($1)", number)
    return home


async def _extension(connection: Any, address: Address) -> str:
    pg = driver()
    query = (
        "SELECT extversion, nspname::text FROM pg_extension e "
        "JOIN pg_namespace n ON n.oid = e.extnamespace WHERE extname = 'vector'"
    )
    found = await connection.fetchrow(query)
    if found is None:
        try:
            await connection.execute("CREATE EXTENSION vector")
        except pg.InsufficientPrivilegeError as exc:
            raise StoreError(
                f"the store {address.public} lacks pgvector, and this user may not install it; ask "
                "an administrator to run in this database: CREATE EXTENSION vector"
            ) from exc
        except (pg.UndefinedFileError, pg.FeatureNotSupportedError) as exc:
            raise StoreError(
                f"pgvector is not installed on the server of the store {address.public}; install "
                "the package postgresql-NN-pgvector there, or use the image pgvector/pgvector"
            ) from exc
        found = await connection.fetchrow(query)
    version, home = found
    if tuple(int(part) for part in version.split(".")[:2]) < _MIN_PGVECTOR:
        raise StoreError(
            f"the store {address.public} has pgvector {version}, but 0.8 or later is required; "
            "upgrade it on the server and run: ALTER EXTENSION vector UPDATE"
        )
    return str(home)


async def create_texts(connection: Any, name: str, dim: int) -> None:
    """Insert an embedder and create its tables, unless it exists."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        insert = "INSERT INTO embedders (name, dim) VALUES ($1, $2)"
        statement = f"{insert} ON CONFLICT DO NOTHING RETURNING id"
        number = await connection.fetchval(statement, to_text(name), dim)
        if number is None:
            return
        await connection.execute(
            f"""
            CREATE TABLE texts_{number} (
                hash bytea PRIMARY KEY,
                vector halfvec({dim}) NOT NULL,
                number bigint,           -- NULL: embedded, but not in the pool
                text text,
                label text               -- known label
            )
            """
        )
        await connection.execute(
            f"CREATE UNIQUE INDEX texts_{number}_number ON texts_{number} (number) "
            "WHERE number IS NOT NULL"
        )
        await connection.execute(
            f"CREATE TABLE removed_{number} (number bigint PRIMARY KEY, hash bytea NOT NULL)"
        )


async def index_texts(connection: Any, number: int) -> bool:
    """Build the graph of an embedder's pool if missing; False if another process is building it.

    Texts can be added during the build. The lock is tried, not awaited: a build waits for open
    transactions, including one that waits for the lock.
    """
    if await _has_graph(connection, number):
        return True
    if not await connection.fetchval("SELECT pg_try_advisory_lock($1, $2)", _LOCK, number):
        return False
    try:
        if not await _has_graph(connection, number):
            # the build of a large pool takes minutes
            await connection.execute("SET statement_timeout = 0")
            # an interrupted build leaves an invalid index
            await connection.execute(f"DROP INDEX IF EXISTS texts_{number}_graph")
            await connection.execute(
                f"CREATE INDEX CONCURRENTLY texts_{number}_graph ON texts_{number} "
                "USING hnsw (vector halfvec_ip_ops) WHERE number IS NOT NULL",
                timeout=_BUILD_TIMEOUT,
            )
        await connection.execute("RESET statement_timeout")
        await connection.execute("SELECT pg_advisory_unlock($1, $2)", _LOCK, number)
    except BaseException:
        # closing the connection releases the lock and resets the timeout
        connection.terminate()
        raise
    return True


async def _has_graph(connection: Any, number: int) -> bool:
    found: bool = await connection.fetchval(
        "SELECT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass($1) AND indisvalid)",
        f"texts_{number}_graph",
    )
    return found


def to_text(value: str | None) -> str | None:
    """Escape NUL characters, which PostgreSQL cannot store in text."""
    if value is None or not ("\0" in value or _ESCAPE in value):
        return value
    return value.replace(_ESCAPE, f"{_ESCAPE}1").replace("\0", f"{_ESCAPE}0")


def from_text(value: str | None) -> str | None:
    """Undo `to_text`."""
    if value is None or _ESCAPE not in value:
        return value
    return value.replace(f"{_ESCAPE}0", "\0").replace(f"{_ESCAPE}1", _ESCAPE)


def to_vectors(vectors: Float16s) -> list[bytes]:
    """Encode rows, float16[n, dim], as pgvector's binary halfvec: dim, 0, values; big-endian."""
    n, dim = vectors.shape
    rows = np.zeros((n, 2 + dim), dtype=">u2")
    rows[:, 0] = dim
    rows[:, 2:] = np.ascontiguousarray(vectors).view(np.uint16)
    content, width = rows.tobytes(), 4 + 2 * dim
    return [content[start : start + width] for start in range(0, n * width, width)]


def from_vectors(values: Sequence[bytes], dim: int) -> Float16s:
    """Decode pgvector's binary halfvecs to float16[n, dim]; raises `DamagedRowError`."""
    width = 4 + 2 * dim
    for value in values:
        if len(value) != width:
            raise DamagedRowError(f"a vector has {len(value) // 2 - 2} dimensions instead of {dim}")
    rows = np.frombuffer(b"".join(values), dtype=">u2").reshape(len(values), 2 + dim)
    return rows[:, 2:].astype(np.uint16).view(np.float16)
