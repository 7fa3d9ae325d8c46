import asyncio
import contextlib
import errno
import json
import math
import os
import random
import signal
import socket
import sys
import threading
import time
import urllib.request
from collections import Counter
from email.utils import parsedate_to_datetime

import aiohttp
import orjson
import pytest

from testnuc.errors import InvalidInputError, TestNUCError
from testnuc.prompts import label_spans, parse_reply, user_prompt
from testnuc.protocols import Answer
from testnuc.testing import Faults, LoopbackLLM, by_hash, serve_in_process
from testnuc.testing.content import WRONG_LABEL

GOLD = {"a": ("x", 0.5), "b": "y", "c": ["z", None], "line\nbreak": ("é", 1.0)}
SCHEMA = {"type": "object", "properties": {"label": {}, "confidence": {}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}


@pytest.fixture
async def session():
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        yield session


def chat(*texts, **more):
    messages = [
        {"role": "system", "content": "You label texts."},
        {"role": "user", "content": user_prompt(texts)},
    ]
    return {"model": "m", "messages": messages, **more}


def message(*texts, **more):
    parts = [{"type": "text", "text": user_prompt(texts)}]
    return {
        "model": "m",
        "max_tokens": 99,
        "system": "You label texts.",
        "messages": [{"role": "user", "content": parts}],
        **more,
    }


async def ask(session, llm, *texts, **more):
    async with session.post(f"{llm.base_url}/chat/completions", json=chat(*texts, **more)) as reply:
        return reply, orjson.loads(await reply.read())


async def ask_anthropic(session, llm, *texts, headers=None, **more):
    url, headers = f"{llm.base_url}/messages", headers or {"anthropic-version": "2023-06-01"}
    async with session.post(url, json=message(*texts, **more), headers=headers) as reply:
        return reply, orjson.loads(await reply.read())


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.001)


def said(body):
    return body["choices"][0]["message"]["content"]


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


async def test_messages(session):
    async with LoopbackLLM(GOLD) as llm:
        form = {"format": {"type": "json_schema", "schema": SCHEMA}}
        reply, body = await ask_anthropic(session, llm, "a", output_config=form)
        assert reply.status == 200
        assert reply.headers["request-id"]
        assert (body["type"], body["stop_reason"]) == ("message", "end_turn")
        assert json.loads(body["content"][0]["text"]) == {"label": "x", "confidence": 0.5}
        assert body["usage"]["input_tokens"] == llm.input_tokens > 0
        tools = [{"name": "answer", "input_schema": SCHEMA}]
        choice = {"type": "tool", "name": "answer"}
        _, body = await ask_anthropic(session, llm, "a", tools=tools, tool_choice=choice)
        assert body["stop_reason"] == "tool_use"
        assert body["content"][0]["input"] == {"label": "x", "confidence": 0.5}


async def test_an_unknown_text_is_named(session):
    async with LoopbackLLM(GOLD) as llm:
        long = "what?" * 100
        for asked in (ask, ask_anthropic):
            reply, body = await asked(session, llm, "a", long)
            assert reply.status == 400
            assert "no answer for the text 'what?what?" in body["error"]["message"]
            assert len(body["error"]["message"]) < 200
        assert (llm.requests, llm.calls, llm.asked) == (2, 0, {})


async def test_what_the_test_got_wrong_is_told(session):
    def broken(text):
        return 1 / 0

    for answer in (broken, {"a": ("x", 0.5, "too many")}, {"a": 5}, {"a": (5, 0.5)}):
        async with LoopbackLLM(answer) as llm:
            reply, body = await ask(session, llm, "a")
            assert reply.status == 400
            assert "answer to 'a'" in body["error"]["message"]
    async with LoopbackLLM(GOLD) as llm:
        _, body = await ask(session, llm)
        assert "no testing sample" in body["error"]["message"]
        bad = chat("a", messages=[{"role": "user", "content": "== Testing Samples ==\nText 1: no"}])
        async with session.post(f"{llm.base_url}/chat/completions", json=bad) as reply:
            assert "cannot read the samples" in await reply.text()
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


async def test_log_probabilities(session):
    async with LoopbackLLM({"a": ('two "quoted" words: é', 0.3), "b": ("y", 0.8)}) as llm:
        schema = {"type": "object", "properties": {"label": {}}}
        form = {"type": "json_schema", "json_schema": {"schema": schema}}
        for texts in (["a"], ["a", "b"]):
            form = form if len(texts) == 1 else None
            _, body = await ask(session, llm, *texts, logprobs=True, response_format=form)
            tokens = body["choices"][0]["logprobs"]["content"]
            content = said(body)
            assert "".join(token["token"] for token in tokens) == content
            assert b"".join(bytes(token["bytes"]) for token in tokens).decode() == content
            assert "confidence" not in content
            for i, (start, end) in label_spans(content, len(texts)).items():
                at, total = 0, 0.0
                for token in tokens:
                    if at < end and at + len(token["token"]) > start:
                        total += token["logprob"]
                    at += len(token["token"])
                assert math.exp(total) == pytest.approx([0.3, 0.8][i])


