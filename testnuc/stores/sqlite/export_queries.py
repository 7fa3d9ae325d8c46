"""Paged reads of all rows, for export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from testnuc.protocols import StoredPrediction
from testnuc.stores.sqlite.queries import to_vector
from testnuc.types import Prediction

if TYPE_CHECKING:
    import sqlite3

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["all_embedders", "all_learned", "all_scopes", "page_of_predictions", "page_of_vectors"]


def all_scopes(connection: sqlite3.Connection) -> list[tuple[bytes, dict[str, Any]]]:
    """Return all scopes and their metadata."""
    rows = connection.execute("SELECT scope, facts FROM scopes ORDER BY id")
    return [(scope, orjson.loads(facts)) for scope, facts in rows]


def all_embedders(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    """Return the name and dimension of each embedder."""
    return connection.execute("SELECT name, dim FROM embedders ORDER BY id").fetchall()


def all_learned(connection: sqlite3.Connection) -> list[tuple[bytes, bytes]]:
    """Return all that was learned, with its key."""
    return connection.execute("SELECT scope, data FROM learned ORDER BY scope").fetchall()


def page_of_predictions(
    connection: sqlite3.Connection, after: bytes, count: int
) -> list[StoredPrediction]:
    """Return the next predictions, ordered by key."""
    rows = connection.execute(
        "SELECT key, scopes.scope, text, sample, label, confidence, said FROM predictions "
        "JOIN scopes ON scopes.id = predictions.scope WHERE key > ? ORDER BY key LIMIT ?",
        (after, count),
    )
    return [
        StoredPrediction(key, scope, text, sample, Prediction(label, confidence, said))
        for key, scope, text, sample, label, confidence, said in rows
    ]


def page_of_vectors(
    connection: sqlite3.Connection, embedder: str, after: bytes, count: int
) -> list[tuple[bytes, NDArray[np.float16]]]:
    """Return the next vectors of an embedder, ordered by text hash."""
    rows = connection.execute(
        "SELECT hash, vector FROM vectors "
        "WHERE embedder = (SELECT id FROM embedders WHERE name = ?) AND hash > ? "
        "ORDER BY hash LIMIT ?",
        (embedder, after, count),
    )
    return [(text_hash, to_vector(blob)) for text_hash, blob in rows]
