"""In-flight requests, the runs that wait for them, and the registry that lanes share."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from testnuc.transport import telemetry

if TYPE_CHECKING:
    from testnuc.prompts import Demonstration
    from testnuc.types import Prediction

    Outcome = Prediction | Exception

__all__ = ["Ask", "InFlight", "InFlightRequest", "ScheduledRun"]


class Ask:
    """A request for the label of one text, with its cache key.

    Parameters
    ----------
    key : bytes
        Hash of everything that can change the answer.
    text : str
    text_hash : bytes
    place : int
        Position of the text in the caller's run; returned with the outcome.
    sample : int
        Zero-based sample index.
    demonstrations : tuple of Demonstration
    """

    __slots__ = ("demonstrations", "key", "place", "sample", "text", "text_hash")

    def __init__(
        self,
        key: bytes,
        text: str,
        text_hash: bytes,
        place: int,
        sample: int = 0,
        demonstrations: tuple[Demonstration, ...] = (),
    ) -> None:
        self.key = key
        self.text = text
        self.text_hash = text_hash
        self.place = place
        self.sample = sample
        self.demonstrations = demonstrations


class ScheduledRun:
    """State of one `Scheduler.run`: the number of open asks, and the outcomes not yet consumed.

    Workers append outcomes and never call the consumer, so its exceptions cannot reach a worker.
    """

    __slots__ = ("changed", "context", "failure", "fed", "open", "outcomes", "room")

    def __init__(self) -> None:
        #: Whether the iterable of asks is exhausted.
        self.fed = False
        #: Asks without an outcome.
        self.open = 0
        #: Outcomes that the consumer has not read yet.
        self.outcomes: deque[tuple[Ask, Outcome]] = deque()
        #: Raised to the consumer once its outcomes are read.
        self.failure: BaseException | None = None
        #: Set when the consumer has something to read.
        self.changed = asyncio.Event()
        #: Set when more asks may be claimed.
        self.room = asyncio.Event()
        #: The trace that its calls belong to.
        self.context = telemetry.context()

    def settle(self, ask: Ask, outcome: Outcome) -> None:
        """Pass an outcome on to the consumer."""
        self.outcomes.append((ask, outcome))
        self.changed.set()

    def fail(self, error: BaseException) -> None:
        """End the run with an error; the first one counts."""
        if self.failure is None:
            self.failure = error
        self.changed.set()


class InFlightRequest:
    """A key that is queued or in flight, and the runs that wait for its outcome."""

    __slots__ = ("ask", "sent", "waiters")

    def __init__(self, ask: Ask, run: ScheduledRun) -> None:
        self.ask = ask
        self.waiters = [(run, ask)]
        self.sent = False


class InFlight:
    """The registry of in-flight requests, shared by the lanes of a client: single-flight by key.

    A store look-up can miss a prediction that is stored while it runs; such predictions are kept in
    `fresh` until all look-ups have ended.
    """

    __slots__ = ("fresh", "reading", "requests")

    def __init__(self) -> None:
        self.requests: dict[bytes, InFlightRequest] = {}
        #: Number of store look-ups in progress.
        self.reading = 0
        self.fresh: dict[bytes, Prediction] = {}
