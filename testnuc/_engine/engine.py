"""The engine: all operations of a client, on the parts that `Components` creates.

`TestNUC`, the scikit-learn classifier and the Ray workers each hold one.
"""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from testnuc._base.checks import checked_whole, hash_text, valid_text
from testnuc._engine.distilling import distill
from testnuc._engine.escalation import Escalation
from testnuc._engine.inputs import checked_texts, distinct, labeled
from testnuc._engine.multilabel import MultilabelNeighborhoods
from testnuc._engine.multilabel_learning import learning_of
from testnuc._engine.pipeline import STOPS
from testnuc._engine.retrieval import known_labels
from testnuc._engine.rows import classification, rows_of
from testnuc._engine.shortlist import coverage_of
from testnuc._engine.small_pool import few_neighbors, few_predictions
from testnuc._engine.streaming import stream_windows
from testnuc._engine.whole_list import compare_with_whole_list
from testnuc.errors import InvalidInputError, with_note
from testnuc.progress import Counter, start_progress
from testnuc.protocols import PoolText
from testnuc.results import Results
from testnuc.transport.telemetry import operation
from testnuc.trust import Review
from testnuc.types import PoolStats

if TYPE_CHECKING:
    import os
    from collections.abc import (
        AsyncGenerator,
        AsyncIterable,
        Callable,
        Iterable,
        Iterator,
        Sequence,
    )

    from testnuc._engine.components import Components
    from testnuc._engine.neighborhoods import Neighborhoods
    from testnuc.errors import SmallPoolWarning
    from testnuc.head import Head
    from testnuc.limits import Mark
    from testnuc.progress import Observer
    from testnuc.protocols import Provider, WireProvider
    from testnuc.trust import Diagnosis, Learned, MultilabelLearned, VoteSettings
    from testnuc.types import Classification, Estimate, Usage

__all__ = ["Engine"]

_log = logging.getLogger("testnuc.client")

#: Texts embedded between two turns of the event loop.
_TURN = 1_024
#: `stacklevel` of warnings: the code that called the client.
_CALLER = 5


