"""Few-shot examples of in-context methods: the nearest texts of the pool, perhaps with labels."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import numpy as np

from testnuc.methods import TopKICL, TopKICLP
from testnuc.prompts import Demonstration
from testnuc.protocols import StoredPrediction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from testnuc._dispatch.predictor import Predictor
    from testnuc._dispatch.scheduler import Scheduler
    from testnuc._engine.neighborhoods import Snapshot
    from testnuc.embedders.cache import EmbeddingCache
    from testnuc.protocols import Index, Method, PoolText, Store
    from testnuc.types import Prediction

__all__ = ["ExampleFinder"]

#: Part of stored keys: where version 0.1.0 defined these methods.
_STORED_MODULE = "testnuc.methods.topk_icl"


class ExampleFinder:
    """Finds the examples for prompts, and caches predictions made with few-shot examples.

    A prediction that was made with examples is stored under the prompt that held them; the pool
    grows, and the next prompt about the same text may hold others. Of *stored* neighbors
    (TestNUC-S) the prediction is needed that a text got when it was classified, so it is stored
    under a key without examples, too: the first one stays.

    Parameters
    ----------
    method : Method
        With ``context`` above 0.
    predictor, embedding, pool, store
        The steps of the pipeline.
    """

    def __init__(
        self,
        method: Method,
        *,
        predictor: Predictor,
        embedding: EmbeddingCache,
        pool: Index,
        store: Store,
    ) -> None:
        self._method = method
        self._predictor = predictor
        self._embedding = embedding
        self._pool = pool
        self._store = store
        # not its repr: that of a user's own method may hold an address
        kind = type(method)
        module = _STORED_MODULE if kind in {TopKICL, TopKICLP} else kind.__module__
        self._kind = (
            f"{module}.{kind.__qualname__}/{method.context}/{method.labeled}/{method.samples}"
        )

    async def snapshot(self) -> int:
        """Return the pool's snapshot as of now."""
        return await self._pool.add([], np.empty((0, self._embedding.dim), dtype=np.float16))

    async def examples(
        self, entries: Sequence[PoolText], snapshot: Snapshot, scheduler: Scheduler
    ) -> list[tuple[Demonstration, ...]]:
        """Return the examples for each text, most similar first, never the text itself.

        Where the method labels them, texts that have no prediction by standard prompting are asked
        about first, by `scheduler`.
        """
        hashes = [entry.hash for entry in entries]
        vectors = await self._vectors(entries, snapshot)
        matches = await self._pool.search(
            vectors, self._method.context, exclude=hashes, upto=snapshot.upto
        )
        ids = np.unique(matches.ids)
        ids = ids[ids >= 0]
        shown = dict(zip(ids.tolist(), await self._pool.fetch(ids), strict=True))
        labels: dict[bytes, str | None] = {}
        if self._method.labeled:
            await self._label(list(shown.values()), snapshot, scheduler)
            labels = snapshot.labels
        return [
            tuple(
                Demonstration(shown[i].text, labels.get(shown[i].hash))
                for i in row
                # a pool in a file may hold the text under a number it got meanwhile
                if i >= 0 and shown[i].hash != own
            )
            for row, own in zip(matches.ids.tolist(), hashes, strict=True)
        ]

    async def _vectors(
        self, entries: Sequence[PoolText], snapshot: Snapshot
    ) -> NDArray[np.float16]:
        kept = snapshot.vectors
        others = [e for e in entries if e.hash not in kept]
        found = await self._embedding.vectors([e.text for e in others], [e.hash for e in others])
        rest = iter(found)
        return np.stack([kept[e.hash] if e.hash in kept else next(rest) for e in entries])

    async def _label(
        self, entries: Sequence[PoolText], snapshot: Snapshot, scheduler: Scheduler
    ) -> None:
        """Note each text's prediction by standard prompting (stage 1 of KNN-ICL-P)."""
        labels = snapshot.labels
        unknown = []
        for entry in entries:
            if entry.hash in labels:
                continue
            if entry.label is not None:
                labels[entry.hash] = entry.label
            else:
                unknown.append(entry)

        allowed = snapshot.askable
        if allowed is not None:
            others = [entry for entry in unknown if entry.hash not in allowed]
            plain = await self._store.get_predictions(
                [self._predictor.key(entry.text) for entry in others]
            )
            own = await self.stored(others)
            for entry, first, second in zip(others, plain, own, strict=True):
                known = first or second
                labels[entry.hash] = None if known is None else known.label
        asks = [
            self._predictor.ask(entry.text, entry.hash, place)
            for place, entry in enumerate(unknown)
            if allowed is None or entry.hash in allowed
        ]
        async with aclosing(scheduler.run(asks)) as outcomes:
            async for ask, outcome in outcomes:
                label = None if isinstance(outcome, Exception) else outcome.label
                labels[ask.text_hash] = label

    def _key(self, entry: PoolText) -> bytes:
        return self._predictor.key_of(self._kind, entry.hash)

    async def stored(self, entries: Sequence[PoolText]) -> list[Prediction | None]:
        """Return the prediction that each text got first, whatever its examples were."""
        return await self._store.get_predictions([self._key(entry) for entry in entries])

    async def note(self, seen: Sequence[tuple[PoolText, Prediction]]) -> None:
        """Store the prediction of each text for `stored`; what is stored already stays."""
        if seen:
            await self._store.put_predictions(
                [
                    StoredPrediction(
                        self._key(entry), self._predictor.scope, entry.hash, 0, prediction
                    )
                    for entry, prediction in seen
                ]
            )
