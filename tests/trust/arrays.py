"""Synthetic texts: clusters on a sphere, some labels wrong."""

import numpy as np

from testnuc.index.nearest import NearestVectors
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


def sides(seed, n=400, topics=12, dim=48):
    """Return texts and right labels that the embedding separates; the LLM is wrong on topics.

    It errs on four of five texts of five of the twelve topics, and on a tenth of the others.
    """
    random = np.random.default_rng(seed)

    def unit(vectors):
        return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)

    topic = random.integers(0, topics, n)
    gold = (topic % 2).astype(np.int32)
    across = 0.5 * unit(random.normal(size=dim))
    vectors = (
        unit(random.normal(size=(topics, dim)))[topic] + np.where(gold[:, None], 1, -1) * across
    )
    vectors = unit(vectors + 0.15 * random.normal(size=(n, dim))).astype(np.float16)
    wrong = random.random(n) < np.where(topic < 5, 0.8, 0.1)
    own = np.where(wrong, 1 - gold, gold).astype(np.int32)
    index = NearestVectors(dim, exact_below=n + 1)
    index.add(vectors, np.arange(n, dtype=np.uint64))
    near = index.search(vectors, 30, exclude=np.arange(n, dtype=np.int64))
    folds = folds_of([bytes([int(b)]) for b in random.integers(0, 256, n)])
    return Texts(vectors, own, *near, folds, 2), gold


def among(texts, rows, first=None):
    """Return some texts in this order, the first ones with their neighbors among all of these."""
    vectors = np.ascontiguousarray(texts.vectors[rows])
    index = NearestVectors(vectors.shape[1], exact_below=len(rows) + 1)
    index.add(vectors, np.arange(len(rows), dtype=np.uint64))
    own = np.arange(first or len(rows), dtype=np.int64)
    ids, similarities = index.search(vectors[own], 30, exclude=own)
    return Texts(vectors, texts.own[rows], ids, similarities, texts.folds[rows], texts.n_classes)


def with_near_copies(seed, n_classes=5, purity=0.6, spread=1.0, size=5, n=2_000, dim=32):
    """Return neighbors, similarities, labels and gold; on near copies, a tenth, the LLM errs more.

    It errs on 15 % of the near copies, which have the same right label, and on 5 % of the others.
    These lie in topics: a part `purity` has the topic's label, the others have any.
    """
    random = np.random.default_rng(seed)

    def around(centers, width):
        vectors = centers + width * random.normal(size=centers.shape)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    copies, topics = n // 10, 40
    originals = around(np.zeros((copies // size, dim)), 1)
    topic = random.integers(0, topics, n - copies)
    others = around(around(np.zeros((topics, dim)), 1)[topic], spread / np.sqrt(dim))
    vectors = np.concatenate([around(np.repeat(originals, size, axis=0), 0.03), others])
    labels = random.integers(0, n_classes, topics)[topic]
    mixed = random.random(len(topic)) >= purity
    labels[mixed] = random.integers(0, n_classes, mixed.sum())
    gold = np.concatenate([np.repeat(random.integers(0, n_classes, copies // size), size), labels])
    wrong = random.random(n) < np.where(np.arange(n) < copies, 0.15, 0.05)
    own = np.where(wrong, (gold + random.integers(1, n_classes, n)) % n_classes, gold)
    vectors = vectors.astype(np.float16)
    index = NearestVectors(dim, exact_below=n + 1)
    index.add(vectors, np.arange(n, dtype=np.uint64))
    ids, similarities = index.search(vectors, 30, exclude=np.arange(n, dtype=np.int64))
    return ids, similarities, own.astype(np.int32), gold.astype(np.int32)
