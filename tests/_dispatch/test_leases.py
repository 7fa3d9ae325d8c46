"""The scheduler on a store with leases, other processes played by the test."""

from __future__ import annotations

import asyncio

import pytest

from testnuc._dispatch.leases import Leases
from testnuc._dispatch.scheduler import Ask, Scheduler
from testnuc.errors import (
    AuthenticationError,
    BadRequestError,
    ProviderError,
    ServerError,
    StoreError,
)
from testnuc.limits.budget import Meter
from testnuc.stores.memory import MemoryStore
from testnuc.transport.calls import NotSentError
from testnuc.types import Prediction
from tests.leasing import LeaseStore
from tests.scheduling import asks, read
from tests.virtual import skip

LABEL = Prediction("a", 0.5)


class Clock:
    """What the scheduler sleeps by: a sleep ends when the test has moved the clock past it."""

    def __init__(self, store):
        self.store = store
        self.sleeping = []

    async def sleep(self, seconds):
        wake = asyncio.Event()
        self.sleeping.append((self.store.now + seconds, wake))
        await wake.wait()

    async def advance(self, seconds):
        end = self.store.now + seconds
        while self.store.now < end:
            self.store.now = min(self.store.now + 0.5, end)
            for at, wake in list(self.sleeping):
                if at <= self.store.now:
                    self.sleeping.remove((at, wake))
                    wake.set()
            await settled()


async def settled():
    for _ in range(20):
        await asyncio.sleep(0)


class BreakingStore(LeaseStore):
    """Each renewal after `breaks` has changed needs a new connection, which counts, too."""

    breaks = 0
    connected = 0

    async def renew(self, keys, seconds):
        if self.connected != self.breaks:
            self.breaks += 1
            self.connected = self.breaks
        return await super().renew(keys, seconds)


async def test_leases_that_outlasted_a_broken_connection_are_kept():
    store = BreakingStore()
    leases = Leases(store, granted=list, answered=print, failed=print)
    keys = [b"a", b"b", b"c"]
    assert await leases.claim(keys) == set(keys)
    store.breaks += 1
    assert leases.expired(keys) == keys
    # another process was faster
    store.leases[b"c"] = (object(), 100.0)
    assert await leases.confirm([b"a"]) == set()
    assert leases.expired(keys) == [b"c"]
    assert b"a" in leases.held
    assert await leases.confirm([b"b", b"c"]) == set()
    assert b"c" not in leases.held
    await leases.close()


class Bench:
    def __init__(self, *, workers=4, beside=None):
        self.store = LeaseStore() if beside is None else beside.store
        self.clock = Clock(self.store) if beside is None else beside.clock
        self.meter = Meter()
        self.asked, self.steps = [], []
        self.gate = asyncio.Event()
        self.gate.set()
        self.outcome = LABEL
        self.scheduler = Scheduler(
            self.answer,
            self.store,
            b"s" * 16,
            meter=self.meter,
            workers=workers,
            drain=0.1,
            holds_leases=beside is None,
        )
        self.scheduler._leases.sleep = self.clock.sleep

    async def answer(self, asks):
        self.asked += [ask.text for ask in asks]
        self.steps += [ask.step for ask in asks]
        await self.gate.wait()
        # as a request does, also one that is not sent: else a worker that tries again never yields
        await asyncio.sleep(0)
        return [self.outcome] * len(asks)

    def start(self, *names):
        asks = [Ask(key(name), name, key(name), i) for i, name in enumerate(names)]
        outcomes = {}
        task = asyncio.create_task(
            read(self.scheduler, asks, lambda ask, outcome: outcomes.__setitem__(ask.text, outcome))
        )
        return task, outcomes

    async def store_elsewhere(self, name, prediction):
        from testnuc.protocols import StoredPrediction

        row = StoredPrediction(key(name), b"s" * 16, key(name), 0, prediction)
        await MemoryStore.put_predictions(self.store, [row])
        self.store.others.discard(key(name))


def key(name):
    return name.encode().ljust(16, b".")


@pytest.fixture
async def bench():
    bench = Bench()
    yield bench
    await bench.scheduler.close()


async def test_a_key_without_a_lease_is_requested(bench):
    task, outcomes = bench.start("x", "y")
    await task
    assert outcomes == {"x": LABEL, "y": LABEL}
    assert bench.store.leases == {}


async def test_what_another_asks_is_read_when_it_is_stored(bench):
    bench.store.others = {key("x")}
    task, outcomes = bench.start("x", "y")
    await settled()
    assert (bench.asked, outcomes) == (["y"], {"y": LABEL})
    theirs = Prediction("b", 0.9)
    await bench.store_elsewhere("x", theirs)
    await bench.clock.advance(2)
    await task
    assert outcomes["x"] == theirs
    assert (bench.asked, bench.meter.store_hits) == (["y"], 1)


