"""Load shedding: limits of pending texts and of unfinished bodies, and when to retry."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from aiohttp import web

from testnuc.server.errors import RequestError

#: Seconds over which throughput is averaged.
_MEMORY = 10.0
_LONGEST = 60
#: Most bytes of all unfinished bodies, or as many bodies of the largest size.
_LEAST_BYTES, _LEAST_BODIES = 64 * 1024 * 1024, 4
#: Bytes at the start of a body that do not count, so that small requests are always accepted: the
#: limit of connections bounds them.
_SMALL = 64 * 1024


class Queue:
    """Counts pending texts, and rejects requests over a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        #: Texts being labeled or waiting.
        self.pending = 0
        self._done = 0.0
        self._since = time.monotonic()
        self._empty = asyncio.Event()
        self._empty.set()

    @contextmanager
    def admit(self, texts: int) -> Iterator[Callable[[], None]]:
        """Count texts as pending until the context ends; over the limit, respond with 429.

        Yields a function that one of them leaves by, before that.
        """
        if self.pending + texts > self.limit:
            after = self.retry_after(texts)
            raise RequestError(
                429,
                "queue_full",
                f"{self.pending} texts are pending, of at most {self.limit}; retry in {after} s",
                retry_after=after,
            )
        self.pending += texts
        self._empty.clear()
        left = texts

        def leave(done: int = 1) -> None:
            nonlocal left
            left -= done
            self._leave(done)

        try:
            yield leave
        finally:
            leave(left)

    def retry_after(self, texts: int) -> int:
        """Return the whole seconds until there is room, at the present throughput."""
        throughput = self._recent(time.monotonic()) / _MEMORY
        wanted = self.pending + texts - self.limit
        return min(max(1, math.ceil(wanted / throughput)), _LONGEST) if throughput > 0 else 1

    async def empty(self) -> None:
        """Wait until no text is pending."""
        await self._empty.wait()

    def _leave(self, texts: int) -> None:
        now = time.monotonic()
        self._done = self._recent(now) + texts
        self._since = now
        self.pending -= texts
        if not self.pending:
            self._empty.set()

    def _recent(self, now: float) -> float:
        return self._done * math.exp((self._since - now) / _MEMORY)


class Bodies:
    """Reads bodies of at most `largest` bytes, and rejects what exceeds `limit` in total."""

    def __init__(self, largest: int, timeout: float) -> None:
        self.largest = largest
        self.limit = max(_LEAST_BYTES, _LEAST_BODIES * largest)
        #: Bytes of unfinished bodies that count.
        self.pending = 0
        #: Connections whose body has not arrived in full, and since when.
        self.receiving: dict[asyncio.BaseProtocol, float] = {}
        self._timeout = timeout

    @asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[bytes]:
        """Yield the body of a request; its bytes count until the context ends."""
        if request.content_type != "application/json":
            # also protects from pages in a local browser, which would need a CORS preflight
            raise _unsupported(
                f"Content-Type is {request.content_type!r}; send JSON with 'Content-Type: "
                "application/json'"
            )
        if "Content-Encoding" in request.headers:
            raise _unsupported("the body is compressed; send it without Content-Encoding")
        self._check_size(request.content_length or 0)
        body, counted = bytearray(), 0
        self.receiving[request.protocol] = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout):
                # not request.read(), which would keep a copy for as long as the request lasts
                while part := await request.content.readany():
                    self._check_size(len(body) + len(part))
                    body += part
                    more = max(0, len(body) - _SMALL) - counted
                    counted += more
                    self.pending += more
                    if counted and self.pending > self.limit:
                        raise RequestError(
                            503,
                            "busy",
                            "too many large requests arrive at the same time; retry in 5 s, or "
                            "send fewer texts per request",
                            retry_after=5,
                            close=True,
                        )
            del self.receiving[request.protocol]
            yield bytes(body)
        except TimeoutError as exc:
            message = f"the body did not arrive within {self._timeout:g} s"
            raise RequestError(408, "slow_body", message, close=True) from exc
        finally:
            self.receiving.pop(request.protocol, None)
            self.pending -= counted

    def _check_size(self, size: int) -> None:
        if size > self.largest:
            message = f"the body has more than {self.largest:,} bytes; send fewer texts per request"
            raise RequestError(413, "body_too_large", message, close=True)


def _unsupported(message: str) -> RequestError:
    return RequestError(415, "unsupported_media_type", message, close=True)
