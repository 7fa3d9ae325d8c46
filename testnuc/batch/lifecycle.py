"""The lifecycle of one batch: intent, creation, polling, results; adoption after a crash.

::

    intent stored ─ upload ─ batch created ─ id stored ─ ended ─ results ─ predictions stored
                                 │                                             │
        killed here: searched at the provider              killed here: results read again

Any number of processes may follow a batch whose id is stored. The first one that has stored all
predictions ends the batch in the store, and counts its usage.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import islice
from statistics import median
from typing import Any

from testnuc._base.foreign import count
from testnuc._dispatch.inflight import Outcome
from testnuc.batch.base import BatchAPI, RemoteBatch
from testnuc.batch.manifest import BatchOutcomes, BatchStore, ResponseReader, unpack
from testnuc.errors import NotAnsweredError, ProviderError, RateLimitedError, StoreError
from testnuc.limits.budget import Meter, Price
from testnuc.limits.concurrency import LONG
from testnuc.limits.policies import LONGEST_WAIT, BatchPolicy
from testnuc.protocols import StoredBatch, StoredPrediction, TokenUsage
from testnuc.transport.accounting import is_possible
from testnuc.transport.failures import NEVER_SENT
from testnuc.types import Usage

#: By key.
Outcomes = dict[bytes, "Outcome"]

_log = logging.getLogger("testnuc.batch")

_GONE = frozenset({404, 410})
#: Statuses of a list of batches that a provider does not offer, or not to this key.
_UNLISTED = frozenset({404, 405, 410, 501})
#: Consecutive refusals after which a batch is not polled or read any more: one may be a mishap.
_REFUSALS = 3
_REFUSED_WAIT = 1.0
#: Attempts to create a batch while no other batch is open.
_CREATIONS = 10
GROWTH = 1.5
#: Longest time that a batch is polled. Providers promise results within a day.
_LONGEST = 3 * 86_400.0
_IS_GONE = "gone"
#: Predictions stored at a time.
_CHUNK = 1_000


class UnknownOutcomeError(Exception):
    """A creation failed, and the batch may or may not exist."""

    def __init__(self, error: ProviderError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(eq=False)
class BatchLifecycle:
    """Creates batches at a provider, follows them, and stores their predictions."""

    api: BatchAPI
    reader: ResponseReader
    store: BatchStore
    _: KW_ONLY
    policy: BatchPolicy
    price: Price | None
    owner: bytes = field(default_factory=lambda: secrets.token_bytes(16))

    async def intend(self, batch: StoredBatch) -> None:
        """Store the intent: other processes then wait for this batch."""
        await self.store.put_batch(batch, self.owner, self.policy.grace)

    async def create(
        self, batch: StoredBatch, lines: Sequence[bytes], busy: Callable[[], bool]
    ) -> StoredBatch:
        """Create a batch whose intent is stored, and store its id.

        `busy`: whether other batches are open; a provider that refuses more will accept them later.
        `ProviderError`: the provider refused it; nothing was created. `UnknownOutcomeError`: it may
        have been created; `adopt` finds out.
        """
        try:
            async with self._held(batch):
                prepared = await self.api.prepare(batch.id.hex(), lines)
                remote_id = await self._created(batch, prepared, busy)
        except ProviderError:
            await self.store.end_batch(batch.id, "refused", Usage())
            raise
        try:
            await self.store.note_batch(batch.id, remote_id)
        except StoreError as error:
            # the batch exists: follow it; after a crash it is searched for
            _log.warning("the id of batch %s was not stored: %s", remote_id, error)
        return replace(batch, remote_id=remote_id)

    async def _created(self, batch: StoredBatch, prepared: bytes, busy: Callable[[], bool]) -> str:
        """Create a batch; retry only after a refusal."""
        tries, pause = 0, self.policy.first_poll
        while True:
            if not await self.store.claim_batch(batch.id, self.owner, self.policy.grace):
                raise NotAnsweredError(
                    "another process took over the batch before it was created: this process was "
                    f"suspended for longer than BatchPolicy(grace={self.policy.grace:g})"
                )
            try:
                return (await self.api.create(batch.id.hex(), prepared)).id
            except ProviderError as error:
                sent = not isinstance(error.__cause__, NEVER_SENT)
                if sent and error.retryable and not isinstance(error, RateLimitedError):
                    raise UnknownOutcomeError(error) from error
                tries += not busy()
                if not error.retryable or tries >= _CREATIONS:
                    raise
                wait = min(error.retry_after or pause, LONGEST_WAIT)
                level = logging.WARNING if wait > LONG else logging.INFO
                _log.log(level, "a batch was refused (%s); retrying in %.0f s", error, wait)
            await asyncio.sleep(wait)
            pause = min(pause * GROWTH, self.policy.longest_poll)

    async def adopt(self, batch: StoredBatch) -> StoredBatch | None:
        """Take over a batch whose creator may be dead; None if it was never created.

        Waits for as long as its creator holds the batch.
        """
        while batch.remote_id is None:
            if await self.store.claim_batch(batch.id, self.owner, self.policy.grace):
                async with self._held(batch):
                    found = await self._found(batch)
                if found is None:
                    _log.info("batch %s was never created", batch.id.hex())
                    await self.store.end_batch(batch.id, "never created", Usage())
                    return None
                _log.info("batch %s was found at the provider: %s", batch.id.hex(), found)
                await self.store.note_batch(batch.id, found)
                return replace(batch, remote_id=found)
            await asyncio.sleep(min(self.policy.first_poll, self.policy.grace / 10))
            now = [b for b in await self.store.batches(batch.scope) if b.id == batch.id]
            if not now:
                return None
            batch = now[0]
        return batch

    async def _found(self, batch: StoredBatch) -> str | None:
        """Search a batch at the provider, which may list a new one with a delay."""
        others = await self.store.batches(ended=True)
        known = {b.remote_id for b in others if b.remote_id is not None}
        clock = asyncio.get_running_loop().time
        polled, began = 0.0, clock()

        async def wait(seconds: float | None) -> None:
            nonlocal polled, began
            seconds = self.policy.first_poll if seconds is None else seconds
            polled += seconds
            if polled > _LONGEST:
                raise _unending(batch)
            if not seconds and clock() - began > self.policy.patience:
                raise NotAnsweredError(
                    f"batch {batch.id.hex()} was not found: the provider's list of batches takes "
                    f"longer than BatchPolicy(patience={self.policy.patience:g})"
                )
            await asyncio.sleep(seconds)
            # waiting for a batch in progress is no part of the search
            began += seconds

        longest, waited, pause = self.policy.grace, 0.0, self.policy.first_poll
        while True:
            failed = remote_id = None
            began = clock()
            try:
                remote_id = await self.api.find(batch, known, wait)
            except ProviderError as error:
                failed = error
                if not error.retryable and error.status_code not in _UNLISTED:
                    raise
                longest = self.policy.patience
            if remote_id is not None:
                return remote_id
            waited += clock() - began
            if waited >= longest:
                if failed is not None and failed.status_code not in _UNLISTED:
                    raise failed
                return None
            await asyncio.sleep(pause)
            waited += pause
            pause = min(pause * GROWTH, self.policy.longest_poll)

    @contextlib.asynccontextmanager
    async def _held(self, batch: StoredBatch) -> AsyncIterator[None]:
        """Hold a batch: renew the claim until the context ends."""

        async def hold() -> None:
            while True:
                await asyncio.sleep(self.policy.grace / 3)
                # a lost claim is noticed before the batch is created
                with contextlib.suppress(StoreError):
                    await self.store.claim_batch(batch.id, self.owner, self.policy.grace)

        keeper = asyncio.create_task(hold(), name="testnuc-batch-held")
        try:
            yield
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def follow(
        self, batch: StoredBatch
    ) -> tuple[RemoteBatch, Outcomes, list[TokenUsage | None] | None]:
        """Wait for the end of a batch, store its predictions, and end it in the store.

        Returns its final state, the outcomes of all its requests, and the usage of each response;
        the latter is None if another process counted it. `ProviderError`: the provider cannot be
        reached; the batch stays open.
        """
        joined = BatchOutcomes(batch.id.hex(), unpack(batch.items), self.reader)
        remote, lost = await self._results(batch, joined)
        # answers that the provider does not return are billed, their tokens are unknown
        usages = [*_believed(joined.usages, batch.facts.get("tokens")), *[None] * lost]
        meter = Meter(self.price)
        for usage in usages:
            meter.add(usage)
        standing: Outcomes = {}
        first = True
        uploads: tuple[str, ...] = ()
        try:
            standing = await self._keep(joined.stored(batch.scope))
            first = await self.store.end_batch(batch.id, remote.status, meter.since())
            uploads = remote.uploads if first else ()
        except Exception as error:  # noqa: BLE001 - of any store
            # the run gets the answers, and its scheduler stores them again
            _log.warning("batch %s stays open, its results were not stored: %s", remote.id, error)
        await self.api.discard(uploads)
        outcomes: Outcomes = {}
        for item, found in joined.outcomes(remote.error or _missing(remote, lost)):
            for wanted, outcome in zip(item, found, strict=True):
                outcomes[wanted.key] = standing.get(wanted.key, outcome)
        return remote, outcomes, usages if first else None

    async def _results(self, batch: StoredBatch, joined: BatchOutcomes) -> tuple[RemoteBatch, int]:
        """Read the results of a batch; return its final state, and how many answers lack.

        Until results, counts or an error of the whole batch say what became of all requests, they
        are asked for again, for as long as the policy says.
        """
        waited, pause, refusals, told = 0.0, self.policy.first_poll, 0, False
        while True:
            remote = await self._ended(batch)
            before = len(joined.usages)
            clock = asyncio.get_running_loop().time
            began = clock()
            unread = None
            try:
                if remote.results:
                    await self.api.read(remote, joined.take)
            except ProviderError as error:
                unread = error
            waited += clock() - began
            refusals = refusals + 1 if unread is not None and _is_refusal(unread) else 0
            lost = absent = joined.missing(remote.answered)
            if unread is None:
                billed = remote.most_answers(batch.requests) - len(joined.usages)
                lost = max(0, min(absent, billed))
            explained = remote.error is not None or remote.done >= batch.requests
            if (lost if explained else absent) <= 0 or remote.status == _IS_GONE:
                return remote, lost
            if refusals >= _REFUSALS or waited >= self.policy.patience:
                if unread is None or unread.status_code in _GONE:
                    return remote, lost
                raise unread
            if not told or len(joined.usages) > before:
                told = True
                _log.warning(
                    "batch %s: %s, and %d results are not there%s; asking again for up to %.0f s",
                    remote.id, remote.status, absent, f" ({unread})" if unread else "",
                    self.policy.patience - waited,
                )  # fmt: skip
            if len(joined.usages) > before:
                # in case the provider loses them
                with contextlib.suppress(StoreError):
                    await self._keep(joined.stored(batch.scope))
            await asyncio.sleep(pause)
            waited += pause
            pause = min(pause * GROWTH, self.policy.longest_poll)

    async def _keep(self, rows: Iterator[StoredPrediction]) -> Outcomes:
        kept: Outcomes = {}
        while part := list(islice(rows, _CHUNK)):
            standing = await self.store.put_predictions(part)
            kept.update((row.key, p) for row, p in zip(part, standing, strict=True))
        return kept

    async def _ended(self, batch: StoredBatch) -> RemoteBatch:
        assert batch.remote_id is not None
        pause, polled, failing, refusals = self.policy.first_poll, 0.0, 0.0, 0
        logged = ("", 0)
        clock = asyncio.get_running_loop().time
        while True:
            wait, began = pause, clock()
            try:
                remote = await self.api.retrieve(batch.remote_id)
            except ProviderError as error:
                failing += clock() - began
                gone = error.status_code in _GONE
                if _is_refusal(error):
                    refusals, wait = refusals + 1, min(pause, _REFUSED_WAIT)
                else:
                    refusals = 0
                # a batch takes hours: keep polling while the provider fails for minutes
                if refusals >= _REFUSALS or (failing >= self.policy.patience and not gone):
                    raise
                if failing >= self.policy.patience:
                    _log.warning("batch %s is gone at the provider", batch.remote_id)
                    return RemoteBatch(batch.remote_id, _IS_GONE, ended=True, total=0, done=0)
                failing += wait
            else:
                # without a wait there would be no pause at all
                wait = remote.poll_after or pause
                if logged != (remote.status, remote.done):
                    logged = remote.status, remote.done
                    level = logging.WARNING if wait > LONG and not remote.ended else logging.INFO
                    _log.log(
                        level, "batch %s: %s, %d of %d; it is polled every %.0f s",
                        remote.id, *logged, batch.requests, wait,
                    )  # fmt: skip
                if remote.ended:
                    return remote
                failing, refusals = 0.0, 0
            if polled > _LONGEST:
                raise _unending(batch)
            await asyncio.sleep(wait)
            polled += wait
            pause = min(pause * GROWTH, self.policy.longest_poll)


def _is_refusal(error: ProviderError) -> bool:
    """Whether a provider will not answer a request later, as far as it shows."""
    return not error.retryable and error.status_code not in _GONE


def _missing(remote: RemoteBatch, lost: int) -> NotAnsweredError:
    what = "without a result for this request"
    if lost:
        what += f"; the provider answered {lost} requests more than it has returned"
    error = NotAnsweredError(f"the batch ended ({remote.status}) {what}")
    error.answered = lost > 0
    return error


def _unending(batch: StoredBatch) -> NotAnsweredError:
    error = NotAnsweredError(
        f"batch {batch.remote_id or batch.id.hex()} has not ended in {_LONGEST / 3600:.0f} hours; "
        "its texts are not sent again while it is open: run again to wait for it, or cancel it"
    )
    error.retryable = False
    return error


def _believed(usages: Sequence[TokenUsage | None], stated: object) -> list[TokenUsage | None]:
    """Return the token counts of a batch's responses; None for those that cannot be.

    `stated` are the most input and output tokens of a request. A batch of an older version has
    none, and a store from elsewhere anything: then they are the median of what the responses say.
    """
    known = [usage for usage in usages if usage is not None]
    if not known:
        return list(usages)
    size: Any = [count(most) for most in stated] if isinstance(stated, list | tuple) else []
    if len(size) != 2 or None in size:
        size = median(u.input_tokens for u in known), median(u.output_tokens for u in known)
    return [u if u is not None and is_possible(u, size) else None for u in usages]
