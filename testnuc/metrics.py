"""Accuracy, F1 and calibration error; F1, Jaccard index and exact match of several labels."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from testnuc._base.arrays import Array, Bools
from testnuc.errors import InvalidInputError

_BINS = 10


@dataclass(frozen=True, slots=True)
class ClassScore:
    """Precision, recall and F1 of one label; 0 if the denominator is 0."""

    label: str
    precision: float
    recall: float
    f1: float
    #: Number of texts with this gold label.
    support: int


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of predicted labels against gold labels."""

    texts: int
    #: Texts without a label, which count as errors.
    unlabeled: int
    accuracy: float
    #: Mean F1 over all labels that occur as gold or predicted label.
    macro_f1: float
    #: Sorted by label.
    per_class: tuple[ClassScore, ...]
    #: Expected calibration error in ten bins of equal width, over texts with a label and a
    #: confidence; None if no text has both.
    calibration_error: float | None
    #: Number of texts with a label and a confidence.
    with_confidence: int


def score(
    gold: Sequence[str],
    given: Sequence[str | None],
    confidences: Sequence[float | None] | None = None,
) -> Scores:
    """Score predicted labels against gold labels, the same texts in order.

    A label of None is none; a confidence is 0..1, or None if unknown.
    """
    if not gold:
        raise InvalidInputError("no text has a gold label; give at least one")
    if len(gold) != len(given) or (confidences is not None and len(confidences) != len(gold)):
        raise InvalidInputError(
            f"gold has {len(gold)} labels; labels and confidences must have the same length"
        )
    hit = np.array([right == said for right, said in zip(gold, given, strict=True)])
    per_class = _per_class(
        Counter(gold),
        Counter(said for said in given if said is not None),
        Counter(right for right, said in zip(gold, given, strict=True) if right == said),
    )
    stated = np.array(
        [
            np.nan if c is None or said is None else c
            for c, said in zip(confidences or [None] * len(gold), given, strict=True)
        ],
        np.float64,
    )
    has = ~np.isnan(stated)
    return Scores(
        texts=len(gold),
        unlabeled=sum(said is None for said in given),
        accuracy=float(hit.mean()),
        macro_f1=float(np.mean([of.f1 for of in per_class])),
        per_class=per_class,
        calibration_error=calibration_error(stated[has], hit[has], _BINS) if has.any() else None,
        with_confidence=int(has.sum()),
    )


def _per_class(
    support: Counter[str], count: Counter[str], hits: Counter[str]
) -> tuple[ClassScore, ...]:
    """Score each label, by its number of gold labels, of predictions, and of correct ones."""
    return tuple(
        ClassScore(
            name,
            hits[name] / count[name] if count[name] else 0.0,
            hits[name] / support[name] if support[name] else 0.0,
            2 * hits[name] / (support[name] + count[name]),
            support[name],
        )
        for name in sorted(support.keys() | count.keys())
    )


def calibration_error(confidences: Array, hit: Bools, bins: int) -> float:
    """Return the expected calibration error: mean |confidence - accuracy| over bins of equal width.

    Confidences are float[N], 0..1; `hit` is bool[N], whether the prediction is correct.
    """
    place = np.minimum((confidences * bins).astype(np.int64), bins - 1)
    gaps = np.abs(np.bincount(place, confidences) - np.bincount(place, hit))
    return float(gaps.sum() / len(confidences))


@dataclass(frozen=True, slots=True)
class MultilabelScores:
    """Scores of predicted labels against gold labels, where a text has several labels or none."""

    texts: int
    #: Texts whose labels are unknown: no label in F1, an error in `exact_match` and `jaccard`.
    unlabeled: int
    #: F1 over all pairs of text and label.
    micro_f1: float
    #: Mean F1 over all labels that occur as gold or predicted label.
    macro_f1: float
    #: Mean of common labels over all labels of a text; 1 if it has none and gets none.
    jaccard: float
    #: Part of the texts that get exactly their labels.
    exact_match: float
    #: Sorted by label.
    per_class: tuple[ClassScore, ...]


def score_multilabel(
    gold: Sequence[Collection[str]], given: Sequence[Collection[str] | None]
) -> MultilabelScores:
    """Score the predicted labels of texts, None = unknown, against their gold labels.

    >>> scores = score_multilabel([["a", "b"], []], [["a"], []])
    >>> round(scores.micro_f1, 3), scores.jaccard, scores.exact_match
    (0.667, 0.75, 0.5)
    """
    if not gold or len(gold) != len(given):
        raise InvalidInputError(
            f"gold has {len(gold)} texts, and {len(given)} have predicted labels; give as many, "
            "at least one"
        )
    support, count, hits = Counter[str](), Counter[str](), Counter[str]()
    jaccard = exact = 0.0
    for right, said in zip(map(set, gold), given, strict=True):
        found = set() if said is None else set(said)
        support.update(right)
        count.update(found)
        hits.update(right & found)
        if said is not None:
            jaccard += len(right & found) / len(right | found) if right | found else 1.0
            exact += right == found
    per_class = _per_class(support, count, hits)
    pairs = support.total() + count.total()
    return MultilabelScores(
        texts=len(gold),
        unlabeled=sum(said is None for said in given),
        micro_f1=2 * hits.total() / pairs if pairs else 0.0,
        macro_f1=sum(of.f1 for of in per_class) / max(len(per_class), 1),
        jaccard=jaccard / len(gold),
        exact_match=exact / len(gold),
        per_class=per_class,
    )
