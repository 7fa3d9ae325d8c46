"""The statement of accuracy: its intervals hold, whatever was drawn besides."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import hypergeom

from testnuc.trust.candidates import candidates_of, chosen_parts
from testnuc.trust.evidence import Judgment, weights_of
from testnuc.trust.joining import judge_error
from testnuc.trust.macro import macro_f1
from testnuc.trust.model import teach
from testnuc.trust.review import draw
from testnuc.trust.shares import Share, accuracy_of, combined, draws_lacking, label_accuracy
from tests.trust.arrays import clusters


def world(random, n=400):
    """Return trust, and whether labels are right now and before; the LLM errs more often."""
    trust = random.beta(3, 1.5, n)
    right = random.random(n) < trust
    return trust, right, right & (random.random(n) < 0.65)


def judged(random, trust, m, ranked):
    """Draw a default review of m texts, then some of the most trusted ones."""
    n = len(trust)
    differ = trust < 0.6
    found = draw(m, None, differ, np.ones(n, np.bool_), trust, random)
    rows = np.array([d.row for d in found], dtype=np.int64)
    left = np.setdiff1d(np.argsort(-trust)[: int(0.4 * n)], rows)
    top = random.permutation(left)[:ranked]
    later = np.arange(len(rows) + len(top)) >= len(rows)
    return differ, np.append(rows, top), ~later, later


@pytest.mark.parametrize(("m", "ranked"), [(60, 0), (60, 60), (250, 0)])
@pytest.mark.slow
def test_the_interval_misses_the_accuracy_as_seldom_as_it_says(m, ranked):
    missed, draws = np.zeros(2), 1_000
    for seed in range(draws):
        random = np.random.default_rng(seed)
        trust, right, own = world(random)
        differ, rows, *drawn = judged(random, trust, m, ranked)
        found = accuracy_of(differ, rows, right[rows], own[rows].astype(np.int8), *drawn)
        now = right.copy()
        now[rows] = True
        for kind, (share, true) in enumerate([(found.before, own), (found.now, now)]):
            missed[kind] += not share.low <= true.mean() <= share.high
    assert (missed / draws <= 0.07).all()


def judgment(one):
    """Return the judgment of a text that was drawn among 500."""
    alike = one.goal != "decide"
    return Judgment("", b"", None, "person", one.probability, one.floor, 500, alike)


@pytest.mark.parametrize("goals", [[None], [None, "count"], [None, "decide"]])
@pytest.mark.slow
def test_candidates_may_differ_on_other_texts_by_now(goals):
    """Texts drawn as disagreements were among others since: too few labels seemed right."""
    missed, errors, draws = np.zeros(2), np.zeros((2, 1_000)), 1_000
    for seed in range(draws):
        random = np.random.default_rng(seed)
        right = random.random(1_500) < 0.6
        then, new = random.random((2, 1_500)) < np.where(right, 0.12, 0.6)
        now = np.where(random.random(1_500) < 0.3, then, new)
        open_, judgments, rows = np.ones(500, np.bool_), [], []
        for goal in goals:
            for one in draw(60, goal, then[:500], open_, np.zeros(500), random):
                open_[one.row] = False
                judgments.append(judgment(one))
                rows.append(one.row)
        said, every = right[rows], np.ones(len(rows), np.bool_)
        given = (said, said.astype(np.int8), every, ~every)
        for kind, weights in enumerate([None, weights_of(judgments, now[rows])]):
            found = accuracy_of(now, np.array(rows), *given, weights).before
            missed[kind] += not found.low <= right.mean() <= found.high
            errors[kind, seed] = found.value - right.mean()
        # nothing else where they still differ
        weights = weights_of(judgments, then[rows])
        assert len(np.unique(weights[then[rows]])) <= 1 >= len(np.unique(weights[~then[rows]]))
    assert missed[1] / draws <= 0.05 < missed[0] / draws
    assert abs(errors[1].mean()) < 0.025 < -errors[0].mean()


def f1_of(given, true):
    both = [(given == label, true == label) for label in range(3)]
    return np.mean([2 * (a & b).sum() / (a.sum() + b.sum()) for a, b in both])


@pytest.mark.parametrize("goals", [[None], [None, "count"], [None, "decide"]])
@pytest.mark.slow
def test_also_labels_of_which_candidates_differ_on_other_texts_by_now(goals):
    """The precision of a label, and macro F1, were as much too low as accuracy."""
    missed, errors, draws = np.zeros((2, 3)), np.zeros((2, 3)), 200
    for seed in range(draws):
        random = np.random.default_rng(seed)
        right = random.random(1_500) < 0.6
        then, new = random.random((2, 1_500)) < np.where(right, 0.12, 0.6)
        now = np.where(random.random(1_500) < 0.3, then, new)
        given = random.choice(3, 1_500, p=[0.5, 0.3, 0.2])
        true = np.where(right, given, (given + random.integers(1, 3, 1_500)) % 3)
        open_, found = np.ones(500, np.bool_), []
        for goal in goals:
            found += draw(100, goal, then[:500], open_, np.zeros(500), random)
            open_[[one.row for one in found]] = False
        rows, every = np.array([one.row for one in found]), np.ones(len(found), np.bool_)
        known, facts = given.copy(), (now, rows, ~every, every, ~every)
        known[rows] = true[rows]
        exact = [(true == 0)[known == 0].mean(), (given == 0)[true == 0].mean(), f1_of(known, true)]
        judgments = [judgment(one) for one in found]
        for kind, weights in enumerate([None, weights_of(judgments, now[rows])]):
            one = label_accuracy(given == 0, true[rows] == 0, *facts, weights)
            all_of = macro_f1(given, rows, true[rows], every, now * 1, weights, labels=3).share
            for at, share in enumerate([one.precision, one.recall, all_of]):
                missed[kind, at] += not share.low - 1e-9 <= exact[at] <= share.high + 1e-9
                errors[kind, at] += (share.value - exact[at]) / draws
    assert (missed[1] / draws <= 0.06).all()
    assert missed[0, 2] / draws > 0.1
    assert (abs(errors[1]) < abs(errors[0])).all()
    assert abs(errors[1, [0, 2]]).max() < 0.04


@pytest.mark.parametrize("goals", ["correct count", "count correct count", "correct", "half count"])
def test_what_was_chosen_before_the_draws_is_known(goals):
    """Draws from the others were taken for draws from all: too many labels seemed right."""
    missed, known, n = np.zeros(2), 0, 300
    for seed in range(200):
        random = np.random.default_rng(seed)
        trust, right, own = world(random, n)
        open_, rows, drawn, skipped = np.ones(n, np.bool_), [], [], []
        for goal in goals.split():
            count, wanted = (60, "correct") if goal != "count" else (40, "count")
            for one in draw(count, wanted, trust < 0.6, open_, trust, random):
                open_[one.row] = False
                rows.append(one.row)
                drawn.append(one.probability is not None)
                skipped.append(goal == "half" and random.random() < 0.5)
        rows, drawn, skipped = map(np.array, (rows, drawn, skipped))
        before, now = np.where(skipped, -1, own[rows]).astype(np.int8), right.copy()
        now[rows[~skipped]] = True
        judged = (right[rows] & ~skipped, before, drawn, np.zeros(len(rows), np.bool_))
        if found := accuracy_of(np.zeros(n, np.bool_), rows, *judged):
            known += 1
            for kind, (share, true) in enumerate([(found.before, own), (found.now, now)]):
                missed[kind] += not share.low <= true.mean() <= share.high
    assert known == (200 if "count" in goals else 0)
    assert (missed <= 14).all(), missed


@pytest.mark.parametrize("skipped_are", [True, False])
def test_what_is_skipped_may_be_right_in_all_parts_at_once(skipped_are):
    missed, n = 0, 600
    for seed in range(200):
        random = np.random.default_rng(seed)
        skips = random.random(n) < 0.3
        right = np.where(skips, skipped_are, random.random(n) < 0.8)
        rows, drawn = random.permutation(n)[:200], np.arange(200) >= 100
        before = np.where(skips[rows], -1, right[rows]).astype(np.int8)
        judged = (right[rows] & ~skips[rows], before, drawn, ~drawn & False)
        found = accuracy_of(np.zeros(n, np.bool_), rows, *judged)
        missed += not found.before.low <= right.mean() <= found.before.high
    assert missed <= 14


@pytest.mark.slow
@pytest.mark.parametrize("goals", ["count correct", "count correct count", "correct count"])
def test_what_was_chosen_since_the_draws_was_drawn_from(goals):
    """The rate of errors before the corrections was that of the texts that were left."""
    missed, draws, n = np.zeros(2), 100, 400
    for seed in range(draws):
        random = np.random.default_rng(seed)
        trust = random.random(n)
        right, given = random.random(n) < 0.6 + 0.4 * trust, random.choice(3, n, p=[0.5, 0.3, 0.2])
        true = np.where(right, given, (given + random.integers(1, 3, n)) % 3)
        open_, rows, drawn = np.ones(n, np.bool_), [], []
        for goal in goals.split():
            found = draw(60 if goal == "count" else 80, goal, ~open_, open_, trust, random)
            rows += [one.row for one in found]
            drawn += [goal == "count"] * len(found)
            open_[rows] = False
        rows, drawn, none = np.array(rows), np.array(drawn), np.zeros(len(rows), np.bool_)
        known = given.copy()
        known[rows] = true[rows]
        facts = (np.zeros(n, np.bool_), rows, none, drawn, none)
        precision = label_accuracy(given == 0, true[rows] == 0, *facts).precision
        share = macro_f1(given, rows, true[rows], drawn, np.zeros(n, np.int64), labels=3).share
        exact = (true == 0)[known == 0].mean(), f1_of(known, true)
        for kind, (one, truth) in enumerate(zip([precision, share], exact, strict=True)):
            missed[kind] += not one.low - 1e-9 <= truth <= one.high + 1e-9
    assert (missed / draws <= 0.08).all(), missed


def test_the_weights_of_what_older_versions_stored_and_of_nothing():
    assert len(weights_of([], np.zeros(0, np.bool_))) == 0
    random = np.random.default_rng(3)
    then, now = random.random((2, 500)) < 0.4
    found = draw(200, None, then, np.ones(500, np.bool_), np.zeros(500), random)
    judgments, rows = [judgment(one) for one in found], [one.row for one in found]
    older = [replace(one, uniform=None) for one in judgments]
    by_referee = [replace(one, source="referee") for one in judgments]
    new, old = (weights_of(every, now[rows]).max() for every in (judgments, older))
    assert old == pytest.approx(new, rel=0.3)
    assert new > 1.5
    # draws of a referee do not count
    assert (weights_of(by_referee, now[rows]) == 1).all()


def test_errors_that_were_looked_for_say_nothing_of_the_others():
    """Who corrects most errors by hand leaves few: the rate of the draws was taken for the rest."""
    missed, n = np.zeros(2), 1_000
    for seed in range(100):
        random = np.random.default_rng(seed)
        trust, right, own = world(random, n)
        rows = random.choice(n, 100, replace=False)
        left = np.setdiff1d(np.flatnonzero(~right), rows)
        rows = np.append(rows, random.permutation(left)[: len(left) // 2])
        drawn, now = np.arange(len(rows)) < 100, right.copy()
        now[rows] = True
        judged = (right[rows], own[rows].astype(np.int8), drawn, np.zeros(len(rows), np.bool_))
        found = accuracy_of(trust < 0.6, rows, *judged)
        for kind, (share, true) in enumerate([(found.before, own), (found.now, now)]):
            missed[kind] += not share.low <= true.mean() <= share.high
    assert (missed <= 10).all()


@pytest.mark.slow
def test_the_interval_of_a_group_misses_its_accuracy_as_seldom_as_it_says():
    """Groups differ in how many labels are right, and each has its own part of the draws."""
    missed, known = np.zeros(2), 0
    for seed in range(500):
        random = np.random.default_rng(seed)
        trust, _, _ = world(random)
        group = random.integers(0, 4, len(trust))
        right = random.random(len(trust)) < np.clip(trust - 0.08 * group + 0.1, 0, 1)
        own = right & (random.random(len(trust)) < 0.65 + 0.05 * group)
        differ, rows, drawn, ranked = judged(random, trust, 100, 0)
        now = right.copy()
        now[rows] = True
        for inside in (group == at for at in range(4)):
            by = inside[rows]
            places = (np.cumsum(inside) - 1)[rows[by]]
            of_each = (right[rows[by]], own[rows[by]].astype(np.int8), drawn[by], ranked[by])
            if found := accuracy_of(differ[inside], places, *of_each):
                known += 1
                for kind, (share, true) in enumerate([(found.before, own), (found.now, now)]):
                    missed[kind] += not share.low <= true[inside].mean() <= share.high
    assert known > 1_500
    assert (missed / known <= 0.06).all()


@pytest.mark.slow
@pytest.mark.parametrize(("n", "m"), [(200, 40), (300, 12), (120, 25)])
def test_draws_from_all_texts_alike_need_no_strata(n, m):
    """Of forty draws among later texts often fewer than five are where candidates differ."""
    missed, known = np.zeros(2), 0
    for seed in range(1_000):
        random = np.random.default_rng(seed)
        _, right, own = world(random, n)
        differ = random.random(n) < np.where(right & own, 0.02, 0.15)
        rows, every, none = random.permutation(n)[:m], np.ones(m, np.bool_), np.zeros(m, np.bool_)
        of_each = (right[rows], own[rows].astype(np.int8), every, none)
        if accuracy_of(differ, rows, *of_each) is not None:
            continue
        known += 1
        found = accuracy_of(differ, rows, *of_each, alike=True)
        now = right.copy()
        now[rows] = True
        for kind, (share, true) in enumerate([(found.before, own), (found.now, now)]):
            missed[kind] += not share.low <= true.mean() <= share.high
    assert known > 200
    assert (missed / known <= 0.07).all(), missed / known


def test_too_few_random_draws_say_nothing():
    random = np.random.default_rng(0)
    trust, right, own = world(random)
    rows = random.permutation(400)[:40]
    before, none = own[rows].astype(np.int8), np.zeros(40, np.bool_)
    assert accuracy_of(np.zeros(400, np.bool_), rows, right[rows], before, none, none) is None
    # those of the most trusted texts say nothing of the others
    top = np.argsort(-trust)[:40]
    before = own[top].astype(np.int8)
    assert accuracy_of(np.zeros(400, np.bool_), top, right[top], before, none, ~none) is None
    assert accuracy_of(np.zeros(400, np.bool_), top, right[top], before, ~none, none) is not None


def test_skipped_texts_widen_the_interval_and_judged_ones_are_right():
    rows, right = np.arange(50), np.arange(50) % 2 == 0
    every, none = np.ones(50, np.bool_), np.zeros(50, np.bool_)
    found = accuracy_of(none, rows, right, right.astype(np.int8), every, none)
    assert (found.now.value, found.now.low, found.to_halve) == (1.0, 1.0, 0)
    assert found.before.low == found.before.high == pytest.approx(0.5)
    skipped = right.astype(np.int8)
    skipped[:10] = -1
    found = accuracy_of(none, rows, right, skipped, every, none)
    assert found.now.low < found.now.high <= 1
    assert "another judge may differ" in str(found)
    # a judge who errs may do so in any text
    found = replace(
        found, now=Share(0.91, 0.86, 0.95), before=Share(0.5, 0.4, 0.6), judge_error=0.09
    )
    assert str(found).startswith(
        "About 91 % (86 to 95) of the labels of 50 texts are right by your judgments, and 50 % (40 "
        "to 60) of the LLM's own; with the errors of judges 77 to 100 %, and 31 to 69 % of the "
        "LLM's own."
    )


def test_with_the_errors_of_judges_the_interval_holds_the_truth():
    """Each judge is wrong in one of 25 texts; a fifth of the texts is judged by two."""
    n, m, shared = 2_000, 200, 40
    same, every, none = np.zeros(n, np.bool_), np.ones(m, np.bool_), np.zeros(m, np.bool_)
    alone = allowing = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        right, rows = random.random(n) < 0.97, random.permutation(n)[:m]
        err, again = random.random((2, m)) < 0.04
        said = right[rows] ^ err
        found = accuracy_of(same, rows, said, said.astype(np.int8), every, none).before
        wide = found.allowing(judge_error((err == again)[:shared].tolist()))
        alone += found.low <= right.mean() <= found.high
        allowing += wide.low <= right.mean() <= wide.high
    assert alone < 60
    assert allowing >= 95


def test_the_draws_that_an_accuracy_lacks():
    differs = np.arange(100) < 20
    some, all_of = np.array([0, 1, 2, 30, 31, 32, 33, 34]), np.arange(100)
    none, every = np.zeros(8, np.bool_), np.ones(8, np.bool_)
    # two more of the 17 that differ; the others are enough
    assert draws_lacking(differs, some) == pytest.approx(2 / 17)
    assert draws_lacking(np.zeros(100, np.bool_), some) == 0
    assert draws_lacking(differs, all_of) == 0
    right = every.copy()
    assert accuracy_of(differs, some, right, right.astype(np.int8), every, none) is None
    # fewer than ten need strata also where each text had the same chance
    given = (right, right.astype(np.int8), every, none)
    assert accuracy_of(differs, some, *given, alike=True) is None


@pytest.mark.parametrize("skip", [0.0, 0.1])
def test_the_intervals_of_a_label_miss_as_seldom_as_they_say(skip):
    """Also of a label with three judged texts, some in a stratum without any."""
    missed, given, recalls, draws = np.zeros(3), np.zeros(3), [], 200
    for seed in range(draws):
        random = np.random.default_rng(seed)
        trust, right, _ = world(random)
        label = random.choice(3, len(trust), p=[0.6, 0.3, 0.1])
        true = np.where(right, label, (label + random.integers(1, 3, len(trust))) % 3)
        differ, rows, drawn, ranked = judged(random, trust, 80, 20)
        skipped = random.random(len(rows)) < skip
        now = label.copy()
        now[rows[~skipped]] = true[rows[~skipped]]
        for kind in range(3):
            of_judged = (skipped, drawn, ranked)
            said = (true[rows] == kind) & ~skipped
            found = label_accuracy(label == kind, said, differ, rows, *of_judged)
            if (share := found.precision) is not None:
                assert 0 <= share.low <= share.value <= share.high <= 1
                given[kind] += 1
                true_share = (true == kind)[now == kind].mean()
                missed[kind] += not share.low - 1e-9 <= true_share <= share.high + 1e-9
            share = found.recall
            true_share = (label == kind)[true == kind].mean()
            if share is not None:
                recalls.append(share.low <= true_share <= share.high)
    assert given[0] == draws
    assert given[2] > 0.8 * draws
    assert (missed / given <= 0.05).all()
    assert len(recalls) > draws / 2
    assert np.mean(recalls) > 0.95


def test_the_intervals_of_a_label_in_two_parts_miss_as_seldom_as_they_say():
    """Of a label of later texts alone it was said that none of its texts is judged."""
    missed, given, recalls, later = np.zeros(2), np.zeros(2), [], np.arange(700) >= 500
    for seed in range(200):
        random = np.random.default_rng(seed)
        new = random.random(700) < np.where(later, 0.4, 0.1)
        right, differ = random.random(700) < np.where(later, 0.75, 0.95), random.random(700) < 0.3
        rows = np.append(random.permutation(500)[:100], 500 + random.permutation(200)[:40])
        every, none = np.ones(140, np.bool_), np.zeros(140, np.bool_)
        true, now = new ^ ~right, new.copy()
        now[rows] = true[rows]
        for kind, one in enumerate([new, ~new]):
            said, of = true ^ bool(kind), now ^ bool(kind)
            found = label_accuracy(one, said[rows], differ + 2 * later, rows, none, every, none)
            assert found.judged == one[rows].sum()
            if (share := found.precision) is not None:
                given[kind] += 1
                missed[kind] += not share.low - 1e-9 <= said[of].mean() <= share.high + 1e-9
            if (share := found.recall) is not None:
                recalls.append(share.low <= one[said].mean() <= share.high)
    assert given.min() == 200
    assert (missed / given <= 0.05).all()
    assert len(recalls) > 200
    assert np.mean(recalls) > 0.95


def test_few_judged_texts_of_a_label_have_a_wide_interval():
    def said(m, right, differs=np.zeros(200, np.bool_)):  # noqa: B008
        every, none, rows = np.ones(m, np.bool_), np.zeros(m, np.bool_), np.arange(m)
        facts = (differs, rows, none, every, none)
        return label_accuracy(np.arange(200) < 100, rows < right, *facts)

    # as Clopper and Pearson say of three of three in a hundred
    found = said(3, 3)
    least = next(hits for hits in range(101) if hypergeom.pmf(3, 100, hits, 3) > 0.025)
    assert found.precision == Share(1.0, pytest.approx(least / 100), 1.0)
    assert (found.recall, found.judged) == (None, 3)
    assert str(found) == "100 % (30 to 100), 3 judged"
    assert str(said(2, 2)) == "not known, 2 judged"
    # the half in which nothing was drawn may all be wrong
    assert said(3, 3, (np.arange(200) >= 50)).precision.low < 0.2
    assert said(10, 10).recall == Share(1.0, pytest.approx(0.6915, abs=1e-3), 1.0)


def test_a_small_stratum_needs_no_draws():
    """A few texts on which strategies differ asked for judgments of nearly all texts."""
    differs, rows = np.arange(1_000) < 20, np.arange(30, 70)
    every, none = np.ones(40, np.bool_), np.zeros(40, np.bool_)
    assert draws_lacking(differs, rows) == 0
    found = accuracy_of(differs, rows, every, every.astype(np.int8), every, none)
    assert found.before.low < 0.95 <= found.before.high
    assert draws_lacking(np.arange(1_000) < 21, rows) > 0


@pytest.mark.slow
def test_judged_texts_are_labeled_by_fits_as_good_as_that_of_the_others():
    """Where each judgment teaches much, a fit without a fifth of them is clearly worse."""
    texts, gold = clusters(400, 8, 24, wrong=0.1, spread=0.25)
    # the LLM does not tell the labels of a pair apart
    texts = replace(texts, own=np.where(texts.own >= 0, texts.own // 2 * 2, -1).astype(np.int32))
    heads = chosen_parts(candidates_of(texts))[1]
    grounds = [head.ground(texts) for head in heads]
    better = []
    for seed in range(40):
        rows = np.random.default_rng(seed).permutation(400)[:30]
        taught = teach(heads, texts.with_judged(rows, gold[rows]), None, grounds)
        right = taught.probabilities.argmax(axis=1) == gold
        better.append(np.delete(right, rows).mean() - right[rows].mean())
    assert np.mean(better) < 0.01


def test_parts_that_were_drawn_from_apart_have_one_accuracy():
    """Draws from the first texts alone said how right all are."""
    random, held = np.random.default_rng(5), []
    for _ in range(400):
        parts, truths = [], []
        for n, drawn, chance in ((1_800, 60, 0.93), (300, 40, 0.75)):
            right, same = random.random(n) < chance, np.zeros(n, np.bool_)
            rows = random.choice(n, drawn, replace=False)
            every, said = np.ones(drawn, np.bool_), right[rows]
            parts.append(accuracy_of(same, rows, said, said.astype(np.int8), every, ~every))
            truths.append(right.sum())
        found = combined(parts)
        assert (found.texts, found.to_halve) == (2_100, sum(one.to_halve for one in parts))
        held.append(found.before.low <= sum(truths) / 2_100 <= found.before.high)
    # nominal .97
    assert np.mean(held) >= 0.94
    assert combined(parts[:1]).now.high == pytest.approx(parts[0].now.high)