async def test_what_another_gave_up_is_asked(bench):
    bench.store.others = {key("x")}
    task, outcomes = bench.start("x")
    await bench.clock.advance(10)
    assert bench.asked == []
    bench.store.others.clear()
    await bench.clock.advance(3)
    await task
    assert (bench.asked, outcomes) == (["x"], {"x": LABEL})


async def test_a_lease_is_renewed_while_the_call_takes_longer(bench):
    bench.gate.clear()
    task, _ = bench.start("x")
    await settled()
    for _ in range(10):
        await bench.clock.advance(29)
        assert bench.store.leases[key("x")][1] > bench.store.now
    bench.gate.set()
    await task
    assert bench.asked == ["x"]


async def test_leases_that_cannot_be_renewed_stop_nothing(bench, caplog):
    bench.gate.clear()
    task, outcomes = bench.start("x")
    await settled()
    bench.store.broken = True
    await bench.clock.advance(11)
    bench.gate.set()
    await task
    assert outcomes == {"x": LABEL}
    assert "leases could not be renewed" in caplog.text


async def test_a_failed_call_lets_others_ask(bench):
    bench.outcome = ServerError("503")
    task, outcomes = bench.start("x")
    await task
    await settled()
    assert isinstance(outcomes["x"], ServerError)
    assert bench.store.leases == {}


async def test_a_store_that_fails_while_waiting_stops_the_run(bench):
    bench.store.others = {key("x")}
    task, _ = bench.start("x")
    await settled()
    bench.store.broken = True
    await bench.clock.advance(1)
    with pytest.raises(StoreError, match="gone"):
        await task


async def test_a_store_that_refuses_leases_stops_the_run(bench):
    bench.store.broken = True
    task, _ = bench.start("x", "y")
    with pytest.raises(StoreError, match="gone"):
        await task
    assert bench.asked == []


async def test_a_cancelled_run_gives_back_what_it_had_not_sent():
    bench = Bench(workers=1)
    bench.gate.clear()
    bench.store.others = {key("w")}
    task, _ = bench.start("x", "y", "z", "w")
    await settled()
    assert (bench.asked, len(bench.store.leases)) == (["x"], 3)
    task.cancel()
    await settled()
    assert list(bench.store.leases) == [key("x")], "what was sent goes on"
    bench.gate.set()
    await settled()
    assert await bench.store.get_predictions([key("x")]) == [LABEL]
    assert bench.store.leases == {}
    assert not bench.scheduler.requests
    await bench.scheduler.close()


async def test_a_run_cancelled_while_it_leases_leaves_nothing_behind(bench):
    bench.store.slow = asyncio.Event()
    bench.store.others = {key("y")}
    first, _ = bench.start("x", "y")
    await settled()
    second, outcomes = bench.start("x")
    await settled()
    first.cancel()
    await settled()
    bench.store.slow.set()
    await second
    await settled()
    assert outcomes == {"x": LABEL}
    assert bench.store.leases == {}
    assert not bench.scheduler.requests
    assert not bench.scheduler._leases._awaited


@pytest.mark.parametrize("error", [None, BadRequestError])
async def test_a_request_that_two_claims_lease_is_sent_once(bench, error):
    # the run that made the first claim has ended, and another one wants the same text
    first_claim = bench.store.slow = asyncio.Event()
    left, _ = bench.start("x")
    await settled()
    left.cancel()
    await settled()
    second_claim = bench.store.slow = asyncio.Event()
    run, outcomes = bench.start("x", "y")
    await settled()
    bench.gate.clear()
    first_claim.set()
    await settled()
    assert bench.asked == ["x"]
    if error is None:
        # it lasts longer than the lease
        bench.store.now += 31
    else:
        # rejected, perhaps like every request, so its lease was released
        bench.outcome = error("no")
        bench.gate.set()
        await settled()
        bench.outcome = LABEL
    second_claim.set()
    await settled()
    bench.gate.set()
    await settled()
    await asyncio.wait([run], timeout=0)
    assert run.done()
    assert sorted(bench.asked) == ["x", "y"]
    assert outcomes["y"] == LABEL


async def test_runs_of_one_client_wait_together(bench):
    bench.store.others = {key("x")}
    first, one = bench.start("x")
    second, two = bench.start("x")
    await settled()
    first.cancel()
    await settled()
    bench.store.others.clear()
    await bench.clock.advance(2)
    await second
    assert (one, two) == ({}, {"x": LABEL})
    assert bench.asked == ["x"]