class Engine:
    """Labels texts, and manages the pool and the stored predictions; see `TestNUC`."""

    def __init__(self, parts: Components) -> None:
        self.parts = parts
        self.learning = learning_of(parts)
        self.escalation = Escalation(parts, self.learning)
        self._warned = False
        #: `Observer.note` of each run in progress.
        self._notes: list[Callable[[Exception], None]] = []
        parts.transport.on_failure = self._note

    def _note(self, error: Exception) -> None:
        """Pass a failed attempt on to the observers; one that raises must not fail the call."""
        for note in list(self._notes):
            try:
                note(error)
            except Exception:  # noqa: BLE001 - any observer
                _log.warning("the progress observer failed", exc_info=True)

    @contextmanager
    def _progress(
        self, total: int, before: Mark, *, progress: bool | Observer
    ) -> Iterator[Observer]:
        """Show progress; failed attempts are passed on to an observer that wants them."""
        bar = start_progress(progress, total, lambda: self.parts.meter.since(before))
        note = getattr(bar, "note", None)
        try:
            if note is not None:
                self._notes.append(note)
            yield bar
        finally:
            if note in self._notes:
                self._notes.remove(note)
            bar.close()

    def __len__(self) -> int:
        """Return the number of texts in the pool."""
        return len(self.parts.pool)

    @property
    def settings(self) -> VoteSettings:
        """The vote settings; immutable, replaced as a whole."""
        return self.parts.pipeline.settings

    @settings.setter
    def settings(self, settings: VoteSettings) -> None:
        self.parts.pipeline.settings = settings

    @property
    def usage(self) -> Usage:
        """Usage so far."""
        return self.parts.meter.since()

    async def aclose(self) -> None:
        """Close all parts."""
        await self.parts.aclose()

    async def add(
        self, texts: Iterable[str], labels: Sequence[str] | Sequence[Sequence[str]] | None = None
    ) -> None:
        """Embed texts and add them to the pool."""
        parts = self.parts
        entries, places = await distinct(await checked_texts(texts))
        if labels is not None:
            entries = labeled(entries, places, labels, parts.labels)
        await parts.ready()
        failed: list[Exception] = []
        for start in range(0, len(entries), _TURN):
            part = entries[start : start + _TURN]
            vectors, rejected = await parts.embedding.each(
                [e.text for e in part], [e.hash for e in part]
            )
            failed += rejected.values()
            rows = [at for at in range(len(part)) if at not in rejected]
            if rows:
                await parts.pool.add([part[row] for row in rows], vectors[rows])
        if failed:
            raise with_note(
                failed[0], f"{len(failed):,} of {len(entries):,} texts were not added, the rest was"
            )

    async def remove(self, texts: Iterable[str]) -> int:
        """Remove texts from the pool; returns the number removed."""
        entries, _ = await distinct(await checked_texts(texts))
        await self.parts.ready()
        removed = await self.parts.pool.remove([entry.hash for entry in entries])
        if removed:
            self.parts.pipeline.pool_predictions.forget_diagnosis()
        return removed

    async def forget(self, *, model: str | None = None) -> int:
        """Delete stored predictions; returns the number deleted."""
        await self.parts.ready()
        if model is None:
            gone = await self.parts.store.forget(scope=self.parts.predictor.scope)
        else:
            gone = await self.parts.store.forget(model=model)
        if model in {None, self.parts.model}:
            self.parts.predictor.forget()
        self.parts.pipeline.pool_predictions.forget_diagnosis()
        return gone

    async def stats(self) -> PoolStats:
        """Return the numbers of texts and of predictions."""
        await self.parts.ready()
        parts = self.parts
        predicted = await parts.store.count(parts.predictor.scope)
        known = await known_labels(parts.pool)
        return PoolStats(
            len(self),
            predicted,
            parts.model,
            len(parts.labels.names),
            sum(not parts.labels.knows(label) for label in known.values()),
        )

    async def predict_pool(
        self, *, progress: bool = False, lane: Literal["live", "batch"] = "live"
    ) -> None:
        """Predict every text of the pool that has no prediction."""
        await self.parts.ready(lane)
        with self._progress(len(self), self.parts.meter.mark(), progress=progress) as bar:
            bar.stage("asking" if lane == "live" else "waiting for batches")
            async with aclosing(self.parts.pipeline.predict_pool(lane)) as answered:
                async for texts in answered:
                    bar.advance(texts)

    async def estimate(self, texts: Iterable[str]) -> Estimate:
        """Estimate the usage of `classify_many`."""
        entries, _ = await distinct(await checked_texts(texts))
        await self.parts.ready()
        estimate = await self.parts.estimator.usage(entries, self.settings)
        if self.escalation.referee is None:
            return estimate
        calls, usd = await self.escalation.cost(entries)
        return replace(estimate, referee_calls=calls, referee_usd=usd)

    async def classify(self, text: str) -> Classification:
        """Label one text by the vote of the pool's nearest texts."""
        problem = valid_text(text)
        if problem is not None:
            raise InvalidInputError(f"the text {problem}")
        parts = self.parts
        await parts.ready()
        entry = PoolText(text, hash_text(text))
        with operation(parts.telemetry, "classify", model=parts.model) as span:
            neighborhoods = await parts.pipeline.prepare([entry], together=False, partial=True)
            self._warn_of_few_neighbors(neighborhoods)
            try:
                async with aclosing(parts.pipeline.predict(neighborhoods, waves=True)) as answered:
                    async for _ in answered:
                        pass
            except STOPS as error:
                if not await parts.pipeline.salvage(neighborhoods, error):
                    raise
            self._warn_of_few_predictions(neighborhoods)
            if neighborhoods.settings.taught is not None:
                await parts.pipeline.settle(neighborhoods)
            result = classification(neighborhoods, 0, 0, text)
            span.set(voters=result.voters, trust=result.trust)
            if parts.telemetry is not None:
                parts.telemetry.texts("unlabeled" if result.label is None else "labeled", 1)
            if result.label is None and result.error is not None:
                raise result.error
        return result

    async def classify_many(
        self,
        texts: Iterable[str],
        *,
        progress: bool | Observer = False,
        lane: Literal["live", "batch"] = "live",
    ) -> Results:
        """Label many texts, which vote on each other; see `TestNUC.classify_many`."""
        parts = self.parts
        pipeline, telemetry = parts.pipeline, parts.telemetry
        given = await checked_texts(texts)
        await parts.ready(lane)
        before, started = parts.meter.mark(), time.perf_counter()
        referee = self.escalation.referee
        refereed = None if referee is None else referee.meter.mark()
        entries, places = await distinct(given)
        facts = {"model": parts.model, "lane": lane, "texts": len(given), "distinct": len(entries)}
        with operation(telemetry, "classify_many", **facts) as span:
            neighborhoods: Neighborhoods | None = None
            stopped: Exception | None = None
            with self._progress(len(entries), before, progress=progress) as bar:
                try:
                    bar.stage("embedding")
                    counter = Counter(bar)
                    with operation(telemetry, "prepare"):
                        neighborhoods = await pipeline.prepare(
                            entries,
                            together=True,
                            ask_first=lane == "live",
                            partial=True,
                            # optional, so that observers written for 0.1.0 still count texts once
                            on_embedded=getattr(bar, "embedded", int),
                            on_answered=counter.add,
                        )
                    bar.stage("asking" if lane == "live" else "waiting for batches")
                    self._warn_of_few_neighbors(neighborhoods)
                    n_own = neighborhoods.n_own
                    known = sum(map(neighborhoods.has_outcome, range(n_own)))
                    if known > counter.done:
                        bar.advance(known - counter.done)
                    predict = pipeline.predict(
                        neighborhoods,
                        # a wave in the batch lane can take a day
                        waves=not pipeline.join_pool and lane == "live",
                        lane=lane,
                    )
                    with operation(telemetry, "predict"):
                        async with aclosing(predict) as answered:
                            async for place in answered:
                                if place < n_own:
                                    bar.advance()
                    bar.advance(neighborhoods.n_spared)
                    await self._compare(neighborhoods, lane)
                except STOPS as error:
                    if neighborhoods is None or not await pipeline.salvage(neighborhoods, error):
                        raise
                    stopped = error
                    _log.warning("the run stopped early: %s: %s", type(error).__name__, error)
            if stopped is None:
                self._warn_of_few_predictions(neighborhoods)
            neighborhoods, escalated = await self.escalation.settle(
                neighborhoods, stopped=stopped is not None
            )
            with operation(telemetry, "vote"):
                rows = await asyncio.to_thread(rows_of, neighborhoods, given, places)
            usage, seconds = parts.meter.since(before), time.perf_counter() - started
            span.set(calls=usage.calls, store_hits=usage.store_hits, usd=usage.usd)
        taught, coverage = neighborhoods.settings.taught, self._coverage(neighborhoods)
        results = Results(
            rows,
            usage,
            seconds,
            model=parts.model,
            choices=parts.labels.names,
            descriptions=parts.labels.descriptions,
            instructions=parts.instructions,
            stopped=stopped,
            diagnosis=neighborhoods.diagnosis,
            # what it proves takes time to compute
            learned=None if taught is None else await asyncio.to_thread(str, taught),
            escalated=escalated,
            notes=list(filter(None, neighborhoods.notes)),
            coverage=coverage,
            referee_usage=None if referee is None else referee.meter.since(refereed),
        )
        self._report(results, len(entries))
        return results

    async def _compare(self, neighborhoods: Neighborhoods, lane: str) -> None:
        """Note what a vote would change, and how prompts that show some labels compare."""
        parts = self.parts
        if isinstance(neighborhoods, MultilabelNeighborhoods) and parts.referee is None:
            neighborhoods.notes.append(await asyncio.to_thread(neighborhoods.note_of_kept))
        if parts.shortlist is not None and lane == "live":
            live = parts.pipeline.lanes["live"]
            await compare_with_whole_list(neighborhoods, parts.predictor, live)

    def _coverage(self, neighborhoods: Neighborhoods) -> dict[str, int]:
        """Return how many shortlists hold each label, and note those that none holds."""
        labels, lists = self.parts.labels, neighborhoods.shortlists
        if lists is None:
            return {}
        found, note = coverage_of(lists, labels.names, labels.none_label)
        neighborhoods.notes.append(note)
        return found

    async def stream(
        self, texts: Iterable[str] | AsyncIterable[str], *, window: int = 4_096
    ) -> AsyncGenerator[Classification, None]:
        """Label texts from any iterable in bounded memory."""
        checked_whole("window", window, least=1)
        await self.parts.ready()
        # closed together with this generator, so that no calls are made for unread results
        windows = stream_windows(self.parts.pipeline, texts, window, self.escalation)
        async with aclosing(windows) as results:
            async for result in results:
                yield result

    async def diagnose(self) -> Diagnosis:
        """Diagnose from the pool's predictions whether a vote would help."""
        if self.parts.labels.multilabel:
            raise InvalidInputError(
                "diagnose does not support multilabel=True: it compares single labels; judge some "
                "texts instead, with `review` and `learn`"
            )
        await self.parts.ready()
        pipeline = self.parts.pipeline
        return await pipeline.pool_predictions.diagnose(pipeline.settings)

    async def review(self, n: int, goal: str | None, seed: int) -> Review:
        """Draw texts of the pool to be judged."""
        review = await self.learning.review(n, goal, seed)
        review.asks = self.ask
        return review

    async def ask(self, review: Review, model: str | Provider | WireProvider, shown: str) -> None:
        """Let a referee answer the open items of a review."""
        await self.escalation.ask(review, model, shown)

    @property
    def learned(self) -> Learned | MultilabelLearned | None:
        """What was learned so far."""
        return self.learning.learned

    @property
    def referee_usage(self) -> Usage:
        """Usage of referees so far."""
        return self.escalation.usage

    async def learn(
        self,
        texts: Review | Iterable[str],
        labels: Sequence[str | None] | Sequence[Sequence[str]] | None,
    ) -> Learned | MultilabelLearned:
        """Learn from a review, or from labeled texts; later calls use it."""
        if isinstance(texts, Review):
            if labels is not None:
                raise InvalidInputError("give a review, or texts and labels")
            return await self.learning.learn_from(texts)
        if labels is None:
            raise InvalidInputError("give the labels of the texts, or a review")
        return await self.learning.learn_labels(texts, labels)

    async def distill(self, path: str | os.PathLike[str]) -> Head:
        """Train a head on the pool's labels, and write it to a file."""
        head = await distill(self.parts)
        await asyncio.to_thread(head.save, path)
        return head

    async def unlearn(self) -> bool:
        """Forget what was learned; returns whether there was anything."""
        return await self.learning.unlearn()

    def _report(self, results: Results, distinct_texts: int) -> None:
        """Log a summary of a run, and record its texts in the telemetry."""
        usage, failed, outside = results.usage, len(results.errors), len(results.outside)
        unlabeled = results.labels.count(None)
        _log.log(
            logging.WARNING if failed or outside else logging.INFO,
            "%s: %d texts (%d distinct), %d calls, %d predictions from the store, %d texts whose "
            "own call failed, %d answers outside the labels, %d texts without a label, %s USD, "
            "%.1f s",
            self.parts.model,
            len(results),
            distinct_texts,
            usage.calls,
            usage.store_hits,
            failed,
            outside,
            unlabeled,
            "unknown" if usage.usd is None else f"{usage.usd:.6f}",
            results.seconds,
        )
        if results.learned is None and results.diagnosis is not None:
            _log.info("%s", results.diagnosis.sentence())
        telemetry = self.parts.telemetry
        if telemetry is not None:
            telemetry.texts("labeled", len(results) - unlabeled)
            telemetry.texts("unlabeled", unlabeled)

    def _warn_of_few_neighbors(self, neighborhoods: Neighborhoods) -> None:
        settings = neighborhoods.settings
        if settings.policy is None or settings.needs_no_neighbors or neighborhoods.failure:
            return
        found = int((neighborhoods.neighbors >= 0).sum(axis=1).max(initial=0))
        stored = self.parts.pipeline.neighbors == "stored"
        self._warn(few_neighbors(settings.k, len(self), found, stored=stored))

    def _warn_of_few_predictions(self, neighborhoods: Neighborhoods) -> None:
        if neighborhoods.diagnosis is not None:
            self._warn(few_predictions(neighborhoods.diagnosis.predictions))

    def _warn(self, warning: SmallPoolWarning | None) -> None:
        """Warn once."""
        if warning is not None and not self._warned:
            self._warned = True
            warnings.warn(warning, stacklevel=_CALLER)
