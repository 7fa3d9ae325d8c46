"""Nearest-neighbor search over numbered vectors, by cosine: exact, or by a usearch HNSW graph."""

import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from testnuc._base.arrays import Array, Float16s, Float32s, Int64s
from testnuc.errors import EmbeddingError, InvalidInputError
from testnuc.index.matching import exact_candidates

_FORMAT = 2
#: Names that `Graph.save` gives to files.
_NAME = re.compile(r"graph\.[0-9a-f]+")
_CONNECTIVITY = 16
_EXPANSION_ADD = 128
#: Rows inserted by a single thread: concurrent insertions into an empty graph do not see each
#: other's vectors and can leave some unreachable.
_SINGLE_THREADED = 1_024
#: Bytes per read and write.
_BLOCK = 1 << 24
#: Recall@10 on clustered unit vectors is 0.99 with expansion_search=64 up to this size, and needs
#: 128 above.
_WIDER_ABOVE = 100_000


class DamagedIndexError(Exception):
    """The file of a graph is missing or damaged; the graph must be rebuilt."""


@dataclass(frozen=True, slots=True)
class SavedGraph:
    """The file of a graph, as its pool records it."""

    dim: int
    #: Rows that the graph covers.
    rows: int
    #: Name in the folder.
    file: str
    #: CRC-32 of the file.
    crc: int
    #: Version of the record.
    form: int = _FORMAT

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """Return the record with these fields; refuses those of another version."""
        if facts.get("form") == 1 and "graph" in facts:
            # version 1 also saved vectors and their ranks, which the store has
            names = {"dim": "dim", "rows": "graph_rows", "file": "graph", "crc": "graph_crc"}
            facts = {name: facts.get(old) for name, old in names.items()} | {"form": _FORMAT}
        if facts.get("form") != _FORMAT or set(facts) != {field.name for field in fields(cls)}:
            raise DamagedIndexError("the index was saved by another version")
        # a store from elsewhere must not name other files: they are read, and deleted
        if not isinstance(facts["file"], str) or not _NAME.fullmatch(facts["file"]):
            raise DamagedIndexError("the index names files outside of its folder")
        numbers = facts["dim"], facts["rows"], facts["crc"]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise DamagedIndexError("the record of the index is damaged")
        return cls(**facts)


class Graph:
    """A usearch graph over the first `rows` rows, without removed ones."""

    def __init__(self, dim: int) -> None:
        self._dim = dim
        from usearch.index import Index

        self._index: Any = Index(
            ndim=dim,
            # the vectors have unit norm: the inner product is the cosine
            metric="ip",
            dtype="f16",
            connectivity=_CONNECTIVITY,
            expansion_add=_EXPANSION_ADD,
            expansion_search=64,
        )
        #: The file of a memory-mapped graph, which is read-only.
        self.mapped: Path | None = None
        #: Rows inserted so far, including removed ones.
        self.rows = 0

    def __len__(self) -> int:
        return len(self._index)

    @classmethod
    def map(cls, folder: Path, saved: SavedGraph) -> Self:
        """Memory-map a saved graph; raises `DamagedIndexError`."""
        path = folder / saved.file
        graph = cls(saved.dim)
        try:
            # usearch can crash the process on a damaged graph
            if _checksum(path) != saved.crc:
                raise DamagedIndexError(f"checksum mismatch in {path}")
            graph._index.view(os.fspath(path), progress=_yielding)
        except (OSError, RuntimeError, ValueError) as exc:
            raise DamagedIndexError(str(exc)) from exc
        if graph._index.ndim != saved.dim or len(graph) > saved.rows:
            raise DamagedIndexError(f"{path} is another graph")
        graph.mapped = path
        graph.rows = saved.rows
        graph._widen()
        return graph

    def loaded(self) -> "Graph":
        """Return a mutable copy of a mapped graph, in memory."""
        assert self.mapped is not None
        graph = Graph(self._dim)
        try:
            # warms the page cache: usearch holds the GIL while it reads vectors
            _checksum(self.mapped)
            graph._index.load(os.fspath(self.mapped), progress=_yielding)
        except (OSError, RuntimeError):
            # another process has replaced the file; the mapping is still valid
            graph._index = self._index.copy()
        graph.rows = self.rows
        graph._widen()
        return graph

    def save(self, folder: Path) -> SavedGraph:
        """Write the graph to a new file and fsync it.

        The graph is first serialized in memory, which doubles its memory for a moment: usearch
        holds the GIL while it writes, and a slow disk would block the event loop for seconds.
        """
        content = memoryview(self._index.save(None, progress=_yielding))
        path = folder / f"graph.{os.urandom(6).hex()}"
        with path.open("xb", buffering=0) as file:
            while content:
                content = content[file.write(content[:_BLOCK]) :]
            os.fsync(file.fileno())
        return SavedGraph(self._dim, self.rows, path.name, _checksum(path))

    def insert(self, rows: Int64s, vectors: Float16s, end: int) -> None:
        """Insert rows and their vectors, float16[n, dim]; the graph now covers rows below `end`."""
        if len(rows):
            # 0: all cores
            threads = 1 if self.rows < _SINGLE_THREADED else 0
            self._index.add(rows.astype(np.uint64), vectors, threads=threads, copy=True)
        self.rows = end
        self._widen()

    def remove(self, rows: Int64s) -> None:
        """Remove rows; a mapped graph keeps them, and callers of `search` filter them."""
        rows = rows[rows < self.rows]
        if self.mapped is None and len(rows):
            self._index.remove(rows.astype(np.uint64))

    def search(self, queries: Float16s, count: int) -> Int64s:
        """Return approximate nearest rows, int64[B, max(count, 1)], padded with -1."""
        found = np.full((len(queries), max(count, 1)), -1, dtype=np.int64)
        if count == 0:
            return found
        matches = self._index.search(queries, count, threads=0)
        keys = np.atleast_2d(matches.keys).astype(np.int64)
        width = keys.shape[1]
        # usearch returns another type for a single query, without counts; it pads with key 0
        counts = np.array([width]) if len(queries) == 1 else np.asarray(matches.counts)
        found[:, :width] = np.where(np.arange(width) < counts[:, None], keys, -1)
        return found

    def _widen(self) -> None:
        # not saved with the graph
        if self.rows > _WIDER_ABOVE:
            self._index.expansion_search = 128


