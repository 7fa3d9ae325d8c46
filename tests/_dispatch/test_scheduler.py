"""The fan-out's workers, with an `answer` made by hand."""

from __future__ import annotations

import asyncio

import pytest

from testnuc._dispatch.scheduler import Ask, Scheduler
from testnuc.limits import Meter
from testnuc.stores.memory import MemoryStore
from testnuc.types import Prediction


def asks(n):
    keys = [i.to_bytes(16, "big") for i in range(n)]
    return [Ask(key, f"text {i}", key, i) for i, key in enumerate(keys)]


def fanout(answer, workers, per_call=1):
    return Scheduler(
        answer, MemoryStore(), b"scope", meter=Meter(), workers=workers, per_call=per_call
    )


async def test_calls_that_wait_for_a_next_try_hold_up_nobody():
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
            fan.lend(1)
            await others_done.wait()
            fan.lend(-1)
            at_work += 1
        await asyncio.sleep(0)
        at_work -= 1
        return [Prediction("a")]

    def settled(ask, _):
        done.append(ask.place)
        if len(done) == 8:
            others_done.set()

    fan = fanout(answer, workers=2)
    async with asyncio.timeout(60):
        await fan.run(asks(10), settled)
    # both first calls wait: without others at work the run would never end
    assert sorted(done[:8]) == list(range(2, 10))
    assert sorted(done) == list(range(10))
    await fan.close()


async def test_not_more_than_twice_the_workers_however_many_wait():
    waiting = 0
    go_on = asyncio.Event()

    async def answer(bundle):
        nonlocal waiting
        waiting += 1
        fan.lend(1)
        await go_on.wait()
        fan.lend(-1)
        return [Prediction("a")] * len(bundle)

    fan = fanout(answer, workers=3)
    run = asyncio.create_task(fan.run(asks(50), lambda _, __: None))
    for _ in range(100):
        await asyncio.sleep(0)
    assert waiting == 6
    go_on.set()
    await run
    await fan.close()


@pytest.mark.parametrize("pace", [0, 0.001])
@pytest.mark.parametrize("workers", [1, 64])
async def test_no_call_goes_out_half_full_but_the_last(workers, pace):
    sizes = []

    async def answer(bundle):
        sizes.append(len(bundle))
        await asyncio.sleep(pace)
        return [Prediction("a")] * len(bundle)

    fan = fanout(answer, workers, per_call=7)
    async with asyncio.timeout(60):
        await fan.run(asks(3_000), lambda _, __: None)
    assert sorted(sizes) == [4, *[7] * 428]
    await fan.close()


async def test_runs_that_share_what_another_one_holds_back_are_served():
    async def answer(bundle):
        await asyncio.sleep(0)
        return [Prediction("a")] * len(bundle)

    fan = fanout(answer, workers=2, per_call=10)
    async with asyncio.timeout(60):
        await asyncio.gather(*(fan.run(asks(n), lambda _, __: None) for n in (3, 700, 995, 1, 12)))
    await fan.close()
