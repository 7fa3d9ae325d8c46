"""Few-shot examples of in-context methods: the nearest pool texts, with or without labels."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from testnuc._base.arrays import Float16s
from testnuc._dispatch.predictor import Predictor
from testnuc._dispatch.scheduler import Scheduler
from testnuc._engine.batch import Snapshot
from testnuc._engine.inputs import without_foreign_labels
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
        others = [e for e in entries if e.hash not in kept]
        vectors = await self.embedding.vectors(others)
        rest = iter(vectors)
        return np.stack([kept[e.hash] if e.hash in kept else next(rest) for e in entries])

    async def _label(
        self, entries: Sequence[PoolText], snapshot: Snapshot, scheduler: Scheduler
    ) -> None:
        """Label examples by standard prompting, in `snapshot.labels` (stage 1 of KNN-ICL-P)."""
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
            plain = await self.store.get_predictions(
                [self.predictor.key(entry.text) for entry in others]
            )
            own = await self.stored(others)
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
                label = None if isinstance(outcome, Exception) else outcome.label
                labels[ask.text_hash] = label

    def _key(self, entry: PoolText) -> bytes:
        return self.predictor.key_of(self._kind, entry.hash)

    async def stored(self, entries: Sequence[PoolText]) -> list[Prediction | None]:
        """Return the first prediction of each text, with whatever examples."""
        return await self.store.get_predictions([self._key(entry) for entry in entries])

    async def remember(self, seen: Sequence[tuple[PoolText, Prediction]]) -> None:
        """Store the prediction of each text for `stored`; existing ones are kept."""
        if seen:
            await self.store.put_predictions(
                [
                    StoredPrediction(
                        self._key(entry), self.predictor.scope, entry.hash, 0, prediction
                    )
                    for entry, prediction in seen
                ]
            )
