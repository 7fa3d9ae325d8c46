"""A provider that fails: what callers get in time, what is logged, and what was learned labels."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sqlite3
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import aiohttp
import pytest

import testnuc
from testnuc import Budget, Limits, RetryPolicy, TestNUC
from testnuc._engine.retrieval import PoolPredictions
from testnuc.client import parts_of
from testnuc.errors import (
    AuthenticationError,
    CallTimeoutError,
    ProviderDownError,
    ProviderError,
    RateLimitedError,
)
from testnuc.limits.budget import BudgetAccount
from testnuc.protocols import Answer, Reply, Request, Task, TokenUsage
from testnuc.server import JsonLines
from testnuc.stores.sqlite import database
from testnuc.testing import Faults, LoopbackLLM
from testnuc.transport import retries
from testnuc.transport.calls import Call, Patience
from testnuc.trust.diagnosis import Decision
from testnuc.voting import VotePolicy
from tests import virtual
from tests._engine import test_learning as learning
from tests.conftest import LABELS, confident, messages
from tests.server.serving import Held, client, served, until
from tests.server.test_service import get, post

pytest.importorskip("prometheus_client")
pytestmark = pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")


#: Calls that nobody waits for any more are soon dropped.
SOON = Limits(concurrency=8, retry=RetryPolicy(attempts=100_000, max_wait=0.01))


UNLIMITED = aiohttp.ClientTimeout()


def down():
    error = ProviderError("500 upstream failure", status_code=500)
    error.retryable = True
    return error


def revoked():
    return AuthenticationError("the key was revoked", status_code=401)


class Failing(Held):
    """Answers at once, but each call for a text with a word fails."""

    def __init__(self, word, error):
        super().__init__()
        self.word, self.error = word, error
        self.gate.set()

    async def answer(self, request):
        if any(self.word in text for text in request.texts):
            self.asked += request.texts
            raise self.error()
        return await super().answer(request)


async def late(session, model, body):
    """Return the response to a request whose time for calls ends while one is to be sent again."""
    waiting = asyncio.create_task(post(session, body))
    await has_failed(model, body.get("text") or body["texts"][-1])
    virtual.skip(19)
    return await waiting


async def has_failed(model, text):
    """Wait until a text was sent again, so that its first failure is known."""
    await until(lambda: model.asked.count(text) > 1)


async def test_a_request_that_waits_for_a_provider_ends_in_time_with_its_failure(caplog):
    model = Failing("down", down)
    async with served(client(model, k=0, limits=SOON), request_timeout=20) as (_, session):
        for body in ({"text": "down"}, {"texts": ["down 1", "down 2"]}):
            status, answer, _ = await late(session, model, body)
            assert (status, answer["error"]["type"]) == (502, "provider")
        # what is known by then is the answer
        assert (await post(session, {"text": "refund please"}))[0] == 200
        status, answer, _ = await late(session, model, {"texts": ["refund please", "down 3"]})
        found = answer["results"]
        assert (status, [row["label"] for row in found]) == (200, ["refund", None])
        assert found[1]["error"]["type"] == "provider"
        _, page = await get(session, "/metrics")
    assert 'testnuc_failed_texts_total{type="provider"} 4.0' in page
    assert "500 upstream failure" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("k", [0, 2])
async def test_a_provider_that_hangs_holds_back_no_text_with_an_answer(client_of, k):
    seconds = [0.0]
    slow = Limits(retry=RetryPolicy(timeout=5_000, deadline=5_000))
    # in a thread: the time that passes is not that of its loop
    with LoopbackLLM(confident, latency=lambda _: seconds[0]) as llm:
        nuc = TestNUC(**client_of(llm, k=k, limits=slow))
        async with served(nuc, request_timeout=1_000) as (_, session):
            texts = messages(3)
            assert (await post(session, {"texts": texts[:2]}))[0] == 200
            seconds[0] = 600.0
            waiting = asyncio.create_task(
                session.post("/v1/classify", json={"texts": texts}, timeout=UNLIMITED)
            )
            await until(lambda: llm.requests == 3)
            virtual.skip(950)
            async with await waiting as response:
                status, answer = response.status, await response.json()
            _, page = await get(session, "/metrics")
    found = answer["results"]
    assert (status, [row["label"] for row in found[:2]]) == (200, LABELS[:2])
    assert found[2]["error"]["type"] == "provider_timeout"
    assert 'testnuc_failed_texts_total{type="provider_timeout"} 1.0' in page


async def test_neighbors_label_when_the_time_for_calls_has_passed():
    model = Held()
    model.gate.set()
    async with served(client(model), request_timeout=20) as (_, session):
        assert (await post(session, {"texts": messages(12)}))[0] == 200
        model.gate.clear()
        waiting = asyncio.create_task(post(session, {"text": "refund please number 60"}))
        await until(lambda: len(model.asked) == 13)
        virtual.skip(19)
        status, found, _ = await waiting
    assert (status, found["label"], found["source"]) == (200, "refund", "vote")
    assert found["error"]["type"] == "provider_timeout"


async def lines_of(content, most):
    """Return so many lines of a response; the time-out is for a test that fails."""
    async with asyncio.timeout(60):
        return [json.loads(await content.readline()) for _ in range(most)]


@pytest.mark.parametrize(("policy", "k"), [("weighted", 2), ("weighted", 0), ("auto", 2)])
async def test_a_stream_sends_what_needs_no_call_while_the_provider_hangs(policy, k):
    model, texts = Held(), messages(6)
    model.gate.set()
    nuc = client(model, policy=policy, k=k)
    async with served(nuc, request_timeout=1_000) as (_, session):
        await nuc.add(["a text of a person"], labels=["refund"])
        assert (await post(session, {"texts": texts[:3]}))[0] == 200
        model.gate.clear()
        asked = [texts[4], texts[0], "a text of a person", texts[5], texts[2], texts[0]]
        async with session.post(
            "/v1/classify",
            json={"texts": asked, "stream": True},
            timeout=UNLIMITED,
        ) as response:
            found = await lines_of(response.content, 4)
            await until(lambda: len(model.asked) == 5)
            virtual.skip(950)
            [failed] = await lines_of(response.content, 1)
    assert sorted(line["index"] for line in found) == [1, 2, 4, 5]
    for line in found:
        given = "refund" if line["index"] == 2 else confident(line["text"])[0]
        assert (line["label"], line["text"]) == (given, asked[line["index"]])
    assert failed["error"]["type"] == "provider_timeout"


async def test_each_line_of_a_stream_gives_the_others_time():
    texts, gates = messages(3), defaultdict(asyncio.Event)

    class Gated(Held):
        async def answer(self, request):
            self.asked += request.texts
            await gates[request.texts[0]].wait()
            return Reply(tuple(Answer(*confident(t)) for t in request.texts), TokenUsage(10, 5))

    model = Gated()
    async with served(client(model, k=0), request_timeout=1_000) as (_, session):
        waiting = asyncio.create_task(
            session.post("/v1/classify", json={"texts": texts, "stream": True}, timeout=UNLIMITED)
        )
        for text in texts[:2]:
            await until(lambda: len(model.asked) == 3)
            virtual.skip(800)
            gates[text].set()
            response = await waiting
            [line] = await lines_of(response.content, 1)
            assert (line["text"], line["label"]) == (text, confident(text)[0])
        virtual.skip(950)
        [line] = await lines_of(response.content, 1)
        assert (line["text"], line["error"]["type"]) == (texts[2], "provider_timeout")
        response.close()


@pytest.mark.parametrize("lines", [False, True])
async def test_labels_are_not_held_back_by_a_referee_that_hangs(lines, caplog):
    referee, texts = Held(), learning.texts_of(300)
    model = learning.Says(learning.noisy)
    async with served(learning.client(model, referee=referee), request_timeout=1_000) as (
        _,
        session,
    ):
        body = {"texts": texts, "stream": lines}
        waiting = asyncio.create_task(session.post("/v1/classify", json=body, timeout=UNLIMITED))
        await until(lambda: referee.asked)
        virtual.skip(950)
        async with await waiting as response:
            rows = [json.loads(line) async for line in response.content]
    rows = rows[0].get("results", rows)
    assert {row["text"] for row in rows if row["label"] is not None} == {*texts}
    assert "no result within the time of the request; send it again" in caplog.text


async def test_a_line_that_comes_as_the_time_ends_is_no_error():
    patience, renewed = Patience(0.0), asyncio.get_running_loop().create_future()

    def renew():
        patience.renew()
        renewed.set_result(True)

    with pytest.raises(CallTimeoutError):
        async with patience.in_time():
            # after the timer, and before the task that it ends
            asyncio.get_running_loop().call_soon(renew)
            await asyncio.Event().wait()
    assert renewed.done()


async def test_texts_that_failed_are_one_line_of_a_request(caplog):
    caplog.set_level(logging.WARNING, "testnuc.server")
    model = Failing("down", down)
    one = {"Authorization": f"Bearer {'a' * 20}", "X-Request-ID": "r1"}
    settings = {"request_timeout": 20, "token": f"desk {'a' * 20}"}
    async with served({"moods": client(model, k=0, limits=SOON)}, **settings) as (_, session):
        assert (await post(session, {"text": "refund please"}, "/v1/moods/classify", **one))[
            0
        ] == 200
        for texts, status in ((["down 77"], 502), (["refund please", "down 1", "down 2"], 200)):
            body = {"text": texts[0]} if status == 502 else {"texts": texts}
            waiting = asyncio.create_task(post(session, body, "/v1/moods/classify", **one))
            await has_failed(model, texts[-1])
            virtual.skip(19)
            assert (await waiting)[0] == status
    lines = [json.loads(JsonLines().format(r)) for r in caplog.records if r.levelname == "WARNING"]
    lines = [line for line in lines if line["logger"] == "testnuc.server"]
    assert [line["message"] for line in lines] == [
        "r1 /v1/moods/classify: 502, 500 upstream failure",
        "r1: 2 texts failed: provider, 500 upstream failure",
    ]
    for line in lines:
        assert (line["request_id"], line["caller"], line["set"]) == ("r1", "desk", "moods")
    assert (lines[0]["type"], lines[0]["status"]) == ("provider", 502)
    assert (lines[1]["type"], lines[1]["texts"]) == ("provider", 2)


@pytest.mark.parametrize(
    ("policy", "failure"), [("weighted", "key"), ("auto", "key"), ("auto", "refused")]
)
async def test_neighbors_label_before_the_first_answer_of_a_process(
    client_of, tmp_path, caplog, monkeypatch, policy, failure
):
    async def diagnosis(pool, settings):
        # as that of thousands of answers in which neighbors correct errors
        found = await diagnose(pool, settings)
        return replace(found, decision=Decision(VotePolicy.weighted(), 10, "neighbors are right"))

    diagnose = PoolPredictions.recent_diagnosis
    monkeypatch.setattr(PoolPredictions, "recent_diagnosis", diagnosis)
    kind = "provider_authentication" if failure == "key" else "provider"
    texts, new = learning.texts_of(300), learning.texts_of(6, start=300)
    said = {text: (learning.noisy(text), 0.9) for text in texts} | {"c1 number 1000": "topic 1"}
    given = {"labels": learning.LABELS, "embedder": learning.Clustered()}
    async with AsyncExitStack() as provider:
        llm = await provider.enter_async_context(LoopbackLLM(said, api_key="right"))
        given |= {"policy": policy, "store": tmp_path / "labels.db"}
        given = client_of(llm, **given)
        async with TestNUC(**{**given, "api_key": "right"}) as nuc:
            await nuc.classify_many(texts)
        if failure == "refused":
            await provider.aclose()
        async with served(TestNUC(**given)) as (_, session):
            status, one, _ = await post(session, {"text": new[0]})
            assert status == 200
            status, many, _ = await post(session, {"texts": [*new, texts[9]]})
            *failed, stored = many["results"]
            assert (status, stored["error"]) == (200, None)
            async with session.post("/v1/classify", json={"texts": new, "stream": True}) as lines:
                rows = [one, *failed, *[json.loads(line) async for line in lines.content]]
            _, page = await get(session, "/metrics")
            # it needs no call
            assert (await post(session, {"text": texts[9]}))[0] == 200
            # it is ready, or no text would find out when calls are answered again
            assert await get(session, "/readyz") == (200, '{"status":"failing"}')
            assert '"status":"failing"' in (await get(session, "/v1/info"))[1]
            assert "testnuc_ready 1.0" in page
            if failure == "key":
                llm._api_key = given["api_key"]
                answer = (await post(session, {"text": "c1 number 1000"}))[1]
                assert answer["own"]["label"] == "topic 1"
                assert caplog.text.count("the provider answers again") == 1
                assert await get(session, "/readyz") == (200, '{"status":"ready"}')
    assert [row["label"] for row in rows] == [learning.gold(row["text"]) for row in rows]
    assert {(row["source"], row["error"]["type"]) for row in rows} == {("vote", kind)}
    assert f'testnuc_failed_texts_total{{type="{kind}"}} 13.0' in page
    assert 'testnuc_labels_total{source="vote"} 14.0' in page
    # once for each request, and no line has the same words again
    records = [r for r in caplog.records if r.name == "testnuc.server" and r.levelname != "INFO"]
    assert ["every LLM call fails" in r.getMessage() for r in records] == [True] * 3
    assert [r.fields["texts"] for r in records] == [1, 6, 6]


@pytest.mark.parametrize("package", ["transport", "limits", "server"])
def test_what_an_operator_reads_is_not_python(package):
    for path in (Path(testnuc.__file__).parent / package).glob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            # beside the option of the command line
            code = re.search(r"\w\([a-z_]+=\.\.", line) if '"' in line else None
            assert code is None or "--" in line, line


@pytest.mark.parametrize("access_log", [False, True])
async def test_a_client_that_leaves_is_a_warning_and_counted(access_log, caplog):
    caplog.set_level(logging.INFO, "testnuc.server")
    model = Held()
    async with served(client(model, k=0), access_log=access_log) as (_, session):
        body, one = {"text": "refund please"}, {"X-Request-ID": "r1"}
        waiting = asyncio.create_task(post(session, body, **one))
        await model.asked_for(1)
        waiting.cancel()
        await until(lambda: " 499 " in caplog.text)
        model.gate.set()
        _, page = await get(session, "/metrics")
    [record] = [record for record in caplog.records if " 499 " in record.getMessage()]
    assert (record.levelname, record.fields["request_id"]) == ("WARNING", "r1")
    assert "without a full response" in record.getMessage()
    assert 'testnuc_http_requests_total{route="/v1/classify",status="499"} 1.0' in page


async def teach(nuc):
    """Label texts, and judge some, so that what was learned labels."""
    await nuc.classify_many(learning.texts_of(600))
    review = await nuc.review(50)
    learning.judge(review)
    assert (await nuc.learn(review)).decides == "head"


@pytest.mark.slow
@pytest.mark.parametrize("failure", ["key", "down", "pause"])
async def test_what_was_learned_labels_while_the_provider_fails(failure):
    model, broken = learning.Says(), False
    answer = model.say

    def of(text):
        if broken and failure == "key":
            raise revoked()
        if broken and failure == "pause":
            raise RateLimitedError("slow down", retry_after=110)
        if broken:
            raise down()
        return answer(text)

    model.say = of
    nuc = learning.client(model, policy="majority", k=0, limits=SOON)
    async with served(nuc, request_timeout=20) as (service, session):
        await teach(nuc)
        broken = True
        fresh = learning.texts_of(30, start=6000)
        bodies = [{"text": text} for text in fresh[: 1 if failure == "down" else 25]]
        if failure == "pause":
            waiting = asyncio.create_task(post(session, {"text": fresh[-1]}))
            await until(lambda: service.status == "paused")
            # all requests are answered, so that no load balancer may take the service out
            assert await get(session, "/readyz") == (200, '{"status":"paused"}')
            assert "testnuc_ready 1.0" in (await get(session, "/metrics"))[1]
            virtual.skip(19)
            assert (await waiting)[0] == 200
        for body in [*bodies, {"texts": fresh}, {"texts": fresh, "stream": True}]:
            asked = model.asked.count(fresh[0])
            task = asyncio.create_task(session.post("/v1/classify", json=body))
            if failure == "down":
                # its failure is known once it was sent again, by an earlier request perhaps
                await until(lambda before=asked: model.asked.count(fresh[0]) > before + 3)
                virtual.skip(19)
            async with await task as response:
                assert response.status == 200
                rows = [json.loads(line) async for line in response.content]
            for row in rows[0].get("results", rows):
                kinds = {"key": "provider_authentication", "pause": "provider_rate_limited"}
                kind = kinds.get(failure, "provider")
                assert (row["label"], row["source"]) == (learning.gold(row["text"]), "head")
                assert row["error"]["type"] == kind


@pytest.mark.slow
async def test_no_request_waits_for_a_long_pause_where_what_was_learned_labels():
    model, paused = learning.Says(), False
    answer = model.say

    def of(text):
        if paused:
            raise RateLimitedError("slow down", retry_after=110)
        return answer(text)

    model.say = of
    nuc = learning.client(model, policy="majority", k=0)
    # longer than the pause
    async with served(nuc, request_timeout=300) as (service, session):
        await teach(nuc)
        paused = True
        first, other = learning.texts_of(2, start=6000)
        waiting = asyncio.create_task(post(session, {"text": first}))
        await until(lambda: service.status == "paused")
        async with asyncio.timeout(90):
            status, row, *_ = await post(session, {"text": other})
        assert (status, row["source"]) == (200, "head")
        assert row["error"]["type"] == "provider_rate_limited"
        waiting.cancel()


async def refused_at_once(session, llm, body):
    """Assert that a request is answered without a call."""
    before = llm.requests
    status, answer, headers = await post(session, body)
    assert (status, answer["error"]["type"]) == (503, "provider_down")
    assert int(headers["Retry-After"]) >= 1
    assert llm.requests == before


@pytest.mark.parametrize("fault", ["status", "hangs"])
async def test_a_provider_that_is_down_is_asked_by_one_call_at_a_time(
    client_of, caplog, monkeypatch, fault
):
    monkeypatch.setattr(retries, "_LEAST_DOWN", 0.05)
    monkeypatch.setattr(retries, "_UNTIL_PROBE", 1e9)
    caplog.set_level(logging.INFO, "testnuc")
    kind, down = {"status": "500", "hangs": "stalled"}[fault], False
    faults = Faults(schedule=lambda _: kind if down else None, stall=60.0)
    policy = RetryPolicy(attempts=50, max_wait=0.02, timeout=0.2, deadline=100)
    async with LoopbackLLM(confident, faults=faults) as llm:
        nuc = TestNUC(**client_of(llm, k=0, limits=Limits(concurrency=8, retry=policy)))
        async with served(nuc) as (_, session):
            assert (await post(session, {"text": "refund please"}))[0] == 200
            down = True
            found = await asyncio.gather(*(post(session, {"text": t}) for t in messages(12)[1:]))
            assert {status for status, *_ in found} <= {502, 503, 504}
            assert await get(session, "/readyz") == (200, '{"status":"failing"}')
            assert "testnuc_failing 1.0" in (await get(session, "/metrics"))[1]
            for body in ({"text": "refund please, a new one"}, {"texts": messages(40)[20:]}):
                await refused_at_once(session, llm, body)
            # stored answers are given
            assert (await post(session, {"text": "refund please"}))[0] == 200
            monkeypatch.setattr(retries, "_UNTIL_PROBE", 0.0)
            # a probe that fails is not sent again
            before = llm.requests
            assert (await post(session, {"text": "refund please, a probe"}))[0] in {502, 504}
            assert llm.requests == before + 1
            down = False
            assert (await post(session, {"text": "refund please, another probe"}))[0] == 200
            assert (await post(session, {"texts": messages(40)[20:]}))[0] == 200
            assert await get(session, "/readyz") == (200, '{"status":"ready"}')
    records = [r for r in caplog.records if "every LLM call fails" in r.getMessage()]
    assert records
    assert {r.fields["type"] for r in records} <= {"provider", "provider_timeout"}
    assert all(r.fields["request_id"] in r.getMessage() for r in records)
    # those that found it down are not among them, nor calls that were not sent
    assert {r.fields["texts"] for r in records} == {1}
    assert len(records) <= 1 + sum(status != 503 for status, *_ in found)
    assert "permanently: ProviderDownError" not in caplog.text


async def test_who_waits_when_a_provider_is_found_down_is_answered_at_once(monkeypatch, caplog):
    monkeypatch.setattr(retries, "_LEAST_DOWN", 0.0)

    class Down(Held):
        async def answer(self, request):
            if "down" not in request.texts[0]:
                return await super().answer(request)
            self.asked += request.texts
            raise down()

    model = Down()
    slow = Limits(concurrency=8, retry=RetryPolicy(initial_wait=1e6, max_wait=1e6, deadline=1e7))
    async with asyncio.timeout(60), served(client(model, k=0, limits=slow)) as (_, session):
        hangs = asyncio.create_task(post(session, {"text": "refund please"}))
        await model.asked_for(1)
        texts = [f"down {at}" for at in range(5)]
        found = await asyncio.gather(hangs, *(post(session, {"text": t}) for t in texts))
        for status, answer, headers in found:
            assert (status, answer["error"]["type"]) in {(502, "provider"), (503, "provider_down")}
            assert status == 502 or 1 <= int(headers["Retry-After"]) <= 5
        assert found[0][0] == 503
        # the call that was in flight goes on, and its answer ends the outage
        model.gate.set()
        await until(lambda: "the provider answers again" in caplog.text)
        assert (await post(session, {"text": "refund please"}))[0] == 200
    assert model.asked.count("refund please") == 1
    assert caplog.text.count("the provider is down; ") == 1


async def test_a_call_that_tries_a_provider_does_not_hold_the_only_worker(client_of, monkeypatch):
    monkeypatch.setattr(retries, "_LEAST_DOWN", 0.0)
    monkeypatch.setattr(retries, "_UNTIL_PROBE", 0.0)
    kind = [None]
    policy = RetryPolicy(attempts=50, max_wait=0.01, timeout=1e6, deadline=1e7)
    async with LoopbackLLM(confident, faults=Faults(schedule=lambda _: kind[0], stall=1e6)) as llm:
        limits = Limits(concurrency=1, retry=policy)
        async with (
            asyncio.timeout(60),
            served(TestNUC(**client_of(llm, k=0, limits=limits))) as (
                _,
                session,
            ),
        ):
            assert (await post(session, {"text": "refund please"}))[0] == 200
            kind[0] = "500"
            assert (await post(session, {"text": "refund please, down"}))[0] in {502, 503}
            kind[0] = "stalled"
            status, answer, _ = await post(session, {"text": "refund please, a probe"})
            assert (status, answer["error"]["type"]) == (504, "provider_timeout")
            kind[0] = None
            # on a busy machine an answer may take more than twice as long as the first one
            while (await post(session, {"text": "refund please, another probe"}))[0] != 200:
                pass


def test_calls_from_before_an_outage_that_time_out_late_delay_no_probe():
    account = BudgetAccount()
    account.patience = 5.0
    outage, provider = retries.Outage(account, 64), Held()
    task = Task("Label the text.", ("a", "b"))
    calls = [Call(Request(task, "text", ("text",)), (1, 1), None, provider) for _ in range(40)]
    late, new = calls[:30], calls[30:]
    probes, waits = [], []
    for second, call in enumerate(late, 60):
        call.sent_at = second - 60.0
        assert outage.failed(call, down(), second) == (second == 64)
        if outage.is_down and len(probes) < len(new):
            try:
                outage.refuse(new[len(probes)], second + 0.5)
                probes.append(second)
            except ProviderDownError as error:
                waits.append(error.retry_after)
    assert 0 < min(waits) <= max(waits) <= 5
    assert probes == [69, 74, 79, 84, 89]


async def test_a_request_waits_for_a_provider_that_is_down_for_some_seconds(monkeypatch):
    monkeypatch.setattr(retries, "_LEAST_DOWN", 0.0)
    monkeypatch.setattr(retries, "_UNTIL_PROBE", 0.0)
    model = Failing("down", down)
    async with served(client(model, k=0, limits=SOON)) as (_, session):
        await post(session, {"text": "down"})
        model.gate.clear()
        waiting = asyncio.create_task(post(session, {"text": "refund please"}))
        await until(lambda: "refund please" in model.asked)
        virtual.skip(11)
        status, answer, _ = await waiting
        assert (status, answer["error"]["type"]) == (504, "provider_timeout")


async def test_the_age_of_a_call_and_a_pause_are_seen_before_anything_fails(monkeypatch):
    now, model = [0.0], Failing("busy", partial(RateLimitedError, "slow down", retry_after=20))
    model.gate.clear()
    nuc = client(model, k=0)
    async with served(nuc) as (_, session):
        transport = parts_of(nuc).transport
        transport._clock = transport.admission._clock = lambda: now[0]
        assert "testnuc_oldest_call_seconds 0.0" in (await get(session, "/metrics"))[1]
        hangs = asyncio.create_task(post(session, {"text": "refund please"}))
        await model.asked_for(1)
        now[0] = 40.0
        busy = asyncio.create_task(post(session, {"text": "busy"}))
        await until(lambda: transport.admission.paused)
        lines = (await get(session, "/metrics"))[1].splitlines()
        assert "testnuc_oldest_call_seconds 40.0" in lines
        [paused] = [line for line in lines if line.startswith("testnuc_paused_seconds ")]
        assert 20 <= float(paused.split()[1]) < 23
        assert 20 <= json.loads((await get(session, "/v1/info"))[1])["paused_seconds"] < 23
        hangs.cancel()
        busy.cancel()


async def test_while_a_probe_waits_others_are_refused_and_a_run_of_the_library_is_not(monkeypatch):
    monkeypatch.setattr(retries, "_LEAST_DOWN", 0.0)
    monkeypatch.setattr(retries, "_UNTIL_PROBE", 0.0)

    class Down(Held):
        async def answer(self, request):
            self.asked += request.texts
            if len(self.asked) <= 20:
                raise down()
            await self.gate.wait()
            return Reply(tuple(Answer(*confident(t)) for t in request.texts), TokenUsage(10, 5))

    model = Down()
    async with served(client(model, k=0, limits=SOON)) as (_, session):
        for text in messages(16):
            await post(session, {"text": text})
        # the first call failed five times, the later ones were probes
        assert len(model.asked) == 20
        probe = asyncio.create_task(post(session, {"text": "refund please, a probe"}))
        await model.asked_for(21)
        monkeypatch.setattr(retries, "_UNTIL_PROBE", 1e9)
        status, answer, _ = await post(session, {"text": "refund please, another one"})
        assert (status, answer["error"]["type"]) == (503, "provider_down")
        # later another one is sent, though the first one hangs
        monkeypatch.setattr(retries, "_UNTIL_PROBE", 0.0)
        beside = asyncio.create_task(post(session, {"text": "refund please, a third one"}))
        await model.asked_for(22)
        model.gate.set()
        assert [(await probe)[0], (await beside)[0]] == [200, 200]
    model = Down()
    model.gate.set()
    async with client(model, k=0, limits=SOON) as alone:
        assert (await alone.classify("refund please")).label == "refund"
    assert len(model.asked) == 21


async def test_nothing_is_sent_again_for_a_client_that_left(tmp_path):
    model = Failing("down", down)
    model.gate.clear()

    async def answer(request):
        model.asked += request.texts
        if "down" in request.texts[0]:
            raise down()
        await model.gate.wait()
        return Reply(tuple(Answer(*confident(t)) for t in request.texts), TokenUsage(10, 5))

    model.answer = answer
    nuc = client(model, k=0, limits=SOON, store=tmp_path / "labels.db")
    async with served(nuc) as (service, session):
        gone = [asyncio.create_task(post(session, {"text": t})) for t in ("down", "refund please")]
        stays = asyncio.create_task(post(session, {"text": "down for two"}))
        both = asyncio.create_task(post(session, {"text": "down for two"}))
        await has_failed(model, "down")
        await has_failed(model, "down for two")
        await until(lambda: service.queue.pending == 4)
        for task in (*gone, both):
            task.cancel()
        await until(lambda: service.queue.pending == 1)
        sent = model.asked.count("down")
        waited = model.asked.count("down for two")
        await until(lambda: model.asked.count("down for two") > waited + 10)
        assert model.asked.count("down") <= sent + 1
        model.gate.set()
        await until(lambda: parts_of(nuc).transport.meter.calls == 1)
        assert (await post(session, {"text": "refund please"}))[0] == 200
        assert model.asked.count("refund please") == 1
        stays.cancel()


async def test_counters_stay_where_a_response_says_nothing_of_its_tokens():
    class Silent(Held):
        async def answer(self, request):
            reply = await super().answer(request)
            return (
                replace(reply, usage=None) if "refund please, no usage" in request.texts else reply
            )

    model = Silent()
    model.gate.set()
    async with served(client(model, k=0)) as (_, session):
        for text in ("refund please", "refund please, no usage"):
            assert (await post(session, {"text": text}))[0] == 200
        _, page = await get(session, "/metrics")
    assert 'testnuc_llm_tokens_total{direction="input"} 10.0' in page
    assert 'testnuc_llm_tokens_total{direction="output"} 5.0' in page
    assert "testnuc_llm_calls_unmeasured_total 1.0" in page


async def test_what_is_left_of_a_budget_is_said():
    model = Held()
    model.gate.set()
    limits = Limits(budget=Budget(calls=2, tokens=10_000))
    async with served(client(model, k=0, limits=limits)) as (_, session):
        assert (await post(session, {"text": "refund please"}))[0] == 200
        _, info = await get(session, "/v1/info")
        _, page = await get(session, "/metrics")
    assert json.loads(info)["budget_left"] == {"calls": 1, "tokens": 9_985}
    assert 'testnuc_budget_left{unit="calls"} 1.0' in page
    assert 'testnuc_budget_left{unit="tokens"} 9985.0' in page


async def test_a_request_does_not_wait_for_what_others_have_reserved_of_a_budget():
    model = Held()
    nuc = client(model, k=0, limits=Limits(budget=Budget(calls=2)))
    async with served(nuc) as (_, session):
        waiting = [asyncio.create_task(post(session, {"text": t})) for t in messages(2)]
        await model.asked_for(2)
        late = asyncio.create_task(post(session, {"texts": messages(30)[2:]}))
        await until(lambda: parts_of(nuc).transport.account._waiting)
        virtual.skip(6)
        status, answer, headers = await late
        assert (status, answer["error"]["type"]) == (503, "budget_reserved")
        assert headers["Retry-After"] == "5"
        # at once while nothing has changed
        assert (await post(session, {"text": "refund please"}))[0] == 503
        model.gate.set()
        assert [(await task)[0] for task in waiting] == [200, 200]
        status, answer, headers = await post(session, {"text": "refund please"})
        assert (status, answer["error"]["type"]) == (503, "budget_exceeded")
        assert "Retry-After" not in headers
        _, page = await get(session, "/metrics")
    assert 'testnuc_failed_texts_total{type="budget_reserved"} 29.0' in page


async def test_a_store_that_another_process_locks_is_seen_before_anything_fails(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(database, "_SILENT", 0.01)
    caplog.set_level(logging.INFO, logger="testnuc")
    path = tmp_path / "labels.db"
    async with served(client(Held(is_open=True), store=path)) as (_, session):
        assert "testnuc_oldest_write_seconds 0.0" in (await get(session, "/metrics"))[1]
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(post(session, {"text": "refund please"}))
        await until(lambda: "writes wait; lsof shows which" in caplog.text)
        page = (await get(session, "/metrics"))[1]
        assert float(re.search(r"^testnuc_oldest_write_seconds (.*)$", page, re.MULTILINE)[1]) > 0
        other.execute("ROLLBACK")
        assert (await waiting)[0] == 200
        assert f"the store {path} is not locked any more" in caplog.text
        other.execute("BEGIN IMMEDIATE")
        # stored answers need no write, which would wait for a minute
        async with asyncio.timeout(45):
            for body in ({"text": "refund please"}, {"texts": ["refund please"]}):
                assert (await post(session, body))[0] == 200
        monkeypatch.setattr(database, "_BUSY_TIMEOUT", 0.02)
        status, answer, headers = await post(session, {"text": "another refund"})
        assert (status, answer["error"]["type"], headers["Retry-After"]) == (503, "store", "5")
        other.execute("ROLLBACK")
        other.close()
        assert (await post(session, {"text": "another refund"}))[0] == 200


async def test_labels_their_trust_and_the_time_of_calls_are_measured():
    now = [0.0]

    class Slow(Held):
        async def answer(self, request):
            now[0] += 40
            if not self.asked:
                self.asked += request.texts
                raise down()
            return await super().answer(request)

    model = Slow()
    model.gate.set()
    one = Limits(concurrency=1, retry=SOON.retry)
    nuc = client(model, k=3, limits=one)
    async with served(nuc) as (_, session):
        transport = parts_of(nuc).transport
        transport._clock = transport.admission._clock = lambda: now[0]
        status, answer, _ = await post(session, {"texts": messages(10)})
        _, page = await get(session, "/metrics")
    lines, given = page.splitlines(), Counter(row["label"] for row in answer["results"])
    assert (status, given.total()) == (200, 10)
    for label, texts in given.items():
        assert f'testnuc_label_texts_total{{label="{label}"}} {texts}.0' in lines
    assert 'testnuc_trust_bucket{le="1.0",source="vote"} 10.0' in lines
    # ten answers, and the attempt that failed
    assert 'testnuc_llm_call_seconds_bucket{le="30.0",model="held/test"} 0.0' in lines
    assert 'testnuc_llm_call_seconds_bucket{le="60.0",model="held/test"} 11.0' in lines


@pytest.mark.parametrize("lines", [False, True])
async def test_the_status_says_that_each_text_of_a_list_failed(lines):
    model = Failing("revoked", revoked)
    async with served(client(model, k=0)) as (_, session):
        assert (await post(session, {"text": "refund please"}))[0] == 200
        body = {"texts": ["revoked 1", "", "revoked 2"], "stream": lines}
        status, answer, _ = await post(session, body)
        assert (status, answer["error"]["type"]) == (502, "provider_authentication")
        # one that has a label makes it an answer with errors
        async with session.post(
            "/v1/classify", json={**body, "texts": ["revoked 3", "refund please"]}
        ) as response:
            assert response.status == 200
            # all lines, so that all texts are counted
            await response.read()
        _, page = await get(session, "/metrics")
    assert 'testnuc_failed_texts_total{type="provider_authentication"} 3.0' in page
    assert 'testnuc_failed_texts_total{type="invalid_input"} 1.0' in page


@pytest.mark.parametrize("lines", [False, True])
async def test_a_request_does_not_wait_for_a_pause_that_is_longer_than_its_time(lines):
    model = Failing("busy", partial(RateLimitedError, "slow down", retry_after=90))
    async with served(client(model, k=0), request_timeout=20) as (service, session):
        assert (await post(session, {"text": "refund please"}))[0] == 200
        waiting = asyncio.create_task(post(session, {"text": "busy 1"}))
        await until(lambda: service.status == "paused")
        bodies = [{"text": "busy 2"}, {"texts": ["busy 3"], "stream": lines}]
        for body in bodies:
            status, answer, headers = await post(session, body)
            assert (status, answer["error"]["type"]) == (503, "provider_rate_limited")
            assert 60 < int(headers["Retry-After"]) <= 120
        many = {"texts": ["busy 4", "refund please"], "stream": lines}
        async with session.post("/v1/classify", json=many) as response:
            rows = [json.loads(line) async for line in response.content]
        rows = sorted(rows[0].get("results", rows), key=lambda row: row["index"])
        assert rows[0]["error"]["type"] == "provider_rate_limited"
        assert rows[1]["label"] == "refund"
        # none of them was sent, and none waited until the first one ended
        assert (model.asked.count("busy 1"), len(model.asked), waiting.done()) == (1, 2, False)
        waiting.cancel()
