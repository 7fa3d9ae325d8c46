"""The scheduler's workers, with an `answer` made by hand."""

from __future__ import annotations

import asyncio
import functools
from contextlib import aclosing

import pytest

from testnuc._dispatch.scheduler import Scheduler
from testnuc.errors import AuthenticationError, BadRequestError, ProviderError, StoreError
from testnuc.limits.budget import Meter
from testnuc.stores.memory import MemoryStore
from testnuc.transport.calls import ON_WAIT
from testnuc.types import Prediction
from tests.scheduling import asks, read


def scheduler_of(answer, workers, per_call=1):
    return Scheduler(
        answer, MemoryStore(), b"scope", meter=Meter(), workers=workers, per_call=per_call
    )


async def test_calls_that_back_off_block_no_worker():
    others_done = asyncio.Event()
    at_work, most = 0, 0
    done = []

    async def answer(bundle):
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        place = bundle[0].place
        if place < 2:
            at_work -= 1
            ON_WAIT.get()(1)
            await others_done.wait()
            ON_WAIT.get()(-1)
            at_work += 1
        await asyncio.sleep(0)
        at_work -= 1
        return [Prediction("a")]

    def settled(ask, _):
        done.append(ask.place)
        if len(done) == 8:
            others_done.set()

    scheduler = scheduler_of(answer, workers=2)
    async with asyncio.timeout(60):
        await read(scheduler, asks(10), settled)
    # both first calls wait: without others at work the run would never end
    assert sorted(done[:8]) == list(range(2, 10))
    assert sorted(done) == list(range(10))
    await scheduler.close()


async def test_not_more_than_twice_the_workers_however_many_wait():
    waiting = 0
    go_on = asyncio.Event()

    async def answer(bundle):
        nonlocal waiting
        waiting += 1
        ON_WAIT.get()(1)
        await go_on.wait()
        ON_WAIT.get()(-1)
        return [Prediction("a")] * len(bundle)

    scheduler = scheduler_of(answer, workers=3)
    run = asyncio.create_task(read(scheduler, asks(50)))
    for _ in range(100):
        await asyncio.sleep(0)
    assert waiting == 6
    go_on.set()
    await run
    await scheduler.close()


@pytest.mark.slow
@pytest.mark.parametrize("pace", [0, 0.001])
@pytest.mark.parametrize("workers", [1, 64])
async def test_no_call_goes_out_half_full_but_the_last(workers, pace):
    sizes = []

    async def answer(bundle):
        sizes.append(len(bundle))
        await asyncio.sleep(pace)
        return [Prediction("a")] * len(bundle)

    scheduler = scheduler_of(answer, workers, per_call=7)
    async with asyncio.timeout(60):
        await read(scheduler, asks(3_000))
    assert sorted(sizes) == [4, *[7] * 428]
    await scheduler.close()


async def test_runs_that_share_what_another_one_holds_back_are_served():
    async def answer(bundle):
        await asyncio.sleep(0)
        return [Prediction("a")] * len(bundle)

    scheduler = scheduler_of(answer, workers=2, per_call=10)
    async with asyncio.timeout(60):
        await asyncio.gather(*(read(scheduler, asks(n)) for n in (3, 700, 995, 1, 12)))
    await scheduler.close()


# -- consumers -----------------------------------------------------------------------------------


class MistakeError(Exception):
    """A consumer's own."""


def raising(after):
    count = 0

    def each(ask, outcome):
        nonlocal count
        count += 1
        if count == after:
            raise MistakeError(ask.place)

    return each


class Model:
    """Answers when the gate is open; notes what it was asked."""

    def __init__(self):
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = []

    async def __call__(self, bundle):
        self.asked += [ask.place for ask in bundle]
        await asyncio.sleep(0)
        await self.gate.wait()
        return [Prediction("a")] * len(bundle)


@pytest.mark.parametrize("per_call", [1, 7])
@pytest.mark.parametrize("after", [1, 100, 300])
async def test_a_consumer_that_raises_ends_its_own_run_alone(per_call, after):
    model = Model()
    scheduler = scheduler_of(model, workers=3, per_call=per_call)
    async with asyncio.timeout(60):
        failing, overlapping, other = await asyncio.gather(
            read(scheduler, asks(300), raising(after)),
            read(scheduler, asks(400, start=100)),
            read(scheduler, asks(50, start=1_000)),
            return_exceptions=True,
        )
        assert isinstance(failing, MistakeError)
        assert sorted(overlapping) == list(range(100, 500))
        assert sorted(other) == list(range(1_000, 1_050))
        assert set(map(type, [*overlapping.values(), *other.values()])) == {Prediction}
        # no worker died with it: the next run has all its outcomes, and no key was asked twice
        again = await read(scheduler, asks(500))
    assert sorted(again) == list(range(500))
    assert len(model.asked) == len(set(model.asked)) == 550
    assert not scheduler.requests
    await scheduler.close()


