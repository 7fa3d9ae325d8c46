"""Labels and trust from probabilities: the threshold, calibration, and how it is stored."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import orjson
import pytest

from testnuc._base.foreign import read_as
from testnuc.trust.calibration import SetRule, chance_of, fit_line


def simulated(n, seed):
    """Return probabilities that are too low, and labels drawn by the right ones."""
    random = np.random.default_rng(seed)
    right = random.beta(0.3, 0.9, (n, 6))
    labels = random.random(right.shape) < right
    odds = np.log(right / (1 - right)) * 0.7 - 0.8
    return (1 / (1 + np.exp(-odds))).astype(np.float32), labels


def test_the_threshold_and_both_chances_are_fitted():
    found, labels = simulated(4_000, 0)
    rule = SetRule.fitted(found, labels)
    right, _, odds = rule.apply(found)
    curve = fit_line(odds, (right == labels).all(axis=1), np.ones(len(odds)))
    new, truth = simulated(4_000, 1)
    given, chances, odds = rule.apply(new)
    trust = chance_of(odds, curve)
    # the probability at which a label is as likely as not
    assert rule.threshold == pytest.approx(0.3, abs=0.1)
    assert chances[given].mean() == pytest.approx(truth[given].mean(), abs=0.02)
    exact = (given == truth).all(axis=1)
    assert trust.mean() == pytest.approx(exact.mean(), abs=0.02)
    sure = trust >= np.median(trust)
    assert exact[sure].mean() > exact[~sure].mean() + 0.1
    read = read_as(SetRule, orjson.loads(orjson.dumps(asdict(rule))))
    assert all((a == b).all() for a, b in zip(read.apply(new), (given, chances, odds), strict=True))


def test_a_pool_without_labels_gives_none():
    rule = SetRule.fitted(np.full((60, 3), 0.01, np.float32), np.zeros((60, 3), np.bool_))
    given, _, odds = rule.apply(np.full((2, 3), 0.01, np.float32))
    assert not given.any()
    assert (odds > 0).all()