def _checksum(path: Path) -> int:
    """Return the CRC-32 of a file."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found = crc32(block, found)
    return found


# usearch holds the GIL for seconds while it reads or writes a large file; a progress callback lets
# other threads run. usearch checks its annotations, which must not be strings.
def _yielding(done: int, total: int) -> bool:  # noqa: ARG001
    return True


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

        The lowest rank wins among equal similarities. Nothing is added if a vector has NaN or
        infinity: one such vector would corrupt the graph for every later search.
        """
        bad = ~np.isfinite(vectors).all(axis=1)
        if bad.any():
            raise EmbeddingError(
                f"the embedder returned NaN or infinity in vector {int(bad.argmax())}"
            )
        for start in range(0, len(vectors), self._chunk):
            chunk = slice(start, start + self._chunk)
            with self._lock:
                at, added = self._size, len(vectors[chunk])
                self._vectors.write(at, vectors[chunk])
                self._ranks.write(at, ranks[chunk])
                self._alive.write(at, np.ones(added, dtype=np.bool_))
                self._size += added
            self._extend_graph(added)

    def remove(self, rows: Int64s) -> None:
        """Exclude rows from searches; their numbers are not reused."""
        with self._lock:
            rows = np.unique(rows[self._alive.array[rows]])
            self._alive.array[rows] = False
            if self.graph is not None:
                self.graph.remove(rows)

    def vector(self, row: int) -> Float16s:
        """Return the stored vector of a row, float16[dim]."""
        found: Float16s = self._vectors.array[row]
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
        count, want = -1, k + 1 + _EXTRA
        # rows at or above `end` are dropped, so fetch more until k remain for each query
        while count < len(self.graph):
            count = min(want, len(self.graph))
            found = self.graph.search(queries, count)
            unwanted = (found >= end) | (found == exclude[:, None]) | ~self._alive.array[found]
            found[unwanted] = -1
            if int((found >= 0).sum(axis=1).min()) >= k:
                break
            want *= 4
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

    def _outside_graph(
        self, queries: Float32s, k: int, exclude: Int64s, start: int, end: int
    ) -> Int64s:
        """Return the exact candidates among rows `start` to `end`; all are outside the graph."""
        if len(self._single) != self._size - start:
            self._single = self._vectors.array[start : self._size].astype(np.float32)
        alive = self._alive.array[start:end]
        found = exact_candidates(queries, self._single[: end - start], alive, k, exclude - start)
        return np.where(found >= 0, found + start, -1)
