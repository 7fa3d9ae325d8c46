"""The transport over real sockets: budget, rates, cancellation, secrets, other providers."""

from __future__ import annotations

import asyncio
import gc
import math
import time
import traceback
from dataclasses import replace

import pytest
from aiohttp import web

from testnuc.errors import (
    BudgetExceededError,
    CallTimeoutError,
    ConfigurationError,
    ConnectionFailedError,
    InvalidInputError,
    RateLimitedError,
    ServerError,
)
from testnuc.limits.budget import Price
from testnuc.limits.policies import Budget, Limits, RetryPolicy
from testnuc.protocols import Answer, Reply, TokenUsage
from testnuc.transport import Transport
from tests.accounts import reserved, spent
from tests.transport.small_server import (
    ONE,
    SECRET,
    Wire,
    calling,
    cut_off,
    said,
    sending,
    serving,
    stall,
)
from tests.waiting import until

# -- budget ----------------------------------------------------------------------------------------


async def test_the_budget_is_used_up_and_not_exceeded():
    async with calling(budget=Budget(tokens=120)) as (transport, wire, seen):
        # each may need 30 and needs 12: eight fit, one after the other in the end
        calls = [transport.call(wire, ONE) for _ in range(20)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        done = [r for r in results if isinstance(r, Reply)]
        assert len(done) == len(seen) == 8
        assert sum(isinstance(r, BudgetExceededError) for r in results) == 12
        assert spent(transport.account)[1] == 96


async def test_a_failure_that_was_not_billed_uses_its_reservation_again():
    def answer(n, request):
        return web.Response(status=500) if n < 3 else said()

    async with calling(answer, budget=Budget(calls=1)) as (transport, wire, _):
        await transport.call(wire, ONE)
        assert spent(transport.account)[2] == 1
        with pytest.raises(BudgetExceededError, match="calls"):
            await transport.call(wire, ONE)


async def test_estimates_that_were_too_low_are_not_trusted_again():
    budget = Budget(tokens=70)
    async with calling(lambda n, r: said(usage=(25, 2)), budget=budget) as (transport, wire, seen):
        await transport.call(wire, ONE)
        # 27 are spent: by its estimate of 10 + 20 the next would fit, by the last need it may not
        with pytest.raises(BudgetExceededError, match="45 tokens"):
            await transport.call(wire, ONE)
        assert len(seen) == 1


@pytest.mark.parametrize("tokens", [-5, 10**12, 1e30, math.nan, "7", None])
@pytest.mark.parametrize("field", ["input_tokens", "output_tokens", "cached_tokens"])
async def test_impossible_counts_of_tokens_are_unknown(field, tokens):
    async with calling(budget=Budget(tokens=70), price=Price.per_million(1, 2)) as (
        transport,
        wire,
        _,
    ):
        usage = replace(TokenUsage(10, 2), **{field: tokens})
        wire.decode = lambda request, body: Reply((Answer("a"),), usage)
        for _ in range(2):
            await transport.call(wire, ONE)
        # the worst case of both
        assert spent(transport.account)[1] == 60
        assert transport.meter.since().input_tokens is None


@pytest.mark.parametrize(
    "usage",
    [TokenUsage(0, 0), TokenUsage(10**8, 1), TokenUsage(129_000, 1), TokenUsage(10, 129_000)],
)
async def test_usage_that_no_call_can_have_is_unknown(usage):
    async with calling(budget=Budget(tokens=10_000), price=Price.per_million(1, 2)) as (
        transport,
        wire,
        _,
    ):
        right = wire.decode
        wire.decode = lambda request, body: Reply((Answer("a"),), usage)
        await transport.call(wire, ONE)
        # the reservation is booked, and later ones are no larger
        assert spent(transport.account)[1] == 30
        assert transport.meter.since().usd is None
        wire.decode = right
        for _ in range(20):
            await transport.call(wire, ONE)
        assert spent(transport.account)[1] == 30 + 20 * 12


@pytest.mark.parametrize("usage", [(10, 12_000), (12_000, 2)])
async def test_what_an_output_limit_or_a_gateway_s_prompt_does_not_bound_is_spent(usage):
    """Reasoning of 12,000 tokens was unknown, and each call counted as 30."""
    async with calling(lambda n, r: said(usage=usage), budget=Budget(tokens=20_000)) as (
        transport,
        wire,
        seen,
    ):
        for _ in range(2):
            await transport.call(wire, ONE)
        assert transport.meter.since().output_tokens == 2 * usage[1]
        with pytest.raises(BudgetExceededError, match="tokens"):
            await transport.call(wire, ONE)
        assert len(seen) == 2


async def test_a_large_overrun_does_not_end_all_later_calls():
    def answer(n, request):
        return said(usage=(10 if n else 8_000, 2))

    async with calling(answer, budget=Budget(tokens=9_000)) as (transport, wire, seen):
        for _ in range(9):
            await transport.call(wire, ONE)
        assert len(seen) == 9


@pytest.mark.parametrize("status", [504, 524])
async def test_a_gateway_that_did_not_wait_books_the_reservation(status):
    def answer(number, request):
        return web.Response(status=status, text="too late") if number < 2 else said()

    async with calling(answer, budget=Budget(tokens=1000)) as (transport, wire, seen):
        await transport.call(wire, ONE)
        # the model may have answered twice before
        assert spent(transport.account)[1:] == (30 + 30 + 12, 3)
        assert len(seen) == 3


async def test_usd_needs_a_price():
    with pytest.raises(ConfigurationError, match="price"):
        Transport(Limits(budget=Budget(usd=1)))


# -- rates -----------------------------------------------------------------------------------------


async def test_too_large_for_the_rate_is_said_before_sending():
    async with calling(tokens_per_minute=100, budget=Budget(calls=1)) as (transport, wire, seen):
        wire.size = (101, 5)
        with pytest.raises(InvalidInputError, match="101"):
            await transport.call(wire, ONE)
        assert seen == []


async def test_headers_hold_calls_back():
    headers = {
        "x-ratelimit-limit-requests": "1",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "40ms",
    }

    def answer(n, request):
        response = said()
        response.headers.update(headers)
        return response

    async with calling(answer) as (transport, wire, _):
        started = time.monotonic()
        for _ in range(3):
            await transport.call(wire, ONE)
        assert time.monotonic() - started >= 0.08


# -- the end of things -----------------------------------------------------------------------------


async def test_cancelling_leaves_nothing_behind():
    before = asyncio.all_tasks()
    limits = {"concurrency": 2, "budget": Budget(calls=3)}
    async with calling(lambda n, r: stall(), **limits) as (transport, wire, seen):
        tasks = [asyncio.create_task(transport.call(wire, ONE)) for _ in range(6)]
        await until(lambda: len(seen) == 2)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(r, asyncio.CancelledError) for r in results)
        assert transport.admission.in_flight == 0
        assert transport.admission._head() is None
        assert reserved(transport.account) == (0, 0, 0)
        assert spent(transport.account)[2] == 2  # those on their way may be billed
    for _ in range(5):
        await asyncio.sleep(0)
    assert {t for t in asyncio.all_tasks() - before if "Transport.call" in repr(t)} == set()