# -- what a provider refuses ---------------------------------------------------------------------


async def test_a_wrong_key_or_model(session):
    async with LoopbackLLM(GOLD, api_key="secret", model="m") as llm:
        for headers in ({"Authorization": "Bearer secret"}, {"api-key": "secret"}):
            async with session.post(
                f"{llm.base_url}/chat/completions", json=chat("a"), headers=headers
            ) as reply:
                assert reply.status == 200
        reply, body = await ask(session, llm, "a")
        assert (reply.status, body["error"]["code"]) == (401, "invalid_api_key")
        headers = {"anthropic-version": "1", "x-api-key": "wrong"}
        reply, body = await ask_anthropic(session, llm, "a", headers=headers)
        assert (reply.status, body["error"]["type"]) == (401, "authentication_error")
        headers["x-api-key"] = "secret"
        reply, body = await ask_anthropic(session, llm, "a", headers=headers, model="other")
        assert (reply.status, body["error"]["type"]) == (404, "not_found_error")
        assert body["type"] == "error"
        assert llm.calls == 2


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
        assert (await ask(session, llm, "a"))[1]["error"]["param"] == "system"


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


# -- faults --------------------------------------------------------------------------------------


@pytest.fixture(params=[ask, ask_anthropic], ids=["openai", "anthropic"])
def wire(request):
    return request.param


async def one_fault(session, wire, kind, *texts):
    faults = Faults(schedule=[kind], retry_after=2.5, stall=0.01, slow=0.02, refuse=0.05)
    async with LoopbackLLM(GOLD, faults=faults) as llm:
        reply, body = await wire(session, llm, *(texts or "a"))
        assert llm.faults == {kind: 1}
        after, _ = await wire(session, llm, *(texts or "a"))
        assert after.status == 200
        return llm, reply, body


@pytest.mark.parametrize("kind", ["500", "503", "529", "429", "408", "quota", "content-filter"])
async def test_error_statuses(session, wire, kind):
    llm, reply, body = await one_fault(session, wire, kind)
    status = {"quota": 429 if wire is ask else 400, "content-filter": 400}.get(kind)
    assert reply.status == (status or int(kind))
    assert body["error"]["message"]
    assert "retry-after" not in reply.headers
    assert (llm.requests, llm.calls) == (2, 1)
    if wire is ask_anthropic and kind == "529":
        assert body["error"]["type"] == "overloaded_error"


async def test_the_forms_of_retry_after(session, wire):
    async def header(kind, name="retry-after"):
        return (await one_fault(session, wire, kind))[1].headers[name]

    assert await header("429-retry-after") == "2.5"
    assert await header("429-retry-after-ms", "retry-after-ms") == "2500"
    date = parsedate_to_datetime(await header("429-retry-after-date"))
    assert 0 < date.timestamp() - time.time() <= 2.5


@pytest.mark.parametrize("kind", ["reset-before", "reset-within", "stalled", "refused"])
async def test_lost_responses_are_not_counted(session, wire, kind):
    faults = Faults(schedule=[kind], stall=0.01, refuse=0.05)
    async with LoopbackLLM(GOLD, faults=faults) as llm:
        with pytest.raises(aiohttp.ClientError) as caught:
            await wire(session, llm, "a")
        assert isinstance(caught.value, aiohttp.ClientPayloadError) == (
            kind in {"reset-within", "stalled"}
        )
        assert (llm.requests, llm.calls, llm.in_flight, llm.input_tokens) == (1, 0, 0, 0)
        if kind == "refused":
            with pytest.raises(aiohttp.ClientConnectorError) as refused:
                await wire(session, llm, "a")
            assert refused.value.errno == errno.ECONNREFUSED
            assert llm.requests == 1
            await asyncio.sleep(0.06)
        assert (await wire(session, llm, "a"))[0].status == 200


async def test_a_client_may_give_up_on_a_stalled_response(session):
    async with LoopbackLLM(GOLD, faults=Faults(schedule=["stalled"], stall=60)) as llm:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(session, llm, "a"), 0.03)
        await until(lambda: not llm.in_flight)
        assert (llm.calls, llm.abandoned) == (0, 1)


async def test_a_reset_after_the_body_leaves_a_whole_answer(session, wire):
    faults = Faults(schedule=["reset-after"])
    async with LoopbackLLM(GOLD, faults=faults) as llm:
        reply, body = await wire(session, llm, "a")
        assert reply.status == 200
        assert body["usage"]
        assert llm.calls == 1
        for _ in range(3):  # the client may find out only now
            try:
                assert (await wire(session, llm, "a"))[0].status == 200
            except aiohttp.ClientError:
                continue
            break
        assert llm.calls == 2


