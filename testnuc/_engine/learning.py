"""Draw texts to be judged, learn from the judgments, and keep what was learned."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from testnuc._base.checks import checked_whole
from testnuc._engine.applying import said_of, texts_among
from testnuc._engine.judgment_arrays import (
    class_of,
    context_of,
    default_model,
    dissent_of,
    draws_of,
    parts_of,
)
from testnuc._engine.learning_base import MOST_TEXTS, LearningBase, check_enough
from testnuc.errors import InvalidInputError
from testnuc.trust.applied import parts_by_level
from testnuc.trust.candidates import LabelCandidate, candidates_of, choose, differing
from testnuc.trust.certificates import wants_decisions
from testnuc.trust.chances import fit_trust
from testnuc.trust.learned import Learned, chosen_parts, rounded
from testnuc.trust.model import NEIGHBORS, HeadModel, most_texts
from testnuc.trust.review import GOALS, Drawn, Review, ReviewItem, closest_label, draw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from testnuc._engine.components import Components
    from testnuc._engine.neighborhoods import Neighborhoods
    from testnuc.trust.judgment import Judgment
    from testnuc.trust.model import Texts

__all__ = ["Learning"]


@dataclass(frozen=True, slots=True, eq=False)
class _PoolFit:
    """The texts of the pool, and the candidates that were fitted on them."""

    digest: bytes
    neighborhoods: Neighborhoods
    texts: Texts
    candidates: list[LabelCandidate]
    #: Position of each text, by hash.
    rows: dict[bytes, int]


class Learning(LearningBase[Learned]):
    """What a client learns from judgments of texts with one label.

    Parameters
    ----------
    parts : Components
    """

    def __init__(self, parts: Components) -> None:
        super().__init__(parts)
        self._last: _PoolFit | None = None

    @property
    def learned(self) -> Learned | None:
        """What was learned so far."""
        return self._parts.pipeline.settings.learned

    async def review(self, n: int, goal: str | None, seed: int) -> Review:
        """Draw texts of the pool to be judged."""
        checked_whole("n", n, least=1)
        if goal is not None and goal not in GOALS:
            raise InvalidInputError(f"goal is {goal!r}; choose from {', '.join(GOALS)}, or None")
        await self._parts.ready()
        await self.load()
        fitted = await self._fitted()
        return await asyncio.to_thread(self._drawn, fitted, n, goal, seed, self.learned)

    def _drawn(
        self, fitted: _PoolFit, n: int, goal: str | None, seed: int, before: Learned | None
    ) -> Review:
        judged = () if before is None else before.judged
        seen = {j.hash for j in judged}
        if goal is None and before is not None and not wants_decisions(before, before.certify()):
            goal = "certify"
        entries = fitted.neighborhoods.entries
        open_ = np.array([e.hash not in seen for e in entries[: len(fitted.texts)]])
        kept, trust = self._kept(fitted)
        rng = np.random.default_rng([seed, len(seen)])
        drawn = draw(n, goal, differing(fitted.candidates), open_, trust, rng)
        items = [
            self._item(fitted, index, found, float(trust[found.row]), int(kept[found.row]))
            for index, found in enumerate(drawn)
        ]
        parts = self._parts
        context = context_of(
            fitted.candidates, judged, fitted.rows, parts.labels, parts.instructions
        )
        return Review(items, parts.labels.names, len(fitted.texts), parts.model, context)

    def _item(
        self, fitted: _PoolFit, index: int, drawn: Drawn, trust: float, kept: int
    ) -> ReviewItem:
        row = drawn.row
        found, names = fitted.neighborhoods, (*self._parts.labels.names, None)
        given: dict[str | None, list[str]] = {}
        for candidate in fitted.candidates:
            given.setdefault(names[int(candidate.labels[row])], []).append(candidate.name)
        if self.learned is not None:
            given.setdefault(names[kept], []).append("what was learned so far")
        return self._item_of(found, index, drawn, trust, given.items())

    def _checked(self, labels: Sequence[Any]) -> list[str | None]:
        names = self._parts.labels
        for position, label in enumerate(labels):
            if label is not None and (not isinstance(label, str) or label not in names):
                close = closest_label(label, names.names) if isinstance(label, str) else ""
                raise InvalidInputError(
                    f"label {position} is {label!r}, which is not in the label set{close}"
                )
        return list(labels)

    def _read(self, data: bytes) -> Learned:
        return Learned.from_bytes(data)

    async def _from(self, judged: tuple[Judgment, ...]) -> Learned:
        fitted = await self._fitted()
        kept = await self._kept_by_settings(fitted)
        return await asyncio.to_thread(self._learned, fitted, judged, kept)

    def _learned(
        self, fitted: _PoolFit, judged: tuple[Judgment, ...], kept: NDArray[np.int32]
    ) -> Learned:
        texts, candidates = fitted.texts, fitted.candidates
        known = [j for j in judged if j.hash in fitted.rows]
        where = np.array([fitted.rows[j.hash] for j in known], dtype=np.int64)
        gold = np.array(
            [class_of(j.label, j.source, self._parts.labels) for j in known], dtype=np.int32
        )
        draws = draws_of(known, len(texts))
        proving = draws.only(draws.drawn)
        rows, labels = where[draws.drawn], gold[draws.drawn]
        support = differing(candidates)
        if proving.all_uniform:
            support = np.ones_like(support)
        verdict = choose(texts, candidates, rows, labels, proving, support)
        taught = texts.with_judged(where[gold >= 0], gold[gold >= 0])
        model, decides, bases = parts_of(verdict, candidates, taught, every=len(rows) == len(known))
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
            bases=() if proving.all_uniform else bases,
            coefficients=np.tile([0.0, 1.0, 0.0], (5, 1)),
            trust=np.empty(0, dtype=np.float32),
            rows=where,
            right=np.empty(0, dtype=np.bool_),
            person=np.array([j.source != "referee" for j in known], dtype=np.bool_),
            draws=draws,
            dissent=dissent_of(known, where, gold, candidates),
        )
        if decides == "vote":
            kept = verdict.chosen.labels
        found = model.probabilities(taught)
        label = learned.label(taught, kept, found)
        right = (label[where] == gold) & (gold >= 0)
        coefficients = fit_trust(
            taught, found, label, rows, right[draws.drawn], proving.probability
        )
        learned = replace(learned, coefficients=coefficients, right=right)
        trust = learned.trusts(taught, found, label)
        learned = replace(learned, trust=trust.astype(np.float32))
        levels = parts_by_level(found, label, learned.tree)
        return learned.with_levels(trust, levels, label[where], gold)

    def _kept(self, fitted: _PoolFit) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the labels that are kept now, as far as learned models give them, and trust."""
        learned, texts = self.learned, fitted.texts
        own = texts.own
        if learned is not None:
            said = said_of(fitted.neighborhoods, range(len(texts)), learned)
            pairs = [(row, label) for row, (label, _) in said.items() if label >= 0]
            judged = np.array(pairs, dtype=np.int64).reshape(-1, 2)
            texts = texts.with_judged(judged[:, 0], judged[:, 1].astype(np.int32))
            kept = own if learned.decides != "vote" else learned.vote.label(texts)
            applied = learned.apply(texts, kept)
            return applied.label, applied.trust
        model = default_model(fitted.candidates)
        found = model.probabilities(texts)
        trust = found[np.arange(len(texts)), np.maximum(own, 0)].astype(np.float64)
        return own, np.where(own >= 0, trust, 0.0)

    async def _kept_by_settings(self, fitted: _PoolFit) -> NDArray[np.int32]:
        """Return the labels that the settings of the client give without judgments."""
        found = fitted.neighborhoods
        found.settings = self._parts.settings
        await asyncio.to_thread(found.decide_by_settings)
        await asyncio.to_thread(found.balance)
        return (await asyncio.to_thread(found.counted_vote, slice(0, found.n_own))).label

    async def _fitted(self) -> _PoolFit:
        """Return the candidates, fitted on the pool as it is."""
        parts = self._parts
        await parts.ready()
        most = most_texts(len(parts.labels.names), MOST_TEXTS)
        found, vectors = await parts.pipeline.pool_predictions.labeled(
            parts.pipeline.settings, most, NEIGHBORS
        )
        n = found.n_own
        check_enough(n)
        hashes = [entry.hash for entry in found.entries[:n]]
        own = found.answers()[0][:n].copy()
        digest = blake2b(b"".join(hashes) + own.tobytes()).digest()
        if self._last is not None and self._last.digest == digest:
            return self._last
        texts = texts_among(found, np.arange(n), vectors, own)
        candidates = await asyncio.to_thread(candidates_of, texts)
        for i, candidate in enumerate(candidates):
            if isinstance(candidate.model, HeadModel):
                model = rounded(candidate.model)
                candidates[i] = replace(candidate, model=model)
        self._last = _PoolFit(
            digest, found, texts, candidates, {key: row for row, key in enumerate(hashes)}
        )
        return self._last