async def test_cancelling_between_tries():
    async def forever(seconds):
        await asyncio.sleep(30)

    async with serving(lambda n, r: web.Response(status=500)) as (wire, seen):
        transport = Transport(Limits(budget=Budget(calls=1)), sleep=forever)
        task = asyncio.create_task(transport.call(wire, ONE))
        await until(lambda: seen and not transport.admission.in_flight)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert reserved(transport.account) == spent(transport.account) == (0, 0, 0)
        await transport.aclose()


async def test_a_timeout_of_the_callers_own_is_not_taken_for_ours():
    async with calling(lambda n, r: stall()) as (transport, wire, _):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await transport.call(wire, ONE)


async def test_closing_is_final_and_silent(recwarn):
    async with serving(lambda n, r: said()) as (wire, _):
        transport = Transport()
        await transport.call(wire, ONE)
        await transport.aclose()
        await transport.aclose()
        with pytest.raises(ConfigurationError, match="closed"):
            await transport.call(wire, ONE)
        del transport
        gc.collect()
    assert [w for w in recwarn if w.category is ResourceWarning] == []


def everything_said(error):
    chain = []
    while error is not None:
        chain += [
            repr(error),
            str(error),
            repr(error.args),
            "".join(traceback.format_exception(error)),
        ]
        error = error.__cause__
    return "\n".join(chain)


