"""The trust curve: its prior, what it learns, and that folds do not see themselves."""

import numpy as np
import pytest

from testnuc.trust.calibration import fit_trust


def drawn(seed, n, slope, start=0.0):
    random = np.random.default_rng(seed)
    odds = random.normal(0, 2, (n, 2))
    right = random.random(n) < 1 / (1 + np.exp(-(start + slope * odds[:, 0])))
    return odds, right, random.integers(0, 5, n)


def test_without_judgments_the_first_feature_is_believed():
    odds, right, folds = drawn(0, 50, 1.0)
    nothing = np.empty(0)
    curve = fit_trust(odds[:0], right[:0], nothing, folds[:0], n_folds=5)
    assert np.allclose(curve(odds, folds), 1 / (1 + np.exp(-odds[:, 0])))


def test_many_judgments_give_the_true_slope():
    odds, right, folds = drawn(1, 20_000, 0.4, -0.5)
    curve = fit_trust(odds, right, np.ones(len(right)), folds, n_folds=5)
    assert curve.slopes == pytest.approx(np.tile([-0.5, 0.4, 0.0], (5, 1)), abs=0.06)


def test_a_fold_does_not_see_its_own_judgments():
    odds, right, folds = drawn(2, 100, 1.0)
    before = fit_trust(odds, right, np.ones(100), folds, n_folds=5)
    after = fit_trust(odds, right ^ (folds == 3), np.ones(100), folds, n_folds=5)
    assert np.array_equal(before.slopes[3], after.slopes[3])
    assert not np.array_equal(before.slopes[2], after.slopes[2])


def test_weights_count_by_their_ratio_alone():
    odds, right, folds = drawn(3, 100, 1.0)
    weights = np.random.default_rng(0).uniform(1, 9, 100)
    one = fit_trust(odds, right, weights, folds, n_folds=5)
    other = fit_trust(odds, right, 1_000 * weights, folds, n_folds=5)
    assert one.slopes == pytest.approx(other.slopes, abs=1e-6)


@pytest.mark.parametrize("right", [True, False])
def test_judgments_that_all_agree_are_no_proof_of_certainty(right):
    odds, _, folds = drawn(4, 30, 1.0)
    curve = fit_trust(odds, np.full(30, right), np.ones(30), folds, n_folds=5)
    chance = curve(np.zeros((5, 2)), np.arange(5))
    assert ((chance > 0.5) == right).all()
    assert (np.abs(chance - 0.5) < 0.49).all()
