"""The pipeline of a run: embed, retrieve neighbors, predict.

`Pipeline.prepare` retrieves the neighbors of texts from one snapshot of the pool and returns a
`Neighborhoods`. `Pipeline.predict` obtains the predictions that its votes need.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from testnuc._engine.examples import ExampleFinder
from testnuc._engine.neighborhoods import Neighborhoods, Snapshot, build_neighborhoods, distinct_ids
from testnuc._engine.retrieval import SEARCH, Retriever, no_matches
from testnuc._engine.sampling import Sampler
from testnuc.trust import MIN_PREDICTIONS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from testnuc._dispatch.predictor import Predictor
    from testnuc._dispatch.scheduler import Scheduler
    from testnuc.embedders.cache import EmbeddingCache
    from testnuc.labels import LabelSet
    from testnuc.protocols import Index, Matches, Method, PoolText, Store
    from testnuc.trust import Decision, Diagnosis, VoteSettings

__all__ = ["Pipeline"]

#: From this many predictions on, the auto policy diagnoses the batch; below, the pool.
_BATCH_DECIDES = 2_000
#: Parts of a large pool that are sampled for a diagnosis.
_CHUNKS = 12


@dataclass(frozen=True, slots=True)
class _PoolDiagnosis:
    """A diagnosis of the pool, and its state at that time."""

    #: Texts in the pool.
    size: int
    #: Outcomes received by then.
    outcomes: int
    diagnosis: Diagnosis

    def is_current(self, size: int, outcomes: int) -> bool:
        """Whether the diagnosis is still valid: until the pool has grown by a quarter.

        A diagnosis with too few predictions is valid until there may be enough.
        """
        missing = MIN_PREDICTIONS - self.diagnosis.predictions
        if missing > 0 and outcomes - self.outcomes + size - self.size >= missing:
            return False
        return size < 1.25 * self.size


class Pipeline:
    """Embeds, retrieves and predicts for one client.

    Parameters
    ----------
    labels, settings, method
        Of the client; ``settings.k`` neighbors are retrieved.
    neighbors : {"predict", "stored"}
        Whether neighbors without a prediction are predicted, or skipped.
    predictor, scheduler, embedding, pool, store
        Components of the client.
    join_pool : bool
        Whether classified texts become neighbors of later ones.
    """

    def __init__(
        self,
        labels: LabelSet,
        settings: VoteSettings,
        method: Method,
        neighbors: Literal["predict", "stored"],
        *,
        predictor: Predictor,
        scheduler: Scheduler,
        embedding: EmbeddingCache,
        pool: Index,
        store: Store,
        join_pool: bool,
    ) -> None:
        self.labels = labels
        #: Replaced as a whole; each run reads it once.
        self.settings = settings
        self._last: _PoolDiagnosis | None = None
        self._diagnosing: asyncio.Task[Diagnosis] | None = None
        #: Texts with an outcome so far: an upper bound on new predictions.
        self._outcomes = 0
        self.method = method
        self.neighbors = neighbors
        self.join_pool = join_pool
        self._predictor = predictor
        #: Lane -> scheduler; `Components` adds the batch lane when it is needed.
        self.lanes = {"live": scheduler}
        self._embedding = embedding
        self._pool = pool
        self._examples: ExampleFinder | None = None
        if method.context:
            self._examples = ExampleFinder(
                method, predictor=predictor, embedding=embedding, pool=pool, store=store
            )
        self._retriever = Retriever(
            method,
            neighbors,
            predictor=predictor,
            pool=pool,
            store=store,
            examples=self._examples,
        )

    async def prepare(
        self, texts: Sequence[PoolText], *, together: bool, settings: VoteSettings | None = None
    ) -> Neighborhoods:
        """Embed distinct texts and retrieve their neighbors.

        Parameters
        ----------
        texts : sequence of PoolText
            Distinct.
        together : bool
            True: the texts join the pool first, so they can be each other's neighbors. False: they
            join it after the search.
        settings : VoteSettings, optional
            Default: the current ones.
        """
        settings = self.settings if settings is None else settings
        hashes = [entry.hash for entry in texts]
        vectors = await self._embedding.vectors([entry.text for entry in texts], hashes)
        known = await self._pool.labels(hashes)
        await asyncio.sleep(0)
        texts = [
            entry if label is None else replace(entry, label=label)
            for entry, label in zip(texts, known, strict=True)
        ]
        together = together and self.join_pool
        upto = await self._pool.add(texts, vectors) if together else None
        snapshot = None
        if self._examples is not None:
            upto = await self._examples.snapshot() if upto is None else upto
            askable = None
            if self.neighbors == "stored":
                askable = frozenset(hashes) if together else frozenset[bytes]()
            # the pool has no vectors of texts that do not join it
            own = {} if self.join_pool else dict(zip(hashes, vectors, strict=True))
            snapshot = Snapshot(upto, own, askable)
        matches = await self._retriever.search(
            texts, vectors, settings.k, upto=upto, together=together
        )
        if self.join_pool and not together:
            await self._pool.add(texts, vectors)
        return await self._neighborhoods(texts, matches, settings, snapshot)

    async def predict(
        self, neighborhoods: Neighborhoods, *, waves: bool, lane: str = "live"
    ) -> AsyncGenerator[int, None]:
        """Obtain the predictions that the votes need.

        Parameters
        ----------
        neighborhoods : Neighborhoods
            Receives the predictions.
        waves : bool
            Predict neighbors in waves, with early exit once the winner is certain.
        lane : str
            "live", or "batch".

        Yields
        ------
        int
            Each place that gets a prediction or an error; places that already had one are omitted.
        """
        async with aclosing(self._rounds(neighborhoods, waves=waves)) as rounds:
            async for places in rounds:
                async with aclosing(self._predict(neighborhoods, places, lane)) as answered:
                    async for place in answered:
                        yield place

    async def _rounds(
        self, neighborhoods: Neighborhoods, *, waves: bool
    ) -> AsyncGenerator[Iterable[int], None]:
        """Yield the places to predict; each round depends on the outcomes of the one before."""
        settings = neighborhoods.settings
        own, rows = range(neighborhoods.n_own), np.arange(neighborhoods.n_own)
        if settings.policy is None:
            yield own
            decision = await self._decide(neighborhoods)
            if decision.policy is not None and self.neighbors == "predict":
                yield _in_order(neighborhoods, rows, decision.k)
        elif self.neighbors == "stored":
            # neighbors have their predictions already
            yield own
        elif not waves or neighborhoods.neighbors.shape[1] == 0 or settings.prior is not None:
            yield _in_order(neighborhoods, rows, None)
        else:
            for known in neighborhoods.waves():
                yield _in_order(neighborhoods, rows, known)
                rows = rows[~await _call(len(rows), neighborhoods.cut, rows, known)]
                if not len(rows):
                    break

    async def _predict(
        self, neighborhoods: Neighborhoods, places: Iterable[int], lane: str
    ) -> AsyncGenerator[int, None]:
        """Predict the texts at distinct places that have no outcome yet; yields each place."""
        scheduler = self.lanes[lane]
        sampler = Sampler(
            self.method, self._predictor, neighborhoods, self._open(neighborhoods, places)
        )
        # a stage of the batch lane takes hours, so the examples of all texts are one stage
        whole = lane != "live"
        asks = (
            sampler.asks()
            if self._examples is None
            else sampler.asks_with_examples(self._examples, scheduler, whole=whole)
        )
        try:
            async with aclosing(scheduler.run(asks)) as outcomes:
                async for ask, outcome in outcomes:
                    if sampler.settle(ask, outcome):
                        self._outcomes += 1
                        yield ask.place
        finally:
            # even after a failure or cancellation: these calls were billed
            if self._examples is not None:
                await sampler.remember(self._examples)

    def _open(self, neighborhoods: Neighborhoods, places: Iterable[int]) -> Iterator[int]:
        for place in places:
            if neighborhoods.answered(place):
                self._outcomes += 1
            else:
                yield place

    async def predict_own(self, neighborhoods: Neighborhoods) -> None:
        """Predict the own texts; neighbors get their stored predictions only."""
        n_own = neighborhoods.n_own
        async with aclosing(self._predict(neighborhoods, range(n_own), "live")) as answered:
            async for _ in answered:
                pass
        await self._fill(neighborhoods, range(n_own, len(neighborhoods.entries)))

    async def predict_pool(self, lane: str = "live") -> AsyncGenerator[int, None]:
        """Predict every text of the pool that has no prediction.

        Yields
        ------
        int
            The number of texts completed since the last yield.
        """
        start: int | None = 0
        snapshot = None
        if self._examples is not None:
            snapshot = Snapshot(await self._examples.snapshot())
        while start is not None:
            texts, start = await self._pool.scan(start, SEARCH)
            while lane != "live" and start is not None:
                # one stage for all texts: a batch can take a day
                more, start = await self._pool.scan(start, SEARCH)
                texts += more
            neighborhoods = await self._neighborhoods(
                texts, no_matches(len(texts)), self.settings, snapshot
            )
            places = range(len(texts))
            if snapshot is not None and self.neighbors == "stored":
                await self._fill(neighborhoods, places)
            yield sum(map(neighborhoods.answered, places))
            async with aclosing(self._predict(neighborhoods, places, lane)) as answered:
                async for _ in answered:
                    yield 1

    async def _decide(self, neighborhoods: Neighborhoods) -> Decision:
        """Make the decision of the auto policy, from the predictions of the batch or the pool."""
        decision, diagnosis = neighborhoods.settings.decision, None
        if decision is None:
            n_own = neighborhoods.n_own
            if self.neighbors == "predict":
                await self._fill(neighborhoods, range(n_own, len(neighborhoods.entries)))
            predicted = sum(p is not None for p in neighborhoods.predictions[:n_own])
            if predicted >= min(_BATCH_DECIDES, max(len(self._pool) // 2, MIN_PREDICTIONS)):
                diagnosis = await asyncio.to_thread(neighborhoods.diagnose)
            else:
                diagnosis = await self._recent_diagnosis()
            decision = diagnosis.decision
        neighborhoods.decide(decision, diagnosis)
        return decision

    async def _recent_diagnosis(self) -> Diagnosis:
        """Return a recent diagnosis of the pool; concurrent callers share one computation."""
        last = self._last
        if last is not None and last.is_current(len(self._pool), self._outcomes):
            return last.diagnosis
        if self._diagnosing is None:
            self._diagnosing = asyncio.create_task(self.diagnose(), name="testnuc-diagnose")
            self._diagnosing.add_done_callback(self._end_diagnosis)
        # shielded: the cancellation of one caller must not affect the others
        return await asyncio.shield(self._diagnosing)

    def _end_diagnosis(self, task: asyncio.Task[Diagnosis]) -> None:
        self._diagnosing = None
        if not task.cancelled():
            # marks the exception as retrieved, in case all callers were cancelled
            task.exception()

    async def diagnose(self) -> Diagnosis:
        """Diagnose the predictions of the pool."""
        settings = self.settings
        size, outcomes = len(self._pool), self._outcomes
        chunks = range(0, size, SEARCH)
        if len(chunks) > _CHUNKS:
            # spread over the pool, so that old and new texts are sampled
            chunks = range(0, size, size // _CHUNKS)
        texts: list[PoolText] = []
        for start in chunks:
            part, _ = await self._pool.scan(start, SEARCH)
            stored = await self._retriever.stored(part)
            texts += [
                e for e, p in zip(part, stored, strict=True) if p is not None or e.label is not None
            ]
        matches = no_matches(len(texts))
        if len(texts) >= MIN_PREDICTIONS:
            hashes = [entry.hash for entry in texts]
            vectors = await self._embedding.vectors([entry.text for entry in texts], hashes)
            matches = await self._retriever.search(texts, vectors, settings.k)
        neighborhoods = await self._neighborhoods(texts, matches, settings)
        await self._fill(neighborhoods, range(len(neighborhoods.entries)))
        diagnosis = await asyncio.to_thread(neighborhoods.diagnose)
        self._last = _PoolDiagnosis(size, outcomes, diagnosis)
        return diagnosis

    async def _neighborhoods(
        self,
        texts: Sequence[PoolText],
        matches: Matches,
        settings: VoteSettings,
        snapshot: Snapshot | None = None,
    ) -> Neighborhoods:
        """Fetch the neighbors' texts and build the neighborhoods."""
        ids = await _call(len(texts), distinct_ids, matches)
        others = await self._pool.fetch(ids)
        neighborhoods: Neighborhoods = await _call(
            len(texts),
            build_neighborhoods,
            self.labels,
            settings,
            texts,
            ids,
            others,
            matches,
            snapshot,
        )
        if self.neighbors == "stored":
            await self._fill(neighborhoods, range(len(texts), len(neighborhoods.entries)))
        return neighborhoods

    async def _fill(self, neighborhoods: Neighborhoods, places: Iterable[int]) -> None:
        """Set the stored predictions at the given places."""
        unknown = [place for place in places if not neighborhoods.answered(place)]
        stored = await self._retriever.stored([neighborhoods.entries[i] for i in unknown])
        for place, prediction in zip(unknown, stored, strict=True):
            if prediction is not None:
                neighborhoods.put(place, prediction)


async def _call(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; in a thread if `size` is large, so as not to block the event loop."""
    if size < SEARCH:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)


def _in_order(
    neighborhoods: Neighborhoods, rows: NDArray[np.int64], known: int | None
) -> Iterator[int]:
    """Yield each place once: every own text, followed by its first `known` neighbors."""
    seen = bytearray(len(neighborhoods.entries))
    neighbors = neighborhoods.neighbors
    for row in rows.tolist():
        for place in (row, *neighbors[row, :known].tolist()):
            if place >= 0 and not seen[place]:
                seen[place] = 1
                yield place
