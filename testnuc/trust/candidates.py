"""Ways to label a set of texts, and the choice between them by judged texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from testnuc._base.display import brief
from testnuc.trust.evidence import Gain, gain_of
from testnuc.trust.head import fit_folds
from testnuc.trust.model import HeadModel, Texts, VoteModel, fit_model, one_hot, teach

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testnuc._base.arrays import Bools, Int32s, Int64s
    from testnuc.trust.evidence import Draws
    from testnuc.trust.model import Ground

#: The errors of all bounds together: 90 % confidence.
ALPHA = 0.1
#: Judgments from which a model that has learned from them is a candidate.
_TEACHABLE = 20
#: In place of the right label of a text that was skipped; -1: none of the labels is right.
SKIPPED = -2
_LLM = "the LLM's own labels"
_MODEL = "neighbors and a model of your texts"
_SIZES = {0.0: "", 0.5: ", class sizes evened out half the way", 1.0: ", class sizes evened out"}
#: Log odds that the LLM's own label gets: a model changes what it is sure of.
_CARE, _MORE_CARE = 2.0, 3.0


@dataclass(frozen=True, slots=True, eq=False)
class LabelCandidate:
    """A strategy of labeling, and its labels."""

    __repr__ = brief

    #: In plain words.
    name: str
    #: Its part of the error that all bounds share; 0: cannot be chosen by evidence.
    share: float
    model: VoteModel | HeadModel
    #: int32[n]; -1 = none.
    labels: Int32s
    #: The model that was taught by judged texts.
    base: HeadModel | None = None

    @property
    def teachable(self) -> bool:
        """Whether a model that learns from the judged texts is made of it."""
        return isinstance(self.model, HeadModel) and self.share > 1


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """Which candidate the judgments prove to be better than the LLM's own labels."""

    __repr__ = brief

    chosen: LabelCandidate
    #: Of the chosen one, over all texts.
    gain: Gain
    #: Of each candidate.
    gains: tuple[Gain, ...]


def candidates_of(texts: Texts) -> list[LabelCandidate]:
    """Return the candidates, the LLM's own labels first; they do not depend on judgments."""
    found = [LabelCandidate(_LLM, 0.0, VoteModel(0), texts.own)]
    vote = VoteModel(10, 2.0)
    name = "the vote of 10 neighbors, the LLM's own label counted twice"
    found.append(LabelCandidate(name, 1.0, vote, vote.label(texts)))
    own = one_hot(texts.own, texts.n_classes)
    start = fit_folds(texts.vectors, own, texts.folds)
    plan = [(0.0, _MORE_CARE, 0, 1.0, f"{_MODEL}, where both contradict the LLM clearly")]
    plan += [(power, _CARE, 2, 2.0, _MODEL + words) for power, words in _SIZES.items()]
    for power, care, rounds, share, name in plan:
        model = fit_model(texts, power=power, care=care, start=start, rounds=rounds)
        found.append(LabelCandidate(name, share, model, model.label(texts)))
    return found


def differing(candidates: Sequence[LabelCandidate]) -> Bools:
    """Return which texts any candidate labels otherwise than the LLM, bool[n]."""
    own = candidates[0].labels
    changed: Bools = np.zeros(len(own), dtype=np.bool_)
    for candidate in candidates[1:]:
        changed |= candidate.labels != own
    return changed


def choose(
    texts: Texts,
    candidates: Sequence[LabelCandidate],
    rows: Int64s,
    labels: Int32s,
    draws: Draws,
    support: Bools,
    *,
    taught: bool = True,
    grounds: Sequence[Ground | None] | None = None,
) -> Verdict:
    """Take the candidate whose gain over all texts has the highest lower bound above 0.

    The bounds hold together with 90 % confidence, at any number of judgments. `texts` have none.
    `rows`, int64[m], are the judged texts in the order they were drawn, `labels`, int32[m], the
    right labels, -1 = none of them, `SKIPPED` = unknown: then each bound assumes what is worst for
    it. `support`, bool[n], are the texts that could be drawn with at
    least the probability `draws.floor`. `taught`: whether a model that learns from the judged texts
    is a candidate, too. `grounds` are those of the candidates' models, if the choice is repeated.
    """
    known = labels >= 0
    teachable = [place for place, candidate in enumerate(candidates) if candidate.teachable]
    if not taught or known.sum() < _TEACHABLE:
        teachable = []
    # Any of them may be taught, so that all share the error, though only the best one is.
    total = sum(candidate.share for candidate in candidates)
    total += sum(candidates[place].share for place in teachable)
    own = candidates[0].labels[rows]

    def gained(candidate: LabelCandidate) -> Gain:
        if not candidate.share:
            return Gain(0.0, 0.0, 0.0)
        given = candidate.labels[rows]
        values = ((given == labels) & known).astype(np.float64) - ((own == labels) & known)
        unknown = (labels == SKIPPED) & (given != own)
        return gain_of(values, draws, ALPHA * candidate.share / total, unknown)

    every = list(candidates)
    gains = [gained(candidate) for candidate in candidates]
    if teachable:
        place = max(teachable, key=lambda i: gains[i].value)
        base, judged = candidates[place], texts.with_judged(rows[known], labels[known])
        assert isinstance(base.model, HeadModel)
        ground = None if grounds is None else grounds[place]
        model = teach(base.model, judged, ground)
        found = model.label_of(model.probabilities(judged, ground), judged)
        # where no text could be drawn nothing is known: the base's labels stay
        made = np.where(support, found, base.labels)
        name = f"{base.name}, trained on the judged texts"
        every.append(LabelCandidate(name, base.share, model, made, base.model))
        gains.append(gained(every[-1]))
    best = max(range(len(every)), key=lambda i: (gains[i].low, gains[i].value))
    return Verdict(every[best], gains[best], tuple(gains))


def chosen_parts(candidates: Sequence[LabelCandidate]) -> tuple[VoteModel, tuple[HeadModel, ...]]:
    """Return the vote and the heads among the candidates."""
    vote = next(c.model for c in candidates if isinstance(c.model, VoteModel) and c.model.k)
    return vote, tuple(c.model for c in candidates if isinstance(c.model, HeadModel))


def default_model(candidates: Sequence[LabelCandidate]) -> HeadModel:
    """Return the model behind trust where none was chosen: the first with full care."""
    return chosen_parts(candidates)[1][1]
