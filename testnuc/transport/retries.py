"""Retry rules: whether to retry, how long to back off, when to give up, how to adapt."""

import asyncio
import logging
from copy import copy
from dataclasses import replace
from random import Random

from tenacity import RetryCallState

from testnuc import errors
from testnuc.limits.budget import BudgetAccount
from testnuc.limits.headers import usable_wait
from testnuc.limits.policies import RetryPolicy, longest_pause
from testnuc.transport.calls import Call
from testnuc.transport.failures import is_retryable

_log = logging.getLogger("testnuc.transport")

#: Changes of the encoding within one call.
_MOST_ADAPTATIONS = 4
#: Unusable replies after which a call fails: they are billed, and more tries rarely help.
_MOST_UNREADABLE = 3
#: Jitter on top of a server's wait: part of it, and its bounds in seconds.
_SPREAD, _LEAST_SPREAD, _MOST_SPREAD = 0.1, 0.05, 5.0
#: The first waits for a server that refuses connections are shorter than `initial_wait`.
_SHORT_WAITS = 3
#: A server that never responded is given up after so many seconds of refused connections.
_UNREACHED = 1.5
#: After so many seconds without an attempt, the server may have been started.
_QUIET = 3.0
#: One that responded before: after so many in a row, over at least so many seconds. Calls that are
#: refused at the same time count once.
_REFUSALS, _LEAST_OUTAGE = 20, 5.0
#: A service takes a provider to be down after so many failures in a row, over at least so many
#: seconds; then it sends one call (a probe) each so many seconds, also beside one that hangs.
_FAILURES, _LEAST_DOWN, _UNTIL_PROBE = 5, 10.0, 5.0
#: A run ends once calls were given up for so many deadlines, and none was answered meanwhile.
_MOST_DEADLINES = 5
#: More doublings would overflow.
_MOST_DOUBLINGS = 30
#: A call is sent again only if this part of its timeout is left.
_LEAST_TIME = 0.1


