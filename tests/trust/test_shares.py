"""Shares of texts: the intervals hold, also for rare labels, copies and skipped texts."""

import numpy as np
import pytest
from scipy.stats import beta, betabinom

from testnuc.trust.shares import JudgedSample, Population, Share, stratified


def sample(n, m, rng, missing=None):
    rows = rng.choice(n, m, replace=False)
    missing = np.zeros(m, dtype=bool) if missing is None else missing
    return JudgedSample(rows, np.ones(m, dtype=bool), missing[:, None])


def one_stratum(n, weights=None):
    return Population(np.zeros((n, 1), np.int64), weights)


def test_all_texts_are_judged():
    right = np.arange(20) < 7
    rng = np.random.default_rng(0)
    judged = sample(20, 20, rng)
    value, low, high = judged.totals(one_stratum(20), right[judged.rows][:, None])
    assert value[0] == low[0] == high[0] == pytest.approx(0.35)


def test_texts_that_are_no_sample_count_as_what_they_are():
    rng = np.random.default_rng(0)
    chosen = JudgedSample(np.arange(10), np.arange(10) >= 10, np.zeros((10, 1), dtype=bool))
    _, low, high = chosen.totals(one_stratum(100), np.ones((10, 1), dtype=bool))
    assert low[0] >= 0.1
    assert high[0] > 0.95
    drawn = sample(100, 50, rng)
    _, low, high = drawn.totals(one_stratum(100), np.ones((50, 1), dtype=bool))
    assert low[0] > 0.9


def test_a_skipped_text_may_be_either():
    rng = np.random.default_rng(0)
    judged = sample(1000, 100, rng, missing=np.arange(100) < 20)
    hits = np.zeros((100, 1), dtype=bool)
    hits[20:60] = True
    _, low, high = judged.totals(one_stratum(1000), hits)
    assert low[0] < 0.4
    assert high[0] > 0.6


@pytest.mark.parametrize("confidence", [0.95, 0.9995])
@pytest.mark.parametrize(("judged", "hits"), [((3, 196), (0, 0)), ((80, 100), (60, 10))])
def test_the_bounds_are_the_quantiles_of_the_posterior(judged, hits, confidence):
    texts = (140, 1000)
    share = stratified(*map(np.array, (texts, judged, hits)), confidence=confidence)
    chances = np.ones(1)
    for n, m, k in zip(texts, judged, hits, strict=True):
        left = n - m
        of = betabinom.pmf(np.arange(left + 1), left, k + 0.5, m - k + 0.5)
        chances = np.convolve(chances, of)
    below = np.cumsum(chances)
    bounds = [sum(hits) + (below < p).sum() for p in ((1 - confidence) / 2, (1 + confidence) / 2)]
    assert [1140 * share.low, 1140 * share.high] == pytest.approx(bounds)


def test_many_texts_have_the_bounds_of_the_beta_distribution():
    share = stratified(np.array([5_000_000]), np.array([200]), np.array([30]))
    assert [share.low, share.high] == pytest.approx(beta.ppf([0.025, 0.975], 30.5, 170.5), abs=3e-4)


def test_copies_are_counted_in_rows():
    # 40 texts with 10 copies each, of which ten were judged, and three are a hit
    drawn = JudgedSample(np.arange(10), np.ones(10, bool), np.zeros((10, 1), bool))
    hits = (np.arange(10) < 3)[:, None]
    _, low, high = drawn.totals(one_stratum(40, np.full(40, 10.0)), hits)
    below = betabinom.cdf(np.arange(31), 30, 3.5, 7.5)
    bounds = [10 * (3 + (below < p).sum()) for p in (0.025, 0.975)]
    assert [400 * low[0], 400 * high[0]] == pytest.approx(bounds)


