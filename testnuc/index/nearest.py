"""Nearest-neighbor search over numbered vectors, by cosine."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import numpy as np

from testnuc.errors import EmbeddingError, InvalidInputError
from testnuc.index.files import (
    DamagedIndexError,
    FileRows,
    MemoryRows,
    SavedIndex,
    checksum_of_file,
    checksum_of_rows,
    copy_rows,
    map_rows,
)
from testnuc.index.graph import Graph
from testnuc.index.matching import exact_candidates

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from numpy.typing import NDArray

    from testnuc._base.arrays import Float16s, Float32s, Int64s
    from testnuc.index.files import RowArray

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

    Thread safety: one thread may add, remove and save while another searches. An addition holds the
    lock for one chunk at a time.
    """

    def __init__(self, dim: int, *, exact_below: int = EXACT_BELOW) -> None:
        if dim < 1:
            raise InvalidInputError(f"dim is {dim}; give at least 1")
        self.dim = dim
        self._exact_below = exact_below
        self._chunk = _ADD_CHUNK * (os.cpu_count() or 1)
        self._lock = FairLock()
        self._size = 0
        self._vectors: RowArray = MemoryRows(np.float16, (dim,))
        self._ranks: RowArray = MemoryRows(np.uint64, ())
        self._alive = MemoryRows(np.bool_, ())
        # the rows outside the graph as float32, cached for the matrix product
        self._single = np.empty((0, dim), dtype=np.float32)
        self.graph: Graph | None = None
        #: Whether searches use the graph, which may still be under construction.
        self._by_graph = False

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
        found: Float16s = self._vectors.array[rows]
        return found

    def ranks(self, rows: Int64s) -> NDArray[np.uint64]:
        """Return the ranks of rows, uint64[n]."""
        found: NDArray[np.uint64] = self._ranks.array[rows]
        return found

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
        ascending, and exactly, in memory that does not grow with n.

        Returns
        -------
        rows : int64[B, k]
            Most similar first, padded with -1.
        similarities : float32[B, k]
            At most 1, padded with 0.
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

    @classmethod
    def open(cls, folder: Path, saved: SavedIndex, *, exact_below: int = EXACT_BELOW) -> Self:
        """Memory-map a saved index; removals are not saved and must be applied again.

        `DamagedIndexError`: a file is missing or damaged.
        """
        index = cls(saved.dim, exact_below=exact_below)
        try:
            index._vectors, index._ranks = map_rows(folder, saved)
        except OSError as exc:
            raise DamagedIndexError(str(exc)) from exc
        if saved.graph is not None:
            path = folder / saved.graph
            try:
                index.graph = Graph.map(path, saved.dim, saved.graph_rows, saved.graph_crc)
            except (OSError, RuntimeError, ValueError) as exc:
                index.close()
                raise DamagedIndexError(str(exc)) from exc
            index._by_graph = True
        index._alive.write(0, np.ones(saved.rows, dtype=np.bool_))
        index._size = saved.rows
        return index

    def save(self, folder: Path, before: SavedIndex | None) -> SavedIndex:
        """Write unsaved rows and the graph to files; from then on, vectors are read from there.

        `before` is the latest save of the same rows, by this process or another. The new one may
        share files with it; its graph file is not deleted. `OSError`: the disk is full or
        read-only; `before` stays valid.
        """
        if before is not None and before.rows > self._size:
            return before
        if before is not None and not all((folder / name).is_file() for name in before.files()):
            before = None
        vectors, ranks = self._move_to_files(folder, before)
        vectors.sync()
        ranks.sync()
        known, vectors_crc, ranks_crc, graph, rows, crc = 0, 0, 0, None, 0, 0
        if before is not None:
            known, vectors_crc, ranks_crc = before.rows, before.vectors_crc, before.ranks_crc
            graph, rows, crc = before.graph, before.graph_rows, before.graph_crc
        if self.graph is not None and self.graph.mapped is None and self.graph.rows > rows:
            path = folder / f"graph.{os.urandom(6).hex()}"
            self.graph.save(path)
            graph, rows, crc = path.name, self.graph.rows, checksum_of_file(path)
        return SavedIndex(
            dim=self.dim,
            rows=self._size,
            vectors=vectors.path.name,
            ranks=ranks.path.name,
            vectors_crc=checksum_of_rows(vectors.array[known : self._size], vectors_crc),
            ranks_crc=checksum_of_rows(ranks.array[known : self._size], ranks_crc),
            graph=graph,
            graph_rows=rows,
            graph_crc=crc,
        )

    def _move_to_files(self, folder: Path, before: SavedIndex | None) -> tuple[FileRows, FileRows]:
        """Return files that contain all rows; reuses the files of `before`."""
        vectors, ranks = self._vectors, self._ranks
        if (
            isinstance(vectors, FileRows)
            and isinstance(ranks, FileRows)
            and (before is None or before.vectors == vectors.path.name)
        ):
            return vectors, ranks
        moved = copy_rows(folder, before, vectors, ranks, self._size)
        self.close()
        with self._lock:
            self._vectors, self._ranks = moved
        return moved

    def _move_to_memory(self) -> None:
        vectors, ranks = MemoryRows(np.float16, (self.dim,)), MemoryRows(np.uint64, ())
        vectors.write(0, self._vectors.array[: self._size])
        ranks.write(0, self._ranks.array[: self._size])
        self.close()
        self._vectors, self._ranks = vectors, ranks

    def close(self) -> None:
        """Close the files; running searches are not affected."""
        self._vectors.close()
        self._ranks.close()

    def _append(self, vectors: Float16s, ranks: NDArray[np.uint64]) -> None:
        start, size = self._size, self._size + len(vectors)
        try:
            self._vectors.write(start, vectors)
            self._ranks.write(start, ranks)
        except OSError:
            # the disk is full
            self._move_to_memory()
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
