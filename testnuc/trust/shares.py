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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, hypot, sqrt
from statistics import NormalDist

import numpy as np

from testnuc._base.arrays import Array, Bools, Float64s, Int64s

#: Standard errors of a 95 % interval.
Z_95 = 1.96
_JEFFREYS = 0.5
#: How much of the rate of the other kinds is in the priors of each, over all strata: in purer
#: strata the rates are smaller, and a kind that is not like the others would be lost in them.
_POOLED = 0.25
#: Fewest kinds for that: of a few, the others say too little.
_KINDS = 4
#: What remains of the error that is asked for where shares are compared: the interval of a
#: difference is made of two, which is an approximation.
_APART = 0.8
#: What remains where strata are learned from judgments: the intervals take them as fixed, and would
#: be a little too narrow.
_LEARNED = 0.9
#: Points of the distribution of a total, and a chance that is none.
_POINTS, _TINY = 1 << 13, 1e-12
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

    def signed(self) -> str:
        """Return a difference as text, in points."""
        return f"{100 * self.value:+.1f} ({100 * self.low:+.1f} to {100 * self.high:+.1f})"

    def allowing(self, wrong: float) -> "Share":
        """Return it with an interval that holds if at most this part, any, is said wrongly."""
        return Share(self.value, max(self.low - wrong, 0.0), min(self.high + wrong, 1.0))

    def less(
        self, other: "Share", texts: float, others: float, confidence: float = 0.95
    ) -> "Share":
        """Return the difference to the share of other texts.

        Its interval is made of both intervals (Zou and Donner 2008, "Construction of confidence
        limits about effect measures", Statistics in Medicine), and of chance: as if so many texts
        and so many others were drawn of all that might have been written. Two random halves of the
        same texts do not differ.
        """
        value = self.value - other.value
        mean = (texts * self.value + others * other.value) / (texts + others)
        z = NormalDist().inv_cdf(1 - _APART * (1 - confidence) / 2)
        chance = z * sqrt(mean * (1 - mean) * (1 / texts + 1 / others))
        return Share(
            value,
            max(value - hypot(self.value - self.low, other.high - other.value, chance), -1.0),
            min(value + hypot(self.high - self.value, other.value - other.low, chance), 1.0),
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
    #: bool[m, C or 1], whether they were skipped, so may be a hit or not: the interval is wider.
    missing: Bools
    #: float64[m], how many texts of its stratum each stands for, by its chance; None: equally many.
    weights: Float64s | None = None

    def totals(
        self,
        population: Population,
        hits: Bools,
        alike: int | None = None,
        *,
        confidence: float = 0.95,
        compared: bool = False,
        learned: bool = False,
    ) -> tuple[Float64s, Float64s, Float64s]:
        """Return the share of the texts that are a hit, and bounds; float64[C] each.

        `hits`, bool[m, C]: whether each judged text is one. Each kind's share alone lies between
        its bounds with this `confidence`. Shares that are `compared` with those of other texts have
        twice the prior, as differences of small samples need (Agresti and Caffo 2000, "Simple and
        effective confidence intervals for proportions and differences of proportions", The American
        Statistician); not with many kinds, where most are rare and the intervals wide enough.
        `learned`: strata depend on judgments. The prior of the first `alike` kinds alone (default:
        all) is moved towards the others: none of the labels is not missed as seldom as a label.
        """
        # as if all that were skipped are no hit, and as if they are one
        tail = (_APART if compared else 1) * (_LEARNED if learned else 1) * (1 - confidence) / 2
        prior = _JEFFREYS * (2 if compared and hits.shape[1] < _KINDS else 1)
        value, low, high = self._bounds(population, hits & ~self.missing, tail, prior, alike)
        if self.missing.any():
            more, _, high = self._bounds(population, hits | self.missing, tail, prior, alike)
            value = (value + more) / 2
        total = population.copies.sum()
        return np.clip(value, low, high) / total, low / total, high / total

    def _bounds(
        self, population: Population, hits: Bools, tail: float, prior: float, alike: int | None
    ) -> tuple[Float64s, Float64s, Float64s]:
        """Return the number of rows that are a hit, and bounds; float64[C] each."""
        of, copies = population.of[self.rows], population.copies[self.rows]
        weights = np.ones(len(copies)) if self.weights is None else self.weights
        known = copies @ hits
        value = known.copy()
        cells = []
        for stratum, sizes in zip(population.used, population.sizes, strict=True):
            judged = of == stratum
            here = judged & self.drawn[:, None]
            drawn, found = copies * weights @ here, copies * weights @ (here & hits)
            # texts that stand for unlike numbers of rows, or texts, are worth fewer draws
            worth = here.sum(axis=0) * _evenness(sizes) * _evenness(_sizes(here, weights))
            k = worth * _ratio(found, drawn)
            first, second = _prior(k, worth, prior, _POOLED / max(len(population.used), 2))
            if alike is not None:
                second[alike:] = prior
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


def _prior(k: Float64s, worth: Float64s, prior: float, pooled: float) -> tuple[Float64s, Float64s]:
    """Return the parameters of the beta prior of each kind.

    `prior` for both, Jeffreys' is 1/2; of many kinds, the part `pooled` of what would make its mean
    the rate of all others is added where that is small: how seldom the LLM misses other labels says
    something of each.
    """
    first = np.full(len(k), prior)
    if len(k) < _KINDS:
        return first, first.copy()
    rate = (k.sum() - k + prior) / (worth.sum() - worth + 2 * prior)
    more = pooled * prior * np.maximum(1 / rate - 2, 0)
    # to one digit: it is no more than a guess, and equal counts are computed once
    scale = 10 ** np.floor(np.log10(np.maximum(more, 1e-3)))
    return first, prior + np.round(more / scale) * scale


@lru_cache(maxsize=1 << 14)
def quantiles(cells: tuple[tuple[float, ...], ...], tail: float) -> tuple[float, float]:
    """Return the quantiles of a sum of independent beta-binomials.

    A cell has the two parameters of the beta, a number of texts, and how many rows each stands for.
    """
    # one point for a row, or fewer; all others are between two points
    rows = sum(texts * each for *_, texts, each in cells)
    step = max(rows / _POINTS, 1.0)
    size = 1 << round(rows / step + 2 * len(cells)).bit_length()
    total = np.ones(size // 2 + 1, dtype=np.complex128)
    for first, second, texts, each in cells:
        chances, merged = _beta_binomial(first, second, int(texts))
        below, part = np.divmod(np.arange(len(chances)) * (merged * each / step), 1)
        points = below.astype(np.int64)
        placed = np.bincount(points, chances * (1 - part), size)
        placed[1:] += np.bincount(points, chances * part, size)[:-1]
        total *= np.fft.rfft(placed)
    below_or_at = np.cumsum(np.fft.irfft(total, size))
    # rounding errors of the transform are far smaller than this
    low, high = np.searchsorted(below_or_at, (tail - _TINY, 1 - tail - _TINY)).tolist()
    return low * step, high * step


def _beta_binomial(first: float, second: float, texts: int) -> tuple[Float64s, float]:
    """Return the probabilities of 0 to n hits, and how many texts each of the n stands for.

    Of many texts several are taken as one; the betas are then such that the variance is the same.
    """
    n, both = texts, first + second
    if texts > max(_POINTS, 8 * both):
        n = round(max(_POINTS, 8 * both))
        spread = (both + texts) / (texts * (both + 1))
        more = n * (1 - spread) / (spread * n - 1) / both
        first, second = first * more, second * more
    k = np.arange(n)
    ratios = (n - k) * (first + k) / ((k + 1) * (second + n - k - 1))
    logs = np.concatenate([[0.0], np.cumsum(np.log(ratios))])
    chances = np.exp(logs - logs.max())
    return chances / chances.sum(), texts / max(n, 1)


def _ratio(part: Float64s, whole: Float64s) -> Float64s:
    """Return quotients; 0 where the divisor is."""
    return np.divide(part, whole, out=np.zeros_like(whole), where=whole > 0)


def upper_bound(wrong: float, tries: float, error: float) -> float:
    """Return the upper bound of a rate (Clopper and Pearson 1934)."""
    from scipy.special import betaincinv

    return 1.0 if wrong >= tries else float(betaincinv(wrong + 1, tries - wrong, 1 - error))


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


#: Nominal confidence of what holds in 95 %: intervals of few draws in two strata miss a little more
#: often than they say, and labels of judged texts are by other fits than those of the others.
_NOMINAL = 0.97
#: Random draws that a stratum needs, for anything to be said, if it has more than this part of the
#: texts: how a smaller one is cannot change much.
LEAST_DRAWS, _SMALL = 5, 0.02
#: Random draws for the precision and for the recall of a label. Exact intervals hold with fewer,
#: but then they say nothing.
_PRECISION, _RECALL = 3, 10
#: In place of a parameter of zero, and the error of each bound.
NEVER, _TAIL = 1e-3, 0.025


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How many labels are right by the judgments, with intervals of 95 % each."""

    #: The LLM's own labels.
    before: Share
    #: All labels as they are, those of judged texts corrected.
    now: Share
    #: About so many more judgments of texts drawn at random halve the intervals.
    to_halve: int
    #: A bound, with 90 % confidence, of how often a judge errs; None: no text was judged twice.
    judge_error: float | None = None
    #: Number of texts that it is of.
    texts: int = 0
    #: Part of the texts, 0 to 1, that judges would skip: they may be right or not.
    skipped: float = 0.0

    def __str__(self) -> str:
        others = "another judge may differ"
        if (error := self.judge_error) is not None:
            now, own = (bounds_of(share.allowing(error)) for share in (self.now, self.before))
            others = f"with the errors of judges {now} %, and {own} % of the LLM's own"
        return (
            f"About {percent(self.now)} of the labels of {self.texts:,} texts are right by your "
            f"judgments, and {percent(self.before)} of the LLM's own; {others}."
        )


def percent(share: Share) -> str:
    """Return it as text, in whole percent."""
    return f"{100 * share.value:.0f} % ({bounds_of(share)})"


def bounds_of(share: Share) -> str:
    """Return its interval as text, in whole percent."""
    return f"{100 * share.low:.0f} to {100 * share.high:.0f}"


def draws_lacking(differs: Bools, rows: Int64s) -> float:
    """Return how often each text that is left is to be drawn, in the mean, for an accuracy.

    `differs` as for `accuracy_of`; `rows` were drawn at random. 0: there are enough draws.
    """
    of_draws = np.bincount(differs[rows], minlength=2)
    left = np.bincount(differs, minlength=2) - of_draws
    lacking = (LEAST_DRAWS - of_draws) / np.maximum(left, 1)
    return float(np.where(left > _SMALL * len(differs), lacking, 0).clip(0).max())


def draws_in_a_row(drawn: Bools, ranked: Bools, at: int | None = None) -> tuple[Bools, Bools]:
    """Return the most draws between texts that were chosen, and what was judged before, bool[m].

    `drawn` and `ranked`, bool[m], as for `accuracy_of`. `at`: the draws after so many that were
    chosen instead, however few; -1: after all.
    """
    chosen = ~(drawn | ranked)
    row = np.cumsum(chosen)
    if at is None:
        at = int(np.bincount(row[drawn & ~ranked], minlength=1).argmax())
    elif at < 0:
        at = int(chosen.sum())
    return drawn & ~ranked & (row == at), (row < at) | (chosen & (row == at) & (at > 0))


def accuracy_of(
    differs: Bools,
    rows: Int64s,
    right: Bools,
    before: Array,
    drawn: Bools,
    ranked: Bools,
    weights: Float64s | None = None,
    *,
    alike: bool = False,
) -> Accuracy | None:
    """Return how many labels are right; None: too few texts were drawn at random.

    `differs`, bool[n], are the strata: whether candidates differ on a text. `rows`, int64[m], are
    the texts that people judged or skipped; `right`, bool[m], whether their labels are right by a
    rule that does not know their judgments; `before`, int8[m], whether the LLM's are, -1: skipped;
    `drawn` and `ranked`, bool[m], which were drawn with equal chances in each stratum, and which
    from a ranking: these, and those chosen by hand, do not count, but are corrected: who looks for
    errors leaves fewer of them among the others. Strata of trust would miss the accuracy twice as
    often: the trust of a judged text is by another fit than that of the others. `weights`,
    float64[m], as for `JudgedSample`: strata now are not those then.

    `alike`: those that count were drawn with equal chances from all texts; few need no strata then.

    Texts that were chosen are not among those that later ones are drawn from. So of draws before
    and after such the most that follow each other count, and what was judged before is known.
    """
    used, earlier = draws_in_a_row(drawn, ranked)
    if earlier.any():
        inside = np.ones(len(differs), np.bool_)
        inside[rows[earlier]] = False
        places = (np.cumsum(inside) - 1)[rows]
        left = ~earlier
        weights = np.ones(len(rows)) if weights is None else weights
        judged = (places[left], right[left], before[left], used[left], ranked[left], weights[left])
        rest = accuracy_of(differs[inside], *judged, alike=alike)
        known, open_ = before[earlier], float((before[earlier] < 0).mean())
        every = (float((known >= least).mean()) for least in (1, 0))
        own, now = (Share(part + open_ / 2, part, part + open_) for part in every)
        told = Accuracy(own, now, 0, texts=len(known), skipped=open_)
        return rest and combined([rest, told])
    n = len(differs)
    weights = None if weights is None else weights[used]
    sample = JudgedSample(rows[used], used[used], before[used, None] < 0, weights)
    if alike and used.sum() >= 2 * LEAST_DRAWS and draws_lacking(differs, sample.rows):
        differs = np.zeros_like(differs)
    if draws_lacking(differs, sample.rows) or not used.any():
        return None
    strata = Population(differs.astype(np.int64)[:, None])

    def share(hits: Bools, more: float) -> Share:
        found = sample.totals(strata, hits[used, None], confidence=_NOMINAL)
        return Share(*(min(float(one[0]) + more, 1.0) for one in found))

    corrected = int((~right & (before >= 0)).sum()) / n
    # the width falls by the root of the number, and is zero once all are judged
    m = len(sample.rows)
    more = ceil(3 * m * (n - m) / (n + 3 * m))
    open_ = 0.0
    if sample.missing.any():
        skipped = replace(sample, missing=np.zeros_like(sample.missing))
        open_ = float(skipped.totals(strata, sample.missing)[0][0])
    own, now = share(before > 0, 0.0), share(right & (before >= 0), corrected)
    return Accuracy(own, now, more, texts=n, skipped=open_)


def combined(parts: Sequence[Accuracy]) -> Accuracy:
    """Return the accuracy of all texts by those of disjoint parts of them.

    The squares of half widths add up (Zou and Donner 2008), but for what was skipped, which may be
    right in all parts at once.
    """
    texts = sum(part.texts for part in parts)
    sizes = np.array([[part.texts / texts] for part in parts])
    open_ = np.array([[part.skipped / 2] for part in parts])

    def share(shares: Sequence[Share]) -> Share:
        every = np.array([(one.value, one.value - one.low, one.high - one.value) for one in shares])
        value, widths = float((every[:, :1] * sizes).sum()), every[:, 1:]
        sure = np.minimum(open_, widths)
        below, above = np.hypot.reduce((widths - sure) * sizes) + (sure * sizes).sum(axis=0)
        return Share(value, max(float(value - below), 0.0), min(float(value + above), 1.0))

    now, before = share([part.now for part in parts]), share([part.before for part in parts])
    skipped = float((2 * open_ * sizes).sum())
    more = sum(part.to_halve for part in parts)
    return Accuracy(before, now, more, texts=texts, skipped=skipped)


@dataclass(frozen=True, slots=True)
class LabelAccuracy:
    """How right a label is by the judgments of people, with exact intervals of 95 % each."""

    #: Of the texts that have it, those that have it rightly; None: too few of them were judged.
    precision: Share | None = None
    #: Of the texts that should have it, those that have it; None: too few of them were judged.
    recall: Share | None = None
    #: Texts, judged and drawn at random, that have it without their own judgment.
    judged: int = 0

    def __str__(self) -> str:
        said = "not known" if self.precision is None else percent(self.precision)
        return f"{said}, {self.judged:,} judged"


def label_accuracy(
    given: Bools,
    true: Bools,
    strata: Array,
    rows: Int64s,
    skipped: Bools,
    drawn: Bools,
    ranked: Bools,
    weights: Float64s | None = None,
) -> LabelAccuracy:
    """Return how right a label is.

    `given`, bool[n], are the texts with the label by a rule that does not know their judgments, and
    `true`, bool[m], those that have it by them; `strata`, bool or int64[n], are those that texts
    were drawn from; other arguments are as for `accuracy_of`. Bounds are exact (Clopper and
    Pearson; of the precision hypergeometric in each stratum, the worst case in one without draws).
    """
    strata, sample = strata.astype(np.int64), drawn & ~ranked
    here, of = given[rows], strata[rows]
    weights = np.ones(len(rows)) if weights is None else weights

    def sizes_of(some: Int64s) -> Int64s:
        return np.bincount(some, minlength=int(strata.max(initial=0)) + 1)

    # recall is by as large a part of each stratum: the first draws, before any text was chosen
    early, _ = draws_in_a_row(drawn, ranked, 0)
    sizes, drawn_in = sizes_of(strata), sizes_of(of[early])
    part = np.where(sizes, drawn_in / np.maximum(sizes, 1), 1.0).min()
    number = np.choose(of, [np.cumsum(early & (of == one)) for one in range(len(sizes))])
    first = early & (number <= part * sizes[of] + _TINY)
    should = true & first
    # in all as many as were drawn, whatever the weights in a stratum
    counts, total = (np.bincount(of[first], one[first], len(sizes)) for one in (drawn, weights))
    scaled = weights * _ratio(counts.astype(np.float64), total.astype(np.float64))[of]
    known_of = worth_of(scaled, should, np.zeros_like(of))
    n = float(known_of.sum())
    found = min(float(known_of[here].sum()), n)
    used, earlier = draws_in_a_row(drawn, ranked)
    fixed = used | earlier
    sample &= here & used
    judged, worth = int(sample.sum()), worth_of(weights, sample, of)
    tries = np.bincount(of, worth, minlength=len(sizes))
    # those drawn from a ranking, or chosen since the draws, are no sample, and are known
    left = sizes_of(strata[given]) - sizes_of(of[here & fixed])
    ends = float((here & ~fixed & true).sum())
    open_ = float(given.sum() - (here & ~skipped).sum())
    unknown, known = float((here & skipped & fixed).sum()), float(true.sum())

    def hits(right: Bools, prior: tuple[float, float]) -> tuple[float, float, float]:
        k = np.bincount(of[right], worth[right], minlength=len(sizes))
        rate = np.where(tries > 0, k / np.maximum(tries, 1), k.sum() / tries.sum())
        cells = np.stack([k + prior[0], tries - k + prior[1], left, np.ones(len(k))], axis=1)
        return float(rate @ left), *quantiles(tuple(map(tuple, cells.tolist())), _TAIL)

    precision = recall = None
    if judged >= _PRECISION and open_ + known:
        value, low, _ = hits(true, (NEVER, 1.0))
        more, _, high = hits(true | skipped, (1.0, NEVER))
        low, high = max(low - ends, 0.0), min(high - ends + unknown, open_)
        value = min(max((value + more + unknown) / 2 - ends, low), high)
        precision = Share(*((known + one) / (known + open_) for one in (value, low, high)))
    if should.sum() >= _RECALL:
        low = 1 - upper_bound(n - found, n, _TAIL)
        recall = Share(found / n, low, upper_bound(found, n, _TAIL))
    return LabelAccuracy(precision, recall, judged)


def worth_of(weights: Float64s, drawn: Bools, strata: Int64s) -> Float64s:
    """Return how many draws each judged text is worth in its stratum (Kish), float64[m].

    `weights` as for `JudgedSample`. Equal ones are worth one draw each; what is not drawn, none.
    """
    used = np.where(drawn, weights, 0.0)
    once, squares = (np.bincount(strata, one).astype(np.float64) for one in (used, used**2))
    found: Float64s = used * _ratio(once, squares)[strata]
    return found