@pytest.mark.slow
@pytest.mark.parametrize("m", [50, 200])
def test_random_halves_seldom_differ(m):
    # drawn from strata as those of recorded answers: (no, yes) by (not said, said)
    cells, draws, apart = np.array([[1244, 419], [90, 1268]]), 1000, 0
    rng = np.random.default_rng(m)
    for _ in range(draws):
        inside = rng.binomial(cells, 0.5)
        halves = np.stack([inside, cells - inside])
        drawn = rng.multivariate_hypergeometric(halves.ravel(), m, method="marginals")
        shares = []
        for half, some in zip(halves, drawn.reshape(2, 2, 2), strict=True):
            judged, right = some.sum(axis=1), some[:, 1]
            hits = np.concatenate([np.arange(n) < k for n, k in zip(judged, right, strict=True)])
            rows = np.concatenate([np.arange(judged[0]), half[0].sum() + np.arange(judged[1])])
            every = np.ones(len(rows), np.bool_)
            sample = JudgedSample(rows, every, ~every[:, None])
            strata = Population((np.arange(half.sum()) >= half[0].sum()).astype(np.int64)[:, None])
            bounds = sample.totals(strata, hits[:, None], compared=True)
            shares.append(Share(*(float(one[0]) for one in bounds)))
        difference = shares[0].less(shares[1], *map(float, halves.sum(axis=(1, 2))))
        apart += difference.low > 0 or difference.high < 0
    # two standard errors of the simulation above 5 %
    assert apart / draws <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / draws)


@pytest.mark.slow
@pytest.mark.parametrize("rare", [0.01, 0.03, 0.3])
@pytest.mark.parametrize("m", [50, 200])
def test_intervals_hold_their_level(rare, m):
    rng = np.random.default_rng(int(1000 * rare) + m)
    draws, inside = 300, 0
    for _ in range(draws):
        truth = rng.random(1000) < rare
        # the LLM finds seven of ten, and errs in a fiftieth of the others
        said = np.where(truth, rng.random(1000) < 0.7, rng.random(1000) < 0.02)
        judged = sample(1000, m, rng)
        strata = Population(said.astype(np.int64)[:, None])
        _, low, high = judged.totals(strata, truth[judged.rows][:, None])
        inside += low[0] - 1e-9 <= truth.mean() <= high[0] + 1e-9
    # three standard errors below .95
    assert inside / draws >= 0.91


@pytest.mark.slow
def test_intervals_of_a_label_that_is_missed_more_often_than_others_hold_in_pure_strata():
    # what others say of it was too strong a prior where few texts of a stratum are exceptions
    rng = np.random.default_rng(0)
    n, draws, kinds = 3000, 300, np.arange(4)
    right = rng.choice(4, n, p=[0.3, 0.3, 0.3, 0.1])
    hard = (right == 3) & (rng.random(n) < 0.4)
    said = np.where(hard | (rng.random(n) < 0.02), rng.integers(0, 3, n), right)
    better = np.where(hard & (rng.random(n) < 0.7), said, right)
    strata = Population((said[:, None] == kinds) + 2 * (better[:, None] == kinds))
    hits, inside = right[:, None] == kinds, 0
    for _ in range(draws):
        judged = sample(n, 200, rng)
        _, low, high = judged.totals(strata, hits[judged.rows])
        inside += low[3] <= np.mean(right == 3) <= high[3]
    # 95 % is for labels in the mean; of a label that is unlike all others .88 is asked
    assert inside / draws >= 0.89


@pytest.mark.slow
def test_intervals_hold_where_popular_texts_are_wrong():
    # 20 of 2,000 texts are 30 % of the rows, and most of them are wrong
    rng = np.random.default_rng(0)
    weights = np.ones(2000)
    weights[:20] = 42
    draws, inside = 200, 0
    for _ in range(draws):
        truth = rng.random(2000) < np.where(np.arange(2000) < 20, 0.4, 0.9)
        judged = sample(2000, 200, rng)
        hits = truth[judged.rows][:, None]
        _, low, high = judged.totals(one_stratum(2000, weights), hits)
        inside += low[0] <= weights @ truth / weights.sum() <= high[0]
    assert inside / draws >= 0.91
