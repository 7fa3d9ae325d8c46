"""Request bodies on their way: a bound on the bytes of all of them together."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from testnuc.server.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiohttp import web

__all__ = ["Bodies", "BodySize", "too_large"]

#: Most bytes of all unfinished bodies, or as many bodies of the largest size.
_LEAST_BYTES, _LEAST_BODIES = 64 * 1024 * 1024, 4
#: Bytes at the start of a body that do not count, so that small requests are always accepted: the
#: limit of connections bounds them.
_SMALL = 64 * 1024


class Bodies:
    """Reads bodies of at most `largest` bytes, and rejects what exceeds `limit` in total."""

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self.limit = max(_LEAST_BYTES, _LEAST_BODIES * largest)
        #: Bytes of unfinished bodies that count.
        self.pending = 0

    @contextmanager
    def counted(self) -> Iterator[BodySize]:
        """Count a body until the context ends."""
        size = BodySize(self)
        try:
            yield size
        finally:
            self.pending -= size.counted

    async def read(self, request: web.Request, size: BodySize) -> bytes:
        """Return the body; too many bytes are 413, and 503 if those of all are too many."""
        body = bytearray()
        # not request.read(), which would keep a copy for as long as the request lasts
        while part := await request.content.readany():
            size.grow(len(part))
            body += part
        return bytes(body)


class BodySize:
    """The bytes of one body so far."""

    __slots__ = ("_bodies", "counted", "total")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self.total = self.counted = 0

    def grow(self, more: int) -> None:
        """Add bytes that have arrived."""
        bodies = self._bodies
        self.total += more
        if self.total > bodies.largest:
            raise too_large(bodies.largest)
        counted = max(0, self.total - _SMALL)
        bodies.pending += counted - self.counted
        self.counted = counted
        if counted and bodies.pending > bodies.limit:
            raise RequestError(
                503, "busy",
                "too many large requests arrive at the same time; retry in 5 s, or send fewer "
                "texts per request", headers={"Retry-After": "5"}, close=True,
            )  # fmt: skip


def too_large(largest: int) -> RequestError:
    """Return the error for a body that is larger than allowed."""
    return RequestError(
        413, "body_too_large",
        f"the body has more than {largest:,} bytes; send fewer texts per request", close=True,
    )  # fmt: skip