async def test_a_slow_answer_is_whole(session, wire):
    started = time.monotonic()
    llm, _reply, body = await one_fault(session, wire, "slow")
    assert time.monotonic() - started >= 0.015
    assert body["usage"]
    assert llm.calls == 2


async def test_a_truncated_answer_is_paid_but_its_tokens_are_not_known(session, wire):
    async with LoopbackLLM(GOLD, faults=Faults(schedule=["truncated"])) as llm:
        with pytest.raises(orjson.JSONDecodeError):
            await wire(session, llm, "a")
        assert (llm.calls, llm.texts, llm.output_tokens) == (1, 1, 0)


def content_of(wire, body):
    return said(body) if wire is ask else body["content"][0]["text"]


async def test_faults_of_content(session, wire):
    _, _, body = await one_fault(session, wire, "wrong-label")
    assert json.loads(content_of(wire, body))["label"] == WRONG_LABEL
    _, _, body = await one_fault(session, wire, "prose")
    assert "```json" in content_of(wire, body)
    assert parse_reply(content_of(wire, body), 1) == (Answer("x", 0.5),)
    llm, _, body = await one_fault(session, wire, "missing-usage")
    assert "usage" not in body
    assert llm.calls == 2
    _, _, body = await one_fault(session, wire, "empty-choices")
    assert not body.get("choices")
    assert not body.get("content")
    _, _, body = await one_fault(session, wire, "refusal")
    if wire is ask:
        assert body["choices"][0]["message"]["refusal"]
        assert body["choices"][0]["message"]["content"] is None
    else:
        assert body["stop_reason"] == "refusal"
    _, _, body = await one_fault(session, wire, "length")
    reason = body["choices"][0]["finish_reason"] if wire is ask else body["stop_reason"]
    assert reason in {"length", "max_tokens"}


@pytest.mark.parametrize(
    ("kind", "ids"),
    [("duplicate-ids", [1, 1, 3]), ("missing-ids", [1, 2]), ("invented-ids", [1, 2, 10])],
)
async def test_faults_of_packed_answers(session, wire, kind, ids):
    llm, _, body = await one_fault(session, wire, kind, "a", "b", "c")
    answers = json.loads(content_of(wire, body))["answers"]
    assert [answer["id"] for answer in answers] == ids
    assert llm.texts == 6


async def test_all_texts_are_answered_by_a_client_that_tries_again(session):
    texts = [f"text {i}" for i in range(300)]
    fates = []
    for seed in (1, 2):
        faults = Faults(0.4, seed=7, most_in_a_row=3, stall=0.005, slow=0.005, refuse=0.005)
        async with LoopbackLLM(by_hash("xyz"), faults=faults, latency=(0, 0.002)) as llm:
            failed = Counter()

            async def until_answered(text, llm=llm, failed=failed):
                while True:
                    try:
                        reply, body = await ask(session, llm, text)
                    except (aiohttp.ClientError, orjson.JSONDecodeError):
                        await asyncio.sleep(0.005)
                        continue
                    if reply.status == 200 and body["choices"]:
                        return parse_reply(said(body), 1)[0].label
                    failed[reply.status] += 1

            order = random.Random(seed).sample(texts, len(texts))
            async with asyncio.timeout(20):
                labels = await asyncio.gather(*map(until_answered, order))
            assert labels == [by_hash("xyz")(text)[0] for text in order]
            assert len(llm.asked) == len(texts) <= llm.calls
            lost = ("truncated", "empty-choices", "reset-after")
            assert llm.calls <= len(texts) + sum(llm.faults[kind] for kind in lost)
            assert failed[503] == llm.faults["503"]
            fates.append(llm.faults["500"])
    assert fates[0] == fates[1]


# -- life ----------------------------------------------------------------------------------------


async def test_latency_and_the_peak(session):
    async with LoopbackLLM(GOLD, latency=0.02) as llm:
        started = time.monotonic()
        await asyncio.gather(*(ask(session, llm, "a") for _ in range(20)))
        assert time.monotonic() - started >= 0.02
        assert llm.peak == 20
        assert llm.in_flight == 0


async def test_a_server_killed_and_started_again(session):
    async with LoopbackLLM(GOLD, latency=lambda rng: 0.05) as llm:
        url = llm.base_url
        waiting = asyncio.ensure_future(ask(session, llm, "a"))
        await until(lambda: llm.in_flight)
        await llm.stop()
        with pytest.raises(aiohttp.ClientError):
            await waiting
        for _ in range(3):
            with pytest.raises(aiohttp.ClientConnectorError) as refused:
                await ask(session, llm, "a")
            assert refused.value.errno == errno.ECONNREFUSED
        await llm.start()
        await llm.start()
        assert llm.base_url == url
        assert (await ask(session, llm, "a"))[0].status == 200
        assert (llm.requests, llm.calls, llm.in_flight) == (2, 1, 0)
        await llm.stop()
        await llm.stop()
    with socket.socket() as sock:  # the port was given back
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", int(url.split(":")[2].removesuffix("/v1"))))


