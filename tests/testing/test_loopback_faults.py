import asyncio
import errno
import json
import time
from email.utils import parsedate_to_datetime

import aiohttp
import orjson
import pytest

from testnuc.prompts.reading import parse_reply
from testnuc.protocols import Answer
from testnuc.testing import Faults, LoopbackLLM
from testnuc.testing.answers import WRONG_LABEL
from tests import virtual
from tests.testing.loopback_client import GOLD, ask, ask_anthropic, content_of
from tests.waiting import until


@pytest.fixture(params=[ask, ask_anthropic], ids=["openai", "anthropic"])
def wire(request):
    return request.param


async def one_fault(session, wire, kind, *texts):
    faults = Faults(schedule=[kind], retry_after=2.5, stall=0.01, slow=0.04, refuse=0.05)
    async with LoopbackLLM(GOLD, faults=faults) as llm:
        reply, body = await wire(session, llm, *(texts or "a"))
        assert llm.faults == {kind: 1}
        after, _ = await wire(session, llm, *(texts or "a"))
        assert after.status == 200
        return llm, reply, body


async def test_the_forms_of_retry_after(session, wire):
    async def header(kind, name="retry-after"):
        return (await one_fault(session, wire, kind))[1].headers[name]

    assert await header("429-retry-after") == "2.5"
    assert await header("429-retry-after-ms", "retry-after-ms") == "2500"
    before = time.time()
    date = parsedate_to_datetime(await header("429-retry-after-date"))
    # in whole seconds
    assert before + 1.5 <= date.timestamp() <= time.time() + 2.5


@pytest.mark.parametrize("kind", ["reset-before", "reset-within", "stalled", "refused"])
async def test_lost_responses_are_not_counted(session, wire, kind):
    faults = Faults(schedule=[kind], stall=0.01, refuse=30)
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
            virtual.skip(31)
            await asyncio.sleep(0.01)
        assert (await wire(session, llm, "a"))[0].status == 200


async def test_a_client_may_give_up_on_a_stalled_response(session):
    async with LoopbackLLM(GOLD, faults=Faults(schedule=["stalled"], stall=60)) as llm:
        asking = asyncio.create_task(ask(session, llm, "a"))
        await until(lambda: llm.in_flight)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
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
