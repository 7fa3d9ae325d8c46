"""Many workers, one limit: the actor's side and the workers' lines, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from testnuc.errors import BudgetExceededError, InvalidInputError, TestNUCError
from testnuc.limits import Budget, RateLimit
from testnuc.limits.meter import Meter
from testnuc.ray.limits_actor import SILENCE, SharedLimits
from testnuc.ray.limits_client import Line, RemoteAccount, RemoteAdmission
from testnuc.testing.rate_limit import RateLimitWindow
from tests import virtual


def joined(limits, meter=None, actor=""):
    line = Line(limits, (meter or Meter()).mark, actor)
    line.open()
    return line


def test_two_workers_never_exceed_the_limit_together():
    async def main(loop):
        rate = RateLimit(requests_per_minute=60)
        limits = SharedLimits(rate, 64, None, None, clock=loop.time)
        server = RateLimitWindow(rate, clock=loop.time)
        violations = []

        async def work(line, n):
            admission = RemoteAdmission(line, loop.time)
            for _ in range(n):
                permit = await admission.acquire()
                violations.append(server.admit(0))
                admission.answered(permit, 1, 1)

        lines = [joined(limits) for _ in range(2)]
        async with asyncio.TaskGroup() as tasks:
            for line in lines:
                for _ in range(10):
                    tasks.create_task(work(line, 10))
        for line in lines:
            await line.flush()
            await line.close()
        assert violations == [None] * 200
        # 200 at 60 a minute, a second's worth at once
        assert loop.now - 1_000 > 195
        assert await limits.in_flight() == 0

    virtual.run(main)


def test_what_two_workers_spend_stays_within_the_budget():
    async def main(loop):
        limits = SharedLimits(None, 64, None, Budget(calls=7, tokens=1_000), clock=loop.time)
        meters = [Meter(), Meter()]
        lines = [joined(limits, meter) for meter in meters]
        refused = 0

        async def call(line, meter):
            nonlocal refused
            account = RemoteAccount(line, Budget(calls=7))
            try:
                reservation = await account.reserve(0, 10)
            except BudgetExceededError:
                refused += 1
                return
            await asyncio.sleep(0.1)
            meter.add(None)
            account.settle(reservation, 0, 10)

        calls = [call(*pair) for pair in zip(lines, meters, strict=True) for _ in range(10)]
        await asyncio.gather(*calls)
        for line in lines:
            await line.flush()
            await line.close()
        assert refused == 13
        assert (await limits.usage()).calls == 7

    virtual.run(main)


@pytest.mark.parametrize("again", [True, False])
def test_permits_of_a_dead_worker_are_free_again(again):
    async def main(loop):
        limits = SharedLimits(None, 1, None, Budget(calls=2), clock=loop.time)
        dead = joined(limits, actor="actor 1")
        await RemoteAccount(dead, Budget(calls=2)).reserve(0, 0)
        await RemoteAdmission(dead, loop.time).acquire()
        await dead.close()

        # its actor is started again, or another one goes on
        line = joined(limits, actor="actor 1" if again else "actor 2")
        account = RemoteAccount(line, Budget(calls=2))
        started = loop.now
        await RemoteAdmission(line, loop.time).acquire()
        waited = loop.now - started
        assert waited < 1 if again else SILENCE <= waited < SILENCE + 10
        # what it had reserved may have been spent: one call is left
        account.settle(await account.reserve(0, 0), 0, 0)
        with pytest.raises(BudgetExceededError):
            await account.reserve(0, 0)
        await line.close()

    virtual.run(main)


def test_who_is_cancelled_gives_back_what_was_granted():
    async def main(loop):
        limits = SharedLimits(None, 1, None, None, clock=loop.time)
        line = joined(limits)
        admission = RemoteAdmission(line, loop.time)
        held = await admission.acquire()
        waiting = asyncio.create_task(admission.acquire())
        await asyncio.sleep(0.1)
        admission.answered(held)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(1):
            await admission.acquire()
        await line.close()

    virtual.run(main)


def test_a_refusal_pauses_all_workers_and_headers_are_heeded():
    async def main(loop):
        limits = SharedLimits(None, 8, None, None, clock=loop.time)
        first, second = (RemoteAdmission(joined(limits), loop.time) for _ in range(2))
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


def test_what_can_never_fit_and_limits_that_are_gone_are_told():
    class Gone:
        async def tell(self, *_):
            raise OSError("no route")

        async def hear(self, *_):
            await asyncio.sleep(1_000)

    async def main(loop):
        limits = SharedLimits(RateLimit(tokens_per_minute=10), 8, None, None, clock=loop.time)
        with pytest.raises(InvalidInputError, match="10 tokens per minute"):
            await RemoteAdmission(joined(limits), loop.time).acquire(11, 0)
        line = joined(Gone())
        admission = RemoteAdmission(line, loop.time)
        for _ in range(2):
            with pytest.raises(TestNUCError, match="no route"):
                await admission.acquire()
        await line.flush()
        await line.close()

    virtual.run(main)
