"""Keys that expire: asked for before the first request, and again when one was rejected."""

from __future__ import annotations

import asyncio
import base64
import itertools
import threading

import aiohttp
import orjson
import pytest

from bench._batch_api import BatchLLM
from testnuc import Limits, RetryPolicy, TestNUC
from testnuc.errors import (
    AuthenticationError,
    ConfigurationError,
    ConnectionFailedError,
    QuotaExceededError,
)
from testnuc.providers.anthropic import Anthropic
from testnuc.providers.openai import OpenAI
from testnuc.testing import HashEmbedder, LoopbackLLM
from testnuc.testing.formats import ErrorResponse
from testnuc.transport import Transport
from testnuc.transport import keys as keys_module
from testnuc.transport.keys import KeySource
from tests import virtual
from tests.providers.chat_bodies import LABELS, request
from tests.waiting import until


def answers(_):
    return LABELS[0]


def token(expires):
    claims = base64.urlsafe_b64encode(orjson.dumps({"exp": expires})).decode().rstrip("=")
    return f"head.{claims}.sign"


@pytest.mark.parametrize("kind", ["function", "coroutine function"])
@pytest.mark.parametrize("protocol", [OpenAI, Anthropic])
async def test_a_rejected_key_is_replaced_once_for_all_calls(kind, protocol):
    asked = []

    def function():
        asked.append(threading.current_thread() is threading.main_thread())
        return f"key-{len(asked)}"

    async def coroutine():
        return function()

    async with LoopbackLLM(answers, api_key="key-2") as llm:
        ask = function if kind == "function" else coroutine
        provider = protocol("m", base_url=llm.base_url, api_key=ask)
        transport = Transport(Limits(concurrency=8))
        try:
            calls = [transport.call(provider, request()) for _ in range(8)]
            replies = await asyncio.gather(*calls)
        finally:
            await transport.aclose()
    assert [reply.answers[0].label for reply in replies] == [LABELS[0]] * 8
    # a function may block, so it runs in a thread
    assert asked == [kind != "function"] * 2


@pytest.mark.parametrize("status", [200, 400])
async def test_a_key_that_was_replaced_is_not_shown(status):
    keys = iter(["quartz7wolf9lamp", "violet3river8stone"])
    provider = OpenAI("m", api_key=lambda: next(keys))
    await provider.keys.current()
    await provider.keys.replace("quartz7wolf9lamp")
    message = {"content": '{"label": "quartz7wolf9lamp"}', "role": "assistant"}
    body = {"choices": [{"message": message}], "error": None if status == 200 else {}}
    if status == 400:
        body = {"error": {"message": "Incorrect key provided: quartz7wolf9lamp"}}
        shown = str(provider.error(400, {}, orjson.dumps(body)))
    else:
        shown = str(provider.decode(request(), orjson.dumps(body)).answers)
    assert "[key]" in shown
    assert "quartz" not in shown


async def test_a_key_that_stays_wrong():
    async with LoopbackLLM(answers, api_key="right") as llm:
        provider = OpenAI("m", base_url=llm.base_url, api_key=lambda: "wrong-0123456789")
        transport = Transport()
        try:
            with pytest.raises(AuthenticationError) as caught:
                await transport.call(provider, request())
        finally:
            await transport.aclose()
    assert "wrong-0123456789" not in str(caught.value)
    assert caught.value.attempts == 2


class Metered(LoopbackLLM):
    """Answers each key until its quota is used up."""

    def __init__(self, quotas):
        super().__init__(answers)
        self.left, self.sent = quotas, []

    def _check_key(self, call):
        key = call.headers["authorization"].removeprefix("Bearer ")
        self.sent.append(key)
        self.left[key] -= 1
        if self.left[key] < 0:
            raise ErrorResponse(429, "You exceeded your quota.", code="insufficient_quota")


