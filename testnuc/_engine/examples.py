"""What a method asks for: samples, and few-shot examples, the nearest texts of the pool."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import numpy as np

from testnuc._base.arrays import Float16s
from testnuc._dispatch.inflight import Ask
from testnuc._dispatch.predictor import Predictor
from testnuc._dispatch.scheduler import Scheduler
from testnuc._engine.batch import Snapshot
from testnuc._engine.inputs import without_foreign_labels
from testnuc._engine.run import Run
from testnuc._engine.shortlist import Shortlist, similar_together
from testnuc.embedders.cache import EmbeddingCache
from testnuc.methods import TopKICL, TopKICLP
from testnuc.prompts.writing import Demonstration
from testnuc.protocols import Index, Method, PoolText, Store, StoredPrediction
from testnuc.types import Prediction

#: Part of stored keys: where version 0.1.0 defined these methods.
_STORED_MODULE = "testnuc.methods.topk_icl"


@dataclass
class ExampleFinder:
    """Finds few-shot examples, and caches predictions made with few-shot examples.

    The key of such a prediction includes the examples in its prompt. As the pool grows, the same
    text gets other examples, and thus another key. With ``neighbors="stored"`` (TestNUC-S) a
    neighbor votes with the prediction from when it was classified, so the first prediction is also
    stored under a key without examples.
    """

    method: Method
    predictor: Predictor
    embedding: EmbeddingCache
    pool: Index
    store: Store

    @cached_property
    def _kind(self) -> str:
        method, kind = self.method, type(self.method)
        # not repr(method): the repr of a custom method may contain an address
        module = _STORED_MODULE if kind in {TopKICL, TopKICLP} else kind.__module__
        return f"{module}.{kind.__qualname__}/{method.context}/{method.labeled}/{method.samples}"

    async def snapshot(self) -> int:
        """Return the current snapshot of the pool."""
        return await self.pool.add([], np.empty((0, 0), dtype=np.float16))

    async def examples(
        self, entries: Sequence[PoolText], snapshot: Snapshot, scheduler: Scheduler
    ) -> list[tuple[Demonstration, ...]]:
        """Return the examples for each text, most similar first, never the text itself.

        If the method shows labels, examples without a prediction by standard prompting are
        predicted first, by `scheduler`.
        """
        hashes = [entry.hash for entry in entries]
        vectors = await self._vectors(entries, snapshot)
        matches = await self.pool.search(
            vectors, self.method.context, exclude=hashes, upto=snapshot.upto
        )
        ids = np.unique(matches.ids)
        ids = ids[ids >= 0]
        found = without_foreign_labels(await self.pool.fetch(ids), self.predictor.labels)
        shown = dict(zip(ids.tolist(), found, strict=True))
        labels: dict[bytes, str | None] = {}
        if self.method.labeled:
            await self._label(list(shown.values()), snapshot, scheduler)
            labels = snapshot.labels
        return [
            tuple(
                Demonstration(shown[i].text, labels.get(shown[i].hash))
                for i in row
                # a persistent pool may have given the text a new id since the search
                if i >= 0 and shown[i].hash != own
            )
            for row, own in zip(matches.ids.tolist(), hashes, strict=True)
        ]

    async def _vectors(self, entries: Sequence[PoolText], snapshot: Snapshot) -> Float16s:
        kept = snapshot.vectors
        rest = iter(await self.embedding.vectors([e for e in entries if e.hash not in kept]))
        return np.stack([kept[e.hash] if e.hash in kept else next(rest) for e in entries])

    async def _label(
        self, entries: Sequence[PoolText], snapshot: Snapshot, scheduler: Scheduler
    ) -> None:
        """Label examples by standard prompting, in `snapshot.labels` (stage 1 of KNN-ICL-P)."""
        labels, allowed = snapshot.labels, snapshot.askable
        new = [entry for entry in entries if entry.hash not in labels]
        labels.update((entry.hash, entry.label) for entry in new if entry.label is not None)
        unknown = [entry for entry in new if entry.label is None]
        if allowed is not None:
            others = [entry for entry in unknown if entry.hash not in allowed]
            keys = [self.predictor.key(entry.text) for entry in others]
            plain, own = await self.store.get_predictions(keys), await self.stored(others)
            for entry, first, second in zip(others, plain, own, strict=True):
                known = first or second
                labels[entry.hash] = None if known is None else known.label
        asks = [
            self.predictor.ask(entry.text, entry.hash, place)
            for place, entry in enumerate(unknown)
            if allowed is None or entry.hash in allowed
        ]
        async with aclosing(scheduler.run(asks)) as outcomes:
            async for ask, outcome in outcomes:
                labels[ask.text_hash] = None if isinstance(outcome, Exception) else outcome.label

    def _key(self, entry: PoolText) -> bytes:
        return self.predictor.key_of(self._kind, entry.hash)

    async def stored(self, entries: Sequence[PoolText]) -> list[Prediction | None]:
        """Return the first prediction of each text, with whatever examples."""
        return await self.store.get_predictions([self._key(entry) for entry in entries])

    async def remember(self, seen: Sequence[tuple[PoolText, Prediction]]) -> None:
        """Store the prediction of each text for `stored`; existing ones are kept."""
        if seen:
            scope = self.predictor.scope
            rows = [StoredPrediction(self._key(one), scope, one.hash, 0, p) for one, p in seen]
            await self.store.put_predictions(rows)


#: Texts whose examples are retrieved at a time, while earlier texts are in flight.
_BLOCK = 256


@dataclass
class Sampler:
    """Creates the asks for the texts at some places, and reduces their outcomes to predictions."""

    method: Method
    predictor: Predictor
    #: Receives the predictions.
    run: Run
    #: Distinct.
    places: Iterator[int] = field(default_factory=lambda: iter(()))
    #: Predictions made with examples, for `ExampleFinder.remember`.
    _seen: list[tuple[PoolText, Prediction]] = field(default_factory=list)

    def settle(self, ask: Ask, outcome: Prediction | Exception) -> bool:
        """Record the outcome of one ask; returns True if it was the last one of its text."""
        samples = self.method.samples
        if samples > 1:
            got = self.run.answers.partial.setdefault(ask.place, {})
            got[ask.sample] = outcome
            if len(got) < samples:
                return False
            del self.run.answers.partial[ask.place]
            outcome = self._reduced([got[i] for i in range(samples)])
        self.run.answers.put(ask.place, outcome)
        if self.run.batch.snapshot is not None and not isinstance(outcome, Exception):
            self._seen.append((self.run.batch.entries[ask.place], outcome))
        return True

    def give_up(self) -> None:
        """Reduce the texts that have only some of their samples: no other will follow."""
        for place, got in list(self.run.answers.partial.items()):
            if any(not isinstance(outcome, Exception) for outcome in got.values()):
                del self.run.answers.partial[place]
                self.run.answers.put(place, self._reduced([got[i] for i in sorted(got)]))

    def asks(self) -> Iterator[Ask]:
        """Yield the asks of all texts."""
        for place in self.places:
            yield from self._asks(place, ())

    async def asks_with_examples(
        self, examples: ExampleFinder, scheduler: Scheduler, *, whole: bool
    ) -> AsyncGenerator[list[Ask], None]:
        """Yield the asks of all texts with few-shot examples, in lists.

        Examples that are shown with a label are predicted first, by `scheduler`. `whole`: do so for
        all texts together, because a stage of the batch lane takes hours.
        """
        snapshot = self.run.batch.snapshot
        assert snapshot is not None
        while block := list(islice(self.places, None if whole else _BLOCK)):
            entries = [self.run.batch.entries[place] for place in block]
            shown = await examples.examples(entries, snapshot, scheduler)
            await self.remember(examples)
            yield [
                ask
                for place, demonstrations in zip(block, shown, strict=True)
                for ask in self._asks(place, demonstrations)
            ]

    async def asks_with_shortlists(self, shortlist: Shortlist, *, packed: bool) -> Iterator[Ask]:
        """Return the asks of all texts, each with the labels to show.

        `packed`: calls have several texts, so that texts with similar lists follow each other.
        """
        places = list(self.places)
        lists = await shortlist.lists(self.run, places)
        order = similar_together(lists) if packed else range(len(places))
        return (
            ask for row in order for ask in self._asks(places[row], (), tuple(lists[row].tolist()))
        )

    async def remember(self, examples: ExampleFinder) -> None:
        """Store the predictions made since the last call, for stored neighbors."""
        seen, self._seen = self._seen, []
        await examples.remember(seen)

    def _asks(
        self, place: int, shown: tuple[Demonstration, ...], labels: tuple[int, ...] = ()
    ) -> Iterator[Ask]:
        entry = self.run.batch.entries[place]
        got = self.run.answers.partial.get(place, ())
        for sample in [one for one in range(self.method.samples) if one not in got]:
            yield self.predictor.ask(entry.text, entry.hash, place, sample, shown, labels)

    def _reduced(self, outcomes: Sequence[Prediction | Exception]) -> Prediction | Exception:
        answered = [o for o in outcomes if not isinstance(o, Exception)]
        if answered:
            return self.method.reduce(answered)
        return next(o for o in outcomes if isinstance(o, Exception))
