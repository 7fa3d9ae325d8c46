"""The accountant: what a call may cost is set aside before it is sent, and settled after."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from testnuc.errors import BudgetExceededError
from testnuc.limits.prices import PICO

if TYPE_CHECKING:
    from testnuc.limits.policies import Budget

__all__ = ["BudgetAccount", "Reservation"]

#: usd as whole 1e-12 dollars, tokens, calls: whole numbers, so that sums are exact.
Amounts = tuple[int, int, int]
_NAMES = ("usd", "tokens", "calls")


class Reservation:
    """The worst case of one call, set aside. Settled, kept or released exactly once."""

    __slots__ = ("amounts", "open")

    def __init__(self, amounts: Amounts) -> None:
        self.amounts = amounts
        self.open = True


class BudgetAccount:
    """Keeps what is spent and what is set aside at or below a budget.

    Belongs to one event loop: nothing here awaits between a look and the entry it leads to.

    Parameters
    ----------
    budget : Budget
        The bounds.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        usd = None if budget.usd is None else int(budget.usd * PICO)
        self._limits = (usd, budget.tokens, budget.calls)
        self._spent = [0, 0, 0]
        self._reserved = [0, 0, 0]
        self._open = 0
        self._waiting: deque[tuple[Amounts, asyncio.Future[Reservation]]] = deque()

    @property
    def spent(self) -> tuple[float, int, int]:
        """What is spent: US dollars, tokens, calls."""
        return self._spent[0] / PICO, self._spent[1], self._spent[2]

    @property
    def reserved(self) -> tuple[float, int, int]:
        """What is set aside for calls under way: US dollars, tokens, calls."""
        return self._reserved[0] / PICO, self._reserved[1], self._reserved[2]

    @property
    def bounds_tokens(self) -> bool:
        """Whether tokens, or the money they cost, are bounded."""
        return self._limits[0] is not None or self._limits[1] is not None

    def try_reserve(self, pico_usd: int, tokens: int, calls: int = 1) -> Reservation | None:
        """Set the worst case of a call aside.

        Parameters
        ----------
        pico_usd : int
            In 1e-12 US dollars.
        tokens, calls : int
            Input and output tokens together; calls.

        Returns
        -------
        Reservation or None
            None: it may fit once calls under way have settled; `reserve` waits for that.

        Raises
        ------
        BudgetExceededError
            It does not fit, whatever those calls will cost.
        """
        amounts = (pico_usd, tokens, calls)
        if self._waiting:
            return None
        return self._grant(amounts)

    async def reserve(self, pico_usd: int, tokens: int, calls: int = 1) -> Reservation:
        """Set the worst case of a call aside, once calls under way leave room for it.

        Parameters
        ----------
        pico_usd, tokens, calls : int
            As for `try_reserve`.

        Returns
        -------
        Reservation
            To be settled, kept or released.

        Raises
        ------
        BudgetExceededError
            All that was under way is settled, or cannot free enough.
        """
        reservation = self.try_reserve(pico_usd, tokens, calls)
        if reservation is not None:
            return reservation
        future: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        self._waiting.append(((pico_usd, tokens, calls), future))
        try:
            return await future
        except asyncio.CancelledError:
            # granted in the same turn as the cancellation: give it back, nobody else can
            if future.done() and not future.cancelled() and future.exception() is None:
                self.release(future.result())
            else:
                future.cancel()
                self._drain()
            raise

    def settle(self, reservation: Reservation, pico_usd: int, tokens: int, calls: int = 1) -> None:
        """Book what a call did cost, and free the rest of its reservation.

        Parameters
        ----------
        reservation : Reservation
            Of the call.
        pico_usd, tokens, calls : int
            What was billed.
        """
        self._close(reservation, (pico_usd, tokens, calls))

    def book(self, pico_usd: int, tokens: int, calls: int) -> None:
        """Book what was spent without a reservation: another process had sent it.

        Parameters
        ----------
        pico_usd, tokens, calls : int
            What was billed. It may be more than was left; then nothing more is granted.
        """
        for i, amount in enumerate((pico_usd, tokens, calls)):
            self._spent[i] += amount
        if self._waiting:
            self._drain()

    def keep(self, reservation: Reservation) -> None:
        """Book the whole reservation: the call may have been billed, nobody knows for what.

        Parameters
        ----------
        reservation : Reservation
            Of the call.
        """
        self._close(reservation, reservation.amounts)

    def release(self, reservation: Reservation) -> None:
        """Free a reservation: the call was certainly not billed.

        Parameters
        ----------
        reservation : Reservation
            Of the call.
        """
        self._close(reservation, (0, 0, 0))

    def _close(self, reservation: Reservation, spent: Amounts) -> None:
        if not reservation.open:
            return
        reservation.open = False
        self._open -= 1
        for i in range(3):
            self._reserved[i] -= reservation.amounts[i]
            self._spent[i] += spent[i]
        if self._waiting:
            self._drain()

    def _grant(self, amounts: Amounts) -> Reservation | None:
        fits = True
        for i, limit in enumerate(self._limits):
            if limit is None:
                continue
            if self._spent[i] + amounts[i] > limit:
                raise self._exceeded(i, amounts[i])
            if self._spent[i] + self._reserved[i] + amounts[i] > limit:
                fits = False
        if not fits:
            return None
        for i in range(3):
            self._reserved[i] += amounts[i]
        self._open += 1
        return Reservation(amounts)

    def _drain(self) -> None:
        """Look at those who wait, in their order, until one of them must go on waiting."""
        while self._waiting:
            amounts, future = self._waiting[0]
            if not future.done():
                try:
                    reservation = self._grant(amounts)
                except BudgetExceededError as error:
                    future.set_exception(error)
                else:
                    if reservation is None:
                        return
                    future.set_result(reservation)
            self._waiting.popleft()

    def _exceeded(self, which: int, amount: int) -> BudgetExceededError:
        limit = self._limits[which] or 0
        left = max(0, limit - self._spent[which])
        if which == 0:
            need, rest, total = (f"{x / PICO:.6f}" for x in (amount, left, limit))
        else:
            need, rest, total = (str(x) for x in (amount, left, limit))
        name = _NAMES[which]
        return BudgetExceededError(
            f"the next call may need {need} {name}, but {rest} of the budget of {total} {name} "
            f"are left; it was not sent. Raise Budget({name}=..) to go on"
        )
