"""Runs that an error ends: what was answered is handed over, and what cannot begin ends at once."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from aiohttp import web

import testnuc
from bench._batch_api import BatchLLM
from testnuc import Budget, Limits, SelfConsistency, TestNUC
from testnuc.client import parts_of
from testnuc.errors import (
    AuthenticationError,
    QuotaExceededError,
    ReplyError,
    StoreError,
)
from testnuc.protocols import Answer, Reply
from testnuc.sklearn import TestNUCClassifier
from testnuc.stores.memory import MemoryStore
from testnuc.testing import HashEmbedder, LoopbackLLM
from testnuc.transport.calls import PATIENCE, Patience
from tests.conftest import LABELS, confident, gold, messages
from tests.embedders import test_embedders as embeddings

pytestmark = pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")

ERRORS = {"quota": QuotaExceededError, "key": AuthenticationError, "store": StoreError}


class Failing(MemoryStore):
    """Refuses writes from some row on."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    async def put_predictions(self, rows):
        if len(self.rows()) + len(rows) > self.most:
            raise StoreError("disk full")
        return await super().put_predictions(rows)


class Provider:
    """Answers some calls, then raises."""

    name, model, identity = "own", "m", "1"

    def __init__(self, most, error, confidence=0.9):
        self.most, self.error, self.confidence = most, error, confidence
        self.answered = []

    async def answer(self, request):
        await asyncio.sleep(0.001)
        if len(self.answered) >= self.most:
            raise self.error
        self.answered += request.texts
        return Reply(tuple(Answer(gold(t), self.confidence) for t in request.texts))


def ended_by(why, most):
    """Return a provider and a store of which one fails after some texts."""
    if why == "store":
        return Provider(10_000, None), Failing(most)
    return Provider(most, ERRORS[why]("no more")), MemoryStore()


def client(provider, store=None, **more):
    return TestNUC(
        **{
            "labels": LABELS,
            "model": provider,
            "store": store,
            "embedder": HashEmbedder(),
            "policy": "weighted",
            "limits": Limits(concurrency=8),
            "k": 3,
            **more,
        }
    )


@pytest.mark.parametrize("policy", ["weighted", "auto"])
@pytest.mark.parametrize("why", ERRORS)
async def test_what_was_answered_before_the_end_is_handed_over(why, policy):
    texts = messages(60)
    provider, store = ended_by(why, 25)
    async with client(provider, store, policy=policy) as nuc:
        results = await nuc.classify_many(texts)
    assert isinstance(results.stopped, ERRORS[why])
    assert type(results.stopped).__name__ in repr(results)
    assert len(results) == 60
    billed = set(provider.answered)
    assert len(billed) >= 25
    for result in results:
        if result.text in billed:
            assert result.prediction.label == gold(result.text)
            assert result.error is None
        else:
            assert result.error is results.stopped
    if policy == "weighted":
        # neighbors label what was not answered, as for any failed call
        assert any(r.label is not None for r in results if r.error is not None)
    rerun = Provider(10_000, None)
    async with client(rerun, store if why != "store" else None, policy=policy) as nuc:
        assert (await nuc.classify_many(texts)).stopped is None


@pytest.mark.parametrize("within", [None, 5.0])
async def test_calls_in_flight_label_where_texts_cannot_join_the_pool(within, monkeypatch):
    """As on a full disk: their answers were lost, and a service said 503."""

    async def add(*_):
        while llm.calls < 6:  # noqa: ASYNC110 - the server has no event
            await asyncio.sleep(0.001)
        raise StoreError("disk full")

    async with LoopbackLLM(confident, latency=0.05) as llm:
        more = {"base_url": llm.base_url, "api_key": "k", "policy": "majority"}
        async with client("openai/test", Failing(0), **more) as nuc:
            monkeypatch.setattr(parts_of(nuc).pool, "add", add)
            PATIENCE.set(Patience(within))
            results = await nuc.classify_many(messages(8))
            assert len([r for r in results if r.label is not None]) == llm.calls >= 6
            assert isinstance(results.stopped, StoreError)


