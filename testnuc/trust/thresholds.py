"""The rule where a text can have several labels: all whose score is above a threshold.

Candidates are the labels as they are; the vote or, if they are those of the vote, the LLM's own;
the vote with thresholds by judgments, and the vote with a head. One of them is taken if the betting
bounds of `testnuc.trust.evidence` prove that it raises the mean Jaccard index of a text. Trust is
calibrated in two steps, each without the fold of the text: that a label applies, by its score and
whether the LLM gave it; that all labels of a text are right, by the product of the former.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from testnuc._base.display import brief
from testnuc.trust.calibration import LABEL_PRIOR, Prior, by_fold, log_odds
from testnuc.trust.evidence import Gain, gain_of
from testnuc.trust.head import FOLDS, LinearHead
from testnuc.trust.label_scores import counts, fit_thresholds, jaccard
from testnuc.voting import Labels, places_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testnuc._base.arrays import Array, Bools, Float32s, Float64s, Int32s
    from testnuc.trust.judgment import Judged
    from testnuc.trust.label_scores import LabelScores

#: The errors of all bounds together: 90 % confidence.
_ALPHA = 0.1
#: Judgments from which thresholds are fitted.
_LEAST_JUDGED = 20
#: Candidate -> its part of the error, in plain words.
_CANDIDATES = {
    "settings": (0.0, "the vote settings"),
    "llm": (1.0, "the LLM's own labels"),
    "vote": (1.0, "the vote"),
    "thresholds": (2.0, "the vote, with thresholds by your judgments"),
    "head": (2.0, "the vote and a model of your texts, with thresholds by your judgments"),
}
#: Of the chance that all labels of a text are right.
_TEXT_PRIOR = Prior(np.array([0.0, 1.0]), np.array([0.5, 4.0]), (None, 0))
#: Scores nearer to 0 and 1 count as this near.
_NEAR = 0.01

#: Arrays that are stored as they are.
_ARRAYS = (
    "limits",
    "of_label",
    "of_text",
    "given_rows",
    "given_labels",
    "given_chances",
    "given_right",
)

Decides = Literal["settings", "llm", "vote", "thresholds", "head"]


@dataclass(frozen=True, slots=True, eq=False)
class Thresholds:
    """Texts get all labels whose score is above a threshold, or those that they have anyway."""

    __repr__ = brief

    #: In words: what is trusted, and what a gain is measured in.
    trusted: ClassVar[str] = "all labels of a text are right"
    measured: ClassVar[str] = " of the Jaccard index"

    #: "settings": labels stay as they are without judgments; "llm"; "vote"; "thresholds" of the
    #: vote; "head": thresholds of the vote and a head.
    decides: Decides
    #: float32[FOLDS, C], the threshold of each label for the texts of each fold.
    limits: Float32s
    #: One for each fold, if `decides` is "head".
    heads: tuple[LinearHead, ...]
    #: float64[FOLDS, 3] and float64[FOLDS, 2]: what trust is made of.
    of_label: Float64s
    of_text: Float64s
    #: int32[G], int32[G], float32[G], bool[G]: the text and the number of each given label, the
    #: chance that it applies, and whether a judgment says that it does.
    given_rows: Int32s
    given_labels: Int32s
    given_chances: Float32s
    given_right: Bools

    def decide(self, scores: LabelScores) -> Labels:
        """Label texts; the candidates are those of the scores, in their order."""
        given = _given(scores, self.decides, self.limits)
        chances = _chances(scores, self.decides, self.of_label)
        return replace(
            scores.vote,
            share=scores.scores(with_head=self.decides == "head"),
            known=scores.vote.known | scores.answered,
            given=given,
            chance=chances,
            trust=_trust(scores, given, chances, self.of_text),
        )

    def apply(self, scores: LabelScores) -> Labels:
        """Label texts."""
        found = self.decide(scores)
        return Labels.pairs(
            len(found),
            found.rows,
            found.label,
            found.share,
            given=found.given,
            chance=found.chance,
            trust=found.trust,
            known=found.known,
        )

    def packed(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return its plain values and its arrays."""
        arrays: dict[str, Array] = {name: getattr(self, name) for name in _ARRAYS}
        if self.heads:
            arrays["heads"] = np.stack([h.weights for h in self.heads]).astype(np.float16)
        return {"decides": self.decides}, arrays

    @classmethod
    def unpacked(cls, header: dict[str, Any], arrays: dict[str, Array]) -> Thresholds:
        """Return what `packed` returned, from it."""
        heads = arrays.get("heads", np.empty(0))
        return cls(
            decides=header["decides"],
            heads=tuple(LinearHead(weights.astype(np.float32), several=True) for weights in heads),
            **{name: arrays[name] for name in _ARRAYS},
        )


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """What judged texts teach where texts can have several labels."""

    __repr__ = brief

    rule: Thresholds
    #: What gives the labels, in plain words.
    name: str
    gain: Gain
    #: float32[n], trust of all texts.
    trust: Float32s
    #: bool[m], whether each judged text has exactly its labels.
    right: Bools


