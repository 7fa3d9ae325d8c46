"""The pipeline of a run: embed, retrieve neighbors, predict."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from typing import Literal

import numpy as np

from testnuc._base.arrays import Int64s
from testnuc._dispatch.inflight import Ask
from testnuc._dispatch.predictor import Predictor
from testnuc._dispatch.scheduler import Scheduler
from testnuc._engine.batch import FATAL_ERRORS, Snapshot, TextBatch
from testnuc._engine.examples import ExampleFinder, Sampler
from testnuc._engine.inputs import without_foreign_labels
from testnuc._engine.labelers import apply_learned, ask_unsure, asked_first, label_by_head
from testnuc._engine.retrieval import SEARCH, PoolPredictions, Retriever, in_thread_if_large
from testnuc._engine.run import Run
from testnuc._engine.shortlist import Shortlist
from testnuc.embedders.cache import EmbeddingCache
from testnuc.errors import EmbeddingError, ProviderError, StoreError, with_count, with_note
from testnuc.head import Head
from testnuc.index.matching import empty_matches
from testnuc.protocols import Index, Method, PoolText, Store
from testnuc.transport.calls import PATIENCE
from testnuc.trust.auto_policy import MIN_PREDICTIONS, VoteSettings
from testnuc.trust.diagnosis import Decision
from testnuc.trust.uncertainty import UncertaintySampling

#: From this many predictions on, the auto policy diagnoses the batch; below, the pool.
_BATCH_DECIDES = 2_000
#: Calls of a client that are made before anything is embedded.
_FIRST_CALLS = 4
#: Texts among which these are chosen: those before are stored.
_FIRST_OF = 4_096
#: Texts looked up in the store at a time.
_LOOK_UP = 256
#: Seconds that embedding waits for them.
_PATIENCE = 5.0


@dataclass(eq=False)
class Pipeline:
    """Embeds, retrieves and predicts for one client."""

    #: Replaced as a whole; each run reads it once. ``settings.retrieved`` neighbors are retrieved,
    #: of which ``settings.k`` vote.
    settings: VoteSettings
    method: Method
    #: Whether neighbors without a prediction are predicted, or skipped.
    neighbors: Literal["predict", "stored"]
    _: KW_ONLY
    predictor: Predictor
    scheduler: InitVar[Scheduler]
    embedding: EmbeddingCache
    pool: Index
    store: InitVar[Store]
    #: Whether classified texts become neighbors of later ones.
    join_pool: bool
    per_call: int = 1
    #: Ask only where a model of the answers is unsure.
    ask: UncertaintySampling | None = None
    #: Ask only where a distilled head is unsure.
    head: Head | None = None
    #: Chooses the labels that each prompt shows.
    shortlist: Shortlist | None = None
    #: Added to the notes of each run.
    note: str = ""

    def __post_init__(self, scheduler: Scheduler, store: Store) -> None:
        method, predictor, pool = self.method, self.predictor, self.pool
        #: Lane -> scheduler; `Components` adds the batch lane when it is needed.
        self.lanes = {"live": scheduler}
        self.examples: ExampleFinder | None = None
        if method.context:
            self.examples = ExampleFinder(method, predictor, self.embedding, pool, store)
        self.retriever = Retriever(method, self.neighbors, predictor, pool, store, self.examples)
        self.pool_predictions = PoolPredictions(
            self.retriever, self.embedding, closed=lambda: scheduler.closed
        )

    async def prepare(
        self,
        texts: Sequence[PoolText],
        *,
        together: bool,
        ask_first: bool = True,
        partial: bool = False,
        on_embedded: Callable[[int], object] = int,
        on_answered: Callable[[], object] | None = None,
    ) -> Run:
        """Embed distinct texts, retrieve their neighbors, and start a run.

        While the provider has not answered any call of this client, a few of the calls that are
        needed anyway are made before anything is embedded, so that a wrong address, key or model
        raises at once. Few-shot prompts and shortlists need embeddings, so with them nothing is
        asked here; nor without `ask_first`, nor in a service, where neighbors may answer.

        If `together`, the texts join the pool first, so they can be each other's neighbors; else
        after the search. If `partial`, an error gives a run without neighbors, with the error as
        its `failure`, so that answers can be handed over; `complete` then does so. `on_embedded` is
        called with the number of texts after each batch of the embedder. With `on_answered`, the
        calls for own labels, which need no embeddings, are made while texts are embedded, and it is
        called once for each text; with `ask`, these are the calls for the random part.
        """
        # a head may label all texts
        ask_first = ask_first and self.head is None and self.examples is None
        ask_first = ask_first and self.shortlist is None and self.predictor.wire is not None
        settings, first, failure = self.settings, None, None
        asking: asyncio.Task[Exception | None] | None = None
        known = await self.pool.labels([entry.hash for entry in texts])
        texts = [
            entry if label is None else replace(entry, label=label)
            for entry, label in zip(texts, known, strict=True)
        ]
        texts = without_foreign_labels(texts, self.predictor.labels)
        if ask_first and (on_answered is not None or not self.lanes["live"].answered):
            first = self.retriever.alone(texts, settings)
            places: Sequence[int] = range(len(texts))
            if self.ask is not None:
                places = asked_first(texts, len(self.predictor.labels.names), self.ask, settings)
            if not self._serves:
                await self._ask_first(first, places)
            if on_answered is not None:
                asking = asyncio.create_task(
                    self._ask_ahead(first, places, on_answered), name="testnuc-first-calls"
                )
        retrieving = asyncio.create_task(
            self._retrieved(texts, settings, on_embedded, together=together)
        )
        tasks = [retrieving] if asking is None else [retrieving, asking]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            failure = asking.result() if asking is not None and asking.done() else None
            if failure is not None and first is not None and self._decides_nothing(first):
                # embedding the others takes minutes, and changes no label
                raise failure
            batch, advice = await retrieving
            failure = None if asking is None else await asking
            run = await self.retriever.start(batch, settings, first)
            run.notes.append(advice)
        except FATAL_ERRORS as error:
            if not partial:
                raise
            if asking is not None and isinstance(error, StoreError):
                # its calls are billed, and what they answer may not be stored
                await asking
            # the pool may be what failed
            run, failure = first or self.retriever.alone(texts, settings), error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        run.failure = failure
        run.notes.append(self.note)
        return run

    def _decides_nothing(self, run: Run) -> bool:
        """Whether there are too few answers for neighbors to vote, and nothing is learned."""
        settings = self.settings
        answered = sum(prediction is not None for prediction in run.answers.predictions)
        decides = settings.policy or settings.decision or settings.learned
        return not decides and len(self.pool) + answered < MIN_PREDICTIONS

    @property
    def _serves(self) -> bool:
        """Whether this is for a request of a service, which neighbors answer if no call can."""
        return PATIENCE.get().seconds is not None and not self.lanes["live"].closed

    async def _ask_first(self, run: Run, places: Sequence[int]) -> None:
        """Make the first calls of a client, for own texts at some places that are not stored.

        There are several, as one that is rejected may be due to its text alone.
        """
        live, first, most = self.lanes["live"], list[int](), self.per_call * _FIRST_CALLS
        if live.answered:
            return
        for start in range(0, min(len(places), _FIRST_OF), _LOOK_UP):
            part = [p for p in places[start : start + _LOOK_UP] if not run.answers.has_outcome(p)]
            stored = await self.retriever.stored([run.batch.entries[place] for place in part])
            first += [place for place, hit in zip(part, stored, strict=True) if hit is None]
            if len(first) >= most:
                break
        try:
            # a slow call continues, and the run joins it
            async with asyncio.timeout(_PATIENCE):
                await self._predict(run, first[:most])
        except TimeoutError:
            if live.closed:
                # pool and embedder are closed as well
                raise ProviderError("the client was closed") from None
        except FATAL_ERRORS:
            # else the run hands over what is answered or stored
            if not run.answers.any_own:
                entries = [run.batch.entries[place] for place in places]
                if live.closed or not any(await self.retriever.stored(entries)):
                    raise
            # they are asked again, which shows whether every text fails; a reply is paid for
            errors = run.answers.errors
            for place in [p for p in first if not getattr(errors.get(p), "answered", False)]:
                errors.pop(place, None)

    async def _ask_ahead(
        self, run: Run, places: Sequence[int], on_answered: Callable[[], object]
    ) -> Exception | None:
        """Make the calls for own texts at some places; returns the error that ended them."""
        for _ in filter(run.answers.has_outcome, places):
            on_answered()
        try:
            async with PATIENCE.get().in_time():
                await self._predict(run, places, on_place=lambda _: on_answered())
        except FATAL_ERRORS as error:
            return error
        return None

    async def _retrieved(
        self,
        texts: Sequence[PoolText],
        settings: VoteSettings,
        on_embedded: Callable[[int], object],
        *,
        together: bool,
    ) -> tuple[TextBatch, str]:
        """Return texts with their neighbors, and how to embed faster."""
        needs = settings.retrieved or self.join_pool or self.examples or self.shortlist
        if not needs or self.lanes["live"].closed:
            # no vote, now or later; what continues after `aclose` reads nothing more
            on_embedded(len(texts))
            return self.retriever.alone(texts, settings).batch, ""
        hashes, started = [entry.hash for entry in texts], time.perf_counter()
        vectors, rejected = await self.embedding.each(texts, on_embedded)
        advice = self.embedding.advice(time.perf_counter() - started)
        broken = [error for error in rejected.values() if isinstance(error, EmbeddingError)]
        if broken and len(broken) == len(texts):
            # every text failed, so the embedder is at fault
            raise broken[0]
        await asyncio.sleep(0)
        # a text without a vector neither joins the pool nor has neighbors
        rows = [at for at in range(len(texts)) if at not in rejected]
        embedded = vectors[rows] if rejected else vectors
        searched = [texts[row] for row in rows]
        together = together and self.join_pool
        upto = await self.pool.add(searched, embedded) if together and rows else None
        snapshot = None
        if self.examples is not None:
            upto = await self.examples.snapshot() if upto is None else upto
            askable = None
            if self.neighbors == "stored":
                askable = frozenset(hashes) if together else frozenset[bytes]()
            # the pool has no vectors of texts that do not join it
            own = {} if self.join_pool else dict(zip(hashes, vectors, strict=True))
            snapshot = Snapshot(upto, own, askable)
        matches = await self.retriever.search(
            searched, embedded, settings.retrieved, upto=upto, together=together
        )
        if self.join_pool and rows and not together:
            await self.pool.add(searched, embedded)
        if rejected:
            every = empty_matches(len(texts), matches.ids.shape[1])
            every.ids[rows], every.similarities[rows] = matches.ids, matches.similarities
            matches = every
        batch, lists = await self.retriever.build(texts, matches), None
        if self.shortlist is not None:
            lists = await self.shortlist.of_batch(
                batch, vectors, settings.argmax, self.retriever.stored
            )
        return replace(batch, snapshot=snapshot, rejected=rejected, shortlists=lists), advice

    async def _salvage(self, run: Run, error: Exception) -> bool:
        """Complete a run that an error has ended, with what is answered.

        Own texts without an outcome get the error, and are voted on like any text whose own call
        failed. Returns whether any own text was answered, now or by a stored prediction, or what
        was learned can label without the provider, unless that rejects the first calls of a client.
        Of a request of a service, each text may be labeled by its neighbors, too.
        """
        n_own, live = run.batch.n_own, self.lanes["live"]
        # samples of the first calls
        Sampler(self.method, self.predictor, run).give_up()
        if not live.closed:
            # the store may be what failed
            with suppress(Exception):
                await self.retriever.fill(run, range(len(run.batch.entries)))
        answered = run.answers.any_own
        if isinstance(error, ProviderError) and not answered:
            learned = run.votes.settings.learned is not None and not live.closed
            answered = self._serves or (learned and (live.answered or not error.fatal))
        for place in range(n_own):
            if not run.answers.has_outcome(place) and not run.is_skipped(place):
                run.answers.put(place, error)
        if self._serves and isinstance(error, ProviderError) and run.votes.settings.policy is None:
            await self._decide(run)
        if answered:
            await asyncio.to_thread(run.votes.decide_by_settings)
        return answered

    async def complete(
        self,
        run: Run,
        *,
        waves: bool = False,
        lane: str = "live",
        on_place: Callable[[int], object] = int,
    ) -> None:
        """Obtain the predictions that the votes need.

        If an error, or the end of `PATIENCE`, ends the run after one of its texts was answered, now
        or before, the run is completed with what is answered, and the error is its `failure`; else
        it is raised.

        `on_place` is called with each place that gets a prediction or an error, not with those that
        already had one. `waves`: predict neighbors in waves, with early exit once the winner is
        certain.
        """
        try:
            if run.failure is not None:
                raise run.failure
            every = self._skipping_rounds(run) if self.skips else self._rounds(run, waves=waves)
            async with PATIENCE.get().in_time(), aclosing(every) as rounds:
                async for places in rounds:
                    await self._predict(run, places, lane, on_place)
            if run.votes.settings.learned is not None:
                # it counts more neighbors than vote
                await self.retriever.fill(run, range(run.batch.n_own, len(run.batch.entries)))
        except FATAL_ERRORS as error:
            first = next(iter(run.answers.errors.values()), error)
            if not await self._salvage(run, error):
                if first is error:
                    raise error from error.__cause__
                raise with_note(error, f"and no call was answered: {first}") from first
            run.failure = error

    async def _rounds(self, run: Run, *, waves: bool) -> AsyncGenerator[Iterable[int], None]:
        """Yield the places to predict; each round depends on the outcomes of the one before."""
        settings = run.votes.settings
        own, rows = range(run.batch.n_own), np.arange(run.batch.n_own)
        if settings.needs_no_neighbors:
            yield own
            await self.retriever.fill(run, range(len(own), len(run.batch.entries)))
        elif settings.policy is None:
            yield own
            decision = await self._decide(run)
            if decision.policy is not None and self.neighbors == "predict":
                yield _in_order(run, rows[run.votes.reached(rows)], decision.k)
        elif self.neighbors == "stored":
            # neighbors have their predictions already
            yield own
        elif (
            not waves
            or settings.prior is not None
            # every voter counts in the share of every label
            or settings.threshold is not None
        ):
            yield _in_order(run, rows, settings.voters)
        else:
            *early, last = run.votes.waves()
            for known in early:
                yield _in_order(run, rows, known)
                rows = rows[~await in_thread_if_large(len(rows), run.votes.exit_early, rows, known)]
                if not len(rows):
                    return
            yield _in_order(run, rows, last)

    @property
    def skips(self) -> bool:
        """Whether a head labels texts instead of the LLM."""
        return self.ask is not None or self.head is not None

    async def _skipping_rounds(self, run: Run) -> AsyncGenerator[Iterable[int], None]:
        """Yield the own texts to ask about; neighbors get their stored predictions only."""
        entries = run.batch.own
        vectors, rejected = await self.embedding.each(entries)
        asked = [i for i, e in enumerate(entries) if e.label is None and i not in rejected]
        rows = np.array(asked, dtype=np.int64)
        if self.head is not None:
            rows = await asyncio.to_thread(label_by_head, self.head, run, vectors, rows)
        if self.ask is None:
            yield rows.tolist()
        else:
            async with aclosing(ask_unsure(run, vectors, rows, self.ask)) as rounds:
                async for places in rounds:
                    yield places
        yield rejected
        await self.retriever.fill(run, range(len(run.batch.entries)))
        settings = run.votes.settings
        if settings.policy is None and not settings.head_decides:
            await self._decide(run)

    async def _predict(
        self,
        run: Run,
        places: Iterable[int],
        lane: str = "live",
        on_place: Callable[[int], object] = int,
    ) -> None:
        """Predict the texts at distinct places that have no outcome yet."""
        scheduler = self.lanes[lane]
        sampler = Sampler(self.method, self.predictor, run, self._open(run, places))
        asks: Iterator[Ask] | AsyncGenerator[list[Ask], None] = sampler.asks()
        if self.examples is not None:
            # a stage of the batch lane takes hours: the examples of all texts are one stage
            asks = sampler.asks_with_examples(self.examples, scheduler, whole=lane != "live")
        elif self.shortlist is not None:
            asks = await sampler.asks_with_shortlists(self.shortlist, packed=self.per_call > 1)
        try:
            async with aclosing(scheduler.run(asks)) as outcomes:
                async for ask, outcome in outcomes:
                    if sampler.settle(ask, outcome):
                        self.pool_predictions.outcomes += 1
                        on_place(ask.place)
        except FATAL_ERRORS:
            sampler.give_up()
            raise
        finally:
            # even after a failure or cancellation: these calls were billed; the answers themselves
            # are stored already, so that a client that is closed stores nothing more
            if self.examples is not None and not scheduler.closed:
                await sampler.remember(self.examples)

    def _open(self, run: Run, places: Iterable[int]) -> Iterator[int]:
        for place in places:
            if run.answers.has_outcome(place):
                continue
            error = self.predictor.unreadable.get(run.batch.entries[place].hash)
            if error is not None and place >= run.batch.n_own:
                # paid for three times already, and only a neighbor
                run.answers.put(place, error)
            else:
                yield place

    async def settle(self, run: Run, *, together: bool = True) -> None:
        """Complete a run: correct by the prior, and apply what was learned.

        `together`: whether the texts are a batch; the prior says nothing about a single text.
        """
        if together:
            await asyncio.to_thread(run.votes.fit_prior)
        await apply_learned(run, self.embedding)

    async def predict_own(self, run: Run) -> None:
        """Predict the own texts; neighbors get their stored predictions only."""
        n_own = run.batch.n_own
        await self._predict(run, range(n_own))
        await self.retriever.fill(run, range(n_own, len(run.batch.entries)))

    async def predict_pool(self, lane: str, on_texts: Callable[[int], object]) -> None:
        """Predict every text of the pool that has no prediction.

        `on_texts` is called with the number of texts completed since the last time.
        """
        start: int | None = 0
        answered = 0
        snapshot = None
        if self.examples is not None:
            snapshot = Snapshot(await self.examples.snapshot())
        while start is not None:
            texts, start = await self.pool.scan(start, SEARCH)
            while lane != "live" and start is not None:
                # one stage for all texts: a batch can take a day
                more, start = await self.pool.scan(start, SEARCH)
                texts += more
            batch = await self.retriever.build(texts, empty_matches(len(texts), 0))
            run = await self.retriever.start(replace(batch, snapshot=snapshot), self.settings)
            places = range(len(texts))
            if snapshot is not None and self.neighbors == "stored":
                await self.retriever.fill(run, places)
            stored = sum(map(run.answers.has_outcome, places))
            on_texts(stored)
            try:
                await self._predict(run, places, lane, lambda _: on_texts(1))
            except FATAL_ERRORS as error:
                predicted = sum(prediction is not None for prediction in run.answers.predictions)
                raise with_count(error, answered + predicted - stored) from error
            answered += len(texts) - stored - len(run.answers.errors)

    async def _decide(self, run: Run) -> Decision:
        """Make the decision of the auto policy, from the predictions of the batch or the pool."""
        decision, diagnosis = run.votes.settings.decision, None
        if decision is None:
            n_own = run.batch.n_own
            if self.neighbors == "predict":
                await self.retriever.fill(run, range(n_own, len(run.batch.entries)))
            predicted = sum(p is not None for p in run.answers.predictions[:n_own])
            if predicted >= min(_BATCH_DECIDES, max(len(self.pool) // 2, MIN_PREDICTIONS)):
                diagnosis = await asyncio.to_thread(run.votes.diagnose)
            else:
                diagnosis = await self.pool_predictions.recent_diagnosis(self.settings)
            decision = diagnosis.decision
        run.votes.decide(decision, diagnosis)
        return decision


def _in_order(run: Run, rows: Int64s, known: int) -> Iterator[int]:
    """Yield each place once: every own text, followed by its first `known` neighbors."""
    seen = bytearray(len(run.batch.entries))
    for row in rows.tolist():
        for place in (row, *run.batch.neighbors[row, :known].tolist()):
            if place >= 0 and not seen[place]:
                seen[place] = 1
                yield place
