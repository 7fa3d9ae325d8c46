"""What a round of batches left without an answer, and whether it is worth another."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from testnuc.batch.base import QueueFullError
from testnuc.errors import (
    BadRequestError,
    ProviderError,
    ReplyError,
    TruncatedReplyError,
    UnreadableReplyError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from testnuc._dispatch.inflight import Ask, Outcome
    from testnuc.limits import BatchPolicy
    from testnuc.protocols import WireProvider

__all__ = ["Rounds"]

#: How often the form of requests is changed because the provider refuses it.
_ADAPTATIONS = 4
#: How often requests wait for room in the provider's queue.
_QUEUED = 50


class Rounds:
    """Decides which asks go into another batch.

    Parameters
    ----------
    policy : BatchPolicy
    provider : WireProvider
        Adapts the form of requests to what is refused.
    """

    def __init__(self, policy: BatchPolicy, provider: WireProvider) -> None:
        self._most = policy.attempts if policy.rest == "batch" else 1
        self._provider = provider
        self._tries: Counter[bytes] = Counter()
        self._adaptations = 0
        self._dialect: object = None
        #: Rounds in a row in which the provider had no room.
        self.crowded = 0
        #: Keys that have a request of their own: what failed in company gets one.
        self.alone: set[bytes] = set()
        #: Asks that another lane may have an answer to, though this one has given up.
        self.rest: list[Ask] = []

    def begin(self) -> None:
        """Note how requests are written in this round."""
        self._dialect = getattr(self._provider, "dialect", None)

    def again(self, asks: Sequence[Ask], outcomes: Mapping[bytes, Outcome]) -> list[Ask]:
        """Return the asks of a round that are to be sent again."""
        failed = [ask for ask in asks if isinstance(outcomes.get(ask.key), Exception)]
        errors = [outcomes[ask.key] for ask in failed]
        self.crowded = self.crowded + 1 if any(map(_is_crowd, errors)) else 0
        adapted = self._adapted(errors)
        # what a batch was to bring that was never created has no outcome
        again = [ask for ask in asks if ask.key not in outcomes]
        for ask in failed:
            error = outcomes[ask.key]
            if _is_crowd(error):
                if self.crowded < _QUEUED:
                    again.append(ask)
                continue
            if adapted and _about_form(error):
                again.append(ask)
                continue
            self._tries[ask.key] += 1
            if self._may_help(ask, error):
                left = again if self._tries[ask.key] < self._most else self.rest
                left.append(ask)
            self.alone.add(ask.key)
        return again

    def _may_help(self, ask: Ask, error: object) -> bool:
        """Whether asking again can bring an answer: not all that was packed with a fault has it."""
        if not isinstance(error, ProviderError):
            return False
        packed = ask.key not in self.alone
        return error.retryable or (packed and isinstance(error, (BadRequestError, ReplyError)))

    def _adapted(self, errors: Iterable[object]) -> bool:
        """Whether requests are written differently now, so that what was refused is worth it."""
        kinds = {type(error): error for error in errors if _about_form(error)}
        if not kinds or self._adaptations >= _ADAPTATIONS:
            return False
        changed = getattr(self._provider, "dialect", None) is not self._dialect
        for error in kinds.values():
            if not changed:
                assert isinstance(error, Exception)
                changed = self._provider.adapt(error)
        self._adaptations += changed
        return changed


def _is_crowd(error: object) -> bool:
    return isinstance(error, QueueFullError)


def _about_form(error: object) -> bool:
    if isinstance(error, BadRequestError):
        return error.fatal
    return isinstance(error, (TruncatedReplyError, UnreadableReplyError))
