"""Texts with several labels: scores, thresholds, trust and certificates, on arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from testnuc import InvalidInputError, StoreError
from testnuc._engine.threshold_learning import learn_thresholds
from testnuc.metrics import score
from testnuc.trust.evidence import Draws, Judged
from testnuc.trust.head import FOLDS, fit_folds, predict_folds
from testnuc.trust.learned import Learned
from testnuc.trust.thresholds import counts, fit_thresholds, jaccard, scores_of
from testnuc.voting import Labels, vote_multilabel

CLASSES, DIM = 6, 16


def made(n=400, missed=0.4, wrong=0.1, seed=0, *, head=True):
    """Return scores, right labels and heads: the LLM misses labels, and adds one to some texts."""
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
    pool = labels_of(said)
    cosines = np.clip(np.take_along_axis(near, ids, axis=1), -1, 1)
    voted = vote_multilabel(ids, cosines, np.arange(n), pool, n_classes=CLASSES)
    folds = random.integers(0, FOLDS, n)
    heads = fit_folds(vectors, said.astype(np.float32), folds, several=True) if head else ()
    return scores_of(voted, pool, folds, CLASSES, heads, vectors), gold, heads, vectors


def judged_of(gold, m, seed=0):
    n = len(gold)
    rows = np.random.default_rng(seed).permutation(n)[:m].astype(np.int64)
    return Judged(rows, labels_of(gold[rows]), Draws.at_random(n, m), np.ones(m, dtype=np.bool_))


def labels_of(table):
    return Labels.of([[(int(c), None) for c in np.flatnonzero(row)] for row in table])


def exact(scores, right, given):
    hits, count, sizes = counts(scores.vote, right, given)
    return (hits == sizes) & (count == sizes)


def sets_of(scores, given):
    found = [set() for _ in range(len(scores))]
    for row, label in zip(scores.vote.rows[given], scores.vote.label[given], strict=True):
        found[row].add(str(label))
    return found


def learned_of(scores, gold, heads, m, seed=0):
    return taught_by(scores, judged_of(gold, m, seed), heads)


def taught_by(scores, judged, heads):
    names = tuple(f"label {c}" for c in range(CLASSES))
    return learn_thresholds(scores, judged, names, 0.5, heads)


@pytest.mark.slow
def test_scores_hold_votes_and_answers_and_are_scored_as_sets_are():
    scores, gold, *_ = made(60, head=False)
    assert np.array_equal(scores.heads, scores.vote.share)
    assert np.array_equal(scores.vote.given, scores.vote.share > 0.5)
    right = labels_of(gold)
    for given in (scores.vote.given, scores.own, scores.vote.share > 0.2):
        said = sets_of(scores, given)
        found = score([set(map(str, np.flatnonzero(row))) for row in gold], said)
        assert jaccard(*counts(scores.vote, right, given)).mean() == pytest.approx(found.jaccard)
        assert exact(scores, right, given).mean() == pytest.approx(found.exact_match)
    rows = np.array([7, 3, 3])
    some = scores.at(rows)
    assert sets_of(some, some.own) == [sets_of(scores, scores.own)[row] for row in rows]
    part = jaccard(*counts(some.vote, right.at(rows), some.vote.given))
    assert part.tolist() == jaccard(*counts(scores.vote, right, scores.vote.given))[rows].tolist()


@pytest.mark.slow
def test_one_versus_rest_learns_each_label_out_of_fold():
    scores, gold, heads, vectors = made(600)
    found = predict_folds(heads, vectors, scores.folds)
    # it was fitted on labels of which the LLM misses four in ten, and adds few
    assert (found[gold].mean(), found[~gold].mean()) == pytest.approx((0.6, 0.02), abs=0.07)
    # the loss is at its minimum: no log odds are wrong on average
    for fold, head in enumerate(heads):
        others = scores.folds != fold
        said = np.zeros_like(found)
        said[scores.vote.rows[scores.own], scores.vote.label[scores.own]] = 1
        assert head.probabilities(vectors[others]).mean(axis=0) == pytest.approx(
            said[others].mean(axis=0), abs=0.01
        )


def test_thresholds_follow_judgments_and_not_those_of_their_fold():
    scores, gold, *_ = made(head=False)
    rows = np.arange(100)
    scores, right, folds = scores.at(rows), gold[rows], scores.folds[rows]

    def fitted(table):
        return fit_thresholds(scores, labels_of(table), CLASSES, 0.5)

    limits = fitted(right)
    assert limits.max() < 0.5
    truth = labels_of(right)
    best = jaccard(*counts(scores.vote, truth, scores.above(limits))).mean()
    assert best > jaccard(*counts(scores.vote, truth, scores.vote.given)).mean() + 0.1
    # other judgments of a fold leave its own thresholds
    changed, alone, never = right.copy(), right.copy(), right.copy()
    changed[folds != 2, 0] = False
    assert not np.array_equal(fitted(changed)[2], limits[2])
    alone[folds == 2, 0] = False
    assert np.array_equal(fitted(alone)[2], limits[2])
    # one judgment moves nothing, no judgment neither
    for few in (1, 0):
        some = fit_thresholds(scores.at(rows[:few]), labels_of(right[:few]), CLASSES, 0.5)
        assert some == pytest.approx(0.5, abs=0.1)
    # a label that judgments contradict gets a threshold of its own
    never[:, 0] = False
    apart = fitted(never)
    assert apart[:, 0].min() > apart[:, 1:].max()


@pytest.mark.slow
def test_judgments_prove_a_gain_or_leave_labels_as_they_are():
    scores, gold, heads, _ = made(missed=0.4)
    learned = learned_of(scores, gold, heads, 60)
    assert learned.decides in {"thresholds", "head"}
    assert learned.gain.low > 0
    right = [{str(c) for c in np.flatnonzero(row)} for row in gold]
    before = score(right, sets_of(scores, scores.vote.given)).jaccard
    after = score(right, sets_of(scores, learned.rule.decide(scores).given)).jaccard
    assert after > before + 0.1
    assert abs(learned.gain.value - (after - before)) < 0.1
    assert set(learned.thresholds) == set(learned.labels)
    assert "points of the Jaccard index" in str(learned)
    good, gold, heads, _ = made(missed=0.02, wrong=0.02)
    kept = learned_of(good, gold, heads, 60)
    assert kept.decides == "settings"
    assert np.array_equal(kept.rule.decide(good).given, good.vote.given)
    assert kept.thresholds == {}


@pytest.mark.slow
def test_trust_is_calibrated_and_what_was_learned_survives_bytes():
    scores, gold, heads, _ = made(1_500)
    learned = learned_of(scores, gold, heads, 300)
    found = learned.rule.decide(scores)
    given, chances, trust = found.given, found.chance, found.trust
    right = labels_of(gold)
    is_exact, applies = exact(scores, right, given), scores.vote.among(right)
    assert trust.mean() == pytest.approx(is_exact.mean(), abs=0.05)
    sure = trust >= np.median(trust)
    assert is_exact[sure].mean() > is_exact[~sure].mean() + 0.1
    for low, high in ((0, 0.5), (0.5, 0.9), (0.9, 1)):
        some = (chances > low) & (chances <= high)
        assert chances[some].mean() == pytest.approx(applies[some].mean(), abs=0.1)
    again = Learned.from_bytes(learned.to_bytes())
    assert again.to_bytes() == learned.to_bytes()
    assert again.certify(0.7) == learned.certify(0.7)
    assert learned.macro_f1() is None
    by_label = again.certify(0.7, label="label 2")
    assert by_label == learned.certify(0.7, label="label 2")
    assert "none was judged since trust was learned" in str(by_label)
    with pytest.raises(InvalidInputError, match="did you mean 'label 2'"):
        again.certify(label="labell 2")
    with pytest.raises(StoreError, match="damaged"):
        Learned.from_bytes(b"no")


def test_skipped_texts_prove_nothing():
    scores, gold, heads, _ = made()
    judged = judged_of(gold, 60)
    none = Judged(judged.rows, Labels.of([None] * 60), judged.draws, judged.person)
    learned = taught_by(scores, none, heads)
    assert learned.decides == "settings"
    assert not learned.right.any()


def test_skipped_texts_on_which_labels_would_change_count_as_lost():
    scores, gold, *_ = made(missed=0.2, wrong=1.5, seed=2, head=False)
    judged = judged_of(gold, 80, seed=2)
    some, right = scores.at(judged.rows), judged.right
    kept, llm = (jaccard(*counts(some.vote, right, given)) for given in (some.vote.given, some.own))
    # who judges skips what the LLM gets wrong
    said = [
        None if lost else [(int(c), None) for c in np.flatnonzero(row)]
        for lost, row in zip(llm < kept, gold[judged.rows], strict=True)
    ]
    learned = taught_by(scores, replace(judged, right=Labels.of(said)), ())
    assert learned.decides == "settings"
