"""Helpers that all indexes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from testnuc.errors import EmbeddingError
from testnuc.protocols import Matches

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from numpy.typing import NDArray

    from testnuc.protocols import Index, PoolText

__all__ = ["check_dim", "empty_matches", "ranks_of", "scanned"]


def empty_matches(queries: int, k: int) -> Matches:
    """Return matches without neighbors: ids int64[queries, k], similarities float32[queries, k]."""
    return Matches(
        np.full((queries, k), -1, dtype=np.int64), np.zeros((queries, k), dtype=np.float32)
    )


def check_dim(vectors: NDArray[np.float16], dim: int) -> None:
    """Raise `EmbeddingError` if vectors, float16[n, d], do not have the dimension of the pool."""
    if vectors.shape[1] != dim:
        raise EmbeddingError(
            f"the embedder returned vectors of dimension {vectors.shape[1]}, "
            f"but the pool has dimension {dim}"
        )


def ranks_of(hashes: Sequence[bytes]) -> NDArray[np.uint64]:
    """Return the first 8 bytes of each hash, uint64[n]; they order texts of equal similarity."""
    return np.array([int.from_bytes(h[:8], "big") for h in hashes], dtype=np.uint64)


async def scanned(pool: Index, size: int) -> AsyncGenerator[list[PoolText], None]:
    """Yield the texts of a pool, `size` at a time."""
    start: int | None = 0
    while start is not None:
        texts, start = await pool.scan(start, size)
        yield texts
