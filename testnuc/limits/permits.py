"""Leave to send a request, and those who wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from testnuc.limits.rates import Entry

__all__ = ["Permit", "Waiter"]


class Permit:
    """Leave to send one request; to be given back exactly once."""

    __slots__ = ("charge", "charged", "estimate", "request", "sent_at", "size")

    def __init__(self, sent_at: float, estimate: int, size: tuple[int, int]) -> None:
        #: Moment of the clock.
        self.sent_at = sent_at
        #: The caller's estimate of the input tokens.
        self.estimate = estimate
        #: Input and output tokens it is expected to need.
        self.size = size
        #: Where the request, and the tokens charged for it, are logged.
        self.request: Entry | None = None
        self.charged: Entry | None = None
        self.charge = 0


class Waiter:
    """A call that waits for a permit."""

    __slots__ = ("future", "input_tokens", "max_output_tokens")

    def __init__(
        self, future: asyncio.Future[Permit], input_tokens: int, max_output_tokens: int
    ) -> None:
        self.future = future
        self.input_tokens = input_tokens
        self.max_output_tokens = max_output_tokens
