"""Many workers, one limit: the actor's side and the workers' clients, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from testnuc.errors import BudgetExceededError, InvalidInputError, TestNUCError
from testnuc.limits.budget import Meter
from testnuc.limits.policies import Budget, Limits, RateLimit
from testnuc.ray.limits import SILENCE, LimitsClient, SharedLimits
from testnuc.testing.faults import RateLimitWindow
from tests import virtual


def joined(limits, meter=None, actor=""):
    clock = asyncio.get_running_loop().time
    budget = Budget(calls=7)
    client = LimitsClient(limits, (meter or Meter()).mark, budget=budget, actor=actor, clock=clock)
    client.open()
    return client


def test_two_workers_never_exceed_the_limit_together():
    async def main(loop):
        rate = RateLimit(requests_per_minute=60)
        limits = SharedLimits(
            Limits(rate.requests_per_minute, rate.tokens_per_minute), clock=loop.time
        )
        server = RateLimitWindow(rate, clock=loop.time)
        violations = []

        async def work(client, n):
            for _ in range(n):
                permit = await client.acquire()
                violations.append(server.admit(0))
                client.answered(permit, 1, 1)

        clients = [joined(limits) for _ in range(2)]
        async with asyncio.TaskGroup() as tasks:
            for client in clients:
                for _ in range(10):
                    tasks.create_task(work(client, 10))
        for client in clients:
            await client.flush()
            await client.close()
        assert violations == [None] * 200
        # 200 at 60 a minute, a second's worth at once
        assert loop.now - 1_000 > 195
        assert limits._admission.in_flight == 0

    virtual.run(main)


def test_what_two_workers_spend_stays_within_the_budget():
    async def main(loop):
        limits = SharedLimits(Limits(budget=Budget(calls=7, tokens=1_000)), clock=loop.time)
        meters = [Meter(), Meter()]
        clients = [joined(limits, meter) for meter in meters]
        refused = 0

        async def call(client, meter):
            nonlocal refused
            try:
                reservation = await client.reserve(0, 10)
            except BudgetExceededError:
                refused += 1
                return
            await asyncio.sleep(0.1)
            meter.add(None)
            client.settle(reservation, 0, 10)

        calls = [call(*pair) for pair in zip(clients, meters, strict=True) for _ in range(10)]
        await asyncio.gather(*calls)
        for client in clients:
            await client.flush()
            await client.close()
        assert refused == 13
        assert (await limits.usage()).calls == 7

    virtual.run(main)


@pytest.mark.parametrize("again", [True, False])
def test_permits_of_a_dead_worker_are_free_again(again):
    async def main(loop):
        limits = SharedLimits(Limits(concurrency=1, budget=Budget(calls=2)), clock=loop.time)
        dead = joined(limits, actor="actor 1")
        await dead.reserve(0, 0)
        await dead.acquire()
        await dead.close()

        # its actor is started again, or another one goes on
        client = joined(limits, actor="actor 1" if again else "actor 2")
        started = loop.now
        await client.acquire()
        waited = loop.now - started
        assert waited < 1 if again else SILENCE <= waited < SILENCE + 10
        # what it had reserved may have been spent: one call is left
        client.settle(await client.reserve(0, 0), 0, 0)
        with pytest.raises(BudgetExceededError):
            await client.reserve(0, 0)
        await client.close()

    virtual.run(main)


def test_who_is_cancelled_gives_back_what_was_granted():
    async def main(loop):
        limits = SharedLimits(Limits(concurrency=1), clock=loop.time)
        client = joined(limits)
        held = await client.acquire()
        waiting = asyncio.create_task(client.acquire())
        await asyncio.sleep(0.1)
        client.answered(held)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(1):
            await client.acquire()
        await client.close()

    virtual.run(main)


def test_a_permit_that_is_not_used_is_free_again():
    async def main(loop):
        limits = SharedLimits(Limits(1, concurrency=1), clock=loop.time)
        client = joined(limits)
        client.abandoned(await client.acquire())
        async with asyncio.timeout(1):
            await client.acquire()
        await client.close()

    virtual.run(main)


def test_a_refusal_pauses_all_workers_and_headers_are_heeded():
    async def main(loop):
        limits = SharedLimits(Limits(concurrency=8), clock=loop.time)
        first, second = (joined(limits) for _ in range(2))
        permit = await first.acquire()
        first.refused(permit, 30.0)
        await asyncio.sleep(0.1)
        started = loop.now
        permit = await second.acquire()
        assert loop.now - started > 29
        headers = {
            "X-RateLimit-Limit-Requests": "10",
            "X-RateLimit-Remaining-Requests": "0",
            "X-RateLimit-Reset-Requests": "20s",
        }
        second.observe(permit, headers)
        second.answered(permit, 1, 1)
        await asyncio.sleep(0.1)
        started = loop.now
        await first.acquire()
        assert loop.now - started > 19

    virtual.run(main)


def test_requests_that_never_fit_and_lost_limits_are_errors():
    class Gone:
        async def grant(self, *_):
            raise OSError("no route")

        async def settle(self, *_):
            await asyncio.sleep(1_000)

    async def main(loop):
        limits = SharedLimits(Limits(None, 10, concurrency=8), clock=loop.time)
        with pytest.raises(InvalidInputError, match="10 tokens per minute"):
            await joined(limits).acquire(11, 0)
        client = joined(Gone())
        for _ in range(2):
            with pytest.raises(TestNUCError, match="no route"):
                await client.acquire()
        await client.flush()
        await client.close()

    virtual.run(main)


def test_a_worker_that_was_silent_for_too_long_raises_and_goes_on():
    class Slow:
        """Limits that a process does not reach while it is halted."""

        def __init__(self, limits):
            self.limits = limits
            self.runs = asyncio.Event()
            self.grant = limits.grant

        async def settle(self, *arguments):
            await self.runs.wait()
            await self.limits.settle(*arguments)

    async def main(loop):
        limits = SharedLimits(Limits(concurrency=1), clock=loop.time)
        halted = Slow(limits)
        busy, slow = joined(limits), joined(halted)
        held = await busy.acquire()
        with pytest.raises(TestNUCError, match="silent"):
            await slow.acquire()
        halted.runs.set()
        busy.answered(held, 1, 1)
        slow.answered(await slow.acquire(), 1, 1)
        await asyncio.gather(slow.flush(), busy.flush())
        assert limits._admission.in_flight == 0

    virtual.run(main)


def test_a_cancellation_that_overtakes_its_request_takes_no_permit():
    async def main(loop):
        limits = SharedLimits(Limits(concurrency=1), clock=loop.time)
        worker = ("actor", "process")
        await limits.settle(worker, [(0, "cancel", (), {})], Meter().mark())
        for number in range(2):
            assert await limits.grant(worker, (number, "acquire", (0, 0), {})) is None
        assert limits._admission.in_flight == 1

    virtual.run(main)
