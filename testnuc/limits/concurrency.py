"""Adaptive limit of calls in flight (AIMD), and pauses after refusals.

The limit starts at the user's maximum and decreases when the server is overloaded: in every round
trip by half the share of refused calls (all refused: halved; one in ten: by 5 %), so that single
failures cost little and a storm of refusals ends in a few round trips. It increases by a fixed step
per round trip.

A server that sends a wait (Retry-After) pauses all calls, not only the refused one, for as long as
it asks up to a longest pause; then one call is sent to find out. When it first asks for more than
that, the call is sent after a second: one refusal must not end a run. Without such a wait, all
calls pause after a large part of the latest calls was refused; each such pause is twice as long as
the one before. After a pause, calls ramp up: if most calls were refused, one is sent first; if few
were refused, correspondingly more. The ramp widens fourfold whenever a refusal would have arrived
by now, and by three calls for every answer. A pause ends early when a call that was sent after the
refused one is answered: then the server does not refuse all calls.
"""

import logging
from random import Random

from testnuc.limits.headers import spell, usable_wait
from testnuc.limits.policies import RetryPolicy, longest_pause

_log = logging.getLogger("testnuc.limits")

#: Seconds by which a pause must grow to be logged: a storm is one line, not hundreds.
_LOGGED = 1.0
#: A longer wait that a provider asks for, in seconds, is a warning.
LONG = 60.0
#: Seconds before a call that finds out whether a wait beyond the longest pause is meant.
_DOUBT = 1.0
_NEVER = float("-inf")
_NO_RAMP = float("inf")
#: A round trip is taken to last at least this many seconds, so that windows stay few.
_SHORTEST_WINDOW = 0.02
#: The limit grows by this fraction of the maximum per round trip, and by at least one call.
_STEP = 1 / 32
#: Smoothing factor of the mean latency of refusals.
_SMOOTH = 0.25
#: The share of refused calls is a mean over at least this many calls, and over half the limit, as
#: their refusals can arrive all at once; from a share of _MANY on, all calls pause.
_FEWEST = 10
_MANY = 0.3
#: The first pause without a Retry-After, as a fraction of a call's initial wait.
_SHORT = 0.25
#: The ramp widens by this factor after this multiple of a refusal's latency, and at least this many
#: seconds, without a refusal. A refusal arrives sooner than an answer.
_WIDEN = 4.0
_PATIENCE, _LEAST_PATIENCE = 4.0, 0.05
#: Jitter of a pause: in seconds, plus a fraction of the wait.
_SPREAD, _SPREAD_PART = 0.02, 0.1
#: More doublings would overflow.
_MOST_DOUBLINGS = 30