class Outage:
    """Connections that the server refused in a row, and calls that failed in a row."""

    def __init__(self, account: BudgetAccount, concurrency: int) -> None:
        self._account = account
        #: Seconds after which there may be too many probes in flight to send another one.
        self._room = _UNTIL_PROBE * max(1, concurrency - 1)
        #: The longest time that an answer took.
        self._slowest = 0.0
        #: Attempts that the server failed or did not answer since it last answered.
        self._failures = 0
        self._answered_at = self._failed_at = float("-inf")
        self._first_sent = 0.0
        #: The latest call that finds out whether the server answers again, and when it was sent or
        #: failed. Those that were in flight before it may fail each second, and delay no probe.
        self._probe: Call | None = None
        self._probed_at = float("-inf")
        self._failing_since = self._gave_up_at = float("-inf")
        self._refusals = 0
        self._first = self._since = 0.0
        self._last = float("-inf")
        #: When calls were given up because of it, and with which error.
        self._ended = float("-inf")
        self._error: errors.ProviderError | None = None
        #: Of the calls that wait for a permit, in the order in which they started to; in a service
        #: also of those that back off.
        self.waiting: dict[asyncio.Timeout, None] = {}

    def refused(self, sent_at: float, now: float) -> None:
        """Count a refused connection, unless it was tried before the last one was refused."""
        if sent_at < self._last:
            return
        if not self._refusals:
            self._first = now
        if now - self._last > _QUIET:
            self._since = now
        self._refusals += 1
        self._last = now

    def over(self) -> None:
        """Forget the refusals: the server has responded."""
        self._refusals = 0
        self._last = self._ended = float("-inf")

    def gave_up(self, started: float, now: float, deadline: float) -> bool:
        """Count a call that failed after all retries; return whether others are not worth it.

        They would wait for each other, each for a deadline.
        """
        if started > self._gave_up_at + deadline:
            self._failing_since = started  # nothing was tried in between
        self._gave_up_at = now
        return now - self._failing_since >= _MOST_DEADLINES * deadline

    def answered(self, now: float, sent_at: float, *, failing: bool = False) -> None:
        """Forget the calls that failed: the server answers."""
        if self.is_down or failing:
            _log.warning("the provider answers again")
        self._gave_up_at, self._answered_at, self._failures = float("-inf"), now, 0
        self._slowest = max(self._slowest, now - sent_at)

    def failed(self, call: Call, error: errors.ProviderError, now: float) -> bool:
        """Count a failure of the server, unless the call was sent before its latest answer.

        Return whether the server of a service is taken to be down from now on.
        """
        other = call.unsent or isinstance(error, (errors.RateLimitedError, errors.ReplyError))
        if other or not is_retryable(error) or call.sent_at < self._answered_at:
            return False
        if not self._failures:
            self._first_sent = call.sent_at
        was_down, self._failures = self.is_down, self._failures + 1
        self._failed_at, self._error = now, error
        if call is self._probe or not was_down:
            self._probed_at = now
        if not self.is_down or was_down:
            return False
        said = "the provider is down; a call every %g s tries it, and no restart is needed: %s"
        _log.error(said, _UNTIL_PROBE, error)
        return True

    @property
    def is_down(self) -> bool:
        """Whether the server of a service has failed for long: a circuit breaker."""
        if self._account.patience is None or self._failures < _FAILURES:
            return False
        return self._failed_at - self._first_sent >= _LEAST_DOWN

    def refuse(self, call: Call, now: float) -> None:
        """Raise an error if the server is down, but for a probe now and then."""
        if not self.is_down or call is self._probe:
            return
        if self._probed_at + _UNTIL_PROBE > now:
            call.unsent = True
            raise self.down(now, call.sends)
        self._probe, self._probed_at = call, now

    def down(self, now: float, sends: int) -> errors.ProviderDownError:
        """Return the error of a call that is not sent, or not waited for."""
        return errors.ProviderDownError(
            f"no call is sent or waited for, as those before failed: {self._error}",
            retry_after=self._probed_at + _UNTIL_PROBE - now,
            attempts=sends,
        )

    def timeout(self, call: Call, usual: float) -> float:
        """Return the seconds for an attempt: probes that hang leave room for others."""
        if call is not self._probe or not self.is_down or not self._slowest:
            return usual
        return min(usual, max(self._room, 2 * self._slowest))

    def end(self, error: errors.ProviderError) -> None:
        """Fail the calls that wait for a permit; later calls try a connection again."""
        self._ended, self._error = self._last, error
        waiting, self.waiting = self.waiting, {}
        for limit in waiting:
            if not limit.expired():
                limit.reschedule(float("-inf"))

    def has_ended(self, call: Call) -> bool:
        """Whether calls were given up since this one was first sent and could not connect."""
        return call.unsent and self._ended >= call.started

    def failure(self, call: Call) -> errors.ProviderError:
        """Return the error that ended it, for a call that waited."""
        assert self._error is not None
        call.unsent = True
        error = copy(self._error)
        error.__cause__ = self._error.__cause__
        return error

    @property
    def seconds(self) -> float:
        """How long connections have been refused, without a pause in which none was tried."""
        return self._last - self._since if self._refusals else 0.0

    @property
    def is_permanent(self) -> bool:
        """Whether every other call would be refused, too."""
        return self._refusals >= _REFUSALS and self._last - self._first >= _LEAST_OUTAGE


def may_help(call: Call, error: BaseException) -> bool:
    """Whether to retry; missing answers of a packed call are asked for in smaller calls."""
    packed = len(call.request.texts) > 1 and not getattr(call.wire, "repeats_packed", False)
    if isinstance(error, errors.ReplyError) and (packed or call.unreadable >= _MOST_UNREADABLE):
        return False
    return is_retryable(error)


def was_last(call: Call) -> bool:
    """Count a reply that is billed and unusable; return whether the call fails with it."""
    call.unreadable += 1  # of several texts, each is asked about alone at last
    return call.unreadable >= _MOST_UNREADABLE - (len(call.request.texts) > 1)