@pytest.mark.parametrize("way", ["classify_many", "stream", "classify"])
async def test_answers_that_cannot_be_stored_are_counted_and_logged(way, caplog):
    async with client(Provider(10_000, None), Failing(0), policy="majority") as nuc:
        if way == "classify":
            result = await nuc.classify("refund please")
            assert result.prediction.label == result.label == gold("refund please")
            assert isinstance(result.error, StoreError)
        elif way == "stream":
            assert [r.label async for r in nuc.stream(messages(2), window=2)]
        else:
            assert (await nuc.classify_many(messages(2))).stopped is not None
        assert nuc.usage.unstored == nuc.usage.calls or way != "classify"
        assert nuc.usage.unstored >= 1
    assert "not stored: disk full" in caplog.text


@pytest.mark.parametrize("way", ["classify_many", "stream", "predict_pool", "classify"])
async def test_an_error_before_any_answer_is_raised(way):
    async with client(Provider(0, AuthenticationError("wrong key"))) as nuc:
        await nuc.add(messages(20))
        with pytest.raises(AuthenticationError):
            if way == "stream":
                [r async for r in nuc.stream(messages(30), window=8)]
            elif way == "predict_pool":
                await nuc.predict_pool()
            elif way == "classify":
                await nuc.classify("refund please")
            else:
                await nuc.classify_many(messages(30))


@pytest.mark.parametrize("policy", ["weighted", "auto"])
@pytest.mark.parametrize("why", ERRORS)
@pytest.mark.parametrize("window", [8, 64])
async def test_a_stream_hands_over_every_text(why, window, policy):
    texts = messages(60)
    provider, store = ended_by(why, 25)
    async with client(provider, store, policy=policy) as nuc:
        results = {r.index: r async for r in nuc.stream([*texts, " "], window=window)}
    assert sorted(results) == list(range(61))
    billed = set(provider.answered)
    for i, text in enumerate(texts):
        if text in billed:
            assert results[i].prediction.label == gold(text)
        else:
            assert isinstance(results[i].error, ERRORS[why])


async def test_a_pool_says_what_ended_it_and_how_much_is_stored():
    provider, store = ended_by("quota", 25)
    async with client(provider, store) as nuc:
        await nuc.add(messages(60))
        with pytest.raises(QuotaExceededError, match="and stored before: 25"):
            await nuc.predict_pool()
        assert await store.count(nuc._parts.predictor.scope) == 25


async def test_samples_that_were_answered_count():
    provider, store = ended_by("quota", 31)
    async with client(provider, store, method=SelfConsistency(n=4)) as nuc:
        results = await nuc.classify_many(messages(20))
    assert {r.text for r in results if r.prediction is not None} == set(provider.answered)


def test_a_classifier_raises_and_says_how_much_is_stored():
    provider, store = ended_by("quota", 25)
    classifier = TestNUCClassifier(
        labels=LABELS, model=provider, store=store, embedder=HashEmbedder(), policy="auto"
    )
    classifier.fit(messages(5))
    with pytest.raises(QuotaExceededError, match=r"no more; texts answered and stored before: \d+"):
        classifier.predict(messages(65)[5:])
    classifier.close()


async def test_the_batch_lane_hands_over_what_is_stored(client_of):
    texts, store = messages(60), MemoryStore()
    async with BatchLLM(confident, api_key="secret-key-123") as llm:
        async with TestNUC(**client_of(llm, store=store)) as nuc:
            await nuc.classify_many(texts[:30])
        async with TestNUC(**client_of(llm, store=store, api_key="revoked")) as nuc:
            results = await nuc.classify_many(texts, lane="batch")
            assert isinstance(results.stopped, AuthenticationError)
            assert [r.error is None for r in results] == [True] * 30 + [False] * 30
        async with TestNUC(**client_of(llm, api_key="revoked")) as nuc:
            with pytest.raises(AuthenticationError):
                await nuc.classify_many(texts, lane="batch")


# -- what cannot begin ---------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["classify_many", "stream"])
async def test_a_wrong_key_costs_few_requests_and_no_embedding(loopback, way):
    embedder = HashEmbedder()
    async with loopback(LoopbackLLM(confident, api_key="right"), embedder=embedder) as (llm, nuc):
        with pytest.raises(AuthenticationError):
            if way == "stream":
                [r async for r in nuc.stream(messages(50), window=8)]
            await nuc.classify_many(messages(50))
    # the first text may be at fault: a few others are tried
    assert llm.requests <= 4
    assert not embedder.embedded


