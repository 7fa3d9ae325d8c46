"""Interfaces of admission and budget, so that many transports can share them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testnuc.limits.admission import Permit
    from testnuc.limits.budget import Reservation


class AdmissionControl(Protocol):
    """Admits calls; `testnuc.limits.Admission` implements it for one process."""

    def try_acquire(self, input_tokens: int = 0, max_output_tokens: int = 0) -> Permit | None:
        """Admit a call, or return None if it must wait."""

    async def acquire(
        self, input_tokens: int = 0, max_output_tokens: int = 0, *, again: bool = False
    ) -> Permit:
        """Wait until a call may be sent."""

    def answered(
        self, permit: Permit, input_tokens: int | None = None, output_tokens: int | None = None
    ) -> None:
        """Return a permit after an answer."""

    def refused(self, permit: Permit, wait: float | None = None, *, load: bool = True) -> None:
        """Return a permit after the server refused the request."""

    def failed(self, permit: Permit) -> None:
        """Return a permit after any other failure."""

    def abandoned(self, permit: Permit) -> None:
        """Return a permit whose request was never sent."""

    def observe(self, permit: Permit, headers: Mapping[str, str]) -> None:
        """Read the rate limit headers of a response, before its permit is returned."""

    @property
    def pause(self) -> float:
        """Seconds left of a pause for which the provider asked more than a minute, else 0."""


class BudgetControl(Protocol):
    """Reserves budget; `testnuc.limits.BudgetAccount` implements it for one process."""

    @property
    def bounds_tokens(self) -> bool:
        """Whether the budget bounds tokens or their cost."""

    async def reserve(
        self, pico_usd: int, tokens: int, calls: int = 1, *, batch: bool = False
    ) -> Reservation:
        """Wait until the worst case of a call fits, and reserve it."""

    def settle(self, reservation: Reservation, pico_usd: int, tokens: int, calls: int = 1) -> None:
        """Book the actual cost of a call."""

    def book(self, pico_usd: int, tokens: int, calls: int) -> None:
        """Book spending without a reservation."""

    def keep(self, reservation: Reservation) -> None:
        """Book the whole reservation."""

    def release(self, reservation: Reservation) -> None:
        """Free a reservation."""
