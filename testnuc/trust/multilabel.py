"""What was learned from judged texts that can have several labels.

Candidates are the labels as they are; the vote or, if they are those of the vote, the LLM's own;
the vote with thresholds by judgments, and the vote with a head. One of them is taken if the betting
bounds of `testnuc.trust.evidence` prove that it raises the mean Jaccard index of a text. Trust is
calibrated in two steps, each without the fold of the text: that a label applies, by its score and
whether the LLM gave it; that all labels of a text are right, by the product of the former.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from testnuc._base.display import brief
from testnuc.errors import InvalidInputError
from testnuc.trust.calibration import LABEL_PRIOR, Prior, by_fold, log_odds
from testnuc.trust.certificates import LabelCertificate, certify, proved
from testnuc.trust.evidence import Draws, Gain, gain_of
from testnuc.trust.head import FOLDS, OneVsRest
from testnuc.trust.judgment import FromJudgments
from testnuc.trust.label_pairs import LabelPairs, Truth, fit_thresholds
from testnuc.trust.review import closest_label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from testnuc.trust.certificates import Certificate
    from testnuc.trust.judgment import Judgment

__all__ = ["AppliedSets", "JudgedSets", "MultilabelLearned", "learn_sets"]

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
class AppliedSets:
    """The labels of n texts by what was learned, beside their pairs."""

    __repr__ = brief

    #: float32[T], what speaks for the label.
    scores: NDArray[np.float32]
    #: bool[T].
    given: NDArray[np.bool_]
    #: float64[T], the chance that the label applies.
    chances: NDArray[np.float64]
    #: float64[n], the chance that all labels of the text are right.
    trust: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class JudgedSets:
    """Texts that were judged; those that were not drawn at random are known, but teach nothing."""

    __repr__ = brief

    #: int64[m], in the order they were drawn.
    rows: NDArray[np.int64]
    #: The right labels of each; None: skipped.
    right: Sequence[frozenset[int] | None]
    draws: Draws
    #: bool[m], whether a person judged it, or skipped it.
    person: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class MultilabelLearned(FromJudgments):
    """How texts with several labels are labeled since `TestNUC.learn`, and why. ``print`` it."""

    #: "settings": labels stay as they are without judgments; "llm"; "vote"; "thresholds" of the
    #: vote; "head": thresholds of the vote and a head.
    decides: Decides
    #: float32[FOLDS, C], the threshold of each label for the texts of each fold.
    limits: NDArray[np.float32]
    #: One for each fold, if `decides` is "head".
    heads: tuple[OneVsRest, ...]
    #: float64[FOLDS, 3] and float64[FOLDS, 2]: what trust is made of.
    of_label: NDArray[np.float64]
    of_text: NDArray[np.float64]
    #: int32[G], int32[G], float32[G], bool[G]: the text and the number of each given label, the
    #: chance that it applies, and whether a judgment says that it does.
    given_rows: NDArray[np.int32]
    given_labels: NDArray[np.int32]
    given_chances: NDArray[np.float32]
    given_right: NDArray[np.bool_]

    @property
    def thresholds(self) -> dict[str, float]:
        """The threshold of each label, the mean over the folds; {} if no threshold is learned."""
        if self.decides not in {"thresholds", "head"}:
            return {}
        return dict(zip(self.labels, self.limits.mean(axis=0).tolist(), strict=True))

    def certify(
        self, accuracy: float = 0.9, confidence: float = 0.9, *, label: str | None = None
    ) -> Certificate:
        """Return the trust above which texts have exactly their labels, proved by judged texts.

        Of the texts above it, at least the part `accuracy` have all of their labels and no other.

        Parameters
        ----------
        accuracy : float
        confidence : float
            Over the draw of the judged texts.
        label : str, optional
            Certify this label alone: of the texts that have it with at least this trust, the label
            is right for at least the part `accuracy`.

        Raises
        ------
        InvalidInputError
            The label is not in the label set.
        """
        if label is not None:
            return self._certified_label(label, accuracy, confidence)
        return self._certified(self.trust, self.right, accuracy, confidence)

    def _certified_label(self, label: str, accuracy: float, confidence: float) -> LabelCertificate:
        if label not in self.labels:
            raise InvalidInputError(
                f"the label {label!r} is not in the label set{closest_label(label, self.labels)}"
            )
        given = self.given_labels == self.labels.index(label)
        texts = self.given_rows[given]
        at = np.searchsorted(texts, self.rows)
        found = np.flatnonzero(np.append(texts, -1)[at] == self.rows)
        rows = at[found].astype(np.int64)
        # texts drawn at random from all are drawn at random from those with the label
        made = certify(
            self.given_chances[given].astype(np.float64),
            rows,
            self.given_right[given][rows],
            self.draws.uniform[found],
            self.person[found],
            accuracy=accuracy,
            confidence=confidence,
        )
        return LabelCertificate(**asdict(made), label=label)

    def apply(self, pairs: LabelPairs) -> AppliedSets:
        """Label texts."""
        given = _given(pairs, self.decides, self.limits)
        chances = _chances(pairs, self.decides, self.of_label)
        scores = pairs.scores(with_head=self.decides == "head")
        return AppliedSets(scores, given, chances, _trust(pairs, given, chances, self.of_text))

    def __str__(self) -> str:
        said = sum(j.source is not None for j in self.judged)
        proving = int(self.draws.drawn.sum())
        lines = [f"{said:,} of {self.texts:,} texts are judged."]
        if self.decides == "settings":
            lines.append(
                "No way to label is proved to be better than the labels as they are: they stay, "
                "but for the judged texts."
            )
        else:
            value, low, high = (100 * x for x in (self.gain.value, self.gain.low, self.gain.high))
            lines.append(
                f"Labels come from {self.name}: expected gain {value:+.1f} points of the Jaccard "
                f"index over all texts (from {low:+.1f} to {high:+.1f})."
            )
        thresholds = self.thresholds
        if thresholds:
            low_, high_ = (
                min(thresholds, key=thresholds.__getitem__),
                max(thresholds, key=thresholds.__getitem__),
            )
            lines.append(
                f"Thresholds are from {thresholds[low_]:.2f} ({low_!r}) to "
                f"{thresholds[high_]:.2f} ({high_!r})."
            )
        lines.append(
            "Trust is the chance that all labels of a text are right, calibrated on "
            f"{proving:,} judged texts."
            if proving
            else "Trust is not calibrated: no judged text was drawn at random."
        )
        lines.append(proved(self))
        return "\n".join(lines)

    def _packed(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        arrays: dict[str, NDArray[Any]] = {name: getattr(self, name) for name in _ARRAYS}
        if self.heads:
            arrays["heads"] = np.stack([h.weights for h in self.heads]).astype(np.float16)
        return {"decides": self.decides}, arrays

    @classmethod
    def _unpacked(cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        heads = arrays.pop("heads", np.empty(0))
        return {
            **arrays,
            "decides": header["decides"],
            "heads": tuple(OneVsRest(weights.astype(np.float32)) for weights in heads),
        }


def learn_sets(
    pairs: LabelPairs,
    judged: JudgedSets,
    labels: Sequence[str],
    usual: float,
    heads: Sequence[OneVsRest] = (),
    judgments: Sequence[Judgment] = (),
) -> MultilabelLearned:
    """Learn from judged texts.

    Parameters
    ----------
    pairs : LabelPairs
        Of all texts.
    judged : JudgedSets
    labels : sequence of str
    usual : float
        The threshold of the vote settings.
    heads : sequence of OneVsRest
        Behind `LabelPairs.heads`; empty: there is no head.
    judgments : sequence of Judgment
        All of them, kept in the result.
    """
    rows = judged.rows
    drawn, proving = judged.draws.drawn, judged.draws.only(judged.draws.drawn)
    known = np.array([labels is not None for labels in judged.right], dtype=np.bool_)
    truth = Truth.of(pairs.at(rows), [labels or frozenset() for labels in judged.right])
    taught = truth.at(np.flatnonzero(known & drawn))
    enough = (known & drawn).sum() >= _LEAST_JUDGED
    # what the labels are already is no candidate
    same = "llm" if (pairs.given == pairs.by_llm()).all() else "vote"
    tried = {kind: part for kind, (part, _) in _CANDIDATES.items() if kind != same}
    kinds = [
        kind
        for kind in tried
        if (kind != "head" or heads) and (enough or kind in {"settings", "llm", "vote"})
    ]
    limits = {
        kind: fit_thresholds(taught, len(labels), usual, with_head=kind == "head")
        if kind in {"thresholds", "head"}
        else np.full((FOLDS, len(labels)), usual, dtype=np.float32)
        for kind in kinds
    }
    total = sum(tried.values())
    before = truth.jaccard(truth.pairs.given)
    gains = {"settings": Gain(0.0, 0.0, 0.0)}
    for kind in kinds[1:]:
        after = truth.jaccard(_given(truth.pairs, kind, limits[kind]))
        values = np.where(known, after - before, 0.0)[drawn]
        gains[kind] = gain_of(values, proving, _ALPHA * tried[kind] / total)
    chosen = max(kinds, key=lambda kind: gains[kind].low)
    learned = MultilabelLearned(
        labels=tuple(labels),
        name=_CANDIDATES[chosen][1],
        decides=chosen,  # type: ignore[arg-type]
        gain=gains[chosen],
        judged=tuple(judgments),
        texts=len(pairs),
        limits=limits[chosen],
        heads=tuple(heads) if chosen == "head" else (),
        of_label=np.tile([0.0, 1.0, 0.0], (FOLDS, 1)),
        of_text=np.tile(_TEXT_PRIOR.mean, (FOLDS, 1)),
        trust=np.empty(0, dtype=np.float32),
        rows=rows,
        right=truth.exact(_given(truth.pairs, chosen, limits[chosen])) & known,
        person=judged.person,
        draws=judged.draws,
        given_rows=np.empty(0, dtype=np.int32),
        given_labels=np.empty(0, dtype=np.int32),
        given_chances=np.empty(0, dtype=np.float32),
        given_right=np.empty(0, dtype=np.bool_),
    )
    learned = _calibrated(learned, taught, learned.right[known & drawn])
    applied = learned.apply(pairs)
    given, of_pair = np.flatnonzero(applied.given), pairs.rows
    right = dict(zip(rows.tolist(), judged.right, strict=True))
    said = zip(of_pair[given].tolist(), pairs.labels[given].tolist(), strict=True)
    return replace(
        learned,
        trust=applied.trust.astype(np.float32),
        given_rows=of_pair[given].astype(np.int32),
        given_labels=pairs.labels[given],
        given_chances=applied.chances[given].astype(np.float32),
        given_right=np.array([c in (right.get(row) or ()) for row, c in said], dtype=np.bool_),
    )


def _calibrated(
    learned: MultilabelLearned, truth: Truth, exact: NDArray[np.bool_]
) -> MultilabelLearned:
    """Fit trust for each fold on the judged texts of the others."""
    if not len(exact):
        return learned
    pairs = truth.pairs
    folds, counts = pairs.folds, _counts(pairs, learned.decides)
    z, of_pair = _features(pairs, learned.decides)[counts], folds[pairs.rows][counts]
    of_label = by_fold(z, truth.right[counts], np.ones(len(z)), of_pair, LABEL_PRIOR)
    given = _given(pairs, learned.decides, learned.limits)
    odds = _text_odds(pairs, given, _chances(pairs, learned.decides, of_label))
    x = np.column_stack([np.ones(len(odds)), odds])
    of_text = by_fold(x, exact, np.ones(len(x)), folds, _TEXT_PRIOR)
    return replace(learned, of_label=of_label, of_text=of_text)


def _given(pairs: LabelPairs, kind: str, limits: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which labels a candidate gives, bool[T]."""
    if kind == "settings":
        return pairs.given
    return pairs.by_llm() if kind == "llm" else pairs.above(limits, with_head=kind == "head")


