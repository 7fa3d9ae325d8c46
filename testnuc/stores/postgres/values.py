"""Values as PostgreSQL stores them: text without NUL, and pgvector's binary halfvec."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from testnuc.stores.sql_store import DamagedRowError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: Escape character for NUL, which PostgreSQL cannot store in text.
_ESCAPE = "\x1a"


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


def from_vectors(values: Sequence[bytes], dim: int) -> NDArray[np.float16]:
    """Decode pgvector's binary halfvecs to float16[n, dim]; raises `DamagedRowError`."""
    width = 4 + 2 * dim
    for value in values:
        if len(value) != width:
            raise DamagedRowError(f"a vector has {len(value) // 2 - 2} dimensions instead of {dim}")
    rows = np.frombuffer(b"".join(values), dtype=">u2").reshape(len(values), 2 + dim)
    return rows[:, 2:].astype(np.uint16).view(np.float16)
