"""List, resume and cancel the batches of a store, without a client.

The store has provider, model and labels of each batch. The API key comes from the environment.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from testnuc import providers
from testnuc._base.checks import is_loopback
from testnuc.batch.base import RemoteBatch
from testnuc.batch.lane import batch_api
from testnuc.batch.lifecycle import BatchLifecycle
from testnuc.batch.manifest import ResponseReader, require_batches
from testnuc.errors import ConfigurationError, InvalidInputError, StoreError, TestNUCError
from testnuc.labels import LabelSet
from testnuc.limits.budget import Price
from testnuc.limits.policies import BatchPolicy
from testnuc.protocols import Store, StoredBatch, WireProvider
from testnuc.transport import Transport
from testnuc.transport.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class BatchState:
    """A stored batch, and its state at the provider."""

    batch: StoredBatch
    #: None if unknown, or if the batch does not exist.
    remote: RemoteBatch | None = None
    #: Why the provider could not be reached.
    error: TestNUCError | None = None


class BatchManager:
    """Manages the batches of a store; use it as ``async with``.

    `base_url` is the address of the batches. A store does not decide where the key is sent: without
    this, it is the provider's own, that of the environment, or one of this machine.
    """

    def __init__(self, store: Store, base_url: str | None = None) -> None:
        self._store = require_batches(store)
        self._base_url = base_url
        self._transport = Transport()
        #: By provider, model, base URL and scope: batches of a run share one.
        self._lifecycles: dict[tuple[object, ...], BatchLifecycle] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._transport.aclose()

    async def pick(self, names: Sequence[str] = ()) -> list[StoredBatch]:
        """Return the open batches whose id starts with a name, or whose provider's id is one.

        Each name must match one open batch.
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
                    f"{what} in the store match the id {name!r}; see `testnuc batch list`"
                )
            picked[found[0].id] = found[0]
        return list(picked.values())

    async def states(self, *, ended: bool = False) -> list[BatchState]:
        """Return the open batches, or with `ended` all; polls the providers."""
        batches = await self._store.batches(ended=ended)
        return list(await asyncio.gather(*(self._state(batch) for batch in batches)))

    async def _state(self, batch: StoredBatch) -> BatchState:
        if batch.outcome is not None or batch.remote_id is None:
            return BatchState(batch)
        try:
            return BatchState(batch, await self._lifecycle(batch).api.retrieve(batch.remote_id))
        except TestNUCError as error:
            return BatchState(batch, error=error)

    async def resume(
        self, batches: Sequence[StoredBatch], on_end: Callable[[BatchState], None]
    ) -> list[BatchState]:
        """Wait for the end of batches, and store their predictions; return their final states.

        `on_end` is called with each batch when it has ended or failed. A batch that was never
        created has no `remote`.
        """

        async def one(batch: StoredBatch) -> BatchState:
            remote = None
            try:
                lifecycle = self._lifecycle(batch)
                adopted = await lifecycle.adopt(batch)
                if adopted is not None:
                    remote, _, _ = await lifecycle.follow(adopted)
            except TestNUCError as error:
                state = BatchState(batch, error=error)
            else:
                of_scope = await self._store.batches(batch.scope, ended=True)
                now = [b for b in of_scope if b.id == batch.id]
                state = BatchState(now[0] if now else batch, remote)
            on_end(state)
            return state

        return list(await asyncio.gather(*(one(batch) for batch in batches)))

    async def cancel(self, batch: StoredBatch) -> BatchState:
        """Cancel a batch; completed requests are billed."""
        if batch.remote_id is None:
            raise InvalidInputError(
                f"batch {batch.id.hex()} has no provider id yet; `testnuc batch resume` finds "
                "out whether it was created"
            )
        return BatchState(batch, await self._lifecycle(batch).api.cancel(batch.remote_id))

    def _lifecycle(self, batch: StoredBatch) -> BatchLifecycle:
        facts = batch.facts
        try:
            name, model, base_url = facts["provider"], facts["model"], facts["base_url"]
            known = (name, model, base_url, batch.scope)
            if known not in self._lifecycles:
                provider = self._provider(f"{name}/{model}", str(base_url))
                if "batch_format" in facts:
                    provider.batch_format = facts["batch_format"]  # type: ignore[attr-defined]
                labels = LabelSet.of(facts)
                # decoding needs no prompt
                task = labels.task("", confidence=facts["confidence"])
                self._lifecycles[known] = BatchLifecycle(
                    batch_api(provider, self._transport.auxiliary),
                    ResponseReader(provider, task, labels),
                    self._store,
                    policy=BatchPolicy(),
                    price=Price.of(name, model, provider.url, batch=True),
                )
            return self._lifecycles[known]
        except TestNUCError:
            raise
        except (KeyError, TypeError, ValueError) as exc:
            raise StoreError(
                f"the stored batch {batch.id.hex()} is damaged: {exc!r:.200}; look for it at the "
                "provider"
            ) from exc

    def _provider(self, model: str, address: str) -> WireProvider:
        provider = providers.resolve(model, base_url=self._base_url)
        if provider.identity == address:
            return provider
        if self._base_url is None and is_loopback(Endpoint.parse(address).host):
            return providers.resolve(model, base_url=address)
        raise ConfigurationError(
            f"the store has a batch at {address}, and the key would be sent there; if that is "
            f"right, name it: --base-url {address}"
        )
