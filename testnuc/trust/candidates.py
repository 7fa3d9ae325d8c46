"""Ways to label a set of texts, and what judged texts prove of a model that they teach.

Candidates need no judgment: where they differ from the LLM, a judgment tells most. The model that
the judged texts teach is made of them. It labels the texts where candidates differ, or all texts,
if that is proved to be better than the LLM alone. A referee's judgments count if its
contradictions of the LLM show that it is better, see `Dissent`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import log
from typing import NamedTuple

import numpy as np

from testnuc._base.arrays import Bools, Float32s, Int32s, Int64s
from testnuc._base.display import Brief
from testnuc.trust.calibration import drawing_weights
from testnuc.trust.evidence import Draws, paired_gain
from testnuc.trust.head import OWN_CARE, fit_folds
from testnuc.trust.model import Ground, HeadModel, Texts, VoteModel, fit_model, one_hot, teach
from testnuc.trust.shares import Share

#: The error of each bound, and at most that of a proof.
ALPHA = 0.1
#: The log odds that the LLM's own label gets beside a taught model, and the error of the test that
#: the model is better: a bolder model, which can do more harm, needs a better proof. Where gains
#: and losses are exactly equal the test errs a tenth more often than it says.
_BOLDNESS = ((log(2), 0.09), (log(4 / 3), 0.05), (0.0, 0.02))
#: Judged texts of a look that has all of the error. Who looks at more or fewer looks more often;
#: few texts prove little, and many prove a gain with any error.
_FIRST = 50
#: Judged texts that a model must win or lose, for anything to be proved: three are won by chance in
#: an eighth of the cases.
_LEAST = 4
#: In place of the right label of a text that was skipped; -1: none of the labels is right.
SKIPPED = -2
_LLM = "the LLM's own labels"
_MODEL = "neighbors and a model of your texts"
_SIZES = {0.0: "", 0.5: ", rare labels weighted up", 1.0: ", rare labels weighted up more"}
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
    #: Over all texts that some were drawn from.
    gain: Share
    #: Whether it may change texts on which no candidates differ.
    everywhere: bool = False
    #: float32[n, C], of a taught model that was chosen.
    probabilities: Float32s | None = None
    #: int32[n], `Taught.apart`, also where it was not chosen; empty: nothing was judged.
    apart: Int32s = field(default_factory=lambda: np.zeros(0, np.int32))


def candidates_of(texts: Texts) -> list[LabelCandidate]:
    """Return the candidates, the LLM's own labels first; they do not depend on judgments."""
    found = [LabelCandidate(_LLM, VoteModel(0), texts.own)]
    vote = VoteModel(10, 2.0)
    name = "the vote of 10 neighbors, the LLM's own label counted twice"
    found.append(LabelCandidate(name, vote, vote.label(texts)))
    start = fit_folds(texts.vectors, one_hot(texts.own, texts.n_classes), texts.folds)
    plan = [(0.0, _MORE_CARE, 0, f"{_MODEL}, where both contradict the LLM clearly")]
    plan += [(power, OWN_CARE, 2, _MODEL + words) for power, words in _SIZES.items()]
    for power, care, rounds, name in plan:
        model = fit_model(texts, power=power, care=care, start=start, rounds=rounds)
        found.append(LabelCandidate(name, model, model.label(texts)))
    return found


def differing(candidates: Sequence[LabelCandidate]) -> Bools:
    """Return which texts any candidate labels otherwise than the LLM, bool[n]."""
    own, *others = (candidate.labels for candidate in candidates)
    changed: Bools = np.any([labels != own for labels in others], axis=0)
    return changed


