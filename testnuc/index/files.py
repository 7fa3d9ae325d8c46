"""Append-only arrays of fixed-size rows, in memory or in the files of a saved index.

Written rows never change, so concurrent writers of a row write the same bytes. Files are never
truncated: that would crash every process that has them mapped.
"""

from __future__ import annotations

import mmap
import os
import re
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias
from zlib import crc32

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from testnuc._base.arrays import Array

_FORMAT = 1
#: Fields of a record that are numbers.
_NUMBERS = ("dim", "rows", "vectors_crc", "ranks_crc", "graph_rows", "graph_crc")
_MIN_ROWS, _MIN_BYTES = 1_024, 1 << 16
#: Rows per copy to a file.
_COPY_CHUNK = 8_192
_BLOCK = 1 << 24
#: Names that `SavedIndex` gives to its files.
_NAME = re.compile(r"(vectors|ranks|graph)\.[0-9a-f]+")


class DamagedIndexError(Exception):
    """The files of an index are missing or damaged; the index must be rebuilt."""


class MemoryRows:
    """Rows in memory, each of this shape."""

    def __init__(self, dtype: Any, shape: tuple[int, ...]) -> None:
        self.array: Array = np.empty((0, *shape), dtype=dtype)

    def write(self, start: int, rows: Array) -> None:
        """Write rows at `start`; references to a replaced array stay valid."""
        end = start + len(rows)
        if end > len(self.array):
            capacity = max(end, len(self.array) * 2, _MIN_ROWS)
            grown = np.empty((capacity, *self.array.shape[1:]), dtype=self.array.dtype)
            grown[:start] = self.array[:start]
            self.array = grown
        self.array[start:end] = rows

    def close(self) -> None:
        """Do nothing: memory needs no closing."""


