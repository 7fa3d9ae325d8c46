"""The chance that a kept label is right.

A logistic regression of "the kept label is right" on the log odds that the model gives it and on
its share of the neighbors' votes (Platt 1999), weighted by a power of 1 / probability of drawing,
and shrunk toward a prior. It is fitted without the fold of each text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from testnuc.trust.calibration import LABEL_PRIOR, by_fold, log_odds
from testnuc.trust.head import FOLDS
from testnuc.trust.model import NEIGHBORS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from testnuc.trust.model import Texts

__all__ = ["chances", "fit_trust"]

#: Half the way between all judgments alike and unbiased weights, which vary more.
_WEIGHING = 0.5
_HEAVIEST = 5.0
_TINY = 1e-4


def chances(
    texts: Texts,
    found: NDArray[np.float32],
    label: NDArray[np.int32],
    coefficients: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the chance that each label is right, float64[b]; NaN for texts without one.

    `found`, float32[b, C], are the probabilities of a model, and `label`, int32[b], the kept
    labels.
    """
    z = _features(texts, found, label)
    odds = (z * coefficients[texts.folds[: len(texts)]]).sum(axis=1)
    return np.where(label >= 0, 1 / (1 + np.exp(-odds)), np.nan)


def fit_trust(
    texts: Texts,
    found: NDArray[np.float32],
    label: NDArray[np.int32],
    rows: NDArray[np.int64],
    right: NDArray[np.bool_],
    probability: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Fit the coefficients of trust for each fold, on the judged texts of the others.

    `found` and `label` are those of all texts, as for `chances`. `rows`, int64[m], were drawn at
    random, each with this `probability`.
    """
    if not len(rows):
        # the model's own probability
        return np.tile([0.0, 1.0, 0.0], (FOLDS, 1))
    z = _features(texts, found, label)[rows]
    weights = probability**-_WEIGHING
    weights = np.minimum(weights / weights.mean(), _HEAVIEST)
    return by_fold(z, right, weights, texts.folds[rows], LABEL_PRIOR)


def _features(
    texts: Texts, found: NDArray[np.float32], label: NDArray[np.int32]
) -> NDArray[np.float64]:
    """Return float64[b, 3]: one, log odds by the model, and share of the neighbors' votes."""
    b = np.arange(len(texts))
    given = np.maximum(label, 0)
    # the neighbors' labels as the LLM gave them: what the model does not know
    votes = texts.votes(texts.own, k=NEIGHBORS).astype(np.float64)
    total = votes.sum(axis=1)
    share = np.where(total > 0, votes[b, given] / np.maximum(total, _TINY), 0.5)
    return np.stack([np.ones(len(b)), log_odds(found[b, given]), share - 0.5], axis=1)
