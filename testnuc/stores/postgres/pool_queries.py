"""Queries on pool rows: texts, their numbers, and nearest neighbors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from testnuc.stores.postgres.schema import uses_bits
from testnuc.stores.postgres.values import from_text, to_text, to_vectors

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from testnuc.protocols import PoolText
    from testnuc.stores.postgres.schema import EmbedderRow

#: Per query: hash, number and inner product of candidates, best first.
Nearest = list[list[tuple[bytes, int, float]]]

#: Least and largest ``hnsw.ef_search``; pgvector allows up to 1,000.
_EF_SEARCH, _MAX_EF_SEARCH = 160, 1_000
#: Least ``hnsw.max_scan_tuples``; pgvector's default.
_MAX_SCAN_TUPLES = 20_000
#: Candidates per wanted text when the graph indexes signs only.
_BIT_FACTOR = 20


async def insert_vectors(
    connection: Any, known: EmbedderRow, hashes: Sequence[bytes], vectors: NDArray[np.float16]
) -> None:
    """Insert vectors; existing ones are not changed."""
    order = sorted(range(len(hashes)), key=lambda i: hashes[i])
    await connection.execute(
        f"INSERT INTO {known.texts} (hash, vector) "
        "SELECT u.hash, u.vector FROM unnest($1::bytea[], $2::halfvec[]) "
        "WITH ORDINALITY u (hash, vector, place) ORDER BY u.hash, u.place ON CONFLICT DO NOTHING",
        [hashes[i] for i in order],
        to_vectors(vectors[order]),
    )


async def insert_texts(
    connection: Any,
    embedder: EmbedderRow,
    texts: Sequence[PoolText],
    vectors: NDArray[np.float16],
) -> int:
    """Add the texts that are not in the pool; returns its size. Existing vectors stay."""
    hashes = [entry.hash for entry in texts]
    table = embedder.texts
    rows = await connection.fetch(
        f"SELECT hash, number, label FROM {table} WHERE hash = ANY($1)",
        hashes,
    )
    known = {row["hash"]: (row["number"], from_text(row["label"])) for row in rows}
    missing = [i for i, h in enumerate(hashes) if h not in known]
    if missing:
        await insert_vectors(connection, embedder, [hashes[i] for i in missing], vectors[missing])
    if not missing and all(
        known[entry.hash][0] is not None and entry.label in (None, known[entry.hash][1])
        for entry in texts
    ):
        return await _size(connection, embedder.id)
    async with connection.transaction():
        # waits until the transaction that assigned the previous numbers has committed
        size = await _size(connection, embedder.id, "FOR UPDATE")
        numbered = {
            row["hash"]
            for row in await connection.fetch(
                f"SELECT hash FROM {table} WHERE hash = ANY($1) AND number IS NOT NULL",
                hashes,
            )
        }
        new: dict[bytes, PoolText] = {}
        labels: dict[bytes, str | None] = {}
        for entry in texts:
            if entry.hash not in numbered and entry.hash not in new:
                new[entry.hash] = entry
            elif entry.label is not None:
                labels[entry.hash] = to_text(entry.label)
        await connection.execute(
            f"UPDATE {table} t SET number = u.number, text = u.text, label = u.label "
            "FROM unnest($1::bytea[], $2::bigint[], $3::text[], $4::text[]) "
            "u (hash, number, text, label) WHERE t.hash = u.hash",
            list(new),
            list(range(size, size + len(new))),
            [to_text(entry.text) for entry in new.values()],
            [to_text(entry.label) for entry in new.values()],
        )
        if labels:
            await connection.execute(
                f"UPDATE {table} t SET label = u.label "
                "FROM unnest($1::bytea[], $2::text[]) u (hash, label) WHERE t.hash = u.hash",
                list(labels),
                list(labels.values()),
            )
        await connection.execute(
            "UPDATE embedders SET size = $2 WHERE id = $1", embedder.id, size + len(new)
        )
    return size + len(new)


async def _size(connection: Any, embedder: int, lock: str = "") -> int:
    query = f"SELECT size FROM embedders WHERE id = $1 {lock}"
    return int(await connection.fetchval(query, embedder))


async def remove_texts(connection: Any, embedder: EmbedderRow, hashes: Sequence[bytes]) -> int:
    """Remove texts from the pool; returns how many were in it.

    Their vectors stay, and a running search can still fetch their texts.
    """
    async with connection.transaction():
        await _size(connection, embedder.id, "FOR UPDATE")
        done = await connection.execute(
            f"INSERT INTO {embedder.removed} (number, hash) SELECT number, hash "
            f"FROM {embedder.texts} WHERE hash = ANY($1) AND number IS NOT NULL",
            hashes,
        )
        count = int(done.split()[-1])
        await connection.execute(
            f"UPDATE {embedder.texts} SET number = NULL, label = NULL "
            "WHERE hash = ANY($1) AND number IS NOT NULL",
            hashes,
        )
        await connection.execute(
            "UPDATE embedders SET removals = removals + $2 WHERE id = $1", embedder.id, count
        )
    return count


async def nearest(
    connection: Any,
    embedder: EmbedderRow,
    queries: Sequence[bytes],
    count: int,
    limit: int,
    *,
    graph: bool,
) -> Nearest:
    """Return the best `count` texts numbered below `limit` for each query, in one statement.

    Without the graph, each query is compared with every text. The graph is approximate, and may
    miss some: an iterative scan continues until enough rows pass the filter, or `max_scan_tuples`
    is reached. Vectors with too many dimensions for a graph are searched by their signs and then
    re-ranked.
    """
    pooled = f"FROM {embedder.texts} WHERE number IS NOT NULL AND number < $2"
    # without index scans, all rows are read and sorted
    settings = "SET LOCAL enable_indexscan = off"
    if graph:
        wanted = count * _BIT_FACTOR if uses_bits(embedder.dim) else count
        ef_search = min(max(_EF_SEARCH, 2 * wanted), _MAX_EF_SEARCH)
        settings = (
            # forces the graph: every other plan has to sort
            "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; "
            "SET LOCAL enable_sort = off; SET LOCAL hnsw.iterative_scan = relaxed_order; "
            f"SET LOCAL hnsw.ef_search = {ef_search}; "
            f"SET LOCAL hnsw.max_scan_tuples = {max(_MAX_SCAN_TUPLES, 4 * wanted)}"
        )
        if uses_bits(embedder.dim):
            signs = f"binary_quantize(%s)::bit({embedder.dim})"
            order = f"{signs % 'vector'} <~> {signs % 'q.vector'}"
            pooled = (
                f"FROM (SELECT hash, number, vector {pooled} ORDER BY {order} LIMIT {wanted}) c"
            )
    # the comment separates the cached plan of a scan, keyed by the statement, from the graph's
    select = (
        f"SELECT {'' if graph else '/* scan */'} hash, number, vector <#> q.vector AS distance "
        f"{pooled} ORDER BY vector <#> q.vector LIMIT $3"
    )
    found: Nearest = [[] for _ in queries]
    # SET LOCAL ends with the transaction; one round trip for all settings
    await connection.execute(f"BEGIN READ ONLY; {settings}")
    try:
        rows = await connection.fetch(
            "SELECT q.place, c.hash, c.number, c.distance "
            "FROM unnest($1::halfvec[]) WITH ORDINALITY q (vector, place) "
            f"CROSS JOIN LATERAL ({select}) c",
            queries,
            limit,
            count,
        )
    finally:
        if not connection.is_closed():
            await connection.execute("ROLLBACK")
    for place, text_hash, number, distance in rows:
        found[place - 1].append((text_hash, number, -distance))
    return found
