"""The transport over real sockets: what is sent, what is sent again, and when it ends."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from email.utils import formatdate
from random import Random

import aiohttp
import orjson
import pytest
from aiohttp import web

from testnuc import Limits, TestNUC
from testnuc.errors import (
    AuthenticationError,
    BadRequestError,
    CallTimeoutError,
    ConnectionFailedError,
    EmptyReplyError,
    ProviderError,
    QuotaExceededError,
    RateLimitedError,
    RefusalError,
    ServerError,
    UnreadableReplyError,
)
from testnuc.limits.budget import PICO, Price
from testnuc.limits.policies import Budget, RetryPolicy
from testnuc.protocols import Answer, Reply, TokenUsage
from testnuc.testing import LoopbackLLM
from testnuc.transport import Transport
from testnuc.transport.calls import MAY_SEND, NotSentError
from tests import virtual
from tests.accounts import reserved, spent
from tests.transport.small_server import (
    ONE,
    SECRET,
    TWO,
    Waits,
    Wire,
    calling,
    cut_off,
    said,
    sending,
    serving,
    stall,
)


def clock_of(loop):
    """Its clock as `virtual.skip` has set it by then."""
    return lambda: loop.time()  # noqa: PLW0108


def fast():
    """A clock that runs a hundred times too fast."""
    return time.monotonic() * 100


def fast_call_later(delay, callback):
    return asyncio.get_running_loop().call_later(delay / 100, callback)


async def test_a_call():
    async with calling() as (transport, wire, seen):
        reply = await transport.call(wire, ONE)
        assert reply.answers == (Answer("a"),)
        headers, body = seen[0]
        assert headers["Authorization"] == f"Bearer {SECRET}"
        assert headers["Content-Type"] == "application/json"
        assert body == {"user": "text", "dialect": 1}
        usage = transport.meter.since()
        assert (usage.calls, usage.input_tokens, usage.output_tokens) == (1, 10, 2)
        assert usage.retries == 0
        assert transport.waits == []


async def test_one_connection_is_used_again():
    ports = set()

    def answer(n, request):
        ports.add(request.transport.get_extra_info("peername")[1])
        response = said()
        response.set_cookie("session", "tracked")
        return response

    async with calling(answer) as (transport, wire, seen):
        for _ in range(5):
            await transport.call(wire, ONE)
        assert len(ports) == 1
        assert "Cookie" not in seen[-1][0]


async def test_no_more_in_flight_than_allowed():
    peak = now = 0
    full = asyncio.Event()

    async def slow():
        nonlocal peak, now
        now += 1
        peak = max(peak, now)
        if now == 4:
            full.set()
        await full.wait()
        await asyncio.sleep(0.005)
        now -= 1
        return said()

    async with calling(lambda n, r: slow(), concurrency=4) as (transport, wire, _):
        await asyncio.gather(*[transport.call(wire, ONE) for _ in range(24)])
        assert peak == 4
        assert transport.meter.calls == 24


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
async def test_failures_that_pass_are_tried_again(status):
    def answer(n, request):
        return said() if n == 2 else web.Response(status=status, text="busy")

    async with calling(answer) as (transport, wire, seen):
        await transport.call(wire, ONE)
        assert len(seen) == 3
        assert transport.meter.retries == 2
        assert transport.meter.calls == 1
        assert all(0 <= wait <= 0.004 for wait in transport.waits)


@pytest.mark.parametrize("broken", ["cut off", "half", "gateway"])
async def test_what_may_be_billed_without_an_answer_is_counted(broken):
    def half(request):
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{"
        request.transport.write(head)
        request.transport.close()
        return web.Response()

    def answer(number, request):
        if number:
            return said()
        first = {"cut off": cut_off, "half": half}
        return first.get(broken, lambda _: web.Response(status=504))(request)

    async with calling(answer) as (transport, wire, _):
        await transport.call(wire, ONE)
        usage = transport.meter.since()
    assert (usage.calls, usage.incomplete, usage.retries) == (1, 1, 1)
    assert usage.input_tokens == 10


async def test_the_last_failure_is_raised():
    def answer(n, request):
        return web.Response(status=500, text=f"failure {n}")

    policy = RetryPolicy(attempts=3, initial_wait=0.001)
    async with calling(answer, retry=policy) as (transport, wire, seen):
        with pytest.raises(ServerError, match="failure 2") as caught:
            await transport.call(wire, ONE)
        assert caught.value.attempts == 3 == len(seen)
        assert transport.meter.retries == 2
        assert transport.meter.calls == 0


def redirect():
    raise web.HTTPTemporaryRedirect("http://127.0.0.1:9/elsewhere")


@pytest.mark.parametrize(
    ("response", "request_", "kind", "sent"),
    [
        (lambda: web.Response(status=400, text="no"), ONE, BadRequestError, 1),
        (lambda: web.Response(status=401, text="no"), ONE, AuthenticationError, 1),
        (lambda: said(None), ONE, RefusalError, 1),
        # packed answers are left to the caller
        (lambda: web.Response(body=b"{"), TWO, UnreadableReplyError, 1),
        # it is not followed, but may pass
        (redirect, ONE, ServerError, 10),
        # encodings are not changed for ever
        (lambda: web.Response(status=400, text="wrong dialect"), ONE, BadRequestError, 5),
    ],
)
async def test_what_cannot_pass_is_not_tried_again(response, request_, kind, sent):
    async with calling(lambda n, r: response()) as (transport, wire, seen):
        with pytest.raises(kind) as caught:
            await transport.call(wire, request_)
        assert len(seen) == sent
        if kind in {BadRequestError, AuthenticationError}:
            assert caught.value.fatal


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({"retry-after-ms": "20"}, 0.02, 0.08),
        ({"Retry-After": "0.03"}, 0.03, 0.09),
        ({"retry-after-ms": "20", "Retry-After": "9"}, 0.02, 0.08),
        ({"Retry-After": "later"}, 0, 0.002),
        ({}, 0, 0.002),
    ],
)
async def test_the_servers_wait_is_obeyed_with_jitter(headers, least, most):
    def answer(n, request):
        return said() if n else web.Response(status=429, headers=headers)

    async with calling(answer) as (transport, wire, seen):
        await transport.call(wire, ONE)
        assert len(seen) == 2
        assert least <= transport.waits[0] <= most


async def test_a_request_that_is_no_call_waits_with_jitter_too():
    def answer(n, request):
        return said() if n == 3 else web.Response(status=429, headers={"Retry-After": "2"})

    async with calling(answer) as (transport, wire, seen):
        await transport.auxiliary.send(wire, "POST", wire.url, b"{}")
        assert len(seen) == 4
        assert all(2 < wait <= 2.2 for wait in transport.waits)
        assert len(set(transport.waits)) == 3


async def test_an_auxiliary_request_backs_off_at_random_without_a_retry_after():
    def answer(n, request):
        return said() if n == 3 else web.Response(status=503)

    async with calling(answer) as (transport, wire, _):
        await transport.auxiliary.send(wire, "POST", wire.url, b"{}")
        longest = (0.002, 0.004, 0.008)
        assert all(0 < w <= most for w, most in zip(transport.waits, longest, strict=True))


async def test_a_date_to_wait_for():
    # the server's clock is far off; what counts is the difference to its own Date
    there = 1_000_000_000

    def answer(n, request):
        if n:
            return said()
        date, until = (formatdate(there + s, usegmt=True) for s in (0, 1))
        return web.Response(status=503, headers={"Date": date, "Retry-After": until})

    async with calling(answer, clock=fast) as (transport, wire, _):
        transport.admission._call_later = fast_call_later
        started = fast()
        await transport.call(wire, ONE)
        assert 1 <= transport.waits[0] <= 1.2
        assert fast() - started >= 1  # the pause of all holds, though this call did not sleep


async def test_a_wait_beyond_the_deadline_ends_the_call_and_those_that_wait():
    def answer(n, request):
        return web.Response(status=429, headers={"Retry-After": "3600"})

    async with calling(answer, concurrency=1) as (transport, wire, seen):
        calls = [transport.call(wire, ONE) for _ in range(5)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(r, RateLimitedError) for r in results)
        assert all(r.retry_after > 3500 for r in results)
        # the first refusal is in doubt
        assert len(seen) == 2
        assert len(transport.waits) == 1


async def test_an_exhausted_quota_pauses_no_call():
    def answer(n, request):
        return web.Response(status=429, headers={"Retry-After": "3600"})

    async with calling(answer) as (transport, wire, _):
        wire.error = lambda *_: QuotaExceededError("nothing left", status_code=429)
        for _ in range(2):
            with pytest.raises(QuotaExceededError):
                await transport.call(wire, ONE)
            assert transport.admission.paused == 0


async def cut_within(request):
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"label":')
    request.transport.close()
    return response


@pytest.mark.parametrize("cut", [cut_off, cut_within])
async def test_broken_connections_are_tried_again(cut):
    def answer(n, request):
        return said() if n else cut(request)

    async with calling(answer, budget=Budget(calls=2)) as (transport, wire, seen):
        await transport.call(wire, ONE)
        assert len(seen) == 2
        # the first may have been billed, so it is spent
        assert spent(transport.account)[1:] == (30 + 12, 2)
        assert transport.meter.calls == 1


async def test_no_server():
    async with serving(lambda n, r: said()) as (wire, _):
        pass
    policy = RetryPolicy(attempts=3, initial_wait=0.001)
    async with sending(retry=policy, budget=Budget(calls=1)) as transport:
        with pytest.raises(
            ConnectionFailedError, match=r"cannot connect.*check base_url"
        ) as caught:
            await transport.call(wire, ONE)
        assert caught.value.attempts == 3
        assert "127.0.0.1" in str(caught.value)
        assert spent(transport.account) == (0, 0, 0)


@pytest.mark.parametrize("trust_env", [False, True])
async def test_a_name_without_an_address(monkeypatch, trust_env):
    """Some resolvers return no address instead of an error."""

    async def nothing(*_, **__):
        return []

    monkeypatch.setattr(aiohttp.resolver.DefaultResolver, "resolve", nothing)
    wire = Wire("http://no-address.example/v1")
    policy = RetryPolicy(attempts=2, initial_wait=0.001)
    async with sending(retry=policy, budget=Budget(calls=1), trust_env=trust_env) as transport:
        with pytest.raises(ConnectionFailedError) as caught:
            await asyncio.gather(*(transport.call(wire, ONE) for _ in range(3)))
        assert "no-address.example (the name has no address); check base_url" in str(caught.value)
        assert spent(transport.account) == (0, 0, 0)


async def test_a_name_has_an_address_as_soon_as_the_resolver_says_so(monkeypatch):
    """aiohttp remembers for ten seconds what a resolver said, also that it knows no address."""
    said_so, resolve = [], aiohttp.resolver.DefaultResolver.resolve

    async def late(self, host, port, family):
        said_so.append(host)
        return [] if len(said_so) == 1 else await resolve(self, "127.0.0.1", port, family)

    monkeypatch.setattr(aiohttp.resolver.DefaultResolver, "resolve", late)
    async with serving(lambda n, r: said()) as (wire, seen):
        wire.url = wire.url.replace("127.0.0.1", "late.example")
        async with sending(retry=RetryPolicy(attempts=2, initial_wait=0.001)) as transport:
            await asyncio.gather(*(transport.call(wire, ONE) for _ in range(3)))
    assert len(said_so) == 2
    assert len(seen) == 3


async def test_another_error_of_a_resolver_is_not_taken_for_it(monkeypatch):
    async def closed(*_, **__):
        raise RuntimeError("cannot schedule new futures after shutdown")

    monkeypatch.setattr(aiohttp.resolver.DefaultResolver, "resolve", closed)
    async with sending() as transport:
        with pytest.raises(RuntimeError, match="after shutdown"):
            await transport.call(Wire("http://no-address.example/v1"), ONE)


@pytest.mark.slow
async def test_calls_that_wait_fail_with_the_one_that_finds_no_server():
    async with serving(lambda n, r: said()) as (wire, _):
        pass
    policy = RetryPolicy(attempts=3, initial_wait=0.2)
    transport = Transport(Limits(retry=policy, concurrency=1))
    calls = [transport.call(wire, ONE) for _ in range(30)]
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert all(type(e) is ConnectionFailedError and e.fatal for e in errors)
    # not three each
    assert sum(e.attempts for e in errors) < 30
    # the next call tries a connection again
    with pytest.raises(ConnectionFailedError) as caught:
        await transport.call(wire, ONE)
    assert caught.value.attempts >= 1
    assert transport.admission.in_flight == 0
    await transport.aclose()


@pytest.mark.slow
async def test_a_restart_is_outlasted():
    async with calling() as (transport, wire, _):
        await transport.call(wire, ONE)
    waits = Waits()
    policy = RetryPolicy(attempts=2, deadline=1, initial_wait=0.01)
    async with serving(lambda n, r: said()) as (wire, _):
        transport = Transport(Limits(retry=policy), sleep=waits, rng=Random(0))
        await transport.call(wire, ONE)
    with pytest.raises(ConnectionFailedError) as caught:
        await transport.call(wire, ONE)
    # the tries are for what is sent; here the deadline was the end of it
    assert caught.value.attempts > 2
    await transport.aclose()


async def stalled_body(request):
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"label":')
    await asyncio.sleep(30)
    return response


@pytest.mark.parametrize("how", [lambda request: stall(), stalled_body])
async def test_a_stalled_answer_meets_the_timeout(how):
    def answer(n, request):
        if n:
            return said()
        asyncio.get_running_loop().call_soon(virtual.skip, 6)
        return how(request)

    policy = RetryPolicy(timeout=5, initial_wait=0.001)
    async with calling(answer, retry=policy, budget=Budget(tokens=60)) as (transport, wire, seen):
        await transport.call(wire, ONE)
        assert len(seen) == 2
        assert spent(transport.account)[1:] == (42, 2)


async def test_what_arrived_while_the_process_was_suspended_is_read(client_of):
    """A timer that is due when a loop goes on must not throw away answers that wait to be read."""
    limits = Limits(retry=RetryPolicy(timeout=0.5, deadline=1.0))
    asked = threading.Event()

    def answer(text):
        asked.set()
        time.sleep(0.2)
        return "refund"

    # its server has a thread of its own
    with LoopbackLLM(answer) as llm:
        async with TestNUC(**client_of(llm, limits=limits, k=0)) as nuc:
            run = asyncio.create_task(nuc.classify_many(["where is my money"]))
            await asyncio.to_thread(asked.wait)
            # the answer arrives now, and nobody reads it
            time.sleep(2.5)  # noqa: ASYNC251
            results = await run
        assert (results.labels, llm.calls) == (["refund"], 1)


async def test_the_deadline_bounds_all_tries_together():
    policy = RetryPolicy(timeout=60, deadline=100, initial_wait=0.001)
    loop = asyncio.get_running_loop()

    def answer(n, request):
        # of the second try's own time there is much left
        loop.call_soon(virtual.skip, (60.1, 40)[n])
        return stall()

    async with calling(answer, retry=policy, clock=clock_of(loop)) as (transport, wire, seen):
        with pytest.raises(CallTimeoutError, match=r"127\.0\.0\.1") as caught:
            await transport.call(wire, ONE)
        assert caught.value.attempts == 2 == len(seen)


async def test_a_queue_is_no_part_of_the_deadline():
    policy = RetryPolicy(timeout=50, deadline=50)
    loop = asyncio.get_running_loop()

    def slow(n, request):
        virtual.skip(20)
        return said()

    limits = {"retry": policy, "concurrency": 1, "clock": clock_of(loop)}
    async with calling(slow, **limits) as (transport, wire, _):
        await asyncio.gather(*[transport.call(wire, ONE) for _ in range(5)])
        assert transport.meter.calls == 5


async def test_unreadable_answers_are_paid_for_and_asked_again():
    def answer(n, request):
        return web.Response(body=b'{"label": "a') if n == 0 else said()

    async with calling(answer, budget=Budget(calls=5)) as (transport, wire, _):
        await transport.call(wire, ONE)
        usage = transport.meter.since()
        assert (usage.calls, usage.retries) == (2, 1)
        assert (usage.input_tokens, usage.output_tokens) == (20, 3)
        assert spent(transport.account)[1:] == (11 + 12, 2)
        assert len(transport.waits) == 1
        assert transport.waits[0] > 0


@pytest.mark.parametrize("content", [None, "", "what"])
async def test_an_unusable_answer_is_paid_for_three_times_at_most(content):
    async with calling() as (transport, wire, seen):
        error = EmptyReplyError("nothing", content=content)
        wire.decode = lambda request, body: Reply((error,), TokenUsage(1, 1))
        with pytest.raises(EmptyReplyError) as caught:
            await transport.call(wire, ONE)
        assert caught.value.attempts == len(seen) == transport.meter.calls == 3
        assert transport.meter.since().retries == 2
        # a broken response is a matter of the server, which needs time; the format is not
        assert bool(transport.waits) is (content is None)


async def test_no_usage_is_unknown_and_spends_the_worst_case():
    limits = {"budget": Budget(usd=1), "price": Price.per_million(1, 2)}
    async with calling(lambda n, r: said(usage=None), **limits) as (transport, wire, _):
        await transport.call(wire, ONE)
        usage = transport.meter.since()
        assert usage.calls == 1
        assert usage.input_tokens is usage.output_tokens is usage.usd is None
        assert spent(transport.account) == (pytest.approx(50e-6), 30, 1)


async def test_a_new_encoding_is_sent_at_once():
    def answer(n, request):
        return said() if n == 2 else web.Response(status=400, text="wrong dialect")

    async with calling(answer) as (transport, wire, seen):
        await transport.call(wire, ONE)
        assert [body["dialect"] for _, body in seen] == [1, 2, 3]
        assert transport.waits == []
        assert transport.meter.retries == 0


async def test_calls_in_flight_follow_a_new_encoding_without_a_second_step():
    async def answer(n, request):
        body = orjson.loads(await request.read())
        await asyncio.sleep(0.01)
        return said() if body["dialect"] == 2 else web.Response(status=400, text="wrong dialect")

    async with calling(answer) as (transport, wire, _):
        await asyncio.gather(*[transport.call(wire, ONE) for _ in range(20)])
        assert wire.dialect == 2
        assert transport.meter.calls == 20


@pytest.mark.parametrize("budget", [None, Budget(calls=9), Budget(tokens=120)])
async def test_calls_that_wait_follow_a_new_encoding_before_they_are_sent(budget):
    held = []

    def answer(n, request):
        wire.size = (10, 50)  # the new encoding needs a larger reservation
        if budget is not None:
            held.append(reserved(transport.account)[1])
        return said() if n else web.Response(status=400, text="wrong dialect")

    options = {"concurrency": 1, "budget": budget}
    async with calling(answer, **options) as (transport, wire, seen):
        await asyncio.gather(*[transport.call(wire, ONE) for _ in range(4)])
        assert [body["dialect"] for _, body in seen] == [1, 2, 2, 2, 2]
        assert transport.admission.in_flight == 0
        assert held[-1:] == ([] if budget is None else [60])


async def test_a_retry_follows_a_new_encoding():
    def answer(n, request):
        wire.dialect = 2  # as another call would change it
        return said() if n else web.Response(status=500)

    async with calling(answer) as (transport, wire, seen):
        await transport.call(wire, ONE)
        assert [body["dialect"] for _, body in seen] == [1, 2]


async def test_a_call_of_an_unknown_service_tier_keeps_its_reservation():
    price = replace(Price.per_million(1, 1), service_tiers={})
    options = {"price": price, "budget": Budget(usd=1.0)}
    async with calling(**options) as (transport, wire, _):
        usage = TokenUsage(10, 2, tier="scale")
        wire.decode = lambda request, body: Reply((Answer("a"),), usage)
        await transport.call(wire, ONE)
        assert transport.meter.since().usd is None
        assert spent(transport.account)[0] == price.worst(10, 20) / PICO  # not nothing


@pytest.mark.parametrize("retried", [False, True])
async def test_a_call_that_may_no_longer_be_sent_is_not(retried):
    asked = []

    def may_send():
        asked.append(True)
        return retried and len(asked) == 1

    def answer(n, request):
        return web.Response(status=503)

    token = MAY_SEND.set(may_send)
    try:
        # what was acquired for the call is given back, as `sending` checks
        async with calling(answer, budget=Budget(calls=5)) as (transport, wire, seen):
            with pytest.raises(NotSentError):
                await transport.call(wire, ONE)
            assert len(seen) == retried
    finally:
        MAY_SEND.reset(token)


async def test_a_call_that_is_not_sent_again_tells_its_unreadable_replies():
    sent = []

    def answer(n, request):
        sent.append(n)
        return web.Response(text="no JSON")

    token = MAY_SEND.set(lambda: len(sent) < 2)
    try:
        async with calling(answer) as (transport, wire, _):
            with pytest.raises(NotSentError) as caught:
                await transport.call(wire, ONE)
        assert (sent, caught.value.unreadable) == ([0, 1], 2)
    finally:
        MAY_SEND.reset(token)


class Busy:
    """A provider that is not HTTP, and refuses calls as `refuses(now)` says."""

    name, model, identity = "busy", "m", ""

    def __init__(self, loop, refuses):
        self.loop, self.refuses = loop, refuses

    async def answer(self, request):
        await asyncio.sleep(0.1)
        if self.refuses(self.loop.time()):
            raise RateLimitedError("try later", status_code=429)
        return Reply((Answer("a"),), TokenUsage(1, 1))


def given_up(refuses, starts):
    """Send a call at each start, and return when and whether a fatal one was given up."""

    async def main(loop):
        provider, failed = Busy(loop, refuses), []
        transport = Transport(Limits(concurrency=4), clock=loop.time, rng=Random(0))

        async def call(start):
            await asyncio.sleep(start)
            try:
                await transport.answer(provider, ONE)
            except RateLimitedError as error:
                failed.append((loop.time() - 1000, error.fatal))

        await asyncio.gather(*map(call, starts))
        await transport.aclose()
        return failed

    return virtual.run(main)


def test_a_provider_that_refuses_all_calls_for_five_deadlines_ends_the_run():
    """Each of the calls that wait for each other took two minutes: a thousand took 33 hours."""
    failed = given_up(lambda now: True, [0] * 30)
    assert len(failed) == 30
    assert [fatal for _, fatal in failed] == [at >= 600 for at, _ in failed]


def test_refusals_between_answers_or_long_apart_end_no_run():
    failed = given_up(lambda now: now % 550 > 10, [0] * 9)
    assert failed
    assert not any(fatal for _, fatal in failed)
    failed = given_up(lambda now: True, range(0, 3000, 300))
    assert len(failed) == 10
    assert not any(fatal for _, fatal in failed)


def test_a_failure_before_a_pause_is_observed_once():
    """What a call waits after at its deadline is the pause, and not its failure before that."""

    class Failing:
        name = model = "failing"

        async def answer(self, request):
            if request.user == "other":
                raise RateLimitedError("try later", status_code=429, retry_after=115)
            await asyncio.sleep(1)
            error = ProviderError("500 upstream failure", status_code=500)
            error.retryable = True
            raise error

    async def main(loop):
        observed, transport = [], Transport(clock=loop.time, rng=Random(0))
        with transport.observed(observed.append):
            first = asyncio.create_task(transport.answer(Failing(), ONE))
            await asyncio.sleep(0.9)
            other = asyncio.create_task(transport.answer(Failing(), replace(ONE, user="other")))
            with pytest.raises(ProviderError, match="500 upstream"):
                await first
        with pytest.raises(RateLimitedError):
            await other
        await transport.aclose()
        return [type(error) for error in observed]

    assert virtual.run(main) == [RateLimitedError, ProviderError]