def wait(call: Call, state: RetryCallState, policy: RetryPolicy, rng: Random) -> float:
    """Return the seconds until the next attempt."""
    error = call.error
    answered = isinstance(error, errors.ReplyError) and error.content is not None
    if call.at_once or error is None or answered:
        return 0.0  # the server works; only what the model said was unusable
    if call.unsent:
        # Nothing was sent, so the server has no load: retry soon at first, as a short outage must
        # not cost more than it lasts, then steadily. All calls pause as well; see Concurrency.
        longest = policy.initial_wait * min(1.0, 2.0 ** (call.refusals - _SHORT_WAITS - 1))
        return rng.uniform(longest / 2, longest)
    tries = state.attempt_number - call.repeats - call.refusals
    # a call that was not sent failed because of a pause, which is no longer in doubt
    return backoff(policy, tries, error.retry_after, rng, believed=not call.sends)


def backoff(
    policy: RetryPolicy,
    tries: int,
    retry_after: float | None,
    rng: Random,
    *,
    believed: bool = False,
) -> float:
    """Return the seconds until the next attempt, after `tries` of them.

    At least `retry_after`, what the server asked for, up to the longest pause. More than that is
    in doubt at the first refusal, unless it is `believed`.
    """
    doublings = min(max(0, tries - 1), _MOST_DOUBLINGS)
    own = rng.uniform(0.0, min(policy.max_wait, policy.initial_wait * 2.0**doublings))
    retry_after = usable_wait(retry_after)
    longest = longest_pause(policy)
    if retry_after is None or (retry_after > longest and tries <= 1 and not believed):
        return own
    retry_after = min(retry_after, longest)
    # without jitter every waiting call would be sent at the same moment
    spread = min(_MOST_SPREAD, max(_LEAST_SPREAD, _SPREAD * retry_after))
    return max(own, retry_after) + rng.uniform(0.0, spread)


def latest_start(policy: RetryPolicy) -> float:
    """Return the seconds after which a call is not sent again.

    Its answer would come after the deadline, and be billed nevertheless.
    """
    return policy.deadline - _LEAST_TIME * min(policy.timeout, policy.deadline)


def gives_up(
    call: Call,
    state: RetryCallState,
    policy: RetryPolicy,
    *,
    since: float,
    reached: bool,
    outage: Outage,
) -> bool:
    """Whether a failure is final, `since` seconds after the call was first sent.

    The error becomes fatal if the server cannot be reached: every other call would fail as well.
    """
    if outage.is_down and call.error is not None:
        call.error.fatal = True
        if not call.unsent:
            outage.end(call.error)
        return True
    tries = state.attempt_number - call.repeats
    if call.unsent and call.error is not None:
        # calls that were sent late share what earlier ones found out
        seconds = max(since + state.upcoming_sleep, outage.seconds)
        unreached = seconds >= _UNREACHED or tries >= policy.attempts
        if outage.has_ended(call):
            call.error.fatal = True
            return True
        if outage.is_permanent or (not reached and unreached):
            call.error.fatal = True
            outage.end(call.error)
            return True
    if since + state.upcoming_sleep >= latest_start(policy):
        return True
    # A server that was reached before is probably restarting: refused connections do not count as
    # attempts, and the deadline bounds the wait. A server never reached suggests a wrong base_url.
    return tries - (call.refusals if reached else 0) >= policy.attempts


def adapts(call: Call, error: errors.ProviderError) -> bool:
    """Change the encoding of a call if that can cure the error; return whether it changed."""
    # billed, whatever it was; without content the response was broken, which is no matter of format
    unreadable = isinstance(error, errors.ReplyError) and error.content is not None
    if isinstance(error, errors.ReplyError) and was_last(call):
        return False
    if call.wire is None or call.adaptations >= _MOST_ADAPTATIONS:
        return False
    if not isinstance(error, (errors.BadRequestError, errors.UnknownModelError, errors.ReplyError)):
        return False
    body = call.wire.encode(call.request)
    if body == call.body:
        # no concurrent call has adapted the provider already
        changed = call.wire.adapt(error, call.request.task)
        if not changed and unreadable and error.retryable and len(call.request.texts) == 1:
            # others get readable replies: ask for another format in this call alone
            call.request = replace(call.request, step=call.request.step + 1)
        elif not changed:
            return False
        body = call.wire.encode(call.request)
        if not changed and body == call.body:
            return False
    # what was answered is billed, so that sending it again is a retry
    call.again = call.again or isinstance(error, errors.ReplyError)
    call.adaptations += 1
    call.body = body
    call.size = call.wire.reserve(call.request)
    return True
