"""Decide which failed requests go into another round of batches."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from testnuc._dispatch.inflight import Ask
from testnuc.batch.base import NoneChosenError, QueueFullError
from testnuc.errors import (
    BadRequestError,
    ProviderError,
    ReplyError,
    TruncatedReplyError,
    UnreadableReplyError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from testnuc._dispatch.inflight import Outcome
    from testnuc.limits import BatchPolicy
    from testnuc.protocols import WireProvider

#: Most changes of the request format after refusals.
_ADAPTATIONS = 4
#: Most rounds in which requests wait for room in the provider's queue.
_QUEUED = 50


class RetryRounds:
    """Selects the asks that go into another batch."""

    def __init__(self, policy: BatchPolicy, provider: WireProvider) -> None:
        self._most = policy.attempts if policy.rest == "batch" else 1
        self._live = policy.rest == "live"
        self._provider = provider
        self._tries: Counter[bytes] = Counter()
        self._adaptations = 0
        self._dialect: object = None
        #: Consecutive rounds in which the provider's queue was full.
        self.queue_full_rounds = 0
        #: Keys with their own request: asks of a failed packed request are sent separately.
        self.alone: set[bytes] = set()
        #: Asks to be called live after the last round.
        self.rest: list[Ask] = []

    def begin(self) -> None:
        """Note the request format of this round."""
        self._dialect = getattr(self._provider, "dialect", None)

    def again(self, asks: Sequence[Ask], outcomes: Mapping[bytes, Outcome]) -> list[Ask]:
        """Return the asks of a round to send again."""
        failed = [ask for ask in asks if isinstance(outcomes.get(ask.key), Exception)]
        errors = [outcomes[ask.key] for ask in failed]
        self.queue_full_rounds = (
            self.queue_full_rounds + 1
            if any(isinstance(error, QueueFullError) for error in errors)
            else 0
        )
        adapted = self._adapted(errors)
        # no outcome: their batch was never created
        again = [ask for ask in asks if ask.key not in outcomes]
        for ask in failed:
            error = outcomes[ask.key]
            if isinstance(error, NoneChosenError):
                # the second call after a shortlist is no retry
                (self.rest if self._live else again).append(_with_all_labels(ask))
                continue
            if isinstance(error, QueueFullError):
                if self.queue_full_rounds < _QUEUED:
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
        """Whether a retry can succeed: one text may have failed a packed request."""
        if not isinstance(error, ProviderError):
            return False
        packed = ask.key not in self.alone
        return error.retryable or (packed and isinstance(error, (BadRequestError, ReplyError)))

    def _adapted(self, errors: Iterable[object]) -> bool:
        """Whether the request format has changed, so that refused requests can be retried."""
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


def _with_all_labels(ask: Ask) -> Ask:
    return Ask(ask.key, ask.text, ask.text_hash, ask.place, ask.sample, ask.demonstrations)


def _about_form(error: object) -> bool:
    if isinstance(error, BadRequestError):
        return error.fatal
    return isinstance(error, (TruncatedReplyError, UnreadableReplyError))
