"""The samples that a method asks for, and their reduction to one prediction per text."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from testnuc._engine.shortlist import similar_together

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence

    from testnuc._dispatch.predictor import Predictor
    from testnuc._dispatch.scheduler import Ask, Scheduler
    from testnuc._engine.examples import ExampleFinder
    from testnuc._engine.neighborhoods import Neighborhoods
    from testnuc._engine.shortlist import Shortlist
    from testnuc.prompts import Demonstration
    from testnuc.protocols import Method, PoolText
    from testnuc.types import Prediction

__all__ = ["Sampler"]

#: Texts whose examples are retrieved at a time, while earlier texts are in flight.
_BLOCK = 256


class Sampler:
    """Creates the asks for the texts at some places, and reduces their outcomes to predictions.

    Parameters
    ----------
    method : Method
    predictor : Predictor
    neighborhoods : Neighborhoods
        Receives the predictions.
    places : iterable of int
        Distinct.
    """

    def __init__(
        self,
        method: Method,
        predictor: Predictor,
        neighborhoods: Neighborhoods,
        places: Iterable[int],
    ) -> None:
        self._method = method
        self._predictor = predictor
        self._neighborhoods = neighborhoods
        self._places = iter(places)
        self._partial = neighborhoods.partial
        #: Predictions made with examples, for `ExampleFinder.remember`.
        self._seen: list[tuple[PoolText, Prediction]] = []

    def settle(self, ask: Ask, outcome: Prediction | Exception) -> bool:
        """Record the outcome of one ask; returns True if it was the last one of its text."""
        samples = self._method.samples
        if samples > 1:
            got = self._partial.setdefault(ask.place, {})
            got[ask.sample] = outcome
            if len(got) < samples:
                return False
            del self._partial[ask.place]
            outcome = self._reduced([got[i] for i in range(samples)])
        self._neighborhoods.put(ask.place, outcome)
        if self._neighborhoods.snapshot is not None and not isinstance(outcome, Exception):
            self._seen.append((self._neighborhoods.entries[ask.place], outcome))
        return True

    def give_up(self) -> None:
        """Reduce the texts that have only some of their samples: no other will follow."""
        for place, got in list(self._partial.items()):
            if any(not isinstance(outcome, Exception) for outcome in got.values()):
                del self._partial[place]
                self._neighborhoods.put(place, self._reduced([got[i] for i in sorted(got)]))

    def asks(self) -> Iterator[Ask]:
        """Yield the asks of all texts."""
        for place in self._places:
            yield from self._asks(place, ())

    async def asks_with_examples(
        self, examples: ExampleFinder, scheduler: Scheduler, *, whole: bool
    ) -> AsyncGenerator[list[Ask], None]:
        """Yield the asks of all texts with few-shot examples, in lists.

        Examples that are shown with a label are predicted first, by `scheduler`. `whole`: do so for
        all texts together, because a stage of the batch lane takes hours.
        """
        snapshot = self._neighborhoods.snapshot
        assert snapshot is not None
        while block := list(islice(self._places, None if whole else _BLOCK)):
            entries = [self._neighborhoods.entries[place] for place in block]
            shown = await examples.examples(entries, snapshot, scheduler)
            await self.remember(examples)
            yield [
                ask
                for place, demonstrations in zip(block, shown, strict=True)
                for ask in self._asks(place, demonstrations)
            ]

    async def asks_with_shortlists(self, shortlist: Shortlist, *, packed: bool) -> Iterator[Ask]:
        """Return the asks of all texts, each with the labels to show.

        Parameters
        ----------
        shortlist : Shortlist
        packed : bool
            Whether calls have several texts, so that texts with similar lists follow each other.
        """
        places = list(self._places)
        lists = await shortlist.lists(self._neighborhoods, places)
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
        entry = self._neighborhoods.entries[place]
        got = self._partial.get(place, ())
        missing = [sample for sample in range(self._method.samples) if sample not in got]
        for sample in missing:
            yield self._predictor.ask(entry.text, entry.hash, place, sample, shown, labels)

    def _reduced(self, outcomes: Sequence[Prediction | Exception]) -> Prediction | Exception:
        answered = [o for o in outcomes if not isinstance(o, Exception)]
        if answered:
            return self._method.reduce(answered)
        return next(o for o in outcomes if isinstance(o, Exception))
