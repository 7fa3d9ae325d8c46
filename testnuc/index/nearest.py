"""The nearest of numbered vectors, by cosine."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import numpy as np

from testnuc.errors import EmbeddingError, InvalidInputError
from testnuc.index.files import (
    DamagedIndexError,
    SavedIndex,
    checksum_of_file,
    checksum_of_rows,
    copy_rows,
    map_rows,
    new_token,
    require_whole,
)
from testnuc.index.graph import Graph
from testnuc.index.rows import FileRows, MemoryRows

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from numpy.typing import NDArray

    from testnuc.index.rows import RowArray

__all__ = ["EXACT_BELOW", "NearestVectors"]

#: Below this many vectors a matrix product is as fast as the graph, and exact.
EXACT_BELOW = 5_000

#: How many go into the graph with each that is added, from half of `EXACT_BELOW` on: all are in it
#: when it is first needed. To make it then, at once, would hold up who adds for seconds.
_AHEAD = 3
#: Vectors that each thread inserts into the graph at a time: it cannot be searched meanwhile.
_ADD_CHUNK = 16
#: Queries scored at a time by the exact search, to bound the score matrix.
_QUERY_CHUNK = 256
#: How far below the k-th best score a candidate still is re-scored: more than float32's error.
_SCORE_SLACK = 1e-4
#: Candidates fetched from the graph beyond k, so that re-scoring can change their order.
_EXTRA = 8


class FairLock:
    """A lock that nobody gets twice while another waits: an addition takes it again and again."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        # who waits for the lock holds the turn: whoever comes back for the lock stands behind
        with self._turn:
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class NearestVectors:
    """Unit vectors as float16 rows, searched by cosine.

    Candidates are re-scored from the float16 rows in one fixed order, so that similarities are
    equal bits whichever search found them; equal similarities rank by `ranks`. Rows that are not in
    the graph yet are searched exactly.

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
    Not thread-safe but for searches beside one thread that adds, removes and saves: it takes the
    lock chunk by chunk.
    """

    def __init__(self, dim: int, *, exact_below: int = EXACT_BELOW, threads: int = 0) -> None:
        if dim < 1:
            raise InvalidInputError(f"dim is {dim}: a vector needs at least one number")
        self.dim = dim
        self._exact_below = exact_below
        self._threads = threads
        self._chunk = _ADD_CHUNK * (threads or os.cpu_count() or 1)
        self._lock = FairLock()
        self._size = 0
        self._vectors: RowArray = MemoryRows(np.float16, (dim,))
        self._ranks: RowArray = MemoryRows(np.uint64, ())
        self._alive = MemoryRows(np.bool_, ())
        # the rows outside the graph as float32, for the matrix product
        self._single = np.empty((0, dim), dtype=np.float32)
        self._graph: Graph | None = None
        #: Whether the graph is searched: it may be in the making.
        self._by_graph = False

    def __len__(self) -> int:
        """Return the number of rows ever added, removed ones included."""
        return self._size

    @property
    def graph_rows(self) -> int:
        """How many rows are in the graph, removed ones included."""
        return 0 if self._graph is None else self._graph.rows

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
        for start in range(0, len(vectors), self._chunk):
            chunk = slice(start, start + self._chunk)
            with self._lock:
                self._append(vectors[chunk], ranks[chunk])
            self._extend_graph(len(vectors[chunk]))

    def remove(self, rows: NDArray[np.int64]) -> None:
        """Make rows unfindable; their numbers are not used again."""
        with self._lock:
            rows = np.unique(rows[self._alive.array[rows]])
            self._alive.array[rows] = False
            if self._graph is not None:
                self._graph.remove(rows)

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float16]:
        """Return the stored vectors of rows, float16[n, dim]."""
        found: NDArray[np.float16] = self._vectors.array[rows]
        return found

    def ranks(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the ranks of rows, uint64[n]."""
        found: NDArray[np.uint64] = self._ranks.array[rows]
        return found

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
                found = self._candidates(queries[part], single[part], k, exclude[part], end)
                half = self._vectors.array[: self._size]
                ranks = self._ranks.array[: self._size]
            scores = np.minimum(rescore(single[part], half.view(np.uint16), found), np.float32(1))
            best, best_scores = rank_rows(found, scores, ranks, k)
            rows[part, : best.shape[1]] = best
            similarities[part, : best.shape[1]] = np.where(best >= 0, best_scores, np.float32(0))
        return rows, similarities

    @classmethod
    def open(
        cls, folder: Path, saved: SavedIndex, *, exact_below: int = EXACT_BELOW, threads: int = 0
    ) -> Self:
        """Open a saved index by memory map; rows that were removed have to be removed again.

        Raises
        ------
        DamagedIndexError
            A file is missing, or not what was saved.
        """
        index = cls(saved.dim, exact_below=exact_below, threads=threads)
        try:
            index._vectors, index._ranks = map_rows(folder, saved)
        except OSError as exc:
            raise DamagedIndexError(str(exc)) from exc
        try:
            if saved.graph is not None:
                # a graph that is damaged inside could end the process
                require_whole(folder / saved.graph, saved.graph_crc)
                path = folder / saved.graph
                index._graph = Graph.map(path, saved.dim, saved.graph_rows, threads)
                index._by_graph = True
        except (DamagedIndexError, OSError, RuntimeError, ValueError) as exc:
            index.close()
            raise DamagedIndexError(str(exc)) from exc
        index._alive.write(0, np.ones(saved.rows, dtype=np.bool_))
        index._size = saved.rows
        return index

    def save(self, folder: Path, before: SavedIndex | None) -> SavedIndex:
        """Write what is not saved yet to files, and keep the vectors there from now on.

        Parameters
        ----------
        folder : Path
            Where all files of this index are.
        before : SavedIndex, optional
            What is saved there already, by this process or another, of the same rows.

        Returns
        -------
        SavedIndex
            Shares files with `before`; the graph of `before` is left in its place.

        Raises
        ------
        OSError
            The disk is full, or read-only; `before` is as good as it was.
        """
        if before is not None and before.rows > self._size:
            return before
        if before is not None and not all((folder / name).is_file() for name in before.files()):
            before = None
        known = before.rows if before is not None else 0
        vectors, ranks = self._move_to_files(folder, before)
        vectors.sync()
        ranks.sync()
        graph, rows, crc = None, 0, 0
        if before is not None:
            graph, rows, crc = before.graph, before.graph_rows, before.graph_crc
        if self._graph is not None and self._graph.mapped is None and self._graph.rows > rows:
            path = folder / f"graph.{new_token()}"
            self._graph.save(path)
            graph, rows, crc = path.name, self._graph.rows, checksum_of_file(path)
        return SavedIndex(
            dim=self.dim,
            rows=self._size,
            vectors=vectors.path.name,
            ranks=ranks.path.name,
            vectors_crc=checksum_of_rows(
                vectors.array[known : self._size], before.vectors_crc if before else 0
            ),
            ranks_crc=checksum_of_rows(
                ranks.array[known : self._size], before.ranks_crc if before else 0
            ),
            graph=graph,
            graph_rows=rows,
            graph_crc=crc,
        )

    def _move_to_files(self, folder: Path, before: SavedIndex | None) -> tuple[FileRows, FileRows]:
        """Return files that hold all rows: those of `before`, if there are any."""
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

    def _leave_files(self) -> None:
        vectors, ranks = MemoryRows(np.float16, (self.dim,)), MemoryRows(np.uint64, ())
        vectors.write(0, self._vectors.array[: self._size])
        ranks.write(0, self._ranks.array[: self._size])
        self.close()
        self._vectors, self._ranks = vectors, ranks

    def close(self) -> None:
        """Let go of files; searches that run go on."""
        for rows in (self._vectors, self._ranks):
            if isinstance(rows, FileRows):
                rows.close()

    def _append(self, vectors: NDArray[np.float16], ranks: NDArray[np.uint64]) -> None:
        start, size = self._size, self._size + len(vectors)
        try:
            self._vectors.write(start, vectors)
            self._ranks.write(start, ranks)
        except OSError:
            # no room on the disk: what the files were to save is kept here instead
            self._leave_files()
            self._vectors.write(start, vectors)
            self._ranks.write(start, ranks)
        self._alive.write(start, np.ones(len(vectors), dtype=np.bool_))
        self._size = size

    def _extend_graph(self, added: int) -> None:
        """Let the graph catch up with the rows, if there is or soon will be one."""
        if self._graph is None:
            if self._size < self._exact_below // 2:
                return
            with self._lock:
                self._graph = Graph(self.dim, self._threads)
        elif self._graph.mapped is not None:
            if self._size - self._graph.rows < self._exact_below:
                return
            loaded = self._graph.loaded()
            with self._lock:
                loaded.remove(np.flatnonzero(~self._alive.array[: loaded.rows]))
                self._graph = loaded
        graph, wanted = self._graph, self._size
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
        self,
        queries: NDArray[np.float16],
        single: NDArray[np.float32],
        k: int,
        exclude: NDArray[np.int64],
        end: int,
    ) -> NDArray[np.int64]:
        """Return rows, int64[B, at least k], unordered and padded with -1, that hold the best k."""
        if self._graph is None or not self._by_graph:
            return self._exact_candidates(single, k, exclude, 0, end)
        found = self._graph_candidates(self._graph, queries, k, exclude, end)
        if self._graph.rows < end:
            rest = self._exact_candidates(single, k, exclude, self._graph.rows, end)
            found = np.concatenate([found, rest], axis=1)
        return found

    def _graph_candidates(
        self,
        graph: Graph,
        queries: NDArray[np.float16],
        k: int,
        exclude: NDArray[np.int64],
        end: int,
    ) -> NDArray[np.int64]:
        # rows at or above `end` may come first and are dropped: fetch until k are left of each
        want = k + 1 + _EXTRA
        while True:
            count = min(want, len(graph))
            found = graph.search(queries, count)
            unwanted = (found >= end) | (found == exclude[:, None]) | ~self._alive.array[found]
            found[unwanted] = -1
            if count == len(graph) or int((found >= 0).sum(axis=1).min()) >= k:
                return found
            want *= 4

    def _exact_candidates(
        self,
        queries: NDArray[np.float32],
        k: int,
        exclude: NDArray[np.int64],
        start: int,
        end: int,
    ) -> NDArray[np.int64]:
        """Return the candidates among the rows from `start`, all of which are outside the graph."""
        if len(self._single) != self._size - start:
            self._single = self._vectors.array[start : self._size].astype(np.float32)
        count = end - start
        scores = queries @ self._single[:count].T
        scores[:, ~self._alive.array[start:end]] = -np.inf
        own = np.flatnonzero((exclude >= start) & (exclude < end))
        scores[own, exclude[own] - start] = -np.inf
        if count > k:
            edge = np.partition(scores, count - k, axis=1)[:, count - k]
        else:
            edge = np.full(len(scores), -np.inf, dtype=np.float32)
        # all that could be among the best k after re-scoring, ties at the edge included
        wanted = (scores >= edge[:, None] - np.float32(_SCORE_SLACK)) & (scores > -np.inf)
        width = max(int(wanted.sum(axis=1).max(initial=0)), 1)
        found = np.full((len(scores), width), -1, dtype=np.int64)
        query, row = np.nonzero(wanted)
        first = np.searchsorted(query, np.arange(len(scores)))
        found[query, np.arange(len(query)) - first[query]] = row + start
        return found
