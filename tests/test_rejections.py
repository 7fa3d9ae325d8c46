"""401, 402, 403, 404, 400 and 302 that concern one text: it fails alone, wherever it comes."""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing, asynccontextmanager

import orjson
import pytest
from aiohttp import web

import testnuc
from testnuc import Limits, Sampling, TestNUC
from testnuc.embedders.openai import OpenAIEmbedder
from testnuc.errors import AuthenticationError
from testnuc.prompts.writing import samples_in
from testnuc.testing import HashEmbedder
from tests.conftest import LABELS
from tests.doubles import posts_to
from tests.providers.chat_bodies import completion

FIREWALL = (
    "<!DOCTYPE html><html><head><title>Attention Required! | Cloudflare</title></head><body>"
    "<h1>Sorry, you have been blocked</h1><p>You are unable to access api.example</p></body></html>"
)
KEY = {"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}}
MODEL = {"error": {"message": "The model does not exist", "code": "model_not_found"}}
#: Rejections by name: status and body.
KINDS = {
    "401": (401, KEY),
    "403": (403, {"error": {"message": "not allowed", "type": "permission_error"}}),
    "404": (404, MODEL),
    "400": (400, {"error": {"message": "bad request"}}),
    "302": (302, ""),
    "101": (101, ""),
    "407": (407, ""),
    "402": (402, ""),
    "firewall": (403, FIREWALL),
}
#: Those that name a key, a model or an address.
OF_ALL = ("401", "403", "404", "302", "101", "407")


def rejection(kind):
    """Return the response of a kind."""
    status, body = KINDS[kind]
    if isinstance(body, dict):
        return web.json_response(body, status=status)
    headers = {"Location": "https://elsewhere.example/"} if status == 302 else {}
    return web.Response(status=status, text=body, content_type="text/html", headers=headers)


class Provider:
    """Answers chat completions and embeddings; `reject(texts, number)` names a kind or None."""

    def __init__(self, reject):
        self.reject = reject
        self.requests = 0
        self.asked = Counter()

    async def handle(self, request):
        body = orjson.loads(await request.read())
        embedding = request.path.endswith("/embeddings")
        texts = body["input"] if embedding else samples_in(body["messages"][-1]["content"])
        kind = self.reject(texts, self.requests)
        self.requests += 1
        self.asked.update(texts)
        if kind is not None:
            return rejection(kind)
        if embedding:
            rows = await HashEmbedder(32).embed(texts)
            data = [{"index": i, "embedding": row.tolist()} for i, row in enumerate(rows)]
            return web.json_response({"data": data})
        one = {"label": "refund", "confidence": 0.9}
        several = {"labels": [{"id": i, **one} for i in range(1, len(texts) + 1)]}
        said = one if len(texts) == 1 else several
        return web.Response(body=completion(orjson.dumps(said).decode()))


@asynccontextmanager
async def serving(reject):
    """Serve a provider; yields its URL and it."""
    provider = Provider(reject)
    async with posts_to(provider.handle) as url:
        yield url, provider


def client(url, **more):
    options = {"model": "openai/m", "base_url": url, "embedder": HashEmbedder(32), "api_key": "k"}
    return TestNUC(LABELS, **{**options, "k": 0, "policy": "weighted", **more})


def texts_of(n):
    return [f"text {i} of these" for i in range(n)]


def of_text(kind, *numbers):
    """Return a function that rejects requests with one of these texts."""
    bad = {texts_of(number + 1)[-1] for number in numbers}
    return lambda texts, _: kind if bad.intersection(texts) else None


async def labels_by(method, nuc, texts):
    """Return the results for texts, by one of the ways to ask."""
    if method == "classify_many":
        return list(await nuc.classify_many(texts))
    if method == "stream":
        async with aclosing(nuc.stream(texts, window=50)) as results:
            return sorted([r async for r in results], key=lambda r: r.index)
    if method == "predict_pool":
        await nuc.add(texts)
        await nuc.predict_pool()
        return list(await nuc.classify_many(texts))
    found = []
    for text in texts:
        try:
            found.append(await nuc.classify(text))
        except testnuc.ProviderError:
            found.append(None)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["classify_many", "stream", "predict_pool", "classify"])
@pytest.mark.parametrize("place", [0, 57])
async def test_a_rejected_text_fails_alone(kind, method, place):
    async with serving(of_text(kind, place)) as (url, provider), client(url) as nuc:
        results = await labels_by(method, nuc, texts_of(100))
    labels = [None if r is None else r.label for r in results]
    assert [i for i, label in enumerate(labels) if label is None] == [place]
    assert provider.asked[texts_of(100)[place]] <= 3
    assert max(n for t, n in provider.asked.items() if t != texts_of(100)[place]) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [0, 3, 40])
async def test_a_stray_rejection_costs_one_text_at_most(kind, number):
    stray = lambda texts, n: kind if n == number else None  # noqa: E731
    async with serving(stray) as (url, _), client(url, limits=Limits(concurrency=4)) as nuc:
        results = await nuc.classify_many(texts_of(100))
        assert sum(r.label == "refund" for r in results) >= 99
        # it is asked about again by the next run
        again = await nuc.classify_many(texts_of(100))
    assert sum(r.label == "refund" for r in again) == 100


