"""Nearest-neighbor search over numbered vectors, by cosine."""

import os
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testnuc._base.arrays import Array, Float16s, Float32s, Int64s
from testnuc.errors import EmbeddingError, InvalidInputError
from testnuc.index.graph import Graph
from testnuc.index.matching import exact_candidates

#: Below this many vectors a matrix product is as fast as the graph, and exact.
EXACT_BELOW = 5_000

#: Graph insertions per added row, from half of `EXACT_BELOW` on, so that the graph is complete when
#: it is first needed. Building it at once at that point would block `add` for seconds.
_AHEAD = 3
#: Vectors per thread and graph insertion, during which searches wait.
_ADD_CHUNK = 16
#: Queries per exact search; bounds the score matrix.
_QUERY_CHUNK = 256
#: Rows per step of a search among given rows; bounds the score matrix too.
_ROW_CHUNK = 8_192
#: Candidates fetched from the graph beyond k, so that re-scoring can change their order.
_EXTRA = 8
#: Capacity of the first array of rows.
_MIN_ROWS = 1_024


class RowArray:
    """Append-only rows, each of this shape: [capacity, ..] in `array`, of which written ones count.

    A full array is replaced by a larger one; references to it stay valid.
    """

    def __init__(self, dtype: Any, shape: tuple[int, ...]) -> None:
        self.array: Array = np.empty((0, *shape), dtype=dtype)

    def write(self, start: int, rows: Array) -> None:
        """Write rows at `start`."""
        end = start + len(rows)
        if end > len(self.array):
            capacity = max(end, len(self.array) * 2, _MIN_ROWS)
            grown = np.empty((capacity, *self.array.shape[1:]), dtype=self.array.dtype)
            grown[:start] = self.array[:start]
            self.array = grown
        self.array[start:end] = rows


