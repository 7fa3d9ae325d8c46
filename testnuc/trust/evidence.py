"""What judged texts prove of a gain: a test of wins and losses, and bounds by betting.

Where a text has one label, other labels win or lose on it, and judged texts were drawn from strata,
equally likely in each: `paired_gain`. Its error is that of one look.

Else there are bets, `gain_of`. A text is drawn with a known probability and judged. Under the
hypothesis "the gain is at most mu" a bet on the judgment cannot be expected to win, so a capital
that grows to 1/alpha refutes it, with an error of at most alpha **whenever one stops** (Ville's
inequality). Several candidates share alpha by weights. Texts are drawn without replacement, with
unequal probabilities. An estimate is shrunk toward 0 as far as it is uncertain (positive-part
James-Stein).

Sources: Brown, Cai and DasGupta 2001, "Interval estimation for a binomial proportion" (Statistical
Science); Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting"
(JRSS B); Shekhar, Xu, Lipton, Liang and Ramdas 2023, "Risk-limiting financial audits via weighted
sampling without replacement" (UAI).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from testnuc._base.arrays import Array, Bools, Float64s, Int64s
from testnuc._base.display import Brief
from testnuc.trust.shares import Share, quantiles

#: Parts of the capital that are bet; the capital is the mean over them.
#: Bold ones prove a gain by few judgments.
BETS = np.array([0.5, 0.95])
#: Parameters of the beta prior that a text is won; a zero is a bit more.
_JEFFREYS, _NEVER = (0.5, 0.5), 1e-3
#: Gains that a bound is searched on, as parts of all texts.
#: The first step is tiny: where no gain at all is refuted, there is one.
_GRID = np.concatenate([[0.0, 1e-6], np.linspace(0.0025, 0.6, 96)])
#: An estimate is shrunk by so many of its variances: what is chosen since it looks good looks too
#: good.
_SHRINK = 2


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Draws(Brief):
    """How judged texts were drawn, in their order."""

    #: Size of the population.
    texts: int
    #: float64[m]: of each drawn text, at its draw, given the earlier ones. NaN: a judged text that
    #: was not drawn at random.
    probability: Float64s
    #: float64[m]: the lowest probability, at that draw, of any text that a candidate may change.
    floor: Float64s
    #: bool[m]: whether it was a draw from all texts that were left, all equally likely. A review
    #: tosses a coin for each draw, and one side is such a draw.
    uniform: Bools

    @classmethod
    def at_random(cls, texts: int, m: int, among: int | None = None) -> Draws:
        """Return m draws without replacement, all equally likely, from `among` or all texts."""
        left = (texts if among is None else among) - np.arange(m, dtype=np.float64)
        chance = 1 / np.maximum(left, 1)
        return cls(texts, chance, chance, np.full(m, among is None))

    def only(self, used: Bools) -> Draws:
        """Return some of the draws."""
        return Draws(self.texts, self.probability[used], self.floor[used], self.uniform[used])

    def arrays(self) -> dict[str, Array]:
        """Return the arrays to be stored, by name."""
        return {"probability": self.probability, "floor": self.floor, "uniform": self.uniform}

    @classmethod
    def taken_from(cls, arrays: dict[str, Array], texts: int) -> Draws:
        """Return the draws of what `arrays` returned, which is removed from `arrays`."""
        probability, floor = arrays.pop("probability"), arrays.pop("floor")
        # older versions of testnuc did not store it
        uniform = arrays.pop("uniform", None)
        if uniform is None:
            uniform = of_all(probability, floor, texts - np.arange(len(probability)))
        return cls(texts, probability, floor, uniform)

    @property
    def drawn(self) -> Bools:
        """Which texts were drawn at random, bool[m]."""
        return np.isfinite(self.probability)


def of_all(probability: Float64s, floor: Float64s, left: Int64s) -> Bools:
    """Return which draws were from all texts that were left, by their probabilities."""
    return np.isclose(probability * left, 1) & np.isclose(floor * left, 1)


def capital(values: Float64s, draws: Draws, means: Float64s, bets: Float64s = BETS) -> Float64s:
    """Return the log of the most capital so far against "the mean over all texts is at most mu".

    `values`, float64[m], of each drawn text are -1 to 1; 0 where a text cannot count. For each mu
    of `means`: at least log(1 / alpha) means that it is refuted with an error of at most alpha.
    """
    if not len(values):
        return np.zeros(len(means))
    seen, known = _seen(values, draws)
    most = 1 / draws.floor / draws.texts
    move = seen[:, None] - means
    least = most[:, None] + np.maximum(means - known[:, None], 0)
    move = np.maximum(move / least, -1)
    logs = np.log1p(bets[:, None, None] * move).cumsum(axis=1)
    top = logs.max(axis=0)
    after = np.log(np.exp(logs - top).mean(axis=0)) + top
    # what a capital has refuted once is refuted, whatever is drawn later (Ville)
    result: Float64s = after.max(axis=0)
    return result


def gain_of(values: Float64s, draws: Draws, alpha: float, unknown: Bools | None = None) -> Share:
    """Return the gain of a candidate, and bounds that hold with 1 - alpha each.

    `values` are 1 where the candidate is right and the LLM's own label is not, -1 the other way
    round. Where `unknown`, bool[m], a text was skipped: the lower bound takes it as -1, the upper
    one as 1.
    """
    if unknown is not None and unknown.any():
        worst = gain_of(np.where(unknown, -1.0, values), draws, alpha)
        best = gain_of(np.where(unknown, 1.0, values), draws, alpha)
        value = gain_of(values, draws, alpha).value
        return Share(float(np.clip(value, worst.low, best.high)), worst.low, best.high)
    needed = np.log(1 / alpha)
    low, high = -1.0, 1.0
    above = capital(values, draws, _GRID) >= needed
    if above[0]:
        low = float(_GRID[max(0, int(np.argmin(above)) - 1)]) if not above.all() else _GRID[-1]
    else:
        low = -_reach(-values, draws, needed)
    high = _reach(values, draws, needed)
    m = len(values)
    if not m:
        return Share(0.0, -1.0, 1.0)
    seen, _ = _seen(values, draws)
    mean, variance = float(seen.mean()), float(seen.var()) / m
    part = max(0.0, 1 - _SHRINK * variance / mean**2) if mean else 0.0
    # what was proved once may be contradicted by what was drawn since
    low = min(low, high, np.inf if mean * part > 0 else 0.0)
    value = float(np.clip(mean * part, max(low, -1.0), min(high, 1.0)))
    return Share(value, low, high)


def paired_gain(
    values: Float64s,
    rows: Int64s,
    changed: Bools,
    strata: Sequence[Bools],
    error: float,
    unknown: Bools | None = None,
) -> Share:
    """Return the gain of other labels over all texts, and bounds that are each wrong with `error`.

    `values`, float64[m], of the judged texts `rows`: 1 where the other label is right and the LLM's
    own is not, -1 the other way round, 0 if neither. `changed`, bool[n], are the texts on which
    these labels differ. `strata`, bool[n] each: judged texts were drawn from each, equally likely;
    outside of all nothing counts. `unknown`, bool[m], as for `gain_of`.

    Judged texts count as they are. Of the others, as many are won as a beta-binomial with Jeffreys'
    prior says: a sign test (mid-p) where there is one stratum. What few draws say of a further
    stratum is bounded exactly (Clopper and Pearson), since it may be unlike the first.
    """
    if unknown is not None and unknown.any():
        given = (np.where(unknown, one, values) for one in (-1.0, 1.0))
        worst, best = (paired_gain(v, rows, changed, strata, error) for v in given)
        return Share((worst.value + best.value) / 2, worst.low, best.high)
    left, counts, known = changed.copy(), [], 0.0
    left[rows] = False
    for stratum in strata:
        seen = values[stratum[rows] & changed[rows]]
        won, lost = float((seen > 0).sum()), float((seen < 0).sum())
        known += won - lost
        # on some texts neither label is right
        decided = min((won + lost + 0.5) / (len(seen) + 0.75), 1.0)
        counts.append((won, lost, float(round(int((left & stratum).sum()) * decided))))

    def bound(prior: tuple[float, float], side: int) -> float:
        priors = [_JEFFREYS] + [prior] * (len(counts) - 1)
        cells = [
            (won + more, lost + less, texts, 2.0)
            for (won, lost, texts), (more, less) in zip(counts, priors, strict=True)
        ]
        return quantiles(tuple(cells), error)[side]

    n, rest = len(changed), sum(texts for *_, texts in counts)
    value = sum(2 * texts * (won + 0.5) / (won + lost + 1) for won, lost, texts in counts)
    found = (value, bound((_NEVER, 1.0), 0), bound((1.0, _NEVER), 1))
    return Share(*((known - rest + one) / n for one in found))


def _seen(values: Float64s, draws: Draws) -> tuple[Float64s, Float64s]:
    """Return the mean that each draw speaks for, and the part of it that is known before."""
    # what is drawn leaves the population: its part of the mean is known from then on
    known = np.concatenate([[0.0], np.cumsum(values)[:-1]]) / draws.texts
    return values / draws.probability / draws.texts + known, known


def _reach(values: Float64s, draws: Draws, needed: float) -> float:
    """Return the lowest mean on the grid that "at least" is refuted for: an upper bound."""
    # "the mean is at least mu" is "the mean of the negated values is at most -mu"
    refuted = capital(-values, draws, -_GRID) >= needed
    return float(_GRID[int(np.argmax(refuted))]) if refuted.any() else 1.0
