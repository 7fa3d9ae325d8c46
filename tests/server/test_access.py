"""What a caller sees beside labels: pages, ids, echoes, CORS, and one bad text among good ones."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import re
import shutil
from dataclasses import replace

import pytest

from testnuc.errors import ConfigurationError
from testnuc.server import JsonLines, ServerSettings, access
from testnuc.types import Reason
from tests.conftest import LABELS, gold, messages
from tests.server.serving import Held, client, running, served
from tests.server.test_service import get

pytestmark = pytest.mark.filterwarnings("ignore::testnuc.errors.SmallPoolWarning")

TOKEN = "a-token-of-24-characters"


async def classify(session, **body):
    async with session.post("/v1/classify", json=body) as response:
        return response.status, await response.json()


async def test_one_bad_text_fails_alone(client_of):
    texts = [messages(3)[0], "", messages(3)[1], 5, "x" * 200, messages(3)[2]]
    async with running(client_of, {"max_text_chars": 150}, k=3) as (llm, _, session):
        status, answer = await classify(session, texts=texts, explain=True)
        assert status == 200
        found = answer["results"]
        assert [r["index"] for r in found] == list(range(6))
        assert [r["text"] for r in found] == [t if isinstance(t, str) else None for t in texts]
        assert [r["own"] is not None for r in found] == [True, False, True, False, False, True]
        says = ["texts[1] is empty", "texts[3] is a number", "texts[4] has 200 characters"]
        for at, words in zip((1, 3, 4), says, strict=True):
            assert found[at]["error"]["type"] == "invalid_input"
            assert words in found[at]["error"]["message"]
            assert found[at]["label"] is None
        assert set(found[1]) == set(found[0])
        assert llm.calls == 3
        # as lines, and where no text is left
        async with session.post("/v1/classify", json={"texts": texts, "stream": True}) as response:
            assert response.status == 200
            lines = (await response.text()).splitlines()
        assert sum('"invalid_input"' in line for line in lines) == 3
        status, answer = await classify(session, texts=["", " "])
        assert (status, [r["label"] for r in answer["results"]]) == (200, [None, None])
        async with session.post("/v1/classify", json={"texts": [""], "stream": True}) as response:
            assert (response.status, response.content_type) == (200, "application/x-ndjson")
        assert llm.calls == 3


async def test_results_echo_text_and_id(client_of):
    texts = messages(3)
    async with running(client_of, k=3) as (_, _, session):
        _, one = await classify(session, text=texts[0], id="ticket-7")
        assert (one["text"], one["id"]) == (texts[0], "ticket-7")
        assert "index" not in one
        _, many = await classify(session, texts=texts, ids=["a", 2, "c"])
        assert [(r["index"], r["id"], r["text"]) for r in many["results"]] == [
            (0, "a", texts[0]), (1, 2, texts[1]), (2, "c", texts[2]),
        ]  # fmt: skip
        assert "id" not in (await classify(session, text=texts[0]))[1]


async def test_a_reason_is_a_code_with_a_sentence(client_of):
    async with running(client_of, k=3, policy="auto") as (_, _, session):
        _, one = await classify(session, text=messages(1)[0])
        assert one["reason"]["code"] == "llm_kept"
        assert len(one["reason"]["message"]) < 100
        async with session.get("/v1/info") as response:
            info = await response.json()
        # said once, in full
        assert "too few" in info["decision"]
        assert info["labels"] == len(LABELS)
        assert info["pool"] == 1
        assert info["limits"]["max_texts"] == 1_000
        async with session.get("/v1/labels") as response:
            labels = await response.json()
    assert labels["labels"][0] == {"label": LABELS[0], "description": None}


async def test_info_says_why_the_llms_labels_are_kept_only_while_they_are(client_of):
    async with running(client_of, k=3, policy="auto") as (_, service, session):
        await classify(session, text=messages(1)[0])
        (served_set,) = service.sets.values()
        assert "too few" in (await served_set.info())["decision"]
        kept = served_set.recent[-1]
        served_set.note(replace(kept, source="vote", reason=None), {})
        assert (await served_set.info())["decision"] is None
        # an answer of which this is unknown changes nothing
        served_set.note(kept, {})
        served_set.note(replace(kept, source=None, label=None, reason=None), {})
        assert "too few" in (await served_set.info())["decision"]


def test_a_reason_is_a_string():
    reason = Reason("low_trust", "trust 0.41 is below 0.5")
    assert reason == "trust 0.41 is below 0.5"
    assert pickle.loads(pickle.dumps(reason)).code == "low_trust"


async def test_request_ids_are_kept_made_and_logged(client_of, caplog):
    caplog.set_level(logging.INFO, "testnuc.access")
    async with running(client_of, k=3) as (_, service, session):
        async with session.get("/v1/labels", headers={"X-Request-ID": "from-a-proxy.7"}) as got:
            assert got.headers["X-Request-ID"] == "from-a-proxy.7"
        # what could forge a log line is replaced
        async with session.get("/nowhere", headers={"X-Request-ID": "a b;c"}) as got:
            assert (got.status, len(got.headers["X-Request-ID"])) == (404, 32)
        # one that aiohttp refuses has one, too
        async with session.get("/v1/labels", headers={"X-Request-ID": "e1", "Expect": "x"}) as got:
            assert (got.status, got.headers["X-Request-ID"]) == (417, "e1")
        body = {"texts": messages(2), "stream": True}
        async with session.post("/v1/classify", json=body, headers={"X-Request-ID": "s1"}) as got:
            await got.read()
            assert got.headers["X-Request-ID"] == "s1"
        service.state = "starting"
        for probe, status in (("/healthz", 200), ("/readyz", 503)):
            async with session.get(probe) as got:
                assert got.status == status
    lines = [r.getMessage() for r in caplog.records if r.name == "testnuc.access"]
    assert len(lines) == 3
    assert re.fullmatch(r"from-a-proxy\.7 127\.0\.0\.1 GET /v1/labels 200 \d+ ms", lines[0])
    assert re.fullmatch(r"[0-9a-f]{32} 127\.0\.0\.1 GET other 404 \d+ ms", lines[1])
    assert lines[2].startswith("s1 127.0.0.1 POST /v1/classify 200")
    assert not any(messages(1)[0] in line for line in lines)
    logged = [json.loads(JsonLines().format(r)) for r in caplog.records]
    last = next(one for one in logged if one["request_id"] == "s1")
    assert {n: last[n] for n in ("method", "route", "status", "level", "logger")} == {
        "method": "POST", "route": "/v1/classify", "status": 200, "level": "INFO",
        "logger": "testnuc.access",
    }  # fmt: skip


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /readyz HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\x01\r\n\r\n",
        b"GET /readyz HTTP/1.1\r\nHost: x\r\nAuthorization Bearer %s\r\n\r\n",
        b"GET /%s\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_a_line_without_its_content(client_of, caplog, sent):
    caplog.set_level(logging.INFO)
    async with running(client_of, k=3) as (_, _, session):
        url = session._base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(sent % TOKEN.encode())
        got = await reader.read()
        writer.close()
    assert b"400 Bad Request" in got
    (line,) = [JsonLines().format(one) for one in caplog.records if one.name == "testnuc.http"]
    assert json.loads(line)["level"] == "INFO"
    assert TOKEN not in caplog.text + line
    assert "Traceback" not in caplog.text


def test_any_record_becomes_a_line_of_json():
    try:
        raise OSError("the disk\nis full")  # noqa: TRY301
    except OSError as exc:
        found = (OSError, exc, exc.__traceback__)
        record = logging.LogRecord("a", 40, "", 1, "not %s", ("stored\udcff",), found)
    line = JsonLines().format(record)
    assert "\n" not in line
    fields = json.loads(line)
    assert (fields["message"], fields["level"]) == ("not stored?", "ERROR")
    assert "the disk\nis full" in fields["exception"]


async def test_the_access_log_can_be_off(client_of, caplog):
    caplog.set_level(logging.INFO, "testnuc.access")
    async with running(client_of, {"access_log": False}, k=3) as (_, _, session):
        await classify(session, text=messages(1)[0])
    assert not caplog.records


async def test_pages_of_allowed_origins_only(client_of):
    settings = {"cors_origins": ("https://desk.example",)}
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x"}
    async with running(client_of, settings, k=3) as (_, _, session):
        for origin, status in (("https://desk.example", 204), ("https://evil.example", 405)):
            given = {"Origin": origin, **asks}
            async with session.options("/v1/classify", headers=given) as got:
                assert got.status == status
                allowed = got.headers.get("Access-Control-Allow-Origin")
                assert allowed == (origin if status == 204 else None)
        given = {"Origin": "https://desk.example"}
        async with session.post("/v1/classify", json={"text": "refund"}, headers=given) as got:
            assert got.headers["Access-Control-Allow-Origin"] == "https://desk.example"
            assert got.headers["Vary"] == "Origin"
        # an error can be read by the page, too
        async with session.post("/v1/classify", json={}, headers=given) as got:
            assert (got.status, "Access-Control-Allow-Origin" in got.headers) == (422, True)
        async with session.get("/v1/labels") as got:
            assert "Access-Control-Allow-Origin" not in got.headers
    async with running(client_of, k=3) as (_, _, session):
        given = {"Origin": "https://desk.example", **asks}
        async with session.options("/v1/classify", headers=given) as got:
            assert (got.status, "Access-Control-Allow-Origin" in got.headers) == (405, False)


async def test_tokens_have_names_in_the_log_and_change_while_the_service_runs(caplog):
    caplog.set_level(logging.INFO, "testnuc.access")
    held, old, new = Held(), "a" * 20, "b" * 20
    text = f"desk {old}\n\nshop {'c' * 20}\n"
    async with served(client(held), token=lambda: text) as (_, session):

        async def status(token):
            given = {"Authorization": f"Bearer {token}"}
            async with session.get("/v1/labels", headers=given) as got:
                return got.status

        assert [await status(one) for one in (old, "c" * 20, new, "")] == [200, 200, 401, 401]
        text = f"desk {old}\ndesk {new}\n"
        assert [await status(one) for one in (old, new, "c" * 20)] == [200, 200, 401]
        text = new
        assert [await status(one) for one in (old, new)] == [401, 200]
    callers = [r.fields["caller"] for r in caplog.records if r.name == "testnuc.access"]
    assert callers == ["desk", "shop", None, None, "desk", "desk", None, None, "token 1"]
    assert not any(one in caplog.text for one in (old, new))


async def test_tokens_that_cannot_be_read_stay_those_before_and_are_logged_once(caplog):
    caplog.set_level(logging.INFO)
    good, new = "a" * 20, "b" * 20
    given = good

    def tokens():
        if given is None:
            raise ConfigurationError("the file is gone")
        return given

    async with served(client(Held()), token=tokens) as (_, session):

        async def status(token, path="/metrics"):
            headers = {"Authorization": f"Bearer {token}"}
            async with session.get(path, headers=headers) as got:
                return got.status

        for wrong in ("", "desk short", None):
            given = wrong
            assert [await status(one) for one in (good, good, new)] == [200, 200, 401]
        problems = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
        assert len(problems) == 3
        assert all(one.startswith("the tokens stay those before: ") for one in problems)
        # also where they are those of before
        given = good
        assert await status(good) == 200
        said = [r.getMessage() for r in caplog.records if r.levelname == "INFO"]
        assert [one for one in said if one.startswith("the tokens are now those of")]
        # the next change counts again, also if it is the same
        given = new
        assert [await status(one) for one in (good, new)] == [401, 200]
        given = None
        assert await status(new) == 200
        # an alert shows it: a token that was to be removed may still be valid
        _, page = await get(session, "/metrics", Authorization=f"Bearer {new}")
        assert 'testnuc_failed_reloads_total{what="tokens"} 4.0' in page
    assert [r.levelname for r in caplog.records].count("ERROR") == 4
    with pytest.raises(ConfigurationError, match="is gone"):
        ServerSettings(token=tokens)


async def test_a_scraper_that_is_refused_is_logged_once(caplog):
    token = "a" * 20
    async with served(client(Held()), token=token, access_log=False) as (_, session):
        for given in ("b" * 20, "c" * 20):
            found = await get(session, "/metrics", Authorization=f"Bearer {given}")
            assert found[0] == 401
        assert (await get(session, "/metrics", Authorization=f"Bearer {token}"))[0] == 200
    [record] = [r for r in caplog.records if "/metrics" in r.getMessage()]
    assert record.levelname == "WARNING"
    assert "401: the Authorization header has a wrong token" in record.getMessage()


async def test_the_pages_load_nothing_from_elsewhere():
    held = Held()
    async with served(client(held), token=TOKEN) as (_, session):
        for path in ("/", "/docs"):
            async with session.get(path) as got:
                html = await got.text()
                policy = got.headers["Content-Security-Policy"]
            assert (got.status, got.content_type) == (200, "text/html")
            assert "connect-src 'self'" in policy
            assert not re.findall(r"(?:src|href)=\"?(?:https?:)?//", html)
            # nothing of the service is in a page that needs no token
            assert not any(label in html for label in LABELS)
        async with session.get("/results") as got:
            assert got.status == 401
    assert held.asked == []


CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.mark.browser
@pytest.mark.slow
async def test_a_text_is_tried_in_a_browser(client_of):
    playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
    chromium = os.environ.get("TESTNUC_CHROMIUM") or CHROMIUM
    if chromium is None:
        pytest.skip("there is no Chromium: install it, or name it in TESTNUC_CHROMIUM")
    async with running(client_of, {"token": TOKEN}, k=3) as (_, _, session):
        key = {"Authorization": f"Bearer {TOKEN}"}
        body = {"texts": messages(8)}
        async with session.post("/v1/classify", json=body, headers=key) as got:
            assert got.status == 200
        base = str(session._base_url).rstrip("/")
        async with playwright.async_playwright() as driver:
            browser = await driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = await browser.new_page()
            faults = []
            page.on("pageerror", lambda error: faults.append(str(error)))
            await page.goto(base)
            await page.locator("#access").wait_for(state="visible")
            await page.fill("#token", TOKEN)
            text = messages(1)[0] + " it's <b>urgent</b>"
            await page.fill("#text", text)
            await page.press("#text", "Control+Enter")
            await page.locator("#result").wait_for(state="visible")
            assert await page.inner_text("#label") == gold(text)
            assert "Trust" in await page.inner_text("#trust")
            assert await page.locator("#near tbody tr").count() == 3
            part = await page.evaluate(
                "at('bar').firstElementChild.offsetWidth / at('bar').offsetWidth"
            )
            assert f"Trust {part:.2f}" in await page.inner_text("#trust")
            curl = await page.inner_text("#curl")
            assert "it'\\''s <b>urgent</b>" in curl
            assert TOKEN not in curl
            if shots := os.environ.get("TESTNUC_SHOTS"):
                await page.screenshot(path=f"{shots}/try.png", full_page=True)
            await page.goto(base + "/docs")
            await page.locator("#Result").wait_for()
            shown = (await page.inner_text("main")).lower()
            if shots:
                await page.screenshot(path=f"{shots}/docs.png", full_page=True)
            await browser.close()
        for words in ("post /v1/classify", "get /v1/info", "422", "manytexts"):
            assert words in shown
        assert faults == []


def test_other_tokens_are_logged_by_their_names(caplog):
    caplog.set_level(logging.INFO, "testnuc.server")
    lines = [f"desk {'a' * 20}"]
    settings = ServerSettings(token=lambda: "\n".join(lines))
    lines += [f"shop {'b' * 20}", f"desk {'c' * 20} 30/minute"]
    for _ in range(2):
        assert len(settings.tokens()) == 3
    assert caplog.messages == ["the tokens are now those of desk (30/minute), shop"]


async def test_a_caller_has_so_many_texts_a_minute(client_of):
    one, two, other = ({"Authorization": f"Bearer {c * 20}"} for c in "abc")
    # all tokens of a caller have the lowest limit of its lines, also one without a limit
    lines = f"desk {'b' * 20}\ndesk {'a' * 20} 3/minute\ndesk {'d' * 20} 9/minute\nshop {'c' * 20}"
    texts = messages(5)
    async with running(client_of, {"token": lines}, k=3) as (_, _, session):

        async def status(caller, *texts):
            body = {"texts": texts}
            async with session.post("/v1/classify", json=body, headers=caller) as response:
                return response.status, await response.json(), response.headers

        assert (await status(one, *texts[:2]))[0] == 200
        # one text is left, and one request may take more
        assert (await status(two, *texts[:4]))[0] == 200
        refused, answer, headers = await status(one, texts[0])
        assert (refused, answer["error"]["type"]) == (429, "caller_limit")
        assert "desk has sent its 3 texts a minute" in answer["error"]["message"]
        assert 0 < int(headers["Retry-After"]) <= 80
        assert (await status(other, *texts))[0] == 200
        async with session.get("/metrics", headers=other) as response:
            page = await response.text()
    assert 'testnuc_caller_texts_total{caller="desk"} 6.0' in page
    assert 'testnuc_caller_texts_total{caller="shop"} 5.0' in page
    assert "testnuc_pending_texts 0.0" in page


def test_what_a_minute_has_comes_back_evenly(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(access.time, "monotonic", lambda: now[0])
    callers, request = access.Callers(), {access._CALLER: access.Caller("desk", 60)}
    callers.admit(request, 90)
    with pytest.raises(access.RequestError, match="retry in 31 s"):
        callers.admit(request, 1)
    now[0] += 30.5
    with pytest.raises(access.RequestError, match="retry in 1 s"):
        callers.admit(request, 1)
    now[0] += 0.5
    callers.admit(request, 1)
    # and no more than a minute's
    now[0] += 1_000
    callers.admit(request, 60)
    with pytest.raises(access.RequestError):
        callers.admit(request, 1)
    assert callers.texts == {"desk": 151}
