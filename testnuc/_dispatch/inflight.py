"""What the fan-out keeps of a question: the ask, its place in the queue, and who waits for it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from testnuc.transport import telemetry

if TYPE_CHECKING:
    from collections.abc import Callable

    from testnuc.prompts import Demonstration
    from testnuc.types import Prediction

    Outcome = Prediction | Exception
    Done = Callable[["Ask", Outcome], None]

__all__ = ["Ask", "Entry", "InFlight", "Run"]


class Ask:
    """One question: the label of one text, for the `sample`-th time.

    Parameters
    ----------
    key : bytes
        Hash of all that can change the answer.
    text : str
    text_hash : bytes
    place : int
        The caller's own number of the text.
    sample : int
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


class Run:
    """What one caller waits for."""

    __slots__ = ("changed", "context", "done", "failure", "feeding", "open", "queue")

    def __init__(self, done: Done, *, feeding: bool) -> None:
        self.done = done
        #: Whether more asks are at hand, so that a call need not go out half full.
        self.feeding = feeding
        #: Claimed by this run and not yet taken by a worker.
        self.queue: deque[Entry] = deque()
        #: Asks that have no outcome yet.
        self.open = 0
        self.failure: Exception | None = None
        self.changed = asyncio.Event()
        #: The trace that its calls belong to.
        self.context = telemetry.context()


class Entry:
    """A key that is queued or in flight, and who waits for it."""

    __slots__ = ("ask", "sent", "waiters")

    def __init__(self, ask: Ask, run: Run) -> None:
        self.ask = ask
        self.waiters = [(run, ask)]
        self.sent = False


class InFlight:
    """What is asked just now: shared by the lanes of a client, so that none asks what another does.

    Predictions stored while a look-up was under way, which may have missed them, are kept until no
    look-up is.
    """

    __slots__ = ("entries", "fresh", "reading")

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}
        self.reading = 0
        self.fresh: dict[bytes, Prediction] = {}
