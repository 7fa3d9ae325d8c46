"""Arrays in an archive of NumPy's, read without more memory than the file has bytes."""

from __future__ import annotations

import io
import math
import struct
import zipfile
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: What reading raises where a byte of the archive or of its header differs.
DAMAGED = (
    zipfile.BadZipFile,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    RuntimeError,
    SyntaxError,
    TokenError,
    TypeError,
    ValueError,
    struct.error,
)
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_archive(content: bytes, *names: str) -> list[NDArray[Any]]:
    """Return arrays that `numpy.savez` wrote; raises one of `DAMAGED`.

    A header can declare any shape, and a compressed member any size: both must be what the file
    holds. There is no pickle.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return [_array(archive, f"{name}.npy") for name in names]


def _array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    with archive.open(name) as file:
        shape, by_column, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
        raw = file.read()
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(raw):
        raise ValueError(f"{name} does not hold what its header says")
    return np.frombuffer(raw, dtype).reshape(shape, order="F" if by_column else "C")
