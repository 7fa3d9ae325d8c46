"""Auxiliary HTTP requests (not rate-limited): uploads, downloads, and polling of batch jobs.

Providers count them apart from calls. They are retried after the same failures and by the same
policy as calls.
"""

import asyncio
import io
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from random import Random
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from testnuc.errors import AuthenticationError, CallTimeoutError, ProviderError, ServerError
from testnuc.limits.concurrency import LONG
from testnuc.limits.headers import retry_after
from testnuc.limits.policies import RetryPolicy
from testnuc.protocols import WireProvider
from testnuc.transport.connections import MOST_BYTES, OK, Connections, HTTPAnswer, read_response
from testnuc.transport.failures import host, is_retryable, safe_cause, translate
from testnuc.transport.retries import backoff

T = TypeVar("T")

_log = logging.getLogger("testnuc.transport")

#: Most bytes of a download: results of 100,000 requests have a few GB at most.
_MOST_OF_DOWNLOAD = 8 * 2**30
#: Lines after which other tasks may run.
_LINES_AT_ONCE = 500
#: Most seconds of a download.
_MOST_SECONDS = 3_600.0
#: Additional seconds for each byte of an upload, for slow connections.
_SECONDS_PER_BYTE = 1 / 50_000


@dataclass(eq=False)
class AuxiliaryRequests:
    """Sends HTTP requests other than calls."""

    connections: Connections
    retry: RetryPolicy
    _: KW_ONLY
    rng: Random
    clock: Callable[[], float]
    wall: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]

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
        """Send a request, with retries; the response has a status of success.

        `again=False` is for requests that must not be executed twice, as a failure does not show
        whether the request was executed.
        """

        async def attempt() -> HTTPAnswer:
            async with _within(self.retry.timeout + len(body) * _SECONDS_PER_BYTE, provider):
                # a large body that is not a file would block the event loop
                file = io.BytesIO(body) if body else None
                answer = await self.connections.request(
                    provider, method, url, data=file, content_type=content_type
                )
            self._check(provider, answer.status, answer.headers, answer.data)
            return answer

        return await self._with_key(
            provider, lambda: self._retried(attempt) if again else attempt()
        )

    async def read_lines(
        self, provider: WireProvider, url: str, take: Callable[[bytes], None]
    ) -> None:
        """Pass the lines of a download, without their ends, to `take` as they arrive.

        If the connection breaks, the download starts again, and `take` receives its lines a second
        time. A line that is longer than any response is left out.
        """

        async def attempt() -> None:
            rest, size = bytearray(), 0
            patience = self.retry.timeout
            loop = asyncio.get_running_loop()
            stop = loop.time() + _MOST_SECONDS
            async with (
                _within(patience, provider) as timer,
                self.connections.stream(provider, url) as response,
            ):
                if response.status not in OK:
                    answer = await read_response(response, MOST_BYTES, provider, ServerError)
                    self._check(provider, *answer)
                while piece := await response.content.readany():
                    # the whole download may take long, but it must not stall
                    timer.reschedule(min(loop.time() + patience, stop))
                    size += len(piece)
                    *ended, begun = piece.split(b"\n")
                    for number, part in enumerate(ended):
                        _pass_on(rest + part, take)
                        rest.clear()
                        # a fast connection must not starve other tasks
                        if number % _LINES_AT_ONCE == 0:
                            await asyncio.sleep(0)
                    rest += begun
                    # of a line that is too long, what shows that it is
                    del rest[MOST_BYTES + 1 :]
                    if size > _MOST_OF_DOWNLOAD:
                        endless = ServerError(
                            f"the download from {host(provider)} is longer than "
                            f"{_MOST_OF_DOWNLOAD / 2**30:g} GB, and no batch job has such results; "
                            "check base_url"
                        )
                        endless.retryable = False
                        raise endless
                    await asyncio.sleep(0)
            _pass_on(rest, take)

        await self._with_key(provider, lambda: self._retried(attempt))

    async def _with_key(self, provider: WireProvider, run: Callable[[], Awaitable[T]]) -> T:
        """Run a request; again with another key if a key that can expire was rejected."""
        keys = getattr(provider, "keys", None)
        key = None if keys is None else await keys.current(self.retry.deadline)
        try:
            return await run()
        except AuthenticationError:
            # rejected before it was executed, so it may be sent again in any case
            if keys is None:
                raise
            await keys.replace(key, self.retry.deadline)
            return await run()

    async def _retried(self, attempt: Callable[[], Awaitable[T]]) -> T:
        started = self.clock()

        def gives_up(state: RetryCallState) -> bool:
            since = self.clock() - started + state.upcoming_sleep
            return since >= self.retry.deadline or state.attempt_number >= self.retry.attempts

        retrying = AsyncRetrying(
            sleep=self.sleep,
            retry=retry_if_exception(is_retryable),
            wait=self._wait,
            stop=gives_up,
            reraise=True,
        )
        return await retrying(attempt)

    def _wait(self, state: RetryCallState) -> float:
        asked = getattr(state.outcome and state.outcome.exception(), "retry_after", None)
        seconds = backoff(self.retry, state.attempt_number, asked, self.rng)
        level = logging.WARNING if asked is not None and seconds > LONG else logging.DEBUG
        _log.log(level, "the provider refused a request; retrying in %.0f s", seconds)
        return seconds

    def _check(
        self, provider: WireProvider, status: int, headers: Mapping[str, str], data: bytes
    ) -> None:
        if status in OK:
            return
        error = provider.error(status, headers, data)
        if isinstance(error, ProviderError) and error.retry_after is None:
            error.retry_after = retry_after(headers, self.wall())
        raise error


def _pass_on(line: bytearray, take: Callable[[bytes], None]) -> None:
    """Pass a line of a download on, unless it is empty, or longer than any response."""
    if len(line) > MOST_BYTES:
        _log.warning("a line of a download is left out: it has more than %d bytes", MOST_BYTES)
    elif line:
        take(bytes(line))


@asynccontextmanager
async def _within(seconds: float, provider: WireProvider) -> AsyncIterator[asyncio.Timeout]:
    """Bound the time of a request, and translate its failures."""
    try:
        async with asyncio.timeout(seconds) as timer:
            yield timer
    except TimeoutError:
        raise CallTimeoutError(
            f"no complete response from {host(provider)} within {seconds:g} s; if the "
            "connection is slow, raise the timeout of the retry policy"
        ) from None
    except ProviderError:
        raise
    except Exception as raised:  # noqa: BLE001 - translated
        raise translate(raised, provider) from safe_cause(raised)