@pytest.mark.parametrize("quota", [30, 5])
async def test_a_key_without_quota_is_put_aside_until_all_are(quota):
    keys = itertools.cycle(["key-a", "key-b", "key-c"])
    async with Metered({"key-a": 10, "key-b": 0, "key-c": quota}) as llm:
        model = OpenAI("m", base_url=llm.base_url, api_key=lambda: next(keys))
        limits = Limits(concurrency=4)
        given = {"embedder": HashEmbedder(), "policy": "majority", "limits": limits}
        async with TestNUC(LABELS, model, k=0, **given) as nuc:
            results = await nuc.classify_many([f"text {n}" for n in range(40)])
    answered = sum(row.label is not None for row in results)
    assert answered == min(40, 10 + quota)
    if quota == 30:
        assert results.stopped is None
    else:
        assert isinstance(results.stopped, QuotaExceededError)
        # each key once more for each call in flight
        assert len(llm.sent) <= answered + 4 * 2 * 3


@pytest.mark.parametrize("error", [401, 429])
async def test_a_function_that_always_returns_new_keys_is_not_asked_without_end(error):
    numbers = itertools.count()

    class Refusing(LoopbackLLM):
        def _check_key(self, call):
            raise ErrorResponse(error, "No.", code="insufficient_quota")

    async with Refusing(answers) as llm:
        provider = OpenAI("m", base_url=llm.base_url, api_key=lambda: f"key-{next(numbers)}")
        transport = Transport()
        try:
            with pytest.raises((AuthenticationError, QuotaExceededError)) as caught:
                await transport.call(provider, request())
        finally:
            await transport.aclose()
    assert caught.value.attempts == next(numbers) == 9


@pytest.mark.parametrize("lines", [False, True])
async def test_auxiliary_requests_ask_again(lines):
    keys = iter(["old", "new"])
    taken = []
    async with BatchLLM(answers, api_key="new") as llm:
        provider = OpenAI("m", base_url=llm.base_url, api_key=lambda: next(keys))
        transport = Transport()
        try:
            url = provider.at("/batches", "limit=1")
            if lines:
                await transport.auxiliary.read_lines(provider, url, taken.append)
            else:
                taken.append((await transport.auxiliary.send(provider, "GET", url)).data)
        finally:
            await transport.aclose()
    assert orjson.loads(b"".join(taken))["data"] == []


@pytest.mark.parametrize(
    ("returned", "words"), [(None, "returned None"), ("", "non-empty"), ("a b", "space")]
)
async def test_a_function_that_returns_no_key(returned, words):
    with pytest.raises(ConfigurationError, match=words):
        await KeySource(lambda: returned).current(0.1)


async def test_a_function_that_raises():
    def ask():
        raise OSError("secret")

    with pytest.raises(ConfigurationError, match="api_key raised OSError") as caught:
        await KeySource(ask).current(0.1)
    assert "secret" not in str(caught.value)


async def test_a_token_is_replaced_before_it_expires():
    now = [1_000.0]
    given = iter([token(2_000), token(9_000)])
    source = KeySource(lambda: next(given), wall=lambda: now[0])
    assert await source.current() == await source.current() == token(2_000)
    now[0] = 1_941.0
    assert await source.current() == token(2_000), "which is valid, while the next is asked for"
    await until(lambda: source.key == token(9_000))
    await source.replace(token(2_000))  # by a call that was in flight with the old one
    assert source.key == token(9_000)


async def test_a_cancelled_call_does_not_cancel_the_question():
    gate = asyncio.Event()

    async def ask():
        await gate.wait()
        return "key"

    source = KeySource(ask)
    first, second = asyncio.create_task(source.current()), asyncio.create_task(source.current())
    await asyncio.sleep(0)
    first.cancel()
    gate.set()
    assert await second == "key"
    with pytest.raises(asyncio.CancelledError):
        await first


class Vault:
    """A key function that counts, and fails or hangs as told."""

    def __init__(self, keys, wrong=lambda _: False, seconds=0.0):
        self.keys, self.wrong, self.seconds = keys, wrong, seconds
        self.asked, self.at_once, self.most = 0, 0, 0

    async def __call__(self):
        self.asked += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await asyncio.sleep(self.seconds)
            now = asyncio.get_running_loop().time()
            if self.wrong(now):
                raise OSError("the vault is away")
            return self.keys(now)
        finally:
            self.at_once -= 1


