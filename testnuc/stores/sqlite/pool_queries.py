"""Queries on pool rows: texts and their numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import orjson

from testnuc.errors import StoreError
from testnuc.index import DamagedIndexError, SavedIndex, ranks_of
from testnuc.protocols import PoolText
from testnuc.stores.sqlite.queries import (
    OF_EMBEDDER,
    checked_count,
    insert_vectors,
    select_in,
    to_vectors,
)
from testnuc.stores.sqlite.schema import first_id

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_POOLED = "vectors JOIN pool ON pool.vector = vectors.id AND removed IS NULL"


@dataclass(frozen=True, slots=True)
class PoolState:
    """The state of a pool."""

    #: The embedder's id.
    embedder: int
    dim: int
    #: Numbers assigned so far.
    size: int
    #: Texts removed so far.
    removals: int
    #: JSON of the latest saved index.
    saved: str | None

    def index(self) -> SavedIndex | None:
        """Return the saved index; raises `DamagedIndexError` if it cannot be used."""
        if self.saved is None:
            return None
        try:
            facts = dict(orjson.loads(self.saved))
        except (TypeError, ValueError) as exc:
            raise DamagedIndexError("its record in the store is damaged") from exc
        saved = SavedIndex.of(facts)
        if saved.dim != self.dim or saved.rows > self.size:
            raise DamagedIndexError("the index was saved from other content")
        return saved


def state(connection: sqlite3.Connection, embedder: str) -> PoolState | None:
    """Return the state of a pool; None if it has never had a text."""
    row = connection.execute(
        "SELECT id, dim, size, removals, saved FROM embedders WHERE name = ?", (embedder,)
    ).fetchone()
    if row is None:
        return None
    number, dim, size, removals, saved = row
    return PoolState(
        number,
        checked_count("dim", dim),
        checked_count("size", size),
        checked_count("removals", removals),
        saved,
    )


def insert_texts(
    connection: sqlite3.Connection,
    embedder: str,
    texts: Sequence[PoolText],
    vectors: NDArray[np.float16],
) -> int:
    """Add the texts that are not in the pool; returns its size. Existing vectors stay."""
    number = insert_vectors(connection, embedder, [t.hash for t in texts], vectors)
    size = int(
        connection.execute("SELECT size FROM embedders WHERE id = ?", (number,)).fetchone()[0]
    )
    rows = select_in(
        connection,
        "SELECT hash, vectors.id, pool.id FROM vectors "
        "LEFT JOIN pool ON pool.vector = vectors.id AND removed IS NULL "
        "WHERE embedder = ? AND hash IN",
        [t.hash for t in texts],
        number,
    )
    known: dict[bytes, tuple[int, int | None]] = {h: (vector, row) for h, vector, row in rows}
    new: list[tuple[int, int, str, str | None]] = []
    labels: list[tuple[str, int]] = []
    for entry in texts:
        vector, row = known[entry.hash]
        if row is None:
            row = first_id(number) + size + len(new)
            known[entry.hash] = (vector, row)
            new.append((row, vector, entry.text, entry.label))
        elif entry.label is not None:
            labels.append((entry.label, row))
    connection.executemany("INSERT INTO pool (id, vector, text, label) VALUES (?, ?, ?, ?)", new)
    connection.executemany("UPDATE pool SET label = ? WHERE id = ?", labels)
    if new:
        connection.execute("UPDATE embedders SET size = ? WHERE id = ?", (size + len(new), number))
    return size + len(new)


def remove_texts(connection: sqlite3.Connection, embedder: str, hashes: Sequence[bytes]) -> int:
    """Remove texts from the pool; returns how many were in it."""
    now = state(connection, embedder)
    if now is None:
        return 0
    rows = [row for _, row in _rows(connection, now.embedder, list(dict.fromkeys(hashes)))]
    connection.executemany(
        "UPDATE pool SET removed = ? WHERE id = ?",
        ((now.removals + i, row) for i, row in enumerate(rows, 1)),
    )
    connection.execute(
        "UPDATE embedders SET removals = removals + ? WHERE id = ?", (len(rows), now.embedder)
    )
    return len(rows)


def numbers(
    connection: sqlite3.Connection, embedder: int, hashes: Sequence[bytes]
) -> NDArray[np.int64]:
    """Return the number of each text, int64[n]; -1 if it is not in the pool."""
    found = {h: row - first_id(embedder) for h, row in _rows(connection, embedder, hashes)}
    return np.array([found.get(h, -1) for h in hashes], dtype=np.int64)


def numbers_of(
    connection: sqlite3.Connection, embedder: str, hashes: Sequence[bytes]
) -> NDArray[np.int64]:
    """Return the numbers of those texts that are in the pool."""
    now = state(connection, embedder)
    if now is None:
        return np.empty(0, dtype=np.int64)
    rows = [row for _, row in _rows(connection, now.embedder, hashes)]
    return np.array(rows, dtype=np.int64) - first_id(now.embedder)


def _rows(
    connection: sqlite3.Connection, embedder: int, hashes: Sequence[bytes]
) -> Iterator[tuple[bytes, int]]:
    statement = f"SELECT hash, pool.id FROM {_POOLED} WHERE embedder = ? AND hash IN"
    return select_in(connection, statement, hashes, embedder)


def labels_of(
    connection: sqlite3.Connection, embedder: str, hashes: Sequence[bytes]
) -> list[str | None]:
    """Return the known label of each text."""
    statement = f"SELECT hash, label FROM {_POOLED} WHERE {OF_EMBEDDER} AND hash IN"
    found = dict(select_in(connection, statement, hashes, embedder))
    return [found.get(h) for h in hashes]


def labeled(connection: sqlite3.Connection, embedder: str) -> dict[bytes, str]:
    """Return the known label of each text that has one, by hash."""
    now = state(connection, embedder)
    if now is None:
        return {}
    return dict(
        connection.execute(
            "SELECT hash, label FROM pool JOIN vectors ON vectors.id = pool.vector "
            "WHERE pool.id >= ? AND pool.id < ? AND label IS NOT NULL AND removed IS NULL",
            (first_id(now.embedder), first_id(now.embedder + 1)),
        )
    )


def numbers_removed(connection: sqlite3.Connection, embedder: int, after: int) -> NDArray[np.int64]:
    """Return the numbers of the texts that were removed after the first `after` removals."""
    rows = connection.execute(
        "SELECT id FROM pool WHERE id >= ? AND id < ? AND removed > ?",
        (first_id(embedder), first_id(embedder + 1), after),
    )
    return np.array([row - first_id(embedder) for (row,) in rows], dtype=np.int64)


def rows_from(
    connection: sqlite3.Connection, now: PoolState, start: int, count: int
) -> tuple[NDArray[np.float16], NDArray[np.uint64]]:
    """Return vectors, float16[n, dim], and ranks, uint64[n], of the numbers from `start`.

    Removed ones are included. A rank is the first 8 bytes of a text's hash.
    """
    end = min(start + count, now.size)
    rows = connection.execute(
        "SELECT hash, vectors.vector FROM pool JOIN vectors ON vectors.id = pool.vector "
        "WHERE pool.id >= ? AND pool.id < ? ORDER BY pool.id",
        (first_id(now.embedder) + start, first_id(now.embedder) + end),
    ).fetchall()
    if len(rows) != end - start:
        raise StoreError(
            f"the store is corrupt: texts are missing among the pool rows {start} to {end}; "
            "restore a backup"
        )
    vectors = to_vectors([vector for _, vector in rows], now.dim)
    return vectors, ranks_of([text_hash for text_hash, _ in rows])


def texts_of(
    connection: sqlite3.Connection, embedder: int, ids: Sequence[int]
) -> dict[int, PoolText]:
    """Return the texts with these numbers, including removed ones."""
    first = first_id(embedder)
    rows = select_in(
        connection,
        "SELECT pool.id, text, hash, label FROM pool JOIN vectors ON vectors.id = pool.vector "
        "WHERE pool.id IN",
        [first + i for i in ids],
    )
    return {row - first: PoolText(*text) for row, *text in rows}


def texts_between(
    connection: sqlite3.Connection, embedder: int, start: int, end: int
) -> list[PoolText]:
    """Return the texts in the pool with numbers from `start` to `end`, exclusive."""
    rows = connection.execute(
        "SELECT text, hash, label FROM pool JOIN vectors ON vectors.id = pool.vector "
        "WHERE pool.id >= ? AND pool.id < ? AND removed IS NULL ORDER BY pool.id",
        (first_id(embedder) + start, first_id(embedder) + end),
    )
    return [PoolText(*row) for row in rows]


def replace_saved(
    connection: sqlite3.Connection, embedder: int, before: str | None, now: SavedIndex
) -> bool:
    """Record a saved index (compare-and-set); False if another process has saved meanwhile."""
    done = connection.execute(
        "UPDATE embedders SET saved = ? WHERE id = ? AND saved IS ?",
        (orjson.dumps(now.facts()).decode(), embedder, before),
    )
    return done.rowcount == 1
