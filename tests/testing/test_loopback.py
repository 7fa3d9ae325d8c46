import contextlib
import json

import aiohttp
import orjson
import pytest

from testnuc.errors import InvalidInputError
from testnuc.prompts.reading import parse_reply
from testnuc.protocols import Answer
from testnuc.testing import Faults, LoopbackLLM
from tests.testing.loopback_client import (
    FORMAT,
    GOLD,
    SCHEMA,
    ask,
    ask_anthropic,
    chat,
    message,
    said,
)

# -- both formats --------------------------------------------------------------------------------


async def test_chat_completions(session):
    async with LoopbackLLM(GOLD) as llm:
        reply, body = await ask(session, llm, "a", response_format=FORMAT)
        assert reply.status == 200
        assert reply.headers["x-request-id"] == "req_1"
        assert json.loads(said(body)) == {"label": "x", "confidence": 0.5}
        assert (body["object"], body["choices"][0]["finish_reason"]) == ("chat.completion", "stop")
        usage = body["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 10
        _, body = await ask(session, llm, "b", "line\nbreak", "b")
        assert json.loads(said(body)) == {
            "answers": [
                {"id": 1, "label": "y", "confidence": None},
                {"id": 2, "label": "é", "confidence": 1.0},
                {"id": 3, "label": "y", "confidence": None},
            ]
        }
        assert (llm.requests, llm.calls, llm.texts) == (2, 2, 4)
        assert llm.asked == {"a": 1, "b": 2, "line\nbreak": 1}
        assert llm.input_tokens == usage["prompt_tokens"] + body["usage"]["prompt_tokens"]
        assert llm.output_tokens == usage["completion_tokens"] + body["usage"]["completion_tokens"]
        async with session.get(f"{llm.base_url}/models") as listed:
            assert (await listed.json())["data"][0]["id"] == "loopback"
        async with session.get(f"{llm.base_url}/nothing") as missing:
            assert missing.status == 404
        assert llm.requests == 2


async def test_an_unknown_text_is_named(session):
    async with LoopbackLLM(GOLD) as llm:
        long = "what?" * 100
        for asked in (ask, ask_anthropic):
            reply, body = await asked(session, llm, "a", long)
            assert reply.status == 400
            assert "no answer for the text 'what?what?" in body["error"]["message"]
            assert len(body["error"]["message"]) < 200
        assert (llm.requests, llm.calls, llm.asked) == (2, 0, {})


async def test_mistakes_of_a_test_are_errors(session):
    def broken(text):
        return 1 / 0

    for answer in (broken, {"a": ("x", 0.5, "too many")}, {"a": 5}, {"a": (5, 0.5)}):
        async with LoopbackLLM(answer) as llm:
            reply, body = await ask(session, llm, "a")
            assert reply.status == 400
            assert "answer of LoopbackLLM for 'a'" in body["error"]["message"]
    async with LoopbackLLM(GOLD) as llm:
        _, body = await ask(session, llm)
        assert "no text in the prompt" in body["error"]["message"]
        bad = chat("a", messages=[{"role": "user", "content": "== Testing Samples ==\nText 1: no"}])
        async with session.post(f"{llm.base_url}/chat/completions", json=bad) as reply:
            assert "cannot parse the texts" in await reply.text()
    with pytest.raises(InvalidInputError, match="no address"):
        _ = LoopbackLLM(GOLD).base_url


async def test_answers_can_change_from_time_to_time(session):
    async with LoopbackLLM(lambda text, time: (f"{text}{time}", 0.5)) as llm:
        labels = [json.loads(said((await ask(session, llm, "a"))[1]))["label"] for _ in range(3)]
        assert labels == ["a0", "a1", "a2"]
        _, body = await ask(session, llm, "a", "b", "a")
        labels = [answer["label"] for answer in json.loads(said(body))["answers"]]
        assert labels == ["a3", "b0", "a4"]


async def test_lost_and_refused_requests_use_up_no_answer(session):
    faults = Faults(schedule=["reset-before", "500", "429", "stalled", "truncated", None], stall=0)
    async with LoopbackLLM(lambda text, time: f"{text}{time}", faults=faults) as llm:
        for _ in range(5):
            with contextlib.suppress(aiohttp.ClientError, orjson.JSONDecodeError):
                await ask(session, llm, "a")
        _, body = await ask(session, llm, "a")
        assert json.loads(said(body))["label"] == "a1"  # a0 was in the truncated one


# -- what a provider refuses ---------------------------------------------------------------------


async def test_structured_output_refused_or_ignored(session):
    async with LoopbackLLM(GOLD, structured=False) as llm:
        reply, body = await ask(session, llm, "a", response_format=FORMAT)
        assert (reply.status, body["error"]["param"]) == (400, "response_format")
        assert "'response_format' is not supported" in body["error"]["message"]
        form = {"format": {"type": "json_schema", "schema": SCHEMA}}
        assert (await ask_anthropic(session, llm, "a", output_config=form))[0].status == 400
        assert json.loads(said((await ask(session, llm, "a"))[1]))["label"] == "x"
    async with LoopbackLLM(GOLD, structured="ignore") as llm:
        content = said((await ask(session, llm, "a", response_format=FORMAT))[1])
        with pytest.raises(ValueError, match="Expecting value"):
            json.loads(content)
        assert parse_reply(content, 1) == (Answer("x", 0.5),)


async def test_parameters_can_be_refused(session):
    async with LoopbackLLM(GOLD, rejects=("temperature", "system")) as llm:
        reply, body = await ask(session, llm, "a", temperature=0.7)
        assert (reply.status, body["error"]["param"]) == (400, "temperature")
        assert (await ask(session, llm, "a"))[1]["error"]["param"] == "messages[0].role"


async def test_what_anthropic_requires(session):
    async with LoopbackLLM(GOLD) as llm:
        reply, body = await ask_anthropic(session, llm, "a", headers={"x": "y"})
        assert reply.status == 400
        assert "anthropic-version" in body["error"]["message"]
        broken = message("a")
        del broken["max_tokens"]
        headers = {"anthropic-version": "1"}
        async with session.post(f"{llm.base_url}/messages", json=broken, headers=headers) as reply:
            assert reply.status == 400
            assert "max_tokens: Field required" in await reply.text()


async def test_tokens_untold_or_cached(session):
    async with LoopbackLLM(GOLD, usage=False) as llm:
        assert "usage" not in (await ask(session, llm, "a"))[1]
        assert (llm.calls, llm.input_tokens) == (1, 0)
    async with LoopbackLLM(GOLD, cache=True) as llm:
        block = [{"type": "text", "text": "s" * 5000, "cache_control": {"type": "ephemeral"}}]
        first = (await ask_anthropic(session, llm, "a", system=block))[1]["usage"]
        second = (await ask_anthropic(session, llm, "a", system=block))[1]["usage"]
        assert first["cache_creation_input_tokens"] == second["cache_read_input_tokens"] == 1152
        assert first["input_tokens"] == second["input_tokens"]
        assert llm.input_tokens == 2 * (1152 + first["input_tokens"])
        assert llm.cached_tokens == 1152
        plain = (await ask_anthropic(session, llm, "a", system="s" * 5000))[1]["usage"]
        assert plain["cache_read_input_tokens"] == 0


async def test_requests_are_recorded_on_demand(session):
    async with LoopbackLLM(GOLD, record=2) as llm:
        for text in "abc":
            await ask(session, llm, text, temperature=0.5)
        assert [body["messages"][1]["content"][-2] for body in llm.bodies] == ["b", "c"]
        assert llm.headers[-1]["content-type"] == "application/json"


# -- the limit -----------------------------------------------------------------------------------


async def test_requests_beyond_the_limit_are_refused_and_recorded(session):
    async with LoopbackLLM(GOLD, rate_limit={"requests_per_minute": 2}) as llm:
        reply, _ = await ask(session, llm, "a")
        assert reply.headers["x-ratelimit-limit-requests"] == "2"
        assert reply.headers["x-ratelimit-remaining-requests"] == "1"
        assert reply.headers["x-ratelimit-reset-requests"] in {"1m0s", "59.999s"}
        assert "x-ratelimit-limit-tokens" not in reply.headers
        await ask(session, llm, "b")
        reply, body = await ask(session, llm, "c")
        assert (reply.status, body["error"]["code"]) == (429, "rate_limit_exceeded")
        assert reply.headers["retry-after"] == "60"
        assert 59_000 < int(reply.headers["retry-after-ms"]) <= 60_000
        violation = llm.violations[0]
        assert (violation.what, violation.used, violation.limit) == ("requests", 3, 2)
        assert (llm.requests, llm.calls) == (3, 2)


async def test_tokens_beyond_the_limit_are_refused_too(session):
    async with LoopbackLLM(GOLD, rate_limit={"tokens_per_minute": 60}) as llm:
        reply, body = await ask_anthropic(session, llm, "a")
        left = int(reply.headers["anthropic-ratelimit-tokens-remaining"])
        assert left == 60 - sum(body["usage"].values())
        assert reply.headers["anthropic-ratelimit-tokens-reset"].endswith("Z")
        while reply.status == 200:
            reply, body = await ask_anthropic(session, llm, "a")
        assert body["error"]["type"] == "rate_limit_error"
        assert reply.headers["retry-after"] == "60"
        assert [violation.what for violation in llm.violations] == ["tokens"]
