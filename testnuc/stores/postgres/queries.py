"""Predictions, scopes and vectors: reads and writes of many rows, in one round trip each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from testnuc.errors import EmbeddingError, StoreError
from testnuc.types import Prediction

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from testnuc.protocols import StoredPrediction

__all__ = [
    "EmbedderRow",
    "count",
    "describe",
    "forget",
    "from_text",
    "from_vectors",
    "insert_predictions",
    "insert_vectors",
    "note_scopes",
    "select_embedder",
    "select_predictions",
    "select_vectors",
    "to_text",
    "to_vectors",
]

#: Stands for itself and for the one character that PostgreSQL does not store.
_ESCAPE = "\x1a"


@dataclass(frozen=True, slots=True)
class EmbedderRow:
    """One embedder's row."""

    id: int
    name: str
    dim: int
    #: Numbers given in its pool.
    size: int
    #: Texts taken out of its pool.
    removals: int

    def require(self, dim: int) -> None:
        """Raise `StoreError` where vectors of another dimension are stored under this name."""
        if dim != self.dim:
            raise StoreError(
                f"the store holds vectors of dimension {self.dim} of the embedder {self.name!r}, "
                f"which now gives vectors of dimension {dim}; give the embedder another `name`, "
                "or use another store"
            )


def to_text(value: str | None) -> str | None:
    """Return what is stored for a string: PostgreSQL has no NUL."""
    if value is None or not ("\0" in value or _ESCAPE in value):
        return value
    return value.replace(_ESCAPE, f"{_ESCAPE}1").replace("\0", f"{_ESCAPE}0")


def from_text(value: str | None) -> str | None:
    """Return the string that was stored."""
    if value is None or _ESCAPE not in value:
        return value
    return value.replace(f"{_ESCAPE}0", "\0").replace(f"{_ESCAPE}1", _ESCAPE)


def to_vectors(vectors: NDArray[np.float16]) -> list[bytes]:
    """Return each row as the server reads it: dimension, nothing, numbers; big-endian."""
    n, dim = vectors.shape
    rows = np.zeros((n, 2 + dim), dtype=">u2")
    rows[:, 0] = dim
    rows[:, 2:] = np.ascontiguousarray(vectors).view(np.uint16)
    content, width = rows.tobytes(), 4 + 2 * dim
    return [content[start : start + width] for start in range(0, n * width, width)]


def from_vectors(values: Iterable[bytes], dim: int) -> NDArray[np.float16]:
    """Return float16[n, dim]."""
    rows = np.frombuffer(b"".join(values), dtype=">u2").reshape(-1, 2 + dim)
    return rows[:, 2:].astype(np.uint16).view(np.float16)


async def describe(connection: Any, scope: bytes, facts: Mapping[str, Any]) -> None:
    """Note what a scope is."""
    await connection.execute(
        "INSERT INTO scopes (scope, facts) VALUES ($1, $2) "
        "ON CONFLICT (scope) DO UPDATE SET facts = excluded.facts "
        "WHERE scopes.facts <> excluded.facts",
        scope,
        orjson.dumps(dict(facts)).decode(),
    )


async def note_scopes(connection: Any, scopes: Sequence[bytes]) -> None:
    """See that the scopes have a row each."""
    await connection.execute(
        "INSERT INTO scopes (scope, facts) SELECT u.scope, '{}' "
        "FROM unnest($1::bytea[]) u (scope) ORDER BY 1 ON CONFLICT DO NOTHING",
        scopes,
    )


async def count(connection: Any, scope: bytes) -> int:
    """Return how many texts have a prediction of this scope."""
    found: int = await connection.fetchval(
        "SELECT count(DISTINCT text) FROM predictions "
        "WHERE scope = (SELECT id FROM scopes WHERE scope = $1)",
        scope,
    )
    return found


