"""The budget: never exceeded, under any interleaving, and used as far as it goes."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testnuc.errors import BudgetExceededError, ConfigurationError
from testnuc.limits.budget import PICO, BudgetAccount, Meter, require_price
from testnuc.limits.policies import Budget
from tests.accounts import reserved, spent
from tests.virtual import in_virtual_time

calls = st.tuples(
    st.floats(0, 2),  # seconds before it is asked for
    st.integers(0, 100),  # worst case in cents
    st.integers(0, 100),  # worst case in tokens
    st.floats(0, 1),  # part of the worst case it costs
    st.floats(0, 5),  # seconds under way
    st.sampled_from(["settle", "release", "cancel"]),
)
CENT = PICO // 100


class Ledger:
    """Spends by a plan, and checks at every step that the budget holds."""

    def __init__(self, budget):
        self.account = BudgetAccount(budget)
        usd = None if budget.usd is None else int(budget.usd * PICO)
        self.limits = (usd, budget.tokens, budget.calls)
        self.spent = [0, 0, 0]

    def within(self, amounts):
        return all(
            limit is None or amount <= limit
            for limit, amount in zip(self.limits, amounts, strict=True)
        )

    def check(self):
        pairs = zip(spent(self.account), reserved(self.account), strict=True)
        usd, tokens, calls = (a + b for a, b in pairs)
        assert self.within((round(usd * PICO, -3), tokens, calls))

    async def one(self, before, price, size, part, seconds, end):
        await asyncio.sleep(before)
        worst = (price * CENT, size, 1)
        try:
            reservation = await self.account.reserve(*worst)
        except BudgetExceededError:
            # not even all that was under way could have freed enough
            assert not self.within([a + b for a, b in zip(self.spent, worst, strict=True)])
            return
        self.check()
        cost = (0, 0, 0) if end == "release" else (int(worst[0] * part), int(size * part), 1)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            cost = worst
            raise
        finally:
            self.spent = [a + b for a, b in zip(self.spent, cost, strict=True)]
            if cost == worst:
                self.account.keep(reservation)
            self.account.settle(reservation, *cost)
            self.account.release(reservation)  # after the first, nothing counts any more
            self.check()


@pytest.mark.slow
@settings(max_examples=150)
@given(
    st.lists(calls, max_size=30),
    st.integers(1, 300) | st.none(),
    st.integers(1, 300) | st.none(),
    st.integers(1, 10) | st.none(),
)
@in_virtual_time
async def test_never_exceeded(loop, plan, cents, tokens, most):
    ledger = Ledger(Budget(None if cents is None else cents / 100, tokens, most))
    tasks = [asyncio.create_task(ledger.one(*call)) for call in plan]
    await asyncio.sleep(1)
    for task, call in zip(tasks, plan, strict=True):
        if call[-1] == "cancel":
            task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert result is None or isinstance(result, asyncio.CancelledError), repr(result)
    assert reserved(ledger.account) == (0, 0, 0)
    usd, *rest = spent(ledger.account)
    assert [round(usd * PICO), *rest] == ledger.spent


@in_virtual_time
async def test_waits_for_calls_that_may_free_room(loop):
    account = BudgetAccount(Budget(tokens=100))
    first = await account.reserve(0, 80)
    second = asyncio.create_task(account.reserve(0, 60))
    third = asyncio.create_task(account.reserve(0, 10))
    await asyncio.sleep(1)
    assert not second.done()
    assert not third.done()  # would fit, but the queue is first in, first out
    account.settle(first, 0, 30)
    assert reserved(account)[1] == 70
    account.settle(await second, 0, 60)
    account.settle(await third, 0, 10)
    assert spent(account) == (0.0, 100, 3)


@in_virtual_time
async def test_gives_up_once_nothing_can_free_enough(loop):
    account = BudgetAccount(Budget(tokens=100))
    first = await account.reserve(0, 80)
    second = asyncio.create_task(account.reserve(0, 60))
    third = asyncio.create_task(account.reserve(0, 20))
    await asyncio.sleep(1)
    account.settle(first, 0, 80)
    account.settle(await third, 0, 5)
    await asyncio.wait([second])
    assert "60 tokens" in str(second.exception())
    assert isinstance(second.exception(), BudgetExceededError)


@in_virtual_time
async def test_a_cancelled_waiter_lets_the_next_one_pass(loop):
    account = BudgetAccount(Budget(calls=10, tokens=100))
    first = await account.reserve(0, 80)
    second = asyncio.create_task(account.reserve(0, 60))
    third = asyncio.create_task(account.reserve(0, 10))
    await asyncio.sleep(1)
    second.cancel()
    account.release(await third)
    account.release(first)
    assert reserved(account) == (0.0, 0, 0)
    assert spent(account) == (0.0, 0, 0)


async def test_calls_do_not_wait_for_the_budget_of_a_batch_job():
    account = BudgetAccount(Budget(calls=10))
    job = await account.reserve(0, 0, 8, batch=True)
    call = await account.reserve(0, 0, 2)
    with pytest.raises(BudgetExceededError, match="batch jobs have reserved"):
        await account.reserve(0, 0, 3)
    account.release(call)
    account.settle(job, 0, 0, 3)
    account.settle(await account.reserve(0, 0, 7), 0, 0, 7)
    assert spent(account)[2] == 10


async def test_who_waits_is_not_told_of_another_calls_failure():
    """A traceback would show it, with whatever it quotes."""
    account = BudgetAccount(Budget(calls=1))
    reservation = await account.reserve(0, 0)
    waiter = asyncio.create_task(account.reserve(0, 0))
    await asyncio.sleep(0)
    try:
        int("the failure of another call")
    except ValueError:
        account.keep(reservation)
    with pytest.raises(BudgetExceededError) as caught:
        await waiter
    assert caught.value.__context__ is None
    # in the words of Python and of the command line
    assert "Set a larger --budget-calls (Budget(calls=..)) to continue" in str(caught.value)


async def test_spending_without_a_limit_adds_up_with_what_is_known_by_reservations_alone():
    def account(**limits):
        made = BudgetAccount(Budget(**limits))
        made.meters.add(Meter())
        return made

    first = account(calls=20)
    # a call whose cost is not known, and one that is counted
    for _ in range(5):
        first.keep(await first.reserve(0, 0))
    first.settle(await first.reserve(0, 0), 0, 0)
    next(iter(first.meters)).add(None)
    free = account()
    free.join(first)
    for _ in range(4):
        next(iter(free.meters)).add(None)
    free.join(free)
    last = account(calls=20)
    last.join(free)
    assert last.left == {"calls": 10}


def test_a_base_url_is_named_as_the_reason_why_a_price_is_unknown():
    with pytest.raises(ConfigurationError, match=r"is unknown at this base_url \(--base-url\)"):
        require_price(Budget(usd=1), None, "openai/gpt-4o-mini", "http://127.0.0.1:9/v1")
