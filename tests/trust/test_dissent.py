"""A referee counts only if neighbors and models show that it is better than the LLM."""

import numpy as np
import pytest

from testnuc.trust.candidates import dissent_of


def trusted(classes, referee, llm, seeds=20, judged=100):
    """Return in how many of some worlds a referee of this accuracy is taken to be better."""
    found = 0
    for seed in range(seeds):
        dice, n = np.random.default_rng(seed), 2_000
        # classes of unequal size
        gold = (dice.random(n) ** 1.5 * classes).astype(np.int32)

        def right_in(part, gold=gold, dice=dice, n=n):
            wrong = dice.integers(1, classes, n) * (dice.random(n) >= part)
            return ((gold + wrong) % classes).astype(np.int32)

        own, neighbors = right_in(llm), right_in(0.9)
        # candidates keep most labels of the LLM
        other = np.where(dice.random(n) < 0.7, neighbors, own)
        answers = np.zeros(n, np.int32) if referee is None else right_in(referee)
        differ = other != own
        half = dice.permutation(np.flatnonzero(differ))[: judged // 2]
        rest = dice.permutation(np.setdiff1d(np.arange(n), half))[: judged - len(half)]
        rows = np.concatenate([half, rest])
        made = dissent_of(own[rows], other[None, rows], answers[rows], differ[rows], differ.mean())
        found += made.better
    return found


@pytest.mark.parametrize(
    ("classes", "referee"), [(2, 0.52), (2, 0.6), (2, None), (3, 0.34), (3, 0.61), (3, None)]
)
def test_a_referee_that_knows_little_is_not_trusted(classes, referee):
    # before, it was in all of them: with two labels a candidate that differs backs every answer
    assert trusted(classes, referee, 0.9) <= 2


@pytest.mark.parametrize("classes", [2, 3, 30])
def test_a_better_referee_is_trusted(classes):
    assert trusted(classes, 0.95, 0.75) >= 16


def test_without_a_contradiction_nothing_is_shown():
    same, none = np.zeros(5, np.int32), np.zeros(5, np.bool_)
    assert dissent_of(same, same[None], same, none, 0.0) == (0, 0, False)
    empty = same[:0]
    assert dissent_of(empty, empty[None], empty, none[:0], 0.1) == (0, 0, False)
