"""Rows of equal length, one after the other: in memory, or in a file that processes share.

A row never changes once it is written, so whoever writes a row of a shared file writes the same
bytes. Files only grow: to cut one would end every process that has it mapped.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["FileRows", "MemoryRows", "RowArray"]

_LEAST = 1_024
_LEAST_BYTES = 1 << 16


class RowArray(Protocol):
    """Rows that can be appended and read."""

    #: [room, ..]: the rows, and room for more; replaced when it is full.
    array: NDArray[Any]

    def write(self, start: int, rows: NDArray[Any]) -> None:
        """Put rows at `start`."""


class MemoryRows:
    """Rows in memory.

    Parameters
    ----------
    dtype : dtype
    shape : tuple of int
        Of one row.
    """

    def __init__(self, dtype: Any, shape: tuple[int, ...]) -> None:
        self.array: NDArray[Any] = np.empty((0, *shape), dtype=dtype)

    def write(self, start: int, rows: NDArray[Any]) -> None:
        """Put rows at `start`; who has the old array keeps what it holds."""
        end = start + len(rows)
        if end > len(self.array):
            room = max(end, len(self.array) * 2, _LEAST)
            grown = np.empty((room, *self.array.shape[1:]), dtype=self.array.dtype)
            grown[:start] = self.array[:start]
            self.array = grown
        self.array[start:end] = rows


class FileRows:
    """Rows in a file, read through a memory map.

    Parameters
    ----------
    path : Path
    dtype : dtype
    shape : tuple of int
        Of one row.
    create : bool
        Make the file, which must not be there.
    """

    def __init__(
        self, path: Path, dtype: Any, shape: tuple[int, ...], *, create: bool = False
    ) -> None:
        self.path = path
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._shape = shape
        self._width = self._dtype.itemsize * int(np.prod(shape))
        self._file = path.open("x+b" if create else "r+b", buffering=0)
        self.array: NDArray[Any] = np.empty((0, *shape), dtype=self._dtype)
        try:
            self._map()
        except BaseException:
            self._file.close()
            raise

    def write(self, start: int, rows: NDArray[Any]) -> None:
        """Put rows at `start`; raises `OSError` where the disk is full."""
        size = (start + len(rows)) * self._width
        have = os.fstat(self._file.fileno()).st_size
        if size > have:
            self._reserve(have, max(size, have + have // 8, _LEAST_BYTES))
        # through the file, not through the map: a full disk is an error there, here it is the end
        self._file.seek(start * self._width)
        left = np.ascontiguousarray(rows, dtype=self._dtype).data.cast("B")
        while left:
            left = left[self._file.write(left) or 0 :]
        if start + len(rows) > len(self.array):
            self._map()

    def sync(self) -> None:
        """Wait until the disk has what was written."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let go of the file; arrays that are in use stay."""
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
        room = os.fstat(self._file.fileno()).st_size // self._width
        if room:
            # the array keeps the map alive, and the map needs no file
            mapped = mmap.mmap(self._file.fileno(), room * self._width, access=mmap.ACCESS_READ)
            flat = np.frombuffer(mapped, dtype=self._dtype, count=room * int(np.prod(self._shape)))
            self.array = flat.reshape(room, *self._shape)
