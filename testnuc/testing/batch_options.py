"""Options of the test server's batch APIs: duration, outcomes and faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from testnuc.errors import InvalidInputError

__all__ = ["BATCH_OUTCOMES", "Batches"]

#: Final statuses of a batch other than completed (None).
BATCH_OUTCOMES: Final = ("expired", "cancelled", "failed")


@dataclass(frozen=True, slots=True)
class Batches:
    """Options of the batch APIs of `LoopbackLLM`.

    A batch advances one step per poll, so tests do not wait for real time. The server's `Faults`
    apply to the requests of a batch, except for connection faults; each retry draws a new fault.

    Parameters
    ----------
    validation : int
        Polls during which a new batch is ``validating`` (OpenAI).
    polls : int
        Polls after that during which it is in progress.
    outcomes : sequence of (str or None)
        Final status of each batch, in order of creation. ``"expired"`` and ``"cancelled"`` batches
        have answers for some of their requests, ``"failed"`` ones for none. None, and every batch
        past the end of the sequence, means completed.
    answered : float
        Share of requests that are answered in an expired or cancelled batch, 0..1.
    shuffle : bool
        Shuffle the output lines.
    duplicates, missing : float
        Share of output lines that are duplicated or missing, 0..1. A request whose line is missing
        was not executed.
    refusals : int
        Number of create requests that return 429 before the first success.
    lost : sequence of int
        Zero-based numbers of batches that are created although the response is lost (connection
        reset).
    broken : int
        Number of result downloads that are cut off before the first complete one.
    max_requests, max_bytes, enqueued_tokens : int, optional
        Limits; a batch that exceeds them is rejected or fails validation, as with the provider.
        `enqueued_tokens` limits the total of all open batches.
    poll_after : float
        Poll interval that the server requests from clients, in seconds.
    step : callable, optional
        Called with the name of each step before the response is sent: ``upload``, ``create``
        (before the batch exists), ``created``, ``list``, ``retrieve``, ``cancel``, ``download``.

    Raises
    ------
    InvalidInputError
        An outcome is unknown, or a share is not in 0..1.
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
                    f"unknown outcome {outcome!r}; choose from {', '.join(BATCH_OUTCOMES)}, None"
                )
        for name in ("answered", "duplicates", "missing"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInputError(
                    f"{name} is {getattr(self, name)!r}; give a share between 0 and 1"
                )

    def notify(self, step: str) -> None:
        """Call the `step` callback."""
        if self.step is not None:
            self.step(step)
