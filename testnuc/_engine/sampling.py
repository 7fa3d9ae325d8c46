"""The samples that a method asks for, and their reduction to one prediction per text."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from testnuc._dispatch.inflight import Ask
from testnuc._dispatch.predictor import Predictor
from testnuc._dispatch.scheduler import Scheduler
from testnuc._engine.examples import ExampleFinder
from testnuc._engine.run import Run
from testnuc._engine.shortlist import Shortlist, similar_together
from testnuc.prompts.writing import Demonstration
from testnuc.protocols import Method, PoolText
from testnuc.types import Prediction

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
        missing = [sample for sample in range(self.method.samples) if sample not in got]
        for sample in missing:
            yield self.predictor.ask(entry.text, entry.hash, place, sample, shown, labels)

    def _reduced(self, outcomes: Sequence[Prediction | Exception]) -> Prediction | Exception:
        answered = [o for o in outcomes if not isinstance(o, Exception)]
        if answered:
            return self.method.reduce(answered)
        return next(o for o in outcomes if isinstance(o, Exception))
