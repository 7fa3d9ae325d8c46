"""Shares of texts: the intervals hold, also for rare labels, copies and skipped texts."""

import numpy as np
import pytest

from testnuc.trust.shares import JudgedSample, Population


def sample(n, m, rng, missing=None):
    rows = rng.choice(n, m, replace=False)
    missing = np.zeros(m, dtype=bool) if missing is None else missing
    return JudgedSample(rows, np.ones(m, dtype=bool), missing)


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
    chosen = JudgedSample(np.arange(10), np.arange(10) >= 10, np.zeros(10, dtype=bool))
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
