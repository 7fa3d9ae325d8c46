"""The compiled multilabel vote against its naive twin."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testnuc.errors import InvalidInputError
from testnuc.voting import Labels, VotePolicy, keep_own, vote, vote_multilabel
from tests import naive
from tests._kernels.test_vote import CONFIDENCES, POLICIES, SETTINGS, SIMILARITIES


@st.composite
def pools(draw, max_rows=6, max_pool=12, max_k=12):
    """Ids and similarities [B, K], own positions, labels of the pool, number of classes."""
    n_classes = draw(st.sampled_from([1, 2, 3, 6, 5000]))
    n_pool, k = draw(st.integers(1, max_pool)), draw(st.integers(0, max_k))
    n_rows = draw(st.integers(0, max_rows))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    pool = []
    for _ in range(n_pool):
        size = int(rng.integers(-1, min(n_classes, 6) + 1))
        chosen = rng.choice(min(n_classes, 8), max(size, 0), replace=False)
        confidences = rng.choice(CONFIDENCES, max(size, 0))
        pairs = [
            (int(label), None if math.isnan(c) else float(c))
            for label, c in zip(chosen, confidences, strict=True)
        ]
        pool.append(None if size < 0 else pairs)
    ids = rng.integers(-1, n_pool + 1, (n_rows, k))
    similarities = rng.choice(SIMILARITIES, (n_rows, k))
    return ids, similarities, rng.integers(0, n_pool, n_rows), pool, n_classes


def by_row(found):
    rows = []
    for i in range(len(found.voters)):
        part = slice(int(found.starts[i]), int(found.starts[i + 1]))
        listed = zip(
            found.label[part].tolist(),
            found.share[part].tolist(),
            found.given[part].tolist(),
            strict=True,
        )
        rows.append((list(listed), float(found.weight[i]), int(found.voters[i])))
    return rows


@pytest.mark.slow
@SETTINGS
@given(pools(), POLICIES, st.sampled_from([0.5, 0.0, 0.25, 1.0, 0.6180339]))
def test_equals_the_naive_twin(case, policy, threshold):
    ids, similarities, own, pool, n_classes = case
    compiled = VotePolicy(policy[0], *policy[1:])
    expected = [
        naive.multilabel_vote(
            [
                (pool[me], 1.0),
                *(
                    (pool[i], float(s))
                    for i, s in zip(row, cosines, strict=True)
                    if 0 <= i < len(pool)
                ),
            ],
            policy,
            threshold,
        )
        for row, cosines, me in zip(ids, similarities, own, strict=True)
    ]
    for threads in (1, 3):
        found = vote_multilabel(
            ids,
            similarities,
            own,
            Labels.of(pool),
            n_classes=n_classes,
            policy=compiled,
            threshold=threshold,
            threads=threads,
        )
        assert by_row(found) == expected


@pytest.mark.slow
@SETTINGS
@given(pools(), st.sampled_from(["majority", "weighted"]))
def test_a_single_label_above_one_half_is_the_winner_of_the_plain_vote(case, policy):
    ids, similarities, own, pool, n_classes = case
    pool = [one[:1] if one else None for one in pool]
    single = np.array([one[0][0] if one else -1 for one in pool] + [-1], np.int32)
    padded = np.where((ids >= 0) & (ids < len(pool)), ids, len(pool))
    plain = vote(
        np.concatenate([single[own][:, None], single[padded]], axis=1),
        np.concatenate([np.ones((len(own), 1), np.float32), similarities], axis=1),
        n_classes=n_classes,
        policy=policy,
    )
    found = vote_multilabel(
        ids, similarities, own, Labels.of(pool), n_classes=n_classes, policy=policy
    )
    assert found.voters.tolist() == plain.voters.tolist()
    for (labels, _, voters), winner, share in zip(
        by_row(found), plain.label.tolist(), plain.share.tolist(), strict=True
    ):
        if voters:
            assert labels[0][0] == winner
            assert labels[0][1] == pytest.approx(share)


def test_an_empty_set_votes_against_every_label_and_a_missing_one_does_not():
    pool = Labels.of([[(0, None)], [], [], None])
    voted = vote_multilabel([[1, 2, 3]], [[1, 1, 1]], [0], pool, n_classes=2, policy="majority")
    assert by_row(voted) == [([(0, naive.as_float32(1 / 3), False)], 3.0, 3)]
    half = vote_multilabel([[1, 3]], [[1, 1]], [0], pool, n_classes=2, policy="majority")
    assert by_row(half)[0][0] == [(0, 0.5, True)], "at one half the text itself decides"
    other = vote_multilabel([[0]], [[1]], [1], pool, n_classes=2, policy="majority")
    assert by_row(other)[0][0] == [(0, 0.5, False)]


@pytest.mark.slow
@SETTINGS
@given(pools())
def test_own_labels_are_kept_with_the_shares_of_the_vote(case):
    ids, similarities, own, pool, n_classes = case
    labels = Labels.of(pool)
    voted = vote_multilabel(ids, similarities, own, labels, n_classes=n_classes)
    kept = by_row(keep_own(voted, own, labels))
    for (before, *rest), (after, *others), place in zip(by_row(voted), kept, own, strict=True):
        assert rest == others
        said = None if pool[place] is None else {label for label, _ in pool[place]}
        assert after == [
            (label, share, given_ if said is None else label in said)
            for label, share, given_ in before
        ]
        assert said is None or {label for label, _, passed in after if passed} == said


def test_a_row_with_an_invalid_similarity_is_named():
    pool = Labels.of([[(0, 0.5)]])
    with pytest.raises(InvalidInputError, match="row 0 has the similarities"):
        vote_multilabel([[0]], [[1.5]], [0], pool, n_classes=2)
