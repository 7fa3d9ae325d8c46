"""The line from log odds to trust: its prior, and what it learns."""

import numpy as np
import pytest

from testnuc.trust.calibration import chance_of, fit_line


def drawn(seed, n, slope, start=0.0):
    random = np.random.default_rng(seed)
    odds = random.normal(0, 2, n)
    return odds, random.random(n) < 1 / (1 + np.exp(-(start + slope * odds)))


def test_without_judgments_the_odds_are_believed():
    odds, right = drawn(0, 50, 1.0)
    line = fit_line(odds[:0], right[:0], np.empty(0))
    assert np.allclose(chance_of(odds, line), 1 / (1 + np.exp(-odds)))


def test_many_judgments_give_the_true_slope():
    odds, right = drawn(1, 20_000, 0.4, -0.5)
    assert fit_line(odds, right, np.ones(len(right))) == pytest.approx((-0.5, 0.4), abs=0.06)


def test_weights_count_by_their_ratio_alone():
    odds, right = drawn(3, 100, 1.0)
    weights = np.random.default_rng(0).uniform(1, 9, 100)
    line = fit_line(odds, right, weights)
    assert line == pytest.approx(fit_line(odds, right, 1_000 * weights), abs=1e-6)
    assert line != pytest.approx(fit_line(odds, right, np.ones(100)), abs=1e-3)


@pytest.mark.parametrize("right", [True, False])
def test_judgments_that_all_agree_are_no_proof_of_certainty(right):
    odds, _ = drawn(4, 30, 1.0)
    chance = chance_of(np.zeros(1), fit_line(odds, np.full(30, right), np.ones(30)))[0]
    assert (chance > 0.5) == right
    assert abs(chance - 0.5) < 0.49
