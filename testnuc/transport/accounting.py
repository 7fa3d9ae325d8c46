"""What each attempt of a call acquires (budget, permit), and how its outcome settles that."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from math import ceil

import aiohttp
from aiohttp.http_exceptions import ContentEncodingError

from testnuc import errors
from testnuc._base.foreign import MOST_TOKENS
from testnuc.limits.admission import Admission, Permit
from testnuc.limits.budget import BudgetAccount, Meter
from testnuc.limits.headers import retry_after
from testnuc.protocols import Reply, TokenUsage
from testnuc.transport.api_errors import request_id
from testnuc.transport.calls import Call
from testnuc.transport.connections import OK, HTTPAnswer
from testnuc.transport.failures import NEVER_SENT, is_retryable, translate
from testnuc.transport.retries import was_last
from testnuc.transport.telemetry import Telemetry

#: The server is overloaded, or the rate limit is used up.
_BUSY = frozenset({429, 503, 529})
#: A gateway no longer waited for the model, which may have answered: perhaps billed.
_LATE = frozenset({504, 524})
#: More tokens than a call can have, by its estimate and its output limit: a factor, and what others
#: may add, such as the prompt of a gateway, or reasoning that no output limit bounds.
_MOST_TIMES, _MOST_MORE = 4, 128_000
#: How many times as large as estimated the input of later calls is taken to be, at most.
_MOST_OVERRUN = 20


def _is_unreadable(raised: BaseException) -> bool:
    """Whether a response was not cut off, and yet cannot be unpacked or parsed: it is billed."""
    if isinstance(raised, aiohttp.ClientPayloadError):
        return isinstance(raised.__cause__, ContentEncodingError)
    # those of a proxy say that the request was not sent
    proxy = isinstance(raised, aiohttp.ClientHttpProxyError)
    return isinstance(raised, aiohttp.ClientResponseError) and not proxy


def is_possible(usage: TokenUsage, size: tuple[float, float] | None) -> bool:
    """Whether a provider's counts may be those of a call: others would spoil every sum.

    `size`: about how many input and output tokens such a call has; None: it may have none.
    """
    counts = usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.cache_write_tokens
    try:
        if not all(0 <= number <= MOST_TOKENS for number in counts):
            return False
    except TypeError:
        return False
    if size is None:
        return True
    # over HTTP no call is without tokens
    most = [_MOST_TIMES * about + _MOST_MORE for about in size]
    return any(counts) and counts[0] <= most[0] and counts[1] <= most[1]


@dataclass(eq=False)
class CallAccounting:
    """Acquires permits and budget for attempts, and settles them by outcome."""

    admission: Admission
    account: BudgetAccount
    meter: Meter
    _: KW_ONLY
    telemetry: Telemetry | None
    wall: Callable[[], float]
    #: Whether the provider has responded to any request.
    reached: bool = False
    #: The largest ratio of actual to estimated input tokens, 1 to `_MOST_OVERRUN`.
    overrun: float = 1.0

    def try_acquire(self, call: Call) -> Permit | None:
        """Return a permit if nothing needs to be waited for."""
        return None if self.account.bounded else self.admission.try_acquire(*call.size)

    async def acquire(self, call: Call) -> Permit:
        """Wait for budget and a permit for the call as it is to be sent then."""
        while True:
            permit, fits = await self._acquire(call), False
            try:
                fits = self.refresh(call)
            finally:
                if not fits:
                    self.admission.abandoned(permit)
            if fits:
                return permit

    def refresh(self, call: Call) -> bool:
        """Encode a call anew that has waited; return False if it needs another reservation.

        Others may have changed the encoding meanwhile: without this, each call of a long queue
        would be refused once more.
        """
        if call.wire is None:
            return True
        body = call.wire.encode(call.request)
        if body == call.body:
            return True
        former, call.body, call.size = call.size, body, call.wire.reserve(call.request)
        if call.reservation is None or (call.size[0] <= former[0] and call.size[1] <= former[1]):
            return True
        self.release(call)
        return False

    async def _acquire(self, call: Call) -> Permit:
        """Wait for budget, then for a permit: holders of a permit never wait for budget."""
        input_tokens, output_tokens = call.size
        if self.account.bounded and call.reservation is None:
            price = self.meter.price
            at_worst = ceil(input_tokens * self.overrun)
            usd = 0 if price is None else price.worst(at_worst, output_tokens)
            # stored on the call before anything else awaits, so that it is always released
            call.reservation = await self.account.reserve(usd, at_worst + output_tokens)
        permit = self.admission.try_acquire(input_tokens, output_tokens)
        if permit is None:
            permit = await self.admission.acquire(input_tokens, output_tokens, again=call.sends > 0)
        return permit

    def release(self, call: Call) -> None:
        """Free the reservation of a call, if it has one: nothing was billed."""
        if call.reservation is not None:
            self.account.release(call.reservation)
            call.reservation = None

    def read(self, call: Call, permit: Permit, answer: HTTPAnswer) -> Reply:
        """Turn an HTTP response into a reply or an error, and settle it."""
        wire = call.wire
        assert wire is not None
        self.reached = True
        self.admission.observe(permit, answer.headers)
        if answer.status in OK:
            try:
                reply = wire.decode(call.request, answer.data)
            except BaseException as error:
                if isinstance(error, errors.ProviderError) and error.request_id is None:
                    shown = getattr(wire, "shown", str)
                    error.request_id = shown(request_id(answer.headers) or "") or None
                if isinstance(error, errors.ProviderError) and not isinstance(
                    error, errors.ReplyError
                ):
                    self._refused(call, permit, error)  # proxies send errors with status 200
                else:
                    # billed although unusable
                    self._book(call, permit, getattr(error, "usage", None))
                raise
            return self.accept(call, permit, reply)
        failure: Exception | None = None
        seconds = retry_after(answer.headers, self.wall())
        try:
            failure = wire.error(answer.status, answer.headers, answer.data)
            if seconds is None and isinstance(failure, errors.ProviderError):
                seconds = failure.retry_after
        finally:
            # an exhausted quota is a 429 too, but waiting does not help against it
            busy = answer.status in _BUSY or isinstance(failure, errors.RateLimitedError)
            if busy and (failure is None or is_retryable(failure)):
                self.admission.refused(permit, seconds)
            elif isinstance(failure, errors.ReplyError):
                # the model answered, and only the server refused the answer: perhaps billed
                self._book(call, permit, None)
            else:
                self._failed(call, permit, answer.status)
        recover = getattr(wire, "recover", None)
        if recover is not None and isinstance(failure, errors.ReplyError) and failure.content:
            recovered: Reply = recover(call.request, failure)
            return recovered
        if isinstance(failure, errors.ProviderError) and failure.retry_after is None:
            failure.retry_after = seconds
        raise failure

    def accept(self, call: Call, permit: Permit, reply: Reply) -> Reply:
        """Settle a reply; raise the error of a single text."""
        self._book(call, permit, reply.usage)
        if len(call.request.texts) == 1 and len(reply.answers) == 1:
            answer = reply.answers[0]
            if isinstance(answer, errors.ReplyError):
                raise answer
        return reply

    def failed(
        self,
        call: Call,
        permit: Permit,
        raised: BaseException,
        timeout: errors.CallTimeoutError | None,
    ) -> BaseException:
        """Settle an attempt without a response, and return the error to raise.

        `timeout` is set if the attempt's own timer ended it.
        """
        if isinstance(raised, errors.ReplyError):  # from a custom provider
            self._book(call, permit, getattr(raised, "usage", None))
            return raised
        if isinstance(raised, errors.ProviderError):
            self._refused(call, permit, raised)
            if isinstance(raised, (errors.CallTimeoutError, errors.ConnectionFailedError)):
                self._keep(call)
            return raised
        error = raised if call.wire is None else translate(raised, call.wire)
        if isinstance(error, errors.ConnectionFailedError):
            # of an error the beginning suffices, so that a part was one of an answer
            error.answered = _is_unreadable(raised) or isinstance(
                raised, aiohttp.ClientPayloadError
            )
            # one machine of a server that had a certificate which is trusted has another for now
            error.retryable |= self.reached
            error.fatal &= not self.reached
        if timeout is not None:
            error = timeout
        elif isinstance(raised, NEVER_SENT):
            # never sent, so never billed: the reservation serves the next attempt
            call.unsent = True
            call.refusals += 1
            if is_retryable(error):
                self.admission.refused(permit, load=False)
            else:
                self.admission.failed(permit)
            return error
        elif isinstance(error, errors.ProviderError) and _is_unreadable(raised):
            error.retryable = error.retryable and not was_last(call)
            self._book(call, permit, None)
            return error
        self.admission.failed(permit)
        if not isinstance(error, errors.ConfigurationError):
            self._keep(call)
        return error

    def _book(self, call: Call, permit: Permit, usage: TokenUsage | None) -> None:
        """Count an answered call, and settle its permit and reservation."""
        if usage is not None and not is_possible(usage, call.size if call.wire else None):
            usage = None
        pico_usd = self.meter.add(usage)
        if self.telemetry is not None:
            self.telemetry.billed(usage, pico_usd)
        if usage is None:
            self.admission.answered(permit)
            self._keep(call, lost=0)
            return
        self.admission.answered(permit, usage.input_tokens, usage.output_tokens)
        if call.reservation is not None:
            ratio = usage.input_tokens / max(1, call.size[0])
            self.overrun = max(self.overrun, min(ratio, _MOST_OVERRUN))
            tokens = usage.input_tokens + usage.output_tokens
            if pico_usd is None and self.meter.price is not None:
                # answered in a service tier whose price is unknown
                self._keep(call, lost=0)
                return
            self.account.settle(call.reservation, pico_usd or 0, tokens)
            call.reservation = None

    def _keep(self, call: Call, *, lost: int = 1) -> None:
        """Book the whole reservation: the attempt may have been billed, the amount is unknown."""
        self.meter.incomplete += lost
        if call.reservation is not None:
            self.account.keep(call.reservation)
            call.reservation = None

    def _refused(self, call: Call, permit: Permit, error: errors.ProviderError) -> None:
        if isinstance(error, errors.RateLimitedError) and error.retryable:
            self.admission.refused(permit, error.retry_after)
        else:
            self._failed(call, permit, error.status_code)

    def _failed(self, call: Call, permit: Permit, status: int | None) -> None:
        self.admission.failed(permit)
        if status in _LATE:
            self._keep(call)
