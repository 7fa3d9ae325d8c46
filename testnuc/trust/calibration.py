"""Calibration: the chance that a label is right, by logistic regression (Platt 1999).

A regression of "the label is right" on the log odds that a model gives it and on other evidence,
weighted by a power of 1 / probability of drawing, and shrunk toward a prior. For a judged text it
is fitted without its fold. A head has a line alone, or a `SetRule`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from testnuc._base.arrays import Bools, Float32s, Float64s, Floats, Int32s, Int64s
from testnuc.trust.head import FOLDS
from testnuc.trust.model import NEIGHBORS, Texts


class Prior(NamedTuple):
    """The normal prior of each coefficient, float64[d], and lower bounds of the coefficients."""

    mean: Float64s
    precision: Float64s
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
#: Labels that are less probable do not count in the chance that a label applies.
_LEAST = 0.02
_GRID = np.arange(0.05, 0.951, 0.05)
#: Coefficients by which trust is the model's own probability.
UNCALIBRATED = np.array([0.0, 1.0, 0.0])


def log_odds(chance: Floats) -> Float64s:
    """Return the log odds of chances, finite also for 0 and 1."""
    p = np.clip(chance.astype(np.float64), _TINY, 1 - _TINY)
    return np.log(p / (1 - p))


def chance_of(odds: Floats, line: Sequence[float]) -> Float64s:
    """Return the chance that labels are right, float64[n], by their log odds and a line."""
    start, slope = line
    chances: Float64s = 1 / (1 + np.exp(-np.clip(start + slope * odds, -30, 30)))
    return chances


def fit_line(odds: Floats, right: Bools, weights: Floats) -> tuple[float, float]:
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


def by_fold(x: Float64s, right: Bools, weights: Floats, folds: Int64s, prior: Prior) -> Float64s:
    """Fit x, float64[m, d], to `right` for each fold on the others; returns float64[FOLDS, d]."""
    others = [folds != fold for fold in range(FOLDS)]
    return np.array([_logistic(x[at], right[at], weights[at], prior) for at in others])


def _logistic(x: Float64s, right: Bools, weights: Floats, prior: Prior) -> Float64s:
    """Return the coefficients with the highest posterior probability, float64[d]."""
    from scipy.optimize import minimize

    signed = x * np.where(right, 1.0, -1.0)[:, None]

    def loss(b: Float64s) -> tuple[float, Float64s]:
        odds = signed @ b
        away = b - prior.mean
        pull = prior.precision * away
        slope = pull - (signed * (weights / (1 + np.exp(odds)))[:, None]).sum(axis=0)
        size = (weights * np.logaddexp(0, -odds)).sum() + (prior.precision * away**2).sum() / 2
        return float(size), slope

    bounds = None if prior.least is None else [(low, None) for low in prior.least]
    best = minimize(loss, prior.mean, jac=True, method="L-BFGS-B", bounds=bounds)
    coefficients: Float64s = best.x
    return coefficients


def drawing_weights(probability: Float64s) -> Float64s:
    """Return the weight of each judged text, float64[m], by the probability of its draw."""
    weights = probability**-_WEIGHING
    result: Float64s = np.minimum(weights / weights.mean(), _HEAVIEST)
    return result


def chances(texts: Texts, found: Float32s, label: Int32s, coefficients: Float64s) -> Float64s:
    """Return the chance that each label is right, float64[b]; NaN for texts without one.

    `found`, float32[b, C], are the probabilities of a model, and `label`, int32[b], the kept
    labels. `coefficients`: float64[3], or those of each text, float64[b, 3].
    """
    odds = (_features(texts, found, label) * coefficients).sum(axis=1)
    return np.where(label >= 0, 1 / (1 + np.exp(-odds)), np.nan)


def fit_trust(
    texts: Texts, found: Float32s, label: Int32s, rows: Int64s, right: Bools, probability: Float64s
) -> tuple[Float64s, Float64s]:
    """Fit the coefficients of trust, float64[3]; returns them, and the trust of all texts.

    That of a judged text is by a fit without its fold. `found` and `label` are those of all texts,
    as for `chances`. `rows`, int64[m], were drawn at random, each with this `probability`.
    """
    if not len(rows):
        return UNCALIBRATED, chances(texts, found, label, UNCALIBRATED)
    z, weights = _features(texts, found, label)[rows], drawing_weights(probability)
    fitted = _logistic(z, right, weights, LABEL_PRIOR)
    of_text = np.tile(fitted, (len(texts), 1))
    folds = texts.folds[rows]
    of_text[rows] = by_fold(z, right, weights, folds, LABEL_PRIOR)[folds]
    return fitted, chances(texts, found, label, of_text)


def _features(texts: Texts, found: Float32s, label: Int32s) -> Float64s:
    """Return float64[b, 3]: one, log odds by the model, and share of the neighbors' votes."""
    b = np.arange(len(texts))
    given = np.maximum(label, 0)
    # the neighbors' labels as the LLM gave them: what the model does not know
    votes = texts.votes(texts.own, k=NEIGHBORS).astype(np.float64)
    total = votes.sum(axis=1)
    share = np.where(total > 0, votes[b, given] / np.maximum(total, _TINY), 0.5)
    return np.stack([np.ones(len(b)), log_odds(found[b, given]), share - 0.5], axis=1)


@dataclass(frozen=True, slots=True)
class SetRule:
    """How a head gives several labels.

    A label is given above one threshold. The chance that it applies follows from its probability by
    a line of log odds, and that all labels of a text are right by another one, `Head.curve`, from
    the product of these.
    """

    threshold: float
    #: Start and slope.
    of_label: tuple[float, float]

    @classmethod
    def fitted(cls, probabilities: Float32s, taught: Bools) -> Self:
        """Fit a rule on the labels that a head was taught.

        So judged texts, of which a certificate is made, do not choose which texts come first.
        `probabilities`, float32[n, C], are those of heads that were fitted without the text.
        """

        def jaccard(threshold: float) -> float:
            given = probabilities > threshold
            both, either = (given & taught).sum(axis=1), (given | taught).sum(axis=1)
            index = np.where(either > 0, both / np.maximum(either, 1), 1.0)
            return float(index.mean()) if len(taught) else 0.0

        likely = probabilities >= _LEAST
        odds, ones = log_odds(probabilities[likely]), np.ones(int(likely.sum()))
        return cls(max(_GRID.tolist(), key=jaccard), fit_line(odds, taught[likely], ones))

    def apply(self, probabilities: Float32s) -> tuple[Bools, Float32s, Float64s]:
        """Label n texts, by the probability float32[n, C] of each label alone.

        Returns the labels given, bool[n, C], the chance that each applies, and the log odds that
        all of a text are right, were they independent.
        """
        given = probabilities > np.float32(self.threshold)
        chances = chance_of(log_odds(probabilities), self.of_label)
        logs = np.log(np.where(given, chances, 1 - chances)).sum(axis=1)
        return given, chances.astype(np.float32), log_odds(np.exp(logs))
