"""Accuracy, F1 and calibration error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from testnuc.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["ClassScore", "Scores", "calibration_error", "score"]

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
    """Score predicted labels against gold labels.

    Parameters
    ----------
    gold : sequence of str
        Gold labels.
    given : sequence of str or None
        Predicted labels of the same texts; None: no label.
    confidences : sequence of float or None, optional
        0..1; None: unknown.

    Raises
    ------
    InvalidInputError
        The sequences are empty or differ in length.
    """
    if not gold:
        raise InvalidInputError("no text has a gold label; give at least one")
    if len(gold) != len(given) or (confidences is not None and len(confidences) != len(gold)):
        raise InvalidInputError(
            f"gold has {len(gold)} labels; labels and confidences must have the same length"
        )
    names = sorted({*gold, *(label for label in given if label is not None)})
    number = {name: i for i, name in enumerate(names)}
    expected = np.array([number[label] for label in gold])
    predicted = np.array([-1 if label is None else number[label] for label in given])
    hit = expected == predicted
    per_class = []
    for i, name in enumerate(names):
        hits = int((hit & (expected == i)).sum())
        support, count = int((expected == i).sum()), int((predicted == i).sum())
        f1 = 2 * hits / (support + count)
        precision, recall = hits / count if count else 0.0, hits / support if support else 0.0
        per_class.append(ClassScore(name, precision, recall, f1, support))
    stated = np.array(
        [np.nan if c is None else c for c in confidences or [None] * len(gold)], np.float64
    )
    has = (predicted >= 0) & ~np.isnan(stated)
    stated = stated[has]
    return Scores(
        texts=len(gold),
        unlabeled=int((predicted < 0).sum()),
        accuracy=float(hit.mean()),
        macro_f1=float(np.mean([of.f1 for of in per_class])),
        per_class=tuple(per_class),
        calibration_error=calibration_error(stated, hit[has], _BINS) if len(stated) else None,
        with_confidence=len(stated),
    )


def calibration_error(confidences: NDArray[Any], hit: NDArray[np.bool_], bins: int) -> float:
    """Return the expected calibration error: mean |confidence - accuracy| over bins.

    Parameters
    ----------
    confidences : float[N]
        0..1.
    hit : bool[N]
        Whether the prediction is correct.
    bins : int
        Number of bins of equal width.
    """
    place = np.minimum((confidences * bins).astype(np.int64), bins - 1)
    gaps = np.abs(np.bincount(place, confidences) - np.bincount(place, hit))
    return float(gaps.sum() / len(confidences))
