"""Draw texts to be judged, learn from the judgments, and keep what was learned."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from testnuc._base.checks import checked_choice, checked_whole
from testnuc._engine.applying import judge, judged_labels
from testnuc._engine.estimate import Estimator
from testnuc._engine.inputs import checked_texts, distinct, values
from testnuc._engine.judgments import (
    class_of,
    context_of,
    default_model,
    dissent_of,
    draws_of,
    parts_of,
)
from testnuc._engine.referee import Referee
from testnuc.embedders.cache import embedder_name
from testnuc.errors import InvalidInputError, StoreError
from testnuc.limits import Meter
from testnuc.methods import StandardPrompting
from testnuc.protocols import PoolText
from testnuc.trust.candidates import LabelCandidate, candidates_of, choose, differing
from testnuc.trust.head import folds_of
from testnuc.trust.learned import Judgment, Learned, chosen_parts, fit_trust, rounded
from testnuc.trust.model import HeadModel, Texts
from testnuc.trust.review import GOALS, Drawn, Review, ReviewItem, closest_label, draw
from testnuc.types import Neighbor, Prediction

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from testnuc._engine.components import Components
    from testnuc._engine.neighborhoods import Neighborhoods
    from testnuc.protocols import Provider, WireProvider
    from testnuc.types import Usage

__all__ = ["Learning"]

_log = logging.getLogger("testnuc.client")

#: Texts that candidates are fitted on at most.
_MOST_TEXTS = 200_000
_LEAST_TEXTS = 10
_NEIGHBORS = 30
#: Disagreements that a referee judges, again when the pool is so many times as large.
_REFEREED, _GROWTH = 100, 1.5
#: Neighbors shown with a text to be judged.
_SHOWN = 5


@dataclass(frozen=True, slots=True, eq=False)
class _PoolFit:
    """The texts of the pool, and the candidates that were fitted on them."""

    digest: bytes
    neighborhoods: Neighborhoods
    texts: Texts
    candidates: list[LabelCandidate]
    #: Position of each text, by hash.
    rows: dict[bytes, int]


class Learning:
    """What a client learns from judgments.

    Parameters
    ----------
    parts : Components
    """

    def __init__(self, parts: Components) -> None:
        self._parts = parts
        self._last: _PoolFit | None = None
        self._lock = asyncio.Lock()
        #: By name, or by id.
        self._referees: dict[str | int, Referee] = {}
        #: The client's referee.
        self.referee = None if parts.referee is None else self.referee_of(parts.referee)
        parts.on_open, parts.on_close = self.load, self.aclose

    async def aclose(self) -> None:
        """Close all referees."""
        for referee in self._referees.values():
            await referee.aclose()

    def referee_of(self, model: str | Provider | WireProvider) -> Referee:
        """Return the referee of a model; one for each model."""
        key = model if isinstance(model, str) else id(model)
        if key not in self._referees:
            self._referees[key] = Referee(self._parts, model)
        return self._referees[key]

    @property
    def referee_usage(self) -> Usage:
        """Usage of all referees."""
        return Meter.sum([referee.meter.mark() for referee in self._referees.values()])

    @property
    def learned(self) -> Learned | None:
        """What was learned so far."""
        return self._parts.pipeline.settings.learned

    async def review(self, n: int, goal: str | None, seed: int) -> Review:
        """Draw texts of the pool to be judged."""
        checked_whole("n", n, least=1)
        if goal is not None and goal not in GOALS:
            raise InvalidInputError(f"goal is {goal!r}; choose from {', '.join(GOALS)}, or None")
        fitted = await self._fitted()
        before = self.learned
        seen = {j.hash for j in before.judged} if before is not None else set()
        return await asyncio.to_thread(self._drawn, fitted, n, goal, seed, seen)

    def _drawn(
        self, fitted: _PoolFit, n: int, goal: str | None, seed: int, seen: set[bytes]
    ) -> Review:
        entries = fitted.neighborhoods.entries
        open_ = np.array([e.hash not in seen for e in entries[: len(fitted.texts)]])
        kept, trust = self._kept(fitted)
        rng = np.random.default_rng([seed, len(seen)])
        drawn = draw(n, goal, differing(fitted.candidates), open_, trust, rng)
        items = [
            self._item(fitted, index, found, float(trust[found[0]]), int(kept[found[0]]))
            for index, found in enumerate(drawn)
        ]
        parts, before = self._parts, self.learned
        context = context_of(
            fitted.candidates,
            () if before is None else before.judged,
            fitted.rows,
            parts.labels,
            parts.instructions,
        )
        made = Review(items, parts.labels.names, len(fitted.texts), parts.model, context)
        made.asks = self.ask
        return made

    def _item(
        self, fitted: _PoolFit, index: int, drawn: Drawn, trust: float, kept: int
    ) -> ReviewItem:
        row, goal, probability, floor = drawn
        found, names = fitted.neighborhoods, (*self._parts.labels.names, None)
        given: dict[str | None, list[str]] = {}
        for candidate in fitted.candidates:
            given.setdefault(names[int(candidate.labels[row])], []).append(candidate.name)
        if self.learned is not None:
            given.setdefault(names[kept], []).append("what was learned so far")
        own = found.predictions[row]
        near = []
        for place, similarity in zip(
            found.neighbors[row, :_SHOWN].tolist(),
            found.similarities[row, :_SHOWN].tolist(),
            strict=True,
        ):
            if place >= 0:
                said = found.predictions[place]
                near.append(
                    Neighbor(
                        found.entries[place].text,
                        similarity,
                        None if said is None else said.label,
                        None if said is None else said.confidence,
                    )
                )
        return ReviewItem(
            index=index,
            text=found.entries[row].text,
            hash=found.entries[row].hash,
            own_label=None if own is None else own.label,
            candidates=tuple((label, tuple(by)) for label, by in given.items()),
            trust=None if np.isnan(trust) else trust,
            neighbors=tuple(near),
            goal=goal,
            probability=probability,
            floor=floor,
        )

    async def ask(
        self, review: Review, model: str | Provider | WireProvider | Referee, shown: str = "all"
    ) -> None:
        """Let a referee answer the open items of a review."""
        checked_choice("shown", shown, ("all", "candidates"))
        await self._parts.ready()
        referee = model if isinstance(model, Referee) else self.referee_of(model)
        items = [item for item in review if item.source is None]
        given = [[label for label, _ in item.candidates if label is not None] for item in items]
        answers = await referee.ask(
            [PoolText(item.text, item.hash) for item in items],
            given if shown == "candidates" else None,
        )
        for item, answer in zip(items, answers, strict=True):
            if isinstance(answer, Prediction) and answer.label is not None:
                review.answer(item.index, answer.label, "referee")
            elif isinstance(answer, Exception):
                _log.warning("the referee did not answer %r: %s", item.text[:60], answer)

    async def ask_the_referee(self) -> None:
        """Learn from a hundred disagreements that the client's referee judges, once.

        They are judged again when the pool has grown by half.
        """
        parts, known = self._parts, self.learned
        assert self.referee is not None
        if known is not None and any(j.source == "referee" for j in known.judged):
            if len(parts.pool) < _GROWTH * known.texts:
                return
        elif len(parts.pool) < _LEAST_TEXTS:
            return
        review = await self.review(_REFEREED, "decide", 0)
        await self.ask(review, self.referee)
        if review.judged:
            await self.learn_from(review)

    async def referee_cost(self, entries: Sequence[PoolText]) -> tuple[int, float | None]:
        """Return the most calls that the referee needs for a run, and US dollars."""
        parts, known = self._parts, self.learned
        referee = self.referee
        assert referee is not None
        texts = [entry.text for entry in entries]
        first = known is None or not any(j.source == "referee" for j in known.judged)
        n = min(_REFEREED, len(texts)) if first else 0
        asked = texts[:n] + texts[: int(parts.escalate * len(texts))]
        estimator = Estimator(
            referee.predictor,
            parts.store,
            parts.pool,
            StandardPrompting(),
            neighbors=False,
            texts_per_call=1,
            price=referee.price,
        )
        cost = await estimator.of_calls(asked)
        return cost.calls, cost.usd

    async def escalate(self, neighborhoods: Neighborhoods) -> str:
        """Let the referee label the least trusted part of a run; returns what was done."""
        parts, learned, applied = self._parts, self.learned, neighborhoods.applied
        assert self.referee is not None
        if learned is None or applied is None:
            return "nothing was escalated: there is too little to judge the referee by"
        if not learned.referee_better:
            backed, alone = learned.dissent
            return (
                f"nothing was escalated: {self.referee.model} is not shown to be better; where it "
                f"contradicted {parts.model}, others agreed with it {backed} times, and not {alone}"
            )
        n = int(parts.escalate * neighborhoods.n_own)
        trust = np.nan_to_num(applied.trust, nan=-1.0)
        trust[list(neighborhoods.judges)] = np.inf
        places = np.argsort(trust, kind="stable")[:n]
        places = places[np.isfinite(trust[places])]
        asked = [neighborhoods.entries[place] for place in places.tolist()]
        answers = await self.referee.ask(asked)
        said = {}
        for place, answer in zip(places.tolist(), answers, strict=True):
            if isinstance(answer, Prediction) and answer.label is not None:
                said[place] = (parts.labels.names.index(answer.label), "referee")
        judge(neighborhoods, said)
        return f"{self.referee.model} labeled the {len(said):,} least trusted texts"

    async def learn_from(self, review: Review) -> Learned:
        """Learn from the answers of a review, and from all earlier ones."""
        if review.labels != self._parts.labels.names:
            raise InvalidInputError("the review has another label set than this client")
        if not review.judged:
            raise InvalidInputError("the review has no answer yet; answer some of its items")
        last = review.judged[-1].index
        return await self._learn(
            [
                Judgment(
                    item.text,
                    item.hash,
                    item.answer,
                    item.source,
                    item.probability,
                    item.floor,
                    review.texts,
                )
                for item in review[: last + 1]
            ]
        )

    async def learn_labels(self, texts: Iterable[str], labels: Sequence[str | None]) -> Learned:
        """Learn from the labels of texts that were chosen at random."""
        parts = self._parts
        given = await checked_texts(texts)
        if isinstance(labels, str) or len(labels) != len(given):
            raise InvalidInputError(f"there are {len(given)} texts; give a list of as many labels")
        said = list(values(labels, "labels"))
        if not said:
            raise InvalidInputError("there is no labeled text to learn from")
        for position, label in enumerate(said):
            if label is not None and (not isinstance(label, str) or label not in parts.labels):
                close = closest_label(label, parts.labels.names) if isinstance(label, str) else ""
                raise InvalidInputError(
                    f"label {position} is {label!r}, which is not in the label set{close}"
                )
        entries, places = await distinct(given)
        await parts.ready()
        neighborhoods = await parts.pipeline.prepare(entries, together=True)
        await parts.pipeline.predict_own(neighborhoods)
        size = max(len(parts.pool), len(entries))
        of_place = dict(zip(places.tolist(), said, strict=True))
        before = self.learned
        left = size - (len(before.judged) if before is not None else 0)
        return await self._learn(
            [
                Judgment(
                    entry.text,
                    entry.hash,
                    of_place[place],
                    "person",
                    chance := 1 / max(left - place, 1),
                    chance,
                    size,
                )
                for place, entry in enumerate(entries)
            ]
        )

    async def unlearn(self) -> bool:
        """Forget what was learned; returns whether there was anything."""
        parts = self._parts
        await parts.ready()
        drop = getattr(parts.store, "drop_learned", None)
        if drop is not None:
            await drop(_key(parts))
        known = self.learned is not None
        parts.pipeline.settings = parts.settings
        return known

    async def load(self) -> None:
        """Read what was learned from the store."""
        parts = self._parts
        get = getattr(parts.store, "get_learned", None)
        data = None if get is None else await get(_key(parts))
        if data is None:
            return
        try:
            learned = await asyncio.to_thread(Learned.from_bytes, data)
        except StoreError as error:
            _log.warning("%s; labels are those of the LLM and its neighbors", error)
            return
        parts.pipeline.settings = parts.settings.with_learned(learned)

    async def _learn(self, new: Sequence[Judgment]) -> Learned:
        async with self._lock:
            fitted = await self._fitted()
            before = self.learned
            judged = {j.hash: j for j in before.judged} if before is not None else {}
            for judgment in new:
                if judgment.source is not None or judgment.hash not in judged:
                    # a second judgment takes the place of the first, and its draw
                    old = judged.get(judgment.hash)
                    judged[judgment.hash] = (
                        judgment
                        if old is None
                        else replace(old, label=judgment.label, source=judgment.source)
                    )
            kept = await self._kept_by_settings(fitted)
            learned = await asyncio.to_thread(self._learned, fitted, tuple(judged.values()), kept)
            parts = self._parts
            put = getattr(parts.store, "put_learned", None)
            if put is not None:
                await put(_key(parts), await asyncio.to_thread(learned.to_bytes))
            # once, on success: a concurrent run uses the former settings
            parts.pipeline.settings = parts.settings.with_learned(learned)
        return learned

    def _learned(
        self, fitted: _PoolFit, judged: tuple[Judgment, ...], kept: NDArray[np.int32]
    ) -> Learned:
        texts, candidates = fitted.texts, fitted.candidates
        names = {name: i for i, name in enumerate(self._parts.labels.names)}
        none = self._parts.labels.none_label
        known = [j for j in judged if j.hash in fitted.rows]
        where = np.array([fitted.rows[j.hash] for j in known], dtype=np.int64)
        gold = np.array([class_of(j, names, none) for j in known], dtype=np.int32)
        drawn = np.array([j.probability is not None for j in known], dtype=np.bool_)
        rows, labels = where[drawn], gold[drawn]
        draws = draws_of([j for j in known if j.probability is not None], len(texts))
        support = differing(candidates)
        if draws.uniform:
            support = np.ones_like(support)
        verdict = choose(texts, candidates, rows, labels, draws, support)
        taught = texts.with_judged(where[gold >= 0], gold[gold >= 0])
        model, decides, bases = parts_of(verdict, candidates, taught, every=bool(drawn.all()))
        vote, _ = chosen_parts(candidates)
        learned = Learned(
            labels=self._parts.labels.names,
            name=verdict.chosen.name,
            decides=decides,
            gain=verdict.gain,
            judged=judged,
            texts=len(texts),
            model=model,
            vote=vote,
            bases=() if draws.uniform else bases,
            coefficients=np.tile([0.0, 1.0, 0.0], (5, 1)),
            trust=np.empty(0, dtype=np.float32),
            rows=rows,
            right=np.empty(0, dtype=np.bool_),
            person=np.array(
                [j.source != "referee" for j in known if j.probability is not None], dtype=np.bool_
            ),
            draws=draws,
            dissent=dissent_of(known, where, gold, candidates),
        )
        if decides == "vote":
            kept = verdict.chosen.labels
        label = learned.apply(taught, kept).label
        found = model.probabilities(taught)
        right = (label[rows] == labels) & (labels >= 0)
        coefficients = fit_trust(taught, found, label, rows, right, draws.probability)
        learned = replace(learned, coefficients=coefficients, right=right)
        trust = learned.trusts(taught, found, label).astype(np.float32)
        return replace(learned, trust=trust)

    def _kept(self, fitted: _PoolFit) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the labels that are kept now, as far as learned models give them, and trust."""
        learned, texts = self.learned, fitted.texts
        own = texts.own
        if learned is not None:
            names = {name: i for i, name in enumerate(self._parts.labels.names)}
            said = judged_labels(learned, names, self._parts.labels.none_label)
            at = [(row, said[key][0]) for key, row in fitted.rows.items() if key in said]
            pairs = np.array([p for p in at if p[1] >= 0], dtype=np.int64).reshape(-1, 2)
            texts = texts.with_judged(pairs[:, 0], pairs[:, 1].astype(np.int32))
            kept = own if learned.decides != "vote" else learned.vote.label(texts)
            applied = learned.apply(texts, kept)
            return applied.label, applied.trust
        model = default_model(fitted.candidates)
        found = model.probabilities(texts)
        trust = found[np.arange(len(texts)), np.maximum(own, 0)].astype(np.float64)
        return own, np.where(own >= 0, trust, 0.0)

    async def _kept_by_settings(self, fitted: _PoolFit) -> NDArray[np.int32]:
        """Return the labels that the settings of the client give without judgments."""
        found, settings = fitted.neighborhoods, self._parts.settings
        found.settings = settings
        if settings.policy is None:
            decision = settings.decision
            if decision is None:
                decision = (await asyncio.to_thread(found.diagnose)).decision
            found.decide(decision)
        await asyncio.to_thread(found.balance)
        return (await asyncio.to_thread(found.counted_vote, slice(0, found.n_own))).label

    async def _fitted(self) -> _PoolFit:
        """Return the candidates, fitted on the pool as it is."""
        parts = self._parts
        await parts.ready()
        found, vectors = await parts.pipeline.labeled_pool(_MOST_TEXTS, _NEIGHBORS)
        n = found.n_own
        if n < _LEAST_TEXTS:
            raise InvalidInputError(
                f"the pool has {n} texts with a prediction; label at least {_LEAST_TEXTS} first, "
                "by `classify_many` or `predict_pool`"
            )
        hashes = [entry.hash for entry in found.entries[:n]]
        own = found.answers()[0][:n].copy()
        digest = blake2b(b"".join(hashes) + own.tobytes()).digest()
        if self._last is not None and self._last.digest == digest:
            return self._last
        neighbors = np.where(found.neighbors < n, found.neighbors, -1)
        # missing ones last
        order = np.argsort(neighbors < 0, axis=1, kind="stable")
        texts = Texts(
            vectors,
            own,
            np.take_along_axis(neighbors, order, axis=1),
            np.take_along_axis(found.similarities, order, axis=1),
            folds_of(hashes),
            len(parts.labels.names),
        )
        candidates = await asyncio.to_thread(candidates_of, texts)
        for i, candidate in enumerate(candidates):
            if isinstance(candidate.model, HeadModel):
                model = rounded(candidate.model)
                candidates[i] = replace(candidate, model=model)
        self._last = _PoolFit(
            digest, found, texts, candidates, {key: row for row, key in enumerate(hashes)}
        )
        return self._last


def _key(parts: Components) -> bytes:
    """Return the key of what was learned: of the predictions and of the embedder."""
    name = embedder_name(parts.embedder).encode()
    return blake2b(parts.predictor.scope + name, digest_size=16).digest()
