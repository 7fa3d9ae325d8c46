"""The rule where a text can have several labels: all whose score is above a threshold.

Trust is calibrated in two steps, each without the fold of the text: that a label applies, by its
score and whether the LLM gave it; that all labels of a text are right, by the product of these.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np

from testnuc._base.arrays import Array, Bools, Float32s, Float64s, Int32s
from testnuc._base.display import Brief
from testnuc.trust.calibration import LABEL_PRIOR, Prior, by_fold, log_odds
from testnuc.trust.head import FOLDS, LinearHead
from testnuc.trust.label_scores import LabelScores
from testnuc.voting import Labels

Decides = Literal["settings", "llm", "vote", "thresholds", "head"]

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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Thresholds(Brief):
    """Texts get all labels whose score is above a threshold, or those that they have anyway."""

    #: In words: what is trusted, and what a gain is measured in.
    trusted: ClassVar[str] = "all labels of a text are right"
    measured: ClassVar[str] = " of the Jaccard index"

    #: "settings": labels stay as they are without judgments; "llm"; "vote"; "thresholds" of the
    #: vote; "head": thresholds of the vote and a head.
    decides: Decides
    #: float32[FOLDS, C], the threshold of each label for the texts of each fold.
    limits: Float32s
    #: One for each fold, if `decides` is "head".
    heads: tuple[LinearHead, ...] = ()
    #: float64[FOLDS, 3] and float64[FOLDS, 2]: what trust is made of.
    of_label: Float64s = field(default_factory=lambda: np.tile([0.0, 1.0, 0.0], (FOLDS, 1)))
    of_text: Float64s = field(default_factory=lambda: np.tile(_TEXT_PRIOR.mean, (FOLDS, 1)))
    #: int32[G], int32[G], float32[G], bool[G]: the text and the number of each given label, the
    #: chance that it applies, and whether a judgment says that it does.
    given_rows: Int32s = field(default_factory=lambda: np.empty(0, np.int32))
    given_labels: Int32s = field(default_factory=lambda: np.empty(0, np.int32))
    given_chances: Float32s = field(default_factory=lambda: np.empty(0, np.float32))
    given_right: Bools = field(default_factory=lambda: np.empty(0, np.bool_))
    #: Labels that stay where the vote settings give them.
    protected: tuple[int, ...] = ()

    @property
    def follows_settings(self) -> bool:
        """Whether other vote settings give other labels."""
        return self.decides != "llm"

    def uncalibrated(self) -> Thresholds:
        """Return the rule of the vote settings, without what judgments say of trust."""
        return Thresholds("settings", self.limits, protected=self.protected)

    def given(self, scores: LabelScores) -> Bools:
        """Return which labels texts get, bool[T]."""
        if self.decides == "settings":
            return scores.given
        if self.decides == "llm":
            found = scores.by_llm()
        else:
            found = scores.above(self.limits, with_head=self.decides == "head")
        return found | (scores.given & np.isin(scores.vote.label, self.protected))

    def decide(self, scores: LabelScores) -> Labels:
        """Label texts; the candidates are those of the scores, in their order."""
        given, chances = self.given(scores), self._chances(scores)
        start, slope = self.of_text[scores.folds].T
        odds = start + slope * _text_odds(scores, given, chances)
        known = scores.vote.known | scores.answered
        return replace(
            scores.vote,
            share=scores.scores(with_head=self.decides == "head"),
            known=known,
            given=given,
            chance=chances,
            trust=np.where(known, 1 / (1 + np.exp(-odds)), np.nan),
        )

    def calibrated(self, scores: LabelScores, right: Labels, exact: Bools) -> Thresholds:
        """Return the same with trust, fitted for each fold on the judged texts of the others.

        `right` are the labels of these texts, and `exact`, bool[m], whether they get just these.
        """
        if not len(exact):
            return self
        z, used = self._features(scores)
        folds, rows = scores.folds, scores.vote.rows[used]
        applies = scores.vote.among(right)[used]
        of_label = by_fold(z[used], applies, np.ones(len(rows)), folds[rows], LABEL_PRIOR)
        rule = replace(self, of_label=of_label)
        odds = _text_odds(scores, rule.given(scores), rule._chances(scores))  # noqa: SLF001
        x = np.column_stack([np.ones(len(odds)), odds])
        return replace(rule, of_text=by_fold(x, exact, np.ones(len(x)), folds, _TEXT_PRIOR))

    def _features(self, scores: LabelScores) -> tuple[Float64s, Bools]:
        """Return float64[T, 3]: one, log odds by the score, and whether the LLM gave the label.

        And which pairs it knows of, bool[T]: without a head, not those of a head alone, so that
        trust is the same whether a run has a head or not.
        """
        by_head = self.decides == "head"
        p = np.clip(scores.scores(with_head=by_head).astype(np.float64), _NEAR, 1 - _NEAR)
        z = np.stack([np.ones(len(p)), log_odds(p), scores.own - 0.5], axis=1)
        return z, np.ones(len(p), np.bool_) if by_head else scores.without_head()

    def _chances(self, scores: LabelScores) -> Float64s:
        """Return the chance that each label applies, float64[T]."""
        z, known = self._features(scores)
        odds = (z * self.of_label[scores.folds[scores.vote.rows]]).sum(axis=1)
        return np.where(known, 1 / (1 + np.exp(-odds)), 0.0)

    def apply(self, scores: LabelScores) -> Labels:
        """Label texts."""
        labels = self.decide(scores)
        return Labels.pairs(
            len(labels),
            labels.rows,
            labels.label,
            labels.share,
            given=labels.given,
            chance=labels.chance,
            trust=labels.trust,
            known=labels.known,
        )

    def packed(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return its plain values and its arrays."""
        arrays: dict[str, Array] = {name: getattr(self, name) for name in _ARRAYS}
        if self.heads:
            arrays["heads"] = np.stack([h.weights for h in self.heads]).astype(np.float16)
        return {"decides": self.decides, "protected": self.protected}, arrays

    @classmethod
    def unpacked(cls, header: dict[str, Any], arrays: dict[str, Array]) -> Thresholds:
        """Return what `packed` returned, from it."""
        heads = arrays.get("heads", np.empty(0))
        return cls(
            decides=header["decides"],
            heads=tuple(LinearHead(weights.astype(np.float32), several=True) for weights in heads),
            protected=tuple(map(int, header.get("protected", ()))),
            **{name: arrays[name] for name in _ARRAYS},
        )


def _text_odds(scores: LabelScores, given: Bools, chances: Float64s) -> Float64s:
    """Return the log odds that all labels are right, were they independent, float64[n]."""
    logs = np.log(np.where(given, chances, 1 - chances))
    return log_odds(np.exp(np.bincount(scores.vote.rows, weights=logs, minlength=len(scores))))
