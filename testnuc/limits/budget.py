"""Spending: what calls used and cost, and a budget of it.

The worst case of a call is reserved before it is sent, and settled after.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import TypeAlias, TypeVar

from testnuc.errors import BudgetExceededError
from testnuc.limits.policies import Budget
from testnuc.limits.prices import PICO, Price
from testnuc.protocols import TokenUsage
from testnuc.types import Usage

T = TypeVar("T")
_Waiter: TypeAlias = tuple["Amounts", "asyncio.Future[Reservation]"]

#: Integers, so that sums are exact: 1e-12 US dollars, tokens, calls.
Amounts = tuple[int, int, int]
_NAMES = ("usd", "tokens", "calls")


async def granted(
    future: asyncio.Future[T], give_back: Callable[[T], object], drain: Callable[[], object]
) -> T:
    """Wait for what a queue grants; if the caller is cancelled, others get it."""
    try:
        return await future
    except asyncio.CancelledError:
        # it may have been granted in the same iteration of the loop as the cancellation; else the
        # queue skips this waiter
        if future.done() and not future.cancelled() and future.exception() is None:
            give_back(future.result())
        else:
            future.cancel()
            drain()
        raise


@dataclass(slots=True, eq=False)
class Reservation:
    """The reserved worst case of a call or a batch job; settled, kept or released once."""

    amounts: Amounts
    #: Whether it is a batch job's, which takes hours.
    batch: bool = field(default=False, kw_only=True)
    open: bool = field(default=True, init=False)


class BudgetAccount:
    """Keeps the sum of spending and reservations at or below a budget; None: there is none.

    What a batch job has reserved counts as spent for calls: they do not wait for hours. Batch jobs
    wait for each other, and for calls.

    Belongs to one event loop: nothing awaits between a check and the update that follows.
    """

    def __init__(self, budget: Budget | None = None) -> None:
        budget = budget or Budget()
        #: Whether there is any limit, so that calls need a reservation.
        self.bounded = budget != Budget()
        usd = None if budget.usd is None else int(budget.usd * PICO)
        self._limits = (usd, budget.tokens, budget.calls)
        self._spent = [0, 0, 0]
        self._reserved = [0, 0, 0]
        #: The part of `_reserved` that batch jobs hold.
        self._batches = [0, 0, 0]
        self._waiting: deque[_Waiter] = deque()
        self._waiting_batches: deque[_Waiter] = deque()

    @property
    def bounds_tokens(self) -> bool:
        """Whether the budget bounds tokens or their cost."""
        return self._limits[0] is not None or self._limits[1] is not None

    async def reserve(
        self, pico_usd: int, tokens: int, calls: int = 1, *, batch: bool = False
    ) -> Reservation:
        """Wait until the worst case of a call or a batch job fits, and reserve it.

        Settle, keep or release it. `BudgetExceededError`: it does not fit, whatever calls in flight
        cost.
        """
        amounts = (pico_usd, tokens, calls)
        waiting = self._waiting_batches if batch else self._waiting
        first = not (waiting or (batch and self._waiting))
        if first and (reservation := self._grant(amounts, batch=batch)) is not None:
            return reservation
        future: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        waiting.append((amounts, future))
        return await granted(future, self.release, self._drain)

    def settle(self, reservation: Reservation, pico_usd: int, tokens: int, calls: int = 1) -> None:
        """Book the actual cost of a call, and free the rest of its reservation."""
        self._close(reservation, (pico_usd, tokens, calls))

    def book(self, pico_usd: int, tokens: int, calls: int) -> None:
        """Book spending without a reservation, of calls sent by another process.

        It may exceed the budget; then no reservation is granted.
        """
        for i, amount in enumerate((pico_usd, tokens, calls)):
            self._spent[i] += amount
        self._drain()

    def keep(self, reservation: Reservation) -> None:
        """Book the whole reservation: the call may have been billed, the amount is unknown."""
        self._close(reservation, reservation.amounts)

    def release(self, reservation: Reservation) -> None:
        """Free a reservation: the call was certainly not billed."""
        self._close(reservation, (0, 0, 0))

    def _close(self, reservation: Reservation, spent: Amounts) -> None:
        if not reservation.open:
            return
        reservation.open = False
        for i in range(3):
            self._reserved[i] -= reservation.amounts[i]
            self._spent[i] += spent[i]
            if reservation.batch:
                self._batches[i] -= reservation.amounts[i]
        self._drain()

    def _grant(self, amounts: Amounts, *, batch: bool) -> Reservation | None:
        fits = True
        for i, limit in enumerate(self._limits):
            if limit is None:
                continue
            spent = self._spent[i] + (0 if batch else self._batches[i])
            if spent + amounts[i] > limit:
                raise self._exceeded(i, amounts[i], spent)
            if self._spent[i] + self._reserved[i] + amounts[i] > limit:
                fits = False
        if not fits:
            return None
        for i in range(3):
            self._reserved[i] += amounts[i]
            if batch:
                self._batches[i] += amounts[i]
        return Reservation(amounts, batch=batch)

    def _drain(self) -> None:
        """Grant waiting reservations in order, until one does not fit; calls before batch jobs."""
        if self._granted(self._waiting, batch=False):
            self._granted(self._waiting_batches, batch=True)

    def _granted(self, waiting: deque[_Waiter], *, batch: bool) -> bool:
        """Grant the reservations of a queue; return whether none is left."""
        while waiting:
            amounts, future = waiting[0]
            if not future.done():
                try:
                    reservation = self._grant(amounts, batch=batch)
                except BudgetExceededError as error:
                    # this may be the end of another call: its failure is not the cause
                    error.__context__ = None
                    future.set_exception(error)
                else:
                    if reservation is None:
                        return False
                    future.set_result(reservation)
            waiting.popleft()
        return True

    def _exceeded(self, which: int, amount: int, spent: int) -> BudgetExceededError:
        limit = self._limits[which] or 0
        left = max(0, limit - spent)
        if which == 0:
            need, rest, total = (f"{x / PICO:.6f}" for x in (amount, left, limit))
        else:
            need, rest, total = (str(x) for x in (amount, left, limit))
        name = _NAMES[which]
        held = ""
        if spent > self._spent[which]:
            held = " (batch jobs have reserved a part; it is known what they cost when they end)"
        return BudgetExceededError(
            f"the next call may need {need} {name}, but {rest} of the budget of {total} {name} "
            f"are left{held}; it was not sent. Set a larger Budget({name}=..) to continue"
        )


#: The meter's counters at one moment.
Mark = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Meter:
    """Adds up calls, tokens and money.

    A value that is unknown for one call makes every sum that includes it unknown; so does a `price`
    of None the cost of every call.
    """

    price: Price | None = None
    #: Calls that the provider answered with 200, readable or not: they are billed.
    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    #: In 1e-12 US dollars.
    pico_usd: int = 0
    #: Calls with unknown tokens, and calls with an unknown price.
    unmeasured: int = 0
    unpriced: int = 0
    #: Counted by the client.
    store_hits: int = 0
    coalesced: int = 0
    #: Requests retried after a failure.
    retries: int = 0

    def add(self, usage: TokenUsage | None, price: Price | None = None) -> int | None:
        """Count one answered call; returns its cost in 1e-12 US dollars, None if unknown.

        `usage` is None if the provider did not report it. `price` is that of this call, if it
        differs from the others'.
        """
        self.calls += 1
        price = self.price if price is None else price
        if usage is None:
            self.unmeasured += 1
            pico_usd = 0 if price is not None and price.is_free else None
        else:
            self.input_tokens += usage.input_tokens
            self.cached_tokens += usage.cached_tokens
            self.output_tokens += usage.output_tokens
            pico_usd = None if price is None else price.charge(usage)
        if pico_usd is None:
            self.unpriced += 1
        else:
            self.pico_usd += pico_usd
        return pico_usd

    @classmethod
    def sum(cls, marks: Iterable[Mark]) -> Usage:
        """Return the total of several meters."""
        total = cls()
        for mark in marks:
            for name, n in zip(_COUNTERS, mark, strict=True):
                setattr(total, name, getattr(total, name) + n)
        return total.since()

    def mark(self) -> Mark:
        """Return the present counters, for `since`."""
        return tuple(getattr(self, name) for name in _COUNTERS)

    def since(self, mark: Mark | None = None) -> Usage:
        """Return the usage since a mark, or all; None for values that a call did not report."""
        names = _COUNTERS
        before = mark or (0,) * len(names)
        n = {name: getattr(self, name) - old for name, old in zip(names, before, strict=True)}
        known = n["unmeasured"] == 0
        return Usage(
            calls=n["calls"],
            input_tokens=n["input_tokens"] if known else None,
            cached_tokens=n["cached_tokens"] if known else None,
            output_tokens=n["output_tokens"] if known else None,
            usd=n["pico_usd"] / PICO if n["unpriced"] == 0 else None,
            store_hits=n["store_hits"],
            coalesced=n["coalesced"],
            retries=n["retries"],
        )


_COUNTERS = tuple(field.name for field in fields(Meter) if field.name != "price")
