"""How each method makes one prediction of several samples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import testnuc
from testnuc import (
    BestOfN,
    Prediction,
    SelfConsistency,
    TopKICL,
    TopKICLP,
    WeightedBestOfN,
)
from testnuc.methods import resolve
from tests import naive

samples_of = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", None]),
        # few values, so that there are ties; eighths, so that their sums are exact
        st.sampled_from([None, 0.0, 0.25, 0.5, 0.625, 1.0]),
    ),
    min_size=1,
    max_size=7,
)


def reduced(method, samples):
    got = method.reduce([Prediction(label, confidence) for label, confidence in samples])
    return got.label, got.confidence


@given(samples_of)
def test_reductions_are_those_of_the_reference(samples):
    n = len(samples)
    label, confidence = naive.self_consistency(samples)
    assert reduced(SelfConsistency(n), samples) == (label, confidence)
    assert reduced(BestOfN(n), samples) == naive.best_of_n(samples)
    label, confidence = naive.weighted_best_of_n(samples)
    got = reduced(WeightedBestOfN(n), samples)
    assert got[0] == label
    assert got[1] == (None if confidence is None else pytest.approx(confidence))


def test_an_answer_outside_the_set_keeps_its_words():
    odd = Prediction(None, 0.9, "weather")
    for method in (SelfConsistency(1), BestOfN(1), WeightedBestOfN(1)):
        assert method.reduce([odd]).said == "weather"
        assert method.reduce([odd]).label is None


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True, "3"])
def test_sizes_are_checked(wrong):
    for kind in (SelfConsistency, BestOfN, WeightedBestOfN):
        with pytest.raises(testnuc.InvalidInputError, match="n is"):
            kind(wrong)
    for kind in (TopKICL, TopKICLP):
        with pytest.raises(testnuc.InvalidInputError, match="k is"):
            kind(wrong)


def test_what_is_no_method_is_refused():
    for wrong in (SelfConsistency, "self-consistency", 7):
        with pytest.raises(testnuc.InvalidInputError, match="pass an object such as"):
            resolve(wrong)
    with pytest.raises(testnuc.InvalidInputError, match="texts_per_call is 5"):
        resolve(TopKICL(3), texts_per_call=5)
    assert resolve(SelfConsistency(3), texts_per_call=5).n == 3
