"""A run: places, votes, waves, decisions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testnuc._engine.batch import Answers, TextBatch
from testnuc._engine.retrieval import build_batch, distinct_ids
from testnuc._engine.rows import Rows, classification
from testnuc._engine.run import Run
from testnuc.errors import ServerError
from testnuc.labels import LabelSet
from testnuc.protocols import Matches, PoolText
from testnuc.results import Results
from testnuc.trust.diagnosis import Decision
from testnuc.trust.vote_settings import VoteSettings
from testnuc.types import Prediction, Usage
from testnuc.voting import VotePolicy

NAMES = ["a", "b", "c"]
LABELS = LabelSet(NAMES)


def fixed(k, **more):
    return VoteSettings(policy=VotePolicy.of("weighted"), k=k, **more)


def text_of(number, label=None):
    return PoolText(f"text {number}", f"text {number}".encode(), label)


def run_of(neighbors, similarities=None, n_entries=None, vote_settings=None):
    """Return a run whose neighbors are given by place."""
    ids = np.array(neighbors, dtype=np.int64)
    if similarities is None:
        # all as near as each other
        similarities = np.where(ids >= 0, 1.0, 0.0)
    entries = [text_of(i) for i in range(n_entries or int(ids.max()) + 1)]
    batch = TextBatch(LABELS, entries, len(ids), ids, np.array(similarities, dtype=np.float32))
    return Run(batch, vote_settings or fixed(ids.shape[1]))


# -- places --------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_each_text_has_one_place_and_each_neighbor_is_the_one_found(data):
    """Ids of the pool become places, whatever texts and neighbors overlap."""
    pool = data.draw(st.integers(1, 12))
    spread = data.draw(st.sampled_from([1, 1_000]))
    own = data.draw(st.lists(st.integers(0, 14), min_size=1, max_size=8, unique=True))
    k = data.draw(st.integers(0, 4))
    number = st.integers(-1, pool - 1)
    found = data.draw(
        st.lists(st.lists(number, min_size=k, max_size=k), min_size=len(own), max_size=len(own))
    )
    ids = np.array(found, dtype=np.int64).reshape(len(own), k)
    ids[ids >= 0] *= spread
    given_ids = ids.copy()
    similarities = np.full(ids.shape, 0.5, dtype=np.float32)
    numbers = distinct_ids(Matches(ids, similarities))
    assert numbers.tolist() == sorted({i for i in ids.ravel().tolist() if i >= 0})
    others = [text_of(i // spread) for i in numbers.tolist()]
    made = build_batch(
        LABELS, [text_of(i) for i in own], numbers, others, Matches(ids, similarities)
    )
    assert [e.text for e in made.entries[: made.n_own]] == [f"text {i}" for i in own]
    hashes = [e.hash for e in made.entries]
    assert len(set(hashes)) == len(hashes)
    for row in range(len(own)):
        for at in range(k):
            place = made.neighbors[row, at]
            wanted = given_ids[row, at]
            text = None if place < 0 else made.entries[place].text
            assert text == (None if wanted < 0 else f"text {wanted // spread}")


def test_a_label_that_the_pool_knows_is_the_prediction():
    numbers = np.array([4, 7])
    matches = Matches(np.array([[7], [4]]), np.ones((2, 1), np.float32))
    others = [text_of(0, "b"), text_of(9, "c")]
    made = build_batch(LABELS, [text_of(0), text_of(1)], numbers, others, matches)
    answers = Answers(made)
    assert [answers.has_outcome(i) for i in range(3)] == [True, False, True]
    assert answers.predictions == [Prediction("b", 1.0), None, Prediction("c", 1.0)]


# -- predictions and votes -----------------------------------------------------------------------


def test_an_outcome_is_a_prediction_or_an_error():
    made = run_of([[1, 2]])
    error = ServerError("503")
    made.answers.put(0, error)
    made.answers.put(1, Prediction("b", 0.5))
    made.answers.put(2, Prediction(None))
    assert [made.answers.has_outcome(i) for i in range(3)] == [True, True, True]
    winners, confidences = made.answers.label, made.answers.confidence
    assert winners.tolist() == [-1, 1, -1]
    assert confidences[1] == 0.5
    assert np.isnan(confidences[[0, 2]]).all()
    row = Rows(made, ["text 0"], np.array([0]))[0]
    assert (row.label, row.error, row.prediction, row.voters) == ("b", error, None, 1)


labels = st.sampled_from([None, *NAMES])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_rows_are_the_votes_counted_by_hand(data):
    n, k = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    places = st.lists(st.integers(-1, n + 3), min_size=k, max_size=k)
    ids = np.array(data.draw(st.lists(places, min_size=n, max_size=n)))
    # eighths add up without rounding
    weight = st.sampled_from([i / 8 for i in range(1, 9)])
    weights = data.draw(st.lists(st.lists(weight, min_size=k, max_size=k), min_size=n, max_size=n))
    similarities = np.where(ids >= 0, np.array(weights), 0)
    made = run_of(ids, similarities, n_entries=n + 4)
    said = data.draw(st.lists(labels, min_size=n + 4, max_size=n + 4))
    for place, label in enumerate(said):
        made.answers.put(place, Prediction(label, 0.5))
    order = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=8)))
    rows = Rows(made, [f"text {i}" for i in order.tolist()], order)
    for at, place in enumerate(order.tolist()):
        votes = dict.fromkeys(NAMES, 0.0)
        cast = [(said[place], 1.0)]
        cast += [
            (said[i], s) for i, s in zip(ids[place], similarities[place], strict=True) if i >= 0
        ]
        for label, one in cast:
            if label is not None:
                votes[label] += one
        row = rows[at]
        assert (row.index, row.text) == (at, f"text {place}")
        assert dict(row.votes) == pytest.approx({n: v for n, v in votes.items() if v})
        assert row.voters == sum(label is not None for label, _ in cast)
        if row.label is None:
            assert not row.voters
        else:
            assert votes[row.label] == max(votes.values())
            assert row.share == pytest.approx(votes[row.label] / sum(votes.values()))
    assert Results(rows, Usage(), 0.0).labels == [row.label for row in rows]
    assert Results(rows, Usage(), 0.0).changed == sum(row.changed for row in rows)


def test_a_label_below_the_least_trust_is_withheld():
    made = run_of([[1, 2, 3]], vote_settings=fixed(3, min_trust=0.8))
    for place, label in enumerate("aaab"):
        made.answers.put(place, Prediction(label, 0.5))
    row = classification(made, 0, 0, "text 0")
    assert (row.label, row.trust) == (None, 0.75)
    assert "'a'" in row.reason
    assert Results(Rows(made, ["text 0"], np.array([0])), Usage(), 0.0).labels == [None]


def test_the_prior_moves_votes_from_labels_that_are_used_too_often():
    even = np.full(3, 1 / 3)
    ids = [[1], [0], [3], [2]]
    made = run_of(ids, vote_settings=fixed(1, prior=even))
    plain = run_of(ids)
    for place, label in enumerate("aaab"):
        for one in (made, plain):
            one.answers.put(place, Prediction(label, 0.5))
    made.votes.fit_prior()
    corrected = Rows(made, ["t"] * 4, np.arange(4))
    uncorrected = Rows(plain, ["t"] * 4, np.arange(4))
    for rows in (uncorrected, corrected):
        assert Results(rows, Usage(), 0.0).labels[:2] == ["a", "a"]
    assert [row.label for row in corrected][3] == "b"
    assert corrected[3].share > uncorrected[3].votes["b"] / 2


# -- decisions -----------------------------------------------------------------------------------


def test_without_a_vote_texts_keep_their_own_label():
    auto = VoteSettings(policy=None, k=2, auto=True)
    made = run_of([[1, 2]], vote_settings=auto)
    for place, label in enumerate("abb"):
        made.answers.put(place, Prediction(label, 0.5))
    made.votes.decide(Decision(None, 0, "the vote would not help"))
    row = Rows(made, ["text 0"], np.array([0]))[0]
    assert (row.label, row.voters, row.reason) == ("a", 1, "the vote would not help")
    # under auto, trust is by all neighbors, also where they do not decide
    assert row.trust == pytest.approx(1 / 3)


# -- waves ---------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_vote_that_is_cut_has_the_label_of_the_full_vote(data):
    k = data.draw(st.integers(6, 15))
    said = data.draw(st.lists(st.sampled_from(NAMES), min_size=k + 1, max_size=k + 1))
    steps = data.draw(st.lists(st.integers(0, 3), min_size=k, max_size=k))
    similarities = [max(1, 60 - total) / 64 for total in np.cumsum(steps).tolist()]
    ids = np.arange(1, k + 1).reshape(1, k)

    def made(known):
        one = run_of(ids, [similarities])
        for place, label in enumerate(said[: 1 + known]):
            one.answers.put(place, Prediction(label, 0.5))
        return one

    full = Rows(made(k), ["t"], np.array([0]))[0]
    for known in (5, k - 1):
        early = made(known)
        certain = early.votes.exit_early(np.array([0]), known)
        if not certain[0]:
            assert early.votes.complete[0]
            continue
        row = Rows(early, ["t"], np.array([0]))[0]
        assert row.label == full.label
        assert not row.complete
        assert row.trust is None
        assert (early.votes.neighbors(np.array([0])) >= 0).sum() == known
