"""How a test server treats batches: how long they take, and what goes wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from testnuc.errors import InvalidInputError

__all__ = ["BATCH_OUTCOMES", "Batches"]

#: What can become of a whole batch; None: it is completed.
BATCH_OUTCOMES: Final = ("expired", "cancelled", "failed")


@dataclass(frozen=True, slots=True)
class Batches:
    """How a `LoopbackLLM` treats batches.

    Time passes with the questions of the client: a batch makes a step each time its state is asked
    for, so that a test takes as long as it computes. What goes wrong with single requests of a
    batch are the server's own `Faults`, as far as they are no matter of connections; each request
    that is sent again is drawn anew.

    Parameters
    ----------
    validation : int
        How often a new batch is told to be ``validating`` (OpenAI).
    polls : int
        How often it is told to be in progress, after that.
    outcomes : sequence of (str or None)
        What becomes of each batch, in the order of creation: ``"expired"`` and ``"cancelled"``
        batches have answers to a part of their requests, ``"failed"`` ones to none. None, and all
        after the end of the sequence: completed.
    answered : float
        The part that is answered of a batch that expires or is cancelled, 0..1.
    shuffle : bool
        Whether output lines are in another order.
    duplicates, missing : float
        Part of the output lines that are there twice, or not there, 0..1. What is missing was
        never answered.
    refusals : int
        How many creations are answered with a 429 before the first that is not.
    lost : sequence of int
        Numbers of batches, from 0, that are created, but whose creation is not told: the connection
        is reset.
    broken : int
        How many downloads of results break off before the first that is whole.
    max_requests, max_bytes, enqueued_tokens : int, optional
        A batch beyond these is refused, or fails its validation, as at the provider. The last
        counts the tokens of all batches that have not ended.
    poll_after : float
        Seconds that clients are told to wait before they ask again.
    step : callable, optional
        Told each step when it is taken, before the client hears of it: ``upload``, ``create``
        (before the batch is there), ``created``, ``list``, ``retrieve``, ``cancel``, ``download``.
    """

    validation: int = 0
    polls: int = 1
    outcomes: Sequence[str | None] = ()
    answered: float = 0.5
    shuffle: bool = False
    duplicates: float = 0.0
    missing: float = 0.0
    refusals: int = 0
    lost: Sequence[int] = ()
    broken: int = 0
    max_requests: int | None = None
    max_bytes: int | None = None
    enqueued_tokens: int | None = None
    poll_after: float = 0.001
    step: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        for outcome in self.outcomes:
            if outcome is not None and outcome not in BATCH_OUTCOMES:
                raise InvalidInputError(
                    f"no batch ends {outcome!r}; there are {', '.join(BATCH_OUTCOMES)} and None"
                )
        for name in ("answered", "duplicates", "missing"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInputError(
                    f"{name} is {getattr(self, name)!r}; it is a part between 0 and 1"
                )

    def told(self, step: str) -> None:
        """Tell whoever wants to know that a step is taken."""
        if self.step is not None:
            self.step(step)
