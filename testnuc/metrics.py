"""Accuracy, F1, Jaccard index and calibration error, of one label or several for each text."""

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
    """Scores of predicted labels against gold labels, one or several for each text."""

    texts: int
    #: Texts without a label, or whose labels are unknown: they count as errors.
    unlabeled: int
    #: Part of the texts that get exactly their labels.
    accuracy: float
    #: F1 over all pairs of text and label.
    micro_f1: float
    #: Mean F1 over all labels that occur as gold or predicted label.
    macro_f1: float
    #: Mean of common labels over all labels of a text; 1 if it has none and gets none.
    jaccard: float
    #: Sorted by label.
    per_class: tuple[ClassScore, ...]
    #: Expected calibration error in ten bins of equal width, over texts with a label and a
    #: confidence; None if no text has both.
    calibration_error: float | None
    #: Number of texts with a label and a confidence.
    with_confidence: int

    @property
    def exact_match(self) -> float:
        """The accuracy, as it is called where a text has several labels."""
        return self.accuracy


def score(
    gold: Sequence[str | Collection[str]],
    given: Sequence[str | Collection[str] | None],
    confidences: Sequence[float | None] | None = None,
) -> Scores:
    """Score predicted labels against gold labels, the same texts in order.

    A text has a label, or a collection of them; None is unknown. A confidence is 0..1, or None.

    >>> scores = score([["a", "b"], []], [["a"], []])
    >>> round(scores.micro_f1, 3), scores.jaccard, scores.exact_match
    (0.667, 0.75, 0.5)
    """
    if not gold:
        raise InvalidInputError("no text has a gold label; give at least one")
    if len(gold) != len(given) or (confidences is not None and len(confidences) != len(gold)):
        raise InvalidInputError(
            f"gold has {len(gold)} labels; labels and confidences must have the same length"
        )
    support, count, hits = Counter[str](), Counter[str](), Counter[str]()
    hit, jaccard = np.zeros((2, len(gold)))
    for at, (right, said) in enumerate(zip(map(_set, gold), map(_set, given), strict=True)):
        support.update(right)
        count.update(said)
        hits.update(right & said)
        if given[at] is not None:
            jaccard[at] = len(right & said) / len(right | said) if right | said else 1.0
            hit[at] = right == said
    stated = np.array(confidences or [None] * len(gold), np.float64)
    known = ~np.isnan(stated) & np.array([said is not None for said in given])
    error = calibration_error(stated[known], hit[known] > 0, _BINS) if known.any() else None
    pairs = support.total() + count.total()
    per_class = tuple(
        ClassScore(
            name,
            hits[name] / count[name] if count[name] else 0.0,
            hits[name] / support[name] if support[name] else 0.0,
            2 * hits[name] / (support[name] + count[name]),
            support[name],
        )
        for name in sorted(support.keys() | count.keys())
    )
    return Scores(
        texts=len(gold),
        unlabeled=sum(said is None for said in given),
        accuracy=float(hit.mean()),
        micro_f1=2 * hits.total() / pairs if pairs else 0.0,
        macro_f1=float(np.mean([of.f1 for of in per_class] or [0.0])),
        jaccard=float(jaccard.mean()),
        per_class=per_class,
        calibration_error=error,
        with_confidence=int(known.sum()),
    )


def _set(labels: str | Collection[str] | None) -> set[str]:
    return set() if labels is None else {labels} if isinstance(labels, str) else set(labels)


def calibration_error(confidences: Array, hit: Bools, bins: int) -> float:
    """Return the expected calibration error: mean |confidence - accuracy| over bins of equal width.

    Confidences are float[N], 0..1; `hit` is bool[N], whether the prediction is correct.
    """
    place = np.minimum((confidences * bins).astype(np.int64), bins - 1)
    gaps = np.abs(np.bincount(place, confidences) - np.bincount(place, hit))
    return float(gaps.sum() / len(confidences))
