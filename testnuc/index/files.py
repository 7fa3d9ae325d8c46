"""The files of a saved index, and their checksums."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from testnuc.index.rows import FileRows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from testnuc._base.arrays import Array
    from testnuc.index.rows import RowArray

_FORMAT = 1
#: Fields of a record that are numbers.
_NUMBERS = ("dim", "rows", "vectors_crc", "ranks_crc", "graph_rows", "graph_crc")
#: Rows per copy to a file.
_COPY_CHUNK = 8_192
_BLOCK = 1 << 24
#: Names that `SavedIndex` gives to its files.
_NAME = re.compile(r"(vectors|ranks|graph)\.[0-9a-f]+")


class DamagedIndexError(Exception):
    """The files of an index are missing or damaged; the index must be rebuilt."""


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


def new_token() -> str:
    """Return a random token for a unique file name."""
    return os.urandom(6).hex()


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


def verify_file(path: Path, crc: int) -> None:
    """Raise `DamagedIndexError` if the checksum of a file does not match."""
    if checksum_of_file(path) != crc:
        raise DamagedIndexError(f"checksum mismatch in {path}")


def map_rows(folder: Path, saved: SavedIndex) -> tuple[FileRows, FileRows]:
    """Memory-map the saved vectors and ranks; raises `DamagedIndexError` or `OSError`."""
    vectors = _map_verified(
        folder / saved.vectors, np.float16, (saved.dim,), saved, saved.vectors_crc
    )
    try:
        ranks = _map_verified(folder / saved.ranks, np.uint64, (), saved, saved.ranks_crc)
    except BaseException:
        vectors.close()
        raise
    return vectors, ranks


def _map_verified(
    path: Path, dtype: Any, shape: tuple[int, ...], saved: SavedIndex, crc: int
) -> FileRows:
    rows = FileRows(path, dtype, shape)
    if len(rows.array) < saved.rows or checksum_of_rows(rows.array[: saved.rows]) != crc:
        rows.close()
        raise DamagedIndexError(f"checksum mismatch in {path}")
    return rows


def copy_rows(
    folder: Path, before: SavedIndex | None, vectors: RowArray, ranks: RowArray, size: int
) -> tuple[FileRows, FileRows]:
    """Return files with the first `size` rows: the files of `before` extended, or new ones."""
    start = before.rows if before is not None else 0
    token = new_token()
    names = (
        (before.vectors, before.ranks)
        if before is not None
        else (f"vectors.{token}", f"ranks.{token}")
    )
    copies: list[FileRows] = []
    try:
        for rows, name in zip((vectors, ranks), names, strict=True):
            dtype, shape = rows.array.dtype, rows.array.shape[1:]
            copies.append(FileRows(folder / name, dtype, shape, create=before is None))
            for at in range(start, size, _COPY_CHUNK):
                copies[-1].write(at, rows.array[at : min(at + _COPY_CHUNK, size)])
    except BaseException:
        for copy in copies:
            copy.close()
        raise
    return copies[0], copies[1]
