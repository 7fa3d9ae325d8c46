"""Macro F1 of all texts by judged ones, which were drawn at random.

Most labels have few judged texts, so what is known of all says something of each: how far labels
differ in their errors, and how these depend on the size of a label, is learned from the judgments,
and macro F1 is simulated from what they leave open (Gelman and others 2013, "Bayesian Data
Analysis", chapter 5). `python -m bench evidence --parts "macro F1"` counts how often it misses.
"""

from dataclasses import dataclass

import numpy as np

from testnuc._base.arrays import Array, Bools, Float64s, Int64s
from testnuc.trust.shares import LEAST_DRAWS, Share, draws_in_a_row, worth_of

#: Judged texts, drawn at random, for each label that is given, and at least in all.
PER_LABEL, LEAST = 10, 50
#: What holds in 95 %: how labels differ is learned from few of them.
_NOMINAL = 0.97
_DRAWS = 1_000
#: Error rates of a label of medium size, how many judgments they are worth, and the power of the
#: size that they fall with.
_RATES = np.linspace(0.01, 0.99, 50)
_WORTH = np.geomspace(0.25, 128, 12)
_FALL = np.array([-0.5, -0.25, 0.0, 0.25, 0.5])
#: Of the missed labels: judgments for each, and the power of the size that they grow with.
_EACH = np.geomspace(1 / 32, 16, 12)
_GROW = np.array([0.0, 0.5, 1.0])
#: No rate is zero or one, and no chance is zero.
_LEAST_RATE, _TINY = 0.002, 1e-9


@dataclass(frozen=True, slots=True)
class MacroF1:
    """Macro F1 of all labels by the judgments, with an interval of 95 %."""

    #: None: too few texts were drawn at random and judged.
    share: Share | None
    #: Judgments of texts drawn at random that are missing for it.
    needed: int

    def __str__(self) -> str:
        if (one := self.share) is not None:
            return f"Macro F1 by your judgments: {one.value:.2f} ({one.low:.2f} to {one.high:.2f})."
        return (
            f"Macro F1 needs {self.needed:,} more judged texts drawn at random, without others "
            'between them (goal "count").'
        )


def macro_f1(
    given: Int64s,
    rows: Int64s,
    true: Int64s,
    drawn: Bools,
    strata: Int64s,
    weights: Float64s | None = None,
    *,
    labels: int,
) -> MacroF1:
    """Return the macro F1 of all texts, with those that are judged corrected.

    It is the mean over the labels that any text has, or should have. `given`, int64[n], are labels
    0 to `labels` - 1, and `labels`: none, which is not in the mean. `rows` and `true`, int64[m],
    are the judged texts and their labels, -1: skipped; `drawn`, bool[m], which of them are a random
    sample in each of the `strata`, int64[n]; `weights` as for `JudgedSample`.
    """
    skipped, n = true < 0, len(given)
    left = np.bincount(np.delete(strata, rows), minlength=strata.max() + 1)
    used = len(np.unique(given[given < labels]))

    def lacking(sample: Bools) -> int:
        draws = np.bincount(strata[rows[sample & ~skipped]], minlength=len(left))
        missing = min(max(PER_LABEL * used, LEAST), n) - int(draws.sum()) if left.any() else 0
        # of a stratum without draws nothing is known
        return max(missing, int(np.maximum(LEAST_DRAWS - draws, 0)[left > 0].sum()))

    sample, earlier = draws_in_a_row(drawn, np.zeros_like(drawn))
    if lacking(sample) > 0:
        # the next draws follow those after the last text that was chosen
        sample, earlier = draws_in_a_row(drawn, np.zeros_like(drawn), -1)
    if (needed := lacking(sample)) > 0:
        return MacroF1(None, min(needed, int(left.sum())))
    if skipped.any():
        # as if no label of the skipped texts is right, and as if theirs are
        ways = (np.where(skipped, other, true) for other in (labels, given[rows]))
        worst, best = (
            macro_f1(given, rows, way, drawn, strata, weights, labels=labels).share for way in ways
        )
        assert worst is not None
        assert best is not None
        low = max(worst.low - skipped.sum() / n, 0.0)
        return MacroF1(Share((worst.value + best.value) / 2, low, best.high), 0)
    number = np.bincount(given, minlength=labels + 1)
    random = np.random.default_rng(7)
    size = np.log(number + 1.0)
    size -= size[:labels].mean()
    unknown = np.ones(len(given), np.bool_)
    unknown[rows] = False
    right = given[rows] == true
    worth = worth_of(np.ones(len(rows)) if weights is None else weights, sample, strata[rows])
    hits = np.zeros((_DRAWS, labels + 1)) + np.bincount(true, minlength=labels + 1)
    said, false = hits, np.zeros_like(hits)
    for stratum in np.unique(strata[unknown]):
        here = strata[rows] == stratum
        left = np.bincount(given[unknown & (strata == stratum)], minlength=labels + 1)
        tries = np.bincount(given[rows[here]], worth[here], minlength=labels + 1)
        # texts chosen since the draws were among those drawn from, and their errors are known
        since = here & ~(sample | earlier)
        among = left + np.bincount(given[rows[since]], minlength=labels + 1)
        known = np.bincount(given[rows[since & ~right]], minlength=labels + 1)
        here &= ~right
        wrong = np.bincount(given[rows[here]], worth[here], minlength=labels + 1)
        found = random.binomial(among, _errors(random, size, wrong, tries)) - known
        found = np.clip(found, 0, left)
        hits, said, false = hits + left - found, said + left, false + found
    wrong = sample & ~right
    chances = _missed(random, size, true[wrong], given[rows[wrong]], worth[wrong])
    # a text has another label than the wrong one that it was given
    others = false / np.maximum(1 - chances, _TINY)
    missed = random.poisson(chances * (others.sum(axis=1, keepdims=True) - others))
    both = (said + hits + missed)[:, :labels]
    each = 2 * hits[:, :labels] / np.maximum(both, 1)
    means = each.sum(axis=1) / np.maximum((both > 0).sum(axis=1), 1)
    low, high = np.quantile(means, [(1 - _NOMINAL) / 2, (1 + _NOMINAL) / 2]).tolist()
    return MacroF1(Share(float(means.mean()), low, high), 0)


