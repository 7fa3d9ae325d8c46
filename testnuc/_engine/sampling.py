"""What is asked about the texts of a window, and what is made of the answers."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence

    from testnuc._dispatch.predictor import Predictor
    from testnuc._dispatch.scheduler import Ask, Scheduler
    from testnuc._engine.examples import ExampleFinder
    from testnuc._engine.neighborhoods import Neighborhoods, Snapshot
    from testnuc.prompts import Demonstration
    from testnuc.protocols import Method, PoolText
    from testnuc.types import Prediction

__all__ = ["Sampler"]

#: Texts whose examples are looked up at a time, while earlier ones are being asked about.
_BLOCK = 256


class Sampler:
    """The asks of a method about the texts at some places, and their outcomes.

    Parameters
    ----------
    method : Method
    asker : Predictor
    window : Neighborhoods
        Takes the predictions.
    places : iterable of int
        Distinct; what has an outcome already is not asked.
    done : callable, optional
        Told each place that has an outcome.
    """

    def __init__(
        self,
        method: Method,
        asker: Predictor,
        window: Neighborhoods,
        places: Iterable[int],
        done: Callable[[int], None] | None,
    ) -> None:
        self._method = method
        self._asker = asker
        self._window = window
        self._places = places
        self._done = done
        #: Place -> sample -> outcome, of texts that have some of their samples.
        self._partial: dict[int, dict[int, Prediction | Exception]] = {}
        #: Predictions made with examples, to be noted for `ExampleFinder.stored`.
        self._seen: list[tuple[PoolText, Prediction]] = []

    def settle(self, ask: Ask, outcome: Prediction | Exception) -> None:
        """Take the outcome of one ask; with a text's last one it has its prediction."""
        samples = self._method.samples
        if samples > 1:
            got = self._partial.setdefault(ask.place, {})
            got[ask.sample] = outcome
            if len(got) < samples:
                return
            del self._partial[ask.place]
            outcome = self._reduced([got[i] for i in range(samples)])
        self._window.put(ask.place, outcome)
        if self._window.snapshot is not None and not isinstance(outcome, Exception):
            self._seen.append((self._window.entries[ask.place], outcome))
        if self._done is not None:
            self._done(ask.place)

    def asks(self) -> Iterator[Ask]:
        """Yield the asks of all texts that have no outcome yet."""
        for place in self._unasked():
            yield from self._asks(place, ())

    async def asks_with_examples(
        self, contexts: ExampleFinder, snapshot: Snapshot, fanout: Scheduler, *, whole: bool
    ) -> AsyncGenerator[list[Ask], None]:
        """Yield the same, with the examples of each text in the prompt.

        `fanout` asks about examples first, where they are shown with labels; `whole`: about those
        of all texts together, where each such stage takes hours.
        """
        pending = self._unasked()
        while block := list(islice(pending, None if whole else _BLOCK)):
            entries = [self._window.entries[place] for place in block]
            examples = await contexts.examples(entries, snapshot, fanout)
            await self.keep(contexts)
            yield [
                ask
                for place, shown in zip(block, examples, strict=True)
                for ask in self._asks(place, shown)
            ]

    async def keep(self, contexts: ExampleFinder) -> None:
        """Note what was predicted since the last time."""
        seen, self._seen = self._seen, []
        await contexts.keep(seen)

    def _unasked(self) -> Iterator[int]:
        for place in self._places:
            if not self._window.asked(place):
                yield place
            elif self._done is not None:
                self._done(place)

    def _asks(self, place: int, shown: tuple[Demonstration, ...]) -> Iterator[Ask]:
        entry = self._window.entries[place]
        for sample in range(self._method.samples):
            yield self._asker.ask(entry.text, entry.hash, place, sample, shown)

    def _reduced(self, outcomes: Sequence[Prediction | Exception]) -> Prediction | Exception:
        answered = [o for o in outcomes if not isinstance(o, Exception)]
        if answered:
            return self._method.reduce(answered)
        return next(o for o in outcomes if isinstance(o, Exception))