async def test_a_live_run_does_not_wait_for_a_lease_of_its_batch_lane(bench):
    slower = Bench(beside=bench)
    slower.gate.clear()
    batch, _ = slower.start("x")
    await settled()
    live, _ = bench.start("x")
    await live
    assert bench.asked == slower.asked == ["x"]
    slower.gate.set()
    await batch
    await slower.scheduler.close()


async def test_a_batch_lane_has_leases_only_of_what_it_is_about_to_send(bench):
    slower = Bench(workers=1, beside=bench)
    slower.gate.clear()
    batch, _ = slower.start("w", "x", "y", "z")
    await settled()
    assert (slower.asked, bench.store.leases) == (["w"], {})
    # what is queued is left to a live run, and what that asks cannot be leased
    bench.gate.clear()
    live, outcomes = bench.start("w", "x")
    await settled()
    assert set(bench.store.leases) == {key("w"), key("x")}
    assert await slower.scheduler.lease([key("w"), key("x"), key("y")]) == {key("y")}
    bench.store.others = {key("z")}
    assert await slower.scheduler.lease([key("z")]) == set()
    # given back, and leased again at once
    slower.scheduler.release([key("y")])
    assert await slower.scheduler.lease([key("y")]) == {key("y")}
    bench.gate.set()
    slower.gate.set()
    await asyncio.gather(live, batch)
    assert bench.asked == ["w", "x"]
    assert outcomes == {"w": LABEL, "x": LABEL}
    await slower.scheduler.close()


async def test_closing_ends_the_waiting_and_gives_leases_back():
    bench = Bench(workers=1)
    bench.gate.clear()
    bench.store.others = {key("w")}
    task, _ = bench.start("x", "y", "w")
    other, _ = bench.start("w")
    await settled()
    await bench.scheduler.close()
    for run in (task, other):
        with pytest.raises(ProviderError, match="closed"):
            await run
    assert bench.store.leases == {}


# -- leases that were lost -------------------------------------------------------------------------


async def suspended(bench, *taken, seconds=45):
    """Let a process be suspended, while another one leases keys once its leases have expired."""
    bench.store.now += seconds
    skip(seconds)
    for name in taken:
        bench.store.leases.pop(key(name), None)
        bench.store.others.add(key(name))
    await bench.clock.advance(0.5)


@pytest.mark.parametrize("renewed", [True, False])
async def test_after_a_suspension_only_what_no_other_process_took_is_sent(renewed):
    bench = Bench(workers=2)
    bench.gate.clear()
    names = [f"t{i}" for i in range(40)]
    task, outcomes = bench.start(*names)
    await settled()
    assert bench.asked == names[:2]
    # the other one asks for the first thirty, and has answered ten of them
    await suspended(bench, *names[:30])
    theirs = Prediction("b", 0.9)
    for name in names[:10]:
        await bench.store_elsewhere(name, theirs)
    if renewed:
        await bench.clock.advance(10)
    bench.gate.set()
    for _ in range(20):
        await settled()
    assert bench.asked == names[:2] + names[30:]
    for name in names[10:30]:
        await bench.store_elsewhere(name, theirs)
    await bench.clock.advance(3)
    await task
    assert bench.asked == names[:2] + names[30:], "nothing is paid for twice that was not sent"
    assert [outcomes[name] for name in names] == [theirs] * 30 + [LABEL] * 10
    assert bench.store.leases == {}
    await bench.scheduler.close()


async def test_a_call_that_waits_for_a_permit_is_not_sent_without_its_lease(bench):
    bench.outcome = NotSentError()
    bench.gate.clear()
    task, outcomes = bench.start("x", "y")
    await settled()
    await suspended(bench, "x")
    bench.gate.set()
    await settled()
    bench.outcome = LABEL
    await settled()
    theirs = Prediction("b", 0.9)
    await bench.store_elsewhere("x", theirs)
    await bench.clock.advance(3)
    await task
    assert outcomes == {"x": theirs, "y": LABEL}


async def test_unreadable_replies_count_after_a_lease_expired_between_them(bench):
    bench.outcome = NotSentError(unreadable=2)
    bench.gate.clear()
    task, outcomes = bench.start("x")
    await settled()
    bench.gate.set()
    await settled()
    bench.outcome = LABEL
    await bench.clock.advance(3)
    await task
    assert outcomes == {"x": LABEL}
    assert (bench.steps[0], bench.steps[-1]) == (0, 2)


@pytest.mark.parametrize("left", [True, False])
async def test_a_run_that_is_left_while_its_leases_are_confirmed_leaves_nothing(left):
    bench = Bench(workers=1)
    bench.gate.clear()
    first, _ = bench.start("x", "y", "z")
    await settled()
    await suspended(bench, "y")
    bench.store.slow = asyncio.Event()
    bench.gate.set()
    await settled()
    if left:
        first.cancel()
        await settled()
    second, outcomes = bench.start("y")
    await settled()
    bench.store.others.clear()
    bench.store.slow.set()
    await bench.clock.advance(3)
    await second
    assert outcomes == {"y": LABEL}
    assert bench.asked.count("y") == 1
    if not left:
        await first
    await settled()
    assert bench.store.leases == {}
    assert not bench.scheduler.requests
    await bench.scheduler.close()


