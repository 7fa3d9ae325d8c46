"""How many calls may be in flight, and the pause after a server refused one.

The bound starts at the user's maximum and only comes down when the server is overloaded: in every
round trip by half the share of refused calls (all refused: halved; one in ten: by 5 %), so that
single failures cost little and a storm ends in a few round trips. It comes back by a fixed step in
every round trip without a refusal.

A refusal pauses everybody, not only the call that got it. After the pause one call goes first and
every answer lets two more follow, so that the waiting calls do not all arrive together. The pause
ends early when a call that was sent after the refused one is answered: then the server was not
refusing everybody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

__all__ = ["Concurrency"]

_NEVER = float("-inf")
_NO_RAMP = float("inf")
#: A round trip is taken to last at least this many seconds, so that windows stay few.
_SHORTEST_WINDOW = 0.02
#: The mean latency of a window must rise this far above the baseline to count as overload..
_SLOW = 3.0
#: ..in a window of at least so many calls, and then the bound shrinks by this factor,
_ENOUGH = 8
_EASE = 0.95
#: but latency alone never takes it below this part of the maximum.
_FLOOR = 0.25
#: How fast the baseline follows a mean below it, and one above it.
_DOWN, _UP = 0.25, 0.01
#: Seconds, and part of the wait, that a pause is spread over.
_SPREAD, _SPREAD_PART = 0.02, 0.1
#: Exponents beyond this overflow nothing, but say nothing new either.
_MOST_DOUBLINGS = 30


class Concurrency:
    """The adaptive bound on calls in flight.

    Parameters
    ----------
    most : int
        The user's maximum.
    initial_wait, max_wait : float
        Seconds of the first pause where the server named none, and of the longest; each pause
        without an answer in between is twice as long as the one before.
    rng : random.Random
        Source of jitter.
    """

    __slots__ = (
        "_answered",
        "_baseline",
        "_cause",
        "_initial_wait",
        "_latency",
        "_limit",
        "_max_wait",
        "_most",
        "_outcomes",
        "_paused_at",
        "_ramp",
        "_refused",
        "_rng",
        "_step",
        "_streak",
        "_window_end",
        "cap",
        "paused_until",
    )

    def __init__(self, most: int, *, initial_wait: float, max_wait: float, rng: Random) -> None:
        self._most = most
        self._initial_wait = initial_wait
        self._max_wait = max_wait
        self._rng = rng
        self._limit = float(most)
        self._step = max(1.0, most / 32)
        #: How many calls may be in flight now.
        self.cap = most
        #: Nothing is sent before this moment.
        self.paused_until = _NEVER
        self._paused_at = _NEVER
        #: When the latest refused call was sent.
        self._cause = _NEVER
        self._streak = 0
        self._ramp = _NO_RAMP
        self._window_end = _NEVER
        self._outcomes = 0
        self._answered = 0
        self._refused = 0
        self._latency = 0.0
        self._baseline = 0.0

    def answered(self, sent_at: float, now: float) -> None:
        """Count a call that the server answered.

        Parameters
        ----------
        sent_at, now : float
            Seconds of the clock.
        """
        self._outcomes += 1
        self._answered += 1
        self._latency += now - sent_at
        if sent_at > self._cause:
            # calls sent before the refused one prove nothing, and must not speed up the way back
            self._streak = 0
            if now < self.paused_until:
                self.paused_until = _NEVER
                self._set_ramp(_NO_RAMP)
            elif self._ramp is not _NO_RAMP:
                self._set_ramp(self._ramp + 1)
        if now >= self._window_end:
            self._turn(now)

    def refused(self, sent_at: float, now: float, wait: float | None) -> None:
        """Count a call that the server was too busy for, and pause everybody.

        Parameters
        ----------
        sent_at, now : float
            Seconds of the clock.
        wait : float or None
            Seconds the server asked for.
        """
        self._outcomes += 1
        self._refused += 1
        if sent_at >= self._paused_at or not self._streak:
            # sent after the last pause began: the pause did not cure it
            self._streak += 1
            self._paused_at = now
        if wait is None:
            doublings = min(self._streak - 1, _MOST_DOUBLINGS)
            wait = min(self._max_wait, self._initial_wait * 2.0**doublings)
        spread = self._rng.uniform(0.0, _SPREAD + _SPREAD_PART * wait)
        self._cause = max(self._cause, sent_at)
        self.paused_until = max(self.paused_until, now + wait + spread)
        self._set_ramp(1.0)
        if now >= self._window_end:
            self._turn(now)

    def failed(self, now: float) -> None:
        """Count a call that failed in a way that says nothing of the server's load.

        Parameters
        ----------
        now : float
            Seconds of the clock.
        """
        self._outcomes += 1
        if now >= self._window_end:
            self._turn(now)

    def _set_ramp(self, ramp: float) -> None:
        self._ramp = ramp if ramp < self._limit else _NO_RAMP
        self.cap = max(1, int(min(self._limit, self._ramp)))

    def _turn(self, now: float) -> None:
        """End a round trip: move the bound by what happened in it."""
        mean = self._latency / self._answered if self._answered else self._baseline
        if self._window_end is _NEVER:
            pass  # the first outcome only tells how long a round trip is
        elif self._refused:
            self._limit = max(1.0, self._limit * (1 - self._refused / self._outcomes / 2))
        elif self._answered >= _ENOUGH and mean > _SLOW * self._baseline > 0:
            lowest = min(self._limit, max(1.0, self._most * _FLOOR))
            self._limit = max(lowest, self._limit * _EASE)
        elif self._limit < self._most:
            self._limit = min(float(self._most), self._limit + self._step)
        if self._answered:
            follow = _DOWN if mean < self._baseline else _UP
            self._baseline += (mean - self._baseline) * (follow if self._baseline else 1.0)
        self._outcomes = self._answered = self._refused = 0
        self._latency = 0.0
        self._window_end = now + max(_SHORTEST_WINDOW, mean)
        self._set_ramp(self._ramp)
