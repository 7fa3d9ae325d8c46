"""Retry rules: whether to retry, how long to back off, when to give up, how to adapt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testnuc.errors import BadRequestError, ProviderError, ReplyError, UnknownModelError
from testnuc.transport.failures import is_retryable

if TYPE_CHECKING:
    from random import Random

    from tenacity import RetryCallState

    from testnuc.limits import RetryPolicy
    from testnuc.transport.calls import Call

__all__ = ["adapts", "backoff", "gives_up", "may_help", "wait"]

#: Changes of the encoding within one call.
_MOST_ADAPTATIONS = 4
#: Jitter on top of a server's wait: part of it, and its bounds in seconds.
_SPREAD, _LEAST_SPREAD, _MOST_SPREAD = 0.1, 0.05, 5.0
#: The first waits for a server that refuses connections are shorter than `initial_wait`.
_SHORT_WAITS = 3
#: More doublings would overflow.
_MOST_DOUBLINGS = 30


def may_help(call: Call, error: BaseException) -> bool:
    """Whether to retry; missing answers of a packed call are asked for in smaller calls."""
    return is_retryable(error) and not (
        isinstance(error, ReplyError) and len(call.request.texts) > 1
    )


def wait(call: Call, state: RetryCallState, policy: RetryPolicy, rng: Random) -> float:
    """Return the seconds until the next attempt."""
    error = call.error
    if error is None or isinstance(error, ReplyError):
        return 0.0  # the server works; only the reply was unusable
    if call.unsent:
        # Nothing was sent, so the server has no load: retry soon at first, as a short outage must
        # not cost more than it lasts, then steadily. All calls pause as well; see Concurrency.
        longest = policy.initial_wait * min(1.0, 2.0 ** (call.refusals - _SHORT_WAITS - 1))
        return rng.uniform(longest / 2, longest)
    return backoff(policy, state.attempt_number - call.refusals, error.retry_after, rng)


def backoff(policy: RetryPolicy, tries: int, retry_after: float | None, rng: Random) -> float:
    """Return the seconds until the next attempt, after `tries` of them; at least `retry_after`."""
    doublings = min(max(0, tries - 1), _MOST_DOUBLINGS)
    own = rng.uniform(0.0, min(policy.max_wait, policy.initial_wait * 2.0**doublings))
    if retry_after is None:
        return own
    # without jitter every waiting call would be sent at the same moment
    spread = min(_MOST_SPREAD, max(_LEAST_SPREAD, _SPREAD * retry_after))
    return max(own, retry_after) + rng.uniform(0.0, spread)


def gives_up(
    call: Call, state: RetryCallState, policy: RetryPolicy, *, since: float, reached: bool
) -> bool:
    """Whether a failure is final, `since` seconds after the call was first sent."""
    if since + state.upcoming_sleep >= policy.deadline:
        return True
    # A server that was reached before is probably restarting: refused connections do not count as
    # attempts, and the deadline bounds the wait. A server never reached suggests a wrong base_url.
    tries = state.attempt_number - (call.refusals if reached else 0)
    return tries >= policy.attempts


def adapts(call: Call, error: ProviderError) -> bool:
    """Change the encoding of a call if that can cure the error; return whether it changed."""
    if call.wire is None or call.adaptations >= _MOST_ADAPTATIONS:
        return False
    if not isinstance(error, (BadRequestError, UnknownModelError, ReplyError)):
        return False
    body = call.wire.encode(call.request)
    if body == call.body:
        # no concurrent call has adapted the provider already
        if not call.wire.adapt(error):
            return False
        body = call.wire.encode(call.request)
    call.adaptations += 1
    call.body = body
    call.size = call.wire.reserve(call.request)
    return True
