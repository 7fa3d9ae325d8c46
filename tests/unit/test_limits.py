"""Limits: what a user may say, how calls wait, what a server's refusals and headers do."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from testnuc.errors import ConfigurationError, InvalidInputError, RateLimitedError
from testnuc.limits import (
    PICO,
    Admission,
    Budget,
    Meter,
    Price,
    RateLimit,
    RetryPolicy,
    require_price,
)
from testnuc.limits.concurrency import Concurrency
from testnuc.limits.rates import Forecast
from testnuc.protocols import TokenUsage
from tests.virtual import run


def admission_of(loop, rate_limit=None, concurrency=64, **retry):
    return Admission(
        rate_limit,
        concurrency,
        RetryPolicy(**retry),
        clock=loop.time,
        wall=lambda: loop.time() + 1_700_000_000,
        rng=Random(0),
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: RateLimit(0), "requests_per_minute"),
        (lambda: RateLimit(tokens_per_minute=-5), "tokens_per_minute"),
        (lambda: RateLimit(1.5), "1.5"),
        (lambda: RateLimit(True), "True"),
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
        (lambda: Admission(max_concurrency=0), "max_concurrency"),
    ],
)
def test_wrong_values_are_named(make, says):
    with pytest.raises(InvalidInputError, match=says):
        make()


# -- rates -----------------------------------------------------------------------------------------


def test_a_request_beyond_a_whole_minute_is_refused():
    async def main(loop):
        admission = admission_of(loop, RateLimit(tokens_per_minute=1000))
        with pytest.raises(InvalidInputError, match=r"1500.*1000"):
            admission.try_acquire(1500, 10)
        with pytest.raises(InvalidInputError, match=r"1500.*1000"):
            await admission.acquire(1500, 10)
        # but the most output tokens are no need
        assert admission.try_acquire(900, 16_384) is not None

    run(main)


def test_a_large_request_is_not_overtaken():
    async def main(loop):
        admission = admission_of(loop, RateLimit(tokens_per_minute=1000))
        admission.answered(await admission.acquire(900))
        order = []

        async def one(size):
            admission.answered(await admission.acquire(size))
            order.append(size)

        await asyncio.gather(one(950), one(1), one(2))
        assert order == [950, 1, 2]

    run(main)


def test_requests_are_paced():
    async def main(loop):
        admission = admission_of(loop, RateLimit(600))
        burst = 0
        while admission.try_acquire() is not None:
            burst += 1
        assert burst == 10  # one second's worth
        await asyncio.sleep(30)
        admission.answered(await admission.acquire())

    run(main)


def test_tokens_given_back_let_others_go():
    async def main(loop):
        admission = admission_of(loop, RateLimit(tokens_per_minute=6000))
        permit = await admission.acquire(100, 5900)
        assert admission.try_acquire(100) is None
        admission.answered(permit, 90, 5)
        await admission.acquire(100)
        assert loop.time() < 1001  # paced, but not a minute later

    run(main)


def test_waiting_does_not_spin():
    async def main(loop):
        ticks = 0

        def call_later(delay, callback):
            nonlocal ticks
            ticks += 1
            assert delay > 0.00499
            return loop.call_later(delay, callback)

        admission = Admission(
            RateLimit(60_000), 10_000, clock=loop.time, call_later=call_later, rng=Random(0)
        )
        await asyncio.gather(*[admission.acquire() for _ in range(3000)])
        assert loop.time() - 1000 == pytest.approx(2.03, abs=0.1)
        assert ticks <= 2.2 / 0.005

    run(main)


def test_calls_sent_before_stand_before_new_ones():
    async def main(loop):
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

    run(main)


def test_forecast_learns_and_forgets():
    forecast = Forecast()
    assert forecast.expect(100, 4096) == (100, 4096)
    for _ in range(10):
        forecast.learn(100, 80, 12)
    size = forecast.expect(200, 4096)
    assert 160 <= size[0] <= 163
    assert 12 <= size[1] <= 14
    forecast.learn(100, 120, 40)
    assert forecast.expect(200, 20) == (241, 21)
    for _ in range(1000):
        forecast.learn(100, 80, 12)
    assert forecast.expect(100, 4096)[0] <= 82


# -- concurrency -----------------------------------------------------------------------------------


def busy(concurrency, latency, *, seconds, outcome, most=64):
    """Keep as many calls in flight as are allowed; return how many were answered."""
    bound = Concurrency(most, initial_wait=0.5, max_wait=60, rng=Random(1))
    if concurrency is not None:
        bound = concurrency
    now, flights, answered = 0.0, [], 0
    while now < seconds:
        while now >= bound.paused_until and (
            len(flights) < bound.cap or bound.widen(now, len(flights)) == 0
        ):
            bound.sent()
            ends, what = outcome(now)
            flights.append((now + ends, now, what))
        flights.sort()
        if flights and flights[0][0] <= now:
            _, sent, what = flights.pop(0)
            if what == "ok":
                answered += 1
                bound.answered(sent, now)
            elif what == "failed":
                bound.failed(now)
            else:
                bound.refused(sent, now, what)
            continue
        now += 0.005
    return bound, answered


def test_constant_latency_costs_no_throughput():
    rng = Random(2)
    bound, answered = busy(
        None,
        0.2,
        seconds=20,
        outcome=lambda _: (0.2 * rng.uniform(0.8, 1.3), "ok"),
        most=256,
    )
    assert bound.cap == 256
    assert answered > 0.95 * 256 / 0.215 * 20


def test_a_storm_ends_in_a_few_round_trips():
    def outcome(now):
        return (0.05, None)

    bound, _ = busy(None, 0.2, seconds=3, outcome=outcome)
    assert bound.cap == 1
    assert bound.paused_until > 3


def test_an_outage_is_probed_and_overcome():
    probes = []

    def outcome(now):
        if 5 <= now < 10:
            probes.append(now)
            return (0.01, None)
        return (0.2, "ok")

    bound, answered = busy(None, 0.2, seconds=20, outcome=outcome)
    # 64 were in flight when it began; then the probes become rarer
    assert len([at for at in probes if at > 5.5]) < 40
    assert bound.cap == 64
    assert answered > 64 / 0.2 * 8


def test_single_refusals_cost_little():
    rng = Random(3)

    def outcome(_):
        return (0.01, None) if rng.random() < 0.07 else (0.2, "ok")

    bound, answered = busy(None, 0.2, seconds=30, outcome=outcome)
    assert bound.cap >= 32
    assert answered > 0.6 * 64 / 0.2 * 30


def test_after_a_pause_not_all_come_at_once():
    refused_until = 6.0
    sends = []

    def outcome(now):
        sends.append(now)
        return (0.05, max(0.1, refused_until - now)) if 5 <= now < refused_until else (0.5, "ok")

    busy(None, 0.5, seconds=8, outcome=outcome)
    between = [at for at in sends if 5.1 < at < refused_until]
    assert len(between) <= 2
    back = [at for at in sends if at >= refused_until]
    assert len([at for at in back if at < back[0] + 0.1]) <= 4
    assert len([at for at in back if at < back[0] + 1.0]) >= 64


def test_latency_far_above_its_baseline_is_eased_gently():
    def outcome(now):
        return (0.1, "ok") if now < 5 else (0.6, "ok")

    bound, _ = busy(None, 0.1, seconds=25, outcome=outcome)
    assert 16 <= bound.cap < 64


def test_failures_are_no_overload():
    bound, _ = busy(None, 0.1, seconds=5, outcome=lambda _: (0.1, "failed"))
    assert bound.cap == 64


def test_a_wait_longer_than_the_deadline_fails_who_waits():
    async def main(loop):
        admission = admission_of(loop, concurrency=1, deadline=120)
        held = admission.try_acquire()
        waiters = [asyncio.create_task(admission.acquire()) for _ in range(3)]
        await asyncio.sleep(0)
        admission.refused(held, 3600)
        results = await asyncio.gather(*waiters, return_exceptions=True)
        assert all(isinstance(r, RateLimitedError) and r.retry_after > 3500 for r in results)
        with pytest.raises(RateLimitedError, match="deadline"):
            await admission.acquire()
        assert loop.time() == 1000

    run(main)


# -- the provider's headers ------------------------------------------------------------------------


def openai_headers(remaining, reset, limit=500, kind="requests"):
    return {
        f"x-ratelimit-limit-{kind}": str(limit),
        f"x-ratelimit-remaining-{kind}": str(remaining),
        f"x-ratelimit-reset-{kind}": reset,
    }


def test_nothing_left_means_holding_off_until_the_reset():
    async def main(loop):
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

    run(main)


def test_what_is_in_flight_counts():
    async def main(loop):
        admission = admission_of(loop)
        permits = [admission.try_acquire() for _ in range(10)]
        admission.observe(permits[0], openai_headers(12, "10s"))
        admission.answered(permits[0])
        # nine in flight may not be part of the twelve yet
        more = [admission.try_acquire() for _ in range(5)]
        assert [p is not None for p in more] == [True, True, True, False, False]

    run(main)


@pytest.mark.parametrize(
    "headers",
    [
        openai_headers(-1, "0"),
        openai_headers("many", "soon"),
        {"x-ratelimit-remaining-requests": ""},
        openai_headers(499, "120ms"),
        {},
    ],
)
def test_headers_that_say_nothing_hold_nobody(headers):
    async def main(loop):
        admission = admission_of(loop)
        permit = await admission.acquire()
        admission.observe(permit, headers)
        admission.answered(permit)
        assert all(admission.try_acquire() is not None for _ in range(64))

    run(main)


def test_anthropic_headers():
    async def main(loop):
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

    run(main)


def test_a_daily_limit_is_probed_every_minute():
    async def main(loop):
        admission = admission_of(loop, max_wait=60)
        at = []
        for _ in range(3):
            permit = await admission.acquire()
            at.append(loop.time() - 1000)
            if at[1:]:
                assert admission.try_acquire() is None
            admission.observe(permit, openai_headers(0, "7h12m0s", limit=200))
            admission.failed(permit)
        assert at == pytest.approx([0, 60, 120])

    run(main)


def test_lost_answers_do_not_block_for_ever():
    async def main(loop):
        admission = admission_of(loop)
        permits = [admission.try_acquire() for _ in range(3)]
        admission.observe(permits[0], openai_headers(0, "10s", limit=2))
        admission.answered(permits[0])
        await asyncio.sleep(11)
        waiter = asyncio.create_task(admission.acquire())
        await asyncio.sleep(1)
        assert not waiter.done()  # two in flight may be all that the fresh limit allows
        for permit in permits[1:]:
            admission.failed(permit)  # and nobody tells what is left
        await waiter
        assert loop.time() < 1090

    run(main)


def test_a_worst_case_beyond_what_is_left_is_tried_alone():
    async def main(loop):
        admission = admission_of(loop)
        permit = await admission.acquire(100, 16_384)
        admission.observe(permit, openai_headers(5000, "60s", 10_000, "tokens"))
        admission.answered(permit)
        permit = admission.try_acquire(100, 16_384)
        assert permit is not None
        assert admission.try_acquire(100, 16_384) is None

    run(main)


# -- prices and the meter --------------------------------------------------------------------------


def test_prices_of_known_models():
    price = Price.of("openai", "gpt-4o-mini")
    usage = TokenUsage(1_000_000, 1_000_000, cached_tokens=400_000)
    assert price.usd(usage) == pytest.approx(0.6 * 0.15 + 0.4 * 0.075 + 0.6)
    assert price.worst(1_000_000, 1_000_000) == 0.75 * PICO
    price = Price.of("anthropic", "claude-sonnet-4-20250514")
    usage = TokenUsage(1000, 100, cached_tokens=200, cache_write_tokens=300)
    assert price.usd(usage) == pytest.approx((500 * 3 + 200 * 0.3 + 300 * 3.75 + 100 * 15) / 1e6)
    assert price.worst(1000, 100) == (1000 * 3.75 + 100 * 15) * PICO / 1e6


def test_prices_agree_with_the_list_on_every_tier():
    from genai_prices import Usage, calc_price

    for provider, model in [
        ("openai", "gpt-4o"),
        ("openai", "gpt-4.1-nano"),
        ("anthropic", "claude-sonnet-4-5"),
        ("google", "gemini-2.5-pro"),
    ]:
        price = Price.of(provider, model)
        for tokens in (10, 199_999, 200_000, 200_001, 900_000):
            theirs = calc_price(
                Usage(input_tokens=tokens, output_tokens=77, cache_read_tokens=5),
                model,
                provider_id=provider,
            )
            ours = price.usd(TokenUsage(tokens, 77, cached_tokens=5))
            assert ours == pytest.approx(float(theirs.total_price))
            assert price.worst(tokens, 77) >= price.pico(TokenUsage(tokens, 77, 5))


@pytest.mark.parametrize(
    ("provider", "model", "url", "known"),
    [
        ("openai", "gpt-4o-mini", "https://api.openai.com/v1/chat/completions", True),
        ("openai", "gpt-4o-mini", "http://127.0.0.1:8000/v1/chat/completions", False),
        ("openai", "llama-3.3-70b-versatile", "https://api.groq.com/openai/v1/x", True),
        ("openai", "no-such-model", None, False),
        ("nobody", "gpt-4o-mini", None, False),
        ("groq", "llama-3.3-70b-versatile", "http://proxy.example/v1", True),
        ("local", "zero-shot", None, True),
    ],
)
def test_which_models_have_a_price(provider, model, url, known):
    assert (Price.of(provider, model, url) is not None) is known


def test_an_unpriced_model_cannot_keep_a_budget_in_usd():
    with pytest.raises(ConfigurationError, match=r"my-model.*Budget\(tokens"):
        require_price(Budget(usd=1), None, "my-model")
    require_price(Budget(tokens=1), None, "my-model")
    require_price(Budget(usd=1), Price.per_million(1, 2), "my-model")


def test_the_meter_tells_known_from_unknown():
    meter = Meter(Price.per_million(1, 2))
    assert meter.usage().usd == 0
    meter.add(TokenUsage(1000, 100, cached_tokens=10))
    mark = meter.mark()
    usage = meter.usage()
    assert (usage.calls, usage.input_tokens, usage.output_tokens) == (1, 1000, 100)
    assert (usage.cached_tokens, usage.usd) == (10, pytest.approx(0.0012))
    meter.add(None)
    meter.retries += 1
    assert meter.usage().input_tokens is None
    assert meter.usage().usd is None
    assert meter.since(mark).calls == 1
    mark = meter.mark()
    meter.add(TokenUsage(7, 1))
    # unknown sticks to the sums it is part of, and to no others
    assert meter.since(mark).input_tokens == 7
    assert meter.usage().output_tokens is None


def test_what_costs_nothing_costs_nothing_unknown_or_not():
    meter = Meter(Price.of("local", "zero-shot"))
    meter.add(None)
    assert meter.usage().usd == 0
    assert meter.usage().input_tokens is None
    meter = Meter()
    meter.add(TokenUsage(1, 1))
    assert meter.usage().usd is None