class FileRows:
    """Rows of this shape in a file, read through a memory map; `create` needs a new file."""

    def __init__(
        self, path: Path, dtype: Any, shape: tuple[int, ...], *, create: bool = False
    ) -> None:
        self.path = path
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._shape = shape
        self._width = self._dtype.itemsize * int(np.prod(shape))
        self._file = path.open("x+b" if create else "r+b", buffering=0)
        self.array: Array = np.empty((0, *shape), dtype=self._dtype)
        try:
            self._map()
        except BaseException:
            self._file.close()
            raise

    def write(self, start: int, rows: Array) -> None:
        """Write rows at `start`; raises `OSError` if the disk is full."""
        size = (start + len(rows)) * self._width
        have = os.fstat(self._file.fileno()).st_size
        if size > have:
            self._reserve(have, max(size, have + have // 8, _MIN_BYTES))
        # not through the map, where a full disk raises SIGBUS instead of an error
        self._file.seek(start * self._width)
        left = np.ascontiguousarray(rows, dtype=self._dtype).data.cast("B")
        while left:
            left = left[self._file.write(left) or 0 :]
        if start + len(rows) > len(self.array):
            self._map()

    def sync(self) -> None:
        """Flush written rows to disk (fsync)."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; references to its arrays stay valid."""
        self._file.close()

    def _reserve(self, have: int, size: int) -> None:
        reserve = getattr(os, "posix_fallocate", None)
        if reserve is not None:
            reserve(self._file.fileno(), have, size - have)
            return
        self._file.seek(have)
        while have < size:
            have += self._file.write(bytes(min(size - have, 1 << 20))) or 0

    def _map(self) -> None:
        capacity = os.fstat(self._file.fileno()).st_size // self._width
        if capacity:
            # the array keeps the map alive, also after the file is closed
            mapped = mmap.mmap(self._file.fileno(), capacity * self._width, access=mmap.ACCESS_READ)
            self.array = np.frombuffer(
                mapped, dtype=self._dtype, count=capacity * int(np.prod(self._shape))
            ).reshape(capacity, *self._shape)


#: [capacity, ..] in `array`: the rows and spare capacity; replaced by a larger one when full.
RowArray: TypeAlias = MemoryRows | FileRows


@dataclass(frozen=True, slots=True)
class SavedIndex:
    """File names and checksums of a saved index, which the caller stores."""

    dim: int
    #: Valid rows in the files of vectors and ranks; later rows are ignored.
    rows: int
    #: Names of files in the folder.
    vectors: str
    ranks: str
    #: CRC-32 of the valid rows.
    vectors_crc: int
    ranks_crc: int
    #: None if there were too few vectors for a graph.
    graph: str | None = None
    graph_rows: int = 0
    graph_crc: int = 0
    #: Version of the file format.
    form: int = _FORMAT

    def facts(self) -> dict[str, Any]:
        """Return the fields as plain values, for `of`."""
        return asdict(self)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> SavedIndex:
        """Return the record with these fields; refuses those of another format version."""
        if facts.get("form") != _FORMAT or set(facts) != {field.name for field in fields(cls)}:
            raise DamagedIndexError("the index was saved by another version")
        saved = cls(**facts)
        # a store from elsewhere must not name other files: they are written to, and deleted
        if not all(isinstance(name, str) and _NAME.fullmatch(name) for name in saved.files()):
            raise DamagedIndexError("the index names files outside of its folder")
        if not all(type(facts[name]) is int and facts[name] >= 0 for name in _NUMBERS):
            raise DamagedIndexError("the record of the index is damaged")
        return saved

    def files(self) -> set[str]:
        """Return the names of all files."""
        return {self.vectors, self.ranks} | ({self.graph} if self.graph else set())


def checksum_of_rows(rows: Array, start: int = 0) -> int:
    """Return the CRC-32 of rows, continued from the checksum `start` of the rows before."""
    content = rows.data.cast("B") if len(rows) else memoryview(b"")
    for at in range(0, len(content), _BLOCK):
        start = crc32(content[at : at + _BLOCK], start)
    return start


def checksum_of_file(path: Path) -> int:
    """Return the CRC-32 of a file."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found = crc32(block, found)
    return found


def map_rows(folder: Path, saved: SavedIndex) -> tuple[FileRows, FileRows]:
    """Memory-map the saved vectors and ranks; raises `DamagedIndexError` or `OSError`."""
    with ExitStack() as opened:
        vectors = FileRows(folder / saved.vectors, np.float16, (saved.dim,))
        opened.callback(vectors.close)
        ranks = FileRows(folder / saved.ranks, np.uint64, ())
        opened.callback(ranks.close)
        for rows, crc in ((vectors, saved.vectors_crc), (ranks, saved.ranks_crc)):
            whole = len(rows.array) >= saved.rows
            if not whole or checksum_of_rows(rows.array[: saved.rows]) != crc:
                raise DamagedIndexError(f"checksum mismatch in {rows.path}")
        opened.pop_all()
    return vectors, ranks


def copy_rows(
    folder: Path, before: SavedIndex | None, vectors: RowArray, ranks: RowArray, size: int
) -> tuple[FileRows, FileRows]:
    """Return files with the first `size` rows: the files of `before` extended, or new ones."""
    start, token = 0, os.urandom(6).hex()
    names = [f"vectors.{token}", f"ranks.{token}"]
    if before is not None:
        start, names = before.rows, [before.vectors, before.ranks]
    copies: list[FileRows] = []
    with ExitStack() as opened:
        for rows, name in zip((vectors, ranks), names, strict=True):
            dtype, shape = rows.array.dtype, rows.array.shape[1:]
            copies.append(FileRows(folder / name, dtype, shape, create=before is None))
            opened.callback(copies[-1].close)
            for at in range(start, size, _COPY_CHUNK):
                copies[-1].write(at, rows.array[at : min(at + _COPY_CHUNK, size)])
        opened.pop_all()
    return copies[0], copies[1]
