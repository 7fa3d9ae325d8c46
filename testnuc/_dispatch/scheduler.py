"""Schedule asks on a bounded pool of workers, with one call per key.

A run submits asks and iterates over their outcomes. Stored predictions are returned from the store,
in-flight requests of other runs are joined, and the rest is queued for workers. Workers belong to
the client, not to a run: when a run ends early, calls in flight complete and their answers are
stored.

If the store has leases, only leased keys are queued. A key that another process has leased waits
until its answer is stored or its lease expires.

An error that every other call would meet ends the runs that wait for it. Calls already sent then
get a few seconds to complete, because they are billed.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import KW_ONLY, InitVar, dataclass
from itertools import islice
from typing import TypeAlias

from testnuc import errors
from testnuc._dispatch.inflight import Ask, InFlightRequest, Outcome, ScheduledRun
from testnuc._dispatch.leases import Leases
from testnuc._dispatch.queue import FairQueue, WorkerPool
from testnuc.limits.budget import Meter
from testnuc.protocols import Store
from testnuc.transport import telemetry
from testnuc.transport.calls import MAY_SEND, NotSentError
from testnuc.types import Prediction

_log = logging.getLogger("testnuc")

#: What a run asks: an async generator yields lists.
Asks: TypeAlias = Iterable[Ask] | AsyncGenerator[list[Ask], None]
#: The requests of one call, or of several.
Bundle: TypeAlias = list[InFlightRequest]

#: Asks looked up in the store at a time.
_CHUNK = 256
#: Outcomes yielded before control returns to the event loop.
_TURN = 1_024
_CLOSED = "the client was closed"
#: This many rejections before any answer mean that every request is rejected; and so many if there
#: are stored answers, which prove that requests are valid, but not that the key still is.
_SUSPECTS, _MORE_SUSPECTS = 4, 20


@dataclass(eq=False, repr=False)
class Scheduler:
    """Answers asks from the store or by `answer`, with a bounded number of workers.

    `answer` returns a `Prediction` or an exception for each ask of a tuple. `scope` is stored with
    each prediction; `meter` counts store hits and joined requests. At most `workers` calls of
    `answer` run at a time, more while calls back off, with at most `per_call` asks each; if
    `mixed`, with several about one text, and some with examples. `close` waits `drain` seconds for
    calls in flight. Unless it `holds_leases`, it has none of what is queued: `answer` takes them by
    `lease`.
    """

    _answer: Callable[[tuple[Ask, ...]], Awaitable[Sequence[Outcome]]]
    _store: Store
    _scope: bytes
    _: KW_ONLY
    meter: Meter
    workers: InitVar[int]
    per_call: InitVar[int] = 1
    drain: float = 5.0
    mixed: InitVar[bool] = False
    holds_leases: bool = True

    def __post_init__(self, workers: int, per_call: int, mixed: bool) -> None:
        low_water = per_call if mixed else workers * per_call
        self._queue = FairQueue(per_call, low_water=low_water, mixed=mixed)
        self._most_unread = low_water + _TURN
        #: Those queued or sent, one for each key.
        self.requests: dict[bytes, InFlightRequest] = {}
        #: Look-ups in the store, and what was stored meanwhile, which these can miss.
        self._reading = 0
        self._fresh: dict[bytes, Prediction] = {}
        self._workers = WorkerPool(workers, per_call, self._queue, self._serve)
        self.closed = False
        #: Whether `close` has finished.
        self._ended = False
        #: In the order of their start.
        self._runs: dict[ScheduledRun, None] = {}
        #: Whether the provider has answered any request of this scheduler.
        self.answered = False
        #: Whether an answer exists, received or stored: requests of this form are valid.
        self._valid = False
        #: Requests rejected before any answer: a later outcome shows whether one text is at fault.
        self._suspects: list[tuple[Bundle, Sequence[Outcome]]] = []
        self._calls = 0
        self._claims: set[asyncio.Task[None]] = set()
        self._leases: Leases | None = None
        if callable(getattr(self._store, "lease", None)):
            self._leases = Leases(
                self._store,
                granted=self._grant,
                answered=self._answered_elsewhere,
                failed=self._fail,
            )

    async def run(self, asks: Asks) -> AsyncGenerator[tuple[Ask, Outcome], None]:
        """Yield the outcome of each ask, in completion order.

        Asks are claimed lazily, as workers become free and outcomes are consumed, so an iterable of
        millions is never held in memory. An async generator yields lists of asks, and may itself
        call `run` for asks that they depend on.

        Close it (``contextlib.aclosing``) to end the run early: unsent requests are dropped, unless
        other runs wait for them.

        `ProviderError`: no call can succeed, as with a wrong key. `StoreError`: the store failed.
        """
        if self.closed:
            raise errors.ProviderError(_CLOSED)
        run = ScheduledRun()
        self._runs[run] = None
        feeder = asyncio.create_task(self._feed(run, asks), name="testnuc-asks")
        try:
            while True:
                for _ in range(min(len(run.outcomes), _TURN)):
                    yield run.outcomes.popleft()
                run.room.set()
                if run.outcomes:
                    # thousands of outcomes can arrive at once: yield to other tasks
                    await asyncio.sleep(0)
                elif run.failure is not None:
                    await self._last_outcomes(run)
                    if not run.outcomes:
                        raise run.failure
                elif run.fed and not run.open:
                    return
                else:
                    run.changed.clear()
                    await run.changed.wait()
        finally:
            self._runs.pop(run, None)
            feeder.cancel()
            # before the wait, which a second cancellation can interrupt
            self._abandon(run)
            if not feeder.done():
                await asyncio.wait([feeder])

    async def _last_outcomes(self, run: ScheduledRun) -> None:
        """Wait up to `drain` seconds for the sent requests of a failed run: they are billed."""
        self._stop(run)
        if not self.answered and not isinstance(run.failure, errors.StoreError):
            # they fail as well, and are not billed
            return
        with suppress(TimeoutError):
            async with asyncio.timeout_at(run.failed_at + self.drain):
                while run.open and not run.outcomes and not self._ended:
                    run.changed.clear()
                    await run.changed.wait()

    async def _feed(self, run: ScheduledRun, asks: Asks) -> None:
        """Claim the asks of a run in chunks, with backpressure from its queue and its consumer."""
        # an async generator may wait for one of its own asks, which must not be held back
        eager = isinstance(asks, Iterable)
        if eager:
            self._queue.held_back.add(run)
        try:
            async with aclosing(_chunks(asks) if isinstance(asks, Iterable) else asks) as chunks:
                first = True
                async for chunk in chunks:
                    if not first:
                        # an in-memory store never suspends
                        await asyncio.sleep(0)
                        await self._room(run, eager=eager)
                    first = False
                    await self._claim(run, chunk)
        except BaseException as exc:
            # raised in the consumer
            run.fail(exc)
            if not isinstance(exc, Exception):
                raise
        else:
            run.fed = True
            run.changed.set()
        finally:
            self._queue.held_back.discard(run)
            self._workers.hire()

    async def _room(self, run: ScheduledRun, *, eager: bool) -> None:
        """Wait until the run's queue is short and its consumer has caught up."""
        while True:
            run.room.clear()
            if self._queue.is_full(run):
                await run.room.wait()
            elif len(run.outcomes) > self._most_unread:
                # other runs may wait for requests that are held back
                self._queue.held_back.discard(run)
                self._workers.hire()
                await run.room.wait()
                if eager:
                    self._queue.held_back.add(run)
            else:
                return

    async def _claim(self, run: ScheduledRun, asks: list[Ask]) -> None:
        try:
            stored = await self._stored([ask.key for ask in asks])
        except errors.TestNUCError:
            # what is in flight is billed
            for ask in asks:
                self._joins(run, ask)
            raise
        if self.closed:
            raise errors.ProviderError(_CLOSED)
        if run.failure is not None:
            return
        # this loop does not await, so no other run can claim the same key meanwhile
        new: Bundle = []
        for ask, prediction in zip(asks, stored, strict=True):
            if prediction is not None:
                self.meter.store_hits += 1
                self._valid = True
                run.settle(ask, prediction)
            elif not self._joins(run, ask):
                run.open += 1
                self.requests[ask.key] = request = InFlightRequest(ask, [(run, ask)])
                new.append(request)
        if self._leases is None or not new:
            self._enqueue(new)
        else:
            claim = asyncio.create_task(self._lease(self._leases, new), name="testnuc-claim")
            self._claims.add(claim)
            claim.add_done_callback(self._claims.discard)
            # shielded from the run's cancellation: other runs may have joined its requests
            await asyncio.shield(claim)
        self._settle_suspects()

    def _joins(self, run: ScheduledRun, ask: Ask) -> bool:
        """Let the run wait for the request of the same key, if there is one."""
        request = self.requests.get(ask.key)
        if request is None:
            return False
        run.open += 1
        self.meter.coalesced += 1
        request.waiters.append((run, ask))
        return True

    async def _stored(self, keys: list[bytes]) -> list[Prediction | None]:
        """Return the stored prediction of each key, also those stored meanwhile."""
        self._reading += 1
        try:
            stored = await self._store.get_predictions(keys)
        except errors.TestNUCError:
            raise
        except Exception as exc:
            raise errors.StoreError(f"the store failed: {type(exc).__name__}: {exc}") from exc
        finally:
            self._reading -= 1
            fresh = self._fresh
            if not self._reading:
                self._fresh = {}
        return [
            hit if hit is not None else fresh.get(key)
            for key, hit in zip(keys, stored, strict=True)
        ]

    def _enqueue(self, requests: Iterable[InFlightRequest]) -> None:
        """Queue each request under the first run that waits for it."""
        for request in requests:
            self._queue.put(request.waiters[0][0], request)
        self._workers.hire()

    async def _lease(self, leases: Leases, requests: Bundle) -> None:
        """Queue the requests that are leased now."""
        keys = [request.ask.key for request in requests]
        try:
            mine = await leases.claim(keys)
        except Exception as exc:  # noqa: BLE001 - fails the waiting runs
            self._fail(keys, exc)
            return
        self._grant([key for key in keys if key in mine])
        leases.done([key for key in keys if key not in self.requests], stored=False)

    def _grant(self, keys: list[bytes]) -> None:
        """Queue the leased keys that a run still waits for; release the others."""
        assert self._leases is not None
        requests = {} if self.closed else self.requests
        unheld = [key for key in keys if key not in requests or not self.holds_leases]
        self._leases.done(unheld, stored=False)
        wanted = [requests[key] for key in keys if key in requests]
        self._enqueue([request for request in wanted if not request.queued])

    def _answered_elsewhere(self, key: bytes, prediction: Prediction) -> None:
        request = self.requests.get(key)
        if request is not None and not request.sent:
            self._valid = True
            self.meter.store_hits += 1
            self._settle([request], [prediction])
            self._settle_suspects()

    def _fail(self, keys: list[bytes], error: Exception) -> None:
        if not isinstance(error, errors.StoreError):
            cause, error = error, errors.StoreError(f"leases failed: {error}")
            error.__cause__ = cause
        known = [self.requests[key] for key in keys if key in self.requests]
        requests = [request for request in known if not request.sent]
        self._settle(requests, [error] * len(requests))

    async def lease(self, keys: Sequence[bytes]) -> set[bytes]:
        """Lease keys that are about to be sent; returns those that no other process asks."""
        return set(keys) if self._leases is None else await self._leases.take(keys)

    def release(self, keys: Iterable[bytes]) -> None:
        """Release the leases of keys in flight, so that other processes can lease them."""
        if self._leases is not None:
            self._leases.done(keys, stored=False)

    async def _serve(self, bundle: Bundle) -> None:
        leases = self._leases
        keys = [request.ask.key for request in bundle]
        if leases is not None and (expired := leases.expired(keys)):
            bundle = await self._confirmed(leases, bundle, expired)
            if not bundle:
                return

        def may_send() -> bool:
            wanted = any(request.waiters for request in bundle)
            return wanted and (leases is None or not leases.expired(keys))

        # the call may wait for a permit, or to be retried
        MAY_SEND.set(may_send)
        context = bundle[0].waiters[0][0].context if bundle[0].waiters else None
        if context is not None:
            # a worker serves many runs; the call belongs to the trace of the first one waiting
            telemetry.attach(context)
        self._calls += 1
        self._pause()
        first = not self.answered
        try:
            outcomes, failure = await self._answered(bundle)
            failed = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
            if not self._valid and any(map(self._is_suspect, failed)):
                # the run meets the store's error elsewhere
                with suppress(Exception):
                    self._valid = await self._store.count(self._scope) > 0
        except BaseException:
            # cancelled by `close`
            self._drop(bundle)
            raise
        finally:
            self._calls -= 1
        if any(isinstance(outcome, NotSentError) for outcome in failed):
            bundle, outcomes = self._without_unsent(bundle, outcomes)
        # another call may have been answered while this one was rejected
        if any(self._is_suspect(outcome) or (first and _is_fatal(outcome)) for outcome in failed):
            self._suspects.append((bundle, outcomes))
        else:
            self._settle(bundle, outcomes, failure)
        self._settle_suspects()

    async def _confirmed(self, leases: Leases, bundle: Bundle, expired: list[bytes]) -> Bundle:
        """Return the requests of a bundle that this process still has, or again, leased."""
        # meanwhile runs may leave them
        for request in bundle:
            request.sent = False
        try:
            again = await leases.confirm(expired)
        except asyncio.CancelledError:
            self._drop(bundle)
            raise
        except Exception as exc:  # noqa: BLE001 - fails the waiting runs
            self._fail(expired, exc)
            again = set()
        for request in bundle:
            key = request.ask.key
            wanted = self.requests.get(key) is request
            request.sent = wanted and (key not in expired or key in leases.held)
            request.queued = request.sent
        ready = [request for request in bundle if request.sent]
        # left by its run, and wanted by another one since
        self._grant([key for key in again if key not in {r.ask.key for r in ready}])
        return ready

    def _without_unsent(
        self, bundle: Bundle, outcomes: Sequence[Outcome]
    ) -> tuple[Bundle, Sequence[Outcome]]:
        """Queue requests that were not sent: their leases expired, or nobody waits any more."""
        pairs = list(zip(bundle, outcomes, strict=True))
        for request, outcome in pairs:
            if not isinstance(outcome, NotSentError):
                continue
            request.sent = False
            # billed: they count when it is sent later
            request.ask.step = max(request.ask.step, outcome.unreadable)
            if self.closed:
                self._drop([request])
            elif request.waiters:
                self._enqueue([request])
            else:
                self._forget(request)
        kept = [(r, outcome) for r, outcome in pairs if not isinstance(outcome, NotSentError)]
        return [request for request, _ in kept], [outcome for _, outcome in kept]

    async def _answered(self, bundle: Bundle) -> tuple[Sequence[Outcome], errors.StoreError | None]:
        """Return the outcome of each request, stored; and the error if they cannot be stored."""
        outcomes: Sequence[Outcome]
        try:
            outcomes = await self._answer(tuple(request.ask for request in bundle))
        except Exception as exc:  # noqa: BLE001 - becomes the outcome of each ask
            outcomes = [exc] * len(bundle)
        answered = [
            (request.ask, outcome)
            for request, outcome in zip(bundle, outcomes, strict=True)
            if not isinstance(outcome, Exception)
        ]
        if answered or any(isinstance(outcome, errors.ReplyError) for outcome in outcomes):
            self.answered = self._valid = True
        if not answered:
            return outcomes, None
        for outcome in outcomes:
            if isinstance(outcome, (errors.AuthenticationError, errors.UnknownModelError)):
                # of a text in the same job, or in the same call
                outcome.fatal = False
        try:
            rows = [ask.answered(self._scope, prediction) for ask, prediction in answered]
            standing = await self._store.put_predictions(rows)
        except Exception as exc:  # noqa: BLE001 - ends the waiting runs, which get the answers
            broken = (
                exc
                if isinstance(exc, errors.StoreError)
                else errors.StoreError(f"not stored: {exc}")
            )
            if broken is not exc:
                broken.__cause__ = exc
            self.meter.unstored += len(answered)
            _log.error("%d answers are not stored: %s", len(answered), broken)
            return outcomes, broken
        except asyncio.CancelledError:
            # the write stalls while the client closes
            self._settle(bundle, outcomes, errors.ProviderError(_CLOSED))
            raise
        if self._reading:
            self._fresh.update(
                (ask.key, stored) for (ask, _), stored in zip(answered, standing, strict=True)
            )
        rest = iter(standing)
        return [o if isinstance(o, Exception) else next(rest) for o in outcomes], None

    def _settle_suspects(self) -> None:
        """Settle the suspects once it is known whether the request or a text is at fault.

        After any answer, it is the text. Without one it is the request, once no call is in flight
        and either none is left to send or enough were rejected.
        """
        if not self._suspects:
            return
        left = any(r.waiters and not r.sent for r in self.requests.values())
        every = not (self._calls or (left and not self._enough_suspects))
        suspects, self._suspects = self._suspects, []
        for bundle, outcomes in suspects:
            if any(map(self._is_suspect, outcomes)):
                if not every:
                    self._suspects.append((bundle, outcomes))
                    # other processes with suspects may wait for these, as this one does for theirs
                    self.release(request.ask.key for request in bundle)
                    continue
            else:
                for outcome in outcomes:
                    if isinstance(outcome, errors.ProviderError):
                        outcome.fatal = False
            self._settle(bundle, outcomes)
        self._pause()
        self._workers.hire()

    def _pause(self) -> None:
        """Send nothing while calls are in flight that may decide about several suspects."""
        few = len(self._suspects) < _SUSPECTS
        self._queue.paused = not few and (self._calls > 0 or self._enough_suspects)

    @property
    def _enough_suspects(self) -> bool:
        return len(self._suspects) >= (_MORE_SUSPECTS if self._valid else _SUSPECTS)

    def _is_suspect(self, outcome: Outcome) -> bool:
        """Whether a rejection may be that of every request, as none of them was accepted."""
        if isinstance(outcome, errors.BadRequestError):
            return outcome.fatal and not self._valid
        return _is_fatal(outcome) and not self.answered

    def _settle(
        self, bundle: Bundle, outcomes: Sequence[Outcome], failure: Exception | None = None
    ) -> None:
        """Pass outcomes on; a fatal one, or `failure`, ends the runs that wait for it."""
        stopped: dict[ScheduledRun, Exception] = {}
        for request, outcome in zip(bundle, outcomes, strict=True):
            self.requests.pop(request.ask.key, None)
            failed = isinstance(outcome, Exception)
            if self._leases is not None:
                self._leases.done([request.ask.key], stored=not failed and failure is None)
            for run, ask in request.waiters:
                run.open -= 1
                run.settle(ask, outcome)
                if failure is not None:
                    stopped[run] = failure
                elif isinstance(outcome, Exception) and self._stops_the_run(outcome):
                    stopped.setdefault(run, outcome)
            request.waiters = []
        for run, error in stopped.items():
            run.fail(error)
            # before a worker takes its next request, which would fail, too
            self._stop(run)

    def _drop(self, requests: Iterable[InFlightRequest]) -> None:
        """Remove requests that will not be sent, and fail the runs that wait for them."""
        for request in requests:
            self.requests.pop(request.ask.key, None)
            for run, _ in request.waiters:
                run.open -= 1
                run.fail(errors.ProviderError(_CLOSED))
            request.waiters = []

    def _stops_the_run(self, error: Exception) -> bool:
        if isinstance(error, (errors.StoreError, errors.ConfigurationError)):
            return True
        if isinstance(error, errors.BadRequestError):
            # once any request was answered, the format is valid and the error is due to this text
            return error.fatal and not self._valid
        return isinstance(error, errors.ProviderError) and error.fatal

    def _stop(self, run: ScheduledRun) -> None:
        """Remove the unsent requests of a failed run."""
        if not run.stopping:
            run.stopping = True
            self._abandon(run, sent=False)

    def _abandon(self, run: ScheduledRun, *, sent: bool = True) -> None:
        """Remove a run from the requests, `sent` ones included; those of other runs are kept."""
        queued = self._queue.remove(run)
        for request in list(self.requests.values()) if run.open else ():
            if request.sent and not sent:
                continue
            before = len(request.waiters)
            request.waiters = [(r, ask) for r, ask in request.waiters if r is not run]
            run.open -= before - len(request.waiters)
            if not (request.sent or request.waiters):
                self._forget(request)
        self._enqueue(request for request in queued if request.waiters)
        self._settle_suspects()

    def _forget(self, request: InFlightRequest) -> None:
        """Remove an unsent request that no run waits for."""
        del self.requests[request.ask.key]
        self.release([request.ask.key])

    async def close(self) -> None:
        """Wait up to `drain` seconds for calls in flight, then stop the workers."""
        self.closed = True
        self._drop([request for request in self.requests.values() if not request.sent])
        self._queue.clear()
        try:
            await self._workers.close(self.drain)
        finally:
            # also those that wait for the store
            self._ended = True
            for run in self._runs:
                run.fail(errors.ProviderError(_CLOSED))
            if self._leases is not None:
                try:
                    await asyncio.gather(*self._claims, return_exceptions=True)
                    await self._leases.close()
                except asyncio.CancelledError:
                    self._leases.cancel()
                    raise


def _is_fatal(outcome: Outcome) -> bool:
    return (
        isinstance(outcome, (errors.AuthenticationError, errors.UnknownModelError))
        and outcome.fatal
    )


async def _chunks(asks: Iterable[Ask]) -> AsyncGenerator[list[Ask], None]:
    pending = iter(asks)
    while chunk := list(islice(pending, _CHUNK)):
        yield chunk
