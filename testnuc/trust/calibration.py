"""Calibration: maps a label's vote share to the probability that it is correct."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from testnuc.errors import InvalidInputError, MissingDependencyError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["Calibration", "TrustCurve", "calibrate", "fit_trust"]

#: With fewer texts an isotonic curve overfits.
_ISOTONIC_FROM = 500
_LEAST = 20


@dataclass(frozen=True, slots=True)
class Calibration:
    """A curve from share to probability; call it with a share."""

    #: "isotonic" or "platt".
    method: str
    shares: tuple[float, ...]
    chances: tuple[float, ...]
    #: The number of labeled texts that it was fitted on.
    texts: int

    def __call__(self, share: float) -> float:
        """Return the probability that a label with this share is correct."""
        return float(np.interp(share, self.shares, self.chances))


def calibrate(shares: ArrayLike, right: ArrayLike, *, method: str | None = None) -> Calibration:
    """Fit the probability that a label is correct, by its share, on labeled texts.

    Parameters
    ----------
    shares : float[n]
    right : bool[n]
    method : {"platt", "isotonic"}, optional
        Default: Platt's two parameters below 500 texts, an isotonic curve from there on.

    Raises
    ------
    InvalidInputError
        There are fewer than 20 texts, or all labels are right, or all are wrong.
    MissingDependencyError
        scikit-learn is not installed (extra ``trust``).
    """
    x = np.asarray(shares, dtype=np.float64)
    y = np.asarray(right, dtype=np.bool_)
    if len(x) < _LEAST or y.all() or not y.any():
        raise InvalidInputError(
            f"{len(x)} texts with {int(y.sum())} right labels cannot be calibrated on; give at "
            f"least {_LEAST}, some of them right and some wrong"
        )
    if method is None:
        method = "isotonic" if len(x) >= _ISOTONIC_FROM else "platt"
    if method not in {"isotonic", "platt"}:
        raise InvalidInputError(f"method is {method!r}; choose 'isotonic' or 'platt'")
    try:
        from sklearn.isotonic import IsotonicRegression
        from sklearn.linear_model import LogisticRegression
    except ImportError as exc:
        raise MissingDependencyError(
            "calibration needs scikit-learn: pip install 'testnuc[trust]'"
        ) from exc
    grid = np.linspace(0, 1, 101)
    if method == "isotonic":
        curve = IsotonicRegression(y_min=0, y_max=1, increasing=True, out_of_bounds="clip")
        chances = curve.fit(x, y).predict(grid)
    else:
        line = LogisticRegression(C=100.0).fit(x[:, None], y)
        # a negative slope would invert trust
        slope = max(float(line.coef_[0, 0]), 0.0)
        flat = slope == 0.0
        start = np.log(y.mean() / (1 - y.mean())) if flat else float(line.intercept_[0])
        chances = 1 / (1 + np.exp(-(start + slope * grid)))
    return Calibration(method, tuple(grid.tolist()), tuple(map(float, chances)), len(x))


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
