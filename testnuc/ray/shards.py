"""The pool of a job: texts, vectors and predictions, in actors that are searched together.

The hash of a text selects its shard. A search queries all shards and merges their results. Shards
score vectors exactly as a single index does, so the result does not depend on the number of shards
if all of them search exactly.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from testnuc._base.arrays import Float16s, Float32s, Int64s
from testnuc.index.matching import Where
from testnuc.index.memory_pool import Pool
from testnuc.protocols import Matches, PoolText
from testnuc.types import Prediction

#: The prediction of a text, or its error; None if the text is unknown.
Outcome = Prediction | str | None
_Found = tuple["Int64s", "Float32s", "NDArray[np.uint64]"]


class Shard(Pool):
    """A part of the pool, in one actor."""

    def __init__(self) -> None:
        super().__init__()
        self._ranks: list[int] = []
        self._outcomes: dict[bytes, Outcome] = {}
        #: Why the embedder rejected a text, which has no vector.
        self._rejected: dict[bytes, str] = {}

    async def put(
        self,
        texts: Sequence[PoolText],
        vectors: Float16s,
        outcomes: Sequence[Outcome],
        rejected: Sequence[str | None],
    ) -> None:
        """Add texts with their vectors and predictions; known texts do not change."""
        for entry, outcome, why in zip(texts, outcomes, rejected, strict=True):
            self._outcomes.setdefault(entry.hash, outcome)
            if why is not None:
                self._rejected[entry.hash] = why
        rows = [at for at, why in enumerate(rejected) if why is None]
        # no await before the pool has numbered them
        new = [texts[at].hash for at in rows if texts[at].hash not in self]
        self._ranks += [int.from_bytes(h[:8], "big") for h in new]
        await self.add([texts[at] for at in rows], vectors[rows])

    async def ranked(self, vectors: Float16s, k: int, exclude: Sequence[bytes] | None) -> _Found:
        """Return numbers, similarities and ranks of the k nearest texts of each vector."""
        found = await self.search(vectors, k, exclude=exclude)
        ranks = np.array(self._ranks or [0], dtype=np.uint64)[np.maximum(found.ids, 0)]
        return found.ids, found.similarities, ranks

    async def outcomes(self, hashes: Sequence[bytes]) -> list[Outcome]:
        """Return the outcome of each text."""
        return [self._outcomes.get(h) for h in hashes]

    async def rejected(self, hashes: Sequence[bytes]) -> list[str | None]:
        """Return why the embedder rejected each text; None: it did not."""
        return [self._rejected.get(h) for h in hashes]

    async def sample(self, most: int) -> list[PoolText]:
        """Return at most so many texts, in the order of their hashes, evenly spread."""
        texts, _ = await self.scan(0, len(self))
        texts.sort(key=lambda entry: entry.hash)
        if len(texts) > most:
            texts = [texts[i] for i in np.linspace(0, len(texts) - 1, most).astype(int).tolist()]
        return texts


class Vectors(Pool):
    """The vectors of the current texts; an empty `Index` otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.of: dict[bytes, Float16s] = {}

    def __len__(self) -> int:
        return len(self.of)

    async def add(self, texts: Sequence[PoolText], vectors: Float16s) -> int:
        """Add nothing: the texts of a job are put into its shards."""
        del texts, vectors
        return 0

    async def stored_vectors(self, hashes: Sequence[bytes]) -> list[Float16s | None]:
        return [self.of.get(h) for h in hashes]


class Shards(Vectors):
    """All shards, as the `Index` of one client; text ``n`` of shard ``s`` has the number
    ``n * shards + s``.
    """  # noqa: D205 - the numbering belongs to the summary

    def __init__(self, shards: Sequence[Any]) -> None:
        super().__init__()
        self._shards = shards

    async def put(
        self,
        texts: Sequence[PoolText],
        vectors: Float16s,
        outcomes: Sequence[Outcome],
        rejected: Sequence[str | None],
    ) -> None:
        """Put each text into its shard."""
        places = self._by_shard([entry.hash for entry in texts])
        await _all(
            shard.put.remote(
                [texts[i] for i in at],
                vectors[at],
                [outcomes[i] for i in at],
                [rejected[i] for i in at],
            )
            for shard, at in zip(self._shards, places, strict=True)
            if at
        )

    async def stored_vectors(self, hashes: Sequence[bytes]) -> list[Float16s | None]:
        return await self._each("stored_vectors", hashes)

    async def outcomes(self, hashes: Sequence[bytes]) -> list[Outcome]:
        return await self._each("outcomes", hashes)

    async def rejected(self, hashes: Sequence[bytes]) -> list[str | None]:
        return await self._each("rejected", hashes)

    async def search(self, vectors: Float16s, k: int, **where: Unpack[Where]) -> Matches:
        """Find the k nearest texts of each vector in all shards: the pool is complete."""
        parts: list[_Found] = await _all(
            shard.ranked.remote(vectors, k, where.get("exclude")) for shard in self._shards
        )
        n = len(self._shards)
        ids = np.concatenate(
            [np.where(p[0] >= 0, p[0] * n + s, -1) for s, p in enumerate(parts)], axis=1
        )
        similarities = np.concatenate([p[1] for p in parts], axis=1)
        if n == 1:
            return Matches(ids, similarities)
        ranks = np.concatenate([p[2] for p in parts], axis=1)
        order = np.lexsort((ranks, np.where(ids >= 0, -similarities, np.inf)), axis=1)[:, :k]
        return Matches(
            np.take_along_axis(ids, order, axis=1), np.take_along_axis(similarities, order, axis=1)
        )

    async def fetch(self, ids: Int64s) -> list[PoolText]:
        n = len(self._shards)
        at = [np.flatnonzero(ids % n == s) for s in range(n)]
        parts = await _all(
            shard.fetch.remote(ids[places] // n)
            for shard, places in zip(self._shards, at, strict=True)
        )
        return _scattered(at, parts, len(ids))

    async def sample(self, most: int) -> list[PoolText]:
        share = -(-most // len(self._shards))
        parts = await _all(shard.sample.remote(share) for shard in self._shards)
        return sorted((e for part in parts for e in part), key=lambda entry: entry.hash)[:most]

    async def _each(self, what: str, hashes: Sequence[bytes]) -> list[Any]:
        at = self._by_shard(hashes)
        parts = await _all(
            getattr(shard, what).remote([hashes[i] for i in places])
            for shard, places in zip(self._shards, at, strict=True)
        )
        return _scattered(at, parts, len(hashes))

    def _by_shard(self, hashes: Sequence[bytes]) -> list[list[int]]:
        at: list[list[int]] = [[] for _ in self._shards]
        for i, text_hash in enumerate(hashes):
            at[int.from_bytes(text_hash[-4:], "big") % len(at)].append(i)
        return at


def _scattered(at: Sequence[Any], parts: Sequence[Sequence[Any]], n: int) -> list[Any]:
    found: list[Any] = [None] * n
    for places, part in zip(at, parts, strict=True):
        for i, value in zip(places, part, strict=True):
            found[i] = value
    return found


async def _all(references: Any) -> list[Any]:
    return list(await asyncio.gather(*references))
