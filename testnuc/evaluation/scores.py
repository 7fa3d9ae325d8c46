"""How right labels are, and how well their confidence says so."""

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
    """How right one label is; 0 where there is nothing to divide by."""

    label: str
    #: Of the texts that were given the label, how many have it.
    precision: float
    #: Of the texts that have the label, how many were given it.
    recall: float
    f1: float
    #: Texts that have the label.
    support: int


@dataclass(frozen=True, slots=True)
class Scores:
    """How right the labels of some texts are."""

    texts: int
    #: Texts without a label: wrong, and of no label's precision.
    unlabeled: int
    accuracy: float
    #: Mean F1 of all labels that occur, as gold or as given.
    macro_f1: float
    #: By name.
    per_class: tuple[ClassScore, ...]
    #: Expected calibration error in ten bins of equal width: the mean distance between confidence
    #: and accuracy, over the texts with a label and a confidence; None: there are none.
    calibration_error: float | None
    #: How many these are.
    with_confidence: int


def score(
    gold: Sequence[str],
    given: Sequence[str | None],
    confidences: Sequence[float | None] | None = None,
) -> Scores:
    """Compare labels with gold labels.

    Parameters
    ----------
    gold : sequence of str
        The right labels.
    given : sequence of str or None
        Of the same texts; None: no label.
    confidences : sequence of float or None, optional
        0..1; None: unknown.

    Raises
    ------
    InvalidInputError
        There are no texts, or not as many of the one as of the other.
    """
    if not gold:
        raise InvalidInputError("there are no labeled texts to compare with")
    if len(gold) != len(given) or (confidences is not None and len(confidences) != len(gold)):
        raise InvalidInputError(f"{len(gold)} gold labels need as many labels and confidences")
    names = sorted({*gold, *(label for label in given if label is not None)})
    number = {name: i for i, name in enumerate(names)}
    right = np.array([number[label] for label in gold])
    said = np.array([-1 if label is None else number[label] for label in given])
    hit = right == said
    per_class = []
    for i, name in enumerate(names):
        hits = int((hit & (right == i)).sum())
        support, times = int((right == i).sum()), int((said == i).sum())
        f1 = 2 * hits / (support + times)
        precision, recall = hits / times if times else 0.0, hits / support if support else 0.0
        per_class.append(ClassScore(name, precision, recall, f1, support))
    sure_of = np.array(
        [np.nan if c is None else c for c in confidences or [None] * len(gold)], np.float64
    )
    has = (said >= 0) & ~np.isnan(sure_of)
    sure = sure_of[has]
    return Scores(
        texts=len(gold),
        unlabeled=int((said < 0).sum()),
        accuracy=float(hit.mean()),
        macro_f1=float(np.mean([of.f1 for of in per_class])),
        per_class=tuple(per_class),
        calibration_error=calibration_error(sure, hit[has], _BINS) if len(sure) else None,
        with_confidence=len(sure),
    )


def calibration_error(sure: NDArray[Any], hit: NDArray[np.bool_], bins: int) -> float:
    """Return the expected calibration error: the mean distance of confidence and accuracy.

    Parameters
    ----------
    sure : float[N]
        Confidences, 0..1.
    hit : bool[N]
        Whether what they are of is right.
    bins : int
        Of equal width; all of one bin are compared with each other.
    """
    place = np.minimum((sure * bins).astype(np.int64), bins - 1)
    gaps = np.abs(np.bincount(place, sure) - np.bincount(place, hit))
    return float(gaps.sum() / len(sure))
