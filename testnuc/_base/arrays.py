"""Types of arrays, and arrays in an archive of NumPy's."""

import io
import math
import struct
import zipfile
from tokenize import TokenError
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# by the type of their elements; what has such arrays gives their shapes
Array: TypeAlias = NDArray[Any]
Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.integer]
Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.floating]
Float16s: TypeAlias = NDArray[np.float16]
Float32s: TypeAlias = NDArray[np.float32]
Float64s: TypeAlias = NDArray[np.float64]

#: What reading raises where a byte of the archive or of its header differs.
DAMAGED = (
    *(zipfile.BadZipFile, ArithmeticError, AttributeError, EOFError, LookupError, RuntimeError),
    *(SyntaxError, TokenError, TypeError, ValueError, struct.error),
)
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_archive(content: bytes, *names: str) -> list[Array]:
    """Return arrays that `numpy.savez` wrote; raises one of `DAMAGED`.

    It takes no more memory than the file has bytes: a header can declare any shape, a compressed
    member any size, and both must be what the file holds. There is no pickle.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return [_array(archive, f"{name}.npy") for name in names]


def _array(archive: zipfile.ZipFile, name: str) -> Array:
    if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    with archive.open(name) as file:
        shape, by_column, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
        raw = file.read()
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(raw):
        raise ValueError(f"{name} does not hold what its header says")
    return np.frombuffer(raw, dtype).reshape(shape, order="F" if by_column else "C")
