"""The batch lane against a real server that speaks both batch APIs, whatever goes wrong."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from uuid import uuid4

import pytest

import testnuc
from bench._batch_api import Batches, BatchLLM
from testnuc import BatchPolicy, Budget, Limits, Sampling, SelfConsistency, TestNUC, TopKICLP
from testnuc._base.checks import hash_text
from testnuc.batch.apis import AnthropicBatches, MistralBatches, OpenAIBatches
from testnuc.batch.manifest import RequestedPrediction, pack, unpack
from testnuc.errors import (
    AuthenticationError,
    BadRequestError,
    BudgetExceededError,
    ContentRefusedError,
    InvalidInputError,
    QuotaExceededError,
    ServerError,
)
from testnuc.providers.openai import OpenAI
from testnuc.stores.memory import MemoryStore
from testnuc.testing import Faults, HashEmbedder
from tests.conftest import LABELS, confident, gold, messages
from tests.doubles import Says
from tests.leasing import LeaseStore
from tests.waiting import until

MODELS = ["openai/test", "anthropic/claude-test", "mistral/test", "gemini/test"]
#: What a single request of a batch can suffer.
ITEM_FAULTS = ("429", "500", "503", "529", "truncated", "empty-choices", "prose", "missing-usage")


@pytest.fixture(params=MODELS)
def model(request):
    return request.param


def agree(usage, llm):
    """Whether a client counted what the server did."""
    mine = (usage.calls, usage.input_tokens, usage.output_tokens)
    return mine == (llm.calls, llm.input_tokens, llm.output_tokens)


async def noted(store):
    """Wait until the provider's id of a batch is stored."""
    async with asyncio.timeout(60):
        while not any(b.remote_id for b in await store.batches()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class Recording(MemoryStore):
    """Remembers the rows that were put."""

    def __init__(self):
        super().__init__()
        self.put = []

    async def put_predictions(self, rows):
        self.put += rows
        return await super().put_predictions(rows)


async def stored_usage(store):
    ended = await store.batches(ended=True)
    assert all(b.outcome is not None for b in ended)
    return sum(b.usage.calls for b in ended), sum(b.usage.input_tokens for b in ended)


@pytest.mark.slow
async def test_a_list_is_labeled_as_the_live_lane_does(model, lane):
    texts = messages(350)
    async with BatchLLM(confident, batches=Batches(validation=2, polls=2)) as llm:
        async with lane(llm, model=model) as nuc:
            live = await nuc.classify_many([*texts, *texts[:20]])
        llm.reset()
        store = MemoryStore()
        async with lane(llm, model=model, store=store) as nuc:
            results = await nuc.classify_many([*texts, *texts[:20]], lane="batch")
            assert [(r.label, r.share, r.prediction) for r in results] == [
                (r.label, r.share, r.prediction) for r in live
            ]
            assert (llm.batches, llm.calls) == (4, 350)
            assert agree(results.usage, llm)
            assert await stored_usage(store) == (llm.calls, llm.input_tokens)
            # predictions are shared with the live lane: nothing is asked again
            again = await nuc.classify_many(texts)
            assert (again.usage.calls, again.usage.store_hits) == (0, 350)
            more = await nuc.classify_many([*texts, *messages(360)], lane="batch")
            assert (more.usage.calls, llm.batches) == (10, 5)


async def test_uploaded_files_are_deleted_when_their_answers_are_stored(serving):
    async with serving(model="openai/test") as (llm, nuc):
        await nuc.classify_many(messages(250), lane="batch")
        assert llm.batches == 3
        assert llm.batch_server.files == {}


async def test_packs_and_batches_multiply(model, serving):
    texts = messages(230)
    faults = Faults(schedule=["missing-ids", "duplicate-ids", "prose"])
    options = {"sampling": Sampling(texts_per_call=10), "policy": {"max_requests": 10}}
    async with serving(faults=faults, model=model, **options) as (llm, nuc):
        results = await nuc.classify_many(texts, lane="batch")
        assert [r.prediction.label for r in results] == [gold(t) for t in texts]
        # 23 requests in 3 batches; then alone the two that have one id, and the ten of the reply
        # without the last id
        assert agree(nuc.usage, llm)
        assert llm.calls == 23 + 2 + 10
        assert llm.batches == 5


@pytest.mark.slow
async def test_all_that_can_go_wrong_at_once(model, serving):
    texts = messages(1_000)
    batches = Batches(
        validation=3,
        polls=2,
        outcomes=["expired", None, "failed", "cancelled"],
        shuffle=True,
        duplicates=0.2,
        missing=0.05,
        refusals=3,
        lost=[1],
    )
    faults = Faults(rate=0.1, kinds=ITEM_FAULTS, most_in_a_row=2)
    options = {"model": model, "policy": {"attempts": 8}}
    async with serving(batches=batches, faults=faults, **options) as (llm, nuc):
        results = await nuc.classify_many(texts, lane="batch")
        assert not results.errors
        assert [r.prediction.label for r in results] == [gold(t) for t in texts]
        assert nuc.usage.calls == llm.calls
        # what was answered well is not asked again
        wrong = sum(llm.faults[kind] for kind in ("empty-choices",))
        assert llm.calls == 1_000 + wrong
        assert max(llm.asked.values()) <= 3


@pytest.mark.parametrize("outcome", ["expired", "cancelled"])
async def test_the_rest_is_asked_live_or_left_as_the_user_chose(model, outcome, lane):
    texts = messages(60)
    batches = Batches(outcomes=[outcome], answered=0.5)
    async with BatchLLM(confident, batches=batches) as llm:
        async with lane(llm, model=model, policy={"rest": "error"}) as nuc:
            results = await nuc.classify_many(texts, lane="batch")
            assert (len(results.errors), llm.calls, llm.batches) == (30, 30, 1)
            assert all(
                "expired" in str(r.error) or "cancel" in str(r.error) for r in results.errors
            )
        llm.reset()
        async with lane(llm, model=model, policy={"rest": "live"}) as nuc:
            results = await nuc.classify_many(texts, lane="batch")
            assert (len(results.errors), llm.calls, llm.batches) == (0, 60, 1)
            assert agree(nuc.usage, llm)
        llm.reset()
        async with lane(llm, model=model) as nuc:
            results = await nuc.classify_many(texts, lane="batch")
            assert (len(results.errors), llm.calls, llm.batches) == (0, 60, 2)


@pytest.mark.slow
async def test_the_rest_joins_live_requests_in_flight(lane):
    texts = messages(40)
    batches = Batches(outcomes=["expired"], answered=0.5)
    async with (
        BatchLLM(confident, batches=batches, latency=0.3) as llm,
        lane(llm, policy={"rest": "live"}) as nuc,
    ):
        slow = asyncio.create_task(nuc.classify_many(texts, lane="batch"))
        # live calls for the rest are in flight
        await until(lambda: llm.in_flight >= 10)
        live = await nuc.classify_many(texts)
        assert (await slow).labels == live.labels
        assert (llm.calls, nuc.usage.calls) == (40, 40)


@pytest.mark.parametrize("cancelled", [True, False])
async def test_what_the_live_lane_asks_is_not_sent_in_a_batch(lane, cancelled):
    texts = messages(40)
    gate = asyncio.Event()
    async with (
        BatchLLM(confident) as llm,
        lane(llm) as nuc,
    ):
        held, post = nuc._parts.transport._connections, nuc._parts.transport._connections.post

        async def waiting(*args, **kwargs):
            await gate.wait()
            return await post(*args, **kwargs)

        held.post = waiting
        live = asyncio.create_task(nuc.classify_many(texts[:12]))
        await until(lambda: len(nuc._parts.scheduler.requests) == 12)
        batch = asyncio.create_task(nuc.classify_many(texts, lane="batch"))
        # the job has what no live call asks about
        await until(lambda: llm.batches == 1)
        if cancelled:
            live.cancel()
        gate.set()
        results = await batch
        await asyncio.gather(live, return_exceptions=True)
        assert not results.errors
        assert (llm.calls, llm.batches) == (40, 1)


async def test_live_calls_for_the_rest_are_stored_though_the_run_is_cancelled(lane):
    store = MemoryStore()
    batches = Batches(outcomes=["expired"], answered=0.5)
    async with BatchLLM(confident, batches=batches, latency=0.1) as llm:
        async with lane(llm, store=store, policy={"rest": "live"}) as nuc:
            run = asyncio.create_task(nuc.classify_many(messages(60), lane="batch"))
            # the batch has brought its half, the others are under way
            await until(lambda: llm.calls >= 30 and llm.in_flight >= 10)
            under_way = llm.in_flight
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
            predicted = (await nuc.stats()).predicted
            assert predicted < 30 + under_way
        assert llm.abandoned == 0
        async with lane(llm, store=store) as nuc:
            assert (await nuc.stats()).predicted == llm.calls >= 30 + under_way


async def test_the_error_of_one_item_is_that_of_one_text(model, serving):
    texts = messages(20)
    schedule = ["content-filter", None, "refusal", "wrong-label"]
    async with serving(faults=Faults(schedule=schedule), model=model, k=0) as (llm, nuc):
        results = await nuc.classify_many(texts, lane="batch")
        assert [r.index for r in results.errors] == [0, 2]
        assert isinstance(results[0].error, ContentRefusedError)
        assert isinstance(results[2].error, testnuc.errors.RefusalError)
        assert results[3].prediction.label is None
        assert results[1].label == gold(texts[1])
        assert (llm.batches, llm.calls) == (1, 19)


async def test_what_fails_for_all_raises(model, lane, serving):
    store = MemoryStore()
    async with BatchLLM(confident, api_key="other") as llm:
        async with lane(llm, model=model, store=store) as nuc:
            with pytest.raises(AuthenticationError) as caught:
                await nuc.classify_many(messages(250), lane="batch")
        assert await store.batches() == []
        # the key is nowhere but in the headers
        assert "secret-key-123" not in str(caught.value)
        assert "secret-key-123" not in str(await store.batches(ended=True))
    async with BatchLLM(confident, model="other") as llm, lane(llm, model=model) as nuc:
        with pytest.raises(testnuc.errors.UnknownModelError):
            await nuc.classify_many(messages(20), lane="batch")
    failed = Batches(max_requests=5)
    async with serving(batches=failed, model=model) as (llm, nuc):
        if model.startswith("mistral"):
            # its errors have no code: whether the batch may succeed later is unknown
            results = await nuc.classify_many(messages(20), lane="batch")
            assert {type(row.error) for row in results} == {ServerError}
            assert llm.batches == BatchPolicy().attempts
        else:
            with pytest.raises(BadRequestError):
                await nuc.classify_many(messages(20), lane="batch")
        assert llm.calls == 0


async def test_a_form_that_is_refused_is_changed_for_all(lane):
    async with (
        BatchLLM(confident, structured=False, rejects=["temperature"]) as llm,
        lane(llm, policy={"attempts": 1}) as nuc,
    ):
        results = await nuc.classify_many(messages(150), lane="batch")
        assert not results.errors
        assert llm.calls == 150


async def test_creations_wait_while_the_provider_has_no_room(model, serving):
    async with serving(batches=Batches(refusals=5), model=model) as (llm, nuc):
        await nuc.classify_many(messages(250), lane="batch")
        assert (llm.batches, llm.calls) == (3, 250)


async def test_a_full_queue_makes_smaller_batches(serving):
    batches = Batches(enqueued_tokens=8_000)
    async with serving(batches=batches) as (llm, nuc):
        results = await nuc.classify_many(messages(200), lane="batch")
        assert not results.errors
        assert llm.calls == 200
        assert llm.batches > 5


async def test_a_queue_is_not_filled_beyond_what_the_user_allows(serving):
    batches, store = Batches(enqueued_tokens=8_000), MemoryStore()
    policy = {"max_enqueued_tokens": 7_000}
    async with serving(batches=batches, store=store, policy=policy) as (_, nuc):
        await nuc.classify_many(messages(200), lane="batch")
        assert {b.outcome for b in await store.batches(ended=True)} == {"completed"}


async def test_batches_keep_within_the_bytes_of_the_provider(model, serving, monkeypatch):
    most, store = 30_000, MemoryStore()
    for api in (AnthropicBatches, OpenAIBatches, MistralBatches):
        monkeypatch.setattr(api, "max_bytes", most)
    async with serving(batches=Batches(max_bytes=most), model=model, store=store) as (llm, nuc):
        results = await nuc.classify_many(messages(100), lane="batch")
        assert not results.errors
        assert 3 < llm.batches < 10
        assert {b.outcome for b in await store.batches(ended=True)} <= {"completed", "ended"}


async def test_a_budget_is_reserved_before_a_batch_is_created(lane):
    texts = messages(200)
    async with BatchLLM(confident) as llm:
        async with lane(llm, limits=Limits(budget=Budget(calls=130))) as nuc:
            results = await nuc.classify_many(texts, lane="batch")
            assert llm.calls == nuc.usage.calls == 130
            assert len(results.errors) == 70
            assert all(isinstance(r.error, BudgetExceededError) for r in results.errors)
        llm.reset()
        tokens = 60 * 500
        async with lane(llm, limits=Limits(budget=Budget(tokens=tokens))) as nuc:
            results = await nuc.classify_many(texts, lane="batch")
            assert 60 < llm.calls < 200
            assert llm.input_tokens + llm.output_tokens <= tokens
            assert llm.calls == 200 - len(results.errors)


async def test_samples_of_a_method_go_out_together(model, serving):
    texts = messages(60)

    def answer(text, n):
        return LABELS[(len(text) + n // 2) % 3], 0.6

    async with serving(answer, model=model, method=SelfConsistency(n=5)) as (llm, nuc):
        await nuc.classify_many(texts, lane="batch")
        assert llm.calls == 300
        assert llm.batches == 3
        assert set(llm.asked.values()) == {5}


async def test_samples_are_packed_with_other_texts(serving):
    packed = Sampling(texts_per_call=20)
    async with serving(method=SelfConsistency(n=4), sampling=packed) as (llm, nuc):
        results = await nuc.classify_many(messages(60), lane="batch")
        assert not results.errors
        assert (llm.calls, llm.batches) == (12, 1)


async def test_examples_with_labels_take_two_stages(lane):
    texts = messages(150)
    async with BatchLLM(confident) as llm:
        async with lane(llm, method=TopKICLP(k=3)) as nuc:
            live = await nuc.classify_many(texts)
            calls = nuc.usage.calls
        llm.reset()
        async with lane(llm, method=TopKICLP(k=3), policy={"max_requests": 1_000}) as nuc:
            results = await nuc.classify_many(texts, lane="batch")
            assert results.labels == live.labels
            assert nuc.usage.calls == llm.calls == calls
            assert llm.batches == 2


async def test_neighbors_outside_the_batch_are_one_more_stage_at_most(serving):
    async with serving(k=5, join_pool=False) as (llm, nuc):
        await nuc.add(messages(200)[100:])
        await nuc.classify_many(messages(50), lane="batch")
        # no waves of neighbors: each would be a day
        assert llm.batches <= 3


async def test_a_live_run_makes_its_own_calls_while_a_batch_job_is_open(serving):
    texts = messages(40)
    batches = Batches(polls=30)
    async with serving(batches=batches) as (llm, nuc):
        one, two = await asyncio.gather(
            nuc.classify_many(texts, lane="batch"),
            nuc.classify_many(texts, lane="batch"),
        )
        assert one.labels == two.labels
        slow = asyncio.create_task(nuc.classify_many(messages(60)[40:], lane="batch"))
        await until(lambda: llm.batches == 2)
        live = await nuc.classify_many(messages(60)[40:])
        assert not slow.done()
        assert live.usage.calls == 20
        assert (await slow).labels == live.labels
        assert (llm.calls, nuc.usage.calls) == (80, 80)


@pytest.mark.parametrize("per_call", [1, 10])
async def test_a_run_that_is_cancelled_leaves_its_batches_to_the_next(model, lane, per_call):
    texts, store = messages(90), MemoryStore()
    options = {"model": model, "store": store, "sampling": Sampling(texts_per_call=per_call)}
    batches = Batches(polls=20, shuffle=True)
    async with BatchLLM(confident, batches=batches) as llm:
        async with lane(llm, **options) as nuc:
            run = asyncio.create_task(nuc.classify_many(texts, lane="batch"))
            await until(lambda: llm.batches == 1)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
        open_ = await store.batches()
        assert [b.remote_id is not None for b in open_] == [True]
        async with lane(llm, **options) as nuc:
            results = await nuc.classify_many(texts, lane="batch")
            assert [r.prediction.label for r in results] == [gold(t) for t in texts]
            assert (llm.batches, llm.calls, nuc.usage.calls) == (1, 90 // per_call, 90 // per_call)


async def test_confidences_of_token_probabilities_come_through(lane):
    texts = messages(30)
    async with BatchLLM(confident) as llm:
        async with lane(llm, sampling=Sampling(confidence="logprobs")) as nuc:
            live = await nuc.classify_many(texts)
        async with lane(llm, sampling=Sampling(confidence="logprobs")) as nuc:
            results = await nuc.classify_many(texts, lane="batch")
    assert [r.prediction for r in results] == [r.prediction for r in live]
    assert all(r.prediction.confidence is not None for r in results)


async def test_processes_that_share_a_database_ask_once(lane, database):
    texts = messages(120)
    url = database.url(f"t{uuid4().hex}")
    async with (
        BatchLLM(confident, batches=Batches(polls=5)) as llm,
        lane(llm, store=url) as first,
        lane(llm, store=url) as second,
    ):
        one, two = await asyncio.gather(
            first.classify_many(texts, lane="batch"), second.classify_many(texts, lane="batch")
        )
        assert one.labels == two.labels
        assert llm.calls == 120
        assert first.usage.calls + second.usage.calls == 120
        # a live run does not wait for what a batch will bring
        llm.batch_server.options = Batches(polls=100_000)
        slow = asyncio.create_task(first.classify_many(messages(130)[120:], lane="batch"))
        await until(lambda: llm.batches >= 3)
        await second.classify_many(messages(130)[120:])
        assert llm.calls == 130
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)


@pytest.mark.slow
async def test_a_pool_is_predicted_in_one_stage(model, serving):
    policy = {"max_requests": 5_000}
    async with serving(model=model, neighbors="stored", k=3, policy=policy) as (llm, nuc):
        await nuc.add(messages(2_500))
        await nuc.predict_pool(lane="batch")
        assert (llm.batches, llm.calls) == (1, 2_500)
        await nuc.classify_many(messages(2_510)[2_500:], lane="batch")
        assert (llm.batches, llm.calls) == (2, 2_510)


async def test_two_processes_follow_one_batch_and_one_counts_it(model, lane):
    texts = messages(80)
    store = MemoryStore()
    async with (
        BatchLLM(confident, batches=Batches(polls=50)) as llm,
        lane(llm, model=model, store=store) as first,
        lane(llm, model=model, store=store) as second,
    ):
        run = asyncio.create_task(first.classify_many(texts, lane="batch"))
        await noted(store)
        other = await second.classify_many(texts, lane="batch")
        assert (await run).labels == other.labels
        assert (llm.batches, llm.calls) == (1, 80)
        assert sorted((first.usage.calls, second.usage.calls)) == [0, 80]


@pytest.mark.parametrize("step", [1, -1], ids=["", "clock set back"])
async def test_processes_that_begin_at_the_same_time_send_what_they_share_once(
    model, lane, step, monkeypatch
):
    """Each looks for batches of the other before either has one."""
    clock = count(2_000_000_000, step)
    monkeypatch.setattr("testnuc.batch.lane.time", SimpleNamespace(time=lambda: next(clock)))
    texts = messages(160)
    store = MemoryStore()
    async with (
        BatchLLM(confident, batches=Batches(polls=20)) as llm,
        lane(llm, model=model, store=store, policy={"max_requests": 20}) as first,
        lane(llm, model=model, store=store, policy={"max_requests": 20}) as second,
    ):
        one, two = await asyncio.gather(
            first.classify_many(texts[:120], lane="batch"),
            second.classify_many(texts[40:], lane="batch"),
        )
        assert not one.errors
        assert not two.errors
        assert one.labels[40:] == two.labels[:80]
        assert llm.calls == 160
        assert first.usage.calls + second.usage.calls == 160
        assert all(batch.outcome is not None for batch in await store.batches(ended=True))


class Subclass(OpenAI):
    """A provider of ours, changed by its user."""

    name = "mine"


class Wrapper:
    """A provider of a user's own, which leaves all but its name to another one."""

    name = "mine"

    def __init__(self, model, **where):
        self._provider = OpenAI(model, **where)

    def __getattr__(self, name):
        return getattr(self._provider, name)


@pytest.mark.parametrize("kind", [Subclass, Wrapper])
async def test_a_provider_of_a_users_own_names_its_batch_format(client_of, kind):
    async with BatchLLM(confident) as llm:
        provider = kind("test", base_url=llm.base_url, api_key="key")
        policy = BatchPolicy(first_poll=0.001, longest_poll=0.002)
        async with TestNUC(**client_of(llm, model=provider, limits=Limits(batches=policy))) as nuc:
            results = await nuc.classify_many(messages(20), lane="batch")
            assert [r.prediction.label for r in results] == [gold(t) for t in messages(20)]
            assert agree(results.usage, llm)
        assert (llm.batches, llm.calls) == (1, 20)


async def test_bad_arguments_are_refused_before_anything_is_sent(client_of):
    async with BatchLLM(confident) as llm:
        async with TestNUC(**client_of(llm)) as nuc:
            with pytest.raises(InvalidInputError, match="lane is 'fast'"):
                await nuc.classify_many(messages(3), lane="fast")
        async with TestNUC(**client_of(llm) | {"model": Says(gold)}) as nuc:
            with pytest.raises(InvalidInputError, match="'double' names no supported batch_format"):
                await nuc.classify_many(messages(3), lane="batch")

        class Lacking:
            def __init__(self):
                self._store = MemoryStore()

            def __getattr__(self, name):
                if "batch" in name:
                    raise AttributeError(name)
                return getattr(self._store, name)

        async with TestNUC(**client_of(llm, store=Lacking())) as nuc:
            with pytest.raises(InvalidInputError, match="needs a store with the methods"):
                await nuc.classify_many(messages(3), lane="batch")
        assert llm.requests == 0
    for wrong in ({"rest": "soon"}, {"attempts": 0}, {"in_flight": None}, {"grace": -1}):
        with pytest.raises(InvalidInputError, match=next(iter(wrong))):
            BatchPolicy(**wrong)


@pytest.mark.parametrize("known", [True, False])
async def test_what_another_process_creates_is_left_to_it_while_it_lives(model, lane, known):
    texts = messages(60)
    store = MemoryStore()
    batches = Batches(polls=5)
    async with BatchLLM(confident, batches=batches) as llm:
        async with lane(llm, model=model, store=store) as nuc:
            # as another process would: the batch is there, and its id is not noted yet
            run = asyncio.create_task(nuc.classify_many(texts, lane="batch"))
            await noted(store)
            (batch,) = await store.batches()
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
        store = MemoryStore()
        await store.put_batch(replace(batch, remote_id=None), b"another", 60 if known else 0.15)
        async with lane(llm, model=model, store=store) as nuc:
            run = asyncio.create_task(nuc.classify_many(texts, lane="batch"))
            await asyncio.sleep(0.05)
            assert llm.batches == 1
            if known:
                await store.note_batch(batch.id, batch.remote_id)
            results = await run
            assert not results.errors
            assert (llm.batches, llm.calls, nuc.usage.calls) == (1, 60, 60)


async def test_what_another_process_has_stored_meanwhile_is_not_sent(model, lane):
    texts = messages(60)
    store, full = MemoryStore(), Recording()
    async with BatchLLM(confident) as llm:
        async with lane(llm, model=model, store=full) as nuc:
            await nuc.classify_many(texts, lane="batch")
        (batch,) = await full.batches(ended=True)
        items = pack([(RequestedPrediction(r.key, r.text_hash, r.sample),) for r in full.put])
        open_ = replace(batch, items=items, remote_id=None, outcome=None, usage=None)
        await store.put_batch(open_, b"another", 60)
        async with lane(llm, model=model, store=store) as nuc:
            run = asyncio.create_task(nuc.classify_many(texts, lane="batch"))
            await asyncio.sleep(0.05)
            await store.put_predictions(full.put)
            await store.end_batch(batch.id, "completed", batch.usage)
            results = await run
            assert not results.errors
            assert (llm.batches, llm.calls, nuc.usage.calls) == (1, 60, 0)


@pytest.mark.parametrize(
    "policy", [{"in_flight": 1}, {"max_enqueued_tokens": 1}], ids=["jobs", "tokens"]
)
async def test_a_live_run_elsewhere_asks_what_waits_to_be_sent_in_a_batch(lane, policy):
    texts, store = messages(60), LeaseStore()
    async with (
        BatchLLM(confident, batches=Batches(polls=10**9)) as llm,
        lane(llm, store=store, policy={"max_requests": 20, **policy}) as ours,
        lane(llm, store=LeaseStore(store)) as theirs,
    ):
        run = asyncio.create_task(ours.classify_many(texts, lane="batch"))
        await noted(store)
        (first,) = await store.batches()
        async with asyncio.timeout(30):
            live = await theirs.classify_many(texts[15:45])
        assert (live.errors, live.usage.calls, llm.batches) == ([], 30, 1)
        llm.batch_server.options = replace(llm.batch_server.options, polls=1)
        results = await run
        assert not results.errors
        # those of the first batch are asked in both lanes, as a live run waits for no batch
        sent = {wanted.text_hash for item in unpack(first.items) for wanted in item}
        both = sent.intersection(map(hash_text, texts[15:45]))
        assert (llm.calls, ours.usage.calls) == (60 + len(both), 30 + len(both))
        assert store.leases == {}


@pytest.mark.parametrize("stored", [True, False])
async def test_what_others_ask_when_a_batch_is_sent_is_not_in_it(lane, stored):
    texts, full = messages(40), Recording()

    class Contested(LeaseStore):
        """Another process leases ten keys when the batch is sent, and has them for a while."""

        calls = 0

        async def lease(self, keys, seconds):
            self.calls += 1
            if self.calls == 2:
                self.leases.update((row.key, ("another", 9.0)) for row in full.put[10:20])
            if self.calls == 5:
                if stored:
                    await super().put_predictions(full.put[10:20])
                for row in full.put[10:20]:
                    self.leases.pop(row.key, None)
            return await super().lease(keys, seconds)

    store = Contested()
    async with BatchLLM(confident) as llm:
        packed = Sampling(texts_per_call=4)
        async with lane(llm, store=full, sampling=packed) as nuc:
            await nuc.classify_many(texts, lane="batch")
        llm.reset()
        async with lane(llm, store=store, sampling=packed) as nuc:
            results = await nuc.classify_many(texts, lane="batch")
        assert not results.errors
        assert [r.prediction.label for r in results] == [gold(text) for text in texts]
        # thirty texts in one batch, each pack without what others ask, and the rest in another
        assert (llm.batches, llm.texts) == ((1, 30) if stored else (2, 40))
        assert store.leases == {}
        assert {b.outcome for b in await store.batches(ended=True)} == {"completed"}


async def test_a_batch_that_was_taken_away_while_it_was_created_is_sent_anew(model, serving):
    store = MemoryStore()

    def step(name):
        # the process sleeps for longer than the grace, and another takes what it had intended
        if name in {"upload", "create"} and not taken:
            (batch,) = store._batches.values()
            taken.append(batch.id)
            store._leases[batch.id] = (b"another", time.monotonic() + 60)
            store._batches[batch.id] = replace(batch, outcome="never created", usage=None)

    taken = []
    batches = Batches(step=step, refusals=1)
    async with serving(batches=batches, model=model, store=store) as (llm, nuc):
        results = await nuc.classify_many(messages(30), lane="batch")
        assert not results.errors
        assert (llm.batches, llm.calls) == (1, 30)
        ends = [b.outcome for b in await store.batches(ended=True)]
        assert sorted(ends)[1] == "never created"


async def test_a_provider_that_accepts_no_batch_ends_the_run(model, serving):
    """Those that waited for their turn counted as open, for whose end the first one waited."""
    batches, policy = Batches(refusals=10**9), {"max_requests": 10}
    async with serving(batches=batches, model=model, policy=policy) as (llm, nuc):
        async with asyncio.timeout(60):
            results = await nuc.classify_many(messages(30), lane="batch")
        assert len(results.errors) == 30
        assert llm.batches == 0


async def test_batches_of_others_are_not_taken_for_ours(lane):
    model, store = "anthropic/claude-test", MemoryStore()
    policy = {"max_requests": 40}
    async with (
        BatchLLM(confident, batches=Batches(lost=[0, 1, 2], polls=3)) as llm,
        lane(llm, model=model, store=store, policy=policy) as ours,
        lane(llm, model=model, policy=policy, sampling=Sampling(temperature=0.1)) as theirs,
    ):
        # three batches of the same size at the same time, and no id was returned
        mine, others = await asyncio.gather(
            ours.classify_many(messages(80), lane="batch"),
            theirs.classify_many(messages(40), lane="batch"),
        )
        assert not mine.errors + others.errors
        assert (llm.batches, llm.calls) == (3, 120)


@pytest.mark.slow
async def test_a_provider_that_is_away_for_a_while_is_waited_for(model, serving):
    retry = testnuc.RetryPolicy(attempts=2, initial_wait=0.001)
    batches = Batches(polls=100, broken=2)
    async with serving(
        batches=batches, model=model, limits=Limits(retry=retry), policy={"max_requests": 30}
    ) as (llm, nuc):
        run = asyncio.create_task(nuc.classify_many(messages(90), lane="batch"))
        await until(lambda: llm.batches == 3)
        await llm.stop()
        await asyncio.sleep(0.05)
        await llm.start()
        results = await run
        assert not results.errors
        assert llm.calls == nuc.usage.calls == 90


async def test_a_batch_that_is_gone_is_sent_again(model, lane):
    store = MemoryStore()
    async with BatchLLM(confident, batches=Batches(polls=10_000)) as llm:
        async with lane(llm, model=model, store=store, policy={"patience": 0.05}) as nuc:
            run = asyncio.create_task(nuc.classify_many(messages(30), lane="batch"))
            await noted(store)
            llm.batch_server.batches.clear()
            llm.batch_server.options = Batches()
            results = await run
            assert not results.errors
        ends = [b.outcome for b in await store.batches(ended=True)]
        assert ends[0] == "gone"
        assert len(ends) == 2


async def test_an_exhausted_quota_ends_the_run(serving):
    async with serving(faults=Faults(schedule=lambda _: "quota")) as (llm, nuc):
        with pytest.raises(QuotaExceededError):
            await nuc.classify_many(messages(20), lane="batch")
        assert llm.batches == 1


async def test_an_azure_deployment_has_no_batches():
    base_url = "https://x.openai.azure.com/openai/deployments/d?api-version=2024-10-21"
    async with TestNUC(
        LABELS, "openai/d", base_url=base_url, api_key="k", embedder=HashEmbedder()
    ) as nuc:
        with pytest.raises(InvalidInputError, match="openai/v1"):
            await nuc.classify_many(messages(3), lane="batch")