def choose(
    texts: Texts,
    candidates: Sequence[LabelCandidate],
    rows: Int64s,
    labels: Int32s,
    draws: Draws,
    grounds: Sequence[Ground] | None = None,
    protected: Sequence[int] = (),
    ends: tuple[int, int] | None = None,
) -> Verdict:
    """Teach a model, and take it where, or everywhere if, it is proved to be better than the LLM.

    Ways are tested one after the other, the most careful one first, and the last one before the
    first failure is taken: so they share an error of `ALPHA`. `texts` have no judgments. `rows`,
    int64[m], are the judged texts in the order they were drawn, `labels`, int32[m], the right
    labels, -1 = none of them, `SKIPPED` = unknown: then each bound assumes what is worst for it.
    `grounds` are those of the heads among the candidates, if the choice is repeated. Texts to which
    the LLM gives one of the labels `protected` keep it: what is proved is proved with them. `ends`
    are those of `ends_of_draws`: what is proved is so of the texts that some were drawn from.
    """
    own, known, drawn = candidates[0], labels >= 0, draws.drawn
    result = Verdict(own, Share(0.0, 0.0, 0.0))
    if not (known & drawn).any():
        return result
    weights = np.ones(len(texts), dtype=np.float32)
    weights[rows[drawn]] = drawing_weights(draws.probability[drawn])
    judged = texts.with_judged(rows[known], labels[known])
    bases = chosen_parts(candidates)[1][1:]
    random, fixed = draws.uniform[drawn].any(), None if grounds is None else grounds[1:]
    taught = teach(bases, judged, weights, fixed, everywhere=bool(random))
    result = replace(result, apart=taught.apart)
    name = f"{candidates[taught.base - len(bases)].name}, trained on the judged texts"
    # each part by its own draws: later texts may be unlike the first ones
    place, (first, end) = np.arange(len(texts)), ends or (0, len(texts))
    parts = [part for part in (place < first, (first <= place) & (place < end)) if part.any()]
    used = drawn | (draws.uniform & (rows >= first)) if first else drawn
    where, said, before = rows[used], labels[used], own.labels
    share = min(len(where) / _FIRST, _FIRST / len(where))
    differ, every = differing(candidates), ~np.isin(before, protected)
    # drawn from all texts alike, or more from those on which candidates differ
    steps = [(name, every, [every])]
    if not draws.uniform[used].all():
        some = (f"{name}, where strategies differ", differ & every, [differ])
        steps = [some, (name, every, [differ, ~differ])]
    for called, open_, strata in steps:
        proved = False
        for care, error in _BOLDNESS:
            model = replace(taught.model, care=care)
            found = np.where(open_, model.label_of(taught.probabilities, texts), before)
            changed, given = (found != before) & (place < end), found[where]
            values = ((given == said).astype(np.float64) - (before[where] == said)) * (said >= 0)
            of = [stratum & part for stratum in strata for part in parts]
            unknown = (said == SKIPPED) & changed[where]
            gained = partial(paired_gain, values, where, changed, of, unknown=unknown, texts=end)
            if np.count_nonzero(values) < _LEAST or gained(error=share * error).low <= 0:
                break
            proved = True
            gain = gained(error=ALPHA)
            chosen = LabelCandidate(called, model, found)
            result = Verdict(chosen, gain, open_ is every, taught.probabilities, taught.apart)
        if not proved:
            break
    return result


def chosen_parts(candidates: Sequence[LabelCandidate]) -> tuple[VoteModel, tuple[HeadModel, ...]]:
    """Return the vote and the heads among the candidates, the most careful one first."""
    vote = next(c.model for c in candidates if isinstance(c.model, VoteModel) and c.model.k)
    return vote, tuple(c.model for c in candidates if isinstance(c.model, HeadModel))


def default_model(candidates: Sequence[LabelCandidate]) -> HeadModel:
    """Return the model behind trust where none was chosen."""
    return chosen_parts(candidates)[1][1]


class Dissent(NamedTuple):
    """What a referee's contradictions of the LLM are worth.

    Neighbors and models of the texts ("candidates") do not know the referee. Three conditions:

    1. They back its contradictions more often than by chance: the exact binomial test. The chance
       is that of the same answers at other texts: the part of the judged texts that the LLM labels
       otherwise on which a candidate gives the referee's label. With two labels a candidate that
       differs backs every contradiction, so texts on which candidates agree must be judged, too.
    2. They back most of the contradictions where they differ from the LLM.
    3. The referee contradicts the LLM on at most twice the texts where candidates do. One of two
       that contradict each other is wrong, so a better referee contradicts it at most twice as
       often as the LLM is wrong.

    All three are evidence of neighbors and models, and not of people.
    """

    #: Contradictions where candidates differ from the LLM: one agrees with the referee, or none.
    backed: int
    alone: int
    #: Whether all three conditions hold.
    better: bool


def dissent_of(
    own: Int32s, others: Int32s, answers: Int32s, differing: Bools, part: float
) -> Dissent:
    """Compare a referee with the LLM, by the labels of the judged texts.

    `own`, int32[m], are the LLM's labels, -1 = none; `others`, int32[c, m], those of the other
    candidates; `answers`, int32[m], the referee's. `differing`, bool[m]: where candidates differ
    from the LLM, as they do in a `part` of all texts.
    """
    from scipy.stats import binom

    against = answers != own
    backed = against & (others == answers).any(axis=0)
    n, hits = int(against.sum()), int(backed.sum())
    alone = int((against & ~backed & differing).sum())
    if not n:
        return Dissent(0, 0, better=False)
    given = {int(label): (others == label).any(axis=0) for label in np.unique(answers[against])}
    by_label = {label: float(of[own != label].mean()) for label, of in given.items()}
    chance = float(np.mean([by_label[int(label)] for label in answers[against]]))
    informed = float(binom.sf(hits - 1, n, chance)) <= ALPHA
    rates = [float(against[at].mean()) if at.any() else 1.0 for at in (differing, ~differing)]
    plausible = part * rates[0] + (1 - part) * rates[1] <= 2 * part
    return Dissent(hits, alone, better=informed and plausible and hits > alone)
