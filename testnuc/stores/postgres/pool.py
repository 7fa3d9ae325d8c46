"""The pool of the PostgreSQL store, searched in the database."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Unpack

import numpy as np

from testnuc._base.arrays import Float16s, Float32s, Int64s
from testnuc.errors import StoreError
from testnuc.index.matching import SCORE_SLACK, Where, check_dim, empty_matches, ranks_of
from testnuc.index.nearest import NearestVectors
from testnuc.protocols import Index, Matches, PoolText
from testnuc.stores.postgres import database as db
from testnuc.stores.postgres.database import EmbedderRow, PostgresDatabase, to_text, to_vectors
from testnuc.stores.sql_store import pool_text, rows_of

#: Texts added per transaction; bounds how long other writers wait.
_ADD_CHUNK = 500
#: Texts fetched per statement.
_FETCH_CHUNK = 2_000
#: Ends with a condition.
_LABELED = "SELECT hash, label FROM {texts} WHERE number IS NOT NULL AND label IS NOT NULL"
#: Queries per statement, and concurrent statements.
_QUERY_CHUNK = 32
_CONCURRENCY = 4
#: Up to this many queries, the server scans a small pool. For more, fetching its vectors once is
#: faster than that many table scans.
_FEW_QUERIES = 8
#: Seconds between polls while another process builds the graph.
_POLL_INTERVAL = 0.2
#: Candidates fetched beyond k, so that re-scoring can change their order.
_EXTRA = 8
#: Per query: hash, number and inner product of candidates, best first.
_Nearest = list[list[tuple[bytes, int, float]]]

#: Least and largest ``hnsw.ef_search``; pgvector allows up to 1,000.
_EF_SEARCH, _MAX_EF_SEARCH = 160, 1_000
#: Least ``hnsw.max_scan_tuples``; pgvector's default.
_MAX_SCAN_TUPLES = 20_000


@dataclass(frozen=True, slots=True)
class _Scan:
    """What the server searches: texts numbered below `limit`, by the graph or one by one."""

    embedder: EmbedderRow
    limit: int
    graph: bool


class PostgresPool(Index):
    """The pool of one embedder, shared by many processes.

    Texts are committed when `add` returns; existing vectors are not changed.

    Row numbers are equal in all processes, so a snapshot is valid in all of them. With fewer texts
    than `exact_below` the search is exact.
    """

    def __init__(self, database: PostgresDatabase, embedder: str, *, exact_below: int) -> None:
        self._database = database
        self._name = embedder
        self._exact_below = exact_below
        self._count = 0
        self._indexed = False
        self._building: asyncio.Task[None] | None = None
        self._slots = asyncio.Semaphore(_CONCURRENCY)

    def __len__(self) -> int:
        """Return the number of texts as of the latest operation."""
        return self._count

    async def open(self) -> None:
        """Read the size of the pool."""
        await self._now()

    async def close(self) -> None:
        """Cancel a running graph build; the store closes the connections."""
        if self._building is not None:
            self._building.cancel()
            await asyncio.wait([self._building])

    async def add(self, texts: Sequence[PoolText], vectors: Float16s) -> int:
        if not len(texts):
            now = await self._now()
            return 0 if now is None else now.size
        embedder = await self._database.require_embedder(self._name, vectors)
        insert = partial(_insert_texts, embedder=embedder)

        async def add() -> int:
            size = 0
            for start in range(0, len(texts), _ADD_CHUNK):
                part = slice(start, start + _ADD_CHUNK)
                work = partial(insert, texts=texts[part], vectors=vectors[part])
                size = await self._database.run(work)
            return size

        size = await self._database.finish(add())
        await self._now()
        return size

    async def remove(self, hashes: Sequence[bytes]) -> int:
        embedder = await self._database.embedder(self._name)
        if embedder is None:
            return 0
        remove = partial(_remove_texts, embedder=embedder, hashes=sorted(set(hashes)))
        count = await self._database.finish(self._database.run(remove))
        await self._now()
        return count

    async def search(self, vectors: Float16s, k: int, **where: Unpack[Where]) -> Matches:
        matches = empty_matches(len(vectors), k)
        exclude, upto, among = where.get("exclude"), where.get("upto"), where.get("among")
        now = await self._now()
        if now is None or not len(vectors) or not k:
            return matches
        check_dim(vectors, now.dim)
        limit = now.size if upto is None else min(upto, now.size)
        own = list(exclude) if exclude is not None else [b""] * len(vectors)
        few = len(vectors) <= _FEW_QUERIES
        if among is not None or (limit < self._exact_below and not few):
            which = ">= $1 AND number < $2"
            parts: Iterable[tuple[Any, ...]] = pairwise([*range(0, limit, _FETCH_CHUNK), limit])
            if among is not None:
                which, parts = "= ANY($1)", _parts(among[among < limit].tolist())
            query = "SELECT hash, number, vector FROM {texts} WHERE number " + which
            read = [part async for part in self.vectors(f"{query} ORDER BY number", parts)]
            if read:
                rows = [row for some, _ in read for row in some]
                pool = np.concatenate([part for _, part in read])
                del read
                await _rank(matches, vectors, own, rows, pool)
            return matches
        graph = (
            limit >= self._exact_below
            and now.dim <= db.MAX_GRAPH_DIM
            and await self._graph(now, wait=not few)
        )
        scan, step = _Scan(now, limit, graph), _QUERY_CHUNK if graph else 1
        searches = (
            self._search_on_server(scan, matches, vectors, own, slice(start, start + step))
            for start in range(0, len(vectors), step)
        )
        tasks = [asyncio.create_task(search) for search in searches]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return matches

    async def fetch(self, ids: Int64s) -> list[PoolText]:
        numbers = ids.tolist()
        rows = await self.read(
            "SELECT number, text, hash, label FROM {texts} WHERE number = ANY($1) UNION ALL "
            "SELECT r.number, t.text, r.hash, NULL FROM {removed} r "
            "JOIN {texts} t USING (hash) WHERE r.number = ANY($1)",
            _parts(numbers),
        )
        found = {number: self._text(*text) for number, *text in rows}
        try:
            return [found[number] for number in numbers]
        except KeyError as exc:
            raise StoreError(f"the pool of {self._name!r} has no text {exc}") from exc

    async def scan(self, start: int, count: int) -> tuple[list[PoolText], int | None]:
        now, end = await self._now(), start + count
        if now is None:
            return [], None
        rows = await self.read(
            "SELECT text, hash, label FROM {texts} WHERE number >= $1 AND number < $2 "
            "ORDER BY number",
            [(start, end)],
        )
        if not rows:
            # a damaged counter must not make this read on for ever
            ((next_one,),) = await self.read(
                "SELECT min(number) FROM {texts} WHERE number >= $1", [(end,)]
            )
            return [], next_one
        return [self._text(*row) for row in rows], end if end < now.size else None

    async def labels(self, hashes: Sequence[bytes]) -> list[str | None]:
        rows = await self.read(f"{_LABELED} AND hash = ANY($1)", _parts(hashes))
        found: dict[bytes, str] = dict(rows)
        return [found.get(h) for h in hashes]

    async def rows(self, hashes: Sequence[bytes]) -> Int64s:
        rows = await self.read(
            "SELECT number FROM {texts} WHERE hash = ANY($1) AND number IS NOT NULL", _parts(hashes)
        )
        return np.unique(np.array([number for (number,) in rows], dtype=np.int64))

    async def labeled(self) -> dict[bytes, str]:
        return dict(await self.read(_LABELED, [()]))

    async def stored_vectors(
        self, hashes: Sequence[bytes], *, pooled: bool = True
    ) -> list[Float16s | None]:
        """Return the vector of each text, float16[dim]; None if it is not in the pool.

        Unless `pooled`, texts outside the pool have a vector, too.
        """
        query = "SELECT hash, vector FROM {texts} WHERE hash = ANY($1)"
        query += " AND number IS NOT NULL" if pooled else ""
        found: dict[bytes, Float16s] = {}
        async for rows, vectors in self.vectors(query, _parts(hashes)):
            found.update((h, vector) for (h,), vector in zip(rows, vectors, strict=True))
        return [found.get(h) for h in hashes]

    def _text(self, *row: Any) -> PoolText:
        with rows_of(self._database.address.public):
            return pool_text(row)

    async def read(self, query: str, parts: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Read rows of the embedder's tables, once for each of `parts`; none without tables."""
        known = await self._database.embedder(self._name)
        rows: list[Any] = []
        if known is not None:
            for values in parts:
                rows += await self._database.fetch(
                    query.format(texts=known.texts, removed=known.removed), *values
                )
        return rows

    async def vectors(
        self, query: str, parts: Iterable[tuple[Any, ...]]
    ) -> AsyncGenerator[tuple[list[Any], Float16s], None]:
        """Read rows that end with a vector, part by part: what is before it, and the vectors.

        The server's form of all of them would need as much memory again.
        """
        for values in parts:
            rows = await self.read(query, [values])
            if rows:
                known = await self._database.embedder(self._name)
                assert known is not None
                with rows_of(self._database.address.public):
                    vectors = db.from_vectors([row[-1] for row in rows], known.dim)
                yield [row[:-1] for row in rows], vectors

    async def _now(self) -> EmbedderRow | None:
        now = await self._database.now(self._name)
        self._count = 0 if now is None else now.size - now.removals
        return now

    async def _graph(self, now: EmbedderRow, *, wait: bool) -> bool:
        """Return whether the graph can be searched; starts a build if it is missing.

        The graph is built for the first search that needs it, not while texts are added: a bulk
        build is several times faster. Cancelling a search does not stop the build.
        """
        if not self._indexed:
            if self._building is None or self._building.done():
                self._building = asyncio.create_task(self._build(now), name="testnuc-graph")
                # its exception counts as read, also where no search waits for it
                self._building.add_done_callback(lambda task: task.cancelled() or task.exception())
            if wait:
                await asyncio.shield(self._building)
        return self._indexed

    async def _build(self, now: EmbedderRow) -> None:
        build = partial(db.index_texts, number=now.id)
        while not await self._database.run(build):  # noqa: ASYNC110 - another process builds it
            await asyncio.sleep(_POLL_INTERVAL)
        self._indexed = True

    async def _search_on_server(
        self, scan: _Scan, matches: Matches, vectors: Float16s, own: Sequence[bytes], part: slice
    ) -> None:
        """Search candidates on the server, then compare with them exactly in this process."""
        async with self._slots:
            queries = to_vectors(vectors[part])
            candidates = await self._candidates(scan, queries, own[part], matches.ids.shape[1])
            rows = sorted({(h, number) for row in candidates for h, number, _ in row})
            if not rows:
                return
            stored = await self.stored_vectors([h for h, _ in rows], pooled=False)
        half = [vector for vector in stored if vector is not None]
        if len(half) < len(rows):
            raise StoreError("vectors disappeared; is another process deleting them?")
        some = Matches(matches.ids[part], matches.similarities[part])
        await _rank(some, vectors[part], own[part], rows, np.stack(half))

    async def _candidates(
        self, scan: _Scan, queries: Sequence[bytes], own: Sequence[bytes], k: int
    ) -> _Nearest:
        """Return candidates that include the k best of each query, without its own text."""
        found: _Nearest = [[] for _ in queries]
        count, pending = k + 1 + _EXTRA, list(range(len(queries)))
        while pending:
            rows = await self._database.run(
                partial(_nearest, scan=scan, queries=[queries[i] for i in pending], count=count)
            )
            incomplete = []
            for i, row in zip(pending, rows, strict=True):
                found[i] = [c for c in row if c[0] != own[i]]
                if scan.graph:
                    # too many rows of the graph were outside the snapshot
                    lacks = len(found[i]) < min(k, scan.limit - scan.embedder.removals - 1)
                else:
                    # rows beyond `count` may be among the best k after re-scoring
                    lacks = len(row) == count and (row[-1][2] >= found[i][k - 1][2] - SCORE_SLACK)
                if lacks:
                    incomplete.append(i)
            # by a scan, which looks further each time
            pending, count = incomplete, count if scan.graph else 4 * count
            scan = replace(scan, graph=False)
        return found


