"""Queries on vectors and on the texts of pools, in statements that sqlite3 caches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from sqlite3 import Connection
from typing import Any

import numpy as np
import orjson

from testnuc._base.arrays import Float16s
from testnuc.index.nearest import DamagedIndexError, SavedGraph
from testnuc.protocols import PoolText
from testnuc.stores.sql_store import DamagedRowError, check_vectors, of_types, pool_text
from testnuc.stores.sqlite.database import POOL_SHIFT

#: Parameters per statement; older versions of SQLite allow 999.
_BOUND = 500
#: Stored form of a vector: little-endian float16 on every machine.
_VECTOR = np.dtype("<f2")
#: Vectors of the texts that are in a pool.
_POOLED = "vectors JOIN pool ON pool.vector = vectors.id AND removed IS NULL"


@dataclass(frozen=True, slots=True)
class PoolState:
    """The state of an embedder and its pool."""

    #: The embedder's id.
    embedder: int
    dim: int
    #: Numbers assigned so far.
    size: int
    #: Texts removed so far.
    removals: int
    #: JSON of the latest saved graph.
    saved: str | None

    @property
    def first(self) -> int:
        """The ``pool.id`` of number 0."""
        return self.embedder << POOL_SHIFT

    def graph(self) -> SavedGraph | None:
        """Return the saved graph; raises `DamagedIndexError` if it cannot be used."""
        if self.saved is None:
            return None
        try:
            facts = dict(orjson.loads(self.saved))
        except (TypeError, ValueError) as exc:
            raise DamagedIndexError("its record in the store is damaged") from exc
        saved = SavedGraph.of(facts)
        if saved.dim != self.dim or saved.rows > self.size:
            raise DamagedIndexError("the index was saved from other content")
        return saved


def state(connection: Connection, embedder: str) -> PoolState | None:
    """Return the state of an embedder; None if it has never had a vector."""
    row = connection.execute(
        "SELECT id, dim, size, removals, saved FROM embedders WHERE name = ?", (embedder,)
    ).fetchone()
    if row is None:
        return None
    dim, size, removals = of_types(row[1:4], int, int, int)
    if not (0 <= removals <= size < 1 << POOL_SHIFT and 0 <= dim < 1 << POOL_SHIFT):
        raise DamagedRowError(f"the numbers of an embedder are {row[1:4]}")
    return PoolState(*row)


def select_in(
    connection: Connection, statement: str, values: Sequence[Any], *first: Any
) -> Iterator[Any]:
    """Yield the rows of a statement that ends with ``IN``, for any number of values.

    `first` are the parameters before the values.
    """
    for start in range(0, len(values), _BOUND):
        part = values[start : start + _BOUND]
        marks = ",".join("?" * len(part))
        yield from connection.execute(f"{statement} ({marks})", (*first, *part)).fetchall()


def select_texts(
    connection: Connection, now: PoolState, hashes: Sequence[bytes], columns: str
) -> list[Any]:
    """Return columns of those texts that are in the pool."""
    statement = f"SELECT {columns} FROM {_POOLED} WHERE embedder = ? AND hash IN"
    return [*select_in(connection, statement, hashes, now.embedder)]


def labeled(connection: Connection, now: PoolState) -> list[tuple[bytes, str]]:
    """Return hash and label of the texts in the pool with a known label."""
    statement = f"SELECT hash, label FROM {_POOLED} WHERE pool.id BETWEEN ? AND ? AND label NOTNULL"
    return connection.execute(statement, (now.first, now.first + now.size)).fetchall()


def select_vectors(
    connection: Connection, embedder: str, hashes: Sequence[bytes], *, pooled: bool = False
) -> list[Float16s | None]:
    """Return the stored vector of each text; with `pooled`, only of texts in the pool."""
    now = state(connection, embedder)
    if now is None:
        return [None] * len(hashes)
    table = _POOLED if pooled else "vectors"
    statement = f"SELECT hash, vectors.vector FROM {table} WHERE embedder = ? AND hash IN"
    rows = list(select_in(connection, statement, hashes, now.embedder))
    vectors = to_vectors([blob for _, blob in rows], now.dim)
    found = dict(zip([text_hash for text_hash, _ in rows], vectors, strict=True))
    return [found.get(h) for h in hashes]


def to_vectors(blobs: Sequence[bytes], dim: int) -> Float16s:
    """Decode stored vectors to float16[n, dim]; raises `DamagedRowError` if one is damaged."""
    size = dim * _VECTOR.itemsize
    for blob in blobs:
        if type(blob) is not bytes or len(blob) != size:
            raise DamagedRowError(f"a vector is {blob!r:.40} instead of {size} bytes")
    vectors = np.frombuffer(b"".join(blobs), dtype=_VECTOR).reshape(len(blobs), dim)
    if not np.isfinite(vectors).all():
        raise DamagedRowError("a vector contains NaN or infinity")
    return vectors.astype(np.float16, copy=False)


def insert_vectors(
    connection: Connection, embedder: str, hashes: Sequence[bytes], vectors: Float16s
) -> PoolState:
    """Insert vectors, and the embedder if it is new; existing ones are not changed."""
    statement = "INSERT INTO embedders (name, dim) VALUES (?, ?) ON CONFLICT DO NOTHING"
    connection.execute(statement, (embedder, vectors.shape[1]))
    now = state(connection, embedder)
    assert now is not None
    check_vectors(embedder, now.dim, vectors)
    plain = vectors.astype(_VECTOR, copy=False)
    connection.executemany(
        "INSERT INTO vectors (embedder, hash, vector) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        ((now.embedder, h, v.tobytes()) for h, v in zip(hashes, plain, strict=True)),
    )
    return now


def insert_texts(
    connection: Connection, embedder: str, texts: Sequence[PoolText], vectors: Float16s
) -> int:
    """Add the texts that are not in the pool; returns its size. Existing vectors stay."""
    hashes = [entry.hash for entry in texts]
    now = insert_vectors(connection, embedder, hashes, vectors)
    statement = (
        "SELECT hash, vectors.id, pool.id FROM vectors LEFT JOIN pool "
        "ON pool.vector = vectors.id AND removed IS NULL WHERE embedder = ? AND hash IN"
    )
    rows = select_in(connection, statement, hashes, now.embedder)
    known: dict[bytes, tuple[int, int | None]] = {h: (vector, row) for h, vector, row in rows}
    new: list[tuple[int, int, str, str | None]] = []
    labels: list[tuple[str, int]] = []
    for entry in texts:
        vector, row = known[entry.hash]
        if row is None:
            row = now.first + now.size + len(new)
            known[entry.hash] = (vector, row)
            new.append((row, vector, entry.text, entry.label))
        elif entry.label is not None:
            labels.append((entry.label, row))
    size = now.size + len(new)
    connection.executemany("INSERT INTO pool (id, vector, text, label) VALUES (?, ?, ?, ?)", new)
    connection.executemany("UPDATE pool SET label = ? WHERE id = ?", labels)
    if new:
        connection.execute("UPDATE embedders SET size = ? WHERE id = ?", (size, now.embedder))
    return size


def size_with(connection: Connection, now: PoolState, texts: Sequence[PoolText]) -> int | None:
    """Return the size of the pool if there is nothing to add: it holds the texts."""
    hashes = list({entry.hash for entry in texts})
    if any(entry.label is not None for entry in texts):
        return None
    held = select_texts(connection, now, hashes, "1")
    return now.size if len(held) == len(hashes) else None


def remove_texts(connection: Connection, embedder: str, hashes: Sequence[bytes]) -> int:
    """Remove texts from the pool; returns how many were in it."""
    now = state(connection, embedder)
    if now is None:
        return 0
    rows = select_texts(connection, now, list(dict.fromkeys(hashes)), "pool.id")
    gone = [(now.removals + i, row) for i, (row,) in enumerate(rows, 1)]
    connection.executemany("UPDATE pool SET removed = ? WHERE id = ?", gone)
    connection.execute(
        "UPDATE embedders SET removals = removals + ? WHERE id = ?", (len(gone), now.embedder)
    )
    return len(gone)


def erase_texts(connection: Connection, hashes: Sequence[bytes]) -> set[bytes]:
    """Delete predictions, vectors and texts; returns the hashes of which there was something."""
    rows = dict(select_in(connection, "SELECT id, hash FROM vectors WHERE hash IN", hashes))
    predicted = select_in(connection, "SELECT text FROM predictions WHERE text IN", hashes)
    found = {*rows.values(), *(text for (text,) in predicted)}
    list(select_in(connection, "DELETE FROM predictions WHERE text IN", hashes))
    for (name,) in connection.execute("SELECT name FROM embedders").fetchall():
        remove_texts(connection, name, hashes)
    # the numbers of a pool have no gaps, so an empty row stays
    for statement in (
        "UPDATE pool SET text = '', label = NULL WHERE vector IN",
        "DELETE FROM vectors WHERE id NOT IN (SELECT vector FROM pool) AND id IN",
        "UPDATE vectors SET hash = randomblob(16), vector = zeroblob(length(vector)) WHERE id IN",
    ):
        list(select_in(connection, statement, [*rows]))
    connection.execute("UPDATE embedders SET saved = NULL")
    return found


def texts_of(
    connection: Connection, now: PoolState, ids: Sequence[int]
) -> list[tuple[int, PoolText]]:
    """Return the texts with these numbers, each with its own, including removed ones."""
    columns, joined = "pool.id, text, hash, label", "pool JOIN vectors ON vectors.id = pool.vector"
    statement = f"SELECT {columns} FROM {joined} WHERE pool.id IN"
    rows = select_in(connection, statement, [now.first + i for i in ids])
    return [(row - now.first, pool_text(text)) for row, *text in rows]


def texts_between(
    connection: Connection, now: PoolState, columns: str, start: int, end: int
) -> list[Any]:
    """Return columns of the texts with numbers from `start` to `end`, exclusive, in their order.

    Removed ones are included.
    """
    return connection.execute(
        f"SELECT {columns} FROM pool JOIN vectors ON vectors.id = pool.vector "
        "WHERE pool.id >= ? AND pool.id < ? ORDER BY pool.id",
        (now.first + start, now.first + end),
    ).fetchall()
