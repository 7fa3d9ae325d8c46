"""The way of a text: embed, find neighbors, ask, vote.

`Pipeline.prepare` finds the neighbors of texts in one snapshot of the pool, `Pipeline.predict` gets
the predictions that their votes need. Both work on a `Neighborhoods`.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from testnuc._engine.examples import ExampleFinder
from testnuc._engine.neighborhoods import Neighborhoods, Snapshot, numbers_of, placed
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

#: A batch with so many predictions decides for itself; a smaller one by the pool's.
_BATCH_DECIDES = 2_000
#: Parts of a large pool that are looked at.
_CHUNKS = 12


@dataclass(frozen=True, slots=True)
class _Look:
    """A diagnosis of the pool, and when it was made."""

    #: Texts in the pool.
    size: int
    #: Outcomes that had come in.
    outcomes: int
    found: Diagnosis

    def holds(self, size: int, outcomes: int) -> bool:
        """Whether another look would hardly find more: until the pool has grown by a quarter.

        Where there were too few predictions to judge by, until there can be enough.
        """
        missing = MIN_PREDICTIONS - self.found.predictions
        if missing > 0 and outcomes - self.outcomes + size - self.size >= missing:
            return False
        return size < 1.25 * self.size


class Pipeline:
    """Embeds, retrieves and asks for one client.

    Parameters
    ----------
    labels, settings, method
        What to vote on, how, on which predictions; ``settings.k`` neighbors are searched.
    neighbors : {"predict", "stored"}
        Whether neighbors without a prediction are asked about, or not considered.
    predictor, scheduler, embedding, pool, store
        The steps.
    join_pool : bool
        Whether texts that are classified become neighbors of later ones.
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
        self._looked: _Look | None = None
        self._looking: asyncio.Task[Diagnosis] | None = None
        #: Texts whose outcome came in: no more predictions can have been made than these.
        self._outcomes = 0
        self.method = method
        self.neighbors = neighbors
        self.join_pool = join_pool
        self._predictor = predictor
        #: Lane -> its scheduler; the client adds those that it needs.
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
        """Find the neighbors of distinct texts.

        Parameters
        ----------
        texts : sequence of PoolText
            Distinct.
        together : bool
            True: the texts are each other's neighbors (they join the pool first). False: they see
            the pool as it is (and join it afterwards).
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
            # texts that do not join the pool leave their vectors nowhere else
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
        """Get the predictions that the votes of some texts need.

        Parameters
        ----------
        neighborhoods : Neighborhoods
            Takes the predictions.
        waves : bool
            Ask neighbors in waves and stop where the winner is certain.
        lane : str
            "live", or "batch".

        Yields
        ------
        int
            Each place that gets its prediction, or fails; those that had one before are left out.
        """
        async with aclosing(self._rounds(neighborhoods, waves=waves)) as rounds:
            async for places in rounds:
                async with aclosing(self._ask(neighborhoods, places, lane)) as answered:
                    async for place in answered:
                        yield place

    async def _rounds(
        self, neighborhoods: Neighborhoods, *, waves: bool
    ) -> AsyncGenerator[Iterable[int], None]:
        """Yield the places to ask about; each round depends on the outcomes of the last one."""
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
                rows = rows[~await _aside(len(rows), neighborhoods.cut, rows, known)]
                if not len(rows):
                    break

    async def _ask(
        self, neighborhoods: Neighborhoods, places: Iterable[int], lane: str
    ) -> AsyncGenerator[int, None]:
        """Ask about the texts at distinct places that have no outcome yet; yields each place."""
        scheduler = self.lanes[lane]
        sampler = Sampler(
            self.method, self._predictor, neighborhoods, self._open(neighborhoods, places)
        )
        # a stage of a batch lane takes hours: the examples of all texts are one
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
            # also when a failure or a cancellation ends the run: these calls were billed
            if self._examples is not None:
                await sampler.note(self._examples)

    def _open(self, neighborhoods: Neighborhoods, places: Iterable[int]) -> Iterator[int]:
        for place in places:
            if neighborhoods.answered(place):
                self._outcomes += 1
            else:
                yield place

    async def predict_own(self, neighborhoods: Neighborhoods) -> None:
        """Get the predictions of the own texts, and those of neighbors that are stored."""
        n_own = neighborhoods.n_own
        async with aclosing(self._ask(neighborhoods, range(n_own), "live")) as answered:
            async for _ in answered:
                pass
        await self._fill(neighborhoods, range(n_own, len(neighborhoods.entries)))

    async def predict_pool(self, lane: str = "live") -> AsyncGenerator[int, None]:
        """Get a prediction of every text of the pool that has none.

        Yields
        ------
        int
            How many more texts have their outcome.
        """
        start: int | None = 0
        snapshot = None
        if self._examples is not None:
            snapshot = Snapshot(await self._examples.snapshot())
        while start is not None:
            texts, start = await self._pool.scan(start, SEARCH)
            while lane != "live" and start is not None:
                # all at once: each part would be a day
                more, start = await self._pool.scan(start, SEARCH)
                texts += more
            neighborhoods = await self._neighborhoods(
                texts, no_matches(len(texts)), self.settings, snapshot
            )
            places = range(len(texts))
            if snapshot is not None and self.neighbors == "stored":
                await self._fill(neighborhoods, places)
            yield sum(map(neighborhoods.answered, places))
            async with aclosing(self._ask(neighborhoods, places, lane)) as answered:
                async for _ in answered:
                    yield 1

    async def _decide(self, neighborhoods: Neighborhoods) -> Decision:
        """Decide how texts vote, by the predictions that there are."""
        decision, diagnosis = neighborhoods.settings.decision, None
        if decision is None:
            n_own = neighborhoods.n_own
            if self.neighbors == "predict":
                await self._fill(neighborhoods, range(n_own, len(neighborhoods.entries)))
            predicted = sum(p is not None for p in neighborhoods.predictions[:n_own])
            if predicted >= min(_BATCH_DECIDES, max(len(self._pool) // 2, MIN_PREDICTIONS)):
                diagnosis = await asyncio.to_thread(neighborhoods.diagnose)
            else:
                diagnosis = await self._last_diagnosis()
            decision = diagnosis.decision
        neighborhoods.decide(decision, diagnosis)
        return decision

    async def _last_diagnosis(self) -> Diagnosis:
        """Return a recent diagnosis of the pool; a thousand concurrent callers make one."""
        look = self._looked
        if look is not None and look.holds(len(self._pool), self._outcomes):
            return look.found
        if self._looking is None:
            self._looking = asyncio.create_task(self.diagnose(), name="testnuc-diagnose")
            self._looking.add_done_callback(self._end_look)
        # one caller that is cancelled leaves it to the others
        return await asyncio.shield(self._looking)

    def _end_look(self, look: asyncio.Task[Diagnosis]) -> None:
        self._looking = None
        if not look.cancelled():
            # its callers raise a failure; perhaps all of them were cancelled
            look.exception()

    async def diagnose(self) -> Diagnosis:
        """Look at the predictions of the pool."""
        settings = self.settings
        size, outcomes = len(self._pool), self._outcomes
        chunks = range(0, size, SEARCH)
        if len(chunks) > _CHUNKS:
            # spread over the pool, so that old and new texts are looked at
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
        found = await asyncio.to_thread(neighborhoods.diagnose)
        self._looked = _Look(size, outcomes, found)
        return found

    async def _neighborhoods(
        self,
        texts: Sequence[PoolText],
        matches: Matches,
        settings: VoteSettings,
        snapshot: Snapshot | None = None,
    ) -> Neighborhoods:
        """Give each text a place: own texts first, then the neighbors that are none of them."""
        ids = await _aside(len(texts), numbers_of, matches)
        others = await self._pool.fetch(ids)
        neighborhoods: Neighborhoods = await _aside(
            len(texts), placed, self.labels, settings, texts, ids, others, matches, snapshot
        )
        if self.neighbors == "stored":
            await self._fill(neighborhoods, range(len(texts), len(neighborhoods.entries)))
        return neighborhoods

    async def _fill(self, neighborhoods: Neighborhoods, places: Iterable[int]) -> None:
        """Put the stored predictions of the texts at some places."""
        unknown = [place for place in places if not neighborhoods.answered(place)]
        stored = await self._retriever.stored([neighborhoods.entries[i] for i in unknown])
        for place, prediction in zip(unknown, stored, strict=True):
            if prediction is not None:
                neighborhoods.put(place, prediction)


async def _aside(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function: in a thread, if it has so much to do that the event loop would wait."""
    if size < SEARCH:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)


def _in_order(
    neighborhoods: Neighborhoods, rows: NDArray[np.int64], known: int | None
) -> Iterator[int]:
    """Yield each place once: own texts, each followed by its (first `known`) neighbors."""
    seen = bytearray(len(neighborhoods.entries))
    neighbors = neighborhoods.neighbors
    for row in rows.tolist():
        for place in (row, *neighbors[row, :known].tolist()):
            if place >= 0 and not seen[place]:
                seen[place] = 1
                yield place
