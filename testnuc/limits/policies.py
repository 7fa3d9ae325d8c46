"""What a user may say about limits: records that are checked when they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from testnuc.errors import InvalidInputError

__all__ = ["BatchPolicy", "Budget", "RateLimit", "RetryPolicy"]


def _count(name: str, value: int | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInputError(f"{name} must be a whole number of at least 1, not {value!r}")


def _number(name: str, value: float, *, zero: bool = False) -> None:
    fine = (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and (value > 0 or (zero and value == 0))
    )
    if not fine:
        least = "of at least 0" if zero else "above 0"
        raise InvalidInputError(f"{name} must be a finite number {least}, not {value!r}")


@dataclass(frozen=True, slots=True)
class RateLimit:
    """How much may be sent in any sliding minute. None: no limit of one's own.

    Without a `RateLimit` the headers of the provider's answers steer alone.

    Parameters
    ----------
    requests_per_minute : int, optional
        Requests, sent-again ones included.
    tokens_per_minute : int, optional
        Input and output tokens together.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        _count("requests_per_minute", self.requests_per_minute)
        _count("tokens_per_minute", self.tokens_per_minute)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long, and how often, one call is tried. All times in seconds.

    The wait before try n + 1 is ``uniform(0, min(max_wait, initial_wait * 2**(n - 1)))``; where the
    server says how long to wait, it is at least that, with jitter on top.

    Parameters
    ----------
    attempts : int
        How often a call is sent at most.
    deadline : float
        For the whole call, from its first sending on: all tries and the waits between them.
    timeout : float
        For one try, from sending to the last byte of the answer.
    max_wait : float
        The longest wait we choose ourselves; a longer one of the server's is obeyed if `deadline`
        allows, and otherwise ends the call at once.
    initial_wait : float
        The longest wait before the second try.
    """

    attempts: int = 10
    deadline: float = 120.0
    timeout: float = 60.0
    max_wait: float = 60.0
    initial_wait: float = 0.5

    def __post_init__(self) -> None:
        _count("attempts", self.attempts)
        if self.attempts is None:
            raise InvalidInputError("attempts must be a whole number of at least 1, not None")
        _number("deadline", self.deadline)
        _number("timeout", self.timeout)
        _number("max_wait", self.max_wait, zero=True)
        _number("initial_wait", self.initial_wait, zero=True)


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent at most by one client. None: no bound.

    The worst case of a call is reserved before it is sent, so that the sum is never exceeded,
    whatever runs at the same time.

    Parameters
    ----------
    usd : float, optional
        US dollars by the price list.
    tokens : int, optional
        Input and output tokens together.
    calls : int, optional
        Calls the provider answered, or may have answered.
    """

    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None

    def __post_init__(self) -> None:
        if self.usd is not None:
            _number("usd", self.usd)
        _count("tokens", self.tokens)
        _count("calls", self.calls)


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """How the batch lane uses a provider's batch API. All times in seconds.

    Parameters
    ----------
    rest : {"batch", "live", "error"}
        What becomes of requests that a batch left without an answer (it expired, was cancelled,
        failed, or they did): sent again in another batch, asked live at the full price, or left as
        the errors of their texts.
    attempts : int
        In how many batches a request is sent at most.
    in_flight : int
        Most batches under way at a time.
    max_requests : int, optional
        Most requests in a batch; default: what the provider allows.
    max_enqueued_tokens : int, optional
        Most estimated input tokens of all batches under way. Without it the provider says when it
        is enough, and the rest waits until a batch has ended.
    first_poll, longest_poll : float
        The first and the longest wait between two looks at a batch; each is half as long again as
        the one before. Where the provider says how long to wait, it decides.
    grace : float
        How long a batch that is being created by another process is left to it. After that, the
        process is taken for dead, and the batch is looked for at the provider.
    """

    rest: Literal["batch", "live", "error"] = "batch"
    attempts: int = 3
    in_flight: int = 8
    max_requests: int | None = None
    max_enqueued_tokens: int | None = None
    first_poll: float = 5.0
    longest_poll: float = 60.0
    grace: float = 30.0

    def __post_init__(self) -> None:
        if self.rest not in {"batch", "live", "error"}:
            raise InvalidInputError(f"rest is {self.rest!r}; choose from batch, live, error")
        for name in ("attempts", "in_flight"):
            if getattr(self, name) is None:
                raise InvalidInputError(f"{name} must be a whole number of at least 1, not None")
        for name in ("attempts", "in_flight", "max_requests", "max_enqueued_tokens"):
            _count(name, getattr(self, name))
        for name in ("first_poll", "longest_poll", "grace"):
            _number(name, getattr(self, name))
