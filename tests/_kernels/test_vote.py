"""The compiled vote against its naive twin."""

from __future__ import annotations

import os
from itertools import product
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testnuc._kernels import fast
from testnuc.voting import (
    VotePolicy,
    decided,
    vote,
    vote_curve,
    vote_pool,
)
from testnuc.voting.inputs import Ballots
from testnuc.voting.votes import curves
from tests import naive

JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
SETTINGS = settings(
    max_examples=150 if JIT else 40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
#: Few distinct values make ties; the odd ones make rounding.
SIMILARITIES = np.array(
    [1.0, 1.0005, 0.9, 0.5, 0.5, 0.25, 0.1, 1e-6, 1e-10, 0.0, -0.0, -0.25, -1.0], np.float32
)
CONFIDENCES = np.array([1.0, 0.9, 0.7, 0.7, 0.5, 0.3, 1e-5, 0.0, np.nan, np.nan], np.float32)
POLICIES = st.one_of(
    st.sampled_from(list(naive.PRESETS.values())),
    st.tuples(
        st.sampled_from(["uniform", "similarity", "similarity*confidence"]),
        st.sampled_from([None, 0.0, 0.3, 0.7, 1.0]),
        st.sampled_from([None, -0.5, 0.0, 0.5, 0.9, 1.0]),
        st.sampled_from([1.0, 0.0, 0.5, 3.7, 1000.0]),
    ),
)


@st.composite
def rows(draw, max_rows=5, max_k=30):
    """Labels, similarities and confidences [B, 1 + K], and the number of classes."""
    n_classes = draw(st.sampled_from([1, 2, 3, 5, 10_000]))
    n_rows = draw(st.integers(0, max_rows))
    width = 1 + draw(st.one_of(st.integers(0, max_k), st.just(3 * max_k)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    pick = rng.integers(-1, min(n_classes, draw(st.integers(1, 6))), (n_rows, width))
    labels = np.where((pick > 0) & (n_classes > 100), pick * 1999, pick).astype(np.int32)
    if draw(st.booleans()):
        similarities = rng.choice(SIMILARITIES, (n_rows, width))
        confidences = rng.choice(CONFIDENCES, (n_rows, width))
    else:
        similarities = rng.uniform(-0.2, 1, (n_rows, width)).astype(np.float32)
        confidences = rng.uniform(0, 1, (n_rows, width)).astype(np.float32)
    similarities[:, 0] = 1.0
    if draw(st.booleans()):
        similarities = -np.sort(-similarities, axis=1)
        similarities[:, 0] = 1.0
    return labels, similarities, confidences, n_classes


def voters_of(labels, similarities, confidences):
    return [
        [naive.voter(*cells) for cells in zip(*row, strict=True)]
        for row in zip(labels, similarities, confidences, strict=True)
    ]


def voters_in_pool(ids, similarities, pool_labels, pool_confidences, own_labels, own_confidences):
    return [
        naive.gather(ids[r], similarities[r], pool_labels, pool_confidences, own_label, own)
        for r, (own_label, own) in enumerate(zip(own_labels, own_confidences, strict=True))
    ]


def assert_equals_naive(result, voters, policy):
    expected = [naive.vote(row, policy) for row in voters]
    got = list(
        zip(
            result.label.tolist(),
            result.share.tolist(),
            result.margin.tolist(),
            result.weight.tolist(),
            result.voters.tolist(),
            strict=True,
        )
    )
    assert got == expected


@given(rows(), POLICIES, st.integers(1, 4))
@SETTINGS
def test_vote_equals_naive(case, policy, threads):
    labels, similarities, confidences, n_classes = case
    result = vote(
        labels,
        similarities,
        confidences,
        n_classes=n_classes,
        policy=VotePolicy(*policy),
        threads=threads,
        votes=True,
    )
    voters = voters_of(labels, similarities, confidences)
    assert_equals_naive(result, voters, policy)
    for weights, row in zip(result.votes, voters, strict=True):
        sums = naive.tally(row, policy)
        assert {c: w for c, w in enumerate((weights * 2**32).tolist()) if w > 0} == sums


@st.composite
def pools(draw, max_rows=5, max_k=30):
    """Return ids, similarities, pool labels and confidences, own labels and confidences, C."""
    labels, similarities, confidences, n_classes = draw(rows(max_rows, max_k))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = draw(st.sampled_from([0, 1, 7, 400]))
    pool_labels = rng.choice(np.append(labels.ravel(), np.int32(0)), size)
    pool_confidences = rng.choice(CONFIDENCES, size)
    dtype = draw(st.sampled_from([np.int64, np.uint64, np.uint32, np.int32]))
    ids = rng.integers(0, size + 2, labels[:, 1:].shape).astype(dtype)
    absent = np.iinfo(dtype).max if np.dtype(dtype).kind == "u" else -1
    ids[rng.random(ids.shape) < 0.1] = absent
    similarities = similarities[:, 1:].copy()
    similarities[(ids >= size) | (ids < 0)] = np.nan
    return (
        (ids, similarities, pool_labels, pool_confidences, labels[:, 0], confidences[:, 0]),
        n_classes,
    )


@pytest.mark.slow
@given(pools(), POLICIES, st.integers(1, 4), st.booleans())
@SETTINGS
def test_vote_pool_equals_naive(case, policy, threads, packed):
    arrays, n_classes = case
    ids, similarities, pool_labels, pool_confidences, own_labels, own_confidences = arrays
    voters = voters_in_pool(*arrays)
    with mock.patch.object(fast, "pays", return_value=packed):
        result = vote_pool(
            *arrays, n_classes=n_classes, policy=VotePolicy(*policy), threads=threads
        )
    assert_equals_naive(result, voters, policy)
    one_by_one = [
        vote_pool(
            ids[r : r + 1],
            similarities[r : r + 1],
            pool_labels,
            pool_confidences,
            own_labels[r : r + 1],
            own_confidences[r : r + 1],
            n_classes=n_classes,
            policy=VotePolicy(*policy),
        )
        for r in range(len(ids))
    ]
    for field in ("label", "share", "margin", "weight", "voters"):
        alone = [getattr(one, field).tobytes() for one in one_by_one]
        assert b"".join(alone) == getattr(result, field).tobytes()


# 16 rows are counted at once, whether so many are left or not; the sums of rows that have more
# neighbors than there are labels are read label by label
@pytest.mark.parametrize(("most_rows", "most_k"), [(40, 9), (3, 350)])
@given(data=st.data(), policy=POLICIES)
@SETTINGS
def test_many_and_long_rows_equal_naive(most_rows, most_k, data, policy):
    arrays, n_classes = data.draw(pools(most_rows, most_k))
    voters = voters_in_pool(*arrays)
    with mock.patch.object(fast, "pays", return_value=True):
        result = vote_pool(*arrays, n_classes=n_classes, policy=VotePolicy(*policy))
    assert_equals_naive(result, voters, policy)


@pytest.mark.parametrize("n_rows", [1024, 2500 if JIT else 1030])
@pytest.mark.parametrize(("k", "n_classes"), [(0, 3), (3, 5), (3, 50), (7, 4)])
@pytest.mark.parametrize("own_confidences", [None, 0.9])
def test_blocks_of_rows_equal_single_rows(n_rows, k, n_classes, own_confidences):
    rng = np.random.default_rng(n_rows + k)
    pool = rng.integers(-1, n_classes, 500).astype(np.int32)
    ids = rng.integers(0, 510, (n_rows, k))
    similarities = rng.choice(SIMILARITIES, (n_rows, k))
    own = rng.integers(-1, n_classes, n_rows).astype(np.int32)
    sure = None if own_confidences is None else np.full(n_rows, own_confidences, np.float32)
    found = {}
    for packed in (False, True):
        with mock.patch.object(fast, "pays", return_value=packed):
            result = vote_pool(ids, similarities, pool, None, own, sure, n_classes=n_classes)
        found[packed] = [
            getattr(result, field).tobytes()
            for field in ("label", "share", "margin", "weight", "voters")
        ]
    assert found[True] == found[False]


@given(
    st.permutations([1, 2] * 70 + [3, 4] * 40),
    st.integers(-1, 4),
    st.tuples(*[st.integers(0, 4)] * 2),
)
@SETTINGS
def test_ties_of_long_rows_go_to_the_most_similar_supporter(order, own, first):
    pool = np.array([*first, *order], np.int32)
    ids = np.arange(len(pool))[None]
    ones = np.ones((1, len(pool)), np.float32)
    labels = np.array([own], np.int32)
    with mock.patch.object(fast, "pays", return_value=True):
        result = vote_pool(ids, ones, pool, None, labels, None, n_classes=5, policy="majority")
    nobody_says = np.full(len(pool), np.nan, np.float32)
    voters = [naive.gather(ids[0], ones[0], pool, nobody_says, own, np.nan)]
    assert_equals_naive(result, voters, naive.PRESETS["majority"])


@given(rows(), st.lists(POLICIES, min_size=0, max_size=6), st.data())
@SETTINGS
def test_curves_equal_separate_votes(case, policies, data):
    labels, similarities, confidences, n_classes = case
    ks = data.draw(st.lists(st.integers(0, labels.shape[1] - 1), max_size=6))
    given_policies = tuple(VotePolicy(*policy) for policy in policies)
    ballots = Ballots.of_rows(labels, similarities, confidences, n_classes)
    got = curves(ballots, ks, given_policies)
    assert got.shape == (len(policies), len(ks), len(labels))
    voters = voters_of(labels, similarities, confidences)
    for (p, policy), (i, k) in product(enumerate(policies), enumerate(ks)):
        assert got[p, i].tolist() == [naive.winner(row[: 1 + k], policy) for row in voters]
    for p, policy in enumerate(given_policies):
        alone = vote_curve(
            labels, similarities, confidences, n_classes=n_classes, ks=ks, policy=policy
        )
        np.testing.assert_array_equal(alone, got[p])


@pytest.mark.slow
@given(rows(max_rows=3, max_k=8), POLICIES)
@SETTINGS
def test_decided_exactly_when_no_completion_changes_the_winner(case, policy):
    labels, similarities, confidences, n_classes = case
    # a label without votes stands for all such labels
    few = min(n_classes, 7)
    labels = labels % few if n_classes > few else labels
    voters = voters_of(labels, similarities, confidences)
    width = labels.shape[1]
    for known in range(width + 1):
        got = decided(
            labels,
            similarities,
            confidences,
            known,
            n_classes=few,
            policy=VotePolicy(*policy),
        )
        assert got.tolist() == [naive.decided(row, known, few, policy) for row in voters]