async def _rank(
    matches: Matches,
    vectors: Float16s,
    own: Sequence[bytes],
    rows: Sequence[tuple[bytes, int]],
    pool: Float16s,
) -> None:
    """Write the best of some rows, hashes and numbers with these vectors, into the matches."""
    hashes = [h for h, _ in rows]
    numbers = np.array([number for _, number in rows], dtype=np.int64)
    places = {h: place for place, h in enumerate(hashes)}
    exclude = np.array([places.get(h, -1) for h in own], dtype=np.int64)

    def compare() -> tuple[Int64s, Float32s]:
        # from half of that size on, a graph would be made
        nearest = NearestVectors(pool.shape[1], exact_below=2 * len(pool) + 2)
        nearest.add(pool, ranks_of(hashes))
        return nearest.search(vectors, matches.ids.shape[1], exclude=exclude)

    ids, similarities = await asyncio.to_thread(compare)
    matches.ids[:] = np.where(ids >= 0, numbers[ids], -1)
    matches.similarities[:] = similarities


def _parts(values: Sequence[Any]) -> list[tuple[list[Any]]]:
    """Return the values in parts, each the one parameter of a statement."""
    starts = range(0, len(values), _FETCH_CHUNK)
    return [(list(values[start : start + _FETCH_CHUNK]),) for start in starts]


