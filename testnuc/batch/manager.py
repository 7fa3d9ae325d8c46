"""Batches without a client: to look at them, to go on with them, to cancel them.

A store holds what it takes: provider, model and labels of each batch. The key comes from the
environment.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from testnuc import providers
from testnuc.batch.base import RemoteBatch
from testnuc.batch.decoding import Reader
from testnuc.batch.lifecycle import BatchLifecycle
from testnuc.batch.manifest import require_batches
from testnuc.batch.registry import batch_api
from testnuc.errors import InvalidInputError, TestNUCError
from testnuc.labels import LabelSet
from testnuc.limits import BatchPolicy, Price
from testnuc.protocols import Task
from testnuc.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import TracebackType

    from testnuc.protocols import Store, StoredBatch

__all__ = ["BatchManager", "BatchState"]


@dataclass(frozen=True, slots=True)
class BatchState:
    """A batch in the store, and what its provider says of it."""

    batch: StoredBatch
    #: None: not asked, or not there.
    remote: RemoteBatch | None = None
    #: Why the provider could not be asked.
    error: TestNUCError | None = None


class BatchManager:
    """Tends the batches of a store; use it as ``async with``.

    Parameters
    ----------
    store : Store
        Open.
    policy : BatchPolicy, optional
        How often to look.
    sleep : callable
        For tests.
    """

    def __init__(
        self,
        store: Store,
        *,
        policy: BatchPolicy | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = require_batches(store)
        self._policy = policy or BatchPolicy()
        self._sleep = sleep
        self._transport = Transport()
        #: By provider, base URL, model and scope: batches of a run share one.
        self._couriers: dict[tuple[object, ...], BatchLifecycle] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._transport.aclose()

    async def pick(self, names: Sequence[str] = ()) -> list[StoredBatch]:
        """Return the open batches whose id, or provider's id, begins like one of the names.

        Raises
        ------
        InvalidInputError
            A name fits no open batch, or several.
        """
        batches = await self._store.batches()
        if not names:
            return batches
        picked = {}
        for name in names:
            found = [
                batch
                for batch in batches
                if batch.id.hex().startswith(name) or (batch.remote_id or "") == name
            ]
            if len(found) != 1:
                what = "no open batch" if not found else f"{len(found)} open batches"
                raise InvalidInputError(
                    f"{what} in the store has the id {name!r}; `testnuc batch list` tells them"
                )
            picked[found[0].id] = found[0]
        return list(picked.values())

    async def states(self, *, ended: bool = False) -> list[BatchState]:
        """Return all open batches, and with `ended` all others, too; asks the providers."""
        batches = await self._store.batches(ended=ended)
        return list(await asyncio.gather(*(self._state(batch) for batch in batches)))

    async def _state(self, batch: StoredBatch) -> BatchState:
        if batch.outcome is not None or batch.remote_id is None:
            return BatchState(batch)
        try:
            return BatchState(batch, await self._courier(batch).api.retrieve(batch.remote_id))
        except TestNUCError as error:
            return BatchState(batch, error=error)

    async def resume(
        self, batches: Sequence[StoredBatch], told: Callable[[BatchState], None]
    ) -> list[BatchState]:
        """Wait for the end of batches, and put their answers in the store.

        Parameters
        ----------
        batches : sequence of StoredBatch
        told : callable
            Told each one when it has ended, or why it could not be followed.

        Returns
        -------
        list of BatchState
            As they ended. A batch that was never created has no remote one.
        """

        async def one(batch: StoredBatch) -> BatchState:
            state = await self._resumed(batch)
            told(state)
            return state

        return list(await asyncio.gather(*(one(batch) for batch in batches)))

    async def _resumed(self, batch: StoredBatch) -> BatchState:
        remote = None
        try:
            courier = self._courier(batch)
            adopted = await courier.adopt(batch)
            if adopted is not None:
                remote, _, _ = await courier.follow(adopted)
        except TestNUCError as error:
            return BatchState(batch, error=error)
        now = [b for b in await self._store.batches(batch.scope, ended=True) if b.id == batch.id]
        return BatchState(now[0] if now else batch, remote)

    async def cancel(self, batch: StoredBatch) -> BatchState:
        """Ask the provider to end a batch early; what it has done stays, and is billed."""
        if batch.remote_id is None:
            raise InvalidInputError(
                f"batch {batch.id.hex()} has no id at its provider yet; `testnuc batch resume` "
                "looks whether it was created"
            )
        return BatchState(batch, await self._courier(batch).api.cancel(batch.remote_id))

    def _courier(self, batch: StoredBatch) -> BatchLifecycle:
        facts = batch.facts
        name, model, base_url = facts["provider"], facts["model"], facts["base_url"]
        known = (name, model, base_url, batch.scope)
        if known not in self._couriers:
            provider = providers.resolve(f"{name}/{model}", base_url=base_url)
            labels = LabelSet(facts["labels"], none_label=facts["none_label"])
            # to read answers it takes no prompt
            task = Task("", labels.names, confidence=facts["confidence"])
            self._couriers[known] = BatchLifecycle(
                batch_api(provider, self._transport.exchanges),
                Reader(provider, task, labels),
                self._store,
                policy=self._policy,
                price=Price.of(name, model, provider.url, batch=True),
                sleep=self._sleep,
            )
        return self._couriers[known]
