"""Queries on predictions and vectors, in statements that sqlite3 caches."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from testnuc.errors import StoreError
from testnuc.stores.sql_store import DamagedRowError, check_vectors, to_prediction
from testnuc.stores.sqlite.errors import require_store
from testnuc.stores.sqlite.schema import POOL_SHIFT

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from testnuc.protocols import StoredPrediction
    from testnuc.types import Prediction

#: Parameters per statement; older versions of SQLite allow 999.
_BOUND = 500
#: Stored form of a vector: little-endian float16 on every machine.
VECTOR = np.dtype("<f2")
OF_EMBEDDER = "embedder = (SELECT id FROM embedders WHERE name = ?)"


def select_in(
    connection: sqlite3.Connection, statement: str, values: Sequence[Any], *first: Any
) -> Iterator[Any]:
    """Yield the rows of a statement that ends with ``IN``, for any number of values.

    `first` are the parameters before the values.
    """
    for start in range(0, len(values), _BOUND):
        part = values[start : start + _BOUND]
        marks = ",".join("?" * len(part))
        yield from connection.execute(f"{statement} ({marks})", (*first, *part)).fetchall()


def insert_predictions(
    connection: sqlite3.Connection, rows: Sequence[StoredPrediction]
) -> list[Prediction]:
    """Insert predictions; the first one under a key wins. Returns the stored ones."""
    scopes: dict[bytes, int] = {}
    stored = []
    for row in rows:
        scope = scopes.get(row.scope)
        if scope is None:
            scope = scopes[row.scope] = _scope(connection, row.scope)
        new = row.prediction
        done = connection.execute(
            "INSERT INTO predictions (key, scope, text, sample, label, confidence, said) "
            "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (row.key, scope, row.text_hash, row.sample, new.label, new.confidence, new.said),
        )
        if done.rowcount:
            stored.append(new)
        else:
            found = connection.execute(
                "SELECT label, confidence, said FROM predictions WHERE key = ?", (row.key,)
            )
            stored.append(to_prediction(*found.fetchone()))
    return stored


def _scope(connection: sqlite3.Connection, scope: bytes) -> int:
    connection.execute(
        "INSERT INTO scopes (scope, facts) VALUES (?, '{}') ON CONFLICT DO NOTHING", (scope,)
    )
    found = connection.execute("SELECT id FROM scopes WHERE scope = ?", (scope,))
    return int(found.fetchone()[0])


def select_predictions(
    connection: sqlite3.Connection, keys: Sequence[bytes]
) -> list[Prediction | None]:
    """Return the stored prediction for each key; None if missing."""
    rows = select_in(
        connection, "SELECT key, label, confidence, said FROM predictions WHERE key IN", keys
    )
    found = {key: to_prediction(*said) for key, *said in rows}
    return [found.get(key) for key in keys]


def insert_vectors(
    connection: sqlite3.Connection,
    embedder: str,
    hashes: Sequence[bytes],
    vectors: NDArray[np.float16],
) -> int:
    """Insert vectors, and the embedder if it is new; existing ones are not changed.

    Returns the embedder's id.
    """
    connection.execute(
        "INSERT INTO embedders (name, dim) VALUES (?, ?) ON CONFLICT DO NOTHING",
        (embedder, vectors.shape[1]),
    )
    number, dim = connection.execute(
        "SELECT id, dim FROM embedders WHERE name = ?", (embedder,)
    ).fetchone()
    check_vectors(embedder, dim, vectors)
    plain = vectors.astype(VECTOR, copy=False)
    connection.executemany(
        "INSERT INTO vectors (embedder, hash, vector) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        ((number, h, v.tobytes()) for h, v in zip(hashes, plain, strict=True)),
    )
    return int(number)


def select_vectors(
    connection: sqlite3.Connection, embedder: str, hashes: Sequence[bytes], *, pooled: bool = False
) -> list[NDArray[np.float16] | None]:
    """Return the stored vector of each text; with `pooled`, only of texts in the pool."""
    where = "JOIN pool ON pool.vector = vectors.id AND removed IS NULL" if pooled else ""
    statement = f"SELECT hash, vectors.vector FROM vectors {where} WHERE {OF_EMBEDDER} AND hash IN"
    rows = list(select_in(connection, statement, hashes, embedder))
    vectors = to_vectors([blob for _, blob in rows], _dim(connection, embedder))
    found = dict(zip([text_hash for text_hash, _ in rows], vectors, strict=True))
    return [found.get(h) for h in hashes]


def to_vectors(blobs: Sequence[bytes], dim: int) -> NDArray[np.float16]:
    """Decode stored vectors to float16[n, dim]; raises `DamagedRowError` if one is damaged."""
    size = dim * VECTOR.itemsize
    for blob in blobs:
        if type(blob) is not bytes or len(blob) != size:
            raise DamagedRowError(f"a vector is {blob!r:.40} instead of {size} bytes")
    vectors = np.frombuffer(b"".join(blobs), dtype=VECTOR).reshape(len(blobs), dim)
    if not np.isfinite(vectors).all():
        raise DamagedRowError("a vector contains NaN or infinity")
    return vectors.astype(np.float16, copy=False)


def _dim(connection: sqlite3.Connection, embedder: str) -> int:
    row = connection.execute("SELECT dim FROM embedders WHERE name = ?", (embedder,)).fetchone()
    return 0 if row is None else checked_count("dim", row[0])


def checked_count(name: str, value: Any) -> int:
    """Return a stored number; raises `DamagedRowError` if it is none."""
    if type(value) is not int or not 0 <= value < 1 << POOL_SHIFT:
        raise DamagedRowError(f"{name} of an embedder is {value!r:.40}")
    return value


def page_of_vectors(
    connection: sqlite3.Connection, embedder: str, after: bytes, count: int
) -> list[tuple[bytes, NDArray[np.float16]]]:
    """Return the next vectors of an embedder, ordered by text hash."""
    rows = connection.execute(
        f"SELECT hash, vector FROM vectors WHERE {OF_EMBEDDER} AND hash > ? ORDER BY hash LIMIT ?",
        (embedder, after, count),
    ).fetchall()
    vectors = to_vectors([blob for _, blob in rows], _dim(connection, embedder))
    return list(zip([text_hash for text_hash, _ in rows], vectors, strict=True))


def answered_texts(path: str | os.PathLike[str]) -> set[bytes] | None:
    """Return the hashes of the texts that have an answer in a file; None if it is no store."""
    place = f"{Path(path).absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(place, uri=True, isolation_level=None)) as c:
            c.execute("PRAGMA trusted_schema = OFF")
            require_store(c, str(path))
            return {text for (text,) in c.execute("SELECT DISTINCT text FROM predictions")}
    except (sqlite3.Error, StoreError):
        return None
