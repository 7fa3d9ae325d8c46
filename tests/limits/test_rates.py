"""The queue: no sliding minute exceeds the limit, and the order is first in, first out."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testnuc.limits.admission import Admission
from testnuc.limits.policies import Limits
from tests.virtual import in_virtual_time, run

calls = st.tuples(
    st.floats(0, 40),  # seconds before it is asked for, after the one before
    st.integers(1, 1000),  # input tokens
    st.integers(0, 500),  # most output tokens
    st.floats(0, 1),  # part of them that is used
    st.floats(0, 5),  # seconds in flight
    st.sampled_from(["answered", "answered", "failed", "abandoned"]),
)


def most_in_a_window(log, seconds):
    """Return the largest sum of amounts within any half-open window of the log."""
    return max(
        (sum(n for at, n in log if start <= at < start + seconds) for start, _ in log), default=0
    )


@pytest.mark.slow
@settings(max_examples=150)
@given(
    st.lists(calls, max_size=60),
    st.integers(1, 30),
    st.integers(1000, 5000),
    st.integers(1, 20),
)
@in_virtual_time
async def test_no_sliding_minute_exceeds_the_limit(loop, plan, requests, tokens, concurrency):
    admission = Admission(Limits(requests, tokens, concurrency), clock=loop.time, rng=Random(0))
    sent = []
    order = []
    peak = 0

    async def one(number, size, output, part, seconds, end):
        nonlocal peak
        permit = admission.try_acquire(size, output) or await admission.acquire(size, output)
        order.append(number)
        entry = [loop.time(), permit.charge]
        if end == "abandoned":
            admission.abandoned(permit)
            return
        sent.append(entry)
        peak = max(peak, admission.in_flight)
        await asyncio.sleep(seconds)
        if end == "failed":
            admission.failed(permit)
            return
        # what is given back was not used; what is used stays in the minute it was sent in
        used = min(permit.charge, size + int(output * part))
        entry[1] = used
        admission.answered(permit, max(0, used - int(output * part)), int(output * part))

    tasks = []
    for number, (before, *rest) in enumerate(plan):
        await asyncio.sleep(before)
        tasks.append(asyncio.create_task(one(number, *rest)))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order == sorted(order)
    assert peak <= concurrency
    assert admission.in_flight == 0
    assert admission._head() is None
    assert most_in_a_window([(at, 1) for at, _ in sent], 60) <= requests
    assert most_in_a_window(sent, 60) <= tokens


@pytest.mark.slow
@settings(max_examples=50)
@given(st.integers(1, 300), st.floats(0, 0.9), st.integers(0, 2**32))
def test_the_server_sees_no_more_either(limit, jitter, seed):
    """Requests that take differently long to arrive do not gather in one minute at the server."""

    async def main(loop):
        rng = Random(seed)
        admission = Admission(Limits(limit, concurrency=10_000), clock=loop.time)
        arrived = []
        for _ in range(3 * limit):
            permit = await admission.acquire()
            arrived.append((loop.time() + rng.uniform(0, jitter), 1))
            admission.answered(permit)
        arrived.sort()
        for i, (start, _) in enumerate(arrived):
            if i + limit < len(arrived):
                assert arrived[i + limit][0] >= start + 60
        return loop.time()

    # and it is not slower than it must be
    assert run(main) - 1000 <= 2 * 61 + 62


@settings(max_examples=60)
@given(st.lists(st.integers(1, 900), min_size=2, max_size=40), st.data())
@in_virtual_time
async def test_cancelled_waiters_cost_nothing(loop, sizes, data):
    doomed = data.draw(st.sets(st.integers(0, len(sizes) - 1)))
    admission = Admission(Limits(1000, 1000, 3), clock=loop.time)
    held = [admission.try_acquire(10), admission.try_acquire(10)]
    done = []

    async def one(number, size):
        permit = await admission.acquire(size)
        done.append(number)
        await asyncio.sleep(0.5)
        admission.answered(permit, size, 0)

    tasks = [asyncio.create_task(one(i, size)) for i, size in enumerate(sizes)]
    await asyncio.sleep(data.draw(st.floats(0, 3)))
    for number in doomed:
        tasks[number].cancel()
    for permit in held:
        if permit is not None:
            admission.answered(permit)
    await asyncio.gather(*tasks, return_exceptions=True)
    kept = [i for i in done if i not in doomed]
    assert kept == [i for i in range(len(sizes)) if i not in doomed]
    assert admission._head() is None
    # a cancelled holder of a permit is not our business here: it never gave it back
    assert admission.in_flight == sum(1 for i in done if i in doomed and tasks[i].cancelled())


@pytest.mark.parametrize("limit", [1, 3, 60, 1000])
def test_the_rate_is_used_up(limit):
    async def main(loop):
        admission = Admission(Limits(limit, concurrency=10), clock=loop.time)
        for _ in range(10 * limit):
            admission.answered(await admission.acquire())
        return loop.time() - 1000

    seconds = run(main)
    assert seconds >= 9 * 60
    assert seconds <= 10 * 61.5