@pytest.mark.parametrize("kind", KINDS)
async def test_texts_that_are_packed_with_a_rejected_one_are_answered(kind):
    sampling = Sampling(texts_per_call=10)
    reject = of_text(kind, 57)
    async with serving(reject) as (url, provider), client(url, sampling=sampling) as nuc:
        results = await nuc.classify_many(texts_of(100))
    assert [r.index for r in results if r.label is None] == [57]
    assert provider.requests <= 10 + 9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 8])
async def test_a_resumed_run_ends_though_its_first_text_is_rejected(kind, workers, tmp_path):
    reject = of_text(kind, 0, 1)
    store = tmp_path / "answers.db"
    async with serving(reject) as (url, _):
        for texts in (30, 60):
            async with client(url, store=store, limits=Limits(concurrency=workers)) as nuc:
                results = await nuc.classify_many(texts_of(texts))
            assert [r.index for r in results if r.label is None] == [0, 1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("packed", [1, 10])
async def test_what_is_rejected_for_every_text_ends_a_run_after_a_few_requests(kind, packed):
    sampling = Sampling(texts_per_call=packed)
    async with serving(lambda *_: kind) as (url, provider), client(url, sampling=sampling) as nuc:
        with pytest.raises(testnuc.ProviderError) as caught:
            await nuc.classify_many(texts_of(500))
    # a 400 of a packed call may be that of one of its texts
    assert provider.requests <= (4 if packed == 1 or kind in OF_ALL else 4 * 19)
    assert caught.value.status_code == KINDS[kind][0]


@pytest.mark.parametrize("kind", OF_ALL)
@pytest.mark.parametrize("packed", [1, 10])
@pytest.mark.parametrize("workers", [1, 16])
async def test_a_key_that_expires_ends_the_run(kind, packed, workers):
    # more than are sent before it is known
    texts = texts_of(120 * packed)
    options = {"sampling": Sampling(texts_per_call=packed), "limits": Limits(concurrency=workers)}

    def expired(_, number):
        return kind if number >= 20 else None

    async with serving(expired) as (url, provider), client(url, **options) as nuc:
        results = await nuc.classify_many(texts)
        assert type(results.stopped) is type(results[-1].error)
        assert results.stopped.status_code == int(kind)
        assert sum(r.label == "refund" for r in results) == 20 * packed
        # what fails is not billed, but it must not go on
        assert provider.requests <= 20 + 20 + 3 * workers
        # it does not begin again
        before = provider.requests
        again = await nuc.classify_many(texts)
        assert again.stopped is not None
        assert provider.requests <= before + workers


@pytest.mark.parametrize("left", [1, 500])
async def test_stored_answers_do_not_prove_that_the_key_is_right(tmp_path, left):
    valid = [True]
    async with serving(lambda *_: None if valid else "401") as (url, provider):
        store = tmp_path / "answers.db"
        async with client(url, store=store) as nuc:
            await nuc.classify_many(texts_of(30))
        valid.clear()
        async with client(url, store=store) as nuc:
            results = await nuc.classify_many(texts_of(30 + left))
    assert isinstance(results.stopped, AuthenticationError)
    assert sum(r.label == "refund" for r in results) == 30
    assert provider.requests <= 30 + 4 + 64 + 8


async def test_a_firewall_is_not_a_wrong_key():
    async with serving(of_text("firewall", 2)) as (url, _), client(url) as nuc:
        results = await nuc.classify_many(texts_of(5))
    error = results[2].error
    assert not isinstance(error, AuthenticationError)
    assert error.status_code == 403
    assert "firewall" in str(error)
    assert "key" not in str(error).lower()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [0, 300])
async def test_a_text_that_the_embedder_rejects_fails_alone(kind, place):
    async with serving(of_text(kind, place)) as (url, provider):
        embedder = OpenAIEmbedder("small", base_url=url, api_key="k")
        rows = await embedder.embed_each(texts_of(600))
        await embedder.close()
    assert [i for i, row in enumerate(rows) if isinstance(row, Exception)] == [place]
    assert provider.requests <= 3 + 2 * 9


@pytest.mark.parametrize("kind", OF_ALL)
@pytest.mark.parametrize("texts", [1, 2, 600])
@pytest.mark.parametrize("accepted", [0, 1])
async def test_an_embedder_whose_key_is_wrong_ends_the_run(kind, texts, accepted):
    async with serving(lambda _, n: kind if n >= accepted else None) as (url, provider):
        embedder = OpenAIEmbedder("small", base_url=url, api_key="k")
        if accepted:
            await embedder.embed(["one"])
        with pytest.raises(testnuc.ProviderError) as caught:
            await embedder.embed(texts_of(texts))
        await embedder.close()
    assert caught.value.status_code == int(kind)
    assert provider.requests <= accepted + (20 if accepted else 4)
