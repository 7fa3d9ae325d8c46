"""Nearest texts by cosine: exact for small pools, a usearch HNSW graph above.

`NearestVectors` numbers vectors by row and knows nothing of texts; the pool gives it those.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from testnuc.errors import EmbeddingError, InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["NearestVectors"]

#: Below this many vectors a matrix product is as fast as the graph, and exact.
EXACT_BELOW = 5_000

_CONNECTIVITY = 16
_EXPANSION_ADD = 128
#: Recall@10 on clustered unit vectors stays at 0.99 with 64 up to here, and needs 128 above.
_WIDER_ABOVE = 100_000
#: Vectors inserted into the graph at a time: it cannot be searched meanwhile.
_ADD_CHUNK = 512
#: Queries scored at a time by the exact search, to bound the score matrix.
_QUERY_CHUNK = 256
#: Vectors inserted by one thread before several are used: concurrent insertions into a small graph
#: leave up to one in two hundred of them hard to find, and make the graph differ from run to run.
_ALONE_BELOW = 20_000
#: How far below the k-th best score a candidate still is re-scored: more than float32's error.
_SCORE_SLACK = 1e-4
#: Candidates fetched from the graph beyond k, so that re-scoring can change their order.
_EXTRA = 8


class NearestVectors:
    """Unit vectors as float16 rows, searched by cosine.

    Candidates are re-scored from the float16 rows in one fixed order, so that similarities are
    equal bits whichever search found them; equal similarities rank by `ranks`.

    Parameters
    ----------
    dim : int
        Length of a vector.
    exact_below : int
        Number of vectors below which the search is exact.
    threads : int
        Threads of one search or insertion; 0 = all cores.

    Notes
    -----
    Not thread-safe but for searches beside one `add`: `add` takes the lock chunk by chunk.
    """

    def __init__(self, dim: int, *, exact_below: int = EXACT_BELOW, threads: int = 0) -> None:
        if dim < 1:
            raise InvalidInputError(f"dim is {dim}: a vector needs at least one number")
        self.dim = dim
        self._exact_below = exact_below
        self._threads = threads
        self._lock = threading.Lock()
        self._size = 0
        self._half = np.empty((0, dim), dtype=np.float16)
        self._ranks = np.empty(0, dtype=np.uint64)
        self._alive = np.empty(0, dtype=np.bool_)
        self._dead = 0
        self._single = np.empty((0, dim), dtype=np.float32)
        self._graph: Any = None

    def __len__(self) -> int:
        """Return the number of rows ever added, removed ones included."""
        return self._size

    def add(self, vectors: NDArray[np.float16], ranks: NDArray[np.uint64]) -> None:
        """Append rows.

        Parameters
        ----------
        vectors : float16[n, dim]
            Unit vectors.
        ranks : uint64[n]
            Orders rows of equal similarity, lowest first.

        Raises
        ------
        EmbeddingError
            A vector has the wrong length, NaN or infinity: one such vector would silently spoil
            the graph for every later search, so nothing is added.
        """
        if vectors.ndim != 2 or vectors.shape[1] != self.dim:
            raise EmbeddingError(
                f"vectors of shape {vectors.shape} do not fit an index of dimension {self.dim}; "
                "use one embedder for one pool"
            )
        bad = ~np.isfinite(vectors).all(axis=1)
        if bad.any():
            raise EmbeddingError(
                f"vector {int(bad.argmax())} has NaN or infinity; the embedder is at fault"
            )
        for start in range(0, len(vectors), _ADD_CHUNK):
            chunk = slice(start, start + _ADD_CHUNK)
            with self._lock:
                self._append(vectors[chunk], ranks[chunk])

    def remove(self, rows: NDArray[np.int64]) -> None:
        """Make rows unfindable; their numbers are not used again."""
        with self._lock:
            rows = rows[self._alive[rows]]
            self._alive[rows] = False
            self._dead += len(np.unique(rows))
            if self._graph is not None and len(rows):
                self._graph.remove(np.unique(rows).astype(np.uint64))

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float16]:
        """Return the stored vectors of rows, float16[n, dim]."""
        return self._half[rows]

    def search(
        self,
        queries: NDArray[np.float16],
        k: int,
        *,
        exclude: NDArray[np.int64] | None = None,
        limit: int | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Find the k most similar rows of each query.

        Parameters
        ----------
        queries : float16[B, dim]
            Unit vectors.
        k : int
            Rows wanted for each query.
        exclude : int64[B], optional
            A row that is not wanted for the query, or -1.
        limit : int, optional
            Only rows below this number: the pool as it was when it had so many.

        Returns
        -------
        rows : int64[B, k]
            Most similar first; -1 where there are fewer.
        similarities : float32[B, k]
            At most 1; 0 where there is no row.
        """
        from testnuc._kernels.rescore import rank_rows, rescore

        rows = np.full((len(queries), k), -1, dtype=np.int64)
        similarities = np.zeros((len(queries), k), dtype=np.float32)
        if k == 0 or len(queries) == 0:
            return rows, similarities
        queries = np.ascontiguousarray(queries)
        single = queries.astype(np.float32)
        if exclude is None:
            exclude = np.full(len(queries), -1, dtype=np.int64)
        for start in range(0, len(queries), _QUERY_CHUNK):
            part = slice(start, start + _QUERY_CHUNK)
            with self._lock:
                end = self._size if limit is None else min(limit, self._size)
                found = self._candidates(single[part], k, exclude[part], end)
                half, ranks = self._half[: self._size], self._ranks[: self._size]
            scores = np.minimum(rescore(single[part], half.view(np.uint16), found), np.float32(1))
            best, best_scores = rank_rows(found, scores, ranks, k)
            rows[part, : best.shape[1]] = best
            similarities[part, : best.shape[1]] = np.where(best >= 0, best_scores, np.float32(0))
        return rows, similarities

    def _append(self, vectors: NDArray[np.float16], ranks: NDArray[np.uint64]) -> None:
        start, size = self._size, self._size + len(vectors)
        if size > len(self._half):
            room = max(size, len(self._half) * 2, 1_024)
            self._half = _grown(self._half, room)
            self._ranks = _grown(self._ranks, room)
            self._alive = _grown(self._alive, room)
        self._half[start:size] = vectors
        self._ranks[start:size] = ranks
        self._alive[start:size] = True
        if self._graph is None and size >= self._exact_below:
            self._single = np.empty((0, self.dim), dtype=np.float32)
            self._graph = self._new_graph()
            self._insert(0, size)
        elif self._graph is not None:
            self._insert(start, size)
        self._size = size

    def _new_graph(self) -> Any:
        from usearch.index import Index

        return Index(
            ndim=self.dim,
            # the vectors have unit norm: the inner product is the cosine
            metric="ip",
            dtype="f16",
            connectivity=_CONNECTIVITY,
            expansion_add=_EXPANSION_ADD,
            expansion_search=64,
        )

    def _insert(self, start: int, end: int) -> None:
        rows = np.flatnonzero(self._alive[start:end]) + start
        threads = 1 if end <= _ALONE_BELOW else self._threads
        self._graph.add(rows.astype(np.uint64), self._half[rows], threads=threads, copy=True)
        if end > _WIDER_ABOVE:
            self._graph.expansion_search = 128

    def _candidates(
        self, queries: NDArray[np.float32], k: int, exclude: NDArray[np.int64], end: int
    ) -> NDArray[np.int64]:
        """Return rows, int64[B, at least k], unordered and padded with -1, that hold the best k."""
        if self._graph is None:
            return self._exact_candidates(queries, k, exclude, end)
        # rows at or above `end` may come first and are dropped: fetch until k are left of each
        want = k + 1 + _EXTRA
        while True:
            count = min(want, len(self._graph))
            found = self._graph_candidates(queries, count)
            found[(found >= end) | (found == exclude[:, None])] = -1
            if count == len(self._graph) or int((found >= 0).sum(axis=1).min()) >= k:
                return found
            want *= 4

    def _graph_candidates(self, queries: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        found = np.full((len(queries), max(count, 1)), -1, dtype=np.int64)
        if count == 0:
            return found
        matches = self._graph.search(queries, count, threads=self._threads)
        if len(queries) == 1:
            # a batch of one comes back as another type, without counts
            keys = np.asarray(matches.keys).reshape(-1)
            found[0, : len(keys)] = keys.astype(np.int64)
            return found
        # rows past the count are padded with key 0
        filled = np.arange(matches.keys.shape[1])[None, :] < np.asarray(matches.counts)[:, None]
        found[:, : matches.keys.shape[1]] = np.where(filled, matches.keys.astype(np.int64), -1)
        return found

    def _exact_candidates(
        self, queries: NDArray[np.float32], k: int, exclude: NDArray[np.int64], end: int
    ) -> NDArray[np.int64]:
        if len(self._single) < self._size:
            self._single = self._half[: self._size].astype(np.float32)
        scores = queries @ self._single[:end].T
        scores[:, ~self._alive[:end]] = -np.inf
        own = np.flatnonzero((exclude >= 0) & (exclude < end))
        scores[own, exclude[own]] = -np.inf
        if end > k:
            edge = np.partition(scores, end - k, axis=1)[:, end - k]
        else:
            edge = np.full(len(scores), -np.inf, dtype=np.float32)
        # all that could be among the best k after re-scoring, ties at the edge included
        wanted = (scores >= edge[:, None] - np.float32(_SCORE_SLACK)) & (scores > -np.inf)
        width = max(int(wanted.sum(axis=1).max(initial=0)), 1)
        found = np.full((len(scores), width), -1, dtype=np.int64)
        query, row = np.nonzero(wanted)
        first = np.searchsorted(query, np.arange(len(scores)))
        found[query, np.arange(len(query)) - first[query]] = row
        return found


def _grown(array: NDArray[Any], room: int) -> NDArray[Any]:
    grown = np.empty((room, *array.shape[1:]), dtype=array.dtype)
    grown[: len(array)] = array
    return grown
