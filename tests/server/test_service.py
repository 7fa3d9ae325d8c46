"""The HTTP service, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from base64 import b64encode
from typing import get_args

import orjson
import pytest

from testnuc import Budget, Limits, RetryPolicy, TestNUC
from testnuc.errors import ConfigurationError, InvalidInputError, RateLimitedError
from testnuc.server import ServerSettings
from testnuc.server.errors import request_error
from testnuc.server.service import Status
from testnuc.testing import Faults, LoopbackLLM
from tests.conftest import LABELS, confident, gold, messages
from tests.server.serving import JSON, Held, client, running, served, until

pytest.importorskip("prometheus_client")
pytestmark = pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")

TOKEN = "0123456789abcdef0123456789abcdef"


async def post(session, body, path="/v1/classify", **headers):
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    async with session.post(path, data=data, headers={**JSON, **headers}) as response:
        return response.status, await response.json(), response.headers


async def get(session, path, **headers):
    async with session.get(path, headers=headers) as response:
        return response.status, await response.text()


async def test_one_text_many_texts_and_lines(client_of):
    texts = messages(12)
    async with LoopbackLLM(confident) as llm:
        nuc = TestNUC(**client_of(llm, k=3))
        async with served(nuc) as (_, session):
            status, one, _ = await post(session, {"text": texts[0]})
            assert (status, one["label"], one["own"]["label"]) == (200, "refund", "refund")
            assert "neighbors" not in one
            status, many, _ = await post(session, {"texts": texts, "explain": True})
            assert status == 200
            assert [r["index"] for r in many["results"]] == list(range(12))
            assert [r["own"]["label"] for r in many["results"]] == [gold(t) for t in texts]
            assert all(len(r["neighbors"]) == 3 for r in many["results"])
            assert sum(many["results"][0]["votes"].values()) > 1
            async with session.post(
                "/v1/classify", json={"texts": texts}, headers={"Accept": "application/x-ndjson"}
            ) as response:
                assert response.content_type == "application/x-ndjson"
                lines = [json.loads(line) async for line in response.content]
            # alone or with others, whole or in lines: what is the same is answered the same
            for line in lines:
                there = many["results"][line["index"]]
                assert {name: there[name] for name in line} == line
            assert sorted(line["index"] for line in lines) == list(range(12))
        assert llm.calls == 12


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "not JSON"),
        (b'{"text": "a"', 400, "not JSON"),
        (b"\xff\xfe", 400, "not JSON"),
        (b"[" * 40_000, 400, "not JSON"),
        (b'{"text": "\\ud800"}', 400, "not JSON"),
        (["a"], 422, "the body is a list"),
        ({}, 422, 'either "text" or "texts"'),
        ({"text": "a", "texts": ["a"]}, 422, 'either "text" or "texts"'),
        ({"txt": "a"}, 422, "unknown field 'txt'; did you mean 'text'?"),
        ({"text": ""}, 422, "text is empty"),
        ({"text": 5}, 422, "text is a number; give a string"),
        ({"text": "a", "ids": [1]}, 422, '"ids" belongs to "texts"'),
        ({"texts": ["a"], "id": 1}, 422, '"id" belongs to "text"'),
        ({"texts": ["a"], "ids": [1, 2]}, 422, "an id for each of the 1 texts"),
        ({"texts": ["a"], "ids": [True]}, 422, "an id is true or false; give strings"),
        ({"text": "a", "id": "x" * 201}, 422, "of at most 200 characters"),
        (b'{"text": "a", "id": %s%s}' % (b"[" * 1000, b"]" * 1000), 422, "an id is a list"),
        ({"text": "a", "stream": True}, 422, '"stream" requires "texts"'),
        ({"text": "a", "explain": "yes"}, 422, "explain is a string; give true or false"),
        ({"text": "x" * 2_001}, 422, "2,001 characters; at most 2,000"),
        ({"texts": "a"}, 422, "texts is a string; give a list"),
        ({"texts": []}, 422, "a list of 0; give a list of 1 to 20 strings"),
        ({"texts": ["a"] * 21}, 422, "a list of 21; give a list of 1 to 20 strings"),
        ({"text": "x" * 60_000}, 413, "more than 50,000 bytes"),
    ],
)
async def test_bodies_that_are_refused_cost_nothing(body, status, says):
    held = Held()
    async with served(client(held), max_body=50_000, max_texts=20, max_text_chars=2_000) as (
        _,
        session,
    ):
        got, answer, _ = await post(session, body)
        assert (got, answer["error"]["status"]) == (status, status)
        assert says in answer["error"]["message"]
        held.gate.set()
        assert (await post(session, {"text": "refund please"}))[0] == 200
    assert held.asked == ["refund please"]


async def test_what_is_no_plain_json_is_refused():
    held = Held(is_open=True)
    body = orjson.dumps({"text": "refund please"})
    async with served(client(held), max_body=50_000) as (_, session):
        # a form, and what a page in a browser may send without asking for leave
        for kind in ("application/x-www-form-urlencoded", "text/plain"):
            status, answer, _ = await post(session, body, **{"Content-Type": kind})
            assert status == 415
            assert "Content-Type: application/json" in answer["error"]["message"]
        packed = gzip.compress(b" " * 10_000_000)
        status, answer, _ = await post(session, packed, **{"Content-Encoding": "gzip"})
        assert (status, "compressed" in answer["error"]["message"]) == (415, True)

        async def chunks():
            for _ in range(100):
                yield b"x" * 1_000

        async with session.post("/v1/classify", data=chunks(), headers=JSON) as response:
            assert response.status == 413
        for method, path, expected in (("GET", "/v1/classify", 405), ("POST", "/nowhere", 404)):
            async with session.request(method, path) as response:
                assert response.status == expected
                assert "/v1/classify" in (await response.json())["error"]["message"]
    assert held.asked == []


async def test_a_full_queue_says_when_to_come_back():
    held = Held()
    async with served(client(held), max_pending=3, max_texts=3) as (service, session):
        waiting = [asyncio.create_task(post(session, {"text": t})) for t in messages(3)]
        await until(lambda: service.queue.pending == 3)
        status, answer, headers = await post(session, {"text": "one too many, refund please"})
        assert (status, answer["error"]["type"]) == (429, "queue_full")
        assert 1 <= int(headers["Retry-After"]) <= 60
        # what is no labeling is answered all the same
        assert (await get(session, "/readyz"))[0] == 200
        held.gate.set()
        assert [status for status, _, _ in await asyncio.gather(*waiting)] == [200] * 3
        assert service.queue.pending == 0
        assert (await post(session, {"text": "refund please, now there is room"}))[0] == 200
    assert "one too many, refund please" not in held.asked


async def test_the_token():
    held = Held(is_open=True)
    page = "<!doctype html><title>labels</title>"
    async with served(client(held), token=TOKEN, page=lambda *_: page) as (_, session):
        for header, says in (
            (None, "is missing"), ("Bearer wrong", "wrong token"),
            (f"Basic {TOKEN}", "wrong token"), ("Bearer \udcff", "wrong token"),
            (f"Bearer {TOKEN}x", "wrong token"),
        ):  # fmt: skip
            given = {} if header is None else {"Authorization": header}
            status, answer, headers = await post(session, {"text": "refund please"}, **given)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer"), header
            assert says in answer["error"]["message"]
            assert TOKEN not in str(answer)
            assert (await get(session, "/metrics", **given))[0] == 401
            for path in ("/results", "/v1/labels", "/v1/info"):
                assert (await get(session, path, **given))[0] == 401
        for path in ("/healthz", "/readyz", "/openapi.json", "/", "/docs"):
            assert (await get(session, path))[0] == 200
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert (await post(session, {"text": "refund please"}, **right))[0] == 200
        assert (await get(session, "/metrics", **right))[0] == 200
        # a browser sends it as the password its user typed
        typed = {"Authorization": f"Basic {b64encode(f'me:{TOKEN}'.encode()).decode()}"}
        assert await get(session, "/results", **typed) == (200, page)
        assert (await post(session, {"text": "refund please"}, **typed))[0] == 401
    assert held.asked == ["refund please"]


async def test_without_a_token_only_this_machine_is_answered():
    held = Held()
    async with served(client(held)) as (_, session):
        # a page from elsewhere whose name was made to lead here
        status, answer, _ = await post(session, {"text": "refund please"}, Host="evil.example")
        assert (status, answer["error"]["type"]) == (421, "wrong_host")
        assert (await get(session, "/v1/labels", Host="evil.example"))[0] == 421
        assert (await get(session, "/v1/labels", Host="localhost:80"))[0] == 200
        assert (await get(session, "/v1/labels", Host="[::1]:80"))[0] == 200
    assert held.asked == []


@pytest.mark.parametrize(
    ("settings", "kind", "says"),
    [
        ({"host": "0.0.0.0"}, ConfigurationError, "TESTNUC_TOKEN"),
        ({"host": "::"}, ConfigurationError, "TESTNUC_TOKEN"),
        ({"host": "example.org"}, ConfigurationError, "TESTNUC_TOKEN"),
        ({"token": "short"}, ConfigurationError, "fewer than 16"),
        ({"token": f"a {'x' * 16}\n\nb y\n"}, ConfigurationError, "in line 3 has fewer"),
        ({"token": f"{'x' * 16}\na b {'y' * 16}"}, ConfigurationError, "line 2 is not"),
        ({"token": f"{'x' * 16}\na {'é' * 16}"}, ConfigurationError, "in line 2 contains"),
        ({"token": "600/minute"}, ConfigurationError, "fewer than 16"),
        ({"token": ""}, ConfigurationError, "there is no token"),
        ({"token": "\n \n"}, ConfigurationError, "there is no token"),
        ({"token": f"desk {'a' * 20} 0/minute"}, ConfigurationError, "NAME TOKEN 600/minute"),
        ({"token": f"desk {'a' * 20} 600/hour"}, ConfigurationError, "NAME TOKEN 600/minute"),
        ({"cors_origins": ("*",)}, ConfigurationError, "every page that is open in a browser"),
        ({"cors_origins": ("desk.example",)}, InvalidInputError, "cors_origin is 'desk.example'"),
        ({"token": "with a space in it, long"}, ConfigurationError, "from 1 on"),
        ({"port": 70_000}, InvalidInputError, "at most 65535"),
        ({"max_texts": 0}, InvalidInputError, "max_texts is 0"),
        ({"max_pending": 10}, InvalidInputError, "only max_pending=10 texts"),
        ({"idle_timeout": float("nan")}, InvalidInputError, "idle_timeout is nan"),
    ],
)
def test_settings_that_are_refused(settings, kind, says):
    with pytest.raises(kind, match=says) as caught:
        ServerSettings(**settings)
    assert not any(word in str(caught.value) for word in ("short", "a" * 20))
    assert TOKEN not in repr(ServerSettings(host="0.0.0.0", token=TOKEN, cors_origins=("*",)))


async def test_an_address_in_use_is_an_error(client_of):
    async with LoopbackLLM(confident) as llm:
        port = int(llm.base_url.removesuffix("/v1").rpartition(":")[2])
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}.*--port"):
            async with served(TestNUC(**client_of(llm)), port=port):
                pass


async def test_failures_of_the_provider_are_not_the_callers(client_of):
    provider = LoopbackLLM(confident, api_key="another")
    async with running(client_of, answer=provider, k=0) as (llm, _, session):
        for body in ({"text": "refund please"}, {"texts": ["refund please", "x"]},
                     {"texts": ["refund please"], "stream": True}):  # fmt: skip
            status, answer, _ = await post(session, body)
            assert (status, answer["error"]["type"]) == (502, "provider_authentication")
            # what the service calls, and with which settings, is for its log
            assert "secret-key-123" not in str(answer)
            assert llm.base_url not in str(answer)
        _, page = await get(session, "/metrics")
        assert 'testnuc_texts_total{outcome="failed"} 4.0' in page
        assert 'testnuc_failed_texts_total{type="provider_authentication"} 4.0' in page


async def test_a_provider_that_is_not_reached_is_not_named_to_callers(client_of, caplog):
    async with LoopbackLLM(confident) as llm:
        arguments = client_of(llm, k=0, limits=Limits(retry=RetryPolicy(attempts=1)))
    async with served(TestNUC(**arguments)) as (_, session):
        status, answer, _ = await post(session, {"text": "refund please"})
    assert (status, answer["error"]["type"]) == (502, "provider")
    assert "127.0.0.1" not in str(answer)
    assert "trust_env" not in str(answer)
    assert "127.0.0.1" in caplog.text


async def test_a_budget_and_a_limit_say_when_or_whether_to_come_back(client_of):
    held = Held(is_open=True)
    async with served(client(held, k=0, limits=Limits(budget=Budget(calls=1)))) as (_, session):
        assert (await post(session, {"text": "refund please"}))[0] == 200
        status, answer, headers = await post(session, {"text": "where is my parcel"})
        assert (status, answer["error"]["type"]) == (503, "budget_exceeded")
        assert "Retry-After" not in headers
        # stored answers are still returned
        assert (await post(session, {"text": "refund please"}))[0] == 200
    refusing = LoopbackLLM(confident, faults=Faults(1.0, ("429-retry-after",)))
    limits = Limits(retry=RetryPolicy(attempts=1))
    async with running(client_of, answer=refusing, k=0, limits=limits) as (_, _, session):
        status, answer, headers = await post(session, {"text": "refund please"})
        assert (status, answer["error"]["type"]) == (503, "provider_rate_limited")
        assert int(headers["Retry-After"]) >= 1


async def test_readiness_and_callers_are_told_of_a_long_pause_that_ends(client_of):
    faults, ahead = Faults(schedule=["429-retry-after"] * 2, retry_after=999_999), 0.0
    async with LoopbackLLM(confident, faults=faults) as llm:
        nuc = TestNUC(**client_of(llm, k=0))
        nuc._parts.transport.admission._clock = lambda: time.monotonic() + ahead
        async with served(nuc) as (_, session):
            status, _, headers = await post(session, {"text": "refund please"})
            assert status == 503
            assert 1 <= int(headers["Retry-After"]) <= 120
            assert await get(session, "/readyz") == (503, '{"status":"paused"}')
            assert '"status":"paused"' in (await get(session, "/v1/info"))[1]
            assert "testnuc_ready 0.0" in (await get(session, "/metrics"))[1]
            # at the end of the longest pause a request finds out
            ahead = 140
            assert await get(session, "/readyz") == (200, '{"status":"ready"}')
            assert (await post(session, {"text": "refund please"}))[0] == 200
            assert await get(session, "/readyz") == (200, '{"status":"ready"}')


@pytest.mark.parametrize(
    ("asked", "header"),
    [(1e9, "120"), (1e300, "120"), (0, "1"), (2.5, "3")]
    + [(bad, None) for bad in (None, -1, float("nan"), float("inf"))],
)
def test_what_a_provider_asks_for_is_passed_on_within_bounds(asked, header):
    refused = request_error(RateLimitedError("slow", retry_after=asked))
    assert refused.headers.get("Retry-After") == header


async def test_a_text_whose_call_failed_is_labeled_by_its_neighbors_and_says_so(client_of, caplog):
    texts = messages(24)
    broken = texts[6]

    def answer(text):
        return None if text == broken else confident(text)

    given = {"answer": answer, "k": 5, "limits": Limits(concurrency=1)}
    async with running(client_of, **given) as (_, _, session):
        status, many, _ = await post(session, {"texts": texts})
        _, page = await get(session, "/metrics")
    assert status == 200
    failed = many["results"][6]
    assert failed["own"] is None
    assert failed["error"]["type"] == "provider_bad_request"
    assert failed["label"] == gold(broken)
    assert ": 1 text failed: provider_bad_request" in caplog.text
    assert 'testnuc_failed_texts_total{type="provider_bad_request"} 1.0' in page
    assert 'testnuc_labels_total{source="vote"} 24.0' in page


async def test_a_fault_of_ours_is_logged_and_not_shown(caplog):
    class Broken(Held):
        async def answer(self, request):
            raise RuntimeError("the secret path /etc/passwd")

    async with served(client(Broken(), k=0)) as (_, session):
        status, answer, _ = await post(session, {"text": "refund please"})
        assert status >= 500
        assert "passwd" not in str(answer) or answer["error"]["type"] != "unexpected"

    def page(*_):
        raise RuntimeError("the secret path /etc/passwd")

    async with served(client(Held()), page=page) as (_, session):
        status, text = await get(session, "/results")
    assert status == 500
    assert "passwd" not in text
    assert "the secret path" in caplog.text


async def test_metrics_and_the_page(client_of):
    seen = []

    def page(_, results):
        seen.extend(results)
        return "<!doctype html><p>here"

    async with LoopbackLLM(confident) as llm:
        nuc = TestNUC(**client_of(llm, k=3))
        async with served(nuc, page=page) as (_, session):
            await post(session, {"texts": messages(10)})
            await post(session, {"text": messages(10)[0]})
            await post(session, b"nothing")
            await get(session, "/no/such/route/17")
            status, text = await get(session, "/metrics")
            async with session.get("/results") as response:
                assert response.content_type == "text/html"
                assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        calls = llm.calls
    assert status == 200
    for line in (
        'testnuc_http_requests_total{route="/v1/classify",status="200"} 2.0',
        'testnuc_http_requests_total{route="/v1/classify",status="400"} 1.0',
        'testnuc_http_requests_total{route="other",status="404"} 1.0',
        'testnuc_texts_total{outcome="labeled"} 11.0',
        f"testnuc_llm_calls_total {calls}.0",
        "testnuc_pool_texts 10.0",
        "testnuc_pending_texts 0.0",
        "testnuc_ready 1.0",
    ):
        assert line in text.splitlines()
    # a model without a price: unknown is not 0
    assert "testnuc_cost_usd" not in text
    assert 'testnuc_llm_tokens_total{direction="input"}' in text
    assert [r.index for r in seen] == [*range(10), 0]


@pytest.mark.slow
async def test_the_openapi_document_is_valid_and_true(client_of):
    validator = pytest.importorskip("openapi_spec_validator")
    from jsonschema import Draft202012Validator as Draft

    async with running(client_of, {"token": TOKEN}, k=3) as (_, service, session):
        document = json.loads((await get(session, "/openapi.json"))[1])
        key = {"Authorization": f"Bearer {TOKEN}"}
        bodies = [
            {"text": messages(1)[0]}, {"texts": messages(8), "explain": True},
            {"texts": messages(2), "stream": False}, {"text": ""}, {"texts": []}, {},
            {"texts": ["", messages(1)[0]], "ids": ["a", 7], "explain": True},
        ]  # fmt: skip
        answers = [await post(session, body, **key) for body in bodies]
        looked = {
            name: json.loads((await get(session, f"/v1/{name.lower()}", **key))[1])
            for name in ("Labels", "Info", "Sets")
        }
        states = [json.loads((await get(session, p))[1]) for p in ("/healthz", "/readyz")]
    validator.validate(document)
    assert set(document["paths"]) == service.routes() - {
        "/", "/docs", "/results", "/openapi.json",
    }  # fmt: skip
    assert document["components"]["schemas"]["LabelOrNull"]["enum"] == [
        *LABELS, None,
    ]  # fmt: skip

    def fits(name, value):
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        return Draft(schema).is_valid(value)

    for body, (status, answer, _) in zip(bodies, answers, strict=True):
        fitting = [name for name in ("OneText", "ManyTexts") if fits(name, body)]
        assert len(fitting) == (status == 200), body
        expected = {"OneText": "Result", "ManyTexts": "Results"}.get(*fitting) if (
            fitting
        ) else "Error"  # fmt: skip
        assert fits(expected, answer), answer
    assert fits("Erased", {"erased": 1})
    assert all(fits("Status", state) for state in states)
    for state in get_args(Status):
        assert fits("Status", {"status": state})
        assert fits("Info", looked["Info"] | {"status": state})
    assert all(fits(name, value) for name, value in looked.items())
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert document["paths"]["/v1/classify"]["post"]["security"] == [{"token": []}]


async def test_labels_in_a_tree_have_a_trust_for_each_level(client_of):
    labels = {"refund": ["late", "twice"], "card": None}
    given = {"answer": lambda _: ("refund > late", 0.9), "k": 3, "labels": labels}
    async with running(client_of, **given) as (_, _, session):
        _, answer, _ = await post(session, {"texts": messages(6)})
        document = json.loads((await get(session, "/openapi.json"))[1])
    for result in answer["results"]:
        assert result["label"] == "refund > late"
        assert result["path"] == ["refund", "late"]
        assert result["path_trusts"] == result["path_shares"] == [1.0, 1.0]
    properties = document["components"]["schemas"]["Result"]["properties"]
    assert {"path", "path_shares", "path_trusts"} <= set(properties)
