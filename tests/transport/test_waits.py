"""Waits that a provider asks for: whatever it says, a request is sent again."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from random import Random
from typing import ClassVar

import pytest
from aiohttp import web

from testnuc import Limits
from testnuc.errors import RateLimitedError, ServerError
from testnuc.limits import concurrency
from testnuc.limits.policies import RetryPolicy
from testnuc.protocols import Answer, Reply
from testnuc.testing import Faults, LoopbackLLM
from testnuc.transport import Transport
from testnuc.transport.retries import backoff
from tests.conftest import confident, messages
from tests.transport.small_server import ONE, calling, said, serving
from tests.virtual import in_virtual_time


def waits():
    now = time.time()
    return [
        {"Retry-After": "1000000000"},
        {"Retry-After": "999999999"},
        *({"Retry-After": f"{now + ahead:.0f}"} for ahead in (-1e6, 1e6)),
        {"Retry-After": f"{(now + 1e6) * 1000:.0f}"},
        {"Retry-After": "Thu, 01 Jan 2099 00:00:00 GMT"},
        {"Retry-After": formatdate(now + 1e6, usegmt=True)},
        {"Retry-After": "2099-01-01T00:00:00Z"},
        {"retry-after-ms": "99999999999999"},
        {"retry-after-ms": f"{(now + 1e6) * 1000:.0f}"},
        *({"Retry-After": bad} for bad in ("-1", "NaN", "inf", "9" * 400, "1e999", "soon")),
        *({"retry-after-ms": bad} for bad in ("-1", "NaN", "inf", "9" * 400, "1e999", "soon")),
    ]


#: The times differ in each process.
NUMBERS = [str(number) for number in range(len(waits()))]


@pytest.mark.parametrize("headers", waits(), ids=NUMBERS)
@pytest.mark.parametrize("status", [429, 503])
async def test_a_wait_without_end_ends(headers, status, monkeypatch):
    """One such response costs a second; several are believed until the longest pause is over."""
    monkeypatch.setattr(concurrency, "_DOUBT", 0.01)
    lies = 1

    def answer(n, request):
        return said() if n >= lies else web.Response(status=status, headers=headers)

    ahead = 0.0
    retry = RetryPolicy(initial_wait=0.002, attempts=2)
    async with serving(answer) as (wire, seen):
        transport = Transport(
            Limits(retry=retry),
            sleep=asyncio.sleep,
            rng=Random(0),
            clock=lambda: time.monotonic() + ahead,
        )
        try:
            await transport.call(wire, ONE)
            assert len(seen) == 2
            lies = 4
            with pytest.raises((RateLimitedError, ServerError)):
                await transport.call(wire, ONE)
            assert len(seen) == 4
            if transport.admission.pause:
                # nothing is sent, and nobody waits, until the longest pause is over
                with pytest.raises(RateLimitedError, match="deadline"):
                    await transport.call(wire, ONE)
                assert len(seen) == 4
                ahead = 1.2 * retry.deadline
            await transport.call(wire, ONE)
            assert len(seen) == 5
        finally:
            await transport.aclose()


@pytest.mark.parametrize("headers", waits(), ids=NUMBERS)
async def test_an_auxiliary_request_waits_no_longer_than_allowed(headers):
    def answer(n, request):
        return said() if n else web.Response(status=429, headers=headers)

    policy = RetryPolicy(initial_wait=0.002, deadline=1e9)
    async with calling(answer, retry=policy) as (transport, wire, seen):
        await transport.auxiliary.send(wire, "POST", wire.url, b"{}")
        assert len(seen) == 2
        assert all(wait <= 3610 for wait in transport.waits)


@pytest.mark.parametrize("asked", [1e9, 1e300, float("inf"), float("nan"), -1.0, None])
def test_a_backoff_is_bounded(asked):
    for policy, most in ((RetryPolicy(), 125), (RetryPolicy(deadline=1e9), 3605)):
        for tries in (1, 5, 1000):
            assert 0 <= backoff(policy, tries, asked, Random(0)) <= most


async def test_a_long_wait_of_an_auxiliary_request_is_said(caplog):
    def answer(n, request):
        return said() if n else web.Response(status=429, headers={"Retry-After": "90"})

    async with calling(answer) as (transport, wire, _):
        await transport.auxiliary.send(wire, "POST", wire.url, b"{}")
    assert [r.levelname for r in caplog.records if "retrying in 9" in r.message] == ["WARNING"]


@pytest.mark.parametrize("most", [1, 8])
async def test_one_lie_in_a_run_fails_no_text(most, loopback, monkeypatch):
    monkeypatch.setattr(concurrency, "_DOUBT", 0.01)
    faults = Faults(schedule=[None] * 20 + ["429-retry-after"], retry_after=999_999)
    async with loopback(
        LoopbackLLM(confident, faults=faults), k=0, limits=Limits(concurrency=most)
    ) as (llm, nuc):
        results = await nuc.classify_many(messages(60))
    assert not results.errors
    assert llm.calls == 60


@pytest.mark.parametrize("asked", [1.0, 30.0, 53.0, 57.0, 58.5, 59.9, 60.0])
@in_virtual_time
async def test_nothing_is_sent_so_late_that_its_answer_cannot_arrive(loop, asked):
    """Such an answer would be billed, and thrown away at the deadline."""

    class Slow:
        name, model, identity = "slow", "m", "1"
        starts: ClassVar[list[float]] = []

        async def answer(self, request):
            loop = asyncio.get_running_loop()
            self.starts.append(loop.time() - 1000)
            await asyncio.sleep(0.5)
            if len(self.starts) == 1:
                raise ServerError("not now", retry_after=asked)
            return Reply((Answer("refund"),))

    Slow.starts.clear()
    policy = RetryPolicy(deadline=60, timeout=20)
    transport = Transport(Limits(retry=policy), clock=loop.time, rng=Random(0))
    try:
        await transport.answer(Slow(), ONE)
    except ServerError:
        assert len(Slow.starts) == 1
    assert all(start <= 58 for start in Slow.starts)
    await transport.aclose()
