"""The clients of a job's actors: one asks, another votes on what was said."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from testnuc._engine.inputs import distinct
from testnuc._engine.neighborhoods import placed
from testnuc._engine.rows import Rows
from testnuc.client import TestNUC
from testnuc.errors import InvalidInputError, TestNUCError
from testnuc.protocols import Matches, PoolText
from testnuc.ray.limits_client import Line, RemoteAccount, RemoteAdmission
from testnuc.stores import resolve
from testnuc.stores.memory import MemoryStore
from testnuc.stores.override import with_pool

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from testnuc._engine.neighborhoods import Neighborhoods
    from testnuc.limits import Budget, RateLimit
    from testnuc.protocols import Reply, Request
    from testnuc.ray.limits_client import Limits
    from testnuc.ray.shards import Shards, Vectors
    from testnuc.trust import Decision, Diagnosis
    from testnuc.types import Prediction

__all__ = ["Asking", "Settings", "Voting"]

#: Texts that a decision looks at.
_SAMPLE = 10_000
#: What all workers share, and what only a vote needs.
_SHARED = frozenset({"rate_limit", "budget"})
_OF_VOTES = frozenset({"labels", "k", "policy", "min_trust", "none_label"})


class Settings:
    """What a job was called with, as every actor gets it.

    Pickled as a whole: Ray would share the arrays of an embedder of the user's own between actors,
    which makes them read-only.

    Parameters
    ----------
    client : mapping
        Arguments of `TestNUC`.
    limits, namespace : str
        The actor of `SharedLimits`.
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
    def telling(self) -> Iterator[None]:
        """Tell the job of an error of ours: what Ray passes on of it is a text."""
        import ray

        try:
            yield
        except TestNUCError as error:
            ray.get(self.limits.fail.remote(error))
            raise

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "client"}


class Asking(TestNUC):
    """Asks about the texts that it is given, within the limits of the job.

    Parameters
    ----------
    settings : Settings
    limits : Limits
        What all workers share.
    vectors : Vectors
        Those of the texts at hand, for a labeler that works on them.
    actor : str
        The actor that it lives in.
    """

    def __init__(
        self, settings: Settings, limits: Limits, vectors: Vectors, actor: str = ""
    ) -> None:
        given = {name: v for name, v in settings.client.items() if name not in _SHARED}
        given["store"] = with_pool(resolve(given.get("store")), vectors)
        super().__init__(**given)
        self._line = Line(limits, self._meter.mark, actor)
        rate: RateLimit | None = settings.client.get("rate_limit")
        budget: Budget | None = settings.client.get("budget")
        self._transport.share(
            RemoteAdmission(self._line, time.monotonic),
            None if budget is None else RemoteAccount(self._line, budget),
            by_tokens=rate is not None and rate.tokens_per_minute is not None,
        )

    async def _open(self) -> None:
        # nothing is voted on here, so that no kernel is needed
        self._line.open()
        await self._open_store()

    async def aclose(self) -> None:
        """Hang up when all that was sent is answered."""
        try:
            await super().aclose()
        finally:
            await self._line.close()

    async def predict(self, entries: Sequence[PoolText]) -> list[Prediction | Exception]:
        """Return what is said of each of some distinct texts, or why nothing is."""
        await self._ready()
        nobody = Matches(np.empty((len(entries), 0), np.int64), np.empty((len(entries), 0), "f4"))
        neighborhoods = placed(
            self.labels, self._pipeline.settings, entries, np.empty(0, np.int64), [], nobody
        )
        try:
            await self._pipeline.predict_own(neighborhoods)
        finally:
            await self._line.flush()
        if self._line.broken is not None:
            raise self._line.broken
        outcomes: list[Prediction | Exception] = []
        for place in range(len(entries)):
            outcome = neighborhoods.predictions[place] or neighborhoods.errors.get(place)
            assert outcome is not None
            outcomes.append(outcome)
        return outcomes


class _NoModel:
    """Stands where a client has its model: all is said."""

    name = "none"
    model = "none"
    identity = ""

    async def answer(self, request: Request) -> Reply:
        raise TestNUCError(f"{len(request.texts)} texts of the vote have no prediction")


class _NoEmbedder:
    """Stands where a client has its embedder: all vectors are in the shards."""

    name = "board"

    def __init__(self, dim: int) -> None:
        self.dim = dim

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise TestNUCError(
            f"the text {texts[0][:80]!r} was not in the dataset when it was first read: it must "
            "give the same rows each time; call dataset.materialize() before"
        )


class Voting(TestNUC):
    """Votes on texts whose predictions, and those of their neighbors, are in the shards.

    Parameters
    ----------
    settings : Settings
    shards : Shards
    dim : int
        Length of a vector.
    decision : Decision, optional
        What the predictions of the job say, where the policy is "auto".
    """

    def __init__(
        self, settings: Settings, shards: Shards, dim: int, decision: Decision | None = None
    ) -> None:
        given = {name: v for name, v in settings.client.items() if name in _OF_VOTES}
        super().__init__(
            model=_NoModel(),
            embedder=_NoEmbedder(dim),
            store=with_pool(MemoryStore(), shards),
            **given,
        )
        self._shards = shards
        self._decision = decision

    async def vote(self, texts: Sequence[str]) -> Rows:
        """Return the classification of each text."""
        await self._ready()
        entries, places = await distinct(texts)
        neighborhoods = await self._neighborhoods(entries)
        if neighborhoods.settings.policy is None:
            assert self._decision is not None
            neighborhoods.decide(self._decision)
        return await asyncio.to_thread(Rows, neighborhoods, texts, places)

    async def decide(self) -> Diagnosis | None:
        """Look at the predictions of the job; None where nothing is to be decided."""
        if self._pipeline.settings.policy is not None:
            return None
        await self._ready()
        entries = await self._shards.sample(_SAMPLE)
        neighborhoods = await self._neighborhoods(entries)
        diagnosis: Diagnosis = await asyncio.to_thread(neighborhoods.diagnose)
        return diagnosis

    async def _neighborhoods(self, entries: Sequence[PoolText]) -> Neighborhoods:
        neighborhoods = await self._pipeline.prepare(entries, together=True)
        outcomes = await self._shards.outcomes([entry.hash for entry in neighborhoods.entries])
        for place, outcome in enumerate(outcomes):
            if outcome is not None:
                neighborhoods.put(
                    place, TestNUCError(outcome) if isinstance(outcome, str) else outcome
                )
        return neighborhoods
