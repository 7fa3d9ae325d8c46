"""A worker's side of the limits that it shares: admission and budget of its transport."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from testnuc.errors import TestNUCError
from testnuc.limits import Permit, Reservation

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from testnuc.limits import Budget, Mark
    from testnuc.ray.limits_actor import LimitsCall

#: Headers with the limits of a provider.
_LIMIT_HEADERS = ("x-ratelimit-", "anthropic-ratelimit-")
#: Seconds between two calls of `settle` at most: the worker is alive.
_HEARTBEAT = 5.0
#: Most in-flight calls of `acquire`: one waits, and one has new requests.
_MOST_POLLS = 2


class _RemotePermit(Permit):
    __slots__ = ("headers", "number")

    def __init__(self, number: int, sent_at: float, size: tuple[int, int]) -> None:
        super().__init__(sent_at, size[0], size)
        self.number = number
        #: Rate limit headers of the answer.
        self.headers: dict[str, str] | None = None


class _RemoteReservation(Reservation):
    __slots__ = ("number",)

    def __init__(self, number: int, amounts: tuple[int, int, int]) -> None:
        super().__init__(amounts)
        self.number = number


class LimitsClient:
    """Admits the calls of one worker, and reserves money for them, as `SharedLimits` grants it.

    Is both an `AdmissionControl` and a `BudgetControl` of `testnuc.limits.protocols`; belongs to
    one event loop.

    Parameters
    ----------
    limits : SharedLimits or actor handle
    counts : callable
        Returns the counters of the worker's meter.
    actor : str
        The id of the Ray actor that it lives in; the same after a restart.
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
        self._acquire = getattr(limits.acquire, "remote", limits.acquire)
        self._settle = getattr(limits.settle, "remote", limits.settle)
        self._counts = counts
        self._bounds_tokens = budget is not None and (
            budget.usd is not None or budget.tokens is not None
        )
        unique = uuid4().hex
        self._worker = (actor or unique, unique)
        self._clock = clock
        self._numbers = count()
        self._requests: list[LimitsCall] = []
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._polls = 0
        self._settled: list[LimitsCall] = []
        self._news = asyncio.Event()
        self._sending = asyncio.Lock()
        #: Why the limits cannot be reached.
        self.broken: Exception | None = None

    def open(self) -> None:
        """Start to send settlements and heartbeats."""
        self._start(self._send_settlements(), "testnuc-settle")

    async def close(self) -> None:
        """Cancel all calls of the actor."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def flush(self) -> None:
        """Wait until all settlements and the counters of the meter have arrived."""
        async with self._sending:
            settled, self._settled = self._settled, []
            try:
                await self._settle(self._worker, settled, self._counts())
            except Exception as error:  # noqa: BLE001 - raised where calls are admitted
                self._break(error)

    # -- admission -------------------------------------------------------------------------------

    @property
    def pause(self) -> float:
        """0: only the actor knows of a pause."""
        return 0.0

    def try_acquire(self, input_tokens: int = 0, max_output_tokens: int = 0) -> None:
        """Return None: every permit comes from the actor."""
        del input_tokens, max_output_tokens

    async def acquire(
        self, input_tokens: int = 0, max_output_tokens: int = 0, *, again: bool = False
    ) -> Permit:
        """Wait until a call may be sent."""
        size = (input_tokens, max_output_tokens)
        number = await self._request("acquire", *size, again=again)
        return _RemotePermit(number, self._clock(), size)

    def observe(self, permit: Permit, headers: Mapping[str, str]) -> None:
        """Keep the rate limit headers until the permit is returned."""
        assert isinstance(permit, _RemotePermit)
        found = {k.lower(): v for k, v in headers.items() if k.lower().startswith(_LIMIT_HEADERS)}
        if found:
            # the server's clock, to read the dates in the others
            permit.headers = found | {"Date": headers.get("Date", "")}

    def answered(
        self, permit: Permit, input_tokens: int | None = None, output_tokens: int | None = None
    ) -> None:
        """Return a permit after an answer."""
        self._return_permit(permit, "answered", input_tokens, output_tokens)

    def refused(self, permit: Permit, wait: float | None = None, *, load: bool = True) -> None:
        """Return a permit after the server refused the request."""
        self._return_permit(permit, "refused", wait, load=load)

    def failed(self, permit: Permit) -> None:
        """Return a permit after any other failure."""
        self._return_permit(permit, "failed")

    def abandoned(self, permit: Permit) -> None:
        """Return a permit whose request was never sent."""
        self._return_permit(permit, "abandoned")

    def _return_permit(self, permit: Permit, method: str, *facts: Any, **options: Any) -> None:
        assert isinstance(permit, _RemotePermit)
        self._send(permit.number, method, permit.headers, *facts, **options)

    # -- budget ----------------------------------------------------------------------------------

    @property
    def bounds_tokens(self) -> bool:
        """Whether tokens, or the money they cost, are bounded."""
        return self._bounds_tokens

    async def reserve(
        self,
        pico_usd: int,
        tokens: int,
        calls: int = 1,
        *,
        batch: bool = False,  # noqa: ARG002 - workers have no batch lane
    ) -> Reservation:
        """Reserve the worst case of a call, once the budget has room for it."""
        number = await self._request("reserve", pico_usd, tokens, calls)
        return _RemoteReservation(number, (pico_usd, tokens, calls))

    def settle(self, reservation: Reservation, pico_usd: int, tokens: int, calls: int = 1) -> None:
        """Book the actual cost of a call."""
        self._close(reservation, "settle", pico_usd, tokens, calls)

    def book(self, pico_usd: int, tokens: int, calls: int) -> None:
        """Book a cost that was not reserved."""
        self._send(-1, "book", pico_usd, tokens, calls)

    def keep(self, reservation: Reservation) -> None:
        """Book the whole reservation."""
        self._close(reservation, "keep")

    def release(self, reservation: Reservation) -> None:
        """Free a reservation."""
        self._close(reservation, "release")

    def _close(self, reservation: Reservation, method: str, *amounts: int) -> None:
        assert isinstance(reservation, _RemoteReservation)
        if reservation.open:
            reservation.open = False
            self._send(reservation.number, method, *amounts)

    # -- calls of the actor ----------------------------------------------------------------------

    def _send(self, number: int, method: str, *arguments: Any, **options: Any) -> None:
        self._settled.append((number, method, arguments, options))
        self._news.set()

    async def _request(self, method: str, *arguments: Any, **options: Any) -> int:
        """Wait until a permit or a reservation is granted; returns its number."""
        if self.broken is not None:
            raise self.broken
        number = next(self._numbers)
        granted = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._requests.append((number, method, arguments, options))
        if self._polls < _MOST_POLLS:
            self._polls += 1
            self._start(self._poll(), "testnuc-acquire")
        try:
            await granted
        except asyncio.CancelledError:
            # granted or not by now: it is returned
            self._send(number, "cancel")
            raise
        finally:
            self._waiting.pop(number, None)
        return number

    async def _poll(self) -> None:
        """Send requests, and resolve what is granted, for as long as one waits."""
        while self.broken is None and (self._requests or (self._waiting and self._polls == 1)):
            requests, self._requests = self._requests, []
            try:
                granted = await self._acquire(self._worker, requests)
            except Exception as error:  # noqa: BLE001 - raised where calls are admitted
                self._break(error)
                break
            for number, refusal in granted:
                future = self._waiting.get(number)
                if future is None or future.done():
                    continue
                if refusal is None:
                    future.set_result(None)
                else:
                    future.set_exception(refusal)
        self._polls -= 1

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_settlements(self) -> None:
        while self.broken is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_HEARTBEAT):
                    await self._news.wait()
            self._news.clear()
            await self.flush()

    def _break(self, error: Exception) -> None:
        """Fail all requests, those that wait and later ones."""
        self.broken = TestNUCError(f"the shared limits of this job cannot be reached: {error}")
        self.broken.__cause__ = error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self.broken)
