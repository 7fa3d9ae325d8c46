"""The rounds of a batch lane: how asks are packed, and which of them are sent again.

The provider's limit of enqueued tokens is learned from its refusals.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from testnuc import errors
from testnuc._dispatch.inflight import LAST_STEP, Ask, Outcome
from testnuc.batch.base import NoneChosenError, QueueFullError
from testnuc.batch.manifest import Item, RequestedPrediction
from testnuc.limits.policies import BatchPolicy
from testnuc.protocols import Task, WireProvider

#: The asks of one request, about distinct texts.
Pack = tuple[Ask, ...]
#: Most changes of the request format after refusals.
_ADAPTATIONS = 4
#: Most rounds in which requests wait for room in the provider's queue.
_QUEUED = 50
#: Most executed requests for a text whose results could not be read, or did not come: they are
#: billed, and the next is rarely better.
_MOST_BILLED = 2
#: Errors that one text of a packed request may cause for all.
_OF_TEXTS = (errors.BadRequestError, errors.ReplyError)


@dataclass(slots=True, eq=False)
class PendingBatch:
    """The requests of one batch."""

    id: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    packs: list[Pack] = field(default_factory=list)
    #: Whether the prompt of each request shows some of the labels.
    partial: list[bool] = field(default_factory=list)
    #: Bytes of the requests.
    size: int = 0
    #: Estimated input tokens, most output tokens, and their highest cost in 1e-12 US dollars.
    input_tokens: int = 0
    output_tokens: int = 0
    pico_usd: int = 0
    #: The most input and output tokens of a request.
    largest: tuple[int, int] = (0, 0)

    @property
    def items(self) -> tuple[Item, ...]:
        """The predictions of each request."""
        return tuple(
            tuple(RequestedPrediction(ask.key, ask.text_hash, ask.sample, partial) for ask in pack)
            for pack, partial in zip(self.packs, self.partial, strict=True)
        )


def packs(asks: Iterable[Ask], per_call: int, alone: Collection[bytes] = ()) -> Iterator[Pack]:
    """Yield the asks of each request, at most `per_call`.

    Asks with few-shot examples have their own request, and so have those whose key is in `alone`.
    """
    together: list[Ask] = []
    if per_call > 1:
        # samples of one text cannot share a request, and one text that needs all labels shows them
        # to those that it is packed with
        asks = sorted(asks, key=lambda ask: (ask.sample, not ask.shown))
    for ask in asks:
        if per_call == 1 or ask.demonstrations or ask.key in alone:
            yield (ask,)
            continue
        if len(together) == per_call or any(a.text_hash == ask.text_hash for a in together):
            yield tuple(together)
            together = []
        together.append(ask)
    if together:
        yield tuple(together)


def with_all_labels(ask: Ask) -> Ask:
    """Return the second ask after a shortlist, of which none was chosen."""
    return replace(ask, shown=(), answer=None)


class TokenQueue:
    """Admits batches while their tokens stay within a limit, None if unknown; always admits one."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = self._most = limit
        self.used = 0
        self._refusals = 0
        self._released = asyncio.Event()

    async def acquire(self, tokens: int) -> None:
        """Wait until there is room."""
        while self.used and self.limit is not None and self.used + tokens > self.limit:
            self._released.clear()
            await self._released.wait()
        self.used += tokens

    def release(self, tokens: int) -> None:
        """Release tokens."""
        self.used -= tokens
        self._released.set()

    def refused(self, limit: int | None) -> None:
        """Lower the limit after a refusal, to the provider's if it is stated.

        Fewer tokens than that were refused if other programs use the queue, too.
        """
        self._refusals += 1
        if not limit or self.used <= limit:
            limit = max(1, self.used // 2)
        self.limit = limit if self.limit is None else min(self.limit, limit)

    def accepted(self) -> None:
        """Raise the limit after a batch, if one refusal has set it: that may be a mishap.

        So may several, if what is enqueued is more than they allow.
        """
        if self.limit is None:
            return
        if self.used > self.limit:
            self._refusals = 1
        if self._refusals == 1:
            raised = 2 * max(1, self.limit, self.used)
            self.limit = raised if self._most is None else min(raised, self._most)


class RetryRounds:
    """Selects the asks that go into another batch."""

    def __init__(self, policy: BatchPolicy, provider: WireProvider, task: Task) -> None:
        self._most = policy.attempts if policy.rest == "batch" else 1
        self._live = policy.rest == "live"
        self._provider, self._task = provider, task
        self._tries: Counter[bytes] = Counter()
        #: How often a request was executed in vain.
        self._billed: Counter[bytes] = Counter()
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
        failures = [outcomes[ask.key] for ask in failed]
        full = any(isinstance(error, QueueFullError) for error in failures)
        self.queue_full_rounds = self.queue_full_rounds + 1 if full else 0
        adapted = self._adapted(failures)
        # no outcome: their batch was never created
        again = [ask for ask in asks if ask.key not in outcomes]
        for ask in failed:
            error = outcomes[ask.key]
            if isinstance(error, NoneChosenError):
                # the second call after a shortlist, with all labels, is no retry
                (self.rest if self._live else again).append(with_all_labels(ask))
                continue
            if isinstance(error, QueueFullError):
                if self.queue_full_rounds < _QUEUED:
                    again.append(ask)
                continue
            billed = getattr(error, "answered", False)
            self._billed[ask.key] += billed
            last = self._billed[ask.key] >= _MOST_BILLED
            if adapted and _about_form(error) and not (billed and (last or self._live)):
                again.append(ask)
                continue
            self._tries[ask.key] += 1
            # one text may have failed a packed request
            packed = ask.key not in self.alone and isinstance(error, _OF_TEXTS)
            may_help = isinstance(error, errors.ProviderError) and (error.retryable or packed)
            if may_help and not last:
                left = again if self._tries[ask.key] < self._most else self.rest
                left.append(replace(ask, step=LAST_STEP) if self._billed[ask.key] else ask)
            self.alone.add(ask.key)
        return again

    def _adapted(self, failures: Iterable[object]) -> bool:
        """Whether the request format has changed, so that refused requests can be retried."""
        kinds = {type(error): error for error in failures if _about_form(error)}
        if not kinds or self._adaptations >= _ADAPTATIONS:
            return False
        changed = getattr(self._provider, "dialect", None) is not self._dialect
        for error in kinds.values():
            if not changed:
                assert isinstance(error, Exception)
                changed = self._provider.adapt(error, self._task)
        self._adaptations += changed
        return changed


def _about_form(error: object) -> bool:
    if isinstance(error, errors.BadRequestError):
        return error.fatal
    return isinstance(error, (errors.TruncatedReplyError, errors.UnreadableReplyError))
