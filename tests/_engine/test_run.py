"""A run: places, votes, waves, decisions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testnuc._engine.batch import TextBatch
from testnuc._engine.rows import Rows
from testnuc._engine.run import Run
from testnuc.labels import LabelSet
from testnuc.protocols import PoolText
from testnuc.results import Results
from testnuc.trust.auto_policy import VoteSettings
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


# -- predictions and votes -----------------------------------------------------------------------


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


# -- decisions -----------------------------------------------------------------------------------


# -- waves ---------------------------------------------------------------------------------------
