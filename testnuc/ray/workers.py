"""What the actors of a job hold: one predicts texts, another votes on the predictions."""

import asyncio
import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from testnuc._base.arrays import Float32s
from testnuc._base.checks import hash_text
from testnuc._engine.components import Components, Internals
from testnuc._engine.inputs import distinct
from testnuc._engine.learning import Learning
from testnuc._engine.rows import Rows
from testnuc._engine.run import Run
from testnuc.errors import InvalidInputError, TestNUCError
from testnuc.protocols import PoolText, Reply, Request
from testnuc.ray.shards import Shards, Vectors
from testnuc.trust.diagnosis import Decision, Diagnosis
from testnuc.trust.learned import Learned

#: Texts sampled for a decision of the auto policy.
_SAMPLE = 10_000
#: The arguments that a vote needs.
_OF_VOTES = frozenset({"labels", "k", "policy"})


class Settings:
    """The arguments of a job, as every actor gets them, and the name of its `SharedLimits`.

    Pickled as a whole: Ray would share the arrays of the user's embedder between actors, which
    makes them read-only.
    """

    def __init__(self, client: Mapping[str, Any], limits: str, namespace: str) -> None:
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
        self._limits = limits
        self._namespace = namespace

    @functools.cached_property
    def client(self) -> dict[str, Any]:
        """Arguments of `TestNUC`, this process's own copy."""
        from ray import cloudpickle

        given: dict[str, Any] = cloudpickle.loads(self._pickled)
        return given

    @property
    def limits(self) -> Any:
        """The actor of `SharedLimits`."""
        import ray

        return ray.get_actor(self._limits, namespace=self._namespace)

    @contextlib.contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Report an error of testnuc to the job: Ray passes on its text only."""
        import ray

        try:
            yield
        except TestNUCError as error:
            ray.get(self.limits.fail.remote(error))
            raise

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
        rejected = await self._shards.rejected([hash_text(text) for text in texts])
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
        self._parts = Components(
            Internals(pool=self._shards),
            model=_NoModel(),
            embedder=_NoEmbedder(dim, self._shards),
            **given,
        )
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
        entries = await self._shards.sample(_SAMPLE)
        run = await self._run(entries)
        return await asyncio.to_thread(run.votes.diagnose)

    async def _run(self, entries: Sequence[PoolText]) -> Run:
        run = await self._parts.pipeline.prepare(entries, together=True)
        outcomes = await self._shards.outcomes([entry.hash for entry in run.batch.entries])
        for place, outcome in enumerate(outcomes):
            if outcome is not None:
                run.answers.put(
                    place, TestNUCError(outcome) if isinstance(outcome, str) else outcome
                )
        return run