class FairLock:
    """A lock that alternates between two threads that both want it.

    Without it, an addition that re-acquires the lock for each chunk would starve a search.
    """

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        # a waiting thread holds `_next`, so a thread that re-acquires the lock queues behind it
        with self._next:
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class NearestVectors:
    """Unit vectors as float16 rows, searched by cosine; exactly below `exact_below` vectors.

    Candidates are re-scored from the float16 rows in a fixed order, so that similarities are
    bit-identical whichever search found them. Equal similarities are ordered by `ranks`. Rows that
    are not in the graph yet are searched exactly.

    Thread safety: one thread may add and remove, or save the graph, while another searches. An
    addition holds the lock for one chunk at a time. A saved `graph` waits for its rows to be added.
    """

    def __init__(
        self, dim: int, *, exact_below: int = EXACT_BELOW, graph: Graph | None = None
    ) -> None:
        if dim < 1:
            raise InvalidInputError(f"dim is {dim}; give at least 1")
        self.dim = dim
        self._exact_below = exact_below
        self._chunk = _ADD_CHUNK * (os.cpu_count() or 1)
        self._lock = FairLock()
        self._size = 0
        self._vectors = RowArray(np.float16, (dim,))
        self._ranks = RowArray(np.uint64, ())
        self._alive = RowArray(np.bool_, ())
        # the rows outside the graph as float32, cached for the matrix product
        self._single = np.empty((0, dim), dtype=np.float32)
        self.graph = graph
        #: Whether searches use the graph, which may still be under construction.
        self._by_graph = graph is not None

    def __len__(self) -> int:
        """Return the number of rows ever added, including removed ones."""
        return self._size

    @property
    def graph_rows(self) -> int:
        """Number of rows in the graph, including removed ones."""
        return 0 if self.graph is None else self.graph.rows

    def add(self, vectors: Float16s, ranks: NDArray[np.uint64]) -> None:
        """Append unit vectors, float16[n, dim], and their ranks, uint64[n].

        The lowest rank wins among equal similarities. Nothing is added if a vector has the wrong
        dimension, NaN or infinity: one such vector would corrupt the graph for every later search.
        """
        if vectors.ndim != 2 or vectors.shape[1] != self.dim:
            raise EmbeddingError(
                f"vectors of shape {vectors.shape} do not fit an index of dimension {self.dim}; "
                "use one embedder per pool"
            )
        bad = ~np.isfinite(vectors).all(axis=1)
        if bad.any():
            raise EmbeddingError(
                f"the embedder returned NaN or infinity in vector {int(bad.argmax())}"
            )
        for start in range(0, len(vectors), self._chunk):
            chunk = slice(start, start + self._chunk)
            with self._lock:
                self._append(vectors[chunk], ranks[chunk])
            self._extend_graph(len(vectors[chunk]))

    def remove(self, rows: Int64s) -> None:
        """Exclude rows from searches; their numbers are not reused."""
        with self._lock:
            rows = np.unique(rows[self._alive.array[rows]])
            self._alive.array[rows] = False
            if self.graph is not None:
                self.graph.remove(rows)

    def vectors(self, rows: Int64s) -> Float16s:
        """Return the stored vectors of rows, float16[n, dim]."""
        return self._vectors.array[rows]

    def search(
        self,
        queries: Float16s,
        k: int,
        *,
        exclude: Int64s | None = None,
        limit: int | None = None,
        among: Int64s | None = None,
    ) -> tuple[Int64s, Float32s]:
        """Return the k most similar rows of each query, unit vectors float16[B, dim].

        `exclude`, int64[B], is a row that is left out of the query's result, or -1. With `limit`,
        only rows below this number (a snapshot) are searched; with `among`, int64[n], only these,
        ascending, and exactly, in memory that does not grow with n. Returns rows int64[B, k], most
        similar first, padded with -1, and their similarities float32[B, k], padded with 0.
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
                if among is None:
                    found = self._candidates(queries[part], single[part], k, exclude[part], end)
                else:
                    some = among[: np.searchsorted(among, end)]
                    found = self._among(single[part], k, exclude[part], some)
                half = self._vectors.array[: self._size]
                ranks = self._ranks.array[: self._size]
            scores = np.minimum(rescore(single[part], half.view(np.uint16), found), np.float32(1))
            best, best_scores = rank_rows(found, scores, ranks, k)
            rows[part, : best.shape[1]] = best
            similarities[part, : best.shape[1]] = np.where(best >= 0, best_scores, np.float32(0))
        return rows, similarities

    def _append(self, vectors: Float16s, ranks: NDArray[np.uint64]) -> None:
        start, size = self._size, self._size + len(vectors)
        self._vectors.write(start, vectors)
        self._ranks.write(start, ranks)
        self._alive.write(start, np.ones(len(vectors), dtype=np.bool_))
        self._size = size

    def _extend_graph(self, added: int) -> None:
        """Insert rows that are not in the graph; creates the graph before it is first needed."""
        if self.graph is None:
            if self._size < self._exact_below // 2:
                return
            with self._lock:
                self.graph = Graph(self.dim)
        elif self.graph.mapped is not None:
            if self._size - self.graph.rows < self._exact_below:
                return
            loaded = self.graph.loaded()
            with self._lock:
                loaded.remove(np.flatnonzero(~self._alive.array[: loaded.rows]))
                self.graph = loaded
        graph, wanted = self.graph, self._size
        if wanted < self._exact_below:
            wanted = min(wanted, graph.rows + _AHEAD * added)
        while graph.rows < wanted:
            end = min(graph.rows + self._chunk, wanted)
            with self._lock:
                rows = np.flatnonzero(self._alive.array[graph.rows : end]) + graph.rows
                graph.insert(rows, self._vectors.array[rows], end)
                if self._by_graph:
                    self._single = np.empty((0, self.dim), dtype=np.float32)
        if not self._by_graph and self._size >= self._exact_below:
            with self._lock:
                self._by_graph = True
                self._single = np.empty((0, self.dim), dtype=np.float32)

    def _candidates(
        self, queries: Float16s, single: Float32s, k: int, exclude: Int64s, end: int
    ) -> Int64s:
        """Return rows that include the best k, unordered and padded with -1; int64[B, W]."""
        if self.graph is None or not self._by_graph:
            return self._outside_graph(single, k, exclude, 0, end)
        found = self._graph_candidates(self.graph, queries, k, exclude, end)
        if self.graph.rows < end:
            rest = self._outside_graph(single, k, exclude, self.graph.rows, end)
            found = np.concatenate([found, rest], axis=1)
        return found

    def _among(self, queries: Float32s, k: int, exclude: Int64s, rows: Int64s) -> Int64s:
        """Return the exact candidates among some rows, int64[n], ascending."""
        parts = [np.full((len(queries), 1), -1, dtype=np.int64)]
        for start in range(0, len(rows), _ROW_CHUNK):
            some = rows[start : start + _ROW_CHUNK]
            place = np.searchsorted(some, exclude)
            own = np.where(some[np.minimum(place, len(some) - 1)] == exclude, place, -1)
            vectors = self._vectors.array[some].astype(np.float32)
            found = exact_candidates(queries, vectors, self._alive.array[some], k, own)
            parts.append(np.where(found >= 0, some[found], -1))
        return np.concatenate(parts, axis=1)

    def _graph_candidates(
        self, graph: Graph, queries: Float16s, k: int, exclude: Int64s, end: int
    ) -> Int64s:
        # rows at or above `end` are dropped, so fetch more until k remain for each query
        want = k + 1 + _EXTRA
        while True:
            count = min(want, len(graph))
            found = graph.search(queries, count)
            unwanted = (found >= end) | (found == exclude[:, None]) | ~self._alive.array[found]
            found[unwanted] = -1
            if count == len(graph) or int((found >= 0).sum(axis=1).min()) >= k:
                return found
            want *= 4

    def _outside_graph(
        self, queries: Float32s, k: int, exclude: Int64s, start: int, end: int
    ) -> Int64s:
        """Return the exact candidates among rows `start` to `end`; all are outside the graph."""
        if len(self._single) != self._size - start:
            self._single = self._vectors.array[start : self._size].astype(np.float32)
        alive = self._alive.array[start:end]
        vectors = self._single[: end - start]
        found = exact_candidates(queries, vectors, alive, k, exclude - start)
        return np.where(found >= 0, found + start, -1)
