"""Shares of the texts that judgments say something of, with intervals: accuracy, and counts.

The texts are divided into strata, such as those that the LLM gave a label and the others. In each
stratum the judged texts that were drawn at random say how many of the texts that are not judged are
a hit: a beta-binomial with Jeffreys' prior, moved a little towards the other labels. All judged
texts count as what they are. Unlike normal intervals this also holds for rare labels:
`python -m bench count`.

Sources: Brown, Cai and DasGupta 2001, "Interval estimation for a binomial proportion" (Statistical
Science), for the prior; Cochran 1977, "Sampling techniques", chapter 5, for strata; Kish 1965,
"Survey sampling", for weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import hypot, sqrt
from statistics import NormalDist

import numpy as np

from testnuc._base.arrays import Bools, Float64s, Int32s, Int64s

#: Standard errors of a 95 % interval.
Z_95 = 1.96
_JEFFREYS = 0.5
#: How much of the rate of the other kinds is in the prior of each.
_POOLED = 0.1
#: Fewest kinds for that: of a few, the others say too little.
_KINDS = 4
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

    def less(self, other: Share, texts: float, others: float, confidence: float = 0.95) -> Share:
        """Return the difference to the share of other texts.

        Its interval is made of both intervals (Zou and Donner 2008, "Construction of confidence
        limits about effect measures", Statistics in Medicine), and of chance: as if so many texts
        and so many others were drawn of all that might have been written. Two random halves of the
        same texts do not differ.
        """
        value = self.value - other.value
        mean = (texts * self.value + others * other.value) / (texts + others)
        z = NormalDist().inv_cdf((1 + confidence) / 2)
        chance = z * sqrt(mean * (1 - mean) * (1 / texts + 1 / others))
        return Share(
            value,
            value - hypot(self.value - self.low, other.high - other.value, chance),
            value + hypot(self.high - self.value, other.value - other.low, chance),
        )


class Population:
    """Texts, divided into strata for each of C kinds of hits.

    `of`, int64[n, C], is the stratum of each text, from 0 on; `weights`, float64[n], how many rows
    each stands for (default: one).
    """

    def __init__(self, of: Int64s, weights: Float64s | None = None) -> None:
        self.copies = np.ones(len(of)) if weights is None else weights
        heavy = self.copies > _HEAVY * self.copies.mean() if len(of) else np.zeros(0, np.bool_)
        self.of = 2 * of + heavy[:, None]
        self.used = np.unique(self.of).tolist()
        #: The `_sizes` of each of `used`.
        self.sizes = [_sizes(self.of == stratum, self.copies) for stratum in self.used]


@dataclass(frozen=True, slots=True, eq=False)
class JudgedSample:
    """The judged texts among n."""

    #: int64[m], their positions, each once.
    rows: Int64s
    #: bool[m], whether they are a random sample: drawn from their stratum, equally likely.
    drawn: Bools
    #: bool[m], whether they were skipped. Such a text may be a hit or not: the interval is wider.
    missing: Bools

    def totals(
        self, population: Population, hits: Bools, *, confidence: float = 0.95
    ) -> tuple[Float64s, Float64s, Float64s]:
        """Return the share of the texts that are a hit, and bounds; float64[C] each.

        `hits`, bool[m, C]: whether each judged text is one. Each kind's share alone lies between
        its bounds with this `confidence`.
        """
        # as if all that were skipped are no hit, and as if they are one
        tail = (1 - confidence) / 2
        value, low, high = self._bounds(population, hits & ~self.missing[:, None], tail)
        if self.missing.any():
            more, _, high = self._bounds(population, hits | self.missing[:, None], tail)
            value = (value + more) / 2
        total = population.copies.sum()
        return np.clip(value, low, high) / total, low / total, high / total

    def _bounds(
        self, population: Population, hits: Bools, tail: float
    ) -> tuple[Float64s, Float64s, Float64s]:
        """Return the number of rows that are a hit, and bounds; float64[C] each."""
        of, copies = population.of[self.rows], population.copies[self.rows]
        known = copies @ hits
        value = known.copy()
        cells = []
        for stratum, sizes in zip(population.used, population.sizes, strict=True):
            judged = of == stratum
            here = judged & self.drawn[:, None]
            drawn, found = copies @ here, copies @ (here & hits)
            # texts that stand for unlike numbers of rows are worth fewer draws
            worth = here.sum(axis=0) * _evenness(sizes)
            k = worth * _ratio(found, drawn)
            first, second = _prior(k, worth)
            left = sizes - _sizes(judged, copies)
            # without a draw: the rate of all kinds
            rate = np.where(drawn > 0, _ratio(found, drawn), found.sum() / max(drawn.sum(), 1.0))
            value += rate * left[1]
            texts = np.ceil(left[0] * _evenness(left) - 1e-9)
            each = left[1] / np.maximum(texts, 1)
            cells.append(np.stack([k + first, worth - k + second, texts, each], axis=1))
        low, high = np.transpose(
            [quantiles(tuple(map(tuple, kind)), tail) for kind in np.stack(cells, 1).tolist()]
        )
        return value, known + low, known + high


def _sizes(inside: Bools, copies: Float64s) -> Float64s:
    """Return how many texts are inside, for how many rows they stand, and the sum of squares."""
    return np.stack([inside.sum(axis=0), copies @ inside, copies**2 @ inside])


def _evenness(sizes: Float64s) -> Float64s:
    """Return 1 where all texts have equally many copies, less the more they differ (Kish)."""
    texts, rows, squares = sizes
    return _ratio(rows**2, texts * squares)


def _prior(k: Float64s, worth: Float64s) -> tuple[Float64s, Float64s]:
    """Return the parameters of the beta prior of each kind.

    Jeffreys' prior; of many kinds, a tenth of what would make its mean the rate of all others is
    added where that is small: how seldom the LLM misses other labels says something of each.
    """
    first = np.full(len(k), _JEFFREYS)
    if len(k) < _KINDS:
        return first, first
    rate = (k.sum() - k + _JEFFREYS) / (worth.sum() - worth + 2 * _JEFFREYS)
    more = _POOLED * _JEFFREYS * np.maximum(1 / rate - 2, 0)
    # to one digit: it is no more than a guess, and equal counts are simulated once
    scale = 10 ** np.floor(np.log10(np.maximum(more, 1e-3)))
    return first, _JEFFREYS + np.round(more / scale) * scale


@lru_cache(maxsize=1 << 14)
def quantiles(cells: tuple[tuple[float, ...], ...], tail: float) -> tuple[float, float]:
    """Return the quantiles of a simulated sum of beta-binomials.

    A cell has the two parameters of the beta, a number of texts, and how many rows each stands for.
    """
    total = np.zeros(_SAMPLES)
    for place, (first, second, texts, each) in enumerate(cells):
        total += each * _simulated(first, second, int(texts), place)
    low, high = np.quantile(total, (tail, 1 - tail)).tolist()
    return low, high


@lru_cache(maxsize=1 << 11)
def _simulated(first: float, second: float, texts: int, place: int) -> Int32s:
    """Return draws of a beta-binomial; those of places are independent."""
    rng = np.random.default_rng([_SEED, place])
    return rng.binomial(texts, rng.beta(first, second, _SAMPLES)).astype(np.int32)


def _ratio(part: Float64s, whole: Float64s) -> Float64s:
    """Return quotients; 0 where the divisor is."""
    quotients: Float64s = np.divide(part, whole, out=np.zeros_like(whole), where=whole > 0)
    return quotients


def stratified(texts: Int64s, judged: Int64s, hits: Int64s, *, confidence: float = 0.95) -> Share:
    """Return the share of the texts that are a hit, of a random sample in each stratum; int64[S].

    As `JudgedSample.totals`, of one kind and of numbers alone.
    """
    left = np.maximum(texts - judged, 0)
    rate = np.where(judged > 0, hits / np.maximum(judged, 1), hits.sum() / max(judged.sum(), 1))
    cells = np.stack([hits + _JEFFREYS, judged - hits + _JEFFREYS, left, np.ones(len(left))], 1)
    low, high = quantiles(tuple(map(tuple, cells.tolist())), (1 - confidence) / 2)
    known, total = float(hits.sum()), max(float((judged + left).sum()), 1.0)
    value = min(max(float(left @ rate), low), high)
    return Share((known + value) / total, (known + low) / total, (known + high) / total)
