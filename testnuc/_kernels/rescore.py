"""Reproducible similarities of candidates from the stored vectors, and the ranking of neighbors.

The last bits of an index's similarities depend on how it was built and queried. Here they are
recomputed in a fixed order of operations: float32 products are summed in 32 lanes, element i in
lane i % 32, then the lanes pairwise. So the bits depend on the two vectors alone: not on batch,
threads, or the width of vector registers.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from testnuc._kernels.compile import given, inline, kernel, made, prefetch, types

_LANES = 32
#: Corrects the exponent bias of float16 bits that are read as a float32.
_REBIAS = np.float32(2.0**112)
_SIGN = np.uint32(0x8000)
_REST = np.uint32(0x7FFF)

_I4, _I8, _F4 = types.int32, types.int64, types.float32
_U2 = types.uint16


def rescore(
    queries: NDArray[np.float32], vectors: NDArray[np.uint16], ids: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return the cosines of unit vectors, float32[B, K]; NaN where an id is outside the vectors.

    `queries` are float32[B, d], `vectors` the bits of float16[N, d] (``array.view(np.uint16)``),
    all finite, and `ids`, int64[B, K], the rows of `vectors` to compare query b with.
    """
    out = np.empty(ids.shape, np.float32)
    queries, ids = np.ascontiguousarray(queries, np.float32), np.ascontiguousarray(ids, np.int64)
    _rescore()(queries, np.ascontiguousarray(vectors), ids, out)
    return out


def rank_rows(
    ids: NDArray[np.int64], similarities: NDArray[np.float32], hashes: NDArray[np.uint64], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the k best of each row, most similar first; equal ones in the order of their hashes.

    `hashes` are uint64[N], a prefix of each text's content hash. Candidates, [B, K], whose id is
    outside the hashes or whose similarity is NaN are skipped. Padded with -1 and NaN.
    """
    known = (ids >= 0) & (ids < len(hashes)) & ~np.isnan(similarities)
    by_hash = hashes[np.where(known, ids, 0)] if len(hashes) else ids
    falling = np.where(known, -similarities, np.float32(np.inf))
    order = np.lexsort((by_hash, falling), axis=1)[:, :k]
    best, values = np.full((len(ids), k), -1, np.int64), np.full((len(ids), k), np.nan, np.float32)
    at = np.arange(len(ids))[:, None], order
    best[:, : order.shape[1]] = np.where(known, ids, -1)[at]
    values[:, : order.shape[1]] = np.where(known, similarities, np.float32(np.nan))[at]
    return best, values


@inline
def _half(bits: Any) -> Any:
    """Read a finite float16; in steps that the compiler can vectorize, unlike a table."""
    wide = np.uint32(bits)
    sign = np.uint32((wide & _SIGN) << np.uint32(16))
    return np.uint32(sign | np.uint32((wide & _REST) << np.uint32(13))).view(np.float32) * _REBIAS


@kernel(types.void(given(_F4, 2), given(_U2, 2), given(_I8, 2), made(_F4, 2)))
def _rescore(queries: Any, vectors: Any, ids: Any, out: Any) -> Any:
    d = queries.shape[1]
    blocks = d // _LANES
    lanes = np.empty(_LANES, np.float32)
    last = ids.shape[0] - 1
    for b in range(ids.shape[0]):
        for j in range(ids.shape[1]):
            i = ids[b, j]
            if i < 0 or i >= vectors.shape[0]:
                out[b, j] = np.nan
                continue
            row = np.uintp(i)
            following = ids[b, j + 1] if j + 1 < ids.shape[1] else ids[min(b + 1, last), 0]
            lanes[:] = 0.0
            for block in range(blocks):
                # a block of float16 is a cache line; prefetching for an invalid id is harmless
                prefetch(vectors, following * d + block * _LANES)
                for lane in range(_LANES):
                    at = np.uintp(block * _LANES + lane)
                    lanes[lane] += queries[b, at] * _half(vectors[row, at])
            for lane in range(d - blocks * _LANES):
                at = np.uintp(blocks * _LANES + lane)
                lanes[lane] += queries[b, at] * _half(vectors[row, at])
            width = _LANES // 2
            while width > 0:
                for lane in range(width):
                    lanes[lane] += lanes[lane + width]
                width //= 2
            out[b, j] = lanes[0]
