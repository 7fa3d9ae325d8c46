"""The transport over real sockets: retries, deadlines, budget, cancellation, secrets."""

from __future__ import annotations

import asyncio
import gc
import time
import traceback
from contextlib import asynccontextmanager
from email.utils import formatdate
from random import Random

import orjson
import pytest
from aiohttp import web

from testnuc.errors import (
    AuthenticationError,
    BadRequestError,
    BudgetExceededError,
    CallTimeoutError,
    ConfigurationError,
    ConnectionFailedError,
    EmptyReplyError,
    InvalidInputError,
    RateLimitedError,
    RefusalError,
    ServerError,
    UnreadableReplyError,
)
from testnuc.limits import Budget, Price, RateLimit, RetryPolicy
from testnuc.protocols import Answer, Reply, Request, Task, TokenUsage
from testnuc.transport import Transport

SECRET = "sk-very-secret-0123456789"
TASK = Task("Say the label.", ("a", "b"))
ONE = Request(TASK, "text", ("text",))
TWO = Request(TASK, "texts", ("one", "two"))
KINDS = {400: BadRequestError, 401: AuthenticationError, 429: RateLimitedError}


class Wire:
    """A wire provider as small as can be."""

    name = "openai"
    model = "test"
    identity = "test"

    def __init__(self, url, size=(10, 20)):
        self.url = url
        self.headers = {"Authorization": f"Bearer {SECRET}"}
        self.dialect = 1
        self.size = size

    def encode(self, request):
        return orjson.dumps({"user": request.user, "dialect": self.dialect})

    def decode(self, request, body):
        try:
            said = orjson.loads(body)
        except ValueError as error:
            raise UnreadableReplyError("no JSON", usage=TokenUsage(10, 1)) from error
        usage = said.get("usage")
        usage = None if usage is None else TokenUsage(*usage)
        if said["label"] is None:
            raise RefusalError("declined", usage=usage)
        return Reply(tuple(Answer(said["label"]) for _ in request.texts), usage)

    def error(self, status, headers, body):
        kind = KINDS.get(status, ServerError)
        return kind(f"{status}: {body.decode()}", status_code=status)

    def adapt(self, error):
        if "dialect" not in str(error) or self.dialect >= 9:
            return False
        self.dialect += 1
        return True

    def reserve(self, request):
        return self.size


def said(label="a", usage=(10, 2)):
    return web.json_response({"label": label, "usage": usage})


class Waits(list):
    """Stands in for sleeping: notes how long, and gives way once."""

    async def __call__(self, seconds):
        self.append(seconds)
        await asyncio.sleep(0)


