"""The chance that a label is right: its prior, what it learns, and what folds may not see."""

import numpy as np
import pytest

from testnuc.trust.calibration import chance_of, chances, fit_line, fit_trust
from tests.trust.arrays import clusters


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


def given(seed, n=400, m=100):
    """Return texts, probabilities of a model that is too sure, labels, judged rows, truth."""
    random = np.random.default_rng(seed)
    texts, _ = clusters(n, 4, 8, seed=seed)
    found = random.dirichlet(np.full(4, 0.3), n).astype(np.float32)
    label = found.argmax(axis=1).astype(np.int32)
    p = found.max(axis=1).astype(np.float64)
    odds = 0.5 * np.log(p / (1 - np.minimum(p, 0.9999)))
    right = random.random(n) < 1 / (1 + np.exp(-odds))
    return texts, found, label, random.permutation(n)[:m], right


def test_without_judgments_it_is_the_probability_of_the_model():
    texts, found, label, rows, right = given(0)
    nothing, made = fit_trust(texts, found, label, rows[:0], right[:0], np.empty(0))
    assert made == pytest.approx(found.max(axis=1).clip(1e-4, 1 - 1e-4), abs=1e-5)
    label[3] = -1
    assert np.isnan(chances(texts, found, label, nothing)[3])


@pytest.mark.slow
def test_judgments_correct_a_model_that_is_too_sure():
    texts, found, label, rows, right = given(1, 3_000, 1_500)
    _, made = fit_trust(texts, found, label, rows, right[rows], np.full(1_500, 0.5))
    rest = np.setdiff1d(np.arange(3_000), rows)
    sure = rest[found.max(axis=1)[rest] > 0.9]
    trust = made[sure].mean()
    assert trust == pytest.approx(right[sure].mean(), abs=0.04)
    assert found.max(axis=1)[sure].mean() > right[sure].mean() + 0.05


def test_all_judgments_calibrate_trust_but_those_of_its_fold_not_that_of_a_judged_text():
    texts, found, label, rows, right = given(2)
    chance = np.full(len(rows), 0.25)
    turned = right ^ (texts.folds == 3)
    fitted, before = fit_trust(texts, found, label, rows, right[rows], chance)
    _, after = fit_trust(texts, found, label, rows, turned[rows], chance)
    inside = texts.folds[rows] == 3
    assert np.array_equal(before[rows[inside]], after[rows[inside]])
    assert not np.isclose(before[rows[~inside]], after[rows[~inside]]).any()
    rest = np.setdiff1d(np.arange(len(texts)), rows)
    assert np.array_equal(before[rest], chances(texts, found, label, fitted)[rest])


def test_weights_of_trust_count_by_their_ratio_alone():
    texts, found, label, rows, right = given(3)
    chance = np.random.default_rng(0).uniform(0.001, 0.01, len(rows))
    one, _ = fit_trust(texts, found, label, rows, right[rows], chance)
    other, _ = fit_trust(texts, found, label, rows, right[rows], 50 * chance)
    assert one == pytest.approx(other, abs=1e-4)


@pytest.mark.parametrize("right", [True, False])
def test_trust_of_judgments_that_all_agree_is_no_proof_of_certainty(right):
    texts, found, label, rows, _ = given(4, m=30)
    _, trust = fit_trust(texts, found, label, rows, np.full(30, right), np.full(30, 0.1))
    assert (trust.mean() > 0.5) == right
    assert 0.001 < trust.mean() < 0.999
