"""Queries on predictions, scopes and vectors; one round trip per query."""

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
    "get_learned",
    "insert_predictions",
    "insert_scopes",
    "insert_vectors",
    "predicted",
    "put_learned",
    "select_embedder",
    "select_predictions",
    "select_vectors",
    "to_text",
    "to_vectors",
]

#: Escape character for NUL, which PostgreSQL cannot store in text.
_ESCAPE = "\x1a"


@dataclass(frozen=True, slots=True)
class EmbedderRow:
    """A row of the embedders table."""

    id: int
    name: str
    dim: int
    #: Numbers assigned in its pool.
    size: int
    #: Texts removed from its pool.
    removals: int

    def require(self, dim: int) -> None:
        """Raise `StoreError` if the stored vectors have another dimension."""
        if dim != self.dim:
            raise StoreError(
                f"the store contains vectors of dimension {self.dim} of the embedder "
                f"{self.name!r}, which now returns vectors of dimension {dim}; give the embedder "
                "another `name`, or use another store"
            )


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


def to_vectors(vectors: NDArray[np.float16]) -> list[bytes]:
    """Encode rows, float16[n, dim], as pgvector's binary halfvec: dim, 0, values; big-endian."""
    n, dim = vectors.shape
    rows = np.zeros((n, 2 + dim), dtype=">u2")
    rows[:, 0] = dim
    rows[:, 2:] = np.ascontiguousarray(vectors).view(np.uint16)
    content, width = rows.tobytes(), 4 + 2 * dim
    return [content[start : start + width] for start in range(0, n * width, width)]


def from_vectors(values: Iterable[bytes], dim: int) -> NDArray[np.float16]:
    """Decode pgvector's binary halfvecs to float16[n, dim]."""
    rows = np.frombuffer(b"".join(values), dtype=">u2").reshape(-1, 2 + dim)
    return rows[:, 2:].astype(np.uint16).view(np.float16)


async def describe(connection: Any, scope: bytes, facts: Mapping[str, Any]) -> None:
    """Insert or update the metadata of a scope."""
    await connection.execute(
        "INSERT INTO scopes (scope, facts) VALUES ($1, $2) "
        "ON CONFLICT (scope) DO UPDATE SET facts = excluded.facts "
        "WHERE scopes.facts <> excluded.facts",
        scope,
        orjson.dumps(dict(facts)).decode(),
    )


async def insert_scopes(connection: Any, scopes: Sequence[bytes]) -> None:
    """Insert a row for each scope that has none."""
    await connection.execute(
        "INSERT INTO scopes (scope, facts) SELECT u.scope, '{}' "
        "FROM unnest($1::bytea[]) u (scope) ORDER BY 1 ON CONFLICT DO NOTHING",
        scopes,
    )


async def count(connection: Any, scope: bytes) -> int:
    """Return the number of texts with a prediction in this scope."""
    found: int = await connection.fetchval(
        "SELECT count(DISTINCT text) FROM predictions "
        "WHERE scope = (SELECT id FROM scopes WHERE scope = $1)",
        scope,
    )
    return found


async def predicted(connection: Any, scope: bytes) -> list[bytes]:
    """Return the hashes of the texts with a prediction in this scope."""
    rows = await connection.fetch(
        "SELECT DISTINCT text FROM predictions "
        "WHERE scope = (SELECT id FROM scopes WHERE scope = $1)",
        scope,
    )
    return [row["text"] for row in rows]


async def forget(connection: Any, model: str | None, scope: bytes | None) -> int:
    """Delete the predictions of a model, or of a scope; returns their number."""
    scopes = [
        row["id"]
        for row in await connection.fetch("SELECT id, scope, facts FROM scopes")
        if row["scope"] == scope
        or (model is not None and orjson.loads(row["facts"]).get("model") == model)
    ]
    done = await connection.execute("DELETE FROM predictions WHERE scope = ANY($1::int[])", scopes)
    return int(done.split()[-1])


async def insert_predictions(connection: Any, rows: Sequence[StoredPrediction]) -> set[bytes]:
    """Insert predictions of distinct keys and release their leases; returns the new keys.

    All queries lock rows in the order of their keys, which prevents deadlocks. A lease that is
    locked by another transaction is left to expire: its prediction is stored.
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
    """Return the stored predictions by key."""
    return {
        key: Prediction(from_text(label), confidence, from_text(said))
        for key, label, confidence, said in await connection.fetch(
            "SELECT key, label, confidence, said FROM predictions WHERE key = ANY($1)", keys
        )
    }


async def select_embedder(connection: Any, name: str) -> EmbedderRow | None:
    """Return the row of an embedder, or None."""
    found = await connection.fetchrow(
        "SELECT id, name, dim, size, removals FROM embedders WHERE name = $1", name
    )
    return None if found is None else EmbedderRow(*found)


async def insert_vectors(
    connection: Any, embedder: int, hashes: Sequence[bytes], vectors: NDArray[np.float16]
) -> None:
    """Insert vectors; existing ones are not changed.

    Raises
    ------
    EmbeddingError
        A vector contains NaN or infinity; nothing was stored.
    """
    if not np.isfinite(vectors).all():
        raise EmbeddingError("the embedder returned a vector with NaN or infinity")
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
    """Return the stored vector of each text; with `pooled`, only of texts in the pool."""
    where = "AND number IS NOT NULL" if pooled else ""
    rows = await connection.fetch(
        f"SELECT hash, vector FROM texts_{embedder.id} "  # noqa: S608 - a number
        f"WHERE hash = ANY($1) {where}",
        hashes,
    )
    vectors = from_vectors((row["vector"] for row in rows), embedder.dim)
    found = {row["hash"]: vector for row, vector in zip(rows, vectors, strict=True)}
    return [found.get(h) for h in hashes]


async def put_learned(connection: Any, scope: bytes, data: bytes | None) -> None:
    """Replace what was learned; None deletes it."""
    if data is None:
        await connection.execute("DELETE FROM learned WHERE scope = $1", scope)
    else:
        await connection.execute(
            "INSERT INTO learned (scope, data) VALUES ($1, $2) "
            "ON CONFLICT (scope) DO UPDATE SET data = excluded.data",
            scope,
            data,
        )


async def get_learned(connection: Any, scope: bytes) -> bytes | None:
    """Return what was learned; None if nothing was."""
    found: bytes | None = await connection.fetchval(
        "SELECT data FROM learned WHERE scope = $1", scope
    )
    return found
