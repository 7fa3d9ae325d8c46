"""The fan-out: distinct questions to a bounded set of workers, none asked twice.

A run hands in asks; what is stored is answered from the store, what another run is already asking
is shared, and the rest goes to workers that belong to the client, not to the run: when a run is
cancelled, calls that were sent go on, because they are paid for, and their answers are stored.

Where the store has leases, only what is leased goes to the workers; what another process has leased
waits until its answer is in the store, or until the lease is free.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, cast

from testnuc._dispatch.inflight import Ask, Entry, InFlight, Run
from testnuc._dispatch.leases import LEASE_SECONDS, Leases, LeaseStore
from testnuc.errors import BadRequestError, ProviderError, StoreError
from testnuc.protocols import StoredPrediction
from testnuc.transport import telemetry

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from testnuc._dispatch.inflight import Done, Outcome
    from testnuc.limits import Meter
    from testnuc.protocols import Store
    from testnuc.types import Prediction

__all__ = ["Ask", "Scheduler"]

#: Asks looked up in the store at a time.
_CHUNK = 256


class Scheduler:
    """Answers asks from the store or by `answer`, with a bounded number of workers.

    Parameters
    ----------
    answer : callable
        Awaitable outcomes, a `Prediction` or an exception each, of a tuple of asks.
    store : Store
    scope : bytes
        Stored with each prediction.
    meter : Meter
        Counts predictions that were stored or already asked for.
    workers : int
        Most calls of `answer` at a time, but for those that wait for a next try; see `lend`.
    per_call : int
        Most asks given to one call of `answer`.
    drain : float
        Seconds that `close` waits for calls that were sent.
    sleep : callable
        What waits between two looks for what other processes ask.
    lease_factor : float
        How many times longer than the store says leases last.
    mixed : bool
        Whether one call of `answer` may hold several asks about one text, and some with examples.
    board : InFlight, optional
        Shared with other fan-outs over the same keys.
    """

    def __init__(
        self,
        answer: Callable[[tuple[Ask, ...]], Awaitable[Sequence[Outcome]]],
        store: Store,
        scope: bytes,
        *,
        meter: Meter,
        workers: int,
        per_call: int = 1,
        drain: float = 5.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        lease_factor: float = 1.0,
        mixed: bool = False,
        board: InFlight | None = None,
    ) -> None:
        self._answer = answer
        self._store = store
        self._scope = scope
        self._meter = meter
        self._limit = workers
        self._per_call = per_call
        self._low_water = per_call if mixed else workers * per_call
        self._drain = drain
        self._mixed = mixed
        self._board = board or InFlight()
        self._entries = self._board.entries
        #: Runs with a queue, served in turn so that a short one does not wait for a long one.
        self._turns: deque[Run] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        #: Workers whose call waits for its next try.
        self._lent = 0
        self._closed = False
        self._ever_answered = False
        self._claims: set[asyncio.Task[None]] = set()
        self._leasing: Leases | None = None
        if callable(getattr(store, "lease", None)):
            self._leasing = Leases(
                cast("LeaseStore", store),
                granted=self._grant,
                answered=self._answered_elsewhere,
                failed=self._fail,
                seconds=lease_factor * getattr(store, "lease_seconds", LEASE_SECONDS),
                sleep=sleep,
            )

    async def run(self, asks: Iterable[Ask] | AsyncGenerator[list[Ask], None], done: Done) -> None:
        """Get an outcome for each ask and pass it to `done`, in the order they come.

        Asks are taken as workers get free, so that a generator of millions stays one. An
        asynchronous one gives them in lists, and may itself call `run` for what they depend on.
        `done` is called from whatever task has the outcome; it must be quick and not raise.

        Raises
        ------
        ProviderError
            Every further call would fail: a wrong key, an unknown model, a request of the wrong
            form.
        StoreError
            The store failed.
        """
        # asks that come with time could wait for one of their own that is held back
        run = Run(done, feeding=isinstance(asks, Iterable))
        chunks = _chunks(asks) if isinstance(asks, Iterable) else asks
        try:
            async for chunk in chunks:
                await self._claim(run, chunk)
                # where all is stored, in memory, nothing has made anybody wait yet
                await asyncio.sleep(0)
                # hold back the next chunk until the workers are about to run out of work
                while len(run.queue) > self._low_water and run.failure is None:
                    await self._change(run)
                if run.failure is not None:
                    raise run.failure
            run.feeding = False
            self._hire()
            while run.open and run.failure is None:
                await self._change(run)
            if run.failure is not None:
                raise run.failure
        finally:
            await chunks.aclose()
            if run.open:
                self._abandon(run)

    @staticmethod
    async def _change(run: Run) -> None:
        run.changed.clear()
        await run.changed.wait()

    async def _claim(self, run: Run, asks: list[Ask]) -> None:
        board = self._board
        board.reading += 1
        try:
            stored = await self._store.get_predictions([ask.key for ask in asks])
        finally:
            board.reading -= 1
            fresh = board.fresh
            if not board.reading:
                board.fresh = {}
        # nothing is awaited in this loop: what is claimed here cannot be claimed by another run
        new: list[Entry] = []
        for ask, hit in zip(asks, stored, strict=True):
            prediction = hit if hit is not None else fresh.get(ask.key)
            if prediction is not None:
                self._meter.store_hits += 1
                run.done(ask, prediction)
                continue
            run.open += 1
            entry = self._entries.get(ask.key)
            if entry is None:
                self._entries[ask.key] = entry = Entry(ask, run)
                new.append(entry)
            else:
                self._meter.coalesced += 1
                entry.waiters.append((run, ask))
        if self._leasing is None:
            self._enqueue(new)
        elif new:
            # it goes on without a run that is cancelled: others may have joined what it claimed
            task = asyncio.create_task(self._lease(self._leasing, new), name="testnuc-claim")
            self._claims.add(task)
            task.add_done_callback(self._claims.discard)
            await asyncio.shield(task)

    def _enqueue(self, entries: Iterable[Entry]) -> None:
        """Give entries to the workers, in the name of who wanted them first."""
        for entry in entries:
            run = entry.waiters[0][0]
            run.queue.append(entry)
            if run not in self._turns:
                self._turns.append(run)
        self._hire()

    async def _lease(self, leasing: Leases, entries: list[Entry]) -> None:
        keys = [entry.ask.key for entry in entries]
        try:
            mine = await leasing.claim(keys)
        except Exception as exc:  # noqa: BLE001 - it stops the runs that wait
            self._fail(keys, exc)
            return
        self._grant([key for key in keys if key in mine])
        leasing.done([key for key in keys if key not in self._entries], stored=False)

    def _grant(self, keys: list[bytes]) -> None:
        """Queue what is ours to ask, as far as somebody still waits for it."""
        assert self._leasing is not None
        wanted = [] if self._closed else [key for key in keys if key in self._entries]
        self._leasing.done(set(keys).difference(wanted), stored=False)
        self._enqueue(self._entries[key] for key in wanted)

    def _answered_elsewhere(self, key: bytes, prediction: Prediction) -> None:
        entry = self._entries.get(key)
        if entry is not None and not entry.sent:
            self._meter.store_hits += 1
            self._settle([entry], [prediction])

    def _fail(self, keys: list[bytes], error: Exception) -> None:
        if not isinstance(error, StoreError):
            cause, error = error, StoreError(f"leases failed: {error}")
            error.__cause__ = cause
        entries = [e for key in keys if (e := self._entries.get(key)) is not None and not e.sent]
        self._settle(entries, [error] * len(entries))

    def release(self, keys: Iterable[bytes]) -> None:
        """Let other processes ask for keys that are being asked for here."""
        if self._leasing is not None:
            self._leasing.done(keys, stored=False)

    def lend(self, workers: int) -> None:
        """Let others work while so many more workers (fewer, if negative) wait for a next try.

        A failed call would otherwise keep its place from others for as long as it waits. How many
        calls are in flight is bounded elsewhere; here they may at most be twice as many.
        """
        self._lent += workers
        if workers > 0:
            self._hire()

    @property
    def _most(self) -> int:
        return self._limit + min(self._lent, self._limit)

    def _hire(self) -> None:
        free = self._most - len(self._workers)
        if self._closed or free <= 0:
            return
        queued = sum(len(run.queue) for run in self._turns)
        for _ in range(min(free, -(-queued // self._per_call))):
            worker = asyncio.create_task(self._work(), name="testnuc-worker")
            self._workers.add(worker)

    async def _work(self) -> None:
        try:
            while len(self._workers) <= self._most and (bundle := self._take()):
                await self._serve(bundle)
        finally:
            # in the same step in which it found no work: else `_hire` would still count on it
            worker = asyncio.current_task()
            assert worker is not None
            self._workers.discard(worker)

    def _take(self) -> list[Entry]:
        """Return up to `per_call` queued entries of distinct texts that fit in one call."""
        bundle: list[Entry] = []
        hashes: set[bytes] = set()
        for _ in range(len(self._turns)):
            run = self._turns[0]
            held_back = run.feeding and len(run.queue) < self._per_call
            while run.queue and len(bundle) < self._per_call and not held_back:
                ask = run.queue[0].ask
                apart = not self._mixed and (ask.demonstrations or ask.text_hash in hashes)
                if bundle and apart:
                    break
                entry = run.queue.popleft()
                entry.sent = True
                bundle.append(entry)
                hashes.add(ask.text_hash)
                if ask.demonstrations and not self._mixed:
                    break
            if len(run.queue) <= self._low_water:
                run.changed.set()
            self._turns.rotate(-1)
            if not run.queue:
                self._turns.remove(run)
            if bundle:
                break
        return bundle

    async def _serve(self, bundle: list[Entry]) -> None:
        context = bundle[0].waiters[0][0].context if bundle[0].waiters else None
        if context is not None:
            # a worker serves many runs; its call is part of the trace of the one that wanted it
            telemetry.attach(context)
        try:
            outcomes = await self._answer(tuple(entry.ask for entry in bundle))
        except Exception as exc:  # noqa: BLE001 - handed to whoever waits for it
            outcomes = [exc] * len(bundle)
        except BaseException:
            # cancelled by `close`: nobody is left to hear of it but those who still wait
            self._settle(bundle, [asyncio.CancelledError()] * len(bundle))
            raise
        answered = [
            (entry, outcome)
            for entry, outcome in zip(bundle, outcomes, strict=True)
            if not isinstance(outcome, Exception)
        ]
        kept: dict[bytes, Prediction] = {}
        broken: Exception | None = None
        if answered:
            self._ever_answered = True
            try:
                standing = await self._keep([(e.ask, prediction) for e, prediction in answered])
            except Exception as exc:  # noqa: BLE001 - it stops the runs that wait
                broken = exc if isinstance(exc, StoreError) else StoreError(f"not stored: {exc}")
                broken.__cause__ = exc
            else:
                kept = {e.ask.key: p for (e, _), p in zip(answered, standing, strict=True)}
                if self._board.reading:
                    self._board.fresh.update(kept)
        self._settle(
            bundle,
            [
                o if isinstance(o, Exception) else (broken or kept[e.ask.key])
                for e, o in zip(bundle, outcomes, strict=True)
            ],
        )

    async def _keep(self, answered: list[tuple[Ask, Prediction]]) -> list[Prediction]:
        rows = [
            StoredPrediction(ask.key, self._scope, ask.text_hash, ask.sample, prediction)
            for ask, prediction in answered
        ]
        return await self._store.put_predictions(rows)

    def _settle(self, bundle: list[Entry], outcomes: Sequence[Outcome | BaseException]) -> None:
        for entry, outcome in zip(bundle, outcomes, strict=True):
            self._entries.pop(entry.ask.key, None)
            if self._leasing is not None:
                self._leasing.done([entry.ask.key], stored=not isinstance(outcome, BaseException))
            for run, ask in entry.waiters:
                run.open -= 1
                if isinstance(outcome, Exception):
                    if run.failure is None and self._stops_the_run(outcome):
                        run.failure = outcome
                    run.done(ask, outcome)
                elif isinstance(outcome, BaseException):
                    run.failure = run.failure or ProviderError("the client was closed")
                else:
                    run.done(ask, outcome)
                if not run.open or run.failure is not None:
                    run.changed.set()

    def _stops_the_run(self, error: Exception) -> bool:
        if isinstance(error, StoreError):
            return True
        if isinstance(error, BadRequestError):
            # the form of the requests is right once any was answered: then it is this text's fault
            return error.fatal and not self._ever_answered
        return isinstance(error, ProviderError) and error.fatal

    def _abandon(self, run: Run) -> None:
        """Forget a run that no longer waits; what others wait for goes on."""
        if run in self._turns:
            self._turns.remove(run)
        for entry in list(self._entries.values()):
            entry.waiters = [(r, ask) for r, ask in entry.waiters if r is not run]
            if entry.sent:
                continue
            if not entry.waiters:
                del self._entries[entry.ask.key]
                if self._leasing is not None:
                    self._leasing.done([entry.ask.key], stored=False)
            elif entry in run.queue:
                heir = entry.waiters[0][0]
                heir.queue.append(entry)
                if heir not in self._turns:
                    self._turns.append(heir)
        run.queue.clear()
        self._hire()

    async def close(self) -> None:
        """Wait for calls that were sent, at most `drain` seconds, and end the workers."""
        self._closed = True
        for entry in [entry for entry in self._entries.values() if not entry.sent]:
            del self._entries[entry.ask.key]
            for run, _ in entry.waiters:
                run.queue.clear()
                run.failure = run.failure or ProviderError("the client was closed")
                run.changed.set()
        self._turns.clear()
        try:
            if self._workers:
                await asyncio.wait(self._workers, timeout=self._drain)
        finally:
            late = tuple(self._workers)
            for worker in late:
                worker.cancel()
            await asyncio.gather(*late, return_exceptions=True)
            if self._leasing is not None:
                await asyncio.gather(*self._claims, return_exceptions=True)
                await self._leasing.close()


async def _chunks(asks: Iterable[Ask]) -> AsyncGenerator[list[Ask], None]:
    pending = iter(asks)
    while chunk := list(islice(pending, _CHUNK)):
        yield chunk
