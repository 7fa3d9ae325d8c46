"""The schema, its migrations, and the form of values: text without NUL, and binary halfvec.

Predictions and vectors are write-once: a second writer reads the stored row. Each embedder has its
own table, because a vector index has one dimension.

Pool texts are numbered from a counter in the embedder's row, which stays locked until the
transaction ends. Numbers are therefore committed in order and without gaps: a reader that sees the
counter at n sees every text with a number below n. A sequence does not guarantee this, since it
assigns numbers before the rows are visible.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from testnuc._base.arrays import Float16s
from testnuc.errors import StoreError
from testnuc.stores.postgres.driver import Address, driver
from testnuc.stores.sql_store import DamagedRowError, migrations

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
