"""Thousands of texts through a provider that fails: none lost, none wrong, none billed twice."""

from __future__ import annotations

import pytest

from testnuc import Limits, RetryPolicy, Sampling, TestNUC
from testnuc.testing import CURABLE_KINDS, Faults, LoopbackLLM, by_hash

pytestmark = pytest.mark.slow

LABELS = [f"intent {i}" for i in range(20)]
answer = by_hash(LABELS)

#: 200s without a label that can be used: billed, and asked again.
USELESS = {"truncated", "empty-choices"}
USELESS_PACKED = {*USELESS, "duplicate-ids", "missing-ids", "invented-ids"}
#: 200s with a label.
GOOD = {None, "slow", "reset-after", "missing-usage", "prose"}
#: Waits that fit a server which answers within a millisecond. A refusal breaks all connections at
#: once, so that one call can be hit more often than the ten times of the default.
QUICK = RetryPolicy(initial_wait=0.05, max_wait=1.0, attempts=30)
LIMITS = Limits(concurrency=16, retry=QUICK)


def failing(kinds=CURABLE_KINDS):
    # with this seed no text has three useless answers in a row, after which it would fail
    return Faults(0.2, kinds, seed=8, retry_after=0.005, stall=0.02, slow=0.005, refuse=0.005)


def texts_of(n):
    return [f"message {i}, whose label depends on what it says" for i in range(n)]


@pytest.fixture
def arguments(client_of):
    def make(llm, **more):
        return client_of(llm, **{"labels": LABELS, "k": 0, "limits": LIMITS, **more})

    return make


def paid(faults, text):
    """How often a text is billed until its answer is good, by the schedule of faults."""
    times = 0
    for attempt in range(100):
        kind = faults.draw([text], attempt, 0)
        times += kind in GOOD or kind in USELESS
        if kind in GOOD:
            return times
    raise AssertionError(text)


def assert_right(results):
    wrong = [r for r in results if r.prediction is None or r.prediction.label != answer(r.text)[0]]
    assert not wrong, wrong[:3]
    assert [r.error for r in results] == [None] * len(results)
    assert [r.index for r in results] == list(range(len(results)))


async def test_thousands_of_texts_with_a_fifth_of_all_requests_failing(arguments):
    texts, faults = texts_of(3_000), failing()
    async with LoopbackLLM(answer, faults=faults) as llm, TestNUC(**arguments(llm)) as nuc:
        results = await nuc.classify_many(texts)
        usage = nuc.usage
    assert_right(results)
    assert set(llm.faults) == set(CURABLE_KINDS) - {"duplicate-ids", "missing-ids", "invented-ids"}
    assert llm.faults.total() > 0.18 * llm.requests
    # each text was billed exactly as often as the faults of its own calls demand
    assert dict(llm.asked) == {text: paid(faults, text) for text in texts}
    assert usage.calls == llm.calls == results.usage.calls
    # a refused connection breaks others' before the server has read their requests
    assert usage.retries >= llm.requests - len(texts) > 0
    assert usage.input_tokens is None  # some answers lack it


async def test_ten_texts_a_call_with_a_fifth_of_all_requests_failing(arguments):
    texts, faults = texts_of(5_000), failing()
    async with (
        LoopbackLLM(answer, faults=faults) as llm,
        TestNUC(**arguments(llm, sampling=Sampling(texts_per_call=10))) as nuc,
    ):
        results = await nuc.classify_many(texts)
        usage = nuc.usage
    assert_right(results)
    assert {"duplicate-ids", "missing-ids", "invented-ids"} <= set(llm.faults)
    assert usage.calls == llm.calls
    # more is billed only where an answer was of no use
    useless = sum(llm.faults[kind] for kind in USELESS_PACKED)
    assert llm.texts - len(texts) <= 10 * useless
    # of ten, two halves are asked for again, and of a half each alone
    assert llm.calls <= len(texts) / 10 + 5 * useless
    assert max(llm.asked.values()) <= 6
