"""What a transport needs of limits, so that many of them can share one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testnuc.limits.admission import Permit
    from testnuc.limits.budget import Reservation

__all__ = ["AdmissionControl", "BudgetControl"]


class AdmissionControl(Protocol):
    """Admits calls; see `testnuc.limits.Admission`, which does so for one process."""

    def try_acquire(self, input_tokens: int = 0, max_output_tokens: int = 0) -> Permit | None:
        """Admit a call at once, or return None where it must wait."""

    async def acquire(
        self, input_tokens: int = 0, max_output_tokens: int = 0, *, again: bool = False
    ) -> Permit:
        """Wait until a call may be sent."""

    def answered(
        self, permit: Permit, input_tokens: int | None = None, output_tokens: int | None = None
    ) -> None:
        """Give a permit back after an answer."""

    def refused(self, permit: Permit, wait: float | None = None, *, load: bool = True) -> None:
        """Give a permit back after the server refused the request."""

    def failed(self, permit: Permit) -> None:
        """Give a permit back after any other failure."""

    def observe(self, permit: Permit, headers: Mapping[str, str]) -> None:
        """Learn from an answer's headers, before its permit is given back."""


class BudgetControl(Protocol):
    """Sets money aside; see `testnuc.limits.BudgetAccount`, which does so for one process."""

    @property
    def bounds_tokens(self) -> bool:
        """Whether tokens, or the money they cost, are bounded."""

    async def reserve(self, pico_usd: int, tokens: int, calls: int = 1) -> Reservation:
        """Set the worst case of a call aside, once there is room for it."""

    def settle(self, reservation: Reservation, pico_usd: int, tokens: int, calls: int = 1) -> None:
        """Book what a call did cost."""

    def book(self, pico_usd: int, tokens: int, calls: int) -> None:
        """Book what was spent without a reservation."""

    def keep(self, reservation: Reservation) -> None:
        """Book the whole reservation."""

    def release(self, reservation: Reservation) -> None:
        """Free a reservation."""
