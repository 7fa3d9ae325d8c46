"""In-flight requests, the runs that wait for them, and the registry that lanes share."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

from testnuc.transport import telemetry

if TYPE_CHECKING:
    from testnuc.prompts import Demonstration
    from testnuc.types import Prediction

    Outcome = Prediction | Exception

__all__ = ["Ask", "InFlight", "InFlightRequest", "Lane", "ScheduledRun"]


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
    shown : tuple of int
        Positions of the labels that the prompt shows; empty: all.
    """

    __slots__ = ("demonstrations", "key", "place", "sample", "shown", "text", "text_hash")

    def __init__(
        self,
        key: bytes,
        text: str,
        text_hash: bytes,
        place: int,
        sample: int = 0,
        demonstrations: tuple[Demonstration, ...] = (),
        shown: tuple[int, ...] = (),
    ) -> None:
        self.key = key
        self.text = text
        self.text_hash = text_hash
        self.place = place
        self.sample = sample
        self.demonstrations = demonstrations
        self.shown = shown


class Lane(Protocol):
    """A scheduler, to the runs and schedulers that share its requests."""

    def stop(self, run: ScheduledRun) -> None:
        """Remove the unsent requests of a failed run."""

    def adopt(self, ask: Ask, waiters: list[tuple[ScheduledRun, Ask]]) -> None:
        """Take over a request that a faster lane will not send."""


class ScheduledRun:
    """State of one `Scheduler.run`: the number of open asks, and the outcomes not yet consumed.

    Workers append outcomes and never call the consumer, so its exceptions cannot reach a worker.
    """

    __slots__ = (
        "changed",
        "context",
        "failed_at",
        "failure",
        "fed",
        "lane",
        "open",
        "outcomes",
        "room",
        "stopping",
    )

    def __init__(self, lane: Lane) -> None:
        #: The scheduler that runs it.
        self.lane = lane
        #: Whether the iterable of asks is exhausted.
        self.fed = False
        #: Asks without an outcome.
        self.open = 0
        #: Outcomes that the consumer has not read yet.
        self.outcomes: deque[tuple[Ask, Outcome]] = deque()
        #: Raised to the consumer once its outcomes are read.
        self.failure: BaseException | None = None
        #: Time of the failure, by the event loop's clock.
        self.failed_at = 0.0
        #: Whether its unsent requests were dropped after the failure.
        self.stopping = False
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
            self.failed_at = asyncio.get_running_loop().time()
        self.changed.set()


class InFlightRequest:
    """A key that is queued or in flight, and the runs that wait for its outcome."""

    __slots__ = ("ask", "sent", "waiters")

    def __init__(self, ask: Ask, run: ScheduledRun) -> None:
        self.ask = ask
        self.waiters = [(run, ask)]
        self.sent = False


class InFlight:
    """The registry of in-flight requests of a lane: single-flight by key.

    A store look-up can miss a prediction that is stored while it runs; such predictions are kept in
    `fresh` until all look-ups have ended.
    """

    __slots__ = ("fresh", "reading", "requests")

    def __init__(self) -> None:
        self.requests: dict[bytes, InFlightRequest] = {}
        #: Number of store look-ups in progress.
        self.reading = 0
        self.fresh: dict[bytes, Prediction] = {}

    def end_reading(self) -> dict[bytes, Prediction]:
        """End a store look-up; returns the predictions that it may have missed."""
        self.reading -= 1
        fresh = self.fresh
        if not self.reading:
            self.fresh = {}
        return fresh
