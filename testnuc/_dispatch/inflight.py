"""Asks, the requests in flight for them, and the runs that wait for these."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeAlias

from testnuc.labels import as_stored
from testnuc.prompts.writing import Demonstration
from testnuc.protocols import StoredPrediction
from testnuc.transport import telemetry
from testnuc.types import Prediction

Outcome: TypeAlias = Prediction | Exception

#: Stored where the LLM chose none of a shortlist, by `none_key`.
NONE_CHOSEN = Prediction(None, None)

#: Unreadable replies for a text after which it is asked about alone, once.
LAST_STEP = 2


def none_key(key: bytes) -> bytes:
    """Return the key for that the LLM chose none of a shortlist: all labels are shown next.

    Lists change as the pool grows, so that the text is not asked about with another one.
    """
    return blake2b(key + b"none of a shortlist", digest_size=16).digest()


@dataclass(slots=True, eq=False, repr=False)
class Ask:
    """A request for the label of one text."""

    #: The cache key: a hash of everything that can change the answer.
    key: bytes
    text: str
    text_hash: bytes
    #: Position of the text in the caller's run; returned with the outcome.
    place: int
    #: Zero-based sample index.
    sample: int = 0
    demonstrations: tuple[Demonstration, ...] = ()
    #: Positions of the labels that the prompt shows; empty: all.
    shown: tuple[int, ...] = ()
    #: Answers it, if not the function of the scheduler. It goes with the ask: other runs may join.
    answer: "Callable[[tuple[Ask, ...]], Awaitable[list[Outcome]]] | None" = None
    #: Unreadable replies so far, such as that of a batch; see `Request.step`.
    step: int = 0

    def answered(self, scope: bytes, prediction: Prediction) -> StoredPrediction:
        """Return its answer as a row of the store."""
        return StoredPrediction(self.key, scope, self.text_hash, self.sample, as_stored(prediction))


@dataclass(slots=True, eq=False, repr=False)
class ScheduledRun:
    """State of one `Scheduler.run`: the number of open asks, and the outcomes not yet consumed.

    Workers append outcomes and never call the consumer, so its exceptions cannot reach a worker.
    """

    #: Whether the iterable of asks is exhausted.
    fed: bool = False
    #: Asks without an outcome.
    open: int = 0
    #: Outcomes that the consumer has not read yet.
    outcomes: deque[tuple[Ask, Outcome]] = field(default_factory=deque)
    #: Raised to the consumer once its outcomes are read.
    failure: BaseException | None = None
    #: Time of the failure, by the event loop's clock.
    failed_at: float = 0.0
    #: Whether its unsent requests were dropped after the failure.
    stopping: bool = False
    #: Set when the consumer has something to read.
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    #: Set when more asks may be claimed.
    room: asyncio.Event = field(default_factory=asyncio.Event)
    #: The trace that its calls belong to.
    context: Any = field(default_factory=telemetry.context)

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


@dataclass(slots=True, eq=False, repr=False)
class InFlightRequest:
    """A key that is queued or in flight, and the runs that wait for its outcome."""

    ask: Ask
    waiters: list[tuple[ScheduledRun, Ask]]
    sent: bool = False
    #: Whether it was queued, and so may be with a worker: two claims can be granted its lease.
    queued: bool = False
