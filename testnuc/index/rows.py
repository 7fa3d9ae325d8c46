"""Append-only arrays of fixed-size rows, in memory or in a shared memory-mapped file.

Written rows never change, so concurrent writers of a row write the same bytes. Files are never
truncated: that would crash every process that has them mapped.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from testnuc._base.arrays import Array


_MIN_ROWS = 1_024
_MIN_BYTES = 1 << 16


class RowArray(Protocol):
    """An append-only array of rows."""

    #: [capacity, ..]: the rows and spare capacity; replaced by a larger array when full.
    array: Array

    def write(self, start: int, rows: Array) -> None:
        """Write rows at `start`."""


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
