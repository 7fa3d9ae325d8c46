"""Let a referee, a better model, judge disagreements, and escalate the least trusted texts.

A referee's answers go through the client's store, under keys of their own, and its calls count
against the client's budget. Its rate limits and its usage are its own.
"""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from contextlib import aclosing
from dataclasses import replace

import numpy as np

from testnuc._base.checks import checked_choice
from testnuc._dispatch.inflight import Ask
from testnuc._dispatch.predictor import Predictor
from testnuc._dispatch.scheduler import Scheduler
from testnuc._engine.batch import FATAL_ERRORS
from testnuc._engine.components import Components
from testnuc._engine.estimate import costs_of
from testnuc._engine.learning import Learning
from testnuc._engine.run import Run
from testnuc.errors import InvalidInputError
from testnuc.labels import LabelSet
from testnuc.limits.budget import Meter, Price, require_price
from testnuc.methods import Sampling
from testnuc.protocols import PoolText, Provider, WireProvider
from testnuc.transport.calls import PATIENCE
from testnuc.trust.argmax import Argmax
from testnuc.trust.review import Review
from testnuc.types import Prediction, Usage, error_text

_log = logging.getLogger("testnuc.client")

#: Texts that a referee judges, again when the pool is so many times as large.
_REFEREED, _GROWTH = 100, 1.5
#: Texts looked up at a time.
_CHUNK = 2_048


class RefereeModel:
    """Labels texts by another model."""

    def __init__(self, parts: Components, model: str | Provider | WireProvider) -> None:
        self._parts = parts
        provider = parts.referee_provider(model)
        self.model = f"{provider.name}/{provider.model}"
        url, ttl = getattr(provider, "url", None), getattr(provider, "cache_ttl", None)
        #: None: unknown.
        self.price = Price.of(provider.name, provider.model, url, cache_ttl=ttl)
        require_price(parts.limits.budget, self.price, self.model)
        self.meter = Meter(self.price)
        self._provider = provider
        self._transport = parts.internals.transport(
            replace(parts.limits, requests_per_minute=None, tokens_per_minute=None),
            account=parts.transport.account,
            trust_env=getattr(provider, "trust_env", False),
            meter=self.meter,
        )
        #: Shows all labels.
        self.predictor = self._predictor(parts.labels)
        scope, most = self.predictor.scope, parts.limits.concurrency
        self._scheduler = Scheduler(_answered, parts.store, scope, meter=self.meter, workers=most)
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
            await self._parts.store.describe(self.predictor.scope, facts | {"referee": True})
        asks = []
        for place, entry in enumerate(texts):
            predictor = self.predictor
            if shown is not None and len(shown[place]) > 1:
                # in an order that depends on the text alone
                rng = np.random.default_rng(int.from_bytes(entry.hash[:8]))
                names = sorted(shown[place])
                order = [names[i] for i in rng.permutation(len(names)).tolist()]
                predictor = self._predictor(self._parts.labels.some(order))
            ask = predictor.ask(entry.text, entry.hash, place)
            ask.answer = predictor.answer
            asks.append(ask)
        answers: list[Prediction | Exception] = [Prediction(None)] * len(texts)
        async with aclosing(self._scheduler.run(asks)) as outcomes:
            async for ask, outcome in outcomes:
                answers[ask.place] = outcome
        return answers

    async def aclose(self) -> None:
        """Wait for calls in flight, and close the connections."""
        await self._scheduler.close()
        await self._transport.aclose()

    def _predictor(self, labels: LabelSet) -> Predictor:
        of_run, instructions = self._parts.sampling, self._parts.instructions
        # few calls, which must be right: the provider's own effort
        sampling = Sampling(of_run.temperature, of_run.top_p, reasoning_effort=None)
        return Predictor(
            self._provider, self._transport, labels, sampling, instructions=instructions
        )


async def _answered(asks: tuple[Ask, ...]) -> list[Prediction | Exception]:
    assert asks[0].answer is not None
    return await asks[0].answer(asks)


