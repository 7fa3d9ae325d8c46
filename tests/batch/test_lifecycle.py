"""The life of one batch over hours that pass in no time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import aiohttp
import orjson
import pytest

from testnuc.batch.apis import AnthropicBatches, OpenAIBatches
from testnuc.batch.base import BatchResultLine, QueueFullError, RemoteBatch, poll_after
from testnuc.batch.lifecycle import BatchLifecycle, UnknownOutcomeError
from testnuc.batch.manifest import RequestedPrediction, ResponseReader, custom_id, pack
from testnuc.batch.rounds import TokenQueue
from testnuc.errors import (
    AuthenticationError,
    BadRequestError,
    ConnectionFailedError,
    NotAnsweredError,
    RateLimitedError,
    ServerError,
    UnknownModelError,
)
from testnuc.labels import LabelSet
from testnuc.limits.budget import Price
from testnuc.limits.policies import BatchPolicy
from testnuc.protocols import StoredBatch, Task
from testnuc.providers.anthropic import Anthropic
from testnuc.providers.openai import OpenAI
from testnuc.stores.memory import MemoryStore
from testnuc.transport.connections import HTTPAnswer
from testnuc.types import Prediction
from tests import virtual

LABELS = LabelSet(["refund", "delivery"])
BATCH = StoredBatch(
    b"b" * 16, b"s" * 16, {}, 1, 0.0, pack([(RequestedPrediction(b"k" * 16, b"t" * 16, 0),)])
)
BODY = orjson.dumps(
    {
        "choices": [{"message": {"content": '{"label": "refund"}'}}],
        "usage": {"prompt_tokens": 1_000_000, "completion_tokens": 1_000_000},
    }
)
RUNNING = RemoteBatch("remote", "in_progress", ended=False, total=1, done=0)
ENDED = RemoteBatch("remote", "completed", ended=True, total=1, done=1, results=("file",))


class Script:
    """A scripted batch API: each entry is returned, or raised."""

    def __init__(self, loop, retrieves=(), creates=(), found=None):
        self.loop = loop
        self.retrieves, self.creates, self.found = retrieves, list(creates), found
        self.asked, self.created, self.looked = [], [], 0

    async def prepare(self, name, lines):
        return b"".join(lines)

    async def create(self, name, prepared):
        self.created.append(self.loop.now)
        return self._next(self.creates.pop(0))

    async def retrieve(self, remote_id):
        self.asked.append(self.loop.now)
        return self._next(self.retrieves(self.loop.now - 1000))

    async def find(self, batch, known, wait):
        self.looked += 1
        return self.found

    async def read(self, remote, take):
        take(BatchResultLine(custom_id(BATCH.id.hex(), 0), 200, BODY))

    async def discard(self, uploads):
        self.discarded = uploads

    def _next(self, entry):
        if isinstance(entry, Exception):
            raise entry
        return entry


def lifecycle_of(api, store, **policy):
    provider = OpenAI("m", base_url="http://localhost/v1")
    reader = ResponseReader(provider, Task("", LABELS.names), LABELS)
    price = Price.per_million(1, 2)
    return BatchLifecycle(api, reader, store, policy=BatchPolicy(**policy), price=price)


@virtual.in_virtual_time
async def test_a_day_of_waiting_is_looked_at_less_and_less_often(loop):
    api = Script(loop, lambda now: ENDED if now > 20 * 3600 else RUNNING)
    store = MemoryStore()
    one = lifecycle_of(api, store)
    await one.intend(BATCH)
    await store.note_batch(BATCH.id, "remote")
    (batch,) = await store.batches()
    remote, outcomes, usages = await one.follow(batch)
    waits = [round(b - a, 3) for a, b in zip(api.asked, api.asked[1:], strict=False)]
    assert waits[:4] == [5, 7.5, 11.25, 16.875]
    assert max(waits) == 60
    assert 1_200 <= len(waits) <= 1_210
    assert remote.status == "completed"
    assert outcomes == {b"k" * 16: Prediction("refund")}
    assert len(usages) == 1
    (ended,) = await store.batches(ended=True)
    # the price of the lane, to the cent
    assert (ended.outcome, ended.usage.usd, ended.items) == ("completed", 3.0, b"")
    assert await store.get_predictions([b"k" * 16]) == [Prediction("refund")]
    # a second reader of the same batch counts nothing
    assert (await one.follow(batch))[2] is None


class Slow:
    """A list of batches without an end, each of whose pages takes ten seconds."""

    asked = 0

    async def send(self, provider, method, url):
        await asyncio.sleep(10)
        self.asked += 1
        page = {"data": [{"id": f"batch-{self.asked}"}], "has_more": True}
        return HTTPAnswer(200, {}, orjson.dumps(page))


@pytest.mark.parametrize(
    "tokens", ["x", 7, [], [1], [None, 1], ["one", "2"], {"0": 1}, [True, [2]], [-1, 5], [1, 2, 3]]
)
@virtual.in_virtual_time
async def test_sizes_of_requests_that_a_store_from_elsewhere_states_wrongly(loop, tokens):
    batch = replace(BATCH, remote_id="remote", facts={"tokens": tokens})
    store = MemoryStore()
    one = lifecycle_of(Script(loop, lambda now: ENDED), store)
    await one.intend(batch)
    _, outcomes, usages = await one.follow(batch)
    assert outcomes == {b"k" * 16: Prediction("refund")}
    # as in a batch of a version that did not state them
    assert usages[0].input_tokens == 1_000_000


@pytest.mark.parametrize("kind", [OpenAI, Anthropic])
@virtual.in_virtual_time
async def test_the_search_for_a_batch_has_an_end(loop, kind):
    provider = kind("m", base_url="http://localhost", api_key="k")
    api = {OpenAI: OpenAIBatches, Anthropic: AnthropicBatches}[kind](provider, Slow())
    store = MemoryStore()
    one = lifecycle_of(api, store, patience=60)
    await one.intend(BATCH)
    with pytest.raises(NotAnsweredError, match="patience=60"):
        await one.adopt(BATCH)
    assert loop.now - 1_000 < 200
    # it stays open: perhaps it exists
    assert [b.id for b in await store.batches()] == [BATCH.id]


@virtual.in_virtual_time
async def test_polls_that_take_long_count_as_waiting(loop):
    class Stalled(Script):
        async def retrieve(self, remote_id):
            await asyncio.sleep(600)
            return await super().retrieve(remote_id)

    api = Stalled(loop, lambda now: ServerError("down"))
    one = lifecycle_of(api, MemoryStore(), patience=3_600)
    await one.intend(BATCH)
    with pytest.raises(ServerError):
        await one.follow(replace(BATCH, remote_id="r"))
    assert loop.now - 1_000 < 3_600 + 2 * 660


@pytest.mark.parametrize("name", ["openai-poll-after-ms", "retry-after-ms"])
@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1500", 1.5), ("0", 0), ("99999999999999", 3600), ("9" * 50, 3600), ("3600001", 3600)]
    + [(junk, None) for junk in ("", "-1", "nan", "inf", "9" * 5000, "\u0663", "soon")],
)
def test_a_polling_interval_that_a_provider_states_is_bounded(name, text, seconds):
    assert poll_after({name: text}) == seconds


@virtual.in_virtual_time
async def test_an_outage_is_waited_out_and_a_day_of_it_is_not(loop):
    down = ServerError("down")
    api = Script(loop, lambda now: ENDED if now > 3_000 else down)
    store = MemoryStore()
    one = lifecycle_of(api, store)
    await one.intend(BATCH)
    batch = StoredBatch(**{f: getattr(BATCH, f) for f in BATCH.__slots__} | {"remote_id": "r"})
    remote, _, _ = await one.follow(batch)
    assert remote.ended
    api.retrieves = lambda now: down
    with pytest.raises(ServerError):
        await one.follow(batch)
    assert loop.now < 1000 + 3_000 + 2 * 3_600
    api.retrieves = lambda now: AuthenticationError("no")
    with pytest.raises(AuthenticationError):
        await one.follow(batch)
    api.retrieves = lambda now: UnknownModelError("gone", status_code=404)
    assert (await one.follow(batch))[0].status == "gone"


@virtual.in_virtual_time
async def test_a_creation_is_repeated_only_where_it_was_refused(loop):
    store = MemoryStore()
    busy = RateLimitedError("busy")
    api = Script(loop, creates=[busy, RateLimitedError("busy", retry_after=77.0), RUNNING])
    one = lifecycle_of(api, store)
    await one.intend(BATCH)
    created = await one.create(BATCH, [b"x"], lambda: False)
    assert created.remote_id == "remote"
    assert [round(t - api.created[0]) for t in api.created] == [0, 5, 82]
    assert api.looked == 0

    # an hour at most
    store, busy = MemoryStore(), RateLimitedError("busy", retry_after=1e9)
    api = Script(loop, creates=[busy, RUNNING])
    one = lifecycle_of(api, store)
    await one.intend(BATCH)
    await one.create(BATCH, [b"x"], lambda: False)
    assert [round(t - api.created[0]) for t in api.created] == [0, 3600]

    for error in (ConnectionFailedError("broken"), ServerError("500")):
        store = MemoryStore()
        api = Script(loop, creates=[error], found="remote-2")
        one = lifecycle_of(api, store)
        await one.intend(BATCH)
        with pytest.raises(UnknownOutcomeError):
            await one.create(BATCH, [b"x"], lambda: False)
        # it stays open, and is looked for
        (batch,) = await store.batches()
        assert (await one.adopt(batch)).remote_id == "remote-2"
        assert api.looked == 1

    store = MemoryStore()
    api = Script(loop, creates=[BadRequestError("no")])
    one = lifecycle_of(api, store)
    await one.intend(BATCH)
    with pytest.raises(BadRequestError):
        await one.create(BATCH, [b"x"], lambda: False)
    assert [b.outcome for b in await store.batches(ended=True)] == ["refused"]

    # ten times in vain, but not while other batches are about to make room
    store = MemoryStore()
    api = Script(loop, creates=[busy] * 40)
    one = lifecycle_of(api, store)
    await one.intend(BATCH)
    with pytest.raises(RateLimitedError):
        await one.create(BATCH, [b"x"], lambda: len(api.created) <= 20)
    assert len(api.created) == 30


@virtual.in_virtual_time
async def test_tokens_wait_for_room(loop):
    queue = TokenQueue(100)
    await queue.acquire(60)
    entering = asyncio.create_task(queue.acquire(50))
    await asyncio.sleep(1)
    assert not entering.done()
    queue.release(60)
    await entering
    assert queue.used == 50
    # the provider's word, and less than that where it was too much already
    queue.refused(80)
    assert queue.limit == 25
    queue.refused(None)
    assert queue.limit == 25
    queue.release(50)
    # one is let in in any case
    await queue.acquire(1_000)
    queue.refused(500)
    assert queue.limit == 25
    fresh = TokenQueue()
    await fresh.acquire(1_000)
    fresh.refused(700)
    assert fresh.limit == 700
    assert QueueFullError("full", limit=3).limit == 3


@virtual.in_virtual_time
async def test_refusals_that_what_is_accepted_contradicts_are_forgotten(loop):
    queue = TokenQueue()
    await queue.acquire(40_000)
    await queue.acquire(40_000)
    queue.refused(0)
    queue.refused(0)
    assert queue.limit == 40_000
    queue.refused(2_000)
    queue.release(80_000)
    for _ in range(6):
        await queue.acquire(2_500)
        queue.accepted()
        queue.release(2_500)
    assert queue.limit >= 40_000


@virtual.in_virtual_time
async def test_one_refusal_is_not_believed_for_ever(loop):
    queue = TokenQueue()
    await queue.acquire(10)
    queue.refused(0)
    for _ in range(8):
        queue.accepted()
    assert queue.limit >= 100
    queue.refused(50)
    queue.release(10)
    await queue.acquire(5)
    queue.accepted()
    assert queue.limit == 5
    own = TokenQueue(20)
    own.refused(5)
    for _ in range(8):
        own.accepted()
    assert own.limit == 20


@virtual.in_virtual_time
async def test_a_creation_that_could_not_connect_is_tried_again_and_not_searched(loop):
    store = MemoryStore()
    refused = ConnectionFailedError("cannot connect")
    refused.__cause__ = aiohttp.ClientConnectorError(None, OSError())
    api = Script(loop, creates=[refused] * 10)
    one = lifecycle_of(api, store)
    await one.intend(BATCH)
    with pytest.raises(ConnectionFailedError):
        await one.create(BATCH, [b"x"], lambda: False)
    assert api.looked == 0
    (batch,) = await store.batches(ended=True)
    assert batch.outcome == "refused"