@pytest.mark.parametrize(("per_call", "samples"), [(1, 1), (10, 1), (1, 3)])
async def test_the_first_call_is_one_of_those_needed(loopback, per_call, samples):
    texts = messages(40)
    calls = samples * 40 // per_call
    async with loopback(
        limits=Limits(budget=Budget(calls=calls)),
        method=SelfConsistency(n=samples) if samples > 1 else None,
        sampling=testnuc.Sampling(texts_per_call=per_call),
    ) as (llm, nuc):
        results = await nuc.classify_many(texts)
        assert results.errors == []
        assert (llm.calls, results.usage.store_hits) == (calls, 0)
        again = await nuc.classify_many(texts)
        assert again.usage.calls == 0


async def test_a_slow_first_call_does_not_hold_up_embedding(client_of, monkeypatch):
    monkeypatch.setattr("testnuc._engine.pipeline._PATIENCE", 0.05)
    embedded = asyncio.Event()

    class Telling(HashEmbedder):
        async def embed(self, texts):
            vectors = await super().embed(texts)
            if self.embedded >= 20:
                embedded.set()
            return vectors

    class Waiting(LoopbackLLM):
        async def _deliver(self, *response):
            await embedded.wait()
            return await super()._deliver(*response)

    async with Waiting(confident) as llm, asyncio.timeout(60):
        async with TestNUC(**client_of(llm, embedder=Telling())) as nuc:
            assert (await nuc.classify_many(messages(20))).errors == []
        assert llm.calls == 20


class Endless(HashEmbedder):
    """Embeds no text ever."""

    async def embed(self, texts):
        await asyncio.Event().wait()


async def test_a_key_that_ends_after_few_answers_does_not_wait_for_the_embedder(loopback):
    """Two thousand texts were embedded for a minute, though the key was refused by then."""
    answered = []

    def answer(text):
        answered.append(text)
        if len(answered) == 20:
            llm._api_key = "another"
        return confident(text)

    async with (
        asyncio.timeout(60),
        loopback(answer, embedder=Endless(), policy="auto") as (llm, nuc),
    ):
        results = await nuc.classify_many(messages(100))
    assert isinstance(results.stopped, AuthenticationError)
    assert 20 <= sum(label is not None for label in results.labels) < 100


# -- texts that the embedder rejects --------------------------------------------------------------


class Picky(HashEmbedder):
    """Rejects some texts, as an embedding API does: the whole request."""

    async def embed(self, texts):
        if any("reject" in text for text in texts):
            raise testnuc.InvalidInputError("the text is too long for the embedding model")
        return await super().embed(texts)


class PickyServer(embeddings.Server):
    """The same as an API."""

    async def handle(self, request):
        if any("reject" in text for text in (await request.json())["input"]):
            return web.json_response({"error": {"message": "input is too long"}}, status=400)
        return await super().handle(request)


@contextlib.asynccontextmanager
async def picky(kind):
    if kind == "own":
        yield Picky()
        return
    async with PickyServer.embedding() as (_, embedder):
        yield embedder


BAD = "reject: my money back"


@pytest.mark.parametrize("kind", ["own", "openai"])
@pytest.mark.parametrize("way", ["classify_many", "stream"])
async def test_a_text_that_the_embedder_rejects_fails_alone(loopback, kind, way):
    texts = [*messages(50), BAD, *messages(80)[50:]]
    async with picky(kind) as embedder, loopback(embedder=embedder, k=3) as (llm, nuc):
        if way == "stream":
            results = [r async for r in nuc.stream(texts, window=32)]
            results.sort(key=lambda r: r.index)
        else:
            results = await nuc.classify_many(texts)
            assert results.stopped is None
            assert [r.text for r in results.errors] == [BAD]
        assert len(nuc) == 80
        assert llm.texts == 81
    bad = results.pop(50) if way == "stream" else results[50]
    assert "too long" in str(bad.error)
    assert bad.label == bad.prediction.label == gold(BAD)
    assert (bad.reason.code, bad.neighbors, bad.source) == ("not_embedded", (), "llm")
    assert all(r.label is not None for r in results)
    assert all(r.neighbors and r.error is None for r in results if r.text != BAD)


@pytest.mark.parametrize(
    "more",
    [
        {"policy": "auto"},
        {"join_pool": False},
        {"multilabel": True, "policy": "weighted"},
        {"neighbors": "stored"},
        {"labeler": testnuc.UncertaintySampling(max_fraction=0.5)},
    ],
)
async def test_it_fails_alone_whatever_is_asked(loopback, more):
    async with loopback(embedder=Picky(), **more) as (_, nuc):
        results = await nuc.classify_many([*messages(60), BAD])
        assert results.stopped is None
        assert [r.text for r in results.errors] == [BAD]
        assert results.errors[0].label == gold(BAD)


