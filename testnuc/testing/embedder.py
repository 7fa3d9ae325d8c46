"""A fast, deterministic embedder for tests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from testnuc.errors import InvalidInputError

__all__ = ["HashEmbedder"]

_WORD = re.compile(r"\w+")
# texts per event-loop iteration: a few milliseconds
_CHUNK = 256
_MAX_WORDS = 50_000
_NGRAM = 3
_WORD_WEIGHT = 3
_MAX_WEIGHT = 6


class HashEmbedder:
    """Embed texts by hashing their words and character trigrams to unit vectors.

    Texts that share words or parts of words are similar; semantics are ignored. A vector depends
    only on the text, `dim` and `seed`. All sums are over integers, so vectors are bit-identical in
    every process, on every platform and in every batch.

    Parameters
    ----------
    dim : int
        Dimension of a vector, at least 2.
    seed : int
        Seed of the hash.

    Raises
    ------
    InvalidInputError
        `dim` is less than 2.
    """

    def __init__(self, dim: int = 64, *, seed: int = 0) -> None:
        if dim < 2:
            raise InvalidInputError(f"dim is {dim}; give at least 2")
        self.dim = dim
        self._seed = seed
        #: Texts embedded so far.
        self.embedded = 0
        self._rows: dict[str, int] = {}
        self._table = np.zeros((256, dim), dtype=np.int64)

    @property
    def name(self) -> str:
        """Identity in stores."""
        return f"testnuc/hash-{self.dim}-{self._seed}"

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32[len(texts), dim], each row of unit norm."""
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        for start in range(0, len(texts), _CHUNK):
            if start:
                await asyncio.sleep(0)
            chunk = texts[start : start + _CHUNK]
            vectors[start : start + len(chunk)] = self._embed(chunk)
            self.embedded += len(chunk)
        return vectors

    def _embed(self, texts: Sequence[str]) -> NDArray[np.float64]:
        if len(self._rows) > _MAX_WORDS:
            self._rows.clear()
        rows, ends = self._rows, []
        found: list[int] = []
        for text in texts:
            for word in _WORD.findall(text.casefold()):
                row = rows.get(word)
                found.append(self._add_word(word) if row is None else row)
            ends.append(len(found))
        sums = np.zeros((len(found) + 1, self.dim), dtype=np.int64)
        np.cumsum(self._table[found], axis=0, out=sums[1:])
        at = np.array([0, *ends])
        totals = sums[at[1:]] - sums[at[:-1]]
        squares = (totals * totals).sum(axis=1)
        for i in np.flatnonzero(squares == 0).tolist():  # no words, or features that cancel out
            totals[i, self._hash(texts[i]) % self.dim] = squares[i] = 1
        vectors: NDArray[np.float64] = totals / np.sqrt(squares)[:, np.newaxis]
        return vectors

    def _add_word(self, word: str) -> int:
        """Add a word to the table as the sum of its hashed features; returns its row."""
        row = len(self._rows)
        if row == len(self._table):
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
        # short words are mostly articles and pronouns, which say little about the topic
        weight = min(len(word), _MAX_WEIGHT)
        vector = [0] * self.dim
        framed = f"<{word}>"
        for i in range(len(framed) - _NGRAM + 1):
            self._add_feature(vector, framed[i : i + _NGRAM], weight)
        self._add_feature(vector, framed, _WORD_WEIGHT * weight)
        self._table[row] = vector
        self._rows[word] = row
        return row

    def _add_feature(self, vector: list[int], feature: str, weight: int) -> None:
        # two positions and signs per feature, so that few features collide in both
        code = self._hash(feature)
        vector[code % self.dim] += weight if code & 0x4000_0000 else -weight
        code = crc32(feature.encode("utf-8", "surrogatepass"), code)
        vector[code % self.dim] += weight if code & 0x4000_0000 else -weight

    def _hash(self, text: str) -> int:
        return crc32(text.encode("utf-8", "surrogatepass"), self._seed & 0xFFFF_FFFF)
