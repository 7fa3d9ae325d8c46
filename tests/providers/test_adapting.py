"""Calls at the same time, to servers that accept less than is sent first."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import orjson
import pytest
from aiohttp import web

from testnuc.limits.policies import Limits, RetryPolicy
from testnuc.providers.openai import OpenAI
from testnuc.transport import Transport
from tests.doubles import posts_to
from tests.providers.chat_bodies import LABELS, completion, request, task
from tests.providers.test_responses import ONLY, response
from tests.providers.test_streams import SAID, chunk, stream

CALLS = 24


def refused(message, status=400):
    return web.json_response({"error": {"message": message}}, status=status)


def responses_only(path, body):
    if path == "chat/completions":
        return refused(ONLY, 404)
    if "messages" in body:
        return refused("Unknown parameter: 'messages'.")
    return web.Response(body=response(), content_type="application/json")


def streams_only(_, body):
    if not body.get("stream"):
        return refused("This model only support stream mode.")
    return web.Response(body=stream(chunk(SAID), chunk(finish="stop")))


def without_logprobs(_, body):
    if "logprobs" in body:
        return refused("You may not request logprobs from this model", 403)
    return web.Response(body=completion(), content_type="application/json")


def with_two_efforts(_, body):
    if body.get("reasoning_effort") not in ("low", "high"):
        return refused("Invalid reasoning_effort: minimal. Valid values are: high, low")
    return web.Response(body=completion(), content_type="application/json")


def with_little_context(_, body):
    if body.get("max_tokens", 0) > 1_000:
        return refused(
            "This model's maximum context length is 2048 tokens. However, you requested "
            f"{body['max_tokens']} output tokens and the prompt has 300 input tokens."
        )
    return web.Response(body=completion(), content_type="application/json")


@pytest.mark.parametrize(
    ("model", "answer"),
    [
        ("m", responses_only),
        ("m", streams_only),
        ("m", without_logprobs),
        ("gpt-5", with_two_efforts),
        ("qwq", with_little_context),
    ],
)
async def test_every_call_is_answered_and_then_nothing_is_refused(model, answer):
    refusals = []

    async def handle(asked):
        body = orjson.loads(await asked.read())
        given = answer(asked.match_info["path"].lstrip("/"), body)
        refusals.extend([body] if given.status != 200 else [])
        return given

    transport = Transport(Limits(concurrency=CALLS, retry=RetryPolicy(attempts=1)))
    async with posts_to(handle) as url, aclosing(transport):
        provider = OpenAI(model, base_url=url)
        confidence = "logprobs" if answer is without_logprobs else "verbalized"
        same = task(confidence=confidence)
        asked = [request(task=same) for _ in range(CALLS)]
        replies = await asyncio.gather(*(transport.call(provider, one) for one in asked))
        assert {reply.answers[0].label for reply in replies} == {LABELS[0]}
        # the format is known now: nothing more is refused
        before = len(refusals)
        assert before <= 2 * CALLS
        await transport.call(provider, request(task=same))
        assert len(refusals) == before
