"""The tables, and how a database is brought to their newest form.

Content never changes under its name: a prediction or a vector that is stored stays as it is, so
that whoever comes second reads what stands. Each embedder has a table of its own, because a vector
index is of one dimension.

A text of the pool has a number. Numbers are given from a counter in the embedder's row, which is
locked until the transaction that took them has ended: so they are committed in order and without
gaps, and whoever reads the counter as n sees every text with a number below n, now and later. A
sequence would give a number away before its text can be seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from testnuc.errors import StoreError
from testnuc.stores.postgres.errors import driver

if TYPE_CHECKING:
    from testnuc.stores.postgres.address import Address

__all__ = ["MAX_DIM", "create_texts", "index_texts", "migrate", "uses_bits"]

#: Of all advisory locks of a database, the one that changes of tables are made under: "tNUC".
_LOCK = 0x744E5543
#: Iterative scans came with this version.
_PGVECTOR = (0, 8)
#: Dimensions that halfvec can store, and that an HNSW graph of it can hold.
MAX_DIM = 16_000
_MAX_GRAPH_DIM = 4_000
#: Seconds that the building of a graph may take.
_BUILDING = 24 * 3600.0

_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE scopes (
            id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            scope bytea NOT NULL UNIQUE,
            facts text NOT NULL          -- JSON: model, labels
        )
        """,
        """
        CREATE TABLE predictions (
            key bytea PRIMARY KEY,
            scope integer NOT NULL,      -- scopes.id
            text bytea NOT NULL,         -- hash
            sample integer NOT NULL,
            label text,                  -- NULL: said something outside the label set
            confidence double precision, -- NULL: unknown
            said text                    -- NULL: the label, literally
        )
        """,
        """
        CREATE TABLE embedders (
            id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            name text NOT NULL UNIQUE,
            dim integer NOT NULL,
            size bigint NOT NULL DEFAULT 0,      -- numbers given in its pool
            removals bigint NOT NULL DEFAULT 0   -- texts taken out of its pool
        )
        """,
        # not logged: what is lost in a crash is who asks just now, and asking ends with the crash
        # of the server or is repeated
        """
        CREATE UNLOGGED TABLE leases (
            key bytea PRIMARY KEY,
            owner bytea NOT NULL,
            call bigint NOT NULL,
            until timestamptz NOT NULL   -- by the server's clock
        )
        """,
    ),
    (
        """
        CREATE TABLE batches (
            id bytea PRIMARY KEY,        -- ours, known before the provider's
            scope bytea NOT NULL,
            facts text NOT NULL,         -- JSON: what it takes to read the answers
            requests integer NOT NULL,
            created double precision NOT NULL,  -- seconds since the epoch, by the process's clock
            items bytea NOT NULL,        -- keys of each request; empty once it has ended
            remote text,                 -- the provider's id; NULL: it may have none
            outcome text,                -- NULL: it has not ended
            usage text,                  -- JSON, once it has ended
            owner bytea NOT NULL,        -- who creates it, or looks for it
            until timestamptz NOT NULL   -- for how long it is left to the owner
        )
        """,
        "CREATE INDEX batches_open ON batches (scope) WHERE outcome IS NULL",
    ),
)


async def migrate(connection: Any, address: Address) -> str:
    """Bring the tables to their newest form; one process does it, others wait.

    Returns
    -------
    str
        The schema in which pgvector is.

    Raises
    ------
    StoreError
        pgvector is missing or too old, or the tables were made by a newer version.
    """
    schema = address.schema
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        home = await _extension(connection, address)
        # CREATE .. IF NOT EXISTS asks for the right to create also where there is nothing to do
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
                f"testnuc knows versions up to {len(_MIGRATIONS)}; upgrade testnuc, or give "
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
                f"the store {address.public} lacks pgvector, and this user may not add it; let an "
                "administrator run in this database: CREATE EXTENSION vector"
            ) from exc
        except (pg.UndefinedFileError, pg.FeatureNotSupportedError) as exc:
            raise StoreError(
                f"the server of the store {address.public} does not have pgvector; install it "
                "there (packages are called postgresql-NN-pgvector, images pgvector/pgvector)"
            ) from exc
        found = await connection.fetchrow(query)
    version, home = found
    if tuple(int(part) for part in version.split(".")[:2]) < _PGVECTOR:
        raise StoreError(
            f"the store {address.public} has pgvector {version}, but 0.8 or later is needed; "
            "upgrade it on the server and run: ALTER EXTENSION vector UPDATE"
        )
    return str(home)


async def create_texts(connection: Any, name: str, dim: int) -> None:
    """Note an embedder and make its tables, if nobody has done so yet."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        number = await connection.fetchval(
            "INSERT INTO embedders (name, dim) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING id",
            name,
            dim,
        )
        if number is None:
            return
        await connection.execute(
            f"""
            CREATE TABLE texts_{number} (
                hash bytea PRIMARY KEY,
                vector halfvec({dim}) NOT NULL,
                number bigint,           -- NULL: embedded, but not in the pool
                text text,
                label text               -- known from a person
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


def uses_bits(dim: int) -> bool:
    """Whether the graph holds the signs of the numbers only."""
    return dim > _MAX_GRAPH_DIM


async def index_texts(connection: Any, number: int, dim: int) -> bool:
    """Build the graph of an embedder's pool, if there is none; False: another process is at it.

    Nobody has to wait for it: texts are added meanwhile. Nor does anybody wait for the lock, since
    a transaction that waits is one that the building waits for.
    """
    if await _has_graph(connection, number):
        return True
    if not await connection.fetchval("SELECT pg_try_advisory_lock($1, $2)", _LOCK, number):
        return False
    try:
        if not await _has_graph(connection, number):
            # minutes for a pool that was filled before it had a graph
            await connection.execute("SET statement_timeout = 0")
            # what is left of a building that was interrupted
            await connection.execute(f"DROP INDEX IF EXISTS texts_{number}_graph")
            column = f"(binary_quantize(vector)::bit({dim})) bit_hamming_ops"
            if not uses_bits(dim):
                column = "vector halfvec_ip_ops"
            await connection.execute(
                f"CREATE INDEX CONCURRENTLY texts_{number}_graph ON texts_{number} "
                f"USING hnsw ({column}) WHERE number IS NOT NULL",
                timeout=_BUILDING,
            )
        await connection.execute("RESET statement_timeout")
        await connection.execute("SELECT pg_advisory_unlock($1, $2)", _LOCK, number)
    except BaseException:
        # with the connection its lock ends, and what was set on it
        connection.terminate()
        raise
    return True


async def _has_graph(connection: Any, number: int) -> bool:
    found: bool = await connection.fetchval(
        "SELECT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass($1) AND indisvalid)",
        f"texts_{number}_graph",
    )
    return found
