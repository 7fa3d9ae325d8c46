"""What the model says in another form, refuses, or never says, by real HTTP."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager

import orjson
import pytest
from aiohttp import web

import testnuc
from testnuc import LabelSet, Limits, TestNUC
from testnuc.prompts.writing import samples_in
from testnuc.testing import HashEmbedder
from tests._dispatch.test_keys import predictor
from tests.conftest import LABELS
from tests.doubles import Says, posts_to
from tests.providers.chat_bodies import completion
from tests.transport.small_server import raw

GOOD = '{"label": "refund", "confidence": 0.9}'
PROSE = "Hard to say! It might be about money."


def form_of(body):
    return body.get("response_format", {}).get("type")


@asynccontextmanager
async def model(said):
    """Serve `said(body, texts)`: a string is a completion, a pair a status and an error."""
    bodies = []

    async def handle(request):
        body = orjson.loads(await request.read())
        bodies.append(body)
        found = said(body, samples_in(body["messages"][-1]["content"]))
        if isinstance(found, tuple):
            return web.json_response({"error": found[1]}, status=found[0])
        return web.Response(body=found if isinstance(found, bytes) else completion(found))

    async with posts_to(handle) as url:
        yield url, bodies


def client(url, **more):
    given = {"model": "openai/m", "base_url": url, "embedder": HashEmbedder(32), "k": 0}
    return TestNUC(
        LABELS, **{"policy": "weighted", "limits": Limits(concurrency=4), **given, **more}
    )


def texts_of(n):
    return [f"text {i} of these" for i in range(n)]


async def test_a_reply_that_is_exactly_a_label_is_a_label():
    async with model(lambda body, texts: "**Refund**.\n") as (url, bodies), client(url) as nuc:
        results = await nuc.classify_many(texts_of(10))
    assert [r.label for r in results] == ["refund"] * 10
    assert results[0].prediction.confidence is None
    assert len(bodies) == 10


async def test_a_truncated_label_may_be_another():
    said = completion("log", finish="length")
    async with model(lambda body, texts: said) as (url, _), client(url) as nuc:
        with pytest.raises(testnuc.errors.TruncatedReplyError):
            await nuc.classify("a text")


async def test_a_text_that_gets_no_readable_reply_costs_three_calls_of_weaker_formats():
    def said(body, texts):
        return PROSE if texts == ["odd"] else GOOD

    async with model(said) as (url, bodies), client(url) as nuc:
        await nuc.classify_many(texts_of(3))
        del bodies[:]
        results = await nuc.classify_many(["odd", *texts_of(30)])
        assert isinstance(results[0].error, testnuc.errors.UnreadableReplyError)
        assert results[0].error.attempts == 3
        odd = [b for b in bodies if samples_in(b["messages"][-1]["content"]) == ["odd"]]
        assert [form_of(b) for b in odd] == ["json_schema", "json_object", None]
        # the other texts keep the strict format
        assert {form_of(b) for b in bodies if b not in odd} == {"json_schema"}
        assert nuc.usage.calls == 3 + 27 + 3
        assert nuc.usage.retries == 2


@pytest.mark.parametrize("packed", [1, 4])
async def test_a_hundred_texts_without_a_readable_reply_stop_the_run(packed):
    sampling = testnuc.Sampling(texts_per_call=packed)
    async with (
        model(lambda body, texts: PROSE) as (url, bodies),
        client(url, sampling=sampling) as nuc,
    ):
        with pytest.raises(testnuc.errors.UnreadableReplyError) as caught:
            await nuc.classify_many(texts_of(100))
        assert caught.value.fatal
        assert "first 20 texts" in str(caught.value)
        assert PROSE in str(caught.value)
        assert "Try" in str(caught.value)
        assert len(bodies) <= 3 * (20 + 4 * packed)


@pytest.mark.parametrize("packed", [1, 2, 4, 16])
@pytest.mark.parametrize(
    "broken",
    [PROSE, b"no JSON", b'{"choices": [null]}', {}, {"label": None}, {"id": 99, "label": "refund"}],
)
@pytest.mark.parametrize("bad", [("bad 1",), ("bad 1", "bad 2", "bad 3")])
async def test_no_text_is_paid_for_more_than_three_times(packed, broken, bad):
    """Replies that cannot be read, and packed ones that leave out a text or say a part of it."""
    asked = Counter()

    def said(body, texts):
        asked.update(texts)
        if not isinstance(broken, dict) and not set(bad).isdisjoint(texts):
            return broken
        if len(texts) == 1:
            return PROSE if texts[0] in bad else GOOD
        rows = [{"id": i, "label": "refund"} for i in range(1, len(texts) + 1)]
        given = [
            {**row, **broken} if text in bad else row
            for row, text in zip(rows, texts, strict=True)
            if text not in bad or broken
        ]
        return orjson.dumps({"answers": given}).decode()

    sampling = testnuc.Sampling(texts_per_call=packed)
    async with model(said) as (url, bodies), client(url, sampling=sampling) as nuc:
        results = await nuc.classify_many([*bad, *texts_of(29)])
        assert [r.label for r in results[len(bad) :]] == ["refund"] * 29
        assert all(isinstance(r.error, testnuc.errors.ReplyError) for r in results[: len(bad)])
        assert max(asked.values()) == 3
        assert nuc.usage.calls == len(bodies)


@pytest.mark.slow
async def test_half_of_the_texts_unreadable_does_not_stop_a_run():
    def said(body, texts):
        return GOOD if int(texts[0].split()[1]) % 2 else PROSE

    async with model(said) as (url, bodies), client(url) as nuc:
        results = await nuc.classify_many(texts_of(100))
    assert sum(r.label == "refund" for r in results) == 50
    assert len(bodies) <= 50 + 3 * 50


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (completion(None, refusal="I cannot help with that."), testnuc.errors.RefusalError),
        ((400, {"message": "no", "code": "invalid_prompt"}), testnuc.errors.ContentRefusedError),
        ((400, {"message": "too long", "code": "context_length_exceeded"}), testnuc.ProviderError),
    ],
)
@pytest.mark.parametrize("packed", [1, 3])
async def test_what_was_refused_is_not_asked_again(said, kind, packed):
    def answer(body, texts):
        if "bad" in texts:
            return said
        rows = [{"id": i, "label": "refund", "confidence": 1.0} for i in range(1, len(texts) + 1)]
        return orjson.dumps({"answers": rows} if len(rows) > 1 else rows[0]).decode()

    sampling = testnuc.Sampling(texts_per_call=packed)
    async with model(answer) as (url, bodies), client(url, sampling=sampling) as nuc:
        first = await nuc.classify_many([*texts_of(5), "bad"])
        assert isinstance(first[5].error, kind)
        calls = len(bodies)
        for _ in range(3):
            again = await nuc.classify_many([*texts_of(5), "bad"])
            assert type(again[5].error) is type(first[5].error)
            assert str(again[5].error) == str(first[5].error)
            assert [r.label for r in again][:5] == ["refund"] * 5
        assert len(bodies) == calls
        # only the refused text is left out
        await nuc.classify_many(["bad", "new"])
        assert len(bodies) == calls + 1
        await nuc.forget()
        await nuc.classify_many(["bad"])
        assert len(bodies) == calls + 2


async def test_refused_texts_are_remembered_in_bounded_memory():
    made = predictor()
    for i in range(10_010):
        ask = made.ask(f"text {i}", b"h" * 16, i)
        made._note(ask, testnuc.errors.RefusalError("no"))
    assert len(made._refused) == 10_000
    assert ask.key in made._refused


@pytest.mark.parametrize("failed", [GOOD, "refund", "Let me think", None])
async def test_an_answer_that_the_server_refused_is_read(failed):
    """A server that checks JSON itself returns what the model said."""
    error = {"message": "Failed to generate JSON.", "code": "json_validate_failed"}
    if failed is not None:
        error["failed_generation"] = failed

    def said(body, texts):
        return GOOD if form_of(body) is None else (400, error)

    async with model(said) as (url, bodies), client(url) as nuc:
        results = await nuc.classify_many(texts_of(1))
        assert results[0].label == "refund"
        readable = failed in (GOOD, "refund")
        assert len(bodies) == (1 if readable else 3)
        # the model answered: perhaps the call is billed
        assert nuc.usage.usd is None


@pytest.mark.parametrize(
    "cut", [f"First thought: {GOOD}. But wait, the", f"{GOOD}\nHowever", f"<think>{GOOD} or"]
)
async def test_a_draft_that_the_server_refused_is_not_the_answer(cut):
    """It checks JSON after the output limit has cut the model off."""
    error = {"message": "m", "code": "json_validate_failed", "failed_generation": cut}

    def said(body, texts):
        return (400, error) if form_of(body) is not None else GOOD.replace("refund", "delivery")

    async with model(said) as (url, _), client(url) as nuc:
        assert (await nuc.classify_many(texts_of(1)))[0].label == "delivery"


async def test_a_server_that_fails_on_a_schema_is_asked_without(caplog):
    message = (
        "[{'type': 'literal_error', 'loc': ('body', 'response_format', 'type'), "
        "'msg': \"Input should be 'text' or 'json_object'\", 'input': 'json_schema'}]"
    )

    def said(body, texts):
        return (500, {"message": message}) if form_of(body) == "json_schema" else GOOD

    async with model(said) as (url, bodies), client(url) as nuc:
        results = await nuc.classify_many(texts_of(30))
    assert [r.label for r in results] == ["refund"] * 30
    assert len(bodies) <= 30 + 4


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize("label", [5, "half \ud800"])
async def test_a_label_that_cannot_be_stored_fails_alone(tmp_path, label, multilabel):
    async with TestNUC(
        LabelSet(LABELS, multilabel=multilabel),
        Says(lambda text: label if text.startswith("text 3") else LABELS[0]),
        embedder=HashEmbedder(),
        k=0,
        store=tmp_path / "s.db",
    ) as nuc:
        results = await nuc.classify_many(texts_of(9))
    assert results.stopped is None
    assert [r.label for r in results].count(None) == 1
    assert [str(r.error).startswith("the provider's label is") for r in results.errors] == [True]


def test_zero_is_one_key():
    made = [predictor(temperature=t, top_p=p) for t, p in [(0, 1), (0.0, 1.0)]]
    assert made[0].scope == made[1].scope
    assert made[0].key("a") == made[1].key("a")
    # the keys of 0.1.0 for 0.0 and 1.0
    assert made[0].scope.hex() == "745847fb8d5c26e4cc4c09646009a1b7"


@pytest.mark.parametrize("packed", [1, 2, 4])
@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        b'HTTP/1.1 200 OK\r\nContent-Length: 42\r\n\r\n{"choices":[{"message":{"content":"I "}}]}',
    ],
)
async def test_no_text_is_in_more_than_three_requests_whose_responses_are_broken(packed, response):
    """Nine for each text that shared its calls with others were paid for."""
    asked = Counter()

    async def respond(number, writer):
        asked.update(samples_in(orjson.loads(requests[number])["messages"][-1]["content"]))
        writer.write(response)
        await writer.drain()

    async with raw(respond) as (wire, requests):
        sampling = testnuc.Sampling(texts_per_call=packed)
        async with client(wire.url, sampling=sampling) as nuc:
            results = await nuc.classify_many(texts_of(12))
            assert len(results.errors) == 12
        assert max(asked.values()) == 3
