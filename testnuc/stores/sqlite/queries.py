"""Queries on predictions, scopes and vectors, in statements that sqlite3 caches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from testnuc.errors import EmbeddingError, StoreError
from testnuc.types import Prediction

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from testnuc.protocols import StoredPrediction

__all__ = [
    "chunks",
    "describe",
    "forget",
    "get_learned",
    "insert_predictions",
    "insert_vectors",
    "placeholders",
    "predicted",
    "put_learned",
    "require_embedder",
    "select_predictions",
    "select_vectors",
    "to_vector",
]

#: Parameters per statement; older versions of SQLite allow 999.
_BOUND = 500
#: Stored form of a vector: little-endian float16 on every machine.
VECTOR = np.dtype("<f2")


def chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield the values in chunks that fit in one statement."""
    for start in range(0, len(values), _BOUND):
        yield values[start : start + _BOUND]


def placeholders(values: Sequence[Any]) -> str:
    """Return ``?,?,..``, one for each value."""
    return ",".join("?" * len(values))


def describe(connection: sqlite3.Connection, scope: bytes, facts: Mapping[str, Any]) -> None:
    """Insert or update the metadata of a scope."""
    connection.execute(
        "INSERT INTO scopes (scope, facts) VALUES (?, ?) "
        "ON CONFLICT (scope) DO UPDATE SET facts = excluded.facts WHERE facts != excluded.facts",
        (scope, orjson.dumps(dict(facts)).decode()),
    )


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
            stored.append(Prediction(*found.fetchone()))
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
    found: dict[bytes, Prediction] = {}
    for part in chunks(keys):
        rows = connection.execute(
            "SELECT key, label, confidence, said FROM predictions "  # noqa: S608 - placeholders
            f"WHERE key IN ({placeholders(part)})",
            part,
        )
        for key, label, confidence, said in rows:
            found[key] = Prediction(label, confidence, said)
    return [found.get(key) for key in keys]


def predicted(connection: sqlite3.Connection, scope: bytes) -> list[bytes]:
    """Return the hashes of the texts with a prediction in this scope."""
    rows = connection.execute(
        "SELECT DISTINCT text FROM predictions "
        "WHERE scope = (SELECT id FROM scopes WHERE scope = ?)",
        (scope,),
    )
    return [text_hash for (text_hash,) in rows]


def forget(connection: sqlite3.Connection, model: str | None, scope: bytes | None) -> int:
    """Delete the predictions of a model, or of a scope; returns their number."""
    scopes = [
        number
        for number, known, facts in connection.execute("SELECT id, scope, facts FROM scopes")
        if known == scope or (model is not None and orjson.loads(facts).get("model") == model)
    ]
    return sum(
        connection.execute("DELETE FROM predictions WHERE scope = ?", (number,)).rowcount
        for number in scopes
    )


def require_embedder(connection: sqlite3.Connection, name: str, dim: int) -> int:
    """Return the id of an embedder; inserts it if it is new.

    Raises
    ------
    StoreError
        The store contains vectors of another dimension under this name.
    """
    connection.execute(
        "INSERT INTO embedders (name, dim) VALUES (?, ?) ON CONFLICT DO NOTHING", (name, dim)
    )
    number, known = connection.execute(
        "SELECT id, dim FROM embedders WHERE name = ?", (name,)
    ).fetchone()
    if known != dim:
        raise StoreError(
            f"the store contains vectors of dimension {known} of the embedder {name!r}, which now "
            f"returns vectors of dimension {dim}; give the embedder another `name`, or use another "
            "store"
        )
    return int(number)


def insert_vectors(
    connection: sqlite3.Connection,
    embedder: str,
    hashes: Sequence[bytes],
    vectors: NDArray[np.float16],
) -> int:
    """Insert vectors; existing ones are not changed. Returns the embedder's id.

    Raises
    ------
    EmbeddingError
        A vector contains NaN or infinity, which would corrupt every index built from it.
    """
    if not np.isfinite(vectors).all():
        raise EmbeddingError("the embedder returned a vector with NaN or infinity")
    number = require_embedder(connection, embedder, vectors.shape[1])
    plain = vectors.astype(VECTOR, copy=False)
    connection.executemany(
        "INSERT INTO vectors (embedder, hash, vector) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        ((number, h, v.tobytes()) for h, v in zip(hashes, plain, strict=True)),
    )
    return number


def select_vectors(
    connection: sqlite3.Connection, embedder: str, hashes: Sequence[bytes], *, pooled: bool = False
) -> list[NDArray[np.float16] | None]:
    """Return the stored vector of each text; with `pooled`, only of texts in the pool."""
    found: dict[bytes, NDArray[np.float16]] = {}
    known = connection.execute("SELECT id FROM embedders WHERE name = ?", (embedder,)).fetchone()
    if known is not None:
        where = "JOIN pool ON pool.vector = vectors.id AND removed IS NULL" if pooled else ""
        for part in chunks(hashes):
            rows = connection.execute(
                f"SELECT hash, vectors.vector FROM vectors {where} "  # noqa: S608 - placeholders
                f"WHERE embedder = ? AND hash IN ({placeholders(part)})",
                (known[0], *part),
            )
            for text_hash, blob in rows:
                found[text_hash] = to_vector(blob)
    return [found.get(h) for h in hashes]


def to_vector(blob: bytes) -> NDArray[np.float16]:
    """Decode a stored vector."""
    return np.frombuffer(blob, dtype=VECTOR).astype(np.float16, copy=False)


def put_learned(connection: sqlite3.Connection, scope: bytes, data: bytes | None) -> None:
    """Replace what was learned; None deletes it."""
    connection.execute("DELETE FROM learned WHERE scope = ?", (scope,))
    if data is not None:
        connection.execute("INSERT INTO learned (scope, data) VALUES (?, ?)", (scope, data))


def get_learned(connection: sqlite3.Connection, scope: bytes) -> bytes | None:
    """Return what was learned; None if nothing was."""
    row = connection.execute("SELECT data FROM learned WHERE scope = ?", (scope,)).fetchone()
    return None if row is None else bytes(row[0])
