"""What a world notes, and what its texts, labels and processes are called."""

from __future__ import annotations

import contextvars
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.process import Process

LABELS = ["refund", "delivery", "login", "other"]
WORDS = ["card", "lost", "parcel", "late", "password", "reset", "money", "back", "app", "slow"]

PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Bug(Exception):  # noqa: N818 - of an observer, a method or a provider
    """Raised by code of the user."""


@dataclass
class Payment:
    """A response with status 200, which a provider bills."""

    process: Process | None
    at: float
    #: What was asked: the same for two calls with the same key, but for the sample.
    asked: tuple
    text: str
    #: Whether it holds a readable answer for the text.
    usable: bool
    #: Whether the client received it.
    delivered: bool = False
    lane: str = "live"
    #: Whether the server broke the response: it was cut off, or empty.
    broken: bool = False
    #: Whether it is for the text itself, and not to label it as an example of another.
    own: bool = True
    #: Whether its process was suspended meanwhile, so that another one may have paid, too.
    asleep: bool = False


@dataclass
class Operation:
    """One call of a client's method by a caller."""

    process: Process
    kind: str
    texts: list[str]
    lane: str
    started: float
    ended: float | None = None
    error: BaseException | None = None
    results: list = field(default_factory=list)
    #: What ended the run early, after some of its texts were answered.
    stopped: Exception | None = None
    #: Ended by its caller: cancelled, or left.
    left: bool = False
    #: Whether the observer raises.
    observed: bool = False

    def __repr__(self):
        return f"{self.process.name} {self.kind}({len(self.texts)}, {self.lane})"


def label(text: str) -> str:
    return LABELS[blake2b(text.encode(), digest_size=1).digest()[0] % 3]


def labels(text: str) -> list[str]:
    """Return the labels of a text that can have several."""
    first = label(text)
    return [first, LABELS[3]] if len(text) % 3 == 0 else [first]
