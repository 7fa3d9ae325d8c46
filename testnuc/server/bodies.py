"""Request bodies on their way: a bound on the bytes of each, and of all of them together."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from testnuc.server.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web

#: Most bytes of all unfinished bodies, or as many bodies of the largest size.
_LEAST_BYTES, _LEAST_BODIES = 64 * 1024 * 1024, 4
#: Bytes at the start of a body that do not count, so that small requests are always accepted: the
#: limit of connections bounds them.
_SMALL = 64 * 1024


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
                            headers={"Retry-After": "5"},
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
