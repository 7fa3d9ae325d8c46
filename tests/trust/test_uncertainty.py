"""Texts are skipped where a head agrees with the LLM; what is proved holds."""

from __future__ import annotations

import numpy as np
import pytest

from testnuc import UncertaintySampling
from testnuc.index.nearest import NearestVectors
from testnuc.trust.head import folds_of
from testnuc.trust.model import Texts
from testnuc.trust.shares import upper_bound
from testnuc.trust.uncertainty import UncertaintySampler
from tests import naive

CLASSES, DIM, N = 4, 12, 1_500


def drawn(seed, noise):
    """Return texts around class centers, hashes, and an LLM's labels that are wrong at random."""
    random = np.random.default_rng(seed)
    gold = random.integers(CLASSES, size=N)
    vectors = random.normal(scale=0.5, size=(N, DIM))
    vectors[np.arange(N), gold] += 1.2
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = vectors.astype(np.float16)
    own = np.where(random.random(N) < noise, random.integers(CLASSES, size=N), gold)
    hashes = [random.bytes(16) for _ in range(N)]
    index = NearestVectors(DIM, exact_below=N + 1)
    index.add(vectors, np.arange(N, dtype=np.uint64))
    near, similarity = index.search(vectors, 30, exclude=np.arange(N, dtype=np.int64))
    empty = np.full(N, -1, dtype=np.int32)
    texts = Texts(vectors, empty, near, similarity, folds_of(hashes), CLASSES)
    return texts, hashes, own.astype(np.int32)


def run(seed, noise, rule, unlabeled=0.0):
    texts, hashes, own = drawn(seed, noise)
    own[np.random.default_rng(seed).random(N) < unlabeled] = -1
    sampler = UncertaintySampler(texts, hashes, rule)
    chosen, given = sampler.first, np.full(N, -1, dtype=np.int32)
    rounds = 0
    while len(chosen):
        assert (given[chosen] == -1).all()
        # it never sees a label of a text that was not asked about
        given[chosen] = own[chosen]
        assert (given[sampler.asked] == own[sampler.asked]).all()
        chosen = sampler.next(given.copy())
        rounds += 1
    assert (given[~sampler.asked] == -1).all()
    return sampler, own, rounds


@pytest.mark.slow
def test_what_is_proved_holds_in_nine_of_ten_runs():
    wrong = spared = 0
    for seed in range(16):
        sampler, own, _ = run(seed, 0.03, UncertaintySampling(min_agreement=0.98))
        labels = np.where(sampler.asked, own, sampler.labels)
        agreement = (labels == own).mean()
        spared += (~sampler.asked).sum()
        wrong += agreement < sampler.agreement
        assert sampler.agreement >= 0.98
    assert spared > 0
    # by chance in 1 of 60
    assert wrong <= 4


@pytest.mark.parametrize("seed", range(3))
def test_answers_without_a_label_count_as_changes(seed):
    """They were left out of the audit: more agreement was proved than there was."""
    sampler, own, _ = run(seed, 0.0, UncertaintySampling(min_agreement=0.85), unlabeled=0.25)
    labels = np.where(sampler.asked, own, sampler.labels)
    assert 0.85 <= sampler.agreement <= (labels == own).mean()


def test_where_nothing_can_be_learned_all_are_asked_early():
    sampler, _, rounds = run(0, 1.0, UncertaintySampling())
    assert sampler.asked.all()
    assert sampler.agreement == 1.0
    assert rounds <= 4


def test_the_bound_is_exact():
    for wrong, tries in ((0, 1), (0, 50), (3, 40), (10, 11)):
        rate = upper_bound(wrong, tries, 0.05)
        assert naive.binomial_tail(wrong, tries, rate) == pytest.approx(0.05, abs=1e-6)
    assert upper_bound(0, 0, 0.05) == upper_bound(7, 7, 0.05) == 1.0


@pytest.mark.parametrize(
    ("rule", "texts", "labels", "most"),
    [
        (UncertaintySampling(), 10_000, 77, 2_500),
        # a quarter would be ten answers for each label
        (UncertaintySampling(), 3_080, 77, 1_925),
        (UncertaintySampling(), 1_000, 77, 1_000),
        (UncertaintySampling(max_fraction=0.1), 3_076, 77, 307),
    ],
)
def test_a_proved_model_still_learns_from_some_answers_for_each_label(rule, texts, labels, most):
    assert rule.where_proved(texts, labels).limit(texts) == most


def test_the_random_part_is_large_enough_to_prove_anything():
    assert UncertaintySampling().first(100) == 100
    assert UncertaintySampling().first(2_000) == 500
    assert UncertaintySampling().first(100_000) == 10_000
    assert UncertaintySampling(min_agreement=0.9).first(2_000) == 200
    assert UncertaintySampling(min_agreement=1).first(2_000) == 2_000
    assert UncertaintySampling(max_fraction=0.1).first(2_000) == 200


def test_at_most_a_part_is_asked_about():
    sampler, own, _ = run(1, 0.3, UncertaintySampling(max_fraction=0.5))
    assert sampler.asked.sum() == N // 2
    left = ~sampler.asked
    assert (sampler.labels[left] >= 0).all()
    agreement = (np.where(sampler.asked, own, sampler.labels) == own).mean()
    assert 0 < sampler.agreement <= agreement
    # trust is the chance that the LLM would say the same
    share = (sampler.labels == own)[left].mean()
    assert sampler.trust[left].mean() == pytest.approx(share, abs=0.08)
