"""A service erases texts: of its store, its memory, and the page of its latest results."""

from __future__ import annotations

import json

import pytest

from testnuc.errors import StoreError
from testnuc.server import page_of
from tests.conftest import messages
from tests.server.serving import served
from tests.server.test_auditing import opened, weeks_in
from tests.server.test_service import TOKEN, get
from tests.server.test_sets import moods

pytest.importorskip("prometheus_client")
pytestmark = pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")

KEY = {"Authorization": f"Bearer {TOKEN}"}
GONE = "refund please, Ada Lovelace"


async def post(session, path, body, **headers):
    async with session.post(path, json=body, headers=headers) as response:
        return response.status, await response.json()


async def test_texts_are_erased_by_those_who_have_the_token(tmp_path):
    store = tmp_path / "labels.db"
    settings = {"token": TOKEN, "audit": 20}
    async with served(opened(store=store), page=page_of, **settings) as (_, session):
        texts = [*messages(8), GONE]
        await post(session, "/v1/classify", {"texts": texts}, **KEY)
        # it is a neighbor of a later one
        _, one = await post(session, "/v1/classify", {"text": f"{GONE}!", "explain": True}, **KEY)
        assert GONE in {near["text"] for near in one["neighbors"]}
        assert "Ada" in (await get(session, "/results", **KEY))[1]
        assert (await post(session, "/v1/erase", {"text": GONE}))[0] == 401
        asked = {"texts": [GONE, f"{GONE}!", "never seen", ""]}
        assert await post(session, "/v1/erase", asked, **KEY) == (200, {"erased": 2})
        assert await post(session, "/v1/erase", asked, **KEY) == (200, {"erased": 0})
        status, answer = await post(session, "/v1/erase", {"text": ""}, **KEY)
        assert (status, answer["error"]["type"]) == (422, "invalid_input")
        page = (await get(session, "/results", **KEY))[1]
        assert "Ada" not in page
        assert json.loads((await get(session, "/v1/info", **KEY))[1])["pool"] == 8
        for file in tmp_path.glob("labels.db*"):
            assert b"Ada" not in file.read_bytes(), file
    (week,) = await weeks_in(store)
    assert {text.text for text in week.sample} == {*messages(8)}
    assert week.texts == 10


async def test_without_a_store_the_answer_says_so():
    async with served(opened()) as (_, session):
        status, answer = await post(session, "/v1/erase", {"text": GONE})
    assert (status, answer["error"]["type"]) == (422, "invalid_input")
    assert "give a path as store" in answer["error"]["message"]


async def test_each_set_erases_its_own(tmp_path):
    nucs = {"tickets": opened(store=tmp_path / "a.db"), "moods": moods(store=tmp_path / "b.db")}
    async with served(nucs) as (_, session):
        for name in ("tickets", "moods"):
            await post(session, f"/v1/{name}/classify", {"text": GONE})
        assert await post(session, "/v1/moods/erase", {"text": GONE}) == (200, {"erased": 1})
        assert await post(session, "/v1/moods/erase", {"text": GONE}) == (200, {"erased": 0})
        assert await post(session, "/v1/tickets/erase", {"text": GONE}) == (200, {"erased": 1})


async def test_what_is_shown_meanwhile_is_not_on_the_page_after_it(tmp_path):
    """Until a text is gone, it is a neighbor of others."""
    nuc = opened(store=tmp_path / "labels.db")
    remove = nuc.remove

    async def slow(texts, **more):
        await post(session, "/v1/classify", {"text": f"{GONE}!"})
        return await remove(texts, **more)

    nuc.remove = slow
    async with served(nuc, page=page_of) as (service, session):
        await post(session, "/v1/classify", {"texts": [*messages(8), GONE]})
        assert await post(session, "/v1/erase", {"text": GONE}) == (200, {"erased": 1})
        assert "Ada" not in (await get(session, "/results"))[1]
        service.closing = True
        status, answer = await post(session, "/v1/erase", {"text": GONE})
        assert (status, answer["error"]["type"]) == (503, "closing")
        service.closing = False


async def test_what_no_flush_could_store_is_erased_from_memory(tmp_path):
    store = tmp_path / "labels.db"
    async with served(opened(store=store), audit=20) as (service, session):
        sample = service.sets[""].audit
        kept, sample._store = sample._store, Unwritable()
        await post(session, "/v1/classify", {"texts": [*messages(2), GONE]})
        assert await post(session, "/v1/erase", {"text": GONE}) == (200, {"erased": 1})
        sample._store = kept
    (week,) = await weeks_in(store)
    assert {text.text for text in week.sample} == {*messages(2)}
    assert week.texts == 3
    for file in tmp_path.glob("labels.db*"):
        assert b"Ada" not in file.read_bytes(), file


class Unwritable:
    async def get_learned(self, _):
        raise StoreError("the disk is full")
