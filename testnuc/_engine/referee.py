"""A referee: a better model that judges some of the texts.

Its answers go through the client's store, under keys of their own, and its calls count against the
client's budget. Its rate limits and its usage are its own.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import numpy as np

from testnuc._dispatch.predictor import Predictor
from testnuc._dispatch.scheduler import Scheduler
from testnuc.labels import LabelSet
from testnuc.limits import Meter, Price, require_price
from testnuc.types import Prediction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testnuc._dispatch.scheduler import Ask
    from testnuc._engine.components import Components
    from testnuc.protocols import PoolText, Provider, WireProvider

__all__ = ["Referee"]


class Referee:
    """Labels texts by another model."""

    def __init__(self, parts: Components, model: str | Provider | WireProvider) -> None:
        self._parts = parts
        provider = parts.referee_provider(model)
        self.model = f"{provider.name}/{provider.model}"
        #: None: unknown.
        self.price = Price.of(
            provider.name,
            provider.model,
            getattr(provider, "url", None),
            cache_ttl=getattr(provider, "cache_ttl", None),
        )
        require_price(parts.budget, self.price, self.model)
        self.meter = Meter()
        self._provider = provider
        self._transport = parts.make_transport(
            max_concurrency=parts.max_concurrency,
            retry=parts.retry,
            price=self.price,
            trust_env=getattr(provider, "trust_env", False),
            meter=self.meter,
        )
        self._transport.share(self._transport.admission, parts.transport.account, by_tokens=False)
        #: Shows all labels.
        self.predictor = self._predictor(parts.labels)
        #: Of a request in progress, by key.
        self._predictors: dict[bytes, Predictor] = {}
        self._scheduler = Scheduler(
            self._answer,
            parts.store,
            self.predictor.scope,
            meter=self.meter,
            workers=parts.max_concurrency,
        )
        self._transport.on_wait = self._scheduler.lend
        self._described = False

    async def ask(
        self, texts: Sequence[PoolText], shown: Sequence[Sequence[str]] | None = None
    ) -> list[Prediction | Exception]:
        """Return the answer for each of some distinct texts, or its error.

        `shown`: the labels to choose from, of each text; fewer than two: all.
        """
        if not self._described:
            self._described = True
            facts = {"model": self.model, "labels": list(self._parts.labels.names)}
            await self._parts.store.describe(self.predictor.scope, facts)
        asks = []
        for place, entry in enumerate(texts):
            predictor = self.predictor
            if shown is not None and len(shown[place]) > 1:
                predictor = self._predictor(self._some(entry, shown[place]))
            ask = predictor.ask(entry.text, entry.hash, place)
            self._predictors[ask.key] = predictor
            asks.append(ask)
        found: list[Prediction | Exception] = [Prediction(None)] * len(texts)
        try:
            async with aclosing(self._scheduler.run(asks)) as outcomes:
                async for ask, outcome in outcomes:
                    found[ask.place] = outcome
        finally:
            for ask in asks:
                self._predictors.pop(ask.key, None)
        return found

    async def aclose(self) -> None:
        """Wait for calls in flight, and close the connections."""
        await self._scheduler.close()
        await self._transport.aclose()

    async def _answer(self, asks: tuple[Ask, ...]) -> list[Prediction | Exception]:
        return await self._predictors.get(asks[0].key, self.predictor).answer(asks)

    def _some(self, entry: PoolText, names: Sequence[str]) -> LabelSet:
        """Return some labels, in an order that depends on the text alone."""
        labels = self._parts.labels
        rng = np.random.default_rng(int.from_bytes(entry.hash[:8]))
        order = [sorted(names)[i] for i in rng.permutation(len(names)).tolist()]
        described = {name: labels.descriptions.get(name, "") for name in order}
        return LabelSet(
            described if labels.descriptions else order,
            none_label=labels.none_label,
            multilabel=labels.multilabel,
        )

    def _predictor(self, labels: LabelSet) -> Predictor:
        parts = self._parts
        return Predictor(
            self._provider,
            self._transport,
            labels,
            instructions=parts.instructions,
            temperature=parts.sampling.temperature,
            top_p=parts.sampling.top_p,
            confidence="verbalized",
            options={},
            texts_per_call=1,
            # few calls, which must be right: the provider's own
            reasoning_effort=None,
        )
