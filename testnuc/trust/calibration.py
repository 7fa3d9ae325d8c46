"""Calibration: the chance that a label is right, by logistic regression (Platt 1999).

A regression of "the label is right" on the log odds that a model gives it and on other evidence,
weighted by a power of 1 / probability of drawing, and shrunk toward a prior. Of a text that is
judged, it is fitted without its fold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from testnuc.trust.head import FOLDS
from testnuc.trust.model import NEIGHBORS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from testnuc.trust.model import Texts


class Prior(NamedTuple):
    """The normal prior of each coefficient, float64[d], and lower bounds of the coefficients."""

    mean: NDArray[np.float64]
    precision: NDArray[np.float64]
    least: Sequence[float | None] | None = None


#: Of one, log odds and other evidence: models are a little too sure, and the evidence shows where.
LABEL_PRIOR = Prior(np.array([0.0, 0.7, 1.0]), np.array([0.5, 4.0, 4.0]), (None, 0, 0))
#: Of a line: "the log odds are right as they are", intercept 0 and slope 1.
_AS_IT_IS = Prior(np.array([0.0, 1.0]), np.array([1.0, 1.0]))
#: Half the way between all judgments alike and unbiased weights, which vary more.
_WEIGHING = 0.5
_HEAVIEST = 5.0
#: Chances are kept as far from 0 and 1.
_TINY = 1e-4


def log_odds(chance: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the log odds of chances, finite also for 0 and 1."""
    p = np.clip(chance.astype(np.float64), _TINY, 1 - _TINY)
    found: NDArray[np.float64] = np.log(p / (1 - p))
    return found


def chance_of(odds: NDArray[np.floating], line: Sequence[float]) -> NDArray[np.float64]:
    """Return the chance that labels are right, float64[n], by their log odds and a line."""
    start, slope = line
    chances: NDArray[np.float64] = 1 / (1 + np.exp(-np.clip(start + slope * odds, -30, 30)))
    return chances


def fit_line(
    odds: NDArray[np.floating], right: NDArray[np.bool_], weights: NDArray[np.floating]
) -> tuple[float, float]:
    """Fit the chance that a label is right as a function of log odds; returns start and slope.

    Few texts move the line little, and without texts it stays as the prior has it. `weights` are
    inverse probabilities of drawing; they are scaled to sum to the effective number of texts.
    """
    if not len(odds):
        return 0.0, 1.0
    x = np.column_stack([np.ones(len(odds)), odds]).astype(np.float64)
    # weights that differ much are worth fewer texts (Kish 1965)
    w = weights * weights.sum() / (weights**2).sum()
    start, slope = _logistic(x, right, w, _AS_IT_IS)
    return float(start), float(slope)


def by_fold(
    x: NDArray[np.float64],
    right: NDArray[np.bool_],
    weights: NDArray[np.floating],
    folds: NDArray[np.int64],
    prior: Prior,
) -> NDArray[np.float64]:
    """Fit x, float64[m, d], to `right` for each fold on the others; returns float64[FOLDS, d]."""
    others = [folds != fold for fold in range(FOLDS)]
    return np.array([_logistic(x[at], right[at], weights[at], prior) for at in others])


def _logistic(
    x: NDArray[np.float64], right: NDArray[np.bool_], weights: NDArray[np.floating], prior: Prior
) -> NDArray[np.float64]:
    """Return the coefficients with the highest posterior probability, float64[d]."""
    from scipy.optimize import minimize

    signed = x * np.where(right, 1.0, -1.0)[:, None]

    def loss(b: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        odds = signed @ b
        away = b - prior.mean
        pull = prior.precision * away
        slope = pull - (signed * (weights / (1 + np.exp(odds)))[:, None]).sum(axis=0)
        size = (weights * np.logaddexp(0, -odds)).sum() + (prior.precision * away**2).sum() / 2
        return float(size), slope

    bounds = None if prior.least is None else [(low, None) for low in prior.least]
    best = minimize(loss, prior.mean, jac=True, method="L-BFGS-B", bounds=bounds)
    found: NDArray[np.float64] = best.x
    return found


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
