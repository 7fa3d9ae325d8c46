"""The way of a call: budget, limits, POST, status to error, retry.

::

    call ─ reserve budget ─ permit ─ POST ─ 200 ─ decode ─ settle ─ Reply
             ^                         └ else ─ error ─┐
             └───────── wait, once tenacity says so ───┘

The first try is made without tenacity, whose wrapper costs more than everything else here; it is
entered with the first failure. Retries are made in this one place and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from math import ceil
from random import Random
from typing import TYPE_CHECKING

import aiohttp
from tenacity import AsyncRetrying, retry_if_exception

from testnuc.errors import (
    CallTimeoutError,
    ConfigurationError,
    ConnectionFailedError,
    ProviderError,
    RateLimitedError,
    ReplyError,
)
from testnuc.limits import (
    Admission,
    Budget,
    BudgetAccount,
    Meter,
    Price,
    RateLimit,
    RetryPolicy,
    require_price,
    retry_after,
)
from testnuc.transport.auxiliary import Exchanges
from testnuc.transport.calls import Call, Timer
from testnuc.transport.connections import Connections, HTTPAnswer
from testnuc.transport.failures import holds_secrets, host, is_retryable, translate
from testnuc.transport.retries import adapts, gives_up, may_help, wait

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenacity import RetryCallState

    from testnuc.limits import Accounting, Admitting, Permit
    from testnuc.protocols import Provider, Reply, Request, TokenUsage, WireProvider
    from testnuc.transport.telemetry import Telemetry

__all__ = ["Transport"]

_log = logging.getLogger("testnuc.transport")

_OK = 200
#: The server is too busy for anybody.
_BUSY = frozenset({429, 503, 529})
#: Characters of a token, for providers that do not estimate; most texts have four.
_CHARACTERS_PER_TOKEN = 3


class Transport:
    """Sends calls within limits and budget, and sends them again where that can help.

    Belongs to one event loop, from its first call on; `aclose` it there.

    Parameters
    ----------
    rate_limit : RateLimit, optional
        The user's own limit per minute; the provider's headers are heeded in any case.
    max_concurrency : int
        Most calls in flight, and most connections.
    retry : RetryPolicy, optional
        How long a call is tried.
    budget : Budget, optional
        What may be spent.
    price : Price, optional
        Of the model; None makes usd unknown.
    trust_env : bool
        Whether the proxies of the environment are used; triples the CPU time of a call.
    meter : Meter, optional
        Where usage is counted; a new one if None.
    telemetry : Telemetry, optional
        Who is told of every call.
    clock, wall : callable
        Monotonic seconds, and seconds since 1970.
    sleep : callable
        Waits between tries.
    rng : random.Random, optional
        Source of jitter.
    """

    def __init__(
        self,
        *,
        rate_limit: RateLimit | None = None,
        max_concurrency: int = 64,
        retry: RetryPolicy | None = None,
        budget: Budget | None = None,
        price: Price | None = None,
        trust_env: bool = False,
        meter: Meter | None = None,
        telemetry: Telemetry | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: Random | None = None,
    ) -> None:
        require_price(budget, price, "the model")
        self._retry = retry or RetryPolicy()
        self._rng = rng or Random()  # noqa: S311 - jitter, no secret
        self._admission: Admitting = Admission(
            rate_limit, max_concurrency, self._retry, clock=clock, wall=wall, rng=self._rng
        )
        self._by_tokens = rate_limit is not None and rate_limit.tokens_per_minute is not None
        self._account: Accounting | None = None if budget is None else BudgetAccount(budget)
        self._price = price
        #: Counts what is spent.
        self.meter = Meter(price) if meter is None else meter
        if self.meter.price is None:
            self.meter.price = price
        self._telemetry = telemetry
        self._clock = clock
        self._wall = wall
        self._sleep = sleep
        #: Told 1 when a call begins to wait for its next try, and -1 when it ends to.
        self.on_wait: Callable[[int], None] | None = None
        self._connections = Connections(max_concurrency, trust_env=trust_env)
        #: Requests other than calls.
        self.exchanges = Exchanges(
            self._connections, self._retry, rng=self._rng, clock=clock, wall=wall, sleep=sleep
        )
        #: Whether the provider answered anything yet.
        self._reached = False
        #: By how much the estimates of input tokens were too low at most.
        self._overrun = 1.0

    @property
    def admission(self) -> Admitting:
        """What holds calls back at the moment."""
        return self._admission

    @property
    def account(self) -> Accounting | None:
        """The budget's accountant."""
        return self._account

    def share(self, admission: Admitting, account: Accounting | None, *, by_tokens: bool) -> None:
        """Be admitted, and pay, together with others; to be called before the first call.

        Parameters
        ----------
        admission : Admitting
            What admits the calls of all.
        account : Accounting, optional
            The budget of all.
        by_tokens : bool
            Whether their rate limit is one of tokens, too.
        """
        self._admission = admission
        self._account = account
        self._by_tokens = by_tokens

    async def call(self, provider: WireProvider, request: Request) -> Reply:
        """Make a call over HTTP.

        Parameters
        ----------
        provider : WireProvider
            Encodes and decodes it.
        request : Request
            What is asked.

        Returns
        -------
        Reply
            Of the first try that gave one. Where it holds several texts, some of its answers may be
            errors; asking for those again is left to the caller.

        Raises
        ------
        ProviderError
            The last failure, with the number of tries in `attempts`.
        BudgetExceededError
            The next try could exceed the budget; it was not sent.
        InvalidInputError
            The request can never fit into the rate limit.
        """
        call = Call(request, provider.reserve(request), provider, None)
        return await (self._run(call) if self._telemetry is None else self._traced(call))

    async def answer(self, provider: Provider, request: Request) -> Reply:
        """Make a call to a provider that is not spoken to over HTTP.

        Goes through budget, concurrency, retry and meter, and through the rates where the user set
        any. A provider with a method ``reserve`` is asked for its estimate of tokens.

        Parameters
        ----------
        provider : Provider
            Answers the request.
        request : Request
            What is asked.

        Returns
        -------
        Reply
            As the provider gave it.

        Raises
        ------
        ProviderError
            As for `call`. What else the provider raises is passed on and not retried.
        BudgetExceededError
            As for `call`.
        """
        call = Call(request, self._estimate(provider, request), None, provider)
        return await (self._run(call) if self._telemetry is None else self._traced(call))

    async def aclose(self) -> None:
        """Close all connections. No call may follow."""
        await self._connections.aclose()

    async def _traced(self, call: Call) -> Reply:
        assert self._telemetry is not None
        with self._telemetry.chat(call.request) as span:
            try:
                reply = await self._run(call)
            except Exception:
                span.tell(sends=call.sends)
                raise
            span.answered(reply, call.sends)
            return reply

    async def _run(self, call: Call) -> Reply:
        try:
            try:
                return await self._try(call)
            except ProviderError as error:
                call.pending = error
            # outside of the handler: the failures of later tries are not caused by this one
            return await self._persist(call)
        except ProviderError as error:
            _log.info(
                "a call failed for good: %s, status %s, request id %s, sent %d times",
                type(error).__name__,
                error.status_code,
                error.request_id,
                call.sends,
            )
            raise
        finally:
            # still here only if no try used it up: nothing was sent, or surely nothing billed
            if call.reservation is not None and self._account is not None:
                self._account.release(call.reservation)

    async def _persist(self, call: Call) -> Reply:
        """Go on after a first failure; tenacity keeps state, so every call has its own."""
        retrying = AsyncRetrying(
            sleep=self._pause,
            retry=retry_if_exception(lambda error: may_help(call, error)),
            wait=lambda state: wait(call, state, self._retry, self._rng),
            stop=lambda state: self._gives_up(call, state),
            reraise=True,
        )
        reply: Reply = await retrying(self._next, call)
        return reply

    async def _pause(self, seconds: float) -> None:
        _log.debug("waiting %.2f s before a call is sent again", seconds)
        if self.on_wait is None or seconds <= 0:
            await self._sleep(seconds)
            return
        self.on_wait(1)
        try:
            await self._sleep(seconds)
        finally:
            self.on_wait(-1)

    async def _next(self, call: Call) -> Reply:
        """Deal with the pending failure or make the next try; new encodings are tried at once."""
        error, call.pending = call.pending, None
        if error is not None:
            _log.debug("a call failed: %s: %s", type(error).__name__, error)
        call.again = error is None
        while True:
            if error is None:
                try:
                    return await self._try(call)
                except ProviderError as raised:
                    error = raised
                    _log.debug("a call failed again: %s: %s", type(error).__name__, error)
            if not self._adapted(call, error):
                error.attempts = call.sends
                call.error = error
                raise error
            error = None

    def _gives_up(self, call: Call, state: RetryCallState) -> bool:
        since = self._clock() - call.started if call.sends else 0.0
        return gives_up(call, state, self._retry, since=since, reached=self._reached)

    def _adapted(self, call: Call, error: ProviderError) -> bool:
        if not adapts(call, error):
            return False
        if call.reservation is not None and self._account is not None:
            self._account.release(call.reservation)  # of the old size
            call.reservation = None
        return True

    async def _try(self, call: Call) -> Reply:
        """Make one try, and give back all that it took."""
        permit = self._admission.try_acquire(*call.size) if self._account is None else None
        if permit is None:
            permit = await self._admit(call)
        # Nothing awaits between the permit and the `try`, so a cancellation cannot lose it. A slow
        # queue is no fault of the call: its deadline starts with the first permit.
        if call.sends == 0:
            call.started = permit.sent_at
        elif call.again:
            self.meter.retries += 1
            call.again = False
        call.sends += 1
        call.unsent = False
        left = call.started + self._retry.deadline - permit.sent_at
        timer = Timer(max(0.0, min(self._retry.timeout, left)))
        try:
            if call.wire is not None:
                answer = await self._connections.post(call.wire, call.body)
            else:
                assert call.other is not None
                reply = await call.other.answer(call.request)
        except BaseException as raised:  # whatever it is, the permit goes back
            error = self._broken(call, permit, raised, timed_out=timer.stop())
            if error is raised:
                raise
            cause = None if holds_secrets(raised) else raised
        else:
            # nothing awaits from here on, so all is booked whatever happens to the task
            timer.stop()
            if call.wire is not None:
                return self._read(call, permit, answer)
            return self._accept(call, permit, reply)
        raise error from cause

    async def _admit(self, call: Call) -> Permit:
        """Wait for the budget, then for a permit: whoever holds a permit never waits for money."""
        if call.error is None:
            return await self._reserve_and_acquire(call)
        left = call.started + self._retry.deadline - self._clock()
        if left > 0:
            try:
                async with asyncio.timeout(left):
                    return await self._reserve_and_acquire(call)
            except TimeoutError:
                pass
        raise call.error

    async def _reserve_and_acquire(self, call: Call) -> Permit:
        input_tokens, output_tokens = call.size
        if self._account is not None and call.reservation is None:
            price = self._price
            at_worst = ceil(input_tokens * self._overrun)
            usd = 0 if price is None else price.worst(at_worst, output_tokens)
            # kept on the call before anything else can await, so that _run releases it in any case
            call.reservation = await self._account.reserve(usd, at_worst + output_tokens)
        permit = self._admission.try_acquire(input_tokens, output_tokens)
        if permit is None:
            permit = await self._admission.acquire(
                input_tokens, output_tokens, again=call.sends > 0
            )
        return permit

    def _read(self, call: Call, permit: Permit, answer: HTTPAnswer) -> Reply:
        """Turn an HTTP answer into a reply or an error."""
        wire = call.wire
        assert wire is not None
        self._reached = True
        self._admission.observe(permit, answer.headers)
        if answer.status == _OK:
            try:
                reply = wire.decode(call.request, answer.data)
            except BaseException as error:
                if isinstance(error, ProviderError) and not isinstance(error, ReplyError):
                    self._fail(permit, error)  # an error dressed as a 200, as proxies send them
                else:
                    # billed all the same
                    self._book(call, permit, getattr(error, "usage", None))
                raise
            return self._accept(call, permit, reply)
        failure: Exception | None = None
        seconds = retry_after(answer.headers, self._wall())
        try:
            failure = wire.error(answer.status, answer.headers, answer.data)
        finally:
            # an exhausted quota is a 429 too, but no reason for anybody to wait
            if answer.status in _BUSY and (failure is None or is_retryable(failure)):
                self._admission.refused(permit, seconds)
            else:
                self._admission.failed(permit)
        if isinstance(failure, ProviderError) and failure.retry_after is None:
            failure.retry_after = seconds
        raise failure

    def _accept(self, call: Call, permit: Permit, reply: Reply) -> Reply:
        self._book(call, permit, reply.usage)
        if len(call.request.texts) == 1 and len(reply.answers) == 1:
            answer = reply.answers[0]
            if isinstance(answer, ReplyError):
                raise answer
        return reply

    def _book(self, call: Call, permit: Permit, usage: TokenUsage | None) -> None:
        """Count an answered call, and settle what was reserved for it."""
        pico_usd = self.meter.add(usage)
        if self._telemetry is not None:
            self._telemetry.billed(usage, pico_usd)
        if usage is None:
            self._admission.answered(permit)
            self._spend(call)
            return
        self._admission.answered(permit, usage.input_tokens, usage.output_tokens)
        if call.reservation is not None and self._account is not None:
            self._overrun = max(self._overrun, usage.input_tokens / max(1, call.size[0]))
            tokens = usage.input_tokens + usage.output_tokens
            self._account.settle(call.reservation, pico_usd or 0, tokens)
            call.reservation = None

    def _spend(self, call: Call) -> None:
        """Book the whole reservation: the try may have been billed, and nobody says for what."""
        if call.reservation is not None and self._account is not None:
            self._account.keep(call.reservation)
            call.reservation = None

    def _broken(
        self, call: Call, permit: Permit, raised: BaseException, *, timed_out: bool
    ) -> BaseException:
        """Settle a try that gave no answer, and say what to raise."""
        if isinstance(raised, ReplyError):  # a provider of the user's own answered uselessly
            self._book(call, permit, getattr(raised, "usage", None))
            return raised
        if isinstance(raised, ProviderError):
            self._fail(permit, raised)
            if isinstance(raised, (CallTimeoutError, ConnectionFailedError)):
                self._spend(call)
            return raised
        error = raised if call.wire is None else translate(raised, call.wire)
        if timed_out:
            error = self._timeout(call)
        if isinstance(raised, aiohttp.ClientConnectorError) and not timed_out:
            # never sent, so never billed: the reservation serves the next try
            call.unsent = True
            call.refusals += 1
            if is_retryable(error):
                self._admission.refused(permit, load=False)
            else:
                self._admission.failed(permit)
            return error
        self._admission.failed(permit)
        if not isinstance(error, ConfigurationError):
            self._spend(call)
        return error

    def _fail(self, permit: Permit, error: ProviderError) -> None:
        if isinstance(error, RateLimitedError) and error.retryable:
            self._admission.refused(permit, error.retry_after)
        else:
            self._admission.failed(permit)

    def _timeout(self, call: Call) -> CallTimeoutError:
        name = call.other.name if call.wire is None and call.other is not None else ""
        where = name if call.wire is None else host(call.wire)
        return CallTimeoutError(
            f"no whole answer from {where} within {self._retry.timeout:g} s for this try "
            f"({self._retry.deadline:g} s for all); raise RetryPolicy(timeout=.., deadline=..) if "
            f"the model is that slow"
        )

    def _estimate(self, provider: Provider, request: Request) -> tuple[int, int]:
        """Tokens of a call that is not made over HTTP, as far as anybody needs to know."""
        reserve = getattr(provider, "reserve", None)
        if reserve is not None:
            input_tokens, output_tokens = reserve(request)
            return int(input_tokens), int(output_tokens)
        if not self._by_tokens and (self._account is None or not self._account.bounds_tokens):
            return 0, 0
        characters = len(request.task.system) + len(request.user)
        return characters // _CHARACTERS_PER_TOKEN + 1, 0
