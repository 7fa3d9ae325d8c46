"""The predictions of the whole pool: diagnosed for the auto policy, and returned to learn from."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from testnuc._base.arrays import Float16s
from testnuc._engine.inputs import without_foreign_labels
from testnuc._engine.retrieval import SEARCH, Retriever
from testnuc._engine.run import Run
from testnuc.embedders.cache import EmbeddingCache
from testnuc.errors import ProviderError
from testnuc.index.matching import scanned
from testnuc.protocols import PoolText
from testnuc.trust.auto_policy import MIN_PREDICTIONS
from testnuc.trust.diagnosis import Diagnosis
from testnuc.trust.vote_settings import VoteSettings

#: Parts of a large pool that are sampled for a diagnosis.
_CHUNKS = 12


@dataclass(frozen=True, slots=True)
class _PoolDiagnosis:
    """A diagnosis of the pool, and its state at that time."""

    #: Texts in the pool.
    size: int
    #: Texts with a stored prediction.
    predicted: int
    #: Outcomes received by then.
    outcomes: int
    diagnosis: Diagnosis

    def is_current(self, size: int, outcomes: int) -> bool:
        """Whether the diagnosis is still valid: until pool or predictions may be a quarter more.

        A diagnosis with too few predictions is valid until there may be enough.
        """
        missing = MIN_PREDICTIONS - self.diagnosis.predictions
        if missing > 0 and outcomes - self.outcomes + size - self.size >= missing:
            return False
        return size < 1.25 * self.size and 4 * (outcomes - self.outcomes) < self.predicted


@dataclass
class PoolPredictions:
    """Reads the stored predictions of the texts in the pool."""

    retriever: Retriever
    embedding: EmbeddingCache
    #: Whether the client was closed.
    closed: Callable[[], bool]
    #: Texts with an outcome so far: an upper bound on new predictions.
    outcomes: int = 0
    #: The last diagnosis.
    last: _PoolDiagnosis | None = None
    _diagnosing: asyncio.Task[Diagnosis] | None = None
    #: Increased by `forget_diagnosis`.
    _resets: int = 0

    async def recent_diagnosis(self, settings: VoteSettings) -> Diagnosis:
        """Return a recent diagnosis of the pool; concurrent callers share one computation."""
        last = self.last
        if last is not None and last.is_current(len(self.retriever.pool), self.outcomes):
            return last.diagnosis
        if self._diagnosing is None:
            self._diagnosing = asyncio.create_task(self._refresh(settings), name="testnuc-diagnose")
            self._diagnosing.add_done_callback(self._end)
        # shielded: the cancellation of one caller must not affect the others
        return await asyncio.shield(self._diagnosing)

    async def _refresh(self, settings: VoteSettings) -> Diagnosis:
        """Diagnose the pool, unless the outcomes since the last time were no new predictions."""
        last, outcomes = self.last, self.outcomes
        if last is not None:
            predicted = await self.retriever.store.count(self.retriever.predictor.scope)
            # as if only new predictions had been counted so far
            counted = replace(last, outcomes=outcomes - max(predicted - last.predicted, 0))
            if counted.is_current(len(self.retriever.pool), outcomes):
                if self.last is last:
                    self.last = counted
                return last.diagnosis
        return await self.diagnose(settings)

    def _end(self, task: asyncio.Task[Diagnosis]) -> None:
        if self._diagnosing is task:
            self._diagnosing = None
        if not task.cancelled():
            # marks the exception as retrieved, in case all callers were cancelled
            task.exception()

    def forget_diagnosis(self) -> None:
        """Diagnose again before the next decision: texts or predictions were removed."""
        self._resets += 1
        self.last = self._diagnosing = None

    async def diagnose(self, settings: VoteSettings) -> Diagnosis:
        """Diagnose the predictions of the pool."""
        size, outcomes, resets = len(self.retriever.pool), self.outcomes, self._resets
        predicted = await self.retriever.store.count(self.retriever.predictor.scope)
        chunks = range(0, size, SEARCH)
        if len(chunks) > _CHUNKS:
            # spread over the pool, so that old and new texts are sampled
            chunks = range(0, size, size // _CHUNKS)
        texts: list[PoolText] = []
        for start in chunks:
            found, _ = await self.retriever.pool.scan(start, SEARCH)
            part = without_foreign_labels(found, self.retriever.predictor.labels)
            stored = await self.retriever.stored(part)
            texts += [
                e for e, p in zip(part, stored, strict=True) if p is not None or e.label is not None
            ]
        if self.closed():
            raise ProviderError("the client was closed")
        if len(texts) < MIN_PREDICTIONS:
            run = self.retriever.alone(texts, settings)
            await self.retriever.fill(run, range(len(texts)))
        else:
            run, _ = await self._with_neighbors(texts, settings, settings.k)
        diagnosis = await asyncio.to_thread(run.votes.diagnose)
        if self._resets == resets:
            self.last = _PoolDiagnosis(size, predicted, outcomes, diagnosis)
        return diagnosis

    async def labeled(self, settings: VoteSettings, most: int, k: int) -> tuple[Run, Float16s]:
        """Return the texts of the pool that have a prediction, k neighbors of each, and vectors.

        Of a pool with more than `most` texts, they are spread over it evenly.
        """
        return await self._with_neighbors(await self.texts(most), settings, k)

    async def texts(self, most: int) -> list[PoolText]:
        """Return the texts of the pool that have a prediction, see `labeled`."""
        every = max(1, -(-len(self.retriever.pool) // most))
        texts: list[PoolText] = []
        async for found in scanned(self.retriever.pool, SEARCH):
            part = without_foreign_labels(found, self.retriever.predictor.labels)
            part = [e for e in part if e.label is None]
            part = [e for e in part if int.from_bytes(e.hash[1:5]) % every == 0]
            stored = await self.retriever.stored(part)
            texts += [e for e, p in zip(part, stored, strict=True) if p is not None]
        return texts

    async def _with_neighbors(
        self, texts: Sequence[PoolText], settings: VoteSettings, k: int
    ) -> tuple[Run, Float16s]:
        vectors = await self.embedding.vectors(texts)
        matches = await self.retriever.search(texts, vectors, k)
        run = await self.retriever.start(await self.retriever.build(texts, matches), settings)
        await self.retriever.fill(run, range(len(run.batch.entries)))
        return run, vectors
