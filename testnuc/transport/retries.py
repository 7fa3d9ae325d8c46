"""When a call is sent again: the rules, without the sending."""

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

#: How often a provider may change its encoding within one call.
_MOST_ADAPTATIONS = 4
#: Jitter on top of a server's wait: part of it, and its bounds in seconds.
_SPREAD, _LEAST_SPREAD, _MOST_SPREAD = 0.1, 0.05, 5.0
#: So many waits for a server that refuses connections are shorter than `initial_wait`.
_SHORT_WAITS = 3
#: More doublings would overflow.
_MOST_DOUBLINGS = 30


def may_help(call: Call, error: BaseException) -> bool:
    """Whether to send again; what a packed call lacks, the caller asks for in smaller ones."""
    return is_retryable(error) and not (
        isinstance(error, ReplyError) and len(call.request.texts) > 1
    )


def wait(call: Call, state: RetryCallState, policy: RetryPolicy, rng: Random) -> float:
    """Seconds until the next try."""
    error = call.error
    if error is None or isinstance(error, ReplyError):
        return 0.0  # the server is well; only the answer was not
    if call.unsent:
        # nothing was sent, so nobody is kept busy: soon at first, for a moment's refusal must not
        # cost more than it lasts, and then steadily; the pause of all calls does the rest
        longest = policy.initial_wait * min(1.0, 2.0 ** (call.refusals - _SHORT_WAITS - 1))
        return rng.uniform(longest / 2, longest)
    return backoff(policy, state.attempt_number - call.refusals, error.retry_after, rng)


def backoff(policy: RetryPolicy, tries: int, retry_after: float | None, rng: Random) -> float:
    """Seconds until the next try, after `tries` of them; no less than the server told to wait."""
    doublings = min(max(0, tries - 1), _MOST_DOUBLINGS)
    own = rng.uniform(0.0, min(policy.max_wait, policy.initial_wait * 2.0**doublings))
    if retry_after is None:
        return own
    # a server's wait obeyed to the letter wakes everybody in the same moment
    spread = min(_MOST_SPREAD, max(_LEAST_SPREAD, _SPREAD * retry_after))
    return max(own, retry_after) + rng.uniform(0.0, spread)


def gives_up(
    call: Call, state: RetryCallState, policy: RetryPolicy, *, since: float, reached: bool
) -> bool:
    """Whether the failure is final, `since` seconds after the call was first sent."""
    if since + state.upcoming_sleep >= policy.deadline:
        return True
    # A server that was reached before is being restarted: nothing is sent meanwhile, and the
    # deadline bounds the waiting. One that never was there is likely a wrong base_url.
    tries = state.attempt_number - (call.refusals if reached else 0)
    return tries >= policy.attempts


def adapts(call: Call, error: ProviderError) -> bool:
    """Whether the call is worth sending again because its encoding has changed; then it has."""
    if call.wire is None or call.adaptations >= _MOST_ADAPTATIONS:
        return False
    if not isinstance(error, (BadRequestError, UnknownModelError, ReplyError)):
        return False
    body = call.wire.encode(call.request)
    if body == call.body:
        # no other call, failing the same way, has adapted the provider meanwhile
        if not call.wire.adapt(error):
            return False
        body = call.wire.encode(call.request)
    call.adaptations += 1
    call.body = body
    call.size = call.wire.reserve(call.request)
    return True
