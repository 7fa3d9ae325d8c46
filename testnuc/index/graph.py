"""The usearch HNSW graph of an index, in memory or mapped from a file that never changes."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self
from zlib import crc32

import numpy as np

from testnuc._base.arrays import Float16s, Int64s

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
        if not all(
            type(facts[name]) is int and facts[name] >= 0 for name in ("dim", "rows", "crc")
        ):
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
        """Return approximate nearest rows, int64[B, max(count, 1)], padded with -1.

        Queries have the dtype of the graph, float16; a conversion costs up to 10% of a search.
        """
        found = np.full((len(queries), max(count, 1)), -1, dtype=np.int64)
        if count == 0:
            return found
        matches = self._index.search(queries, count, threads=0)
        if len(queries) == 1:
            # usearch returns another type for a single query, without counts
            keys = np.asarray(matches.keys).reshape(-1)
            found[0, : len(keys)] = keys.astype(np.int64)
            return found
        # usearch pads with key 0
        filled = np.arange(matches.keys.shape[1])[None, :] < np.asarray(matches.counts)[:, None]
        found[:, : matches.keys.shape[1]] = np.where(filled, matches.keys.astype(np.int64), -1)
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
