"""One call on its way, and the one timer that bounds each of its tries."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from testnuc.errors import ConfigurationError

if TYPE_CHECKING:
    from testnuc.errors import ProviderError
    from testnuc.limits import Reservation
    from testnuc.protocols import Provider, Request, WireProvider

__all__ = ["Call", "Timer"]


class Call:
    """One call on its way: what must outlive a single try."""

    __slots__ = (
        "adaptations",
        "again",
        "body",
        "error",
        "other",
        "pending",
        "refusals",
        "request",
        "reservation",
        "sends",
        "size",
        "started",
        "unsent",
        "wire",
    )

    def __init__(
        self,
        request: Request,
        size: tuple[int, int],
        wire: WireProvider | None,
        other: Provider | None,
    ) -> None:
        self.request = request
        #: Estimated input tokens, and the most output tokens.
        self.size = size
        self.wire = wire
        self.other = other
        self.body = b"" if wire is None else wire.encode(request)
        #: What of the budget is set aside; None: nothing, or used up.
        self.reservation: Reservation | None = None
        self.sends = 0
        #: How often there was no connection, so that nothing was sent after all.
        self.refusals = 0
        #: Whether the latest failure was one of these.
        self.unsent = False
        self.adaptations = 0
        #: Whether the next sending is one after a failure.
        self.again = False
        #: Moment of the first sending; the deadline counts from there.
        self.started = 0.0
        #: A failure that nobody has looked at yet.
        self.pending: ProviderError | None = None
        #: The latest failure that no new encoding cured.
        self.error: ProviderError | None = None


class Timer:
    """Cancels the current task after a while: asyncio.timeout at a third of its cost."""

    __slots__ = ("_cancelling", "_handle", "_task", "fired")

    def __init__(self, seconds: float) -> None:
        task = asyncio.current_task()
        if task is None:
            raise ConfigurationError("a call must be awaited inside an asyncio task")
        self._task = task
        self._cancelling = task.cancelling()
        self.fired = False
        self._handle = task.get_loop().call_later(seconds, self._fire)

    def _fire(self) -> None:
        self.fired = True
        self._task.cancel()

    def stop(self) -> bool:
        """Disarm, once; True: the CancelledError under way is ours alone."""
        self._handle.cancel()
        return self.fired and self._task.uncancel() <= self._cancelling
