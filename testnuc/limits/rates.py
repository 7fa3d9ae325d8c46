"""Sliding windows of requests and tokens per minute.

A token bucket that holds a minute's worth allows twice the limit within one minute: a full bucket
at once, and the refill after it. So there are two conditions here. A sliding log keeps the sum
within the window at or below the limit, exactly. In addition, requests are paced: credit
accumulates evenly, up to a second's worth, because providers also enforce a limit per minute over
shorter intervals.

The minute in which requests *arrive* counts. A delayed request can share a minute with one sent
more than 60 s later. The window is therefore `GUARD` seconds longer than a minute, which costs
1.6 % of the rate and covers delays that differ by up to a second.
"""

from collections import deque
from dataclasses import dataclass

#: Seconds by which the network delays of two requests may differ.
GUARD = 1.0
_MINUTE = 60.0
_WINDOW = _MINUTE + GUARD
#: Requests within this part of the window share an entry of the log, which bounds its size.
_CELLS = 256
#: Rounding of sums of floats must not cost another tick of the timer.
_EPSILON = 1e-6


@dataclass(slots=True, eq=False)
class LogEntry:
    """The amount sent at about one moment; it leaves the window all at once."""

    start: float
    #: When its last part was sent.
    last: float
    amount: float


class SlidingWindow:
    """Keeps the sum of amounts in any window at or below a limit, and paces them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._rate = limit / _WINDOW
        self._burst = max(1.0, limit / _MINUTE)
        self._credit = self._burst
        self._credit_at = float("-inf")
        self._cell = _WINDOW / _CELLS
        self._log: deque[LogEntry] = deque()
        self._sum = 0.0

    def delay(self, amount: float, now: float) -> float:
        """Return the seconds until `amount`, at most the limit, fits; 0: now.

        A lower bound: settled amounts can change it.
        """
        log = self._log
        while log and log[0].last + _WINDOW <= now:
            self._sum -= log.popleft().amount
        if not log:
            self._sum = 0.0  # drops rounding errors
        credit = self._credit
        if credit < self._burst:
            credit = min(self._burst, credit + (now - self._credit_at) * self._rate)
            self._credit = credit
        self._credit_at = now
        # an amount above the burst is sent once the credit is full, and leaves a debt
        missing = min(amount, self._burst) - credit
        wait = missing / self._rate if missing > _EPSILON else 0.0
        over = self._sum + amount - self.limit
        if over > 0:
            for entry in log:
                over -= entry.amount
                if over <= 0:
                    return max(wait, entry.last + _WINDOW - now)
        return wait

    def take(self, amount: float, now: float) -> LogEntry:
        """Charge `amount` as sent now; call it after `delay` returned 0 for the same moment."""
        self._credit -= amount
        self._sum += amount
        log = self._log
        if log:
            entry = log[-1]
            if now - entry.start < self._cell:
                entry.amount += amount
                entry.last = now
                return entry
        entry = LogEntry(now, now, amount)
        log.append(entry)
        return entry

    def settle(self, entry: LogEntry, difference: float, now: float) -> None:
        """Charge `difference`, actual minus taken amount, in addition; if negative, return it."""
        # a debt is paid within the window, whatever was sent
        self._credit = max(-self.limit, min(self._burst, self._credit - difference))
        if entry.last + _WINDOW <= now:
            return
        entry.amount += difference
        self._sum += difference


class Forecast:
    """Predicts the tokens of calls from recent calls, for the token rate alone.

    The maximum output tokens of a call are often a hundred times the tokens of a label; charging
    all of them would allow only a few calls at a time. Until `_ENOUGH` calls are known the worst
    case counts; then the second largest of the recent ones, which fade slowly: one may be wrong.
    """

    _ENOUGH = 4
    _FADE = 0.995

    def __init__(self) -> None:
        self._calls = 0
        #: The second largest, and the largest.
        self._scale = self._output = (0.0, 0.0)

    def expect(self, input_tokens: int, max_output_tokens: int) -> tuple[int, int]:
        """Return the input and output tokens that a call is expected to use at most."""
        if self._calls < self._ENOUGH:
            return input_tokens, max_output_tokens
        output = min(float(max_output_tokens), self._output[0])
        return int(input_tokens * self._scale[0]) + 1, int(output) + 1

    def learn(self, estimated: int, input_tokens: int, output_tokens: int) -> None:
        """Record a call: its estimated input tokens, and the tokens that the provider counted."""
        self._calls += 1
        self._scale = self._with(self._scale, input_tokens / max(1, estimated))
        self._output = self._with(self._output, float(output_tokens))

    def _with(self, before: tuple[float, float], new: float) -> tuple[float, float]:
        second, largest = self._FADE * before[0], self._FADE * before[1]
        return (largest, new) if new > largest else (max(second, new), largest)
