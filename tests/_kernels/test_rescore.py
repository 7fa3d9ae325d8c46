"""The re-scoring of candidates against its naive twin."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from testnuc._kernels.rescore import _half, rank_rows, rescore
from tests import naive

JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
SETTINGS = settings(max_examples=60 if JIT else 15)


@st.composite
def vectors(draw):
    """Queries float32[B, d], vectors uint16[N, d], ids int64[B, K]."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    d = draw(st.sampled_from([1, 3, 31, 32, 33, 64, 100]))
    n, rows, k = (draw(st.integers(low, 6)) for low in (1, 0, 0))

    def unit(count):
        x = rng.normal(size=(count, d)) * 10.0 ** rng.integers(-5, 1, (count, d))
        return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)

    ids = rng.integers(-1, n + 1, (rows, k))
    return unit(rows), unit(n).astype(np.float16).view(np.uint16), ids


def test_every_finite_half_is_read_exactly():
    bits = np.arange(65536, dtype=np.uint16)
    finite = bits[(bits & 0x7C00) != 0x7C00]
    some = finite if JIT else finite[::37]
    got = np.array([_half(b) for b in some], np.float32)
    np.testing.assert_array_equal(got.view(np.uint32), some.view(np.float16).astype("f").view("I"))


@given(vectors())
@SETTINGS
def test_rescore_is_the_dot_product(case):
    queries, stored, ids = case
    got = rescore(queries, stored, ids)
    assert got.shape == ids.shape
    for b, row in enumerate(ids):
        for j, i in enumerate(row):
            if 0 <= i < len(stored):
                assert abs(got[b, j] - naive.cosine(queries[b], stored[i])) < 1e-6
            else:
                assert np.isnan(got[b, j])


@given(vectors())
@SETTINGS
def test_rescore_has_equal_bits_in_any_company(case):
    queries, stored, ids = case
    got = rescore(queries, stored, ids)
    stored = np.vstack([stored, stored[::-1]])
    stored.flags.writeable = False
    ids = np.where((ids < 0) | (ids >= len(stored) // 2), -1, len(stored) - 1 - ids)
    for b in range(len(ids)):
        for j in range(ids.shape[1]):
            alone = rescore(queries[b : b + 1], stored, ids[b : b + 1, j : j + 1])
            assert alone.tobytes() == got[b, j].tobytes()


@given(st.integers(0, 2**32 - 1), st.integers(0, 5), st.integers(0, 12), st.integers(0, 14))
@SETTINGS
def test_rank_rows_equals_naive(seed, rows, width, k):
    rng = np.random.default_rng(seed)
    hashes = rng.choice(np.array([0, 5, 5, 2**63, 2**64 - 1], np.uint64), 20)
    ids = rng.integers(-1, 21, (rows, width))
    similarities = rng.choice(np.array([0.5, 0.5, -0.1, 0.9, 0.2, np.nan], np.float32), ids.shape)
    best, values = rank_rows(ids, similarities, hashes, k)
    assert best.shape == values.shape == (rows, k)
    for b in range(rows):
        expected = naive.rank(ids[b], similarities[b], hashes, k)
        assert best[b].tolist() == [i for i, _ in expected]
        np.testing.assert_array_equal(values[b], np.array([s for _, s in expected], np.float32))
