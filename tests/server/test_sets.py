"""Several label sets in one process, each with its own client: paths, pool, budget and metrics."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import pytest

from testnuc import Budget, Limits, TestNUC
from testnuc.errors import InvalidInputError
from testnuc.server import ServerSettings, Service, page_of
from testnuc.testing import Faults, HashEmbedder, LoopbackLLM
from tests.conftest import LABELS, confident, messages
from tests.doubles import Says
from tests.server.serving import Held, client, served, until
from tests.server.test_auditing import weeks_in
from tests.server.test_service import TOKEN, get

pytest.importorskip("prometheus_client")
pytestmark = pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")


def moods(**more):
    """Return a client that says that everybody is glad."""
    model = Says(lambda _: "glad", "moods")
    return TestNUC(["glad", "sad"], model, embedder=HashEmbedder(), policy="weighted", **more)


def tickets(**more):
    held = Held(is_open=True)
    return client(held, **more)


async def post(session, name, body, **headers):
    async with session.post(f"/v1/{name}/classify", json=body, headers=headers) as response:
        return response.status, await response.json()


async def sets(session):
    return json.loads((await get(session, "/v1/sets"))[1])["sets"]


async def test_each_set_has_its_labels_its_pool_and_its_budget():
    limited = tickets(k=0, limits=Limits(budget=Budget(calls=1)))
    nucs = {"tickets": limited, "moods": moods()}
    async with served(nucs, page=page_of) as (_, session):
        assert (await post(session, "tickets", {"text": "refund please"}))[1]["label"] == "refund"
        status, many = await post(session, "moods", {"texts": messages(6)})
        assert status == 200
        assert {one["label"] for one in many["results"]} == {"glad"}
        # the budget of one set is not that of another
        status, answer = await post(session, "tickets", {"text": "where is my parcel, unseen"})
        assert (status, answer["error"]["type"]) == (503, "budget_exceeded")
        assert (await post(session, "moods", {"text": "one more"}))[0] == 200
        known = await sets(session)
        assert {name: one["labels"] for name, one in known.items()} == {"tickets": 3, "moods": 2}
        assert {name: one["pool"] for name, one in known.items()} == {"tickets": 2, "moods": 7}
        assert known["moods"] == json.loads((await get(session, "/v1/moods/info"))[1])
        named = json.loads((await get(session, "/v1/moods/labels"))[1])["labels"]
        assert [one["label"] for one in named] == ["glad", "sad"]
        _, page = await get(session, "/metrics")
        for line in (
            'testnuc_texts_total{outcome="labeled",set="moods"} 7.0',
            'testnuc_texts_total{outcome="labeled",set="tickets"} 1.0',
            'testnuc_failed_texts_total{set="tickets",type="budget_exceeded"} 1.0',
            'testnuc_llm_calls_total{set="tickets"} 1.0',
            'testnuc_pool_texts{set="moods"} 7.0',
            'testnuc_http_requests_total{route="/v1/moods/classify",status="200"} 2.0',
            "testnuc_ready 1.0",
        ):
            assert line in page.splitlines()
        status, html = await get(session, "/results/moods")
        assert status == 200
        assert "one more" in html
        assert "where is my parcel, unseen" not in html


async def test_a_set_that_is_not_there_is_named_with_those_that_are():
    async with served({"tickets": tickets(), "moods": moods()}) as (_, session):
        status, answer = await post(session, "mood", {"text": "refund please"})
        assert (status, answer["error"]["type"]) == (404, "no_such_set")
        assert "there is no 'mood'; the label sets are tickets, moods" in answer["error"]["message"]
        async with session.post("/v1/classify", json={"text": "refund please"}) as response:
            assert response.status == 404
            assert "/v1/{set}/classify" in (await response.json())["error"]["message"]


async def test_every_route_of_a_set_needs_the_token():
    nucs = {"tickets": tickets(), "moods": moods()}
    async with served(nucs, token=TOKEN, page=page_of) as (_, session):
        for path in ("/results/moods", "/v1/moods/labels", "/v1/moods/info", "/v1/sets"):
            assert (await get(session, path))[0] == 401
        assert (await post(session, "moods", {"text": "a"}))[0] == 401
        key = {"Authorization": f"Bearer {TOKEN}"}
        assert (await post(session, "moods", {"text": "a"}, **key))[0] == 200
        assert (await get(session, "/results/moods", **key))[0] == 200


@pytest.mark.slow
async def test_the_openapi_document_has_paths_and_labels_of_each_set():
    validator = pytest.importorskip("openapi_spec_validator")
    from jsonschema import Draft202012Validator as Draft

    async with served({"tickets": tickets(), "moods": moods()}) as (_, session):
        document = json.loads((await get(session, "/openapi.json"))[1])
        answers = {
            name: (await post(session, name, {"texts": messages(2), "explain": True}))[1]
            for name in ("tickets", "moods")
        }
        listed = json.loads((await get(session, "/v1/sets"))[1])
    validator.validate(document)
    for name in ("tickets", "moods"):
        assert {f"/v1/{name}/{of}" for of in ("classify", "labels", "info")} < {*document["paths"]}
    schemas = document["components"]["schemas"]
    assert schemas["Label_tickets"]["enum"] == list(LABELS)
    assert schemas["Label_moods"]["enum"] == ["glad", "sad"]

    def fits(name, value):
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        return Draft(schema).is_valid(value)

    assert fits("Sets", listed)
    for name, other in (("tickets", "moods"), ("moods", "tickets")):
        assert fits(f"Results_{name}", answers[name])
        assert not fits(f"Results_{other}", answers[name])


async def test_one_set_whose_provider_asks_for_a_pause_leaves_the_others_ready(client_of):
    faults = Faults(schedule=["429-retry-after"] * 2, retry_after=999_999)
    async with LoopbackLLM(confident, faults=faults) as llm:
        nucs = {"tickets": TestNUC(**client_of(llm, k=0)), "moods": moods()}
        async with served(nucs) as (_, session):
            assert (await post(session, "tickets", {"text": "refund please"}))[0] == 503
            states = {name: one["status"] for name, one in (await sets(session)).items()}
            assert states == {"tickets": "paused", "moods": "ready"}
            assert (await get(session, "/readyz"))[0] == 200
            assert (await post(session, "moods", {"text": "a"}))[0] == 200


@pytest.mark.skipif(sys.platform == "win32", reason="platform: no SIGHUP")
async def test_a_reload_adds_sets_and_ends_others_and_stores_what_they_set_aside(tmp_path):
    old, stays = tickets(k=0, store=tmp_path / "old.db"), moods(store=tmp_path / "moods.db")
    async with tickets(k=0, store=tmp_path / "new.db") as new:

        async def reload():
            await service.use({"moods": stays, "new": new})

        nucs = {"old": old, "moods": stays}
        async with served(nucs, reload=reload, audit=5) as (service, session):
            assert (await post(session, "old", {"text": "refund please"}))[0] == 200
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: "new" in service.sets)
            assert (await post(session, "old", {"text": "refund please"}))[0] == 404
            for name in ("new", "moods"):
                assert (await post(session, name, {"text": "refund please"}))[0] == 200
            assert {*(await sets(session))} == {"moods", "new"}
            assert '"/v1/new/classify"' in (await get(session, "/openapi.json"))[1]
    for name in ("old", "moods", "new"):
        (week,) = await weeks_in(tmp_path / f"{name}.db")
        assert week.texts == 1, name


async def test_draining_waits_for_the_texts_of_every_set():
    slow = Held()
    async with served({"slow": client(slow), "moods": moods()}) as (service, session):
        waiting = asyncio.create_task(post(session, "slow", {"text": "refund please"}))
        await slow.asked_for(1)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: service.closing)
        assert (await post(session, "moods", {"text": "a"}))[0] == 503
        slow.gate.set()
        assert (await waiting)[0] == 200


@pytest.mark.parametrize("names", [["a b"], [""], ["a/b", "c"], []])
async def test_names_that_are_no_part_of_a_path_are_refused(names):
    async with moods() as nuc:
        with pytest.raises(InvalidInputError, match="label sets are named"):
            Service(dict.fromkeys(names, nuc), ServerSettings())


async def test_a_service_stays_with_one_set_or_with_several():
    async with moods() as nuc:
        with pytest.raises(InvalidInputError, match="do not mix"):
            await Service(nuc).use({"moods": nuc})


def test_the_page_of_results_has_the_question_that_its_marks_belong_to():
    assert "Is it urgent?" in page_of(tickets(instructions="Is it urgent?"), [])


async def test_what_was_spent_counts_where_a_set_comes_back_or_gets_a_budget():
    first, other = tickets(k=0), moods()
    async with served({"tickets": first, "moods": other}) as (service, session):
        asked = {"texts": [f"where is my parcel, {n}" for n in range(3)]}
        assert (await post(session, "tickets", asked))[0] == 200
        limits = Limits(budget=Budget(calls=5, tokens=100_000))
        async with tickets(k=0, limits=limits) as later, tickets(k=0, limits=limits) as last:
            await service.use({"tickets": later, "moods": other})
            left = (await sets(session))["tickets"]["budget_left"]
            assert left["calls"] == 2
            assert left["tokens"] < 100_000
            await service.use({"moods": other})
            await service.use({"tickets": last, "moods": other})
            assert (await sets(session))["tickets"]["budget_left"] == left
