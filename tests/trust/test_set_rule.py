"""Labels and trust from probabilities: the threshold, calibration, and how it is stored."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import orjson
import pytest

from testnuc.trust.calibration import SetRule, fit_set_rule


def simulated(n, seed):
    """Return probabilities that are too low, and labels drawn by the right ones."""
    random = np.random.default_rng(seed)
    right = random.beta(0.3, 0.9, (n, 6))
    labels = random.random(right.shape) < right
    odds = np.log(right / (1 - right)) * 0.7 - 0.8
    return (1 / (1 + np.exp(-odds))).astype(np.float32), labels


def test_the_threshold_and_both_chances_are_fitted():
    found, labels = simulated(4_000, 0)
    rule = fit_set_rule(found, labels)
    new, truth = simulated(4_000, 1)
    given, chances, trust = rule.apply(new)
    # the probability at which a label is as likely as not
    assert rule.threshold == pytest.approx(0.3, abs=0.1)
    assert chances[given].mean() == pytest.approx(truth[given].mean(), abs=0.02)
    exact = (given == truth).all(axis=1)
    assert trust.mean() == pytest.approx(exact.mean(), abs=0.02)
    sure = trust >= np.median(trust)
    assert exact[sure].mean() > exact[~sure].mean() + 0.1
    read = SetRule.of(orjson.loads(orjson.dumps(asdict(rule))))
    assert all(
        (a == b).all() for a, b in zip(read.apply(new), (given, chances, trust), strict=True)
    )


def test_judged_texts_move_trust_and_nothing_else():
    found, labels = simulated(2_000, 2)
    rows = np.arange(100)
    wrong = ~labels[rows]
    usual = fit_set_rule(found, labels)
    moved = fit_set_rule(found, labels, (rows, wrong, np.ones(100)))
    assert (moved.threshold, moved.of_label) == (usual.threshold, usual.of_label)
    assert moved.apply(found)[2].mean() < 0.1 < usual.apply(found)[2].mean()


def test_a_pool_without_labels_gives_none():
    rule = fit_set_rule(np.full((60, 3), 0.01, np.float32), np.zeros((60, 3), np.bool_))
    given, _, trust = rule.apply(np.full((2, 3), 0.01, np.float32))
    assert not given.any()
    assert (trust > 0.5).all()