@asynccontextmanager
async def serving(answer):
    """Serve `answer(number, request)`, numbers from 0; yields a provider and the requests."""
    seen = []

    async def handle(request):
        body = await request.read()
        seen.append((request.headers.copy(), orjson.loads(body)))
        response = answer(len(seen) - 1, request)
        return await response if asyncio.iscoroutine(response) else response

    app = web.Application()
    app.router.add_post("/v1", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield Wire(f"http://127.0.0.1:{port}/v1"), seen
    finally:
        await runner.cleanup()


@asynccontextmanager
async def sending(**options):
    """A transport that does not sleep between tries, and what it would have slept."""
    waits = Waits()
    options.setdefault("retry", RetryPolicy(initial_wait=0.002))
    transport = Transport(sleep=waits, rng=Random(0), **options)
    transport.waits = waits
    try:
        yield transport
    finally:
        await transport.aclose()
        assert transport.admission.in_flight == 0
        assert transport.account is None or transport.account.reserved == (0, 0, 0)


async def test_a_call():
    async with serving(lambda n, r: said()) as (wire, seen), sending() as transport:
        reply = await transport.call(wire, ONE)
        assert reply.answers == (Answer("a"),)
        headers, body = seen[0]
        assert headers["Authorization"] == f"Bearer {SECRET}"
        assert headers["Content-Type"] == "application/json"
        assert body == {"user": "text", "dialect": 1}
        usage = transport.meter.usage()
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

    async with serving(answer) as (wire, seen), sending() as transport:
        for _ in range(5):
            await transport.call(wire, ONE)
        assert len(ports) == 1
        assert "Cookie" not in seen[-1][0]


async def test_no_more_in_flight_than_allowed():
    peak = now = 0

    async def slow():
        nonlocal peak, now
        now += 1
        peak = max(peak, now)
        await asyncio.sleep(0.005)
        now -= 1
        return said()

    async with serving(lambda n, r: slow()) as (wire, _), sending(max_concurrency=4) as transport:
        await asyncio.gather(*[transport.call(wire, ONE) for _ in range(24)])
        assert peak == 4
        assert transport.meter.calls == 24


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
async def test_failures_that_pass_are_tried_again(status):
    def answer(n, request):
        return said() if n == 2 else web.Response(status=status, text="busy")

    async with serving(answer) as (wire, seen), sending() as transport:
        await transport.call(wire, ONE)
        assert len(seen) == 3
        assert transport.meter.retries == 2
        assert transport.meter.calls == 1
        assert all(0 <= wait <= 0.004 for wait in transport.waits)


async def test_the_last_failure_is_raised():
    def answer(n, request):
        return web.Response(status=500, text=f"failure {n}")

    policy = RetryPolicy(attempts=3, initial_wait=0.001)
    async with serving(answer) as (wire, seen), sending(retry=policy) as transport:
        with pytest.raises(ServerError, match="failure 2") as caught:
            await transport.call(wire, ONE)
        assert caught.value.attempts == 3 == len(seen)
        assert transport.meter.retries == 2
        assert transport.meter.calls == 0


@pytest.mark.parametrize("status", [400, 401])
async def test_what_cannot_pass_is_not_tried_again(status):
    def answer(n, request):
        return web.Response(status=status, text="no")

    async with serving(answer) as (wire, seen), sending() as transport:
        with pytest.raises(KINDS[status]) as caught:
            await transport.call(wire, ONE)
        assert caught.value.attempts == 1 == len(seen)
        assert caught.value.fatal


async def test_redirects_are_not_followed():
    def answer(n, request):
        raise web.HTTPTemporaryRedirect("http://127.0.0.1:9/elsewhere")

    policy = RetryPolicy(attempts=1)
    async with serving(answer) as (wire, seen), sending(retry=policy) as transport:
        with pytest.raises(ServerError, match="307"):
            await transport.call(wire, ONE)
        assert len(seen) == 1


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

    async with serving(answer) as (wire, seen), sending() as transport:
        await transport.call(wire, ONE)
        assert len(seen) == 2
        assert least <= transport.waits[0] <= most


async def test_a_date_to_wait_for():
    # the server's clock is far off; what counts is the difference to its own Date
    there = 1_000_000_000

    def answer(n, request):
        if n:
            return said()
        date, until = (formatdate(there + s, usegmt=True) for s in (0, 1))
        return web.Response(status=503, headers={"Date": date, "Retry-After": until})

    started = time.monotonic()
    async with serving(answer) as (wire, _), sending() as transport:
        await transport.call(wire, ONE)
        assert 1 <= transport.waits[0] <= 1.2
        assert time.monotonic() - started >= 1  # the pause of all holds, though nobody slept


async def test_a_wait_beyond_the_deadline_ends_the_call_and_those_that_wait():
    def answer(n, request):
        return web.Response(status=429, headers={"Retry-After": "3600"})

    async with serving(answer) as (wire, seen), sending(max_concurrency=1) as transport:
        calls = [transport.call(wire, ONE) for _ in range(5)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(r, RateLimitedError) for r in results)
        assert all(r.retry_after > 3500 for r in results)
        assert len(seen) == 1
        assert transport.waits == []


async def test_a_used_up_quota_makes_nobody_wait():
    from testnuc.errors import QuotaExceededError

    def answer(n, request):
        return web.Response(status=429, headers={"Retry-After": "3600"})

    async with serving(answer) as (wire, _), sending() as transport:
        wire.error = lambda *_: QuotaExceededError("nothing left", status_code=429)
        for _ in range(2):
            with pytest.raises(QuotaExceededError):
                await transport.call(wire, ONE)


def cut_off(request):
    request.transport.abort()
    return web.Response()


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

    async with serving(answer) as (wire, seen), sending(budget=Budget(calls=2)) as transport:
        await transport.call(wire, ONE)
        assert len(seen) == 2
        # the first may have been billed, so it is spent
        assert transport.account.spent[1:] == (30 + 12, 2)
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
        assert transport.account.spent == (0, 0, 0)


async def test_a_restart_is_outlasted():
    async with serving(lambda n, r: said()) as (wire, _), sending() as transport:
        await transport.call(wire, ONE)
    waits = Waits()
    policy = RetryPolicy(attempts=2, deadline=0.2, initial_wait=0.01)
    async with serving(lambda n, r: said()) as (wire, _):
        transport = Transport(retry=policy, sleep=waits, rng=Random(0))
        await transport.call(wire, ONE)
    with pytest.raises(ConnectionFailedError) as caught:
        await transport.call(wire, ONE)
    # the tries are for what is sent; here the deadline was the end of it
    assert caught.value.attempts > 2
    await transport.aclose()


async def stall(seconds=30):
    await asyncio.sleep(seconds)
    return said()


async def stalled_body(request):
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"label":')
    await asyncio.sleep(30)
    return response


@pytest.mark.parametrize("how", [lambda request: stall(), stalled_body])
async def test_a_stalled_answer_meets_the_timeout(how):
    def answer(n, request):
        return how(request) if n == 0 else said()

    policy = RetryPolicy(timeout=0.05, initial_wait=0.001)
    async with (
        serving(answer) as (wire, seen),
        sending(retry=policy, budget=Budget(tokens=60)) as transport,
    ):
        await transport.call(wire, ONE)
        assert len(seen) == 2
        assert transport.account.spent[1:] == (42, 2)


async def test_the_deadline_bounds_all_tries_together():
    policy = RetryPolicy(timeout=0.06, deadline=0.1, initial_wait=0.001)
    async with serving(lambda n, r: stall()) as (wire, seen), sending(retry=policy) as transport:
        started = time.monotonic()
        with pytest.raises(CallTimeoutError, match="127.0.0.1") as caught:
            await transport.call(wire, ONE)
        assert time.monotonic() - started < 0.2
        assert caught.value.attempts == 2 == len(seen)


async def test_a_queue_is_no_part_of_the_deadline():
    policy = RetryPolicy(timeout=0.05, deadline=0.05)

    async def slow():
        await asyncio.sleep(0.02)
        return said()

    async with (
        serving(lambda n, r: slow()) as (wire, _),
        sending(retry=policy, max_concurrency=1) as transport,
    ):
        await asyncio.gather(*[transport.call(wire, ONE) for _ in range(5)])
        assert transport.meter.calls == 5


async def test_unreadable_answers_are_paid_for_and_asked_again():
    def answer(n, request):
        return web.Response(body=b'{"label": "a') if n == 0 else said()

    async with serving(answer) as (wire, _), sending(budget=Budget(calls=5)) as transport:
        await transport.call(wire, ONE)
        usage = transport.meter.usage()
        assert (usage.calls, usage.retries) == (2, 1)
        assert (usage.input_tokens, usage.output_tokens) == (20, 3)
        assert transport.account.spent[1:] == (11 + 12, 2)
        assert transport.waits == [0.0]


async def test_packed_answers_are_left_to_the_caller():
    def answer(n, request):
        return web.Response(body=b"{")

    async with serving(answer) as (wire, seen), sending() as transport:
        with pytest.raises(UnreadableReplyError):
            await transport.call(wire, TWO)
        assert len(seen) == 1


async def test_an_unusable_answer_in_a_reply_is_asked_again():
    async with serving(lambda n, r: said()) as (wire, seen), sending() as transport:
        wire.decode = lambda request, body: Reply((EmptyReplyError("nothing"),), TokenUsage(1, 1))
        with pytest.raises(EmptyReplyError) as caught:
            await transport.call(wire, ONE)
        assert caught.value.attempts == len(seen) == transport.meter.calls == 10


async def test_refusals_are_final():
    async with serving(lambda n, r: said(None)) as (wire, seen), sending() as transport:
        with pytest.raises(RefusalError):
            await transport.call(wire, ONE)
        assert len(seen) == transport.meter.calls == 1


async def test_no_usage_is_unknown_and_spends_the_worst_case():
    async with (
        serving(lambda n, r: said(usage=None)) as (wire, _),
        sending(budget=Budget(usd=1), price=Price.per_million(1, 2)) as transport,
    ):
        await transport.call(wire, ONE)
        usage = transport.meter.usage()
        assert usage.calls == 1
        assert usage.input_tokens is usage.output_tokens is usage.usd is None
        assert transport.account.spent == (pytest.approx(50e-6), 30, 1)


async def test_a_new_encoding_is_sent_at_once():
    def answer(n, request):
        return said() if n == 2 else web.Response(status=400, text="wrong dialect")

    async with serving(answer) as (wire, seen), sending() as transport:
        await transport.call(wire, ONE)
        assert [body["dialect"] for _, body in seen] == [1, 2, 3]
        assert transport.waits == []
        assert transport.meter.retries == 0


async def test_encodings_are_not_changed_for_ever():
    def answer(n, request):
        return web.Response(status=400, text="wrong dialect")

    async with serving(answer) as (wire, seen), sending() as transport:
        with pytest.raises(BadRequestError):
            await transport.call(wire, ONE)
        assert len(seen) == 5


async def test_calls_in_flight_follow_a_new_encoding_without_a_second_step():
    async def answer(n, request):
        body = orjson.loads(await request.read())
        await asyncio.sleep(0.01)
        return said() if body["dialect"] == 2 else web.Response(status=400, text="wrong dialect")

    async with serving(answer) as (wire, _), sending() as transport:
        await asyncio.gather(*[transport.call(wire, ONE) for _ in range(20)])
        assert wire.dialect == 2
        assert transport.meter.calls == 20


# -- budget ----------------------------------------------------------------------------------------


async def test_the_budget_is_used_up_and_not_exceeded():
    async with (
        serving(lambda n, r: said()) as (wire, seen),
        sending(budget=Budget(tokens=120)) as transport,
    ):
        # each may need 30 and needs 12: eight fit, one after the other in the end
        calls = [transport.call(wire, ONE) for _ in range(20)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        done = [r for r in results if isinstance(r, Reply)]
        assert len(done) == len(seen) == 8
        assert sum(isinstance(r, BudgetExceededError) for r in results) == 12
        assert transport.account.spent[1] == 96


async def test_a_failure_that_was_not_billed_uses_its_reservation_again():
    def answer(n, request):
        return web.Response(status=500) if n < 3 else said()

    async with serving(answer) as (wire, _), sending(budget=Budget(calls=1)) as transport:
        await transport.call(wire, ONE)
        assert transport.account.spent[2] == 1
        with pytest.raises(BudgetExceededError, match="calls"):
            await transport.call(wire, ONE)


async def test_usd_needs_a_price():
    with pytest.raises(ConfigurationError, match="price"):
        Transport(budget=Budget(usd=1))


# -- rates -----------------------------------------------------------------------------------------


async def test_too_large_for_the_rate_is_said_before_sending():
    async with (
        serving(lambda n, r: said()) as (wire, seen),
        sending(rate_limit=RateLimit(tokens_per_minute=100), budget=Budget(calls=1)) as transport,
    ):
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

    async with serving(answer) as (wire, _), sending() as transport:
        started = time.monotonic()
        for _ in range(3):
            await transport.call(wire, ONE)
        assert time.monotonic() - started >= 0.08


# -- the end of things -----------------------------------------------------------------------------


async def test_cancelling_leaves_nothing_behind():
    before = asyncio.all_tasks()
    async with (
        serving(lambda n, r: stall()) as (wire, seen),
        sending(max_concurrency=2, budget=Budget(calls=3)) as transport,
    ):
        tasks = [asyncio.create_task(transport.call(wire, ONE)) for _ in range(6)]
        while len(seen) < 2:
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(r, asyncio.CancelledError) for r in results)
        assert transport.admission.in_flight == transport.admission.waiting == 0
        assert transport.account.reserved == (0, 0, 0)
        assert transport.account.spent[2] == 2  # those on their way may be billed
    for _ in range(5):
        await asyncio.sleep(0)
    assert {t for t in asyncio.all_tasks() - before if "test_transport" in repr(t)} == set()


async def test_cancelling_between_tries():
    async def forever(seconds):
        await asyncio.sleep(30)

    async with serving(lambda n, r: web.Response(status=500)) as (wire, seen):
        transport = Transport(sleep=forever, budget=Budget(calls=1))
        task = asyncio.create_task(transport.call(wire, ONE))
        while not seen or transport.admission.in_flight:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert transport.account.reserved == transport.account.spent == (0, 0, 0)
        await transport.aclose()


async def test_a_timeout_of_the_callers_own_is_not_taken_for_ours():
    async with serving(lambda n, r: stall()) as (wire, _), sending() as transport:
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
    async with serving(lambda n, r: said()) as (wire, seen), sending() as transport:
        other = Wire(wire.url)
        other.headers = {"x-api-key": "another"}
        await transport.call(wire, ONE)
        await transport.call(other, ONE)
        assert "x-api-key" not in seen[0][0]
        assert "Authorization" not in seen[1][0]


async def test_one_loop_each():
    async with serving(lambda n, r: said()) as (wire, _), sending() as transport:
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
        usage = transport.meter.usage()
        assert (usage.calls, usage.retries, usage.input_tokens) == (1, 2, None)
        with pytest.raises(BudgetExceededError):
            await transport.answer(rule, ONE)
        assert rule.asked == 3


async def test_what_other_providers_raise_is_passed_on():
    async with sending(budget=Budget(calls=9)) as transport:
        with pytest.raises(KeyError):
            await transport.answer(Rule(KeyError("a bug")), ONE)
        assert transport.account.spent[2] == 1


async def test_other_providers_meet_the_timeout():
    class Slow(Rule):
        async def answer(self, request):
            await asyncio.sleep(30)

    policy = RetryPolicy(timeout=0.02, deadline=0.03, initial_wait=0.001)
    async with sending(retry=policy) as transport:
        with pytest.raises(CallTimeoutError, match="rule"):
            await transport.answer(Slow(), ONE)
