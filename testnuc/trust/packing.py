"""A header and arrays as bytes, without pickle."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from testnuc.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["VERSION", "pack", "unpack"]

#: Of the header; `unpack` refuses another.
VERSION = 1


def pack(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return a header of plain values, and arrays, as bytes."""
    listed = [
        [name, array.dtype.newbyteorder("<").str, array.shape] for name, array in arrays.items()
    ]
    # a gain may be a scalar of numpy
    head = orjson.dumps(
        {"version": VERSION, **header, "arrays": listed}, option=orjson.OPT_SERIALIZE_NUMPY
    )
    body = b"".join(
        np.ascontiguousarray(a, dtype=a.dtype.newbyteorder("<")).tobytes() for a in arrays.values()
    )
    return zlib.compress(len(head).to_bytes(8, "little") + head + body, 1)


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return what `pack` was given.

    Raises
    ------
    StoreError
        A newer version of testnuc wrote it.
    """
    raw = zlib.decompress(data)
    at = 8 + int.from_bytes(raw[:8], "little")
    header = orjson.loads(raw[8:at])
    if header["version"] != VERSION:
        raise StoreError(
            "what was learned was stored by another version of testnuc; upgrade it, or learn "
            "again after `unlearn`"
        )
    arrays: dict[str, NDArray[Any]] = {}
    for name, kind, shape in header["arrays"]:
        dtype = np.dtype(kind)
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        found = np.frombuffer(raw[at : at + size], dtype=dtype).reshape(shape)
        arrays[name] = found.astype(dtype.newbyteorder("="))
        at += size
    return header, arrays