def learn_thresholds(
    scores: LabelScores,
    judged: Judged,
    n_classes: int,
    usual: float,
    heads: Sequence[LinearHead] = (),
) -> Lesson:
    """Learn from judged texts; those that were not drawn at random are known, but teach nothing.

    Parameters
    ----------
    scores : LabelScores
        Of all texts.
    judged : Judged
    n_classes : int
    usual : float
        The threshold of the vote settings.
    heads : sequence of LinearHead
        Behind `LabelScores.heads`; empty: there is no head.
    """
    rows, truth, known = judged.rows, judged.right, judged.right.known
    drawn, proving = judged.draws.drawn, judged.draws.only(judged.draws.drawn)
    some, used = scores.at(rows), np.flatnonzero(known & drawn)
    taught, right = some.at(used), truth.at(used)
    enough = len(used) >= _LEAST_JUDGED
    # what the labels are already is no candidate
    same = "llm" if (scores.given == scores.by_llm()).all() else "vote"
    tried = {kind: part for kind, (part, _) in _CANDIDATES.items() if kind != same}
    kinds = [
        kind
        for kind in tried
        if (kind != "head" or heads) and (enough or kind in {"settings", "llm", "vote"})
    ]
    limits = {
        kind: fit_thresholds(taught, right, n_classes, usual, with_head=kind == "head")
        if kind in {"thresholds", "head"}
        else np.full((FOLDS, n_classes), usual, dtype=np.float32)
        for kind in kinds
    }
    total = sum(tried.values())
    before = jaccard(*counts(some, truth, some.given))
    gains = {"settings": Gain(0.0, 0.0, 0.0)}
    for kind in kinds[1:]:
        after = jaccard(*counts(some, truth, _given(some, kind, limits[kind])))
        values = np.where(known, after - before, 0.0)[drawn]
        gains[kind] = gain_of(values, proving, _ALPHA * tried[kind] / total)
    chosen = max(kinds, key=lambda kind: gains[kind].low)
    kept = limits[chosen]
    hits, count, sizes = counts(some, truth, _given(some, chosen, kept))
    exact = (hits == sizes) & (count == sizes) & known
    of_label, of_text = _calibrated(taught, right, exact[used], chosen, kept)
    labeled, chances = _given(scores, chosen, kept), _chances(scores, chosen, of_label)
    given, applies = np.flatnonzero(labeled), np.zeros(len(labeled), dtype=np.bool_)
    applies[places_of(scores.vote.starts, rows)[0]] = some.vote.among(truth)
    rule = Thresholds(
        decides=chosen,  # type: ignore[arg-type]
        limits=kept,
        heads=tuple(heads) if chosen == "head" else (),
        of_label=of_label,
        of_text=of_text,
        given_rows=scores.vote.rows[given].astype(np.int32),
        given_labels=scores.vote.label[given],
        given_chances=chances[given].astype(np.float32),
        given_right=applies[given],
    )
    trust = _trust(scores, labeled, chances, of_text).astype(np.float32)
    return Lesson(rule, _CANDIDATES[chosen][1], gains[chosen], trust, exact)


def _calibrated(
    scores: LabelScores, right: Labels, exact: Bools, kind: str, limits: Float32s
) -> tuple[Float64s, Float64s]:
    """Fit trust of labels and of texts for each fold on the judged texts of the others."""
    if not len(exact):
        return np.tile([0.0, 1.0, 0.0], (FOLDS, 1)), np.tile(_TEXT_PRIOR.mean, (FOLDS, 1))
    folds, used = scores.folds, _known_of(scores, kind)
    z, applies = _features(scores, kind)[used], scores.vote.among(right)[used]
    of_label = by_fold(z, applies, np.ones(len(z)), folds[scores.vote.rows][used], LABEL_PRIOR)
    odds = _text_odds(scores, _given(scores, kind, limits), _chances(scores, kind, of_label))
    x = np.column_stack([np.ones(len(odds)), odds])
    return of_label, by_fold(x, exact, np.ones(len(x)), folds, _TEXT_PRIOR)


def _given(scores: LabelScores, kind: str, limits: Float32s) -> Bools:
    """Return which labels a candidate gives, bool[T]."""
    if kind == "settings":
        return scores.given
    return scores.by_llm() if kind == "llm" else scores.above(limits, with_head=kind == "head")


def _known_of(scores: LabelScores, kind: str) -> Bools:
    """Return which pairs a candidate knows of, bool[T]: without a head, not those of a head alone.

    So trust is the same whether a run has a head or not.
    """
    return np.ones(len(scores.own), np.bool_) if kind == "head" else scores.without_head()


def _features(scores: LabelScores, kind: str) -> Float64s:
    """Return float64[T, 3]: one, log odds by the score, and whether the LLM gave the label."""
    p = scores.scores(with_head=kind == "head")
    p = np.clip(p.astype(np.float64), _NEAR, 1 - _NEAR)
    return np.stack([np.ones(len(p)), log_odds(p), scores.own - 0.5], axis=1)


def _chances(scores: LabelScores, kind: str, of_label: Float64s) -> Float64s:
    """Return the chance that each label applies, float64[T]."""
    odds = (_features(scores, kind) * of_label[scores.folds[scores.vote.rows]]).sum(axis=1)
    return np.where(_known_of(scores, kind), 1 / (1 + np.exp(-odds)), 0.0)


def _text_odds(scores: LabelScores, given: Bools, chances: Float64s) -> Float64s:
    """Return the log odds that all labels are right, were they independent, float64[n]."""
    logs = np.log(np.where(given, chances, 1 - chances))
    return log_odds(np.exp(np.bincount(scores.vote.rows, weights=logs, minlength=len(scores))))


def _trust(scores: LabelScores, given: Bools, chances: Float64s, of_text: Float64s) -> Float64s:
    """Return the chance that all labels of each text are right, float64[n]."""
    start, slope = of_text[scores.folds].T
    odds = start + slope * _text_odds(scores, given, chances)
    return np.where(scores.vote.known | scores.answered, 1 / (1 + np.exp(-odds)), np.nan)
