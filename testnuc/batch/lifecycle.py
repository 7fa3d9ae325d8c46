"""The lifecycle of one batch: intent, creation, polling, results; adoption after a crash.

::

    intent stored ─ upload ─ batch created ─ id stored ─ ended ─ results ─ predictions stored
                                 │                                             │
        killed here: searched at the provider              killed here: results read again

Any number of processes may follow a batch whose id is stored. The first one that has stored all
predictions ends the batch in the store, and counts its usage.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from testnuc.batch.base import RemoteBatch
from testnuc.batch.decoding import BatchOutcomes
from testnuc.batch.manifest import unpack
from testnuc.errors import NotAnsweredError, ProviderError, RateLimitedError, StoreError
from testnuc.limits import Meter
from testnuc.types import Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from testnuc._dispatch.inflight import Outcome
    from testnuc.batch.base import BatchAPI
    from testnuc.batch.decoding import ResponseReader
    from testnuc.batch.manifest import BatchStore
    from testnuc.limits import BatchPolicy, Price
    from testnuc.protocols import StoredBatch, StoredPrediction, TokenUsage

__all__ = ["BatchLifecycle", "Outcomes", "UnknownOutcomeError"]

#: By key.
Outcomes = dict[bytes, "Outcome"]

_log = logging.getLogger("testnuc.batch")

_GONE = 404
#: Consecutive 404s after which a batch counts as gone.
_GONE_AFTER = 3
#: Attempts to create a batch while no other batch is open.
_CREATIONS = 10
_GROWTH = 1.5
#: Seconds to keep polling while the provider fails.
_PATIENCE = 3_600.0
#: Predictions stored at a time.
_CHUNK = 1_000


class UnknownOutcomeError(Exception):
    """A creation failed, and the batch may or may not exist."""

    def __init__(self, error: ProviderError) -> None:
        super().__init__(str(error))
        self.error = error


class BatchLifecycle:
    """Creates batches at a provider, follows them, and stores their predictions."""

    def __init__(
        self,
        api: BatchAPI,
        reader: ResponseReader,
        store: BatchStore,
        *,
        policy: BatchPolicy,
        price: Price | None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.api = api
        self._reader = reader
        self._store = store
        self._policy = policy
        self._price = price
        self._sleep = sleep
        self._owner = secrets.token_bytes(16)

    async def intend(self, batch: StoredBatch) -> None:
        """Store the intent: other processes then wait for this batch."""
        await self._store.put_batch(batch, self._owner, self._policy.grace)

    async def create(
        self, batch: StoredBatch, lines: Sequence[bytes], busy: Callable[[], bool]
    ) -> StoredBatch:
        """Create a batch whose intent is stored, and store its id.

        `busy`: whether other batches are open; a provider that refuses more will accept them later.

        Raises
        ------
        ProviderError
            The provider refused it; nothing was created.
        UnknownOutcomeError
            It may have been created; `adopt` finds out.
        """
        try:
            async with self._held(batch):
                prepared = await self.api.prepare(batch.id.hex(), lines)
                remote_id = await self._created(batch, prepared, busy)
        except ProviderError:
            await self._store.end_batch(batch.id, "refused", Usage())
            raise
        await self._store.note_batch(batch.id, remote_id)
        return replace(batch, remote_id=remote_id)

    async def _created(self, batch: StoredBatch, prepared: bytes, busy: Callable[[], bool]) -> str:
        """Create a batch; retry only after a refusal."""
        tries, pause = 0, self._policy.first_poll
        while True:
            if not await self._store.claim_batch(batch.id, self._owner, self._policy.grace):
                raise NotAnsweredError(
                    "another process took over the batch before it was created: this process was "
                    f"suspended for longer than BatchPolicy(grace={self._policy.grace:g})"
                )
            try:
                return (await self.api.create(batch.id.hex(), prepared)).id
            except ProviderError as error:
                if error.retryable and not isinstance(error, RateLimitedError):
                    raise UnknownOutcomeError(error) from error
                tries += not busy()
                if not error.retryable or tries >= _CREATIONS:
                    raise
                wait = error.retry_after or pause
                _log.info("a batch was refused (%s); retrying in %.0f s", error, wait)
            await self._sleep(wait)
            pause = min(pause * _GROWTH, self._policy.longest_poll)

    async def adopt(self, batch: StoredBatch) -> StoredBatch | None:
        """Take over a batch whose creator may be dead; None if it was never created.

        Waits for as long as its creator holds the batch.
        """
        while batch.remote_id is None:
            if await self._store.claim_batch(batch.id, self._owner, self._policy.grace):
                async with self._held(batch):
                    found = await self._found(batch)
                if found is None:
                    _log.info("batch %s was never created", batch.id.hex())
                    await self._store.end_batch(batch.id, "never created", Usage())
                    return None
                _log.info("batch %s was found at the provider: %s", batch.id.hex(), found)
                await self._store.note_batch(batch.id, found)
                return replace(batch, remote_id=found)
            await self._sleep(min(self._policy.first_poll, self._policy.grace / 10))
            now = [b for b in await self._store.batches(batch.scope) if b.id == batch.id]
            if not now:
                return None
            batch = now[0]
        return batch

    async def _found(self, batch: StoredBatch) -> str | None:
        others = await self._store.batches(ended=True)
        known = frozenset(b.remote_id for b in others if b.remote_id is not None)

        async def wait(seconds: float | None) -> None:
            await self._sleep(self._policy.first_poll if seconds is None else seconds)

        return await self.api.find(batch, known, wait)

    @contextlib.asynccontextmanager
    async def _held(self, batch: StoredBatch) -> AsyncIterator[None]:
        """Hold a batch: renew the claim until the context ends."""

        async def hold() -> None:
            while True:
                await asyncio.sleep(self._policy.grace / 3)
                # a lost claim is noticed before the batch is created
                with contextlib.suppress(StoreError):
                    await self._store.claim_batch(batch.id, self._owner, self._policy.grace)

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
        remote = await self._ended(batch)
        joined = BatchOutcomes(batch.id.hex(), unpack(batch.items), self._reader)
        if remote.error is None and remote.results:
            try:
                await self.api.read(remote, joined.take)
            except ProviderError as error:
                if error.status_code != _GONE:
                    raise
                _log.warning("the results of batch %s are gone at the provider", remote.id)
        meter = Meter(self._price)
        for usage in joined.usages:
            meter.add(usage)
        standing: Outcomes = {}
        first = True
        uploads: tuple[str, ...] = ()
        try:
            standing = await self._keep(joined.stored(batch.scope))
            first = await self._store.end_batch(batch.id, remote.status, meter.usage())
            uploads = remote.uploads if first else ()
        except Exception as error:  # noqa: BLE001 - of any store
            # the run gets the answers, and its scheduler stores them again
            _log.warning("batch %s stays open, its results were not stored: %s", remote.id, error)
        await self.api.discard(uploads)
        outcomes: Outcomes = {}
        for item, found in joined.outcomes():
            for wanted, outcome in zip(item, found, strict=True):
                if isinstance(outcome, Exception):
                    outcome = remote.error or outcome  # noqa: PLW2901 - more specific
                outcomes[wanted.key] = standing.get(wanted.key, outcome)
        return remote, outcomes, joined.usages if first else None

    async def _keep(self, rows: Iterator[StoredPrediction]) -> Outcomes:
        kept: Outcomes = {}
        while part := list(islice(rows, _CHUNK)):
            standing = await self._store.put_predictions(part)
            kept.update((row.key, p) for row, p in zip(part, standing, strict=True))
        return kept

    async def _ended(self, batch: StoredBatch) -> RemoteBatch:
        assert batch.remote_id is not None
        pause, failing, unknown = self._policy.first_poll, 0.0, 0
        logged = None
        while True:
            wait = None
            try:
                remote = await self.api.retrieve(batch.remote_id)
            except ProviderError as error:
                unknown = unknown + 1 if error.status_code == _GONE else 0
                if unknown == _GONE_AFTER:
                    _log.warning("batch %s is gone at the provider", batch.remote_id)
                    return RemoteBatch(batch.remote_id, "gone", ended=True, total=0, done=0)
                # a batch takes hours: keep polling while the provider fails for minutes
                if not unknown and (not error.retryable or failing > _PATIENCE):
                    raise
                failing += pause
            else:
                if logged != (remote.status, remote.done):
                    logged = remote.status, remote.done
                    _log.info("batch %s: %s, %d of %d", remote.id, *logged, batch.requests)
                if remote.ended:
                    return remote
                failing, unknown, wait = 0.0, 0, remote.poll_after
            await self._sleep(pause if wait is None else wait)
            pause = min(pause * _GROWTH, self._policy.longest_poll)
