"""The fan-out: distinct questions to a bounded set of workers, none asked twice.

A run hands in asks; what is stored is answered from the store, what another run is already asking
is shared, and the rest goes to workers that belong to the client, not to the run: when a run is
cancelled, calls that were sent go on, because they are paid for, and their answers are stored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from testnuc.errors import BadRequestError, ProviderError, StoreError
from testnuc.protocols import StoredPrediction

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from testnuc.limits import Meter
    from testnuc.prompts import Demonstration
    from testnuc.protocols import Store
    from testnuc.results import Prediction

    Outcome = Prediction | Exception
    Done = Callable[["Ask", Outcome], None]

__all__ = ["Ask", "Fanout"]

#: Asks looked up in the store at a time.
_CHUNK = 512


class Ask:
    """One question: the label of one text, for the `sample`-th time.

    Parameters
    ----------
    key : bytes
        Hash of all that can change the answer.
    text : str
    text_hash : bytes
    place : int
        The caller's own number of the text.
    sample : int
    demonstrations : tuple of Demonstration
    """

    __slots__ = ("demonstrations", "key", "place", "sample", "text", "text_hash")

    def __init__(
        self,
        key: bytes,
        text: str,
        text_hash: bytes,
        place: int,
        sample: int = 0,
        demonstrations: tuple[Demonstration, ...] = (),
    ) -> None:
        self.key = key
        self.text = text
        self.text_hash = text_hash
        self.place = place
        self.sample = sample
        self.demonstrations = demonstrations


class _Run:
    """What one caller waits for."""

    __slots__ = ("changed", "done", "failure", "open", "queue")

    def __init__(self, done: Done) -> None:
        self.done = done
        #: Claimed by this run and not yet taken by a worker.
        self.queue: deque[_Entry] = deque()
        #: Asks that have no outcome yet.
        self.open = 0
        self.failure: Exception | None = None
        self.changed = asyncio.Event()


class _Entry:
    """A key that is queued or in flight, and who waits for it."""

    __slots__ = ("ask", "sent", "waiters")

    def __init__(self, ask: Ask, run: _Run) -> None:
        self.ask = ask
        self.waiters = [(run, ask)]
        self.sent = False


class Fanout:
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
        Most calls of `answer` at a time.
    per_call : int
        Most asks given to one call of `answer`.
    drain : float
        Seconds that `close` waits for calls that were sent.
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
    ) -> None:
        self._answer = answer
        self._store = store
        self._scope = scope
        self._meter = meter
        self._limit = workers
        self._per_call = per_call
        self._low_water = workers * per_call
        self._drain = drain
        self._entries: dict[bytes, _Entry] = {}
        #: Runs with a queue, served in turn so that a short one does not wait for a long one.
        self._turns: deque[_Run] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._closed = False
        # predictions stored while a look-up was under way, which may have missed them
        self._reading = 0
        self._fresh: dict[bytes, Prediction] = {}
        self._ever_answered = False

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
        run = _Run(done)
        chunks = _chunks(asks) if isinstance(asks, Iterable) else asks
        try:
            async for chunk in chunks:
                await self._claim(run, chunk)
                # hold back the next chunk until the workers are about to run out of work
                while len(run.queue) > self._low_water and run.failure is None:
                    await self._change(run)
                if run.failure is not None:
                    raise run.failure
            while run.open and run.failure is None:
                await self._change(run)
            if run.failure is not None:
                raise run.failure
        finally:
            await chunks.aclose()
            if run.open:
                self._abandon(run)

    @staticmethod
    async def _change(run: _Run) -> None:
        run.changed.clear()
        await run.changed.wait()

    async def _claim(self, run: _Run, asks: list[Ask]) -> None:
        self._reading += 1
        try:
            stored = await self._store.get_predictions([ask.key for ask in asks])
        finally:
            self._reading -= 1
            fresh = self._fresh
            if not self._reading:
                self._fresh = {}
        # from here to the end nothing is awaited: what is claimed here cannot be claimed elsewhere
        for ask, hit in zip(asks, stored, strict=True):
            prediction = hit if hit is not None else fresh.get(ask.key)
            if prediction is not None:
                self._meter.store_hits += 1
                run.done(ask, prediction)
                continue
            run.open += 1
            entry = self._entries.get(ask.key)
            if entry is None:
                self._entries[ask.key] = entry = _Entry(ask, run)
                run.queue.append(entry)
            else:
                self._meter.coalesced += 1
                entry.waiters.append((run, ask))
        if run.queue and run not in self._turns:
            self._turns.append(run)
        self._hire()

    def _hire(self) -> None:
        if self._closed:
            return
        queued = sum(len(run.queue) for run in self._turns)
        wanted = min(self._limit, len(self._workers) + -(-queued // self._per_call))
        while len(self._workers) < wanted:
            worker = asyncio.create_task(self._work(), name="testnuc-worker")
            self._workers.add(worker)

    async def _work(self) -> None:
        try:
            while bundle := self._take():
                await self._serve(bundle)
        finally:
            # in the same step in which it found no work: else `_hire` would still count on it
            worker = asyncio.current_task()
            assert worker is not None
            self._workers.discard(worker)

    def _take(self) -> list[_Entry]:
        """Return up to `per_call` queued entries of distinct texts that fit in one call."""
        bundle: list[_Entry] = []
        hashes: set[bytes] = set()
        for _ in range(len(self._turns)):
            run = self._turns[0]
            while run.queue and len(bundle) < self._per_call:
                ask = run.queue[0].ask
                if bundle and (ask.demonstrations or ask.text_hash in hashes):
                    break
                entry = run.queue.popleft()
                entry.sent = True
                bundle.append(entry)
                hashes.add(ask.text_hash)
                if ask.demonstrations:
                    break
            if len(run.queue) <= self._low_water:
                run.changed.set()
            self._turns.rotate(-1)
            if not run.queue:
                self._turns.remove(run)
            if bundle:
                break
        return bundle

    async def _serve(self, bundle: list[_Entry]) -> None:
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
                if self._reading:
                    self._fresh.update(kept)
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

    def _settle(self, bundle: list[_Entry], outcomes: Sequence[Outcome | BaseException]) -> None:
        for entry, outcome in zip(bundle, outcomes, strict=True):
            self._entries.pop(entry.ask.key, None)
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

    def _abandon(self, run: _Run) -> None:
        """Forget a run that no longer waits; what others wait for goes on."""
        if run in self._turns:
            self._turns.remove(run)
        for entry in list(self._entries.values()):
            entry.waiters = [(r, ask) for r, ask in entry.waiters if r is not run]
            if entry.sent:
                continue
            if not entry.waiters:
                del self._entries[entry.ask.key]
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
        for run in list(self._turns):
            for entry in run.queue:
                self._entries.pop(entry.ask.key, None)
            run.queue.clear()
            run.failure = run.failure or ProviderError("the client was closed")
            run.changed.set()
        self._turns.clear()
        if self._workers:
            _, late = await asyncio.wait(self._workers, timeout=self._drain)
            for worker in late:
                worker.cancel()
            await asyncio.gather(*late, return_exceptions=True)


async def _chunks(asks: Iterable[Ask]) -> AsyncGenerator[list[Ask], None]:
    pending = iter(asks)
    while chunk := list(islice(pending, _CHUNK)):
        yield chunk
