"""Rate limit, concurrency and budget of a whole job.

`SharedLimits` holds them, in one named actor. Every worker that calls a provider has a
`LimitsClient`, which calls `grant` for each permit and reservation. Those that are returned travel
together, in calls of `settle`.

A worker that sends nothing for `SILENCE` seconds counts as dead, and so does the previous process
of an actor that was restarted: its permits are free again, and its reservations are booked in full,
because they may have been spent.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partialmethod
from itertools import count
from typing import Any
from uuid import uuid4

from testnuc.errors import TestNUCError
from testnuc.limits.admission import Admission, Permit
from testnuc.limits.budget import BudgetAccount, Mark, Meter, Reservation
from testnuc.limits.policies import Budget, Limits
from testnuc.types import Usage

#: Seconds after which a silent worker counts as dead.
SILENCE = 20.0

#: Headers with the limits of a provider.
_LIMIT_HEADERS = ("x-ratelimit-", "anthropic-ratelimit-")
#: Seconds between two calls of `settle` at most: the worker is alive.
_HEARTBEAT = 5.0

#: The actor that a worker lives in, and a name of its own: different after a restart.
WorkerId = tuple[str, str]
#: The number of a request; a method of `Admission` or `BudgetAccount`, and its arguments.
LimitsCall = tuple[int, str, tuple[Any, ...], dict[str, Any]]


@dataclass(eq=False)
class _Worker:
    """The requests of one worker that wait, and what it holds."""

    seen_at: float
    waiting: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    permits: dict[int, Permit] = field(default_factory=dict)
    reservations: dict[int, Reservation] = field(default_factory=dict)
    #: Cancelled before they arrived: calls of one worker may overtake each other.
    cancelled: set[int] = field(default_factory=set)


class SharedLimits:
    """Limits that all workers of a job share; the waits of its `RetryPolicy` bound the pauses."""

    def __init__(self, limits: Limits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._admission = Admission(limits.rate, limits.concurrency, limits.retry, clock=clock)
        self._account = BudgetAccount(limits.budget)
        self._clock = clock
        self._workers: dict[WorkerId, _Worker] = {}
        self._failure: Exception | None = None
        self._counts: dict[WorkerId, Mark] = {}

    async def grant(self, worker: WorkerId, request: LimitsCall) -> Exception | None:
        """Wait for a permit or a reservation; returns why it is refused, or None."""
        state, number = self._seen(worker), request[0]
        if number in state.cancelled:
            state.cancelled.discard(number)
            return None
        waiting = state.waiting[number] = asyncio.create_task(self._hold(state, request))
        await asyncio.wait([waiting])
        state.waiting.pop(number, None)
        if waiting.cancelled():
            # a worker that was only slow raises, instead of waiting for ever
            return TestNUCError(f"silent for more than {SILENCE:g} s")
        error = waiting.exception()
        assert error is None or isinstance(error, Exception)
        return error

    async def settle(self, worker: WorkerId, settled: Sequence[LimitsCall], counts: Mark) -> None:
        """Return permits and reservations, and note what the worker's meter has counted so far."""
        state = self._seen(worker)
        self._counts[worker] = counts
        for number, method, arguments, options in settled:
            if method == "cancel":
                self._cancel(state, number)
            # neither: it was held by a worker that was taken for dead
            elif number in state.permits:
                permit, (headers, *facts) = state.permits.pop(number), arguments
                if headers:
                    self._admission.observe(permit, headers)
                getattr(self._admission, method)(permit, *facts, **options)
            elif number in state.reservations:
                getattr(self._account, method)(state.reservations.pop(number), *arguments)

    async def usage(self) -> Usage:
        """Return what all workers counted, dead ones included."""
        return Meter.sum(self._counts.values())

    async def fail(self, error: Exception) -> None:
        """Note why the job fails; the first error stays."""
        self._failure = self._failure or error

    async def failure(self) -> Exception | None:
        """Return why the job failed: Ray's own exception holds only the text of ours."""
        return self._failure

    async def _hold(self, state: _Worker, request: LimitsCall) -> None:
        number, method, arguments, options = request
        if method == "acquire":
            state.permits[number] = await self._admission.acquire(*arguments, **options)
        else:
            state.reservations[number] = await self._account.reserve(*arguments)

    def _cancel(self, state: _Worker, number: int) -> None:
        if number in state.permits:
            self._admission.abandoned(state.permits.pop(number))
        elif number in state.reservations:
            self._account.release(state.reservations.pop(number))
        elif number in state.waiting:
            state.waiting.pop(number).cancel()
        else:
            state.cancelled.add(number)

    def _seen(self, worker: WorkerId) -> _Worker:
        """Return the state of a worker, and remove those of dead ones."""
        now = self._clock()
        state = self._workers.pop(worker, None)
        for other, silent in list(self._workers.items()):
            # the earlier process of an actor that was restarted is dead, too
            if now - silent.seen_at > SILENCE or (state is None and other[0] == worker[0]):
                self._remove(self._workers.pop(other))
        state = self._workers[worker] = state or _Worker(now)
        state.seen_at = now
        return state

    def _remove(self, state: _Worker) -> None:
        for waiting in state.waiting.values():
            waiting.cancel()
        for permit in state.permits.values():
            self._admission.failed(permit)
        for reservation in state.reservations.values():
            self._account.keep(reservation)