async def _said(asking: Awaitable[str | None]) -> str | None:
    """Return what asking a referee came to, also if it fails: the labels must not be lost."""
    try:
        async with PATIENCE.get().in_time():
            return await asking
    except FATAL_ERRORS as error:
        failure = f"the referee failed: {error_text(error)}"
        _log.warning("%s", failure)
        return failure


class Escalation:
    """The referees of a client."""

    def __init__(self, parts: Components, learning: Learning) -> None:
        self._parts = parts
        self._learning = learning
        #: By name, or by id.
        self._referees: dict[str | int, RefereeModel] = {}
        #: Held while disagreements are judged: the windows of a stream share one review.
        self._lock = asyncio.Lock()
        #: Size of the pool when there was nothing to judge last, or it was judged in vain.
        self._judged_in_vain = 0
        self.referee = None if parts.referee is None else self._referee_of(parts.referee.model)
        #: Of the texts, which it labels.
        self._part = 0.0 if parts.referee is None else parts.referee.escalate

    async def aclose(self) -> None:
        """Close the referees."""
        for referee in self._referees.values():
            await referee.aclose()

    def _referee_of(self, model: str | Provider | WireProvider) -> RefereeModel:
        key = model if isinstance(model, str) else id(model)
        if key not in self._referees:
            self._referees[key] = RefereeModel(self._parts, model)
        return self._referees[key]

    @property
    def usage(self) -> Usage:
        """Usage of all referees."""
        return Meter.sum([referee.meter.mark() for referee in self._referees.values()])

    async def ask(
        self, review: Review, model: str | Provider | WireProvider, shown: str = "all"
    ) -> list[Exception]:
        """Let a referee answer the open items of a review; return the errors of the others."""
        checked_choice("shown", shown, ("all", "candidates"))
        if not isinstance(review, Review):
            raise InvalidInputError(f"review is {review!r:.60}; give what `review` returned")
        referee = self._referee_of(model)
        items = [item for item in review if item.source is None]
        given = [[label for label, _ in item.candidates if label is not None] for item in items]
        texts = [PoolText(item.text, item.hash) for item in items]
        answers = await referee.ask(texts, given if shown == "candidates" else None)
        for item, answer in zip(items, answers, strict=True):
            if isinstance(answer, Prediction) and answer.label is not None:
                review.answer(item.index, review.as_given(answer.label), "referee")
            elif isinstance(answer, Exception):
                _log.warning("the referee did not answer item %d: %s", item.index, answer)
        return [answer for answer in answers if isinstance(answer, Exception)]

    async def cost(self, entries: Sequence[PoolText]) -> tuple[int, float | None]:
        """Return the most calls that the referee needs for a run, and US dollars."""
        parts, referee = self._parts, self.referee
        assert referee is not None
        keys = [referee.predictor.key(entry.text) for entry in entries]
        stored = await parts.store.get_predictions(keys)
        # which texts it will be asked about is not known before the run
        open_ = [e.text for e, hit in zip(entries, stored, strict=True) if hit is None]
        hashes = [entry.hash for entry in entries]
        new = 0
        for start in range(0, len(hashes) if parts.pipeline.join_pool else 0, _CHUNK):
            vectors = await parts.pool.stored_vectors(hashes[start : start + _CHUNK])
            new += sum(vector is None for vector in vectors)
        judged = min(_REFEREED, len(entries)) if self._is_due(len(parts.pool) + new) else 0
        most = judged + int(self._part * len(entries))
        calls = [((text,), (), referee.predictor.task) for text in open_[:most]]
        (cost,) = await costs_of(referee.predictor, calls, [referee.price])
        return cost.calls, cost.usd

    async def settle(self, run: Run) -> tuple[Run, str | None]:
        """Complete a run: apply what was learned, and ask the referee, if there is one.

        If an error ended the run, the referee is not asked. Returns the run, another if something
        was learned meanwhile, and what the referee labeled, or why nothing.
        """
        pipeline = self._parts.pipeline
        if self.referee is None or run.failure is not None:
            await pipeline.settle(run)
            return run, None
        before = run.votes.settings.learned
        said = await _said(self._learn_once())
        if pipeline.settings.learned is not before:
            run = await self._again(run)
        await pipeline.settle(run)
        if said is None and self._part:
            said = await _said(self._escalate(run))
        return run, said

    async def _again(self, old: Run) -> Run:
        """Return the run by the current settings; makes no call for the own texts."""
        pipeline, n_own = self._parts.pipeline, old.batch.n_own
        new = await pipeline.prepare(old.batch.entries[:n_own], together=True, ask_first=False)
        new.notes[:] = old.notes
        for place in range(n_own):
            outcome = old.answers.predictions[place] or old.answers.errors.get(place)
            if outcome is not None and not new.answers.has_outcome(place):
                new.answers.put(place, outcome)
        await pipeline.complete(new)
        return new

    def _is_due(self, size: int) -> bool:
        """Whether disagreements in a pool of this size are to be judged."""
        return size >= _GROWTH * max(self._judged_in_vain, self._judged)

    @property
    def _judged(self) -> int:
        """Number of texts with a prediction when a referee last judged some of them."""
        known = self._learning.learned
        judged = known.judged if known else ()
        return max((one.texts for one in judged if one.source == "referee"), default=0)

    async def _learn_once(self) -> str | None:
        """Learn from a hundred texts that the client's referee judges.

        Strategies differ on half of them; the others are drawn at random, as all are where a text
        can have several labels. They are judged again when the pool has grown by half. Returns why
        nothing could be learned.
        """
        assert self._parts.referee is not None
        async with self._lock:
            size = len(self._parts.pool)
            if not self._is_due(size):
                return None
            try:
                goal = None if self._parts.settings.threshold is None else "certify"
                # strategies mostly agree on one half, so that a referee that knows nothing is found
                review = await self._learning.review(_REFEREED, goal, 0, mixed=True)
            except InvalidInputError:
                # too few texts have a prediction
                return None
            if not len(review) or review.texts < _GROWTH * self._judged:
                # of a large pool only some may have a prediction
                self._judged_in_vain = size
                return None
            failed = await self.ask(review, self._parts.referee.model)
            if not review.judged:
                self._judged_in_vain = size
                said = f"the referee's answers to {len(review):,} texts name none of the labels"
                if failed:
                    said = f"the referee failed: {error_text(failed[0])}"
                _log.warning("%s", said)
                return said
            await self._learning.learn_from(review)
            return None

    async def _escalate(self, run: Run) -> str:
        """Let the referee label the least trusted part of a run; returns what was done."""
        parts, learned, layer = self._parts, self._learning.learned, run.layers.get("learned")
        rule = None if learned is None else learned.rule
        assert self.referee is not None
        if not isinstance(rule, Argmax) or layer is None:
            return "nothing was escalated: there are too few answers to judge the referee"
        if not rule.referee_better:
            backed, alone = rule.dissent
            return (
                f"nothing was escalated, and its answers are not used: {self.referee.model} is not "
                "shown to be better; where it contradicts the LLM, neighbors or a model of your "
                f"texts agree with it {backed} times, and not {alone} times; judge texts yourself "
                "to be sure"
            )
        trust = np.nan_to_num(layer.labels.trust, nan=-1.0)
        trust[list(run.judges)] = np.inf
        trust[np.isin(run.answers.label[: len(trust)], rule.protected)] = np.inf
        places = np.argsort(trust, kind="stable")[: int(self._part * run.batch.n_own)]
        places = places[np.isfinite(trust[places])]
        answers = await self.referee.ask([run.batch.entries[place] for place in places.tolist()])
        said: dict[int, tuple[tuple[int, ...], str]] = {}
        failed = [answer for answer in answers if isinstance(answer, Exception)]
        for place, answer in zip(places.tolist(), answers, strict=True):
            if isinstance(answer, Prediction) and answer.label is not None:
                said[place] = ((parts.labels.names.index(answer.label),), "referee")
        run.judge(said)
        note = f"{self.referee.model} labeled the {len(said):,} least trusted texts"
        if failed:
            note += f"; {len(failed):,} of its calls failed, first by {error_text(failed[0])}"
        return note
