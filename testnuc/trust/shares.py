"""Shares of the texts that judgments say something of, with intervals: accuracy, and counts.

The texts are divided into strata, such as those that the LLM gave a label and the others. In each
stratum the judged texts that were drawn at random say how many of the texts that are not judged are
a hit: a beta-binomial with Jeffreys' prior. All judged texts count as what they are. Unlike normal
intervals this also holds for rare labels: `python -m bench count`.

Sources: Brown, Cai and DasGupta 2001, "Interval estimation for a binomial proportion" (Statistical
Science), for the prior; Cochran 1977, "Sampling techniques", chapter 5, for strata; Kish 1965,
"Survey sampling", for weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from testnuc._base.arrays import Bools, Float64s, Int64s

_JEFFREYS = 0.5
#: Simulated totals, and their seed: the same judgments have the same interval.
_SAMPLES, _SEED = 4_000, 0
#: A text with more copies than so many times the mean is in a stratum of such texts.
_HEAVY = 3.0


@dataclass(frozen=True, slots=True)
class Share:
    """A share of the texts, 0 to 1, with an interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} % ({100 * self.low:.1f} to {100 * self.high:.1f})"

    def less(self, other: Share) -> Share:
        """Return the difference to the share of other texts.

        Its interval is made of both intervals: Zou and Donner 2008, "Construction of confidence
        limits about effect measures" (Statistics in Medicine).
        """
        value = self.value - other.value
        return Share(
            value,
            value - hypot(self.value - self.low, other.high - other.value),
            value + hypot(self.high - self.value, other.value - other.low),
        )


@dataclass(frozen=True, slots=True, eq=False)
class JudgedSample:
    """The judged texts among n.

    Parameters
    ----------
    rows : int64[m]
        Their positions, each once.
    drawn : bool[m]
        Whether they are a random sample: drawn from all texts of their stratum, equally likely.
    missing : bool[m]
        Whether they were skipped. A skipped text may be a hit or not, which widens the interval.
    weights : float64[n], optional
        How many rows each text stands for. Default: one.
    """

    rows: Int64s
    drawn: Bools
    missing: Bools
    weights: Float64s | None = None

    def totals(
        self, strata: Int64s, hits: Bools, *, confidence: float = 0.95
    ) -> tuple[Float64s, Float64s, Float64s]:
        """Return the share of the texts that are a hit, and bounds; float64[C] each.

        Parameters
        ----------
        strata : int64[n, C]
            The stratum of each text, from 0 on, for each of C kinds of hits.
        hits : bool[m, C]
            Whether each judged text is a hit.
        confidence : float
            With this probability the share lies between the bounds, for each kind alone.
        """
        copies = np.ones(len(strata)) if self.weights is None else self.weights
        heavy = copies > _HEAVY * copies.mean()
        strata = 2 * strata + heavy[:, None]
        # as if all that were skipped are no hit, and as if they are one
        value, samples = self._simulated(strata, hits & ~self.missing[:, None], copies)
        more, most = value, samples
        if self.missing.any():
            more, most = self._simulated(strata, hits | self.missing[:, None], copies)
        total, tail = copies.sum(), (1 - confidence) / 2
        low = np.quantile(samples, tail, axis=0) / total
        high = np.quantile(most, 1 - tail, axis=0) / total
        return np.clip((value + more) / 2 / total, low, high), low, high

    def _simulated(
        self, strata: Int64s, hits: Bools, copies: Float64s
    ) -> tuple[Float64s, Float64s]:
        """Return the number of rows that are a hit, as estimated and simulated.

        float64[C] and float64[_SAMPLES, C].
        """
        rng = np.random.default_rng(_SEED)
        unjudged = np.ones(len(strata), dtype=np.bool_)
        unjudged[self.rows] = False
        value = copies[self.rows] @ hits
        total = np.tile(value, (_SAMPLES, 1))
        for stratum in np.unique(strata):
            inside = strata == stratum
            here = inside[self.rows] & self.drawn[:, None]
            # texts that stand for unlike numbers of rows are worth fewer draws (Kish)
            worth = here.sum(axis=0) * _evenness(copies, inside)
            drawn = copies[self.rows] @ here
            found = copies[self.rows] @ (here & hits)
            # without a draw: the rate of all kinds
            rate = np.full(len(drawn), found.sum() / max(drawn.sum(), 1.0))
            np.divide(found, drawn, out=rate, where=drawn > 0)
            k = worth * np.where(drawn > 0, rate, 0.0)
            chance = rng.beta(k + _JEFFREYS, worth - k + _JEFFREYS, (_SAMPLES, len(k)))
            left = inside & unjudged[:, None]
            rows = copies @ left
            value = value + rate * rows
            texts = np.ceil(left.sum(axis=0) * _evenness(copies, left)).astype(np.int64)
            total += rng.binomial(texts, chance) * (rows / np.maximum(texts, 1))
        return value, total


def _evenness(copies: Float64s, inside: Bools) -> Float64s:
    """Return 1 where the texts of a stratum have equally many copies, less the more they differ."""
    squares = inside.sum(axis=0) * (copies**2 @ inside)
    even: Float64s = np.divide((copies @ inside) ** 2, squares, out=0 * squares, where=squares > 0)
    return even