async def test_a_consumer_that_raises_leaves_its_unsent_asks_unasked():
    model = Model()
    scheduler = scheduler_of(model, workers=2)
    with pytest.raises(MistakeError):
        await read(scheduler, asks(5_000), raising(10))
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(model.asked) < 50
    assert not scheduler.requests
    assert not scheduler._workers._tasks
    await scheduler.close()


async def test_asks_that_raise_end_the_run_with_their_error():
    scheduler = scheduler_of(Model(), workers=2)

    def broken():
        yield from asks(300)
        raise MistakeError

    async def broken_in_time():
        yield asks(300)
        raise MistakeError

    for source in (broken(), broken_in_time()):
        with pytest.raises(MistakeError):
            await read(scheduler, source)
    assert sorted(await read(scheduler, asks(300))) == list(range(300))
    await scheduler.close()


async def test_a_consumer_that_stops_reading_closes_asks_that_come_with_time():
    closed = []

    async def source():
        try:
            for start in range(0, 100_000, 100):
                yield asks(100, start)
        finally:
            closed.append(True)

    scheduler = scheduler_of(Model(), workers=2)
    with pytest.raises(MistakeError):
        await read(scheduler, source(), raising(5))
    assert closed == [True]
    await scheduler.close()


@pytest.mark.slow
async def test_asks_are_taken_as_workers_get_free_and_outcomes_are_read():
    model = Model()
    scheduler = scheduler_of(model, workers=2, per_call=5)
    taken = 0

    def many():
        nonlocal taken
        for ask in asks(50_000):
            taken += 1
            yield ask

    async with asyncio.timeout(60), aclosing(scheduler.run(many())) as outcomes:
        model.gate.clear()
        first = asyncio.ensure_future(anext(outcomes))
        for _ in range(200):
            await asyncio.sleep(0)
        assert taken <= 512
        model.gate.set()
        await first
        # the consumer does something else: it does not find all outcomes in memory
        before = 0
        while taken > before:
            before = taken
            for _ in range(2_000):
                await asyncio.sleep(0)
        assert taken < 5_000
        # nor does it hold up others, not even those that share what it had queued
        shared = await read(scheduler, asks(taken - 1))
        assert len(shared) == taken - 1
        rest = [ask.place async for ask, _ in outcomes]
    assert len(rest) == 49_999
    assert taken == 50_000
    assert len(model.asked) == len(set(model.asked)) == 50_000
    await scheduler.close()


async def test_a_fatal_error_comes_after_the_outcomes_and_ends_every_run_that_needs_it():
    asked = []

    async def answer(bundle):
        asked.append(bundle[0].place)
        await asyncio.sleep(0)
        if bundle[0].place < 3:
            return [Prediction("a")]
        raise AuthenticationError("wrong key")

    scheduler = scheduler_of(answer, workers=1)
    seen = []
    runs = [
        read(scheduler, asks(20), lambda ask, outcome: seen.append((ask.place, type(outcome)))),
        read(scheduler, asks(10)),
        read(scheduler, asks(2)),
    ]
    first, second, third = await asyncio.gather(*runs, return_exceptions=True)
    assert isinstance(first, AuthenticationError)
    assert isinstance(second, AuthenticationError)
    assert sorted(third) == [0, 1]
    assert seen[:3] == [(i, Prediction) for i in range(3)]
    assert seen[3] == (3, AuthenticationError)
    assert asked == [0, 1, 2, 3], "what would fail as well is not sent"
    await scheduler.close()


@pytest.mark.parametrize("turns", range(4))
async def test_a_rejection_that_arrives_with_the_first_answer_ends_no_run(turns):
    answered = asyncio.Event()

    async def answer(bundle):
        if bundle[0].place == 0:
            await answered.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            return [AuthenticationError("403")]
        answered.set()
        return [Prediction("a")]

    scheduler = scheduler_of(answer, workers=4)
    outcomes = await read(scheduler, asks(6))
    assert len(outcomes) == 6
    await scheduler.close()


async def test_a_run_that_begins_while_the_client_closes_raises():
    looked_up = asyncio.Event()

    class SlowStore(MemoryStore):
        async def get_predictions(self, keys):
            await looked_up.wait()
            return await super().get_predictions(keys)

    scheduler = Scheduler(Model(), SlowStore(), b"scope", meter=Meter(), workers=1)
    run = asyncio.create_task(read(scheduler, asks(3)))
    for _ in range(5):
        await asyncio.sleep(0)
    await scheduler.close()
    looked_up.set()
    with pytest.raises(ProviderError, match="closed"):
        await run


