"""Limits: what a user may say, how calls wait, what a server's headers do."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from testnuc.errors import InvalidInputError, RateLimitedError
from testnuc.limits.admission import Admission
from testnuc.limits.policies import Budget, Limits, RetryPolicy
from testnuc.limits.rates import Forecast
from tests.virtual import in_virtual_time


def admission_of(loop, limits=None, concurrency=64, **retry):
    return Admission(
        replace(limits or Limits(), concurrency=concurrency, retry=RetryPolicy(**retry)),
        clock=loop.time,
        wall=lambda: loop.time() + 1_700_000_000,
        rng=Random(0),
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Limits(0), "requests_per_minute"),
        (lambda: Limits(tokens_per_minute=-5), "tokens_per_minute"),
        (lambda: Limits(1.5), "1.5"),
        (lambda: Limits(True), "True"),
        (lambda: RetryPolicy(attempts=0), "attempts"),
        (lambda: RetryPolicy(attempts=None), "None"),
        (lambda: RetryPolicy(deadline=0), "deadline"),
        (lambda: RetryPolicy(timeout=float("inf")), "timeout"),
        (lambda: RetryPolicy(max_wait=-1), "max_wait"),
        (lambda: RetryPolicy(initial_wait="1"), "initial_wait"),
        (lambda: Budget(usd=0), "usd"),
        (lambda: Budget(usd=float("nan")), "usd"),
        (lambda: Budget(tokens=0), "tokens"),
        (lambda: Budget(calls=2.0), "calls"),
        (lambda: Limits(concurrency=0), "concurrency"),
    ],
)
def test_wrong_values_are_named(make, says):
    with pytest.raises(InvalidInputError, match=says):
        make()


# -- rates -----------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_request_beyond_a_whole_minute_is_refused(loop):
    admission = admission_of(loop, Limits(tokens_per_minute=1000))
    with pytest.raises(InvalidInputError, match=r"1500.*1000"):
        admission.try_acquire(1500, 10)
    with pytest.raises(InvalidInputError, match=r"1500.*1000"):
        await admission.acquire(1500, 10)
    # but the most output tokens are no need
    assert admission.try_acquire(900, 16_384) is not None


@in_virtual_time
async def test_a_large_request_is_not_overtaken(loop):
    admission = admission_of(loop, Limits(tokens_per_minute=1000))
    admission.answered(await admission.acquire(900))
    order = []

    async def one(size):
        admission.answered(await admission.acquire(size))
        order.append(size)

    await asyncio.gather(one(950), one(1), one(2))
    assert order == [950, 1, 2]


@in_virtual_time
async def test_requests_are_paced(loop):
    admission = admission_of(loop, Limits(600))
    burst = 0
    while admission.try_acquire() is not None:
        burst += 1
    assert burst == 10  # one second's worth
    await asyncio.sleep(30)
    admission.answered(await admission.acquire())


@in_virtual_time
async def test_tokens_given_back_let_others_go(loop):
    admission = admission_of(loop, Limits(tokens_per_minute=6000))
    permit = await admission.acquire(100, 5900)
    assert admission.try_acquire(100) is None
    admission.answered(permit, 90, 5)
    await admission.acquire(100)
    assert loop.time() < 1001  # paced, but not a minute later


@in_virtual_time
async def test_one_call_of_many_tokens_delays_others_for_a_minute_at_most(loop):
    admission = admission_of(loop, Limits(tokens_per_minute=20_000), concurrency=4)
    for number in range(200):
        permit = await admission.acquire(364, 122)
        admission.answered(permit, 90_000 if number == 5 else 150, 10)
    # 160 tokens each, and a minute
    assert loop.now - 1_000 < 60 * 200 * 160 / 20_000 + 70


@in_virtual_time
async def test_waiting_does_not_spin(loop):
    ticks = 0

    call_later = loop.call_later

    def counted(delay, callback, *arguments):
        nonlocal ticks
        ticks += 1
        assert delay > 0.00499
        return call_later(delay, callback, *arguments)

    loop.call_later = counted
    admission = Admission(Limits(60_000, concurrency=10_000), clock=loop.time, rng=Random(0))
    await asyncio.gather(*[admission.acquire() for _ in range(3000)])
    assert loop.time() - 1000 == pytest.approx(2.03, abs=0.1)
    assert ticks <= 2.2 / 0.005


@in_virtual_time
async def test_calls_sent_before_stand_before_new_ones(loop):
    admission = admission_of(loop, concurrency=1)
    held = admission.try_acquire()
    order = []

    async def one(name, again):
        permit = await admission.acquire(again=again)
        order.append(name)
        admission.answered(permit)

    tasks = [asyncio.create_task(one("new", again=False))]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(one("again", again=True)))
    await asyncio.sleep(0)
    admission.answered(held)
    await asyncio.gather(*tasks)
    assert order == ["again", "new"]


def test_forecast_learns_and_forgets():
    forecast = Forecast()
    assert forecast.expect(100, 4096) == (100, 4096)
    for _ in range(10):
        forecast.learn(100, 80, 12)
    size = forecast.expect(200, 4096)
    assert 160 <= size[0] <= 163
    assert 12 <= size[1] <= 14
    # one call far above all others may be a mistake of the provider
    forecast.learn(100, 9_000, 4_000)
    assert forecast.expect(200, 4096)[0] <= 162
    assert forecast.expect(200, 4096)[1] <= 13
    forecast.learn(100, 120, 40)
    assert forecast.expect(200, 20) == (241, 21)
    for _ in range(1000):
        forecast.learn(100, 80, 12)
    assert forecast.expect(100, 4096)[0] <= 82


@in_virtual_time
async def test_pauses_of_our_own_do_not_outlast_a_deadline(loop):
    # max_wait is longer, by default
    admission = admission_of(loop, concurrency=2, deadline=10)
    for _ in range(30):
        admission.refused(await admission.acquire(), None)


@pytest.mark.parametrize("asked", [3601, 1e9, 1e300, float("inf"), float("nan"), -5, 0])
@in_virtual_time
async def test_whatever_wait_is_asked_for_a_call_is_sent_again(loop, asked, caplog):
    admission = admission_of(loop, deadline=120)
    for round_ in range(3):
        permit = await sent_again(admission)
        assert loop.time() - 1000 <= round_ * 150
        admission.refused(permit, asked)
        if asked > 120 and not round_:
            # the first one is in doubt
            admission.refused(await admission.acquire(), asked)
        if 120 < asked < float("inf"):
            with pytest.raises(RateLimitedError, match="deadline") as caught:
                await admission.acquire()
            assert caught.value.retry_after <= 3600
            assert admission.pause > 60
    admission.answered(await sent_again(admission))
    # what was asked for before is over
    assert admission.pause == 0
    admission.refused(await admission.acquire(), 2)
    assert admission.pause == 0
    before = loop.time()
    await admission.acquire()
    assert loop.time() - before < 3
    warned = [r for r in caplog.records if r.levelname == "WARNING"]
    assert len(warned) == (120 < asked < float("inf"))


async def sent_again(admission):
    """Try every ten seconds until a call is admitted."""
    while True:
        try:
            return await admission.acquire()
        except RateLimitedError:
            await asyncio.sleep(10)


@in_virtual_time
async def test_after_a_long_pause_one_call_finds_out(loop):
    admission = admission_of(loop, deadline=120)
    for _ in range(64):
        admission.answered(admission.try_acquire())
    for _ in range(2):
        admission.refused(await admission.acquire(), 1e9)
    await asyncio.sleep(140)
    probe = admission.try_acquire()
    waiting = [asyncio.create_task(admission.acquire()) for _ in range(5)]
    await asyncio.sleep(0)
    assert probe is not None
    assert not any(task.done() for task in waiting)
    admission.answered(probe)
    for task in waiting:
        admission.answered(await task)


@pytest.mark.parametrize("concurrency", [1, 2, 64])
@in_virtual_time
async def test_one_refusal_that_asks_for_years_fails_nobody_who_waits(loop, concurrency):
    admission = admission_of(loop, concurrency=concurrency)

    async def one(number):
        permit = await admission.acquire()
        await asyncio.sleep(0.1)
        if number % 100 == 20:
            admission.refused(permit, 1e9)
        else:
            admission.answered(permit)

    await asyncio.gather(*map(one, range(300)))
    assert loop.time() - 1000 < 30 / concurrency + 5
    # those that were sent at the same time say the same
    permits = [await admission.acquire() for _ in range(min(2, concurrency))]
    for permit in permits:
        admission.refused(permit, 1e9)
    admission.answered(await admission.acquire())
    admission.answered(await admission.acquire())


# -- the provider's headers ------------------------------------------------------------------------


def openai_resets():
    tomorrow = 1_700_001_000 + 86_400
    return ["24h", "86400", "2099-01-01T00:00:00Z", str(tomorrow), f"{tomorrow}000"]


@pytest.mark.parametrize("reset", openai_resets())
@pytest.mark.parametrize("kinds", [["requests"], ["tokens"], ["requests", "tokens"]])
@in_virtual_time
async def test_a_header_that_answers_contradict_is_ignored_and_said_once(
    loop, reset, kinds, caplog
):
    admission = admission_of(loop)
    headers = {k: v for kind in kinds for k, v in openai_headers(0, reset, kind=kind).items()}

    async def one():
        permit = await admission.acquire(100, 20)
        await asyncio.sleep(0.2)
        admission.observe(permit, headers)
        admission.answered(permit)

    await asyncio.gather(*[one() for _ in range(300)])
    # those that were in flight, one that finds out, and the others
    assert loop.time() - 1000 < 3
    warned = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert len(warned) == len(kinds)
    assert all("ignored" in message for message in warned)


@in_virtual_time
async def test_a_daily_limit_that_holds_is_believed_and_said_once(loop, caplog):
    admission = admission_of(loop)
    left, refused = 100, []

    async def one():
        nonlocal left
        permit = await admission.acquire()
        await asyncio.sleep(0.2)
        left -= 1
        admission.observe(permit, openai_headers(max(0, left), "24h", limit=100))
        if left >= 0:
            admission.answered(permit)
        else:
            refused.append(loop.time())
            admission.refused(permit)

    tasks = [asyncio.create_task(one()) for _ in range(300)]
    await asyncio.sleep(600)
    # one finds out, then one a minute
    assert len(refused) <= 12
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    warned = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert len(warned) == 1
    assert "24 h" in warned[0]


@in_virtual_time
async def test_a_header_that_was_ignored_is_believed_after_a_refusal(loop):
    admission = admission_of(loop)
    for _ in range(3):
        permit = await admission.acquire()
        admission.observe(permit, openai_headers(0, "24h"))
        admission.answered(permit)
    assert loop.time() - 1000 < 2
    permit = await admission.acquire()
    admission.observe(permit, openai_headers(0, "24h"))
    admission.refused(permit)
    before = loop.time()
    permit = await admission.acquire()
    admission.observe(permit, openai_headers(0, "24h"))
    admission.refused(permit)
    await admission.acquire()
    assert loop.time() - before > 59


def openai_headers(remaining, reset, limit=500, kind="requests"):
    return {
        f"x-ratelimit-limit-{kind}": str(limit),
        f"x-ratelimit-remaining-{kind}": str(remaining),
        f"x-ratelimit-reset-{kind}": reset,
    }


@in_virtual_time
async def test_nothing_left_means_holding_off_until_the_reset(loop):
    admission = admission_of(loop)
    permit = await admission.acquire()
    admission.observe(permit, openai_headers(0, "20s", limit=3))
    admission.answered(permit)
    sent = []

    async def one():
        permit = await admission.acquire()
        sent.append(loop.time() - 1000)
        await asyncio.sleep(1)
        admission.observe(permit, openai_headers(3 - len(sent), "30s", limit=3))
        admission.answered(permit)

    await asyncio.gather(*[one() for _ in range(5)])
    # three of a fresh limit, then the next minute's
    assert [round(at) for at in sent] == [20, 20, 20, 51, 51]


@in_virtual_time
async def test_what_is_in_flight_counts(loop):
    admission = admission_of(loop)
    permits = [admission.try_acquire() for _ in range(10)]
    admission.observe(permits[0], openai_headers(12, "10s"))
    admission.answered(permits[0])
    # nine in flight may not be part of the twelve yet
    more = [admission.try_acquire() for _ in range(5)]
    assert [p is not None for p in more] == [True, True, True, False, False]


@pytest.mark.parametrize(
    "headers",
    [
        openai_headers(-1, "0"),
        openai_headers("many", "soon"),
        {"x-ratelimit-remaining-requests": ""},
        openai_headers(499, "120ms"),
        # gateways without limits of their own
        openai_headers(0, "0s", limit=0),
        {},
    ],
)
@in_virtual_time
async def test_headers_without_limits_delay_no_call(loop, headers):
    admission = admission_of(loop)
    permit = await admission.acquire()
    admission.observe(permit, headers)
    admission.answered(permit)
    assert all(admission.try_acquire() is not None for _ in range(64))


@in_virtual_time
async def test_anthropic_headers(loop):
    admission = admission_of(loop)
    permit = await admission.acquire(100, 50)
    admission.observe(
        permit,
        {
            "anthropic-ratelimit-input-tokens-limit": "40000",
            "anthropic-ratelimit-input-tokens-remaining": "0",
            "anthropic-ratelimit-input-tokens-reset": "2023-11-14T22:30:12Z",
            "date": "Tue, 14 Nov 2023 22:30:00 GMT",
        },
    )
    admission.answered(permit)
    assert admission.try_acquire(100, 50) is None
    await admission.acquire(100, 50)
    assert loop.time() == pytest.approx(1012, abs=0.01)


@in_virtual_time
async def test_a_daily_limit_is_probed_every_minute(loop):
    admission = admission_of(loop, max_wait=60)
    at = []
    for _ in range(4):
        permit = await admission.acquire()
        at.append(loop.time() - 1000)
        if at[1:]:
            assert admission.try_acquire() is None
        admission.observe(permit, openai_headers(0, "7h12m0s", limit=200))
        admission.failed(permit)
    # the first finds out whether the header is right
    assert at == pytest.approx([0, 1, 61, 121])


@in_virtual_time
async def test_lost_answers_do_not_block_for_ever(loop):
    admission = admission_of(loop)
    permits = [admission.try_acquire() for _ in range(3)]
    admission.observe(permits[0], openai_headers(0, "10s", limit=2))
    admission.answered(permits[0])
    await asyncio.sleep(11)
    waiter = asyncio.create_task(admission.acquire())
    await asyncio.sleep(1)
    assert not waiter.done()  # two in flight may be all that the fresh limit allows
    for permit in permits[1:]:
        admission.failed(permit)  # and no response has the headers
    await waiter
    # soon after they ended, and not a longest wait later
    assert loop.time() < 1015


@pytest.mark.parametrize("remaining", [0, 1])
@pytest.mark.parametrize("reset", ["10s", "", "24h"])
@in_virtual_time
async def test_a_limit_of_zero_does_not_block_for_ever(loop, remaining, reset):
    admission = admission_of(loop, max_wait=60)
    permits = [admission.try_acquire() for _ in range(3)]
    admission.observe(permits[0], openai_headers(remaining, reset, limit=0))
    for permit in permits:
        admission.answered(permit)
    async with asyncio.timeout(5 * 61):
        for _ in range(5):
            admission.answered(await admission.acquire())


@in_virtual_time
async def test_a_header_that_comes_no_more_is_forgotten(loop):
    admission = admission_of(loop, max_wait=60)
    permit = await admission.acquire()
    admission.observe(permit, openai_headers(1, "24h", limit=1))
    admission.answered(permit)
    for _ in range(9):
        permit = await admission.acquire()
        admission.observe(permit, {})
        admission.answered(permit)
    assert loop.time() < 1062


@in_virtual_time
async def test_a_worst_case_beyond_what_is_left_is_tried_alone(loop):
    admission = admission_of(loop)
    permit = await admission.acquire(100, 16_384)
    admission.observe(permit, openai_headers(5000, "60s", 10_000, "tokens"))
    admission.answered(permit)
    permit = admission.try_acquire(100, 16_384)
    assert permit is not None
    assert admission.try_acquire(100, 16_384) is None