class Concurrency:
    """The adaptive limit of calls in flight, at most `most`; the waits of `retry` bound the pauses.

    `rng` is for their jitter.
    """

    def __init__(self, most: int, retry: RetryPolicy, rng: Random) -> None:
        self._most = most
        self._initial_wait = retry.initial_wait
        self._max_wait = min(retry.max_wait, retry.deadline)
        self._longest = longest_pause(retry)
        self._rng = rng
        self._limit = float(most)
        self._step = max(1.0, most * _STEP)
        #: Most calls in flight now.
        self.cap = most
        #: Nothing is sent before this moment.
        self.paused_until = _NEVER
        #: What the server asked for; the pause may be shorter.
        self.asked_until = _NEVER
        #: Whether that is long, and whether it was logged since the server last answered.
        self.is_long = self._warned = False
        self._paused_at = _NEVER
        #: When the server asked for a wait beyond the longest pause first, since it answered.
        self._doubted_at = _NEVER
        #: When the latest refused call was sent.
        self._cause = _NEVER
        #: Pauses without a wait from the server since the last answer to a call sent after the
        #: first of them.
        self._streak = 0
        self._first_pause = _NEVER
        #: Share of refused calls among the latest.
        self._share = 0.0
        self._fresh = 1 / max(_FEWEST, most / 2)
        #: Most calls in flight during the ramp, and when it widens next.
        self._ramp = _NO_RAMP
        self._widen_at = _NEVER
        #: Mean latency of refusals in seconds.
        self._refusal_latency = 0.0
        # of the current window
        self._window_end = _NEVER
        self._outcomes = 0
        self._answered = 0
        self._refused = 0
        self._latency = 0.0
        #: Mean latency of the answers of the last window that had any.
        self._round_trip = 0.0

    def sent(self) -> None:
        """Count a call that is sent now."""
        self._share -= self._fresh * self._share

    def answered(self, sent_at: float, now: float) -> None:
        """Count a call that the server answered."""
        self._outcomes += 1
        self._answered += 1
        self._latency += now - sent_at
        # calls sent before the refused one prove nothing, and must not speed up the ramp
        if sent_at > self._first_pause:
            self._streak = 0
        if self._ramp is not _NO_RAMP and sent_at > self._cause:
            self._warned = False
            self._doubted_at = _NEVER
            self._share /= 2
            if now < self.paused_until:
                self.paused_until = _NEVER
                self._set_ramp(_NO_RAMP)
            else:
                self._set_ramp(self._ramp + _WIDEN - 1)
        self._turn(now)

    def refused(self, sent_at: float, now: float, wait: float | None, *, load: bool = True) -> None:
        """Count a call that the server refused, and pause all calls if necessary.

        `wait`: seconds that the server asked to wait. `load`: whether it was overloaded; False:
        there was no connection.
        """
        wait = usable_wait(wait)
        self._outcomes += 1
        self._refused += load
        self._share = min(1.0, self._share + self._fresh)
        weight = _SMOOTH if self._refusal_latency else 1.0
        self._refusal_latency += (now - sent_at - self._refusal_latency) * weight
        if wait is not None or self._share >= _MANY:
            # attempts to connect put no load on an unreachable server
            self._pause(sent_at, now, wait, self._max_wait if load else self._initial_wait)
        self._turn(now)

    def failed(self, now: float) -> None:
        """Count a call that failed for a reason other than the server's load."""
        self._outcomes += 1
        self._turn(now)

    def _pause(self, sent_at: float, now: float, wait: float | None, most: float) -> None:
        probes = wait is not None and wait > self._longest
        if wait is not None:
            if probes and self._doubted_at is _NEVER:
                self._doubted_at = now
            if probes and sent_at <= self._doubted_at:
                wait = min(_DOUBT, self._longest)
            self._log_wait(now, wait)
        else:
            if not self._streak:
                self._first_pause = now
            if not self._streak or sent_at >= self._paused_at:
                # sent after the last pause began: that pause was too short
                self._streak += 1
                self._paused_at = now
            doublings = min(self._streak - 1, _MOST_DOUBLINGS)
            wait = min(most, self._initial_wait * _SHORT * 2.0**doublings)
        # after a pause the latest wait counts, not what the server asked for before
        asked = now + wait
        if now < self.paused_until:
            asked = max(self.asked_until, asked)
            self.is_long = self.is_long or wait > LONG
        else:
            self.is_long = wait > LONG
        self.asked_until = asked
        shorter = min(wait, self._longest)
        spread = self._rng.uniform(0.0, _SPREAD + _SPREAD_PART * shorter)
        self._cause = max(self._cause, sent_at)
        self.paused_until = max(self.paused_until, now + shorter + spread)
        if probes:
            # the answer to one call shows whether others may follow
            self._widen_at = _NO_RAMP
            self._set_ramp(1.0)
        else:
            self._widen_at = self.paused_until + self._patience
            self._set_ramp(max(1.0, self._limit * (1 - self._share / _MANY)))

    def _log_wait(self, now: float, wait: float) -> None:
        """Log a wait that the server asks for, a long one as a warning until it answers again."""
        shorter = min(wait, self._longest)
        if now + shorter <= self.paused_until + _LOGGED:
            return
        level = logging.WARNING if wait > LONG and not self._warned else logging.INFO
        self._warned = self._warned or wait > LONG
        asked = "the provider asks all calls to wait for %s (Retry-After)%s"
        again = f"; it is asked again after {spell(shorter)}" if shorter < wait else ""
        _log.log(level, asked, spell(wait), again)

    @property
    def _patience(self) -> float:
        return max(_LEAST_PATIENCE, _PATIENCE * self._refusal_latency)

    def widen(self, now: float, in_flight: int) -> float:
        """Return the seconds until the ramp admits one more call, if `cap` is reached.

        0: the cap has just grown; infinite: not before a call ends.
        """
        if self._ramp is _NO_RAMP:
            return _NO_RAMP
        if now >= self._widen_at:
            self._widen_at = now + self._patience
            self._set_ramp(self._ramp * _WIDEN)
            if in_flight < self.cap:
                return 0.0
            if self._ramp is _NO_RAMP:
                return _NO_RAMP
        return self._widen_at - now

    def _set_ramp(self, ramp: float) -> None:
        self._ramp = ramp if ramp < self._limit or ramp == 1.0 else _NO_RAMP
        self.cap = max(1, int(min(self._limit, self._ramp)))

    def _turn(self, now: float) -> None:
        """End a round trip that is over: adapt the limit to its outcomes."""
        if now < self._window_end:
            return
        if self._answered:
            self._round_trip = self._latency / self._answered
        # the first outcome only measures the length of a round trip
        if self._window_end is not _NEVER:
            share = self._refused / self._outcomes
            limit = self._limit * (1 - share / 2) + self._step * (1 - share)
            self._limit = min(float(self._most), max(1.0, limit))
        self._outcomes = self._answered = self._refused = 0
        self._latency = 0.0
        self._window_end = now + max(_SHORTEST_WINDOW, self._round_trip)
        self._fresh = 1 / max(_FEWEST, self._limit / 2)
        self._set_ramp(self._ramp)
