"""Exact search: a matrix product over all rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["exact_candidates"]

#: Candidates this far below the k-th best score are re-scored: more than the error of float32.
_SCORE_SLACK = 1e-4


def exact_candidates(
    queries: NDArray[np.float32],
    vectors: NDArray[np.float32],
    alive: NDArray[np.bool_],
    k: int,
    exclude: NDArray[np.int64],
) -> NDArray[np.int64]:
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
    wanted = (scores >= edge[:, None] - np.float32(_SCORE_SLACK)) & (scores > -np.inf)
    width = max(int(wanted.sum(axis=1).max(initial=0)), 1)
    found = np.full((len(scores), width), -1, dtype=np.int64)
    query, row = np.nonzero(wanted)
    first = np.searchsorted(query, np.arange(len(scores)))
    found[query, np.arange(len(query)) - first[query]] = row
    return found
