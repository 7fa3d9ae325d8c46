"""What the actors of a job hold: the pool, what predicts texts, and what votes on predictions.

The hash of a text selects its shard of the pool. A search queries all shards and merges their
results. Shards score vectors exactly as a single index does, so the result does not depend on the
number of shards if all of them search exactly.
"""

import asyncio
import functools
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from testnuc._base.arrays import Float16s, Float32s, Int64s
from testnuc._base.checks import hash_text
from testnuc._engine.components import Components, Internals
from testnuc._engine.inputs import distinct
from testnuc._engine.learning import Learning
from testnuc._engine.rows import Rows
from testnuc._engine.run import Run
from testnuc.errors import InvalidInputError, TestNUCError
from testnuc.index.matching import Where
from testnuc.index.memory_pool import Pool
from testnuc.protocols import Matches, PoolText, Reply, Request
from testnuc.trust.diagnosis import Decision, Diagnosis
from testnuc.trust.learned import Learned
from testnuc.types import Prediction

#: The prediction of a text, or its error; None: it has neither.
Outcome = Prediction | str | None
#: What is known of a text: that, and why the embedder rejected it, if it did.
Known = tuple[Outcome, str | None]
_Found = tuple["Int64s", "Float32s", "NDArray[np.uint64]"]


class Shard(Pool):
    """A part of the pool, in one actor."""

    def __init__(self) -> None:
        super().__init__()
        self._ranks: list[int] = []
        self._known: dict[bytes, Known] = {}

    async def put(
        self, texts: Sequence[PoolText], vectors: Float16s, known: Sequence[Known]
    ) -> None:
        """Add texts with predictions, and vectors of those not rejected; known texts stay."""
        for entry, what in zip(texts, known, strict=True):
            self._known.setdefault(entry.hash, what)
        rows = [at for at, (_, rejected) in enumerate(known) if rejected is None]
        # no await before the pool has numbered them
        new = [texts[at].hash for at in rows if texts[at].hash not in self]
        self._ranks += [int.from_bytes(h[:8], "big") for h in new]
        await self.add([texts[at] for at in rows], vectors[rows])

    async def ranked(self, vectors: Float16s, k: int, exclude: Sequence[bytes] | None) -> _Found:
        """Return numbers, similarities and ranks of the k nearest texts of each vector."""
        found = await self.search(vectors, k, exclude=exclude)
        ranks = np.array(self._ranks or [0], dtype=np.uint64)[np.maximum(found.ids, 0)]
        return found.ids, found.similarities, ranks

    async def known(self, hashes: Sequence[bytes]) -> list[Known | None]:
        """Return what is known of each text."""
        return [self._known.get(h) for h in hashes]

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
        self, texts: Sequence[PoolText], vectors: Float16s, known: Sequence[Known]
    ) -> None:
        """Put each text into its shard."""
        places = self._by_shard([entry.hash for entry in texts])
        asked = (
            shard.put.remote([texts[i] for i in at], vectors[at], [known[i] for i in at])
            for shard, at in zip(self._shards, places, strict=True)
            if at
        )
        await asyncio.gather(*asked)

    async def stored_vectors(self, hashes: Sequence[bytes]) -> list[Float16s | None]:
        return await self._each("stored_vectors", hashes)

    async def known(self, hashes: Sequence[bytes]) -> list[Known | None]:
        return await self._each("known", hashes)

    async def search(self, vectors: Float16s, k: int, **where: Unpack[Where]) -> Matches:
        """Find the k nearest texts of each vector in all shards: the pool is complete."""
        asked = (shard.ranked.remote(vectors, k, where.get("exclude")) for shard in self._shards)
        parts: list[_Found] = await asyncio.gather(*asked)
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
        asked = zip(self._shards, at, strict=True)
        parts = await asyncio.gather(*(one.fetch.remote(ids[places] // n) for one, places in asked))
        return _scattered(at, parts, len(ids))

    async def sample(self, most: int) -> list[PoolText]:
        share = -(-most // len(self._shards))
        parts = await asyncio.gather(*(shard.sample.remote(share) for shard in self._shards))
        return sorted((e for part in parts for e in part), key=lambda entry: entry.hash)[:most]

    async def _each(self, what: str, hashes: Sequence[bytes]) -> list[Any]:
        at = self._by_shard(hashes)
        asked = (
            getattr(shard, what).remote([hashes[i] for i in places])
            for shard, places in zip(self._shards, at, strict=True)
        )
        return _scattered(at, await asyncio.gather(*asked), len(hashes))

    def _by_shard(self, hashes: Sequence[bytes]) -> list[list[int]]:
        at: list[list[int]] = [[] for _ in self._shards]
        for i, text_hash in enumerate(hashes):
            at[int.from_bytes(text_hash[-4:], "big") % len(at)].append(i)
        return at


def _scattered(at: Sequence[Any], parts: Sequence[Sequence[Any]], n: int) -> list[Any]:
    found = dict(zip(chain(*at), chain(*parts), strict=True))
    return [found[i] for i in range(n)]


#: Texts sampled for a decision of the auto policy.
_SAMPLE = 10_000
#: The arguments that a vote needs.
_OF_VOTES = frozenset({"labels", "k", "policy"})


class Settings:
    """The arguments of a job, as every actor gets them.

    Pickled as a whole: Ray would share the arrays of the user's embedder between actors, which
    makes them read-only.
    """

    def __init__(self, client: Mapping[str, Any]) -> None:
        from ray import cloudpickle

        for name, value in client.items():
            try:
                cloudpickle.dumps(value)
            except Exception as exc:
                raise InvalidInputError(
                    f"{name} is {value!r:.200}, which cannot be sent to the actors ({exc}); give "
                    "its name where it has one, or an object that can be pickled"
                ) from exc
        self._pickled: bytes = cloudpickle.dumps(dict(client))

    @functools.cached_property
    def client(self) -> dict[str, Any]:
        """Arguments of `TestNUC`, this process's own copy."""
        from ray import cloudpickle

        given: dict[str, Any] = cloudpickle.loads(self._pickled)
        return given

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "client"}


def without_votes(settings: Settings, vectors: Vectors) -> Components:
    """Return the parts of a client; votes are counted elsewhere, so that it needs no kernels."""
    return Components(Internals(pool=vectors, kernels=False), **settings.client)


async def stored_learned(settings: Settings) -> bytes | None:
    """Return what was learned from judged texts, from the store of a job; None: nothing."""
    parts = without_votes(settings, Vectors())
    learning = Learning(parts)
    try:
        await parts.ready(opened=learning.load)
    finally:
        await parts.aclose()
    return None if learning.learned is None else learning.learned.to_bytes()


class _NoModel:
    """Takes the place of a model: all texts have their prediction."""

    name = "none"
    model = "none"
    identity = ""

    async def answer(self, request: Request) -> Reply:
        raise TestNUCError(f"{len(request.texts)} texts of the vote have no prediction")


class _NoEmbedder:
    """Takes the place of an embedder: all vectors are in the shards."""

    name = "in_flight"

    def __init__(self, dim: int, shards: Shards) -> None:
        self.dim = dim
        self._shards = shards

    async def embed(self, texts: Sequence[str]) -> Float32s:
        raise TestNUCError(
            f"the text {texts[0][:80]!r} was not in the dataset when it was first read: it must "
            "give the same rows each time; call dataset.materialize() before"
        )

    async def embed_each(self, texts: Sequence[str]) -> list[Exception]:
        """Return why each text has no vector."""
        known = await self._shards.known([hash_text(text) for text in texts])
        rejected = [None if of is None else of[1] for of in known]
        if None in rejected:
            await self.embed([text for text, why in zip(texts, rejected, strict=True) if not why])
        return [TestNUCError(why) for why in rejected if why is not None]


class Voting:
    """Votes on texts whose predictions, and those of their neighbors, are in the shards.

    `decision` was made from the predictions of the job, where the policy is "auto"; `learned` is
    what `stored_learned` returned.
    """

    def __init__(
        self,
        settings: Settings,
        shards: Sequence[Any],
        dim: int,
        decision: Decision | None = None,
        learned: bytes | None = None,
    ) -> None:
        self._shards = Shards(shards)
        given = {name: v for name, v in settings.client.items() if name in _OF_VOTES}
        internals, embedder = Internals(pool=self._shards), _NoEmbedder(dim, self._shards)
        self._parts = Components(internals, model=_NoModel(), embedder=embedder, **given)
        #: Those of the job.
        self.labels = self._parts.labels
        if learned is not None:
            known = Learned.from_bytes(learned)
            self._parts.pipeline.settings = self._parts.settings.with_learned(known)
        self._decision = decision

    async def vote(self, texts: Sequence[str]) -> Rows:
        """Return the classification of each text."""
        await self._parts.ready()
        entries, places = await distinct(texts)
        run = await self._run(entries)
        if run.votes.settings.policy is None:
            decision = run.votes.settings.decision or self._decision
            assert decision is not None
            run.votes.decide(decision)
        await self._parts.pipeline.settle(run)
        return await asyncio.to_thread(Rows, run, texts, places)

    async def decide(self) -> Diagnosis | None:
        """Diagnose the predictions of the job; None where the policy is fixed."""
        if self._parts.pipeline.settings.policy is not None:
            return None
        await self._parts.ready()
        run = await self._run(await self._shards.sample(_SAMPLE))
        return await asyncio.to_thread(run.votes.diagnose)

    async def _run(self, entries: Sequence[PoolText]) -> Run:
        run = await self._parts.pipeline.prepare(entries, together=True)
        known = await self._shards.known([entry.hash for entry in run.batch.entries])
        for place, of in enumerate(known):
            if of is not None and (outcome := of[0]) is not None:
                made = TestNUCError(outcome) if isinstance(outcome, str) else outcome
                run.answers.put(place, made)
        return run