async def test_a_stop_in_the_middle_of_a_refusal(session):
    faults = Faults(schedule=["refused", "refused"], refuse=0.01)
    async with LoopbackLLM(GOLD, faults=faults) as llm:
        with pytest.raises(aiohttp.ClientError):
            await ask(session, llm, "a")
        await llm.stop()
        await asyncio.sleep(0.02)
        with pytest.raises(aiohttp.ClientConnectorError):
            await ask(session, llm, "a")
        await llm.start()
        with pytest.raises(aiohttp.ClientError):
            await ask(session, llm, "a")


async def test_a_taken_port_is_an_error():
    async with LoopbackLLM(GOLD) as llm:
        port = int(llm.base_url.removesuffix("/v1").rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            await LoopbackLLM(GOLD, port=port).start()
        with pytest.raises(OSError, match="in use"), LoopbackLLM(GOLD, port=port):
            pass


async def test_counts_can_be_reset(session):
    async with LoopbackLLM(GOLD) as llm:
        await ask(session, llm, "a")
        assert llm.stats()["calls"] == 1
        llm.reset()
        assert (llm.calls, llm.requests, llm.peak, llm.asked) == (0, 0, 0, {})


async def test_connections_are_kept_unless_told_otherwise():
    async with LoopbackLLM(GOLD) as llm:
        host, port = llm.base_url.removeprefix("http://").removesuffix("/v1").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = orjson.dumps(chat("a"))
        for extra in (b"", b"Expect: 100-continue\r\n", b"Connection: close\r\n"):
            head = b"POST /v1/chat/completions HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n"
            writer.write(head % (extra, len(body)))
            if extra.startswith(b"Expect"):
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(body)
            received = await reader.readuntil(b"\r\n\r\n")
            length = int(received.split(b"Content-Length: ")[1].split(b"\r\n")[0])
            orjson.loads(await reader.readexactly(length))
        assert await reader.read() == b""
        writer.close()
        assert llm.calls == 3


# -- a thread, a process ---------------------------------------------------------------------------


def post(url, body):
    request = urllib.request.Request(f"{url}/chat/completions", orjson.dumps(body))
    with urllib.request.urlopen(request, timeout=5) as reply:
        return orjson.loads(reply.read())


def test_without_an_event_loop():
    with LoopbackLLM(GOLD) as llm:
        for _ in range(2):
            assert json.loads(said(post(llm.base_url, chat("a"))))["label"] == "x"

        async def restart():
            await llm.stop()
            with pytest.raises(OSError, match="refused"):
                post(llm.base_url, chat("a"))
            await llm.start()

        asyncio.run(restart())
        post(llm.base_url, chat("b"))
        assert (llm.calls, llm.asked["a"]) == (3, 2)
    assert "LoopbackLLM" not in {thread.name for thread in threading.enumerate()}


def test_in_another_process(tmp_path):
    with serve_in_process({"a": ("x", 0.5), "b": "y"}, latency=0.001) as server:
        assert server.pid != os.getpid()
        assert json.loads(said(post(server.base_url, chat("a", "b"))))["answers"][1]["label"] == "y"
        stats = server.stats()
        assert (stats["calls"], stats["texts"], stats["peak"]) == (1, 2, 1)
        assert stats["cpu"] > 0
        assert server.asked() == {"a": 1, "b": 1}
        server.reset()
        assert server.stats()["calls"] == 0
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
    path = tmp_path / "answers.json"
    path.write_text('{"a": ["x", 0.5]}')
    with serve_in_process(path, faults={"schedule": ["503"]}) as server:
        with pytest.raises(OSError, match="503"):
            post(server.base_url, chat("a"))
        assert json.loads(said(post(server.base_url, chat("a"))))["label"] == "x"


def test_a_process_that_cannot_start_says_so(tmp_path, capfd):
    missing = serve_in_process(tmp_path / "missing.json")
    with pytest.raises(TestNUCError, match="ended with code"), missing:
        pass
    assert "missing.json" in capfd.readouterr().err
    impossible = serve_in_process(["x"], latency=lambda rng: 0.1)
    with pytest.raises(InvalidInputError, match="another process"), impossible:
        pass


def test_on_the_command_line():
    import subprocess

    command = [sys.executable, "-m", "testnuc.testing", "--labels", "x, y", "--latency", "0.001"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        url = json.loads(process.stdout.readline())["base_url"]
        assert json.loads(said(post(url, chat("some text"))))["label"] in {"x", "y"}
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 0
