"""Ways to label a set of texts, and what judged texts prove of a model that they teach.

Candidates need no judgment: where they differ from the LLM, a judgment tells most. The model that
the judged texts teach is made of them. It labels the texts where candidates differ, or all texts,
if that is proved to be better than the LLM alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from testnuc._base.arrays import Bools, Float32s, Int32s, Int64s
from testnuc._base.display import Brief
from testnuc.trust.calibration import drawing_weights
from testnuc.trust.evidence import Draws, Gain, gain_of
from testnuc.trust.head import OWN_CARE, fit_folds
from testnuc.trust.model import Ground, HeadModel, Texts, VoteModel, fit_model, one_hot, teach

#: The errors of both bounds together: 90 % confidence.
ALPHA = 0.1
#: In place of the right label of a text that was skipped; -1: none of the labels is right.
SKIPPED = -2
_LLM = "the LLM's own labels"
_MODEL = "neighbors and a model of your texts"
_SIZES = {0.0: "", 0.5: ", class priors halfway to equal", 1.0: ", equal class priors"}
#: The log odds that the LLM's own label gets beside the most careful model.
_MORE_CARE = 3.0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LabelCandidate(Brief):
    """A strategy of labeling, and its labels."""

    #: In plain words.
    name: str
    model: VoteModel | HeadModel
    #: int32[n]; -1 = none.
    labels: Int32s


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Verdict(Brief):
    """How texts are labeled by what judgments prove."""

    #: The LLM's own labels, unless a taught model is proved to be better. Labels of judged texts
    #: are those of a model that does not know their judgments.
    chosen: LabelCandidate
    #: Over all texts.
    gain: Gain
    #: Whether it may change texts on which no candidates differ.
    everywhere: bool = False
    #: float32[n, C], of a taught model that was chosen.
    probabilities: Float32s | None = None


def candidates_of(texts: Texts) -> list[LabelCandidate]:
    """Return the candidates, the LLM's own labels first; they do not depend on judgments."""
    found = [LabelCandidate(_LLM, VoteModel(0), texts.own)]
    vote = VoteModel(10, 2.0)
    name = "the vote of 10 neighbors, the LLM's own label counted twice"
    found.append(LabelCandidate(name, vote, vote.label(texts)))
    own = one_hot(texts.own, texts.n_classes)
    start = fit_folds(texts.vectors, own, texts.folds)
    plan = [(0.0, _MORE_CARE, 0, f"{_MODEL}, where both contradict the LLM clearly")]
    plan += [(power, OWN_CARE, 2, _MODEL + words) for power, words in _SIZES.items()]
    for power, care, rounds, name in plan:
        model = fit_model(texts, power=power, care=care, start=start, rounds=rounds)
        found.append(LabelCandidate(name, model, model.label(texts)))
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
    grounds: Sequence[Ground] | None = None,
) -> Verdict:
    """Teach a model, and take it where, or everywhere if, it is proved to be better than the LLM.

    Of two proved ways the one with the higher expected gain is taken. Both bounds hold together
    with 90 % confidence. `texts` have no judgments. `rows`, int64[m], are the judged texts in the
    order they were drawn, `labels`, int32[m], the right labels, -1 = none of them, `SKIPPED` =
    unknown: then each bound assumes what is worst for it. `grounds` are those of the heads among
    the candidates, if the choice is repeated.
    """
    own, known, drawn = candidates[0], labels >= 0, draws.drawn
    result = Verdict(own, Gain(0.0, 0.0, 0.0))
    if not (known & drawn).any():
        return result
    weights = np.ones(len(texts), dtype=np.float32)
    weights[rows[drawn]] = drawing_weights(draws.probability[drawn])
    judged = texts.with_judged(rows[known], labels[known])
    bases = chosen_parts(candidates)[1][1:]
    taught = teach(bases, judged, weights, None if grounds is None else grounds[1:])
    everywhere = taught.model.label_of(taught.probabilities, texts)
    differ = differing(candidates)
    name = f"{candidates[taught.base - len(bases)].name}, trained on the judged texts"
    where, proving = rows[drawn], draws.only(drawn)
    open_ = [
        (f"{name}, where strategies differ", np.where(differ, everywhere, own.labels), proving),
        (name, everywhere, proving.of_any_text(differ, where)),
    ]
    most = 0.0
    while open_:
        # Holm: what is proved hands its part of the error on
        alpha, left = ALPHA / len(open_), []
        for way in open_:
            called, found, drawn_as = way
            given, before, said = found[where], own.labels[where], labels[drawn]
            values = ((given == said).astype(np.float64) - (before == said)) * (said >= 0)
            unknown = (said == SKIPPED) & (given != before)
            gain = gain_of(values, drawn_as, alpha, unknown)
            expected = float((values / proving.probability).sum())
            if gain.low <= 0:
                left.append(way)
            elif expected > most:
                most = expected
                chosen = LabelCandidate(called, taught.model, found)
                result = Verdict(chosen, gain, called == name, taught.probabilities)
        if len(left) == len(open_):
            break
        open_ = left
    return result


def chosen_parts(candidates: Sequence[LabelCandidate]) -> tuple[VoteModel, tuple[HeadModel, ...]]:
    """Return the vote and the heads among the candidates, the most careful one first."""
    vote = next(c.model for c in candidates if isinstance(c.model, VoteModel) and c.model.k)
    return vote, tuple(c.model for c in candidates if isinstance(c.model, HeadModel))


def default_model(candidates: Sequence[LabelCandidate]) -> HeadModel:
    """Return the model behind trust where none was chosen."""
    return chosen_parts(candidates)[1][1]
