"""What all indexes share: the exact search, a matrix product over all rows, and small helpers."""

from collections.abc import AsyncGenerator, Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from testnuc._base.arrays import Bools, Float16s, Float32s, Int64s
from testnuc.errors import EmbeddingError
from testnuc.protocols import Index, Matches, PoolText

#: Candidates this far below the k-th best score are re-scored: more than the error of float32.
SCORE_SLACK = 1e-4


def empty_matches(queries: int, k: int) -> Matches:
    """Return matches without neighbors: ids int64[queries, k], similarities float32[queries, k]."""
    return Matches(
        np.full((queries, k), -1, dtype=np.int64), np.zeros((queries, k), dtype=np.float32)
    )


def check_dim(vectors: Float16s, dim: int) -> None:
    """Raise `EmbeddingError` if vectors, float16[n, d], do not have the dimension of the pool."""
    if vectors.shape[1] != dim:
        raise EmbeddingError(
            f"the embedder returned vectors of dimension {vectors.shape[1]}, "
            f"but the pool has dimension {dim}"
        )


def ranks_of(hashes: Sequence[bytes]) -> NDArray[np.uint64]:
    """Return the first 8 bytes of each hash, uint64[n]; they order texts of equal similarity."""
    return np.array([int.from_bytes(h[:8], "big") for h in hashes], dtype=np.uint64)


class Where(TypedDict, total=False):
    """Which texts a search may return, as in `Index.search`."""

    exclude: Sequence[bytes] | None
    upto: int | None
    among: Int64s | None


async def scanned(pool: Index, size: int) -> AsyncGenerator[list[PoolText], None]:
    """Yield the texts of a pool, `size` at a time."""
    start: int | None = 0
    while start is not None:
        texts, start = await pool.scan(start, size)
        yield texts


def exact_candidates(
    queries: Float32s, vectors: Float32s, alive: Bools, k: int, exclude: Int64s
) -> Int64s:
    """Return every row that can be among the k best of a query after re-scoring.

    For queries float32[B, dim] and vectors float32[N, dim]: int64[B, W], unordered and padded with
    -1; W is at least 1. `alive`, bool[N], is False for removed rows; `exclude`, int64[B], is a row
    that is left out of the query's candidates, ignored if outside 0..N-1.
    """
    scores = queries @ vectors.T
    scores[:, ~alive] = -np.inf
    own = np.flatnonzero((exclude >= 0) & (exclude < len(vectors)))
    scores[own, exclude[own]] = -np.inf
    if len(vectors) > k:
        edge = np.partition(scores, len(vectors) - k, axis=1)[:, len(vectors) - k]
    else:
        edge = np.full(len(scores), -np.inf, dtype=np.float32)
    # includes ties at the edge
    wanted = (scores >= edge[:, None] - np.float32(SCORE_SLACK)) & (scores > -np.inf)
    width = max(int(wanted.sum(axis=1).max(initial=0)), 1)
    found = np.full((len(scores), width), -1, dtype=np.int64)
    query, row = np.nonzero(wanted)
    first = np.searchsorted(query, np.arange(len(scores)))
    found[query, np.arange(len(query)) - first[query]] = row
    return found