async def turns(n=20):
    for _ in range(n):
        await asyncio.sleep(0)


def rejecting(bad):
    async def answer(bundle):
        await asyncio.sleep(0)
        return [BadRequestError("400") if ask.place in bad else Prediction("a") for ask in bundle]

    return answer


async def test_stored_answers_prove_that_a_request_is_valid():
    store = MemoryStore()
    for start, model in enumerate((rejecting(set()), rejecting({1}))):
        scheduler = Scheduler(model, store, b"scope", meter=Meter(), workers=1)
        async with asyncio.timeout(10):
            found = await read(scheduler, asks(1, start=start))
        await scheduler.close()
        store_is = await store.count(b"scope")
        assert store_is == 1
    assert isinstance(found[1], BadRequestError)


async def test_a_run_that_is_cancelled_leaves_no_suspect_waiting():
    model = rejecting({0})
    model_gate = asyncio.Event()

    async def answer(bundle):
        if bundle[0].place == 1:
            await model_gate.wait()
        return await model(bundle)

    scheduler = scheduler_of(answer, workers=1)
    one = asyncio.create_task(read(scheduler, asks(1)))
    two = asyncio.create_task(read(scheduler, asks(1, start=1)))
    await turns()
    assert not one.done()
    two.cancel()
    model_gate.set()
    async with asyncio.timeout(10):
        assert isinstance((await one)[0], BadRequestError)
    await scheduler.close()


@pytest.mark.parametrize("stalls", ["put_predictions", "get_predictions"])
async def test_closing_ends_every_run_though_the_store_stalls(stalls):
    class Stalled(MemoryStore):
        pass

    async def stalled(self, _):
        await asyncio.Event().wait()

    setattr(Stalled, stalls, stalled)
    scheduler = Scheduler(Model(), Stalled(), b"scope", meter=Meter(), workers=2, drain=0.05)
    got = {}
    runs = [
        asyncio.create_task(read(scheduler, asks(2), lambda ask, o: got.update({ask.place: o}))),
        asyncio.create_task(read(scheduler, asks(1))),
    ]
    await turns()
    await scheduler.close()
    async with asyncio.timeout(5):
        ended = await asyncio.gather(*runs, return_exceptions=True)
    assert ["closed" in str(error) for error in ended] == [True, True]
    # what was billed is handed over
    assert len(got) == (2 if stalls == "put_predictions" else 0)


async def test_a_store_that_fails_ends_the_run_with_the_answers_that_were_billed():
    class Full(MemoryStore):
        async def put_predictions(self, rows):
            if await self.count(b"scope") == 3:
                raise OSError("disk full")
            return await super().put_predictions(rows)

    model = Model()
    scheduler = Scheduler(model, Full(), b"scope", meter=Meter(), workers=2)
    got = {}
    with pytest.raises(StoreError, match="disk full"):
        await read(scheduler, asks(20), lambda ask, o: got.update({ask.place: o}))
    assert sorted(got) == sorted(model.asked)
    assert not any(isinstance(o, Exception) for o in got.values())
    await scheduler.close()


async def test_a_store_that_cannot_be_read_takes_no_answer_of_a_first_call():
    """Neither of a run that made the call, nor of one that joins it."""
    released = asyncio.Event()

    class Unread(MemoryStore):
        reads = 0

        async def get_predictions(self, keys):
            self.reads += 1
            if self.reads > 1:
                raise OSError("disk")
            return await super().get_predictions(keys)

    async def answer(bundle):
        await released.wait()
        return [Prediction("a")] * len(bundle)

    scheduler = Scheduler(answer, Unread(), b"scope", meter=Meter(), workers=2)
    # the last of them is looked up after the first calls are sent
    lists = [asks(2), [*asks(2), *asks(1, start=9)]]
    got = [{}, {}]
    runs = []
    for part, found in zip(lists, got, strict=True):
        each = functools.partial(lambda found, ask, o: found.update({ask.place: o}), found)
        runs.append(asyncio.create_task(read(scheduler, part, each)))
        await turns()
    released.set()
    async with asyncio.timeout(5):
        ended = await asyncio.gather(*runs, return_exceptions=True)
    assert [type(one) for one in ended] == [dict, StoreError]
    assert got == [dict.fromkeys((0, 1), Prediction("a"))] * 2
    await scheduler.close()
