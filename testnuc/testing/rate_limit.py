"""A provider's rate limit, enforced over a sliding window."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

_LIMITS = ("requests_per_minute", "tokens_per_minute")
#: Length of the window.
_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Violation:
    """A request that exceeded the rate limit."""

    #: Seconds on the server's monotonic clock.
    time: float
    what: Literal["requests", "tokens"]
    #: Requests or tokens of the last minute, including this request.
    used: int
    limit: int


class RateLimitWindow:
    """Counts the requests and tokens of the last minute and checks them against the limit.

    The limit is an object or mapping with ``requests_per_minute`` and ``tokens_per_minute``, each a
    number or None.
    """

    def __init__(self, limit: object, *, clock: Callable[[], float] = time.monotonic) -> None:
        limits = (
            limit if isinstance(limit, Mapping) else {n: getattr(limit, n, None) for n in _LIMITS}
        )
        self.requests_limit, self.tokens_limit = map(limits.get, _LIMITS)
        self.tokens = 0
        self._clock = clock
        self._admitted: deque[tuple[float, int]] = deque()

    @property
    def requests(self) -> int:
        """Requests in the window."""
        return len(self._admitted)

    def admit(self, tokens: int) -> Violation | None:
        """Count a request of `tokens`; returns a violation if it exceeds a limit."""
        now = self._clock()
        self._drop_old(now)
        if self.requests_limit is not None and self.requests + 1 > self.requests_limit:
            return Violation(now, "requests", self.requests + 1, int(self.requests_limit))
        if self.tokens_limit is not None and self.tokens + tokens > self.tokens_limit:
            return Violation(now, "tokens", self.tokens + tokens, int(self.tokens_limit))
        self._admitted.append((now, tokens))
        self.tokens += tokens
        return None

    def wait(self, tokens: int) -> float:
        """Return the seconds until a request of `tokens` fits; at most the window."""
        now = self._clock()
        self._drop_old(now)
        requests, used = self.requests, self.tokens
        until = 0.0
        for then, spent in self._admitted:
            fits = self.requests_limit is None or requests + 1 <= self.requests_limit
            if fits and (self.tokens_limit is None or used + tokens <= self.tokens_limit):
                break
            until = then + _SECONDS - now
            requests, used = requests - 1, used - spent
        return until

    def reset(self) -> float:
        """Return the seconds until the window is empty."""
        return max(0.0, self._admitted[-1][0] + _SECONDS - self._clock()) if self._admitted else 0.0

    def _drop_old(self, now: float) -> None:
        while self._admitted and self._admitted[0][0] <= now - _SECONDS:
            self.tokens -= self._admitted.popleft()[1]