async def test_a_store_that_fails_while_leases_are_confirmed_stops_the_run():
    bench = Bench(workers=1)
    bench.gate.clear()
    task, _ = bench.start("x", "y")
    await settled()
    await suspended(bench)
    bench.store.broken = True
    bench.gate.set()
    with pytest.raises(StoreError, match="gone"):
        await task
    assert bench.asked == ["x"]
    await bench.scheduler.close()


async def test_a_store_that_always_renews_too_late_stops_the_run():
    bench = Bench(workers=1)
    bench.outcome = NotSentError()
    renew, late = bench.store.renew, 0

    async def slow(keys, seconds):
        nonlocal late
        late += 1
        renewed = await renew(keys, seconds)
        bench.store.now += 45
        skip(45)
        return renewed

    bench.store.renew = slow
    task, _ = bench.start("x", "y")
    await settled()
    await suspended(bench)
    with pytest.raises(StoreError, match=r"30 s .* 5 times in a row.* nothing paid for is lost"):
        await task
    assert late == 5
    # the next run may find a store that responds
    bench.store.renew, bench.outcome = renew, LABEL
    task, outcomes = bench.start("x", "y")
    await task
    assert outcomes == {"x": LABEL, "y": LABEL}
    assert bench.store.leases == {}
    await bench.scheduler.close()


async def test_closing_ends_a_confirmation():
    bench = Bench(workers=1)
    bench.gate.clear()
    task, _ = bench.start("x", "y")
    await settled()
    await suspended(bench, "y")
    bench.store.slow = asyncio.Event()
    bench.gate.set()
    await settled()
    await bench.scheduler.close()
    with pytest.raises(ProviderError, match="closed"):
        await task


# -- processes that were rejected ------------------------------------------------------------------


async def turn(seconds):
    """Wait for the next turn of the loop in place of some seconds."""
    del seconds
    await asyncio.sleep(0)


@pytest.fixture
def two():
    """Begin runs of two processes, of given numbers of texts, and end them all."""
    stores = [LeaseStore()]
    stores.append(LeaseStore(stores[0]))
    asked = asyncio.Event()

    async def play(outcomes, runs):
        def answering(outcome):
            async def answer(bundle):
                await asked.wait()
                return [outcome() for _ in bundle]

            return answer

        processes = [
            Scheduler(answering(outcome), store, b"s", meter=Meter(), workers=2)
            for outcome, store in zip(outcomes, stores, strict=True)
        ]
        for process in processes:
            process._leases.sleep = turn
        tasks = []
        for process, wanted in runs:
            tasks.append(asyncio.create_task(read(processes[process], wanted)))
            await settled()
        asked.set()
        for _ in range(50):
            await settled()
        assert all(task.done() for task in tasks)
        for process in processes:
            await process.close()
        return await asyncio.gather(*tasks, return_exceptions=True)

    return play


async def test_processes_whose_texts_are_rejected_do_not_wait_for_each_other(two):
    rejected = [lambda: BadRequestError("no")] * 2
    runs = [(0, asks(1)), (1, asks(1, 1)), (0, asks(1, 1)), (1, asks(1))]
    found = await two(rejected, runs)
    assert [type(outcome) for outcome in found] == [BadRequestError] * 4


@pytest.mark.parametrize("error", [AuthenticationError, BadRequestError])
async def test_an_answer_of_another_process_ends_the_wait_of_a_rejected_text(two, error):
    outcomes = [lambda: error("no"), lambda: LABEL]
    others, mine = await two(outcomes, [(1, asks(1)), (0, asks(2))])
    assert others == {0: LABEL}
    if error is BadRequestError:
        # the request is valid, so it is this text
        assert (mine[0], type(mine[1])) == (LABEL, error)
    else:
        assert type(mine) is error


async def test_leases_that_a_store_grants_after_the_end_are_not_renewed():
    """A task was left, found by simulation."""
    asked, granted = asyncio.Event(), asyncio.Event()

    class Slow(BreakingStore):
        async def lease(self, keys, seconds):
            asked.set()
            await granted.wait()
            return await super().lease(keys, seconds)

    leases = Leases(Slow(), granted=list, answered=print, failed=print)
    taking = asyncio.create_task(leases.take([b"a"]))
    await asked.wait()
    await leases.close()
    granted.set()
    assert await taking == {b"a"}
    assert leases._renewal is None
