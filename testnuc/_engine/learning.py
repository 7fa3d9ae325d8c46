"""Learn from judgments of texts with one label."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from testnuc._engine.applying import said_of, texts_among
from testnuc._engine.judgment_arrays import (
    Judged,
    class_of,
    context_of,
    default_model,
    dissent_of,
    parts_of,
)
from testnuc._engine.learning_base import MOST_TEXTS, LearningBase, Offer, PoolFit
from testnuc.trust.applied import parts_by_level
from testnuc.trust.calibration import chances, fit_trust
from testnuc.trust.candidates import LabelCandidate, candidates_of, choose, differing
from testnuc.trust.certificates import wants_decisions
from testnuc.trust.learned import Learned, chosen_parts, rounded
from testnuc.trust.model import NEIGHBORS, HeadModel, most_texts
from testnuc.trust.review import GOALS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from testnuc._engine.neighborhoods import Neighborhoods
    from testnuc.trust.judgment import Judgment
    from testnuc.trust.model import Texts

__all__ = ["Learning"]


@dataclass(frozen=True, slots=True, eq=False)
class _Candidates:
    texts: Texts
    candidates: list[LabelCandidate]


class Learning(LearningBase[Learned, _Candidates]):
    """What a client learns from judgments of texts with one label."""

    _kind, _goals = Learned, GOALS

    def _goal(self, goal: str | None, before: Learned | None) -> str | None:
        if goal is None and before is not None and not wants_decisions(before, before.certify()):
            return "certify"
        return goal

    def _offer(
        self, fitted: PoolFit[_Candidates], before: Learned | None, open_: NDArray[np.bool_]
    ) -> Offer:
        parts, candidates = self._parts, fitted.fit.candidates
        names = (*parts.labels.names, None)
        kept, trust = self._kept(fitted, before)

        def shown(row: int) -> Iterable[tuple[str | None, Sequence[str]]]:
            given: dict[str | None, list[str]] = {}
            for candidate in candidates:
                given.setdefault(names[int(candidate.labels[row])], []).append(candidate.name)
            if before is not None:
                given.setdefault(names[int(kept[row])], []).append("what was learned so far")
            return given.items()

        judged = () if before is None else before.judged
        context = context_of(
            candidates, judged, fitted.rows, open_, parts.labels, parts.instructions
        )
        return Offer(trust, differing(candidates), shown, context)

    async def _from(self, judged: tuple[Judgment, ...]) -> Learned:
        fitted = await self._fitted()
        kept = await self._kept_by_settings(fitted)
        return await asyncio.to_thread(self._learned, fitted, judged, kept)

    def _learned(
        self,
        fitted: PoolFit[_Candidates],
        judgments: tuple[Judgment, ...],
        kept: NDArray[np.int32],
    ) -> Learned:
        texts, candidates = fitted.fit.texts, fitted.fit.candidates
        judged = Judged.of(judgments, fitted.rows)
        known, where, draws = judged.known, judged.rows, judged.draws
        gold = np.array(
            [class_of(j.label, j.source, self._parts.labels) for j in known], dtype=np.int32
        )
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
            judged=judgments,
            texts=len(texts),
            model=model,
            vote=vote,
            bases=() if proving.all_uniform else bases,
            coefficients=np.tile([0.0, 1.0, 0.0], (5, 1)),
            trust=np.empty(0, dtype=np.float32),
            rows=where,
            right=np.empty(0, dtype=np.bool_),
            person=judged.person,
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
        trust = chances(taught, found, label, learned.coefficients)
        learned = replace(learned, trust=trust.astype(np.float32))
        levels = parts_by_level(found, label, learned.tree)
        return learned.with_levels(trust, levels, label[where], gold)

    @staticmethod
    def _kept(
        fitted: PoolFit[_Candidates], learned: Learned | None
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the labels that are kept now, as far as learned models give them, and trust."""
        texts = fitted.fit.texts
        own = texts.own
        if learned is not None:
            said = said_of(fitted.neighborhoods, range(len(texts)), learned)
            pairs = [(row, label) for row, (label, _) in said.items() if label >= 0]
            judged = np.array(pairs, dtype=np.int64).reshape(-1, 2)
            texts = texts.with_judged(judged[:, 0], judged[:, 1].astype(np.int32))
            kept = own if learned.decides != "vote" else learned.vote.label(texts)
            applied = learned.apply(texts, kept)
            return applied.label, applied.trust
        model = default_model(fitted.fit.candidates)
        found = model.probabilities(texts)
        trust = found[np.arange(len(texts)), np.maximum(own, 0)].astype(np.float64)
        return own, np.where(own >= 0, trust, 0.0)

    async def _kept_by_settings(self, fitted: PoolFit[_Candidates]) -> NDArray[np.int32]:
        """Return the labels that the settings of the client give without judgments."""
        found = fitted.neighborhoods
        found.settings = self._parts.settings
        await asyncio.to_thread(found.decide_by_settings)
        await asyncio.to_thread(found.balance)
        return (await asyncio.to_thread(found.corrected_vote, slice(0, found.n_own))).label

    def _wanted(self) -> tuple[int, int]:
        return most_texts(len(self._parts.labels.names), MOST_TEXTS), NEIGHBORS

    def _fit(
        self, found: Neighborhoods, vectors: NDArray[np.float16], hashes: Sequence[bytes]
    ) -> _Candidates:
        n = len(hashes)
        texts = texts_among(found, np.arange(n), vectors, found.answers()[0][:n].copy())
        candidates = candidates_of(texts)
        for i, candidate in enumerate(candidates):
            if isinstance(candidate.model, HeadModel):
                candidates[i] = replace(candidate, model=rounded(candidate.model))
        return _Candidates(texts, candidates)