class LimitsClient:
    """Admits the calls of one worker, and reserves money for them, as `SharedLimits` grants it.

    Has the methods of `Admission` and `BudgetAccount` that a transport calls; there they are
    explained. Belongs to one event loop. `limits` are `SharedLimits` or the handle of their actor,
    `counts` returns the counters of the worker's meter; `actor` is the id of its Ray actor, the
    same after a restart.
    """

    def __init__(
        self,
        limits: Any,
        counts: Callable[[], Mark],
        *,
        budget: Budget | None = None,
        actor: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # methods of an actor are called by `.remote(..)`
        self._grant = getattr(limits.grant, "remote", limits.grant)
        self._settle = getattr(limits.settle, "remote", limits.settle)
        self._counts = counts
        account = BudgetAccount(budget)
        self.bounded, self.bounds_tokens = account.bounded, account.bounds_tokens
        unique = uuid4().hex
        self._worker = (actor or unique, unique)
        self._clock = clock
        self._numbers = count()
        #: The number of what is held, and the rate limit headers of an answer.
        self._held: dict[Permit | Reservation, int] = {}
        self._headers: dict[Permit, dict[str, str]] = {}
        self._sender: asyncio.Task[None] | None = None
        self._settled: list[LimitsCall] = []
        self._news = asyncio.Event()
        self._sending = asyncio.Lock()
        #: Only the actor knows of a pause.
        self.pause = 0.0
        #: Why the limits cannot be reached.
        self.broken: Exception | None = None

    def open(self) -> None:
        """Start to send settlements and heartbeats."""
        self._sender = asyncio.create_task(self._send_settlements(), name="testnuc-settle")

    async def close(self) -> None:
        """Stop to send settlements and heartbeats."""
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)

    async def flush(self) -> None:
        """Wait until all settlements and the counters of the meter have arrived."""
        async with self._sending:
            settled, self._settled = self._settled, []
            try:
                await self._settle(self._worker, settled, self._counts())
            except Exception as error:  # noqa: BLE001 - raised where calls are admitted
                self._break(error)

    def try_acquire(self, input_tokens: int = 0, max_output_tokens: int = 0) -> None:
        """Return None: every permit comes from the actor."""
        del input_tokens, max_output_tokens

    async def acquire(
        self, input_tokens: int = 0, max_output_tokens: int = 0, *, again: bool = False
    ) -> Permit:
        """Wait until a call may be sent."""
        size = (input_tokens, max_output_tokens)
        number = await self._request("acquire", *size, again=again)
        permit = Permit(self._clock(), input_tokens, size)
        self._held[permit] = number
        return permit

    def observe(self, permit: Permit, headers: Mapping[str, str]) -> None:
        """Keep the rate limit headers until the permit is returned."""
        found = {k.lower(): v for k, v in headers.items() if k.lower().startswith(_LIMIT_HEADERS)}
        if found:
            # the server's clock, to read the dates in the others
            self._headers[permit] = found | {"Date": headers.get("Date", "")}

    def _return(self, method: str, permit: Permit, *facts: Any, **options: Any) -> None:
        number, headers = self._held.pop(permit), self._headers.pop(permit, None)
        self._send(number, method, headers, *facts, **options)

    answered = partialmethod(_return, "answered")
    refused = partialmethod(_return, "refused")
    failed = partialmethod(_return, "failed")
    abandoned = partialmethod(_return, "abandoned")

    async def reserve(self, pico_usd: int, tokens: int, calls: int = 1) -> Reservation:
        """Reserve the worst case of a call, once the budget has room for it."""
        number = await self._request("reserve", pico_usd, tokens, calls)
        reservation = Reservation((pico_usd, tokens, calls))
        self._held[reservation] = number
        return reservation

    def _close(self, method: str, reservation: Reservation, *amounts: int) -> None:
        number = self._held.pop(reservation, None)
        if number is not None:
            self._send(number, method, *amounts)

    settle = partialmethod(_close, "settle")
    keep = partialmethod(_close, "keep")
    release = partialmethod(_close, "release")

    def _send(self, number: int, method: str, *arguments: Any, **options: Any) -> None:
        self._settled.append((number, method, arguments, options))
        self._news.set()

    async def _request(self, method: str, *arguments: Any, **options: Any) -> int:
        """Wait until a permit or a reservation is granted; returns its number."""
        if self.broken is not None:
            raise self.broken
        number = next(self._numbers)
        try:
            refusal = await self._grant(self._worker, (number, method, arguments, options))
        except asyncio.CancelledError:
            # granted or not by now: it is returned
            self._send(number, "cancel")
            raise
        except Exception as error:
            raise self._break(error) from error
        if refusal is not None:
            raise refusal
        return number

    async def _send_settlements(self) -> None:
        while self.broken is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_HEARTBEAT):
                    await self._news.wait()
            self._news.clear()
            await self.flush()

    def _break(self, error: Exception) -> Exception:
        """Return the error of this request and of all later ones."""
        self.broken = TestNUCError(f"the shared limits of this job cannot be reached: {error}")
        self.broken.__cause__ = error
        return self.broken
