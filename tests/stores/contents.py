"""What the tests of stores have in common: a store that is open, and what is put into it."""

from __future__ import annotations

from contextlib import asynccontextmanager

import numpy as np

import testnuc
from testnuc._base.checks import hash_text
from testnuc.protocols import PoolText
from testnuc.testing import HashEmbedder
from tests.conftest import LABELS


@asynccontextmanager
async def is_open(store):
    """Open a store, and close it at the end."""
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def unit(n, dim=8, seed=0):
    """Return n unit vectors."""
    rows = np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def entries(n, start=0):
    """Return n texts of a pool."""
    return [PoolText(f"text {i}", hash_text(f"text {i}")) for i in range(start, start + n)]


def client(base_url, store, **more):
    """Return a client of a server of this machine with this store."""
    given = {"embedder": HashEmbedder(), "policy": "weighted", "api_key": "k", **more}
    return testnuc.TestNUC(LABELS, "openai/x", base_url=base_url, store=store, **given)