def source_of(vault, loop):
    async def ask():
        return await vault()

    return KeySource(ask, wall=loop.time)


@virtual.in_virtual_time
async def test_a_valid_key_is_used_while_the_function_fails(loop):
    # a minute before the key of 3,600 s ends, the function fails for 40 s
    vault = Vault(lambda now: token(now + 3_600), lambda now: 4_530 < now < 4_580)
    source = source_of(vault, loop)
    first = await source.current()
    for _ in range(600):
        loop_time = loop.time()
        assert await source.current()
        assert loop.time() == loop_time, "no call waits"
        await asyncio.sleep(6.0)
    assert source.key != first
    assert vault.most == 1
    # tries are spread: of 0.25 s, doubled up to 10 s
    assert vault.asked <= 2 + 12


@pytest.mark.parametrize("within", [5.0, 60.0, 120.0])
@virtual.in_virtual_time
async def test_without_a_valid_key_the_function_is_asked_again_until_the_deadline(loop, within):
    ends = loop.time() + within
    vault = Vault(lambda now: token(now + 100), lambda now: 1_100 < now < 1_148)
    source = source_of(vault, loop)
    await source.current()
    await asyncio.sleep(100.5)
    calls = [asyncio.create_task(source.current(within)) for _ in range(50)]
    found = await asyncio.gather(*calls, return_exceptions=True)
    if within < 48:
        assert {str(e) for e in found} == {str(found[0])}
        assert isinstance(found[0], ConfigurationError)
        assert "raised OSError" in str(found[0])
        assert loop.time() <= ends + 100.5
    else:
        assert len(set(found)) == 1
        assert isinstance(found[0], str)
    assert vault.most == 1
    assert vault.asked <= 14


@virtual.in_virtual_time
async def test_a_function_that_never_returned_a_key_is_given_up_soon(loop):
    source = source_of(Vault(token, lambda _: True), loop)
    with pytest.raises(ConfigurationError, match="raised OSError"):
        await source.current(3_600.0)
    assert loop.time() <= 1_010


@virtual.in_virtual_time
async def test_a_coroutine_function_that_hangs_is_bounded(loop):
    vault = Vault(token, seconds=1e6)
    source = source_of(vault, loop)
    with pytest.raises(ConfigurationError, match="not returned"):
        await source.current(120.0)
    assert vault.most == 1
    source.key = "old"
    with pytest.raises(ConfigurationError, match="not returned for 30 s"):
        await source.replace("old", 120.0)
    assert vault.most == 1


async def test_a_function_that_hangs_is_not_called_twice_and_ends_no_process():
    gate, asked = threading.Event(), []

    def ask():
        asked.append(threading.current_thread().daemon)
        gate.wait(60)
        return "key"

    source = KeySource(ask)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="not returned"):
            await source.current(0.05)
    gate.set()
    assert await source.current(30.0) == "key"
    assert asked == [True]


@virtual.in_virtual_time
async def test_a_key_that_has_ended_by_this_clock_is_used(loop):
    vault = Vault(lambda _: token(1))
    source = source_of(vault, loop)
    for _ in range(10):
        assert await source.current() == token(1)
    assert vault.asked == 1, "the server decides whether a key is valid"


@pytest.mark.parametrize("jump", [-365 * 86_400, -3_600, 3_600, 365 * 86_400])
@virtual.in_virtual_time
async def test_a_clock_that_jumps_asks_once_more_at_most(loop, jump):
    jumped, now = 0.0, 1_700_000_000

    def ask():
        asked.append(loop.time())
        return token(now + loop.time() - 1000 + 1_800)

    asked = []
    source = KeySource(ask, wall=lambda: now + loop.time() - 1000 + jumped)
    for second in range(600):
        if second == 300:
            jumped = jump
        await source.current()
        await asyncio.sleep(1)
    assert len(asked) <= 2


