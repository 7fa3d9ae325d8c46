"""The batch lane of a client: requests are sent in batches, in as few rounds as possible."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from random import uniform
from typing import Any

from testnuc._dispatch.inflight import Ask, Outcome, none_key
from testnuc._dispatch.predictor import Predictor
from testnuc._dispatch.scheduler import Scheduler
from testnuc.batch.apis import AnthropicBatches, GeminiBatches, MistralBatches, OpenAIBatches
from testnuc.batch.base import BatchAPI, QueueFullError
from testnuc.batch.lifecycle import GROWTH, BatchLifecycle, Outcomes, UnknownOutcomeError
from testnuc.batch.manifest import ResponseReader, custom_id, pack, require_batches, unpack
from testnuc.batch.rounds import Pack, PendingBatch, RetryRounds, TokenQueue, packs, with_all_labels
from testnuc.errors import BudgetExceededError, InvalidInputError, ProviderError, StoreError
from testnuc.limits.budget import Price, Reservation
from testnuc.limits.policies import BatchPolicy
from testnuc.protocols import Store, StoredBatch, TokenUsage, WireProvider, implements
from testnuc.transport import AuxiliaryRequests, Transport
from testnuc.types import Usage

_log = logging.getLogger("testnuc.batch")

#: Seconds to wait on close for batches that are being created.
_DRAIN = 5.0
#: Most asks collected for a batch: in-flight asks are held in memory.
_MOST_ASKS = 100_000
#: Part of the provider's limit of bytes that is used: sizes are measured before the final encoding,
#: and requests are wrapped.
_FULL = 0.98
#: Requests encoded between two turns of the event loop.
_TURN = 500
#: Batch APIs, by the format that a provider names in ``batch_format``.
_FORMATS: dict[object, Callable[[Any, AuxiliaryRequests], BatchAPI]] = {
    "anthropic": AnthropicBatches,
    "gemini": GeminiBatches,
    "mistral": MistralBatches,
    "openai": OpenAIBatches,
}


def batch_api(provider: object, exchanges: AuxiliaryRequests) -> BatchAPI:
    """Return the batch API of a provider; raises `InvalidInputError` if it has none."""
    if not has_batches(provider):
        name = repr(getattr(provider, "name", type(provider).__name__))
        url = getattr(provider, "url", "")
        raise InvalidInputError(
            f"lane='batch' needs a provider with a batch API, and {name}{url and f' at {url}'} "
            f"names no supported batch_format ({', '.join(map(repr, _FORMATS))}); use an "
            "openai/.. or anthropic/.. model of their own APIs, or lane='live'"
        )
    return _FORMATS[provider.batch_format](provider, exchanges)  # type: ignore[attr-defined]


def has_batches(provider: object) -> bool:
    """Whether a provider has a supported batch API."""
    return getattr(provider, "batch_format", None) in _FORMATS


class _TakenError(Exception):
    """Another process, or the live lane, was first to ask for these keys of a batch."""


def _keys(batch: StoredBatch) -> set[bytes]:
    return {wanted.key for item in unpack(batch.items) for wanted in item}


@dataclass(eq=False, repr=False)
class BatchLane:
    """Predicts through a provider's batch API, with the keys of the live lane.

    A request has at most `per_call` texts. What the `live` lane has in flight is not sent here: its
    answers will be stored. It answers the rest with ``BatchPolicy(rest="live")``.
    """

    _predictor: Predictor
    store: InitVar[Store]
    _transport: Transport
    _: KW_ONLY
    policy: BatchPolicy
    price: Price | None
    per_call: int
    live: Scheduler

    def __post_init__(self, store: Store) -> None:
        predictor, policy = self._predictor, self.policy
        provider, labels = predictor.provider, predictor.labels
        self._api = batch_api(provider, self._transport.auxiliary)
        assert implements(provider, WireProvider)
        self._provider = provider
        self._store = require_batches(store)
        #: All that is needed to decode the results of a batch without its client.
        self._facts = {
            "provider": provider.name,
            "model": provider.model,
            "base_url": provider.identity,
            "batch_format": getattr(provider, "batch_format", None),
            "confidence": predictor.task.confidence,
            **labels.record(),
        }
        reader = ResponseReader(provider, predictor.task, labels)
        self._lifecycle = BatchLifecycle(
            self._api, reader, self._store, policy=policy, price=self.price
        )
        self._queue = TokenQueue(policy.max_enqueued_tokens)
        self._writing = asyncio.Lock()
        self._slots = asyncio.Semaphore(policy.in_flight)
        #: Batches that this client follows already.
        self._known: set[bytes] = set()
        #: Batches of this client that the provider has accepted, and that have not ended.
        self._open: set[bytes] = set()
        #: Batches that stayed open, and whose reservation was booked in full.
        self._booked: set[bytes] = set()
        #: The task that predicts a key.
        self._pending_keys: dict[bytes, asyncio.Task[Outcomes]] = {}
        self._tasks: set[asyncio.Task[Outcomes]] = set()
        self._creating: set[asyncio.Task[StoredBatch]] = set()
        self._most = min(policy.max_requests or self._api.max_requests, self._api.max_requests)
        #: Calls `answer` with as many asks as fill a batch.
        self.scheduler = Scheduler(
            self.answer,
            store,
            predictor.scope,
            meter=self._transport.meter,
            workers=policy.in_flight,
            per_call=min(self._most * self.per_call, _MOST_ASKS),
            # batches outlive the client: do not wait for them
            drain=0.0,
            mixed=True,
            holds_leases=False,
        )
        if not getattr(store, "durable", True):
            _log.warning(
                "the store is in memory: if this process exits before its batches end, their "
                "results are lost; use store='path.db'"
            )

    async def resume(self) -> None:
        """Follow the open batches of earlier and of other processes."""
        for batch in await self._store.batches(self._predictor.scope):
            if batch.id not in self._known:
                self._known.add(batch.id)
                self._begin(self._resumed(batch), _keys(batch))

    async def answer(self, asks: tuple[Ask, ...]) -> list[Outcome]:
        """Return a prediction or an error for each ask.

        Waits for open batches that contain an ask, and sends the others. Failed requests are then
        sent again, called live or given up, as the policy says.
        """
        outcomes: Outcomes = {}
        rounds = RetryRounds(self.policy, self._provider, self._predictor.task)
        left: Sequence[Ask] = asks
        while left:
            rounds.begin()
            for ask in left:
                outcomes.pop(ask.key, None)
            try:
                await self.resume()
                # in this order: a batch of another process is either open, and followed by now, or
                # it has ended, and its predictions are stored
                keys = [ask.key for ask in left if ask.key not in self._pending_keys]
                hits = zip(keys, await self._store.get_predictions(keys), strict=True)
                outcomes.update((key, hit) for key, hit in hits if hit is not None)
            except Exception as error:  # noqa: BLE001 - earlier rounds keep their answers
                outcomes.update((ask.key, error) for ask in left)
                break
            left = [ask for ask in left if ask.key not in outcomes]
            told = zip(left, await self._predictor.none_chosen(left), strict=True)
            left = [with_all_labels(ask) if none else ask for ask, none in told]
            free = [ask for ask in left if ask.key not in self.live.requests]
            outcomes.update(await self._round(free, rounds.alone))
            # others ask for them; their answers will be stored
            taken = any(ask.key not in outcomes for ask in left)
            left = rounds.again(left, outcomes)
            if left and (taken or rounds.queue_full_rounds > 1):
                pause = self.policy.first_poll * GROWTH**rounds.queue_full_rounds
                # two processes that gave way to each other must not do so again
                await asyncio.sleep(min(pause, self.policy.longest_poll) * uniform(0.5, 1))  # noqa: S311
        if self.policy.rest == "live":
            outcomes.update(await self._ask_live(rounds.rest))
        return [outcomes[ask.key] for ask in asks]

    async def close(self) -> None:
        """Wait for creations in flight; open batches stay open."""
        try:
            if self._creating:
                await asyncio.wait(self._creating, timeout=_DRAIN)
        finally:
            # also where the caller of `aclose` is cancelled: nothing is sent after it
            tasks = [*self._tasks, *self._creating]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _round(self, asks: Sequence[Ask], alone: set[bytes]) -> Outcomes:
        """Return the outcomes of open batches and of those that are created now."""
        # in the order of the asks, each once
        tasks = {self._pending_keys[a.key]: None for a in asks if a.key in self._pending_keys}
        others = [ask for ask in asks if ask.key not in self._pending_keys]
        async for load in self._loads(packs(others, self.per_call, frozenset(alone))):
            await self._slots.acquire()
            # others are of another process, adopted meanwhile: left out when this is sent
            keys = [ask.key for pack in load.packs for ask in pack]
            free = [key for key in keys if key not in self._pending_keys]
            alone.update(pack[0].key for pack in load.packs if len(pack) == 1)
            task = self._begin(self._run_batch(load), free)
            task.add_done_callback(lambda _: self._slots.release())
            tasks[task] = None
        wanted = {ask.key for ask in asks}
        outcomes: Outcomes = {}
        for task in tasks:
            # a cancelled run does not end its batches: other runs may wait for them
            found = await asyncio.shield(task)
            outcomes.update((key, found[key]) for key in wanted & found.keys())
        return outcomes

    def _begin(self, work: Awaitable[Outcomes], keys: Collection[bytes]) -> asyncio.Task[Outcomes]:
        async def run() -> Outcomes:
            try:
                return await work
            except (ProviderError, StoreError) as error:
                # other batches of the round keep their answers
                _log.warning("a batch of %d texts failed: %s", len(keys), error)
                return dict.fromkeys(keys, error)
            finally:
                for key in keys:
                    # a batch of another process that was adopted meanwhile may predict it
                    if self._pending_keys.get(key) is task:
                        del self._pending_keys[key]

        task = asyncio.create_task(run(), name="testnuc-batch")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        self._pending_keys.update(dict.fromkeys(keys, task))
        return task

    def _ended(self, task: asyncio.Task[Outcomes]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("a batch stays open for the next run: %s", error)

    async def _loads(self, requests: Iterable[Pack]) -> AsyncIterator[PendingBatch]:
        """Yield batches as full as the limits allow; a larger request gets its own batch.

        Each request is encoded twice, for its size and for the upload: all pending requests
        together may not fit into memory.
        """
        most_bytes, most_tokens = int(_FULL * self._api.max_bytes), self._queue.limit
        load = PendingBatch()
        for done, asks in enumerate(requests, 1):
            part = self._predictor.part(asks)
            sent, received = self._provider.reserve(self._predictor.request(asks, part))
            size = len(self._line(load, len(load.packs), asks))
            full = (
                len(load.packs) >= self._most
                or load.size + size > most_bytes
                or (most_tokens is not None and load.input_tokens + sent > most_tokens)
            )
            if full and load.packs:
                yield load
                load = PendingBatch()
            load.packs.append(asks)
            load.partial.append(part is not None)
            load.size += size
            load.input_tokens += sent
            load.output_tokens += received
            load.largest = max(load.largest[0], sent), max(load.largest[1], received)
            if self.price is not None:
                load.pico_usd += self.price.worst(sent, received)
            if done % _TURN == 0:
                await asyncio.sleep(0)
        if load.packs:
            yield load

    async def _lines(self, load: PendingBatch) -> list[bytes]:
        lines: list[bytes] = []
        for number, asks in enumerate(load.packs):
            lines.append(self._line(load, number, asks))
            if number % _TURN == 0:
                await asyncio.sleep(0)
        return lines

    def _line(self, load: PendingBatch, number: int, asks: Pack) -> bytes:
        body = self._provider.encode(self._predictor.request(asks, self._predictor.part(asks)))
        return self._api.line(custom_id(load.id.hex(), number), body)

    async def _resumed(self, batch: StoredBatch) -> Outcomes:
        try:
            adopted = await self._lifecycle.adopt(batch)
            if adopted is None:
                return {}
            _, outcomes, usages = await self._lifecycle.follow(adopted)
        except BaseException:
            self._known.discard(batch.id)
            raise
        if usages is not None:
            self._count(usages, None, booked=batch.id in self._booked)
        return outcomes

    async def _run_batch(self, load: PendingBatch) -> Outcomes:
        """Run a batch, or smaller ones in turn if the budget requires it."""
        try:
            reservation = await self._transport.account.reserve(
                load.pico_usd, load.input_tokens + load.output_tokens, len(load.packs), batch=True
            )
        except BudgetExceededError as error:
            if len(load.packs) == 1:
                return {ask.key: error for ask in load.packs[0]}
            half = len(load.packs) // 2
            return await self._in_parts(load.packs[:half], load.packs[half:])
        await self._queue.acquire(load.input_tokens)
        try:
            return await self._created_and_followed(load, reservation)
        except _TakenError as error:
            (taken,) = error.args
            left = [tuple(ask for ask in pack if ask.key not in taken) for pack in load.packs]
        finally:
            self._queue.release(load.input_tokens)
        return await self._in_parts(filter(None, left))

    async def _in_parts(self, *parts: Iterable[Pack]) -> Outcomes:
        outcomes: Outcomes = {}
        for part in parts:
            async for smaller in self._loads(part):
                outcomes.update(await self._run_batch(smaller))
        return outcomes

    async def _created_and_followed(self, load: PendingBatch, reservation: Reservation) -> Outcomes:
        account = self._transport.account
        scope, facts = self._predictor.scope, {**self._facts, "tokens": load.largest}
        n, items = len(load.packs), pack(load.items)
        batch = StoredBatch(load.id, scope, facts, n, time.time(), items)
        self._known.add(batch.id)
        # unless it was certainly not billed, the reservation is booked in full
        billed = False
        try:
            try:
                batch = await self._created(batch, load)
            except UnknownOutcomeError as failed:
                billed = True
                adopted = await self._lifecycle.adopt(batch)
                if adopted is None:
                    billed = False
                    raise failed.error from None
                batch = adopted
            billed = True
            self._open.add(batch.id)
            remote, outcomes, usages = await self._lifecycle.follow(batch)
        except BaseException:
            self._known.discard(batch.id)
            (account.keep if billed else account.release)(reservation)
            if billed:
                self._booked.add(batch.id)
            raise
        finally:
            self._open.discard(batch.id)
        if isinstance(remote.error, QueueFullError):
            self._queue.refused(remote.error.limit)
        elif outcomes:
            self._queue.accepted()
        if usages is not None:
            self._count(usages, reservation)
        else:
            account.release(reservation)
        return outcomes

    async def _created(self, batch: StoredBatch, load: PendingBatch) -> StoredBatch:
        # one at a time: the requests may take hundreds of megabytes
        async with self._writing:
            batch = replace(batch, created=time.time())
            keys = [ask.key for pack in load.packs for ask in pack]
            try:
                taken = set(keys) - await self.scheduler.lease(keys)
                taken |= self.live.requests.keys() & keys
                if not taken:
                    await self._lifecycle.intend(batch)
                    if taken := await self._taken(batch):
                        await self._store.end_batch(batch.id, "never created", Usage())
            finally:
                # other batch lanes see the intent; live lanes must not wait for hours
                self.scheduler.release(keys)
            if taken:
                raise _TakenError(taken)
            lines = await self._lines(load)
            work = self._lifecycle.create(batch, lines, lambda: bool(self._open))
            creating = asyncio.create_task(work)
            del lines
            self._creating.add(creating)
            creating.add_done_callback(self._creating.discard)
            # do not cancel between the creation and storing its id
            return await asyncio.shield(creating)

    async def _taken(self, batch: StoredBatch) -> set[bytes]:
        """Return the texts of a batch that another process sends, or has, since this one looked.

        Of two that are meant to be created at the same time, the one that sees the other is not,
        perhaps both: their times are of clocks that may differ, or were set.
        """
        items = [wanted for item in unpack(batch.items) for wanted in item]
        keys, mine = {wanted.key for wanted in items}, asyncio.current_task()
        taken = {key for key in keys if self._pending_keys.get(key) is not mine}
        for other in await self._store.batches(batch.scope):
            if other.id not in self._known:
                taken |= keys & _keys(other)
        stored = {wanted.key: wanted.key for wanted in items if wanted.key not in taken}
        stored |= {none_key(wanted.key): wanted.key for wanted in items if wanted.partial}
        hits = await self._store.get_predictions(list(stored))
        return taken.union(key for key, hit in zip(stored.values(), hits, strict=True) if hit)

    def _count(
        self,
        usages: Sequence[TokenUsage | None],
        reservation: Reservation | None,
        *,
        booked: bool = False,
    ) -> None:
        """Count the usage of a batch, and settle its reservation, if it is not `booked`."""
        usd = tokens = uncounted = unpriced = 0
        for usage in usages:
            cost = self._transport.meter.add(usage, self.price)
            usd += cost or 0
            # a service tier may have no known price
            unpriced += cost is None
            uncounted += usage is None
            tokens += 0 if usage is None else usage.input_tokens + usage.output_tokens
        account = self._transport.account
        if booked:
            return
        if reservation is None:
            account.book(usd, tokens, len(usages))
            return
        if unpriced or uncounted:
            # billed with unknown usage: their part of the reservation is spent
            most_usd, most_tokens, requests = reservation.amounts
            usd += -(-most_usd * unpriced // requests)
            tokens += -(-most_tokens * uncounted // requests)
        account.settle(reservation, usd, tokens, len(usages))

    async def _ask_live(self, asks: Sequence[Ask]) -> Outcomes:
        """Ask the live lane, which shares its stored answers and its requests in flight."""
        outcomes: Outcomes = {}
        try:
            async with aclosing(self.live.run(asks)) as answers:
                async for ask, outcome in answers:
                    outcomes[ask.key] = outcome
        except Exception as error:  # noqa: BLE001 - of the texts without an outcome alone
            for ask in asks:
                outcomes.setdefault(ask.key, error)
        return outcomes
