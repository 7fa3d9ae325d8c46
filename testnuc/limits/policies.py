"""What a user may say about limits: records that are checked when they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from testnuc.errors import InvalidInputError

__all__ = ["Budget", "RateLimit", "RetryPolicy"]


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
