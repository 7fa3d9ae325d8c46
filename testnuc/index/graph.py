"""The HNSW graph over the first rows of an index."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from testnuc.index.files import checksum_of_file

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["Graph"]

_CONNECTIVITY = 16
_EXPANSION_ADD = 128
#: Rows that go in one after the other: threads that start on an empty graph do not see each other's
#: vectors, and may leave some that no search reaches.
_ALONE = 1_024
#: Bytes written at a time.
_BLOCK = 1 << 24
#: Recall@10 on clustered unit vectors stays at 0.99 with 64 up to here, and needs 128 above.
_WIDER_ABOVE = 100_000


class Graph:
    """A usearch graph over the rows below `rows`, but for those that were removed.

    Parameters
    ----------
    dim : int
    threads : int
        Threads of one search or insertion; 0 = all cores.
    """

    def __init__(self, dim: int, threads: int) -> None:
        self._dim = dim
        self._threads = threads
        self._index = self._empty()
        #: The file that the graph is read from, where it lies; such a graph cannot change.
        self.mapped: Path | None = None
        #: Rows that went in, removed ones included.
        self.rows = 0

    def __len__(self) -> int:
        return len(self._index)

    @classmethod
    def map(cls, path: Path, dim: int, rows: int, threads: int) -> Graph:
        """Return a saved graph, read from its file where it lies.

        Raises
        ------
        OSError, RuntimeError, ValueError
            The file is not such a graph.
        """
        graph = cls(dim, threads)
        graph._index.view(os.fspath(path), progress=_yielding)
        if graph._index.ndim != dim or len(graph) > rows:
            raise ValueError(f"{path} is another graph")
        graph.mapped = path
        graph.rows = rows
        graph._widen()
        return graph

    def loaded(self) -> Graph:
        """Return a copy of a mapped graph that can change."""
        assert self.mapped is not None
        graph = Graph(self._dim, self._threads)
        try:
            # the lock is held while vectors are read: they should come from memory, not the disk
            checksum_of_file(self.mapped)
            graph._index.load(os.fspath(self.mapped), progress=_yielding)
        except (OSError, RuntimeError):
            # another process has replaced the file; what is mapped is still there
            graph._index = self._index.copy()
        graph.rows = self.rows
        graph._widen()
        return graph

    def save(self, path: Path) -> None:
        """Write the graph to a file, and wait until the disk has it.

        Takes as much memory as the graph for a moment: usearch holds the interpreter's lock while
        it writes vectors, and a slow disk would stop the event loop for seconds.
        """
        content = memoryview(self._index.save(None, progress=_yielding))
        with path.open("xb", buffering=0) as file:
            while content:
                content = content[file.write(content[:_BLOCK]) :]
            os.fsync(file.fileno())

    def insert(self, rows: NDArray[np.int64], vectors: NDArray[np.float16], end: int) -> None:
        """Insert rows; all below `end` are in, then."""
        if len(rows):
            threads = 1 if self.rows < _ALONE else self._threads
            self._index.add(rows.astype(np.uint64), vectors, threads=threads, copy=True)
        self.rows = end
        self._widen()

    def remove(self, rows: NDArray[np.int64]) -> None:
        """Take rows out; a mapped graph keeps them, and who searches drops them."""
        rows = rows[rows < self.rows]
        if self.mapped is None and len(rows):
            self._index.remove(rows.astype(np.uint64))

    def search(self, queries: NDArray[np.float16], count: int) -> NDArray[np.int64]:
        """Return about the nearest rows, int64[B, at least 1], padded with -1.

        The queries are of the type of the graph: to convert them costs up to a tenth of a search.
        """
        found = np.full((len(queries), max(count, 1)), -1, dtype=np.int64)
        if count == 0:
            return found
        matches = self._index.search(queries, count, threads=self._threads)
        if len(queries) == 1:
            # a batch of one comes back as another type, without counts
            keys = np.asarray(matches.keys).reshape(-1)
            found[0, : len(keys)] = keys.astype(np.int64)
            return found
        # rows past the count are padded with key 0
        filled = np.arange(matches.keys.shape[1])[None, :] < np.asarray(matches.counts)[:, None]
        found[:, : matches.keys.shape[1]] = np.where(filled, matches.keys.astype(np.int64), -1)
        return found

    def _empty(self) -> Any:
        from usearch.index import Index

        return Index(
            ndim=self._dim,
            # the vectors have unit norm: the inner product is the cosine
            metric="ip",
            dtype="f16",
            connectivity=_CONNECTIVITY,
            expansion_add=_EXPANSION_ADD,
            expansion_search=64,
        )

    def _widen(self) -> None:
        # not saved with the graph
        if self.rows > _WIDER_ABOVE:
            self._index.expansion_search = 128


# usearch holds the interpreter's lock while it reads and writes files, seconds for a large graph;
# a function that it calls back lets other threads have their turn
def _yielding(done: int, total: int) -> bool:  # noqa: ARG001
    return True


# usearch compares the types themselves, not their names
_yielding.__annotations__ = {"done": int, "total": int, "return": bool}
