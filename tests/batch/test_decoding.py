"""Lines of results, in any order, any subset, any number of times: the outcomes are the same."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testnuc._dispatch.inflight import none_key
from testnuc.batch.apis import AnthropicBatches, OpenAIBatches
from testnuc.batch.base import BatchResultLine, NoneChosenError
from testnuc.batch.manifest import (
    BatchOutcomes,
    RequestedPrediction,
    ResponseReader,
    custom_id,
    pack,
    unpack,
)
from testnuc.errors import ContentRefusedError, NotAnsweredError, ServerError, StoreError
from testnuc.labels import LabelSet
from testnuc.prompts.writing import system_prompt
from testnuc.protocols import Task
from testnuc.providers.openai import OpenAI
from testnuc.types import Prediction

LABELS = LabelSet(["refund", "delivery", "login"])
TASK = Task(system_prompt(LABELS), LABELS.names)
PROVIDER = OpenAI("m", base_url="http://localhost/v1")
READER = ResponseReader(PROVIDER, TASK, LABELS)
APIS = [api(PROVIDER, None) for api in (OpenAIBatches, AnthropicBatches)]
NAME = "ab" * 16
MISSING = NotAnsweredError("missing")

#: What becomes of each request: a label, an error, or that it was never executed.
FATES = st.lists(st.sampled_from([*LABELS.names, "error", "filtered", "left"]), min_size=1)


def chat(label):
    message = {"role": "assistant", "content": orjson.dumps({"label": label}).decode()}
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    return orjson.dumps({"id": "x", "choices": [{"message": message}], "usage": usage})


def line(number, fate):
    name = custom_id(NAME, number)
    if fate == "error":
        return BatchResultLine(name, 500, b'{"error":{"message":"failed"}}')
    if fate == "filtered":
        return BatchResultLine(name, 400, b'{"error":{"message":"no","code":"content_filter"}}')
    if fate == "left":
        return BatchResultLine(name, 0, b"", "batch_expired")
    return BatchResultLine(name, 200, chat(fate))


def items(n):
    return [(RequestedPrediction(bytes([i]) * 16, bytes([i + 1]) * 16, i),) for i in range(n)]


def outcome(found):
    return found if isinstance(found, Prediction) else type(found)


def joined(fates, lines):
    found = BatchOutcomes(NAME, items(len(fates)), READER)
    for each in lines:
        found.take(each)
    return found


EXPECTED = {"error": ServerError, "filtered": ContentRefusedError, "left": NotAnsweredError}


@pytest.mark.slow
@given(FATES, st.data())
def test_order_and_repetition_change_nothing(fates, data):
    whole = [line(i, fate) for i, fate in enumerate(fates)]
    again = data.draw(st.lists(st.sampled_from(whole)))
    mixed = data.draw(st.permutations(whole + again))
    # lines of others, and unreadable lines
    noise = [
        BatchResultLine(custom_id("cd" * 16, 0), 200, chat("login")),
        BatchResultLine(custom_id(NAME, len(fates)), 200, chat("login")),
        BatchResultLine(f"{NAME}-x", 200, chat("login")),
        BatchResultLine("", 200, b""),
    ]
    mixed += data.draw(st.lists(st.sampled_from(noise)))
    found = joined(fates, mixed)
    expected = [EXPECTED.get(fate, Prediction(fate)) for fate in fates]
    assert [outcome(o) for _, (o,) in found.outcomes(MISSING)] == expected
    answered = [fate for fate in fates if fate in LABELS]
    # each answer is counted once, however often it is listed
    assert len(found.usages) == len(answered)
    assert [row.prediction.label for row in found.stored(b"s" * 16)] == answered


@given(FATES, st.data())
def test_what_is_missing_has_no_answer_and_costs_the_others_nothing(fates, data):
    kept = data.draw(st.sets(st.integers(0, len(fates) - 1)))
    found = joined(fates, [line(i, fates[i]) for i in kept])
    expected = [
        EXPECTED.get(fate, Prediction(fate)) if i in kept else NotAnsweredError
        for i, fate in enumerate(fates)
    ]
    assert [outcome(o) for _, (o,) in found.outcomes(MISSING)] == expected
    stored = {row.key: row.prediction.label for row in found.stored(b"s" * 16)}
    wanted = items(len(fates))
    assert stored == {wanted[i][0].key: fates[i] for i in kept if fates[i] in LABELS}


@given(st.permutations(["error", "left", "refund"]))
def test_an_answer_stands_above_an_error_of_the_same_request(fates):
    found = joined(["any"], [line(0, fate) for fate in fates])
    assert [outcome(o) for _, (o,) in found.outcomes(MISSING)] == [Prediction("refund")]


def test_an_answer_that_is_none_of_some_labels_is_stored_under_a_key_of_its_own():
    wanted = [item[0]._replace(partial=True) for item in items(3)]
    found = BatchOutcomes(NAME, [(one,) for one in wanted], READER)
    for number, label in enumerate(["none of these", "refund", "weather"]):
        found.take(BatchResultLine(custom_id(NAME, number), 200, chat(label)))
    assert [outcome(o) for _, (o,) in found.outcomes(MISSING)] == [
        NoneChosenError,
        Prediction("refund"),
        NoneChosenError,
    ]
    stored = [(row.key, row.prediction.label) for row in found.stored(b"s" * 16)]
    one, two, three = (wanted.key for wanted in wanted)
    assert stored == [(none_key(one), None), (two, "refund"), (none_key(three), None)]


WANTED = st.builds(
    RequestedPrediction,
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**31 - 1),
    st.booleans(),
)


@pytest.mark.slow
@given(st.lists(st.lists(WANTED, max_size=5).map(tuple), max_size=20))
def test_items_are_stored_whole(wanted):
    assert unpack(pack(wanted)) == tuple(wanted)


@pytest.mark.slow
@given(st.lists(st.lists(WANTED, min_size=1, max_size=3).map(tuple), min_size=1), st.data())
def test_items_that_are_cut_are_noticed(wanted, data):
    stored = pack(wanted)
    ends = [len(pack(wanted[:i])) for i in range(len(wanted) + 1)]
    cut = data.draw(st.integers(0, len(stored)).filter(lambda n: n not in ends))
    with pytest.raises(StoreError, match="damaged"):
        unpack(stored[:cut])


@given(st.binary())
def test_what_is_no_line_is_none(content):
    assert [api.result(content) for api in APIS] == [None, None]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 999) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["custom_id", "response", "status_code", "body", "error", "code", "result", "type"]
            ),
            inner,
            max_size=4,
        )
    ),
)


@pytest.mark.slow
@given(JSON)
def test_strange_lines_are_lines_or_none(value):
    for api in APIS:
        found = api.result(orjson.dumps(value))
        assert found is None or isinstance(found.custom_id, str)
