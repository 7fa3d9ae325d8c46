"""Send a call: reserve, acquire a permit, POST, decode, settle, retry.

::

    call ─ reserve budget ─ permit ─ POST ─ 200 ─ decode ─ settle ─ Reply
             ^                         └ else ─ error ─┐
             └───────── wait, if tenacity retries ─────┘

tenacity's is the only retry loop for calls. Its decisions are in `testnuc.transport.retries`.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random

from tenacity import AsyncRetrying, RetryCallState

from testnuc import errors
from testnuc.limits.admission import Admission, Permit
from testnuc.limits.budget import BudgetAccount, Meter, require_price
from testnuc.limits.policies import Limits
from testnuc.protocols import Provider, Reply, Request, WireProvider
from testnuc.transport.accounting import CallAccounting
from testnuc.transport.auxiliary import AuxiliaryRequests
from testnuc.transport.calls import MAY_SEND, ON_WAIT, Call, NotSentError, Timer, estimate_tokens
from testnuc.transport.connections import Connections, key_headers
from testnuc.transport.failures import host, safe_cause
from testnuc.transport.keys import LATEST, KeySource
from testnuc.transport.retries import Outage, adapts, gives_up, latest_start, may_help, wait
from testnuc.transport.telemetry import Telemetry

_log = logging.getLogger("testnuc.transport")

#: Permits that an attempt takes at most until a key comes soon after one, within so many seconds.
_PERMITS, _SOON = 5, 1.0


class Transport:
    """Sends calls within rate limits and budget, and retries them.

    Belongs to the event loop of its first call; call `aclose` on that loop. The provider's headers
    are obeyed in any case; `limits.concurrency` bounds connections, too. `account`: of a budget
    that another transport shares, in place of that of `limits`. Without a price in `meter`, usd is
    unknown. `trust_env`, the proxies of the environment, triples the CPU time of a call. Clock,
    sleep, jitter and connections can be replaced for tests.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        account: BudgetAccount | None = None,
        trust_env: bool = False,
        meter: Meter | None = None,
        telemetry: Telemetry | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: Random | None = None,
        connections: Connections | None = None,
    ) -> None:
        limits = limits or Limits()
        self.meter = Meter() if meter is None else meter
        require_price(limits.budget, self.meter.price, "the model")
        self._retry = limits.retry
        self._rng = rng or Random()  # noqa: S311 - jitter, no secret
        #: The rate and concurrency limits in force.
        self.admission = Admission(limits, clock=clock, wall=wall, rng=self._rng)
        self.account = BudgetAccount(limits.budget) if account is None else account
        self._accounting = CallAccounting(
            self.admission, self.account, self.meter, telemetry=telemetry, wall=wall
        )
        self.account.meters.add(self.meter)
        self._telemetry = telemetry
        self._clock = clock
        self._sleep = sleep
        #: Called with the seconds of each attempt, answered or not.
        self.timed: Callable[[float], object] = float
        #: The calls in flight, the oldest first.
        self._sent: dict[Call, None] = {}
        #: See `observed`.
        self._observers: list[Callable[[errors.ProviderError], object]] = []
        self.outage = Outage(self.account, limits.concurrency)
        #: Whether the latest call failed as all would, with a wrong key for example.
        self.failing = False
        self._connections = connections or Connections(limits.concurrency, trust_env=trust_env)
        #: HTTP requests other than calls; not rate-limited.
        self.auxiliary = AuxiliaryRequests(
            self._connections, self._retry, rng=self._rng, clock=clock, wall=wall, sleep=sleep
        )

    @property
    def oldest(self) -> float:
        """Seconds since the oldest call in flight was sent; 0: none is."""
        now = self._clock()
        return now - next((call.sent_at for call in self._sent), now)

    @contextmanager
    def observed(self, observer: Callable[[errors.ProviderError], object] | None) -> Iterator[None]:
        """Call `observer`, if there is one, with each failure of an attempt meanwhile."""
        own = [] if observer is None else [observer]
        self._observers += own
        try:
            yield
        finally:
            for each in own:
                self._observers.remove(each)

    def call(self, provider: WireProvider, request: Request) -> Awaitable[Reply]:
        """Make a call over HTTP.

        Returns the reply of the first attempt that succeeded. If it holds several texts, some of
        its answers may be errors; the caller asks for those again. `ProviderError` is the last
        failure, with the number of attempts in `attempts`.
        """
        call = Call(request, provider.reserve(request), provider, None)
        # no coroutine of its own, which costs 2 us of CPU
        return self._run(call) if self._telemetry is None else self._traced(call)

    async def answer(self, provider: Provider, request: Request) -> Reply:
        """Make a call to a provider that answers by other means; returns and raises as `call`.

        Budget, concurrency, retries and usage apply, and so does the user's rate limit. If the
        provider has a method ``reserve``, it estimates the tokens. Exceptions other than
        `ProviderError` propagate without a retry.
        """
        call = Call(request, estimate_tokens(provider, request), None, provider)
        return await (self._run(call) if self._telemetry is None else self._traced(call))

    def require_loop(self) -> None:
        """Raise an error in another event loop than that of the first call."""
        self._connections.require_loop()

    async def aclose(self) -> None:
        """Close all connections. No call may follow."""
        await self._connections.aclose()

    async def _traced(self, call: Call) -> Reply:
        assert self._telemetry is not None
        with self._telemetry.chat(call.request) as span:
            try:
                reply = await self._run(call)
            except Exception:
                span.set(sends=call.sends)
                raise
            span.answered(reply, call.sends)
            return reply

    async def _run(self, call: Call) -> Reply:
        """Attempt a call until it succeeds or tenacity gives up."""
        try:
            # The first attempt runs outside tenacity, whose loop adds 20 us of CPU to a call.
            try:
                return await self._attempt(call)
            except errors.ProviderError as error:
                first = error
            # Not in the handler above: the first failure is not the cause of later ones.
            async for attempt in self._retrying(call):
                with attempt:
                    if attempt.retry_state.attempt_number == 1:
                        raise first
                    if not call.at_once:
                        call.again = True
                        self._accounting.refresh(call)
                    return await self._attempt(call)
            raise first  # unreachable: the loop returns a reply or raises
        except errors.ProviderError as error:
            now = self._clock()
            if not error.retryable or isinstance(error, errors.ReplyError):
                self.outage.answered(now, now)
            elif call.sends and self.outage.gave_up(call.started, now, self._retry.deadline):
                error.fatal = True
            self.failing = error.fatal and not isinstance(error, errors.BadRequestError)
            # the log has once that the provider is down
            if not isinstance(error, errors.ProviderDownError):
                message = "call failed permanently: %s, status %s, request id %s, sent %d times"
                kind = type(error).__name__
                _log.info(message, kind, error.status_code, error.request_id, call.sends)
            raise
        finally:
            # a reservation is left only if no attempt can have been billed
            self._accounting.release(call)

    def _retrying(self, call: Call) -> AsyncRetrying:
        """Return tenacity's loop over attempts; it keeps state, so every call has its own."""

        async def retry(state: RetryCallState) -> bool:
            error = state.outcome and state.outcome.exception()
            return isinstance(error, errors.ProviderError) and await self._failed(call, error)

        def stop(state: RetryCallState) -> bool:
            since = self._clock() - call.started if call.sends else 0.0
            return not call.at_once and gives_up(
                call,
                state,
                self._retry,
                since=since,
                reached=self._accounting.reached,
                outage=self.outage,
            )

        return AsyncRetrying(
            sleep=self._pause,
            retry=retry,
            wait=lambda state: wait(call, state, self._retry, self._rng),
            stop=stop,
            reraise=True,
        )

    async def _pause(self, seconds: float) -> None:
        if not seconds:
            return
        _log.debug("backing off for %.2f s", seconds)
        on_wait = ON_WAIT.get()
        on_wait(1)
        limit = asyncio.timeout(None)
        if self.account.patience is not None:
            self.outage.waiting[limit] = None
        try:
            # ends when the server is taken to be down
            with suppress(TimeoutError):
                async with limit:
                    await self._sleep(seconds)
        finally:
            self.outage.waiting.pop(limit, None)
            on_wait(-1)

    async def _failed(self, call: Call, error: errors.ProviderError) -> bool:
        """Take note of a failure; return whether to send the call again.

        At once, and not as one of its attempts, if the failure changed its encoding or its key.
        """
        _log.debug("call failed: %s: %s", type(error).__name__, error)
        # what a call waited after until its deadline was observed before
        if error is not call.error and not isinstance(error, errors.ProviderDownError):
            now = self._clock()
            self._observe(error)
            if self.outage.failed(call, error, now):
                self._observe(self.outage.down(now, call.sends))
        late = self._clock() - call.started >= latest_start(self._retry)
        call.at_once = not late and (adapts(call, error) or await self._renewed(call, error))
        if call.at_once:
            call.repeats += 1
            self._accounting.release(call)  # reserved for the former encoding
            return True
        error.attempts = call.sends
        if error.answered:
            error.unreadable = call.unreadable
        call.error = error
        return may_help(call, error)

    def _observe(self, error: errors.ProviderError) -> None:
        for observer in list(self._observers):
            try:
                observer(error)
            except Exception:  # noqa: BLE001 - any observer; it must not fail the call
                _log.warning("the progress observer failed", exc_info=True)

    async def _attempt(self, call: Call) -> Reply:
        """Send a call once, and settle everything acquired for it."""
        accounting = self._accounting
        self.outage.refuse(call, self._clock())
        keys = getattr(call.wire, "keys", None)
        permit = accounting.try_acquire(call) if keys is None else await self._with_key(call, keys)
        if permit is None:
            permit = await self._acquire(call)
        self._check(call, permit)
        call.sent_at = permit.sent_at
        # Nothing awaits between the permit and the `try`, so cancellation cannot lose it.
        # Queueing does not count: the deadline starts with the first permit.
        if call.sends == 0:
            call.started = permit.sent_at
        self.meter.retries += call.again and call.sends > 0
        call.again = False
        call.sends += 1
        call.unsent = False
        left = call.started + self._retry.deadline - permit.sent_at
        seconds = self.outage.timeout(call, self._retry.timeout)
        timer = Timer(max(0.0, min(seconds, left)))
        self._sent[call] = None
        try:
            if call.wire is not None:
                call.key, own = (None, None) if keys is None else await key_headers(call.wire)
                answer = await self._connections.post(
                    call.wire, call.body, reached=accounting.reached, headers=own
                )
            else:
                assert call.other is not None
                reply = await call.other.answer(call.request)
        except BaseException as raised:  # return the permit in every case
            timeout = self._timeout(call, seconds) if timer.stop() else None
            error = accounting.failed(call, permit, raised, timeout)
            if error is raised:
                raise
            cause = safe_cause(raised)
            if call.unsent:
                self.outage.refused(permit.sent_at, self._clock())
        else:
            # Nothing awaits from here on, so everything is settled even on cancellation.
            timer.stop()
            if call.wire is not None:
                self.outage.over()
                reply = accounting.read(call, permit, answer)
            else:
                reply = accounting.accept(call, permit, reply)
            self.outage.answered(self._clock(), permit.sent_at, failing=self.failing)
            self.failing = False
            return reply
        finally:
            del self._sent[call]
            self.timed(self._clock() - permit.sent_at)
        raise error from cause

    def _check(self, call: Call, permit: Permit) -> None:
        """Raise `NotSentError` if the caller no longer wants the call to be sent."""
        may_send = MAY_SEND.get()
        if may_send is not None and not may_send():
            self.admission.abandoned(permit)
            raise NotSentError(call.unreadable)

    async def _with_key(self, call: Call, keys: KeySource) -> Permit:
        """Wait for a key, then for a permit, then for another key if that one has expired."""
        for left in reversed(range(_PERMITS)):
            await keys.current(self._left_for_key(call))
            permit = self._accounting.try_acquire(call) or await self._acquire(call)
            is_late = True
            try:
                await keys.current(self._left_for_key(call))
                is_late = left > 0 and self._clock() - permit.sent_at > _SOON
            finally:
                if is_late:
                    # all that waited for the key would be sent at once
                    self.admission.abandoned(permit)
                    self._accounting.release(call)
            if not is_late:
                break
        return permit

    async def _acquire(self, call: Call) -> Permit:
        """Wait for budget and a permit; while retrying, until the deadline at most.

        If another call finds that the server cannot be reached, the wait ends with its error.
        """
        outage = self.outage
        if outage.has_ended(call):
            raise outage.failure(call)
        left = None
        if call.sends:
            left = call.started + latest_start(self._retry) - self._clock()
            if left <= 0:
                raise call.error or self._timeout(call)
        limit = asyncio.timeout(left)
        outage.waiting[limit] = None
        try:
            async with limit:
                return await self._accounting.acquire(call)
        except TimeoutError:
            if limit in outage.waiting and call.sends:
                raise (call.error or self._timeout(call)) from None
        finally:
            outage.waiting.pop(limit, None)
        raise outage.failure(call)

    async def _renewed(self, call: Call, error: errors.ProviderError) -> bool:
        """Ask for another key if one was rejected or has no quota, as long as it is a new one."""
        keys, tried = getattr(call.wire, "keys", None), call.rejected_keys
        rejected = isinstance(error, errors.AuthenticationError)
        of_key = rejected or isinstance(error, errors.QuotaExceededError)
        if keys is None or not of_key or call.key in tried or len(tried) == LATEST:
            return False
        call.rejected_keys = (*tried, call.key)
        try:
            await keys.replace(call.key, self._left(call))
        except errors.ConfigurationError as failure:
            # other calls may go on with the key that this one was rejected with
            error.__cause__ = failure
            return False
        # the same one may be valid by now, but not have more quota
        return rejected or keys.key not in call.rejected_keys

    def _left_for_key(self, call: Call) -> float:
        left = self._left(call)
        if left <= 0 and call.error is not None:
            raise call.error  # the process was suspended meanwhile
        return max(1.0, left)

    def _left(self, call: Call) -> float:
        since = self._clock() - call.started if call.sends else 0.0
        return self._retry.deadline - since

    def _timeout(self, call: Call, seconds: float | None = None) -> errors.CallTimeoutError:
        where = host(call.wire) if call.wire is not None else call.other.name if call.other else ""
        seconds = self._retry.timeout if seconds is None else seconds
        return errors.CallTimeoutError(
            f"no complete response from {where} within {seconds:g} s for this attempt "
            f"({self._retry.deadline:g} s in total); if the model is slow, send fewer calls at a "
            "time, or in Python raise timeout and deadline of the retry policy"
        )
