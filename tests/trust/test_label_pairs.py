"""Texts with several labels: scores, thresholds, trust and certificates, on arrays."""

from __future__ import annotations

import numpy as np
import pytest

from testnuc import InvalidInputError, StoreError
from testnuc.evaluation import score_multilabel
from testnuc.trust.evidence import Draws
from testnuc.trust.head import FOLDS, fit_one_vs_rest, predict_folds
from testnuc.trust.label_pairs import Truth, fit_thresholds, pairs_of
from testnuc.trust.multilabel import JudgedSets, MultilabelLearned, learn_sets
from testnuc.voting import PoolLabels, vote_multilabel

CLASSES, DIM = 6, 16


def made(n=400, missed=0.4, wrong=0.1, seed=0, *, head=True):
    """Return pairs, right labels and heads: the LLM misses labels, and adds one to some texts."""
    random = np.random.default_rng(seed)
    sets = random.random((20, CLASSES)) < 0.3
    of_text = random.integers(0, len(sets), n)
    gold = sets[of_text]
    vectors = gold @ random.normal(size=(CLASSES, DIM)) + 0.5 * random.normal(size=(n, DIM))
    vectors += random.normal(size=DIM)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    said = (gold & (random.random(gold.shape) >= missed)) | (random.random(gold.shape) < wrong / 6)
    near = vectors @ vectors.T - 2 * np.eye(n)
    ids = np.argsort(-near, axis=1)[:, :10]
    pool = PoolLabels.of([[(int(c), None) for c in np.flatnonzero(row)] for row in said])
    cosines = np.clip(np.take_along_axis(near, ids, axis=1), -1, 1)
    voted = vote_multilabel(ids, cosines, np.arange(n), pool, n_classes=CLASSES)
    folds = random.integers(0, FOLDS, n)
    heads = fit_one_vs_rest(vectors, said.astype(np.float32), folds) if head else ()
    return pairs_of(voted, pool, folds, CLASSES, heads, vectors), gold, heads, vectors


def judged_of(gold, m, seed=0):
    n = len(gold)
    rows = np.random.default_rng(seed).permutation(n)[:m].astype(np.int64)
    right = [frozenset(np.flatnonzero(gold[row]).tolist()) for row in rows]
    return JudgedSets(rows, right, Draws.at_random(n, m), np.ones(m, dtype=np.bool_))


def sets_of(pairs, given):
    found = [set() for _ in range(len(pairs))]
    for row, label in zip(pairs.rows[given], pairs.labels[given], strict=True):
        found[row].add(str(label))
    return found


def learned_of(pairs, gold, heads, m, seed=0):
    names = [f"label {c}" for c in range(CLASSES)]
    return learn_sets(pairs, judged_of(gold, m, seed), names, 0.5, heads)


@pytest.mark.slow
def test_pairs_hold_votes_and_answers_and_are_scored_as_sets_are():
    pairs, gold, *_ = made(60, head=False)
    assert np.array_equal(pairs.heads, pairs.shares)
    assert np.array_equal(pairs.given, pairs.shares > 0.5)
    right = [frozenset(np.flatnonzero(row).tolist()) for row in gold]
    truth = Truth.of(pairs, right)
    for given in (pairs.given, pairs.own, pairs.shares > 0.2):
        said = sets_of(pairs, given)
        scores = score_multilabel([set(map(str, one)) for one in right], said)
        assert truth.jaccard(given).mean() == pytest.approx(scores.jaccard)
        assert truth.exact(given).mean() == pytest.approx(scores.exact_match)
    rows = np.array([7, 3, 3])
    some, part = pairs.at(rows), truth.at(rows)
    assert sets_of(some, some.own) == [sets_of(pairs, pairs.own)[row] for row in rows]
    assert part.jaccard(some.given).tolist() == truth.jaccard(pairs.given)[rows].tolist()


@pytest.mark.slow
def test_one_versus_rest_learns_each_label_out_of_fold():
    pairs, gold, heads, vectors = made(600)
    found = predict_folds(heads, vectors, pairs.folds)
    # it was fitted on labels of which the LLM misses four in ten, and adds few
    assert (found[gold].mean(), found[~gold].mean()) == pytest.approx((0.6, 0.02), abs=0.07)
    # the loss is at its minimum: no log odds are wrong on average
    for fold, head in enumerate(heads):
        others = pairs.folds != fold
        said = np.zeros_like(found)
        said[pairs.rows[pairs.own], pairs.labels[pairs.own]] = 1
        assert head.probabilities(vectors[others]).mean(axis=0) == pytest.approx(
            said[others].mean(axis=0), abs=0.01
        )


