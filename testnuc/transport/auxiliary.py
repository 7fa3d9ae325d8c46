"""Requests that are no calls: uploads, downloads, and questions about batches.

They take no part in the limits of calls, which providers count apart, but are sent again after the
same failures and by the same policy.
"""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING, TypeVar

from tenacity import AsyncRetrying, retry_if_exception

from testnuc.errors import CallTimeoutError, ProviderError
from testnuc.limits import retry_after
from testnuc.transport.failures import holds_secrets, host, is_retryable, translate
from testnuc.transport.retries import backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from random import Random

    from tenacity import RetryCallState

    from testnuc.limits import RetryPolicy
    from testnuc.protocols import WireProvider
    from testnuc.transport.connections import Connections, HTTPAnswer

    T = TypeVar("T")

__all__ = ["Exchanges"]

_OK = 200
#: An upload gets so many more seconds for each byte: a slow line is no fault.
_SECONDS_PER_BYTE = 1 / 50_000


class Exchanges:
    """Sends requests other than calls.

    Parameters
    ----------
    connections : Connections
    retry : RetryPolicy
    rng, clock, wall, sleep
        As for the transport.
    """

    def __init__(
        self,
        connections: Connections,
        retry: RetryPolicy,
        *,
        rng: Random,
        clock: Callable[[], float],
        wall: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._connections = connections
        self._retry = retry
        self._rng = rng
        self._clock = clock
        self._wall = wall
        self.sleep = sleep

    async def send(
        self,
        provider: WireProvider,
        method: str,
        url: str,
        body: bytes = b"",
        *,
        content_type: str = "application/json",
        again: bool = True,
    ) -> HTTPAnswer:
        """Send a request, and again where that can help.

        Parameters
        ----------
        provider : WireProvider
            Whose headers it gets, and who reads errors.
        method, url : str
        body : bytes
        content_type : str
        again : bool
            False: once. What it does must not be done twice, and its failure does not tell whether
            it was done.

        Returns
        -------
        HTTPAnswer
            A 200.

        Raises
        ------
        ProviderError
            It failed, the last time.
        """

        async def attempt() -> HTTPAnswer:
            seconds = self._retry.timeout + len(body) * _SECONDS_PER_BYTE
            try:
                async with asyncio.timeout(seconds):
                    answer = await self._connections.request(
                        provider,
                        method,
                        url,
                        # a large body that is no file would hold up the event loop
                        data=io.BytesIO(body) if body else None,
                        content_type=content_type,
                    )
            except TimeoutError:
                raise self._timeout(provider, seconds) from None
            except Exception as raised:  # noqa: BLE001 - said in our own terms
                raise _told(raised, provider) from (None if holds_secrets(raised) else raised)
            self._check(provider, answer.status, answer.headers, answer.data)
            return answer

        return await (self._persist(attempt) if again else attempt())

    async def read_lines(
        self, provider: WireProvider, url: str, take: Callable[[bytes], None]
    ) -> None:
        """Pass the lines of a download on as they come.

        Parameters
        ----------
        provider : WireProvider
        url : str
        take : callable
            Told each line, without its end. Where the connection breaks, the download is begun
            anew, so that it is told lines a second time.

        Raises
        ------
        ProviderError
            It failed, the last time.
        """

        async def attempt() -> None:
            rest = b""
            patience = self._retry.timeout
            loop = asyncio.get_running_loop()
            try:
                async with (
                    asyncio.timeout(patience) as timer,
                    self._connections.stream(provider, url) as response,
                ):
                    if response.status != _OK:
                        data = await response.read()
                        self._check(provider, response.status, response.headers, data)
                    while piece := await response.content.readany():
                        # it may take long as a whole, but not stand still
                        timer.reschedule(loop.time() + patience)
                        *lines, rest = (rest + piece).split(b"\n")
                        for line in lines:
                            take(line)
                        # a fast line must not keep all others from their turn
                        await asyncio.sleep(0)
            except TimeoutError:
                raise self._timeout(provider, self._retry.timeout) from None
            except ProviderError:
                raise
            except Exception as raised:  # noqa: BLE001 - said in our own terms
                raise _told(raised, provider) from (None if holds_secrets(raised) else raised)
            if rest:
                take(rest)

        await self._persist(attempt)

    async def _persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        started = self._clock()

        def gives_up(state: RetryCallState) -> bool:
            since = self._clock() - started + state.upcoming_sleep
            return since >= self._retry.deadline or state.attempt_number >= self._retry.attempts

        retrying = AsyncRetrying(
            sleep=self.sleep,
            retry=retry_if_exception(is_retryable),
            wait=self._wait,
            stop=gives_up,
            reraise=True,
        )
        found: T = await retrying(attempt)
        return found

    def _wait(self, state: RetryCallState) -> float:
        error = None if state.outcome is None else state.outcome.exception()
        told = getattr(error, "retry_after", None)
        return backoff(self._retry, state.attempt_number, told, self._rng)

    def _check(
        self, provider: WireProvider, status: int, headers: Mapping[str, str], data: bytes
    ) -> None:
        if status == _OK:
            return
        error = provider.error(status, headers, data)
        if isinstance(error, ProviderError) and error.retry_after is None:
            error.retry_after = retry_after(headers, self._wall())
        raise error

    def _timeout(self, provider: WireProvider, seconds: float) -> CallTimeoutError:
        return CallTimeoutError(
            f"no whole answer from {host(provider)} within {seconds:g} s; raise "
            "RetryPolicy(timeout=..) if the line is that slow"
        )


def _told(raised: Exception, provider: WireProvider) -> BaseException:
    return raised if isinstance(raised, ProviderError) else translate(raised, provider)