def _counts(pairs: LabelPairs, kind: str) -> NDArray[np.bool_]:
    """Return which pairs a candidate knows of, bool[T]: without a head, not those of a head alone.

    So trust is the same whether a run has a head or not.
    """
    return np.ones(len(pairs.labels), np.bool_) if kind == "head" else pairs.without_head()


def _features(pairs: LabelPairs, kind: str) -> NDArray[np.float64]:
    """Return float64[T, 3]: one, log odds by the score, and whether the LLM gave the label."""
    scores = pairs.scores(with_head=kind == "head")
    p = np.clip(scores.astype(np.float64), _NEAR, 1 - _NEAR)
    return np.stack([np.ones(len(p)), log_odds(p), pairs.own - 0.5], axis=1)


def _chances(pairs: LabelPairs, kind: str, of_label: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the chance that each label applies, float64[T]."""
    odds = (_features(pairs, kind) * of_label[pairs.folds[pairs.rows]]).sum(axis=1)
    return np.where(_counts(pairs, kind), 1 / (1 + np.exp(-odds)), 0.0)


def _text_odds(
    pairs: LabelPairs, given: NDArray[np.bool_], chances: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the log odds that all labels are right, were they independent, float64[n]."""
    logs = np.log(np.where(given, chances, 1 - chances))
    return log_odds(np.exp(np.bincount(pairs.rows, weights=logs, minlength=len(pairs))))


def _trust(
    pairs: LabelPairs,
    given: NDArray[np.bool_],
    chances: NDArray[np.float64],
    of_text: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the chance that all labels of each text are right, float64[n]."""
    start, slope = of_text[pairs.folds].T
    odds = start + slope * _text_odds(pairs, given, chances)
    return np.where(pairs.voted | pairs.answered, 1 / (1 + np.exp(-odds)), np.nan)