def test_thresholds_follow_judgments_and_not_those_of_their_fold():
    pairs, gold, *_ = made(head=False)
    right = [frozenset(np.flatnonzero(row).tolist()) for row in gold]
    rows = np.arange(100)
    truth = Truth.of(pairs.at(rows), right[:100])
    limits = fit_thresholds(truth, CLASSES, 0.5)
    assert limits.max() < 0.5
    best = truth.jaccard(truth.pairs.above(limits)).mean()
    assert best > truth.jaccard(truth.pairs.given).mean() + 0.1
    # other judgments of a fold leave its own thresholds
    folds = truth.pairs.folds
    changed = [right[i] - {0} if folds[i] != 2 else right[i] for i in range(100)]
    other = fit_thresholds(Truth.of(pairs.at(rows), changed), CLASSES, 0.5)
    assert not np.array_equal(other[2], limits[2])
    alone = [right[i] - {0} if folds[i] == 2 else right[i] for i in range(100)]
    other = fit_thresholds(Truth.of(pairs.at(rows), alone), CLASSES, 0.5)
    assert np.array_equal(other[2], limits[2])
    # one judgment moves nothing, no judgment neither
    for few in (1, 0):
        one = Truth.of(pairs.at(rows[:few]), right[:few])
        assert fit_thresholds(one, CLASSES, 0.5) == pytest.approx(0.5, abs=0.1)
    # a label that judgments contradict gets a threshold of its own
    never = [labels - {0} for labels in right[:100]]
    apart = fit_thresholds(Truth.of(pairs.at(rows), never), CLASSES, 0.5)
    assert apart[:, 0].min() > apart[:, 1:].max()


@pytest.mark.slow
def test_judgments_prove_a_gain_or_leave_labels_as_they_are():
    pairs, gold, heads, _ = made(missed=0.4)
    learned = learned_of(pairs, gold, heads, 60)
    assert learned.decides in {"thresholds", "head"}
    assert learned.gain.low > 0
    right = [{str(c) for c in np.flatnonzero(row)} for row in gold]
    before = score_multilabel(right, sets_of(pairs, pairs.given)).jaccard
    after = score_multilabel(right, sets_of(pairs, learned.apply(pairs).given)).jaccard
    assert after > before + 0.1
    assert abs(learned.gain.value - (after - before)) < 0.1
    assert set(learned.thresholds) == set(learned.labels)
    assert "points of the Jaccard index" in str(learned)
    good, gold, heads, _ = made(missed=0.02, wrong=0.02)
    kept = learned_of(good, gold, heads, 60)
    assert kept.decides == "settings"
    assert np.array_equal(kept.apply(good).given, good.given)
    assert kept.thresholds == {}


@pytest.mark.slow
def test_trust_is_calibrated_and_what_was_learned_survives_bytes():
    pairs, gold, heads, _ = made(1_500)
    learned = learned_of(pairs, gold, heads, 300)
    applied = learned.apply(pairs)
    right = [frozenset(np.flatnonzero(row).tolist()) for row in gold]
    truth = Truth.of(pairs, right)
    exact = truth.exact(applied.given)
    assert applied.trust.mean() == pytest.approx(exact.mean(), abs=0.05)
    sure = applied.trust >= np.median(applied.trust)
    assert exact[sure].mean() > exact[~sure].mean() + 0.1
    for low, high in ((0, 0.5), (0.5, 0.9), (0.9, 1)):
        some = (applied.chances > low) & (applied.chances <= high)
        assert applied.chances[some].mean() == pytest.approx(truth.right[some].mean(), abs=0.1)
    again = MultilabelLearned.from_bytes(learned.to_bytes())
    assert again.to_bytes() == learned.to_bytes()
    assert again.certify(0.7) == learned.certify(0.7)
    by_label = again.certify(0.7, label="label 2")
    assert by_label == learned.certify(0.7, label="label 2")
    assert "of the texts with the label 'label 2', those with a trust" in str(by_label)
    with pytest.raises(InvalidInputError, match="did you mean 'label 2'"):
        again.certify(label="labell 2")
    with pytest.raises(StoreError, match="damaged"):
        MultilabelLearned.from_bytes(b"no")


def test_skipped_texts_prove_nothing():
    pairs, gold, heads, _ = made()
    judged = judged_of(gold, 60)
    none = JudgedSets(judged.rows, [None] * 60, judged.draws, judged.person)
    learned = learn_sets(pairs, none, [f"label {c}" for c in range(CLASSES)], 0.5, heads)
    assert learned.decides == "settings"
    assert not learned.right.any()


@pytest.mark.slow
def test_certificates_are_wrong_as_seldom_as_promised():
    pairs, gold, heads, _ = made(1_000, missed=0.3)
    right = [frozenset(np.flatnonzero(row).tolist()) for row in gold]
    truth = Truth.of(pairs, right)
    wrong = certified = of_label = wrong_label = 0
    for seed in range(60):
        learned = learned_of(pairs, gold, heads, 200, seed)
        certificate = learned.certify(0.8, 0.9)
        if certificate.part:
            inside = learned.trust >= certificate.trust
            certified += 1
            wrong += truth.exact(learned.apply(pairs).given)[inside].mean() < 0.8
        certificate = learned.certify(0.8, 0.9, label="label 1")
        if certificate.part:
            given = learned.given_labels == 1
            inside = learned.given_rows[given][learned.given_chances[given] >= certificate.trust]
            assert certificate.part == len(inside) / given.sum()
            of_label += 1
            wrong_label += gold[inside, 1].mean() < 0.8
    assert of_label > 15
    assert wrong_label <= 12
    assert certified > 30
    # at most 10 % are expected; more than 12 of 60 has a chance below 1 %
    assert wrong <= 12
