"""Synthetic embeddings with the structure of real ones: unequal topics, low effective rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["HOW", "parts", "vectors"]

#: Description for reports.
HOW = (
    "vectors: unit norm, rounded to float16; 40 themes, 1 topic per 100 texts (at most 5,000), "
    "sizes by Zipf's law; variance of direction i falls as 1/i; cosine of two texts of a topic "
    "about 0.6, of a theme 0.4, otherwise 0.1. Queries are new texts of the same topics"
)
_THEMES = 40
_MAX_TOPICS = 5_000
#: Variance shared by all texts, by a theme, by a topic, and of one text.
_SHARES = (0.1, 0.3, 0.2, 0.4)
_PART = 8_192


def parts(n: int, dim: int, *, seed: int = 0) -> Iterator[NDArray[np.float16]]:
    """Yield float16[.., dim], n rows in total; another seed draws other texts of these topics."""
    fixed = np.random.default_rng(0)
    topics = min(max(n // 100, 10), _MAX_TOPICS)
    spread = 1 / np.sqrt(np.arange(1, dim + 1, dtype=np.float32))
    spread /= np.linalg.norm(spread)
    common, theme, topic, own = np.sqrt(np.array(_SHARES, dtype=np.float32))
    of_all = fixed.standard_normal(dim, dtype=np.float32) * spread
    themes = fixed.standard_normal((_THEMES, dim), dtype=np.float32) * spread
    theme_of = fixed.integers(0, _THEMES, topics)
    centers = common * of_all + theme * themes[theme_of]
    centers += topic * fixed.standard_normal((topics, dim), dtype=np.float32) * spread
    weights = 1 / np.arange(1, topics + 1)
    chance = np.random.default_rng([1, seed])
    for start in range(0, n, _PART):
        count = min(_PART, n - start)
        which = chance.choice(topics, count, p=weights / weights.sum())
        rows = chance.standard_normal((count, dim), dtype=np.float32) * spread
        rows = centers[which] + own * rows
        yield (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def vectors(n: int, dim: int, *, seed: int = 0, of: int | None = None) -> NDArray[np.float16]:
    """Return n vectors, float16[n, dim]: the first n of `of`."""
    found = np.empty((n, dim), dtype=np.float16)
    start = 0
    for part in parts(of or n, dim, seed=seed):
        count = min(len(part), n - start)
        found[start : start + count] = part[:count]
        start += count
        if start == n:
            break
    return found
