"""How the test server refuses: faults, on a reproducible schedule, and a rate limit."""

import hashlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final, Literal

from testnuc.errors import InvalidInputError

#: Faults that need a call with several texts.
PACKED_KINDS: Final = ("duplicate-ids", "missing-ids", "invented-ids")

#: Faults that a retry can fix; clients must recover from them.
CURABLE_KINDS: Final = (
    *("429", "429-retry-after", "429-retry-after-date", "429-retry-after-ms", "500", "503", "529"),
    *("refused", "reset-before", "reset-within", "reset-after", "stalled", "slow", "truncated"),
    *("empty-choices", "missing-usage", "prose", *PACKED_KINDS),
)

#: All kinds; any other HTTP status from 400 to 599 is also accepted.
FAULT_KINDS: Final = (*CURABLE_KINDS, "wrong-label", "refusal", "length", "content-filter", "quota")

#: Faults that lose the response body; the server does not count these as calls.
LOST_KINDS: Final = frozenset({"refused", "reset-before", "reset-within", "stalled"})

_LIMITS = ("requests_per_minute", "tokens_per_minute")
#: Length of the window of a rate limit.
_SECONDS = 60.0


@dataclass(eq=False)
class Faults:
    """A schedule of faults for `LoopbackLLM`.

    The fault of a request depends on a hash of the seed, its texts and the number of earlier
    requests for the same texts. Concurrency and the order of requests do not change it.

    docs/testing.md says what each kind does, and which the server counts as calls.

    Parameters
    ----------
    rate : float
        Share of requests that fail, 0..1.
    kinds : sequence of str
        The kinds to draw from, with equal probability. Kinds of packed calls are skipped for
        requests with one text. Default: `CURABLE_KINDS`.
    seed : int
        Seed of the schedule.
    schedule : sequence of (str or None), or callable, optional
        Fixed faults instead of random ones, by zero-based request number in order of arrival.
        Requests past the end of a sequence do not fail.
    most_in_a_row : int, optional
        Maximum number of consecutive faults for the same texts.
    retry_after : float
        Delay returned by the ``429-*`` kinds, in seconds.
    stall : float
        Pause of ``stalled``, in seconds.
    slow : float
        Duration of a ``slow`` body, in seconds.
    refuse : float
        Seconds during which ``refused`` refuses connections.

    Raises
    ------
    InvalidInputError
        A kind is unknown, `kinds` is empty, or `rate` is not in 0..1.
    """

    rate: float = 0.2
    kinds: Sequence[str] = CURABLE_KINDS
    seed: int = 0
    _: KW_ONLY
    schedule: Sequence[str | None] | Callable[[int], str | None] | None = None
    most_in_a_row: int | None = None
    retry_after: float = 0.05
    stall: float = 1.0
    slow: float = 0.05
    refuse: float = 0.05

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise InvalidInputError(f"rate is {self.rate}; give a share between 0 and 1")
        if not self.kinds:
            raise InvalidInputError("kinds is empty; use rate=0 for no faults")
        fixed = self.schedule if isinstance(self.schedule, Sequence) else ()
        for kind in (*self.kinds, *fixed):
            _check(kind)
        self._single_kinds = tuple(kind for kind in self.kinds if kind not in PACKED_KINDS)

    def draw(self, texts: Sequence[str], attempt: int, number: int) -> str | None:
        """Return the fault of a request with these texts, or None.

        `attempt` is the number of earlier requests with them, `number` that of all requests.
        """
        if self.schedule is not None:
            if callable(self.schedule):
                kind = self.schedule(number)
                _check(kind)
            else:
                kind = self.schedule[number] if number < len(self.schedule) else None
            return None if kind in PACKED_KINDS and len(texts) == 1 else kind
        kind = self._random(texts, attempt)
        most = self.most_in_a_row
        if kind is None or most is None or attempt < most:
            return kind
        before = range(attempt - most, attempt)
        return kind if any(self._random(texts, i) is None for i in before) else None

    def _random(self, texts: Sequence[str], attempt: int) -> str | None:
        kinds = self.kinds if len(texts) > 1 else self._single_kinds
        if not kinds:
            return None
        digest = hashlib.blake2b(f"{self.seed} {attempt}".encode(), digest_size=8)
        for text in texts:
            # length prefixes distinguish ["ab"] from ["a", "b"]
            data = text.encode("utf-8", "surrogatepass")
            digest.update(b"%d " % len(data))
            digest.update(data)
        drawn = int.from_bytes(digest.digest(), "big")
        if (drawn >> 32) >= self.rate * 2**32:
            return None
        return kinds[(drawn & 0xFFFF_FFFF) % len(kinds)]


def status_of(kind: str) -> int | None:
    """Return the HTTP status of a kind such as ``"503"``, or None."""
    return int(kind) if kind.isdecimal() and len(kind) == 3 and kind[0] in "45" else None


def _check(kind: str | None) -> None:
    if kind is not None and kind not in FAULT_KINDS and status_of(kind) is None:
        raise InvalidInputError(
            f"unknown fault {kind!r}; choose from {', '.join(FAULT_KINDS)}, or an HTTP status 4xx "
            "or 5xx"
        )


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
