"""Paged reads of all rows, for export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from testnuc.protocols import StoredPrediction
from testnuc.stores.postgres.queries import from_text, from_vectors
from testnuc.types import Prediction

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from testnuc.stores.postgres.queries import EmbedderRow

__all__ = ["all_embedders", "all_learned", "all_scopes", "page_of_predictions", "page_of_vectors"]


async def all_scopes(connection: Any) -> list[tuple[bytes, dict[str, Any]]]:
    """Return all scopes and their metadata."""
    rows = await connection.fetch("SELECT scope, facts FROM scopes ORDER BY id")
    return [(scope, orjson.loads(facts)) for scope, facts in rows]


async def all_embedders(connection: Any) -> list[tuple[str, int]]:
    """Return the name and dimension of each embedder."""
    rows = await connection.fetch("SELECT name, dim FROM embedders ORDER BY id")
    return [(name, dim) for name, dim in rows]


async def all_learned(connection: Any) -> list[tuple[bytes, bytes]]:
    """Return all that was learned, with its key."""
    rows = await connection.fetch("SELECT scope, data FROM learned ORDER BY scope")
    return [(scope, data) for scope, data in rows]


async def page_of_predictions(connection: Any, after: bytes, count: int) -> list[StoredPrediction]:
    """Return the next predictions, ordered by key."""
    rows = await connection.fetch(
        "SELECT p.key, s.scope, p.text, p.sample, p.label, p.confidence, p.said "
        "FROM predictions p JOIN scopes s ON s.id = p.scope "
        "WHERE p.key > $1 ORDER BY p.key LIMIT $2",
        after,
        count,
    )
    return [
        StoredPrediction(
            key, scope, text, sample, Prediction(from_text(label), confidence, from_text(said))
        )
        for key, scope, text, sample, label, confidence, said in rows
    ]


async def page_of_vectors(
    connection: Any, embedder: EmbedderRow, after: bytes, count: int
) -> list[tuple[bytes, NDArray[np.float16]]]:
    """Return the next vectors of an embedder, ordered by text hash."""
    rows = await connection.fetch(
        f"SELECT hash, vector FROM texts_{embedder.id} "  # noqa: S608 - a number
        "WHERE hash > $1 ORDER BY hash LIMIT $2",
        after,
        count,
    )
    vectors = from_vectors((row["vector"] for row in rows), embedder.dim)
    return [(row["hash"], vector) for row, vector in zip(rows, vectors, strict=True)]
