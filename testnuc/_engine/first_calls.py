"""The first calls of a run, for own labels: before and while texts are embedded."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testnuc.errors import (
    AuthenticationError,
    BadRequestError,
    ConfigurationError,
    EmbeddingError,
    ProviderError,
    StoreError,
    UnknownModelError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

    from testnuc._dispatch.inflight import Ask
    from testnuc._dispatch.predictor import Predictor
    from testnuc._dispatch.scheduler import Scheduler
    from testnuc.protocols import Index, PoolText, Store
    from testnuc.types import Prediction

#: Errors that end a run; what was answered before is handed over.
FATAL_ERRORS = (ProviderError, StoreError, EmbeddingError, ConfigurationError)
#: Errors that may concern the first text alone: others are tried before the run ends.
_OF_A_TEXT = (AuthenticationError, UnknownModelError, BadRequestError)
#: Calls that are made for other texts then.
_OTHERS = 3

#: Texts among which the first call is chosen: those before are stored.
_FIRST_OF = 4_096
#: Texts looked up in the store at a time.
_LOOK_UP = 256
#: Seconds that embedding waits for the first call.
_PATIENCE = 5.0


@dataclass
class FirstCalls:
    """Makes calls for own labels, which need no embeddings; `samples` of each text."""

    predictor: Predictor
    scheduler: Scheduler
    pool: Index
    store: Store
    samples: int
    per_call: int

    async def ask(
        self, texts: Sequence[PoolText], places: Sequence[int]
    ) -> list[tuple[Ask, Prediction | Exception]]:
        """Make the first call of a client, for texts at some places; returns its outcomes."""
        if self.scheduler.answered:
            return []
        asks: list[Ask] = []
        most = self.per_call * (1 + _OTHERS)
        for part in _parts(places[:_FIRST_OF]):
            asks += [ask for ask, stored in await self._looked_up(texts, part) if not stored]
            if len(asks) >= most:
                break
        outcomes: list[tuple[Ask, Prediction | Exception]] = []
        try:
            # a slow call continues, and the run joins it
            async with asyncio.timeout(_PATIENCE):
                await self._try(asks[: self.per_call], asks[self.per_call : most], outcomes)
        except TimeoutError:
            if self.scheduler.closed:
                # pool and embedder are closed as well
                raise ProviderError("the client was closed") from None
        except FATAL_ERRORS:
            # else the run hands over what is answered or stored
            if all(isinstance(outcome, Exception) for _, outcome in outcomes):
                if self.scheduler.closed or not await self._any_stored(texts, places):
                    raise
                return []
        return outcomes

    async def _try(
        self,
        asks: Sequence[Ask],
        others: Sequence[Ask],
        outcomes: list[tuple[Ask, Prediction | Exception]],
    ) -> None:
        """Append the outcomes of some asks; if they are rejected, those of others."""
        try:
            await self._run(asks, outcomes)
        except _OF_A_TEXT:
            if not others or self.scheduler.closed:
                raise
            # the run asks again about those that were rejected
            outcomes.clear()
            await self._run(others, outcomes)

    async def _run(
        self, asks: Sequence[Ask], outcomes: list[tuple[Ask, Prediction | Exception]]
    ) -> None:
        """Append the outcomes of some asks."""
        async with aclosing(self.scheduler.run(asks)) as found:
            async for answer in found:
                # not a comprehension: it would lose them when the time is over
                outcomes.append(answer)  # noqa: PERF401

    async def ask_meanwhile(
        self,
        texts: Sequence[PoolText],
        places: Sequence[int],
        outcomes: list[tuple[Ask, Prediction | Exception]],
        on_answered: Callable[[], object],
    ) -> Exception | None:
        """Append the outcomes of the calls for texts at some places.

        Returns the error that ended them.
        """
        known = {(ask.place, ask.sample) for ask, _ in outcomes}

        async def asks() -> AsyncGenerator[list[Ask], None]:
            for part in _parts(places):
                yield [
                    ask
                    for ask in await self._unlabeled(texts, part, self.samples)
                    if (ask.place, ask.sample) not in known
                ]

        try:
            async with aclosing(self.scheduler.run(asks())) as found:
                async for ask, outcome in found:
                    outcomes.append((ask, outcome))
                    if ask.sample == 0:
                        on_answered()
        except FATAL_ERRORS as error:
            return error
        return None

    async def _any_stored(self, texts: Sequence[PoolText], places: Sequence[int]) -> bool:
        for part in _parts(places):
            if any(stored for _, stored in await self._looked_up(texts, part)):
                return True
        return False

    async def _looked_up(
        self, texts: Sequence[PoolText], places: Sequence[int]
    ) -> list[tuple[Ask, bool]]:
        """Return the asks of some texts without a known label, and whether each is stored."""
        asks = await self._unlabeled(texts, places, 1)
        stored = await self.store.get_predictions([ask.key for ask in asks])
        return [(ask, hit is not None) for ask, hit in zip(asks, stored, strict=True)]

    async def _unlabeled(
        self, texts: Sequence[PoolText], places: Sequence[int], samples: int
    ) -> list[Ask]:
        """Return the asks of some texts without a known label."""
        part = [texts[place] for place in places]
        known = await self.pool.labels([entry.hash for entry in part])
        return [
            self.predictor.ask(entry.text, entry.hash, place, sample)
            for place, entry, label in zip(places, part, known, strict=True)
            if not any(map(self._is_known, (label, entry.label)))
            for sample in range(samples)
        ]

    def _is_known(self, label: str | None) -> bool:
        """Whether a known label is one of this client's; pools can be shared."""
        return label is not None and self.predictor.labels.knows(label)


def _parts(places: Sequence[int]) -> Iterator[Sequence[int]]:
    return (places[start : start + _LOOK_UP] for start in range(0, len(places), _LOOK_UP))