@pytest.mark.parametrize(
    "how",
    ["refused", "reset", "timeout", "garbage", "status", "url"],
)
async def test_the_key_is_never_shown(how):
    async def garbage(reader, writer):
        await reader.read(10)
        writer.write(b"\x00\x01 this is no HTTP\r\n\r\n")
        writer.close()

    def answer(n, request):
        if how == "reset":
            return cut_off(request)
        return stall() if how == "timeout" else web.Response(status=500)

    policy = RetryPolicy(attempts=2, timeout=0.05, initial_wait=0.001)
    raw = await asyncio.start_server(garbage, "127.0.0.1", 0)
    async with raw, serving(answer) as (wire, _), sending(retry=policy) as transport:
        if how == "garbage":
            wire.url = f"http://127.0.0.1:{raw.sockets[0].getsockname()[1]}/"
        elif how == "refused":
            wire.url = "http://127.0.0.1:9/"
        elif how == "url":
            wire.url = f"http://user:{SECRET}@127.0.0.1:9/"
        with pytest.raises(
            (ConnectionFailedError, CallTimeoutError, ServerError, ConfigurationError)
        ) as caught:
            await transport.call(wire, ONE)
        assert SECRET not in everything_said(caught.value)
        assert SECRET not in repr(transport)
        assert SECRET not in repr(vars(transport))


async def test_two_providers_keep_their_headers_apart():
    async with calling() as (transport, wire, seen):
        other = Wire(wire.url)
        other.headers = {"x-api-key": "another"}
        await transport.call(wire, ONE)
        await transport.call(other, ONE)
        assert "x-api-key" not in seen[0][0]
        assert "Authorization" not in seen[1][0]


async def test_one_loop_each():
    async with calling() as (transport, wire, _):
        await transport.call(wire, ONE)

        def elsewhere():
            return asyncio.run(transport.call(wire, ONE))

        with pytest.raises(ConfigurationError, match="loop"):
            await asyncio.to_thread(elsewhere)


# -- providers without HTTP ------------------------------------------------------------------------


class Rule:
    name = "rule"
    model = "rule"
    identity = "1"

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.asked = 0

    async def answer(self, request):
        self.asked += 1
        await asyncio.sleep(0)
        outcome = self.outcomes.pop(0) if self.outcomes else Reply((Answer("a"),))
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


async def test_other_providers_are_retried_and_counted():
    rule = Rule(ServerError("busy"), RateLimitedError("slow", retry_after=0.01))
    async with sending(budget=Budget(calls=1)) as transport:
        assert (await transport.answer(rule, ONE)).answers == (Answer("a"),)
        usage = transport.meter.since()
        assert (usage.calls, usage.retries, usage.input_tokens) == (1, 2, None)
        with pytest.raises(BudgetExceededError):
            await transport.answer(rule, ONE)
        assert rule.asked == 3


async def test_what_other_providers_raise_is_passed_on():
    async with sending(budget=Budget(calls=9)) as transport:
        with pytest.raises(KeyError):
            await transport.answer(Rule(KeyError("a bug")), ONE)
        assert spent(transport.account)[2] == 1


async def test_other_providers_meet_the_timeout():
    class Slow(Rule):
        async def answer(self, request):
            await asyncio.sleep(30)

    policy = RetryPolicy(timeout=0.02, deadline=0.03, initial_wait=0.001)
    async with sending(retry=policy) as transport:
        with pytest.raises(CallTimeoutError, match="rule"):
            await transport.answer(Slow(), ONE)
