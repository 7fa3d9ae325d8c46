"""The life of one batch: intent, creation, waiting, results; and finding it after a crash.

::

    intent stored ─ requests sent ─ batch created ─ id stored ─ ended ─ results ─ answers stored
                                        │                                              │
          killed here: looked for at the provider              killed here: read once more

A batch that has its id in the store may be followed by any number of processes at once: whoever is
first to have all its answers stored ends it, and alone counts what it cost.
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
from testnuc.batch.decoding import Joined
from testnuc.batch.manifest import unpack
from testnuc.errors import NotAnsweredError, ProviderError, RateLimitedError, StoreError
from testnuc.limits import Meter
from testnuc.types import Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from testnuc._dispatch.inflight import Outcome
    from testnuc.batch.base import BatchAPI
    from testnuc.batch.decoding import Reader
    from testnuc.batch.manifest import BatchStore
    from testnuc.limits import BatchPolicy, Price
    from testnuc.protocols import StoredBatch, StoredPrediction, TokenUsage

__all__ = ["BatchLifecycle", "Outcomes", "UnknownOutcomeError"]

#: Key -> what came of it.
Outcomes = dict[bytes, "Outcome"]

_log = logging.getLogger("testnuc.batch")

_GONE = 404
#: How often in a row a provider must know nothing of a batch until it counts as gone.
_GONE_AFTER = 3
#: How often a creation is tried while no other batch is under way.
_CREATIONS = 10
_GROWTH = 1.5
#: Seconds to go on asking for a batch while the provider fails.
_PATIENCE = 3_600.0
#: Predictions stored at a time.
_CHUNK = 1_000


class UnknownOutcomeError(Exception):
    """A creation failed in a way that does not tell whether there is a batch now.

    Parameters
    ----------
    error : ProviderError
        How it failed.
    """

    def __init__(self, error: ProviderError) -> None:
        super().__init__(str(error))
        self.error = error


class BatchLifecycle:
    """Takes batches to a provider, and their answers to the store.

    Parameters
    ----------
    api : BatchAPI
    reader : Reader
    store : BatchStore
    policy : BatchPolicy
    price : Price, optional
        In the batch lane.
    sleep : callable
        What waits.
    """

    def __init__(
        self,
        api: BatchAPI,
        reader: Reader,
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
        """Store the intent: from now on other processes leave what it asks for to this batch."""
        await self._store.put_batch(batch, self._owner, self._policy.grace)

    async def create(
        self, batch: StoredBatch, lines: Sequence[bytes], busy: Callable[[], bool]
    ) -> StoredBatch:
        """Create a batch that is intended, and store its id.

        Parameters
        ----------
        batch : StoredBatch
        lines : sequence of bytes
            Its requests.
        busy : callable
            Whether other batches are under way, so that a provider that has enough of them will
            have room.

        Raises
        ------
        ProviderError
            The provider does not take it; nothing was created.
        UnknownOutcomeError
            It may have been created: `adopt` tells.
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
        """Create a batch, once: only after a refusal it is tried again."""
        tries, pause = 0, self._policy.first_poll
        while True:
            if not await self._store.claim_batch(batch.id, self._owner, self._policy.grace):
                raise NotAnsweredError(
                    "another process took the batch over before it was created: this one was "
                    f"halted for longer than BatchPolicy(grace={self._policy.grace:g})"
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
                _log.info("a batch was refused for now (%s); again in %.0f s", error, wait)
            await self._sleep(wait)
            pause = min(pause * _GROWTH, self._policy.longest_poll)

    async def adopt(self, batch: StoredBatch) -> StoredBatch | None:
        """Take over a batch whose creator may be no more; None: there is no such batch.

        Its creator is left in peace while it holds the batch.
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
        """Go on holding a batch for as long as this takes."""

        async def hold() -> None:
            while True:
                await asyncio.sleep(self._policy.grace / 3)
                # what is lost for want of a store is noticed before the batch is created
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
        """Wait for the end of a batch, store its answers, and end it in the store.

        Returns
        -------
        RemoteBatch
            As it ended.
        Outcomes
            Of all its requests.
        list of (TokenUsage or None), or None
            Of each answer; None: another process has counted them.

        Raises
        ------
        ProviderError
            The provider cannot be asked; the batch stays open.
        """
        remote = await self._ended(batch)
        joined = Joined(batch.id.hex(), unpack(batch.items), self._reader)
        if remote.error is None and remote.results:
            try:
                await self.api.read(remote, joined.take)
            except ProviderError as error:
                if error.status_code != _GONE:
                    raise
                _log.warning("the results of batch %s are gone at the provider", remote.id)
        standing = await self._keep(joined.stored(batch.scope))
        meter = Meter(self._price)
        for usage in joined.usages:
            meter.add(usage)
        first = await self._store.end_batch(batch.id, remote.status, meter.usage())
        outcomes: Outcomes = {}
        for item, found in joined.outcomes():
            for wanted, outcome in zip(item, found, strict=True):
                if isinstance(outcome, Exception):
                    outcome = remote.error or outcome  # noqa: PLW2901 - says more
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
        told = None
        while True:
            wait = None
            try:
                remote = await self.api.retrieve(batch.remote_id)
            except ProviderError as error:
                unknown = unknown + 1 if error.status_code == _GONE else 0
                if unknown == _GONE_AFTER:
                    _log.warning("batch %s is gone at the provider", batch.remote_id)
                    return RemoteBatch(batch.remote_id, "gone", ended=True, total=0, done=0)
                # hours are long: a provider that fails for minutes is no reason to give up
                if not unknown and (not error.retryable or failing > _PATIENCE):
                    raise
                failing += pause
            else:
                if told != (remote.status, remote.done):
                    told = remote.status, remote.done
                    _log.info("batch %s: %s, %d of %d", remote.id, *told, batch.requests)
                if remote.ended:
                    return remote
                failing, unknown, wait = 0.0, 0, remote.poll_after
            await self._sleep(pause if wait is None else wait)
            pause = min(pause * _GROWTH, self._policy.longest_poll)