async def forget(connection: Any, model: str | None, scope: bytes | None) -> int:
    """Drop the predictions of a model, or of a scope; returns how many."""
    gone = [
        row["id"]
        for row in await connection.fetch("SELECT id, scope, facts FROM scopes")
        if row["scope"] == scope
        or (model is not None and orjson.loads(row["facts"]).get("model") == model)
    ]
    done = await connection.execute("DELETE FROM predictions WHERE scope = ANY($1::int[])", gone)
    return int(done.split()[-1])


async def insert_predictions(connection: Any, rows: Sequence[StoredPrediction]) -> set[bytes]:
    """Store predictions of distinct keys, and end their leases; returns the keys that were new.

    Rows are locked in the order of their keys everywhere, so that two writers never wait for each
    other. A lease that is locked just now is left to expire: its key has an answer.
    """
    rows = sorted(rows, key=lambda row: row.key)
    stored = await connection.fetch(
        """
        WITH ended AS (
            DELETE FROM leases WHERE key IN (
                SELECT key FROM leases WHERE key = ANY($1) ORDER BY key FOR UPDATE SKIP LOCKED
            )
        )
        INSERT INTO predictions (key, scope, text, sample, label, confidence, said)
        SELECT u.key, s.id, u.text, u.sample, u.label, u.confidence, u.said
        FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::int[], $5::text[], $6::float8[],
                    $7::text[]) u (key, scope, text, sample, label, confidence, said)
        JOIN scopes s ON s.scope = u.scope
        ORDER BY u.key
        ON CONFLICT DO NOTHING
        RETURNING key
        """,
        [row.key for row in rows],
        [row.scope for row in rows],
        [row.text_hash for row in rows],
        [row.sample for row in rows],
        [to_text(row.prediction.label) for row in rows],
        [row.prediction.confidence for row in rows],
        [to_text(row.prediction.said) for row in rows],
    )
    return {row["key"] for row in stored}


async def select_predictions(connection: Any, keys: Sequence[bytes]) -> dict[bytes, Prediction]:
    """Return the predictions that are stored under these keys."""
    return {
        key: Prediction(from_text(label), confidence, from_text(said))
        for key, label, confidence, said in await connection.fetch(
            "SELECT key, label, confidence, said FROM predictions WHERE key = ANY($1)", keys
        )
    }


async def select_embedder(connection: Any, name: str) -> EmbedderRow | None:
    """Return what is known of an embedder."""
    found = await connection.fetchrow(
        "SELECT id, name, dim, size, removals FROM embedders WHERE name = $1", name
    )
    return None if found is None else EmbedderRow(*found)


async def insert_vectors(
    connection: Any, embedder: int, hashes: Sequence[bytes], vectors: NDArray[np.float16]
) -> None:
    """Store vectors where there are none yet.

    Raises
    ------
    EmbeddingError
        A vector has NaN or infinity; nothing was stored.
    """
    if not np.isfinite(vectors).all():
        raise EmbeddingError("a vector has NaN or infinity; the embedder is at fault")
    order = sorted(range(len(hashes)), key=lambda i: hashes[i])
    await connection.execute(
        f"INSERT INTO texts_{embedder} (hash, vector) "  # noqa: S608 - a number
        "SELECT u.hash, u.vector FROM unnest($1::bytea[], $2::halfvec[]) "
        "WITH ORDINALITY u (hash, vector, place) ORDER BY u.hash, u.place ON CONFLICT DO NOTHING",
        [hashes[i] for i in order],
        to_vectors(vectors[order]),
    )


async def select_vectors(
    connection: Any, embedder: EmbedderRow, hashes: Sequence[bytes], *, pooled: bool = False
) -> list[NDArray[np.float16] | None]:
    """Return the stored vector of each text; with `pooled`, of those that are in the pool."""
    where = "AND number IS NOT NULL" if pooled else ""
    rows = await connection.fetch(
        f"SELECT hash, vector FROM texts_{embedder.id} "  # noqa: S608 - a number
        f"WHERE hash = ANY($1) {where}",
        hashes,
    )
    vectors = from_vectors((row["vector"] for row in rows), embedder.dim)
    found = {row["hash"]: vector for row, vector in zip(rows, vectors, strict=True)}
    return [found.get(h) for h in hashes]