async def insert_vectors(
    connection: Any, known: EmbedderRow, hashes: Sequence[bytes], vectors: Float16s
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


async def _insert_texts(
    connection: Any, embedder: EmbedderRow, texts: Sequence[PoolText], vectors: Float16s
) -> int:
    """Add the texts that are not in the pool; returns its size. Existing vectors stay."""
    hashes = [entry.hash for entry in texts]
    table = embedder.texts
    rows = await connection.fetch(
        f"SELECT hash, number, label FROM {table} WHERE hash = ANY($1)", hashes
    )
    known = {h: (number, db.from_text(label)) for h, number, label in rows}
    missing = [i for i, h in enumerate(hashes) if h not in known]
    if missing:
        await insert_vectors(connection, embedder, [hashes[i] for i in missing], vectors[missing])
    pairs = [(entry.label, *known[entry.hash]) for entry in texts if entry.hash in known]
    held = all(number is not None and own in (None, label) for own, number, label in pairs)
    if held and not missing:
        return await _size(connection, embedder.id)
    async with connection.transaction():
        # waits until the transaction that assigned the previous numbers has committed
        size = await _size(connection, embedder.id, "FOR UPDATE")
        query = f"SELECT hash FROM {table} WHERE hash = ANY($1) AND number IS NOT NULL"
        numbered = {row["hash"] for row in await connection.fetch(query, hashes)}
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
            statement = (
                f"UPDATE {table} t SET label = u.label "
                "FROM unnest($1::bytea[], $2::text[]) u (hash, label) WHERE t.hash = u.hash"
            )
            await connection.execute(statement, list(labels), list(labels.values()))
        await connection.execute(
            "UPDATE embedders SET size = $2 WHERE id = $1", embedder.id, size + len(new)
        )
    return size + len(new)


async def _size(connection: Any, embedder: int, lock: str = "") -> int:
    query = f"SELECT size FROM embedders WHERE id = $1 {lock}"
    return int(await connection.fetchval(query, embedder))


async def _remove_texts(connection: Any, embedder: EmbedderRow, hashes: Sequence[bytes]) -> int:
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


async def _nearest(connection: Any, scan: _Scan, queries: Sequence[bytes], count: int) -> _Nearest:
    """Return the best `count` texts of a scan for each query, in one statement.

    Without the graph, each query is compared with every text. The graph is approximate, and may
    miss some: an iterative scan continues until enough rows pass the filter, or `max_scan_tuples`
    is reached.
    """
    # without index scans, all rows are read and sorted
    settings = "SET LOCAL enable_indexscan = off"
    if scan.graph:
        ef_search = min(max(_EF_SEARCH, 2 * count), _MAX_EF_SEARCH)
        settings = (
            # forces the graph: every other plan has to sort
            "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; "
            "SET LOCAL enable_sort = off; SET LOCAL hnsw.iterative_scan = relaxed_order; "
            f"SET LOCAL hnsw.ef_search = {ef_search}; "
            f"SET LOCAL hnsw.max_scan_tuples = {max(_MAX_SCAN_TUPLES, 4 * count)}"
        )
    # the comment separates the cached plan of a scan, keyed by the statement, from the graph's
    select = (
        f"SELECT {'' if scan.graph else '/* scan */'} hash, number, vector <#> q.vector distance "
        f"FROM {scan.embedder.texts} WHERE number IS NOT NULL AND number < $2 "
        "ORDER BY vector <#> q.vector LIMIT $3"
    )
    found: _Nearest = [[] for _ in queries]
    # SET LOCAL ends with the transaction; one round trip for all settings
    try:
        await connection.execute(f"BEGIN READ ONLY; {settings}")
        statement = (
            "SELECT q.place, c.hash, c.number, c.distance FROM unnest($1::halfvec[]) "
            f"WITH ORDINALITY q (vector, place) CROSS JOIN LATERAL ({select}) c"
        )
        rows = await connection.fetch(statement, queries, scan.limit, count)
    finally:
        if not connection.is_closed():
            await connection.execute("ROLLBACK")
    for place, text_hash, number, distance in rows:
        found[place - 1].append((text_hash, number, -distance))
    return found