async def test_a_function_that_fails_for_a_while_fails_no_text(client_of):
    """Also where the server rejects the old key meanwhile."""
    keys, failures = ["key-1"], [0]

    def ask():
        if failures[0]:
            failures[0] -= 1
            raise OSError
        return keys[0]

    def answer(text):
        if text == "text 20":
            # the key is withdrawn, and the function fails three times
            keys[0] = llm._api_key = "key-2"
            failures[0] = 3
        return "refund"

    async with LoopbackLLM(answer, api_key="key-1") as llm:
        options = client_of(llm, api_key=ask, k=0, limits=Limits(concurrency=8))
        async with TestNUC(**options) as nuc:
            results = await nuc.classify_many([f"text {i}" for i in range(200)])
    assert results.labels == ["refund"] * 200
    assert failures == [0]


async def test_a_function_that_fails_for_good_ends_the_run(loopback, monkeypatch):
    monkeypatch.setattr(keys_module, "_NEVER", 0.3)

    def ask():
        raise OSError

    async with loopback(answers, api_key=ask, k=0) as (llm, nuc):
        with pytest.raises(ConfigurationError, match="raised OSError"):
            await nuc.classify_many([f"text {i}" for i in range(2_000)])
    assert llm.requests == 0


def test_azure_takes_tokens_as_bearer_tokens():
    url = "https://x.openai.azure.com/openai/v1"
    assert OpenAI("m", base_url=url, api_key="key").key_headers("key") == {"api-key": "key"}
    asked = OpenAI("m", base_url=url, api_key=lambda: "key")
    assert asked.key_headers("key") == {"Authorization": "Bearer key"}
    assert "api-key" not in asked.headers


@virtual.in_virtual_time
async def test_a_call_whose_process_was_suspended_ends_with_its_own_error(loop):
    """Not with one about the key function, for which no time was left."""

    class Broken:
        async def post(self, provider, body, **_):
            raise aiohttp.ServerDisconnectedError

        async def aclose(self):
            pass

    jump = 0.0

    async def key():
        await asyncio.sleep(0.1)
        return token(2000 + loop.time())

    async def sleep(seconds):
        # while the call backs off, the process sleeps for an hour
        nonlocal jump
        jump = 3600.0

    provider = OpenAI("m", base_url="http://127.0.0.1:9/v1", api_key=key)
    provider.keys._wall = lambda: loop.time() + jump
    transport = Transport(clock=lambda: loop.time() + jump, sleep=sleep, connections=Broken())
    with pytest.raises(ConnectionFailedError):
        await transport.call(provider, request())


async def sent_at(loop, calls, life, latency=lambda sent: 0.0, **limits):
    """Send calls with keys that live for so many seconds; return when each was sent."""
    sent = []

    class Server:
        async def post(self, provider, body, **_):
            sent.append(loop.time())
            raise aiohttp.ServerDisconnectedError

        async def aclose(self):
            pass

    async def key():
        await asyncio.sleep(latency(sent))
        return token(life + loop.time())

    provider = OpenAI("m", base_url="http://127.0.0.1:9/v1", api_key=key)
    provider.keys._wall = loop.time
    limits = Limits(retry=RetryPolicy(attempts=1), **limits)
    transport = Transport(limits, clock=loop.time, connections=Server())
    every = (transport.call(provider, request()) for _ in range(calls))
    await asyncio.wait_for(asyncio.gather(*every, return_exceptions=True), 3_600)
    assert len(sent) == calls
    return sent


@virtual.in_virtual_time
async def test_calls_whose_key_expired_in_the_queue_keep_the_rate_limit(loop):
    """Their permits were given before the next key came."""
    limits = {"requests_per_minute": 30, "concurrency": 100}
    sent = await sent_at(loop, 100, 30, lambda sent: 20.0 if sent else 0.0, **limits)
    for i, begin in enumerate(sent):
        assert sum(begin <= one < begin + 60 for one in sent[i:]) <= 30


@virtual.in_virtual_time
async def test_keys_that_live_for_less_time_than_a_call_waits_end_no_run(loop):
    """Each call gave its permit back for ever."""
    await sent_at(loop, 40, 12, requests_per_minute=30, concurrency=8)
