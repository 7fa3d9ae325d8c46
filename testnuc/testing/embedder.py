"""A fast, deterministic embedder for tests."""

import asyncio
import re
from collections.abc import Sequence
from zlib import crc32

import numpy as np

from testnuc._base.arrays import Float32s, Float64s, Int64s
from testnuc.errors import InvalidInputError

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
        self.embedded = 0
        #: Words -> sums of their hashed features.
        self._words: dict[str, Int64s] = {}

    @property
    def name(self) -> str:
        """Identity in stores."""
        return f"testnuc/hash-{self.dim}-{self._seed}"

    async def embed(self, texts: Sequence[str]) -> Float32s:
        """Return float32[len(texts), dim], each row of unit norm."""
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        for row, text in enumerate(texts):
            if row and row % _CHUNK == 0:
                await asyncio.sleep(0)
            vectors[row] = self._embed(text)
            self.embedded += 1
        return vectors

    def _embed(self, text: str) -> Float64s:
        if len(self._words) > _MAX_WORDS:
            self._words.clear()
        total = np.zeros(self.dim, dtype=np.int64)
        for word in re.findall(r"\w+", text.casefold()):
            known = self._words.get(word)
            total += self._add_word(word) if known is None else known
        square = int(total @ total)
        if not square:  # no words, or features that cancel out
            total[self._hash(text) % self.dim] = square = 1
        vector: Float64s = total / np.sqrt(square)
        return vector

    def _add_word(self, word: str) -> Int64s:
        # short words are mostly articles and pronouns, which say little about the topic
        weight = min(len(word), _MAX_WEIGHT)
        vector = [0] * self.dim
        framed = f"<{word}>"
        for i in range(len(framed) - _NGRAM + 1):
            self._add_feature(vector, framed[i : i + _NGRAM], weight)
        self._add_feature(vector, framed, _WORD_WEIGHT * weight)
        found = self._words[word] = np.array(vector, dtype=np.int64)
        return found

    def _add_feature(self, vector: list[int], feature: str, weight: int) -> None:
        # two positions and signs per feature, so that few features collide in both
        code = self._hash(feature)
        vector[code % self.dim] += weight if code & 0x4000_0000 else -weight
        code = crc32(feature.encode("utf-8", "surrogatepass"), code)
        vector[code % self.dim] += weight if code & 0x4000_0000 else -weight

    def _hash(self, text: str) -> int:
        return crc32(text.encode("utf-8", "surrogatepass"), self._seed & 0xFFFF_FFFF)
