"""The files of a saved index, and whether they are whole."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["DamagedIndexError", "SavedIndex", "checksum_of_file", "checksum_of_rows", "new_token"]

_FORM = 1
_BLOCK = 1 << 24


class DamagedIndexError(Exception):
    """The files of an index are missing or not what was saved; it has to be built anew."""


@dataclass(frozen=True, slots=True)
class SavedIndex:
    """What was saved, and how to see that it is whole; for the caller to keep."""

    dim: int
    #: Rows in the files of vectors and ranks that may be trusted.
    rows: int
    #: Names of files in the folder.
    vectors: str
    ranks: str
    #: CRC-32 of the trusted rows.
    vectors_crc: int
    ranks_crc: int
    #: None: too few vectors for one.
    graph: str | None = None
    graph_rows: int = 0
    graph_crc: int = 0
    #: Version of all this.
    form: int = _FORM

    def facts(self) -> dict[str, Any]:
        """Return what `of` reads."""
        return asdict(self)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> SavedIndex:
        """Return the record with these facts.

        Raises
        ------
        DamagedIndexError
            Another version wrote them.
        """
        if facts.get("form") != _FORM or set(facts) != {field.name for field in fields(cls)}:
            raise DamagedIndexError("the index was saved by another version")
        return cls(**facts)

    def files(self) -> set[str]:
        """Return the names of all files."""
        return {self.vectors, self.ranks} | ({self.graph} if self.graph else set())


def new_token() -> str:
    """Return a part of a file's name that no other has."""
    return os.urandom(6).hex()


def checksum_of_rows(rows: NDArray[Any], start: int = 0) -> int:
    """Return the CRC-32 of rows, which follow others whose checksum is `start`."""
    content = memoryview(rows).cast("B") if len(rows) else b""
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
