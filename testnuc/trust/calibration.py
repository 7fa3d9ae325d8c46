"""Calibration: the probability that a label is right, from log odds that speak for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from testnuc._base.display import brief

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["TrustCurve", "fit_trust"]

#: Standard deviation of the prior of each slope and of the intercept.
_PRIOR_SPREAD = 1.0
_NEWTON_STEPS = 20


@dataclass(frozen=True, slots=True, eq=False)
class TrustCurve:
    """The probability that a label is right, by log odds that speak for it.

    Parameters
    ----------
    slopes : float64[F, 1 + d]
        By fold; the first column is the intercept.
    """

    __repr__ = brief

    slopes: NDArray[np.float64]

    def __call__(
        self, features: NDArray[np.floating], folds: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return float64[n], each text by the curve that was fitted without its fold."""
        slopes = self.slopes[folds]
        odds = slopes[:, 0] + (slopes[:, 1:] * features).sum(axis=1)
        chances: NDArray[np.float64] = 1 / (1 + np.exp(-np.clip(odds, -30, 30)))
        return chances


def fit_trust(
    features: NDArray[np.floating],
    right: NDArray[np.bool_],
    weights: NDArray[np.floating],
    folds: NDArray[np.int64],
    *,
    n_folds: int,
) -> TrustCurve:
    """Fit the probability that a label is right by logistic regression, each fold on the others.

    The prior is "the first feature is right as it is": slope 1, all else 0. Few judgments move it
    little, and without judgments it stays.

    Parameters
    ----------
    features : float[m, d]
        Log odds of judged texts.
    right : bool[m]
    weights : float[m]
        1 / probability of drawing; scaled so that they sum to the effective number of texts.
    folds : int64[m]
    n_folds : int
    """
    x = np.column_stack([np.ones(len(right)), features]).astype(np.float64)
    prior = np.zeros(x.shape[1])
    prior[1] = 1.0
    slopes = np.empty((n_folds, x.shape[1]))
    for fold in range(n_folds):
        used = folds != fold
        slopes[fold] = _logistic(x[used], right[used], weights[used].astype(np.float64), prior)
    return TrustCurve(slopes)


def _logistic(
    x: NDArray[np.float64],
    right: NDArray[np.bool_],
    weights: NDArray[np.float64],
    prior: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the slopes with the highest posterior probability, by Newton's method."""
    slopes = prior.copy()
    if not len(x):
        return slopes
    # weights that differ much are worth fewer texts (Kish 1965)
    w = weights * weights.sum() / (weights**2).sum()
    precision = np.eye(len(prior)) / _PRIOR_SPREAD**2

    def loss(b: NDArray[np.float64]) -> float:
        odds = x @ b
        move = b - prior
        return float(w @ (np.logaddexp(0, odds) - right * odds) + move @ precision @ move / 2)

    for _ in range(_NEWTON_STEPS):
        chance = 1 / (1 + np.exp(-np.clip(x @ slopes, -30, 30)))
        slope = x.T @ (w * (chance - right)) + precision @ (slopes - prior)
        bend = (x * (w * chance * (1 - chance))[:, None]).T @ x + precision
        step = np.linalg.solve(bend, slope)
        size, before = 1.0, loss(slopes)
        while size > 1e-4 and loss(slopes - size * step) > before:
            size /= 2
        slopes = slopes - size * step
        if np.abs(step).max() < 1e-8:
            break
    return slopes
