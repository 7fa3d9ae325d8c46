"""Permits and their waiters: one queue for rate limits, concurrency, pauses and server quota.

Strictly first in, first out: only the head of the queue is checked, so a large request waits until
it fits and is never overtaken. Retries precede new calls, because their deadline is running.
Waiters are woken by a call that ends, or by one timer that ticks at most every `TICK` seconds.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from testnuc.errors import InvalidInputError, RateLimitedError
from testnuc.limits.budget import granted
from testnuc.limits.concurrency import Concurrency
from testnuc.limits.headers import spell
from testnuc.limits.policies import LONGEST_WAIT, Limits
from testnuc.limits.rates import Forecast, LogEntry, SlidingWindow
from testnuc.limits.server_quota import ServerQuota

#: Shortest interval in seconds between checks of the queue; shorter timers use a whole core.
TICK = 0.005
_FOREVER = float("inf")


@dataclass(slots=True, eq=False)
class Permit:
    """Permission to send one request; return it exactly once."""

    #: Moment of the clock.
    sent_at: float
    #: The caller's estimate of input tokens.
    estimate: int
    #: Expected input and output tokens.
    size: tuple[int, int]
    #: Log entries of the request and of the tokens charged for it.
    request: LogEntry | None = None
    charged: LogEntry | None = None
    charge: int = 0


@dataclass(slots=True, eq=False)
class Waiter:
    """A call that waits for a permit."""

    future: asyncio.Future[Permit]
    input_tokens: int
    max_output_tokens: int


class Admission:
    """Admits calls by requests and tokens per minute, concurrency, pauses and server quota.

    Belongs to one event loop; not thread-safe. The waits of the retries bound the pauses; calls
    fail at once while the server asks for a wait beyond their deadline. `clock` returns monotonic
    seconds, `wall` seconds since 1970, for dates in headers.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        rng: Random | None = None,
    ) -> None:
        limits = limits or Limits()
        requests, tokens = limits.requests_per_minute, limits.tokens_per_minute
        self._requests = None if requests is None else SlidingWindow(requests)
        self._tokens = None if tokens is None else SlidingWindow(tokens)
        self._forecast = Forecast()
        rng = rng or Random()  # noqa: S311 - jitter, no secret
        self._concurrency = Concurrency(limits.concurrency, limits.retry, rng)
        self._deadline = limits.retry.deadline
        self._quota = ServerQuota(limits.concurrency, limits.retry.max_wait)
        self._clock = clock
        self._wall = wall
        self._again: deque[Waiter] = deque()
        self._queue: deque[Waiter] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _FOREVER

    @property
    def in_flight(self) -> int:
        """Number of calls in flight."""
        return self._quota.flying[0]

    @property
    def paused(self) -> float:
        """Seconds for which no call is sent, as the provider asked for it or refused calls."""
        return max(0.0, self._concurrency.paused_until - self._clock())

    @property
    def pause(self) -> float:
        """Seconds left of a pause for which the provider asked more than a minute, else 0."""
        return self.paused if self._concurrency.is_long else 0.0

    def try_acquire(self, input_tokens: int = 0, max_output_tokens: int = 0) -> Permit | None:
        """Admit a call by its estimated input and most output tokens; None if it must wait.

        It must wait also while others wait: no call is overtaken. A prompt that exceeds the tokens
        per minute raises `InvalidInputError`.
        """
        if self._queue or self._again:
            return None
        now = self._clock()
        size = self._expected(input_tokens, max_output_tokens)
        if self._delay(now, size) > 0:
            return None
        return self._admit(now, input_tokens, size)

    async def acquire(
        self, input_tokens: int = 0, max_output_tokens: int = 0, *, again: bool = False
    ) -> Permit:
        """Wait until a call may be sent; retries (`again`) are admitted before new calls.

        Return the permit with `answered`, `refused`, `failed` or `abandoned`. A prompt that exceeds
        the tokens per minute raises `InvalidInputError`; a pause longer than the deadline of a
        call, asked for by the server, raises `RateLimitedError`.
        """
        self._expected(input_tokens, max_output_tokens)
        future: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        waiter = Waiter(future, input_tokens, max_output_tokens)
        (self._again if again else self._queue).append(waiter)
        self._drain()
        return await granted(future, self.abandoned, self._drain)

    def answered(
        self, permit: Permit, input_tokens: int | None = None, output_tokens: int | None = None
    ) -> None:
        """Return a permit after an answer, with the tokens that the provider counted.

        Without them the estimate stays charged.
        """
        now = self._clock()
        self._quota.ended(permit.size)
        self._quota.answered(permit.sent_at)
        self._concurrency.answered(permit.sent_at, now)
        if input_tokens is not None and output_tokens is not None:
            self._forecast.learn(permit.estimate, input_tokens, output_tokens)
            if self._tokens is not None and permit.charged is not None:
                difference = input_tokens + output_tokens - permit.charge
                self._tokens.settle(permit.charged, difference, now)
        self._drain()

    def refused(self, permit: Permit, wait: float | None = None, *, load: bool = True) -> None:
        """Return a permit after the server refused the request (429, 503, 529, no connection).

        `wait`: seconds that the server asked to wait. `load`: whether it was overloaded; False:
        there was no connection.
        """
        now = self._clock()
        self._quota.ended(permit.size)
        if load:
            self._quota.refused()
        self._concurrency.refused(permit.sent_at, now, wait, load=load)
        self._drain()

    def failed(self, permit: Permit) -> None:
        """Return a permit after any other failure; its charges remain."""
        self._quota.ended(permit.size)
        self._concurrency.failed(self._clock())
        self._drain()

    def abandoned(self, permit: Permit) -> None:
        """Return a permit whose request was never sent."""
        now = self._clock()
        self._quota.ended(permit.size)
        if self._requests is not None and permit.request is not None:
            self._requests.settle(permit.request, -1, now)
        if self._tokens is not None and permit.charged is not None:
            self._tokens.settle(permit.charged, -permit.charge, now)
        self._drain()

    def observe(self, permit: Permit, headers: Mapping[str, str]) -> None:
        """Read the provider's rate limit headers; call before the permit is returned."""
        self._quota.observe(headers, permit.size, self._clock(), self._wall())

    def _expected(self, input_tokens: int, max_output_tokens: int) -> tuple[int, int]:
        """Return the input and output tokens to charge for a call."""
        if self._tokens is not None and input_tokens > self._tokens.limit:
            raise InvalidInputError(
                f"one request needs about {input_tokens} input tokens, but the rate limit is "
                f"{self._tokens.limit} tokens per minute; shorten the text, pack fewer texts in "
                f"one call, or raise tokens_per_minute"
            )
        return self._forecast.expect(input_tokens, max_output_tokens)

    def _delay(self, now: float, size: tuple[int, int]) -> float:
        """Return the seconds until a call may be admitted; infinite: when another one ends."""
        concurrency = self._concurrency
        if concurrency.paused_until > now:
            return concurrency.paused_until - now
        if self.in_flight >= concurrency.cap:
            wait = concurrency.widen(now, self.in_flight)
            if wait > 0:
                return wait
        delay = self._quota.delay(now, size) if self._quota.low else 0.0
        if self._requests is not None:
            delay = max(delay, self._requests.delay(1, now))
        if self._tokens is not None:
            delay = max(delay, self._tokens.delay(self._charge(self._tokens, size), now))
        return delay

    @staticmethod
    def _charge(window: SlidingWindow, size: tuple[int, int]) -> int:
        # the output tokens are only an upper bound: an empty minute admits any call
        return min(window.limit, max(1, size[0] + size[1]))

    def _admit(self, now: float, input_tokens: int, size: tuple[int, int]) -> Permit:
        self._concurrency.sent()
        self._quota.sent(size)
        permit = Permit(now, input_tokens, size)
        if self._requests is not None:
            permit.request = self._requests.take(1, now)
        if self._tokens is not None:
            permit.charge = self._charge(self._tokens, size)
            permit.charged = self._tokens.take(permit.charge, now)
        return permit

    def _head(self) -> tuple[deque[Waiter], Waiter] | None:
        for queue in (self._again, self._queue):
            while queue:
                if not queue[0].future.done():
                    return queue, queue[0]
                queue.popleft()
        return None

    def _drain(self) -> None:
        """Admit waiters from the head while they fit; set the timer for the first that does not."""
        now = self._clock()
        asked, pause = self._concurrency.asked_until - now, self._concurrency.paused_until - now
        while (head := self._head()) is not None:
            queue, waiter = head
            if pause > 0 and asked > self._deadline:
                # the server asked for a pause longer than a call may take
                queue.popleft()
                waiter.future.set_exception(
                    RateLimitedError(
                        f"the provider asked to wait another {spell(asked)}, longer than the "
                        f"deadline of a call ({self._deadline:g} s); a call is sent again in "
                        f"{spell(pause)}; try again then, or raise the deadline of the retry "
                        "policy",
                        retry_after=min(asked, LONGEST_WAIT),
                        attempts=0,
                    )
                )
                continue
            size = self._expected(waiter.input_tokens, waiter.max_output_tokens)
            delay = self._delay(now, size)
            if delay > 0:
                self._arm(now, delay)
                return
            queue.popleft()
            waiter.future.set_result(self._admit(now, waiter.input_tokens, size))

    def _arm(self, now: float, delay: float) -> None:
        if delay == _FOREVER:
            return  # the next call that ends checks again
        at = now + max(delay, TICK)
        if self._timer is not None:
            if self._timer_at <= at + TICK:
                return  # early enough; if too early, it is set again then
            self._timer.cancel()
        self._timer_at = at
        self._timer = asyncio.get_running_loop().call_later(at - now, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_at = _FOREVER
        self._drain()
