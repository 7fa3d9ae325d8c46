"""Keys that expire: asked for before the first request, and again when one was rejected."""

from __future__ import annotations

import asyncio
import base64
import threading

import orjson
import pytest

from testnuc.errors import AuthenticationError, ConfigurationError
from testnuc.providers.anthropic import Anthropic
from testnuc.providers.openai import OpenAI
from testnuc.testing import LoopbackLLM
from testnuc.transport import Transport
from testnuc.transport.keys import KeySource
from tests.providers.chat_bodies import LABELS, request


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
        transport = Transport(max_concurrency=8)
        try:
            calls = [transport.call(provider, request()) for _ in range(8)]
            replies = await asyncio.gather(*calls)
        finally:
            await transport.aclose()
    assert [reply.answers[0].label for reply in replies] == [LABELS[0]] * 8
    # a function may block, so it runs in a thread
    assert asked == [kind != "function"] * 2


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


@pytest.mark.parametrize("lines", [False, True])
async def test_auxiliary_requests_ask_again(lines):
    keys = iter(["old", "new"])
    taken = []
    async with LoopbackLLM(answers, api_key="new") as llm:
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
        await KeySource(lambda: returned).current()


async def test_a_function_that_raises():
    def ask():
        raise OSError("secret")

    with pytest.raises(ConfigurationError, match="api_key raised OSError") as caught:
        await KeySource(ask).current()
    assert "secret" not in str(caught.value)


async def test_a_token_is_replaced_before_it_expires():
    now = [1_000.0]
    given = iter([token(2_000), token(9_000)])
    source = KeySource(lambda: next(given), wall=lambda: now[0])
    assert await source.current() == await source.current() == token(2_000)
    now[0] = 1_941.0
    assert await source.current() == token(9_000)
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


def test_azure_takes_tokens_as_bearer_tokens():
    url = "https://x.openai.azure.com/openai/v1"
    assert OpenAI("m", base_url=url, api_key="key").key_headers("key") == {"api-key": "key"}
    asked = OpenAI("m", base_url=url, api_key=lambda: "key")
    assert asked.key_headers("key") == {"Authorization": "Bearer key"}
    assert "api-key" not in asked.headers
