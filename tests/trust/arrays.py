"""Synthetic texts: clusters on a sphere, some labels wrong."""

import numpy as np

from testnuc.index import NearestVectors
from testnuc.trust.head import folds_of
from testnuc.trust.model import Texts


def clusters(n=400, n_classes=5, dim=16, wrong=0.3, spread=0.2, seed=0):
    """Return texts and their right labels; own labels are partly wrong, a few are missing."""
    random = np.random.default_rng(seed)
    centers = random.normal(size=(n_classes, dim))
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    gold = random.integers(0, n_classes, n).astype(np.int32)
    vectors = centers[gold] + spread * random.normal(size=(n, dim))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    own = np.where(random.random(n) < wrong, random.integers(0, n_classes, n), gold)
    own = np.where(random.random(n) < 0.02, -1, own).astype(np.int32)
    index = NearestVectors(dim, exact_below=n + 1)
    index.add(vectors, np.arange(n, dtype=np.uint64))
    ids, similarities = index.search(vectors, 30, exclude=np.arange(n, dtype=np.int64))
    folds = folds_of([bytes([int(b)]) for b in random.integers(0, 256, n)])
    return Texts(vectors, own, ids, similarities, folds, n_classes), gold