@pytest.mark.parametrize("more", [{"method": testnuc.TopKICL(3)}, {"shortlist": 2}])
async def test_without_neighbors_there_is_no_prompt_with_examples(loopback, more):
    async with loopback(embedder=Picky(), **more) as (llm, nuc):
        results = await nuc.classify_many([*messages(20), BAD])
        assert [(r.text, r.label) for r in results if r.label is None] == [(BAD, None)]
        assert "too long" in str(results[20].error)
        assert BAD not in llm.asked


async def test_one_call_labels_what_has_no_neighbors(loopback):
    async with loopback(embedder=Picky()) as (_, nuc):
        with pytest.raises(testnuc.InvalidInputError, match="1 of 31 texts were not added"):
            await nuc.add([*messages(30), BAD])
        assert len(nuc) == 30
        await nuc.predict_pool()
        result = await nuc.classify(BAD)
        assert result.label == gold(BAD)
        assert "too long" in str(result.error)


async def test_an_embedder_that_rejects_everything_ends_the_run(loopback):
    class Closed(HashEmbedder):
        requests = 0

        async def embed(self, texts):
            self.requests += 1
            raise testnuc.errors.BadRequestError("unknown parameter dimensions")

    embedder = Closed()
    async with loopback(embedder=embedder) as (_, nuc):
        results = await nuc.classify_many(messages(300))
        assert "unknown parameter" in str(results.stopped)
        assert embedder.requests < 20


async def test_what_was_learned_is_not_applied_without_a_vector(loopback):
    texts = messages(60)
    async with loopback(embedder=Picky(), policy="auto") as (_, nuc):
        await nuc.classify_many(texts)
        await nuc.learn(texts[:20], [gold(t) for t in texts[:20]])
        results = await nuc.classify_many([*texts, BAD])
        assert [r.text for r in results.errors] == [BAD]
        assert (results[60].label, results[60].trust) == (gold(BAD), None)
        assert results[0].source == "person"
        assert (await nuc.classify(BAD)).label == gold(BAD)


# -- a provider's own mistakes -------------------------------------------------------------------


@pytest.mark.parametrize("confidence", ["high", 85, float("nan"), -0.1, [0.5]])
async def test_a_confidence_that_is_no_number_fails_its_text_alone(confidence):
    texts = messages(30)

    class Sometimes(Provider):
        async def answer(self, request):
            reply = await super().answer(request)
            if request.texts[0] == texts[3]:
                return Reply((Answer(gold(texts[3]), confidence),))
            return reply

    async with client(Sometimes(10_000, None)) as nuc, asyncio.timeout(30):
        both = await asyncio.gather(nuc.classify_many(texts), nuc.classify_many(texts[2:5]))
    for results in both:
        (bad,) = results.errors
        assert bad.text == texts[3]
        assert "confidence" in str(bad.error)
        assert repr(confidence) in str(bad.error)
        assert results.stopped is None


@pytest.mark.parametrize("method", ["start", "stage", "advance", "close", "note"])
async def test_an_observer_that_raises_anywhere_ends_no_other_run(method):
    class Watch:
        def start(self, texts): ...
        def stage(self, name): ...
        def advance(self, texts=1): ...
        def close(self): ...
        def note(self, error): ...

    def fail(*_):
        raise RuntimeError("mistake")

    watch = Watch()
    setattr(watch, method, fail)
    texts = messages(30)
    async with client(Provider(10_000, None)) as nuc, asyncio.timeout(30):
        watched, other = await asyncio.gather(
            nuc.classify_many(texts, progress=watch),
            nuc.classify_many(texts),
            return_exceptions=True,
        )
    assert isinstance(watched, RuntimeError) == (method != "note")
    assert other.errors == []


async def test_a_provider_with_too_few_answers_fails_its_texts_with_a_reason():
    class Few:
        name, model, identity = "few", "m", "1"

        async def answer(self, request):
            return Reply(())

    async with TestNUC(LABELS, model=Few(), embedder=HashEmbedder()) as nuc:
        with pytest.raises(ReplyError, match="0 answers for 1 texts"):
            await nuc.classify("hello")