def _errors(random: np.random.Generator, size: Float64s, wrong: Array, tries: Array) -> Float64s:
    """Draw how often each label is wrong where it is given, float64[draws, labels]."""
    from scipy.special import betaln

    rates = np.exp(-np.multiply.outer(_FALL, size))[..., None] * _RATES
    rates = np.clip(rates, _LEAST_RATE, 1 - _LEAST_RATE)
    # that a text has no label is unlike the labels: it says nothing of them
    seen = np.append(tries[:-1] > 0, False)
    k, m = wrong[seen, None, None], tries[seen, None, None]
    first, second = (part[:, seen, :, None] * _WORTH for part in (rates, 1 - rates))
    logs = betaln(first + k, second + m - k) - betaln(first, second)
    fall, rate, worth = _picked(random, logs.sum(axis=1))
    mean, worth = rates[fall, :, rate], _WORTH[worth, None]
    found: Float64s = random.beta(mean * worth + wrong, (1 - mean) * worth + tries - wrong)
    return found


def _missed(
    random: np.random.Generator, size: Float64s, true: Int64s, given: Int64s, worth: Float64s
) -> Float64s:
    """Draw the chance of each label to be that of a text with a wrong one, float64[draws, labels].

    `true` and `given`, int64[m], are the labels of such texts, each `worth` so many draws.
    """
    from scipy.special import gammaln

    kinds = len(size)
    errors = np.bincount(true, worth, minlength=kinds)
    shares = np.exp(np.multiply.outer(_GROW, size))
    shares /= shares.sum(axis=1, keepdims=True)
    prior = np.maximum(shares[:, None] * (_EACH[:, None] * kinds), _TINY)
    of_labels, found = prior[..., :-1], errors[:-1]
    total = of_labels.sum(axis=-1)
    logs = (gammaln(of_labels + found) - gammaln(of_labels)).sum(axis=-1)
    grow, each = _picked(random, logs + gammaln(total) - gammaln(total + found.sum()))
    # a label could only be missed where another was given
    could = worth.sum() - np.bincount(given, worth, minlength=kinds)
    rates = random.gamma(prior[grow, each] + errors) / (_EACH[each, None] * kinds + could) + _TINY
    if not errors[-1]:
        # that no label is right was never found
        rates[:, -1] = 0.0
    chances: Float64s = rates / rates.sum(axis=1, keepdims=True)
    return chances


def _picked(random: np.random.Generator, logs: Float64s) -> tuple[Array, ...]:
    """Return places of a grid, drawn by their likelihood."""
    chances = np.exp(logs - logs.max()).ravel()
    at = random.choice(len(chances), _DRAWS, p=chances / chances.sum())
    return np.unravel_index(at, logs.shape)
