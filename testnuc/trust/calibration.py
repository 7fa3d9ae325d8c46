"""Calibration: maps a label's vote share to the probability that it is correct."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from testnuc.errors import InvalidInputError, MissingDependencyError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["Calibration", "calibrate"]

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
