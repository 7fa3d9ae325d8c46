"""Macro F1 by judged texts: its interval holds, and is refused where judgments are too few."""

import numpy as np
import pytest

from testnuc.trust.macro import MacroF1, macro_f1

#: Whom labels are confused with: the next one, the largest one, a few, or a few and one label is
#: never given.
CONFUSIONS = ["next", "largest", "few", "never"]


def f1_of(gold, given, labels):
    """Return the macro F1, over the labels that occur."""
    hits = np.bincount(gold[gold == given], minlength=labels)[:labels]
    both = np.bincount(gold, minlength=labels) + np.bincount(given, minlength=labels)
    return (2 * hits[both > 0] / both[both > 0]).mean()


def world(random, n, labels, confusion, *, good):
    """Return right and given labels, and where candidates differ; shares are skewed if `good`."""
    shares = np.maximum(random.dirichlet(np.full(labels, 1.0 if good else 3.0)), 0.1 / labels)
    gold = random.choice(labels, n, p=shares / shares.sum())
    right = random.beta(8, 1, labels) if good else random.beta(3, 1.5, labels)
    after = (np.arange(labels) + 1) % labels
    chances = random.dirichlet(np.full(labels, 0.3), labels)
    if confusion == "next":
        chances = np.eye(labels)[after]
    elif confusion == "largest":
        chances = np.tile(np.eye(labels)[shares.argmax()], (labels, 1))
    chances[np.arange(labels), np.arange(labels)] = 1e-12
    if confusion == "never" and labels > 2:
        never = random.integers(labels)
        right[never], chances[:, never] = 0.0, 0.0
    edges = chances.cumsum(axis=1)
    other = (random.random((n, 1)) * edges[gold, -1:] > edges[gold]).sum(axis=1)
    given = np.where(random.random(n) < right[gold], gold, other)
    return gold, given, random.random(n) < np.where(given == gold, 0.15, 0.6)


def drawn(random, differ, m, *, default):
    """Draw m texts; of a default review half are among those on which candidates differ."""
    every, some = random.permutation(len(differ)), random.permutation(np.flatnonzero(differ))
    if not default:
        return every[:m]
    first = some[: m // 2]
    return np.append(first, np.setdiff1d(every, first, assume_unique=True)[: m - len(first)])


def misses(labels, draws, *, n=2_000):
    """Return by kind of world how often the interval is below and above the truth."""
    found = {}
    for confusion in CONFUSIONS:
        for good, default in ((False, False), (False, True), (True, False), (True, True)):
            sides = np.zeros(2)
            for seed in range(draws):
                random = np.random.default_rng(seed)
                gold, given, differ = world(random, n, labels, confusion, good=good)
                rows = drawn(random, differ, max(10 * labels, 50), default=default)
                every, strata = np.ones(len(rows), np.bool_), differ.astype(np.int64) * default
                said = macro_f1(given, rows, gold[rows], every, strata, labels=labels).share
                now = given.copy()
                now[rows] = gold[rows]
                true = f1_of(gold, now, labels)
                sides += said.high < true - 1e-9, said.low > true + 1e-9
            found[confusion, good, default] = sides / draws
    return found


@pytest.mark.parametrize(
    "labels", [2, *(pytest.param(labels, marks=pytest.mark.slow) for labels in (6, 20, 40))]
)
def test_the_interval_misses_as_seldom_as_it_says(labels):
    found = np.array([*misses(labels, 20 if labels < 20 else 12).values()]).sum(axis=1)
    assert found.mean() <= 0.07


def test_where_all_are_judged_it_is_known():
    random = np.random.default_rng(0)
    gold, given, _ = world(random, 300, 5, "few", good=False)
    rows, every = np.arange(300), np.ones(300, np.bool_)
    found = macro_f1(given, rows, gold, every, np.zeros(300, np.int64), labels=5).share
    assert (found.low, found.value, found.high) == (1.0, 1.0, 1.0)


def test_two_labels_are_missed_for_each_other():
    given = np.repeat([0, 1], [900, 100])
    rows = np.r_[0:90, 900:910]
    true = given[rows].copy()
    true[:9] = 1
    found = macro_f1(given, rows, true, np.ones(100, np.bool_), given * 0, labels=2).share
    # a tenth of the 900 are of the other label, which so has 100 of 190 hits
    assert found.low < (2 * 810 / 1710 + 2 * 100 / 290) / 2 < found.high


@pytest.mark.parametrize(("labels", "m", "needed"), [(20, 150, 50), (2, 30, 20), (20, 200, 0)])
def test_too_few_judgments_for_the_labels_say_how_many_are_needed(labels, m, needed):
    given, rows = np.arange(2_000) % labels, np.arange(m)
    every = np.ones(m, np.bool_)
    found = macro_f1(given, rows, given[rows], every, given * 0, labels=labels)
    assert found.needed == needed
    assert (found.share is None) == (needed > 0)
    assert found.share is not None or f"needs {needed:,} more" in str(found)


def test_texts_that_were_not_drawn_at_random_do_not_count():
    given, rows = np.arange(2_000) % 4, np.arange(100)
    found = macro_f1(given, rows, given[rows], rows < 30, given * 0, labels=4)
    # nor do those before them, as the next draws are of other texts
    assert found == MacroF1(None, 50)
    found = macro_f1(given, rows, given[rows], rows >= 70, given * 0, labels=4)
    assert found == MacroF1(None, 20)
    # nothing was drawn where candidates differ
    strata = (np.arange(2_000) > 1_000).astype(np.int64)
    every = np.ones(100, np.bool_)
    assert macro_f1(given, rows, given[rows], every, strata, labels=4).share is None
    # more were drawn before the one that was chosen, but half of them were skipped
    rows = np.arange(116)
    true = np.where(rows < 30, -1, given[rows])
    assert macro_f1(given, rows, true, rows != 60, given * 0, labels=4).share is not None
    # no more are left
    given, rows = given[:70], np.arange(46)
    found = macro_f1(given, rows, given[rows], rows != 45, given * 0, labels=4)
    assert found == MacroF1(None, 24)


def test_skipped_texts_widen_the_interval():
    given, rows = np.arange(2_000) % 4, np.arange(100)
    every, true = np.ones(100, np.bool_), given[:100].copy()
    known = macro_f1(given, rows, true, every, given * 0, labels=4).share
    true[:10] = -1
    found = macro_f1(given, rows, true, every, given * 0, labels=4).share
    assert found.high >= known.high - 0.02
    assert found.low < known.low - 0.05
    # their labels are not known, even if no other text is left
    found = macro_f1(given[:100], rows, true, every, given[:100] * 0, labels=4).share
    assert found.low <= 0.9 < found.high
    # they are no judgments
    true[:60] = -1
    assert macro_f1(given, rows, true, every, given * 0, labels=4).needed == 10
