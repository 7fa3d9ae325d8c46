"""HTTP/1.1 as far as a test double needs it, with full control over what goes wrong.

Written on `asyncio.Protocol` because a framework would neither let a response break off where a
test wants it to, nor be cheap enough to stand opposite a client under benchmark.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Call", "Connection", "Delivery", "Response", "Site", "header"]

#: How a response reaches the client; all but ``whole``, ``slow`` and ``reset-after`` lose it.
Delivery = Literal["whole", "slow", "stalled", "reset-before", "reset-within", "reset-after"]

_MAX_HEAD = 65_536
_SLOW_PIECES = 8
# close() with a linger of zero seconds sends RST where it would send FIN
_NO_LINGER = struct.pack("ii", 1, 0)


@dataclass(slots=True, eq=False)
class Call:
    """A request as received."""

    method: str
    #: Without the query.
    path: str
    #: Header lines, each preceded by CRLF.
    head: bytes
    body: bytes


@dataclass(slots=True, eq=False)
class Response:
    """What to answer, when, and how badly."""

    status: int
    body: bytes
    #: Extra header lines, each ended by CRLF.
    headers: bytes = b""
    #: Seconds before the first byte.
    delay: float = 0.0
    delivery: Delivery = "whole"
    #: Seconds a slow or stalled delivery takes.
    duration: float = 0.0
    #: Called once the whole body is written.
    delivered: Callable[[], None] | None = None


class Site(Protocol):
    """What a connection asks for its responses."""

    def respond(self, call: Call) -> Response:
        """Answer a request."""

    def opened(self, connection: Connection) -> None:
        """Learn of a new connection."""

    def closed(self, connection: Connection, *, abandoned: bool) -> None:
        """Learn that a connection is gone; abandoned: before its response was written."""

    def entered(self) -> None:
        """Learn that a request is in flight."""

    def left(self) -> None:
        """Learn that a request is in flight no more."""


def header(head: bytes, name: bytes) -> bytes | None:
    """Value of the header `name` (lower case), or None."""
    lowered = head.lower()
    start = lowered.find(b"\r\n" + name + b":")
    if start < 0:
        return None
    start += len(name) + 3
    end = lowered.find(b"\r\n", start)
    return head[start : end if end >= 0 else None].strip()


class Connection(asyncio.Protocol):
    """One client's connection: one request at a time, kept alive between them."""

    __slots__ = (
        "_buffer",
        "_close",
        "_continued",
        "_need",
        "_site",
        "_timer",
        "_transport",
        "busy",
    )

    def __init__(self, site: Site) -> None:
        self._site = site
        self._buffer = bytearray()
        self._need = 0
        self._close = False
        self._continued = False
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        #: Whether a request is being answered.
        self.busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet nobody: HTTP clients speak first."""
        self._transport = cast("asyncio.Transport", transport)
        self._site.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Forget what was still to be sent."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        abandoned, self.busy = self.busy, False
        if abandoned:
            self._site.left()
        self._site.closed(self, abandoned=abandoned)

    def data_received(self, data: bytes) -> None:
        """Collect bytes until a request is whole."""
        self._buffer += data
        if not self.busy and len(self._buffer) >= self._need:
            self._read()

    def _read(self) -> None:
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(buffer) > _MAX_HEAD:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        line, _, rest = bytes(buffer[:end]).partition(b"\r\n")
        head = b"\r\n" + rest
        start = end + 4
        try:
            method, target, _ = line.decode("latin-1").split(" ")
            if header(head, b"transfer-encoding") == b"chunked":
                found = _dechunk(buffer, start)
            else:
                stop = start + int(header(head, b"content-length") or 0)
                found = (bytes(buffer[start:stop]), stop) if len(buffer) >= stop else None
                self._need = stop
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST)
            return
        if found is None:
            self._invite(head)
            return
        body, stop = found
        del buffer[:stop]
        self._need = 0
        self._continued = False
        self._close = (header(head, b"connection") or b"").lower() == b"close"
        self.busy = True
        self._site.entered()
        response = self._site.respond(Call(method, target.partition("?")[0], head, body))
        if response.delay > 0:
            self._later(response.delay, self._send, response)
        else:
            self._send(response)

    def _invite(self, head: bytes) -> None:
        """Let a client that waits for permission send its body."""
        if self._transport and not self._continued and header(head, b"expect"):
            self._continued = True
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _refuse(self, status: HTTPStatus) -> None:
        if self._transport:
            self._transport.write(_start(Response(status, b"")))
            self._transport.close()

    def _later(self, delay: float, step: Callable[..., None], *args: object) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay, step, *args)

    def _send(self, response: Response) -> None:
        transport = self._transport
        if transport is None:
            return
        self._timer = None
        start, body = _start(response), response.body
        half = len(body) // 2
        match response.delivery:
            case "whole":
                transport.write(start + body)
                self._done(response)
            case "slow":
                step = max(1, -(-len(body) // _SLOW_PIECES))
                pieces = [body[i : i + step] for i in range(0, len(body), step)]
                transport.write(start)
                self._dribble(response, pieces)
            case "stalled":
                transport.write(start + body[:half])
                self._later(response.duration, self.reset)
            case "reset-before":
                self.reset()
            case "reset-within":
                transport.write(start + body[:half])
                self.reset()
            case "reset-after":
                transport.write(start + body)
                self._done(response)
                self.reset()

    def _dribble(self, response: Response, pieces: list[bytes]) -> None:
        if self._transport is None:
            return
        self._transport.write(pieces.pop(0))
        if pieces:
            self._later(response.duration / _SLOW_PIECES, self._dribble, response, pieces)
        else:
            self._done(response)

    def _done(self, response: Response) -> None:
        """Count the response and turn to the next request."""
        self._timer = None
        if response.delivered is not None and not self._transport_closing():
            response.delivered()
        if self.busy:
            self.busy = False
            self._site.left()
        if self._close:
            self.close()
        elif self._buffer:
            # whatever came meanwhile waits its turn on the loop, not on this stack
            asyncio.get_running_loop().call_soon(self.data_received, b"")

    def _transport_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        """Close the connection in good order."""
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Close the connection with RST."""
        if self._timer is not None:
            self._timer.cancel()
        if self.busy:
            self.busy = False
            self._site.left()
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self._transport.abort()


def _start(response: Response) -> bytes:
    """Status line and headers."""
    return b"%s%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (
        _STATUS_LINES.get(response.status) or _status_line(response.status),
        response.headers,
        len(response.body),
    )


def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:  # 529 is Anthropic's own
        phrase = "Unknown"
    return f"HTTP/1.1 {int(status)} {phrase}\r\n".encode()


_STATUS_LINES = {200: _status_line(200)}


def _dechunk(buffer: bytearray, start: int) -> tuple[bytes, int] | None:
    """Body of a chunked request and where it ends; None while it is not whole."""
    parts: list[bytes] = []
    while True:
        end = buffer.find(b"\r\n", start)
        if end < 0:
            return None
        size = int(bytes(buffer[start:end]).partition(b";")[0], 16)
        start = end + 2
        if size == 0:
            end = buffer.find(b"\r\n", start)
            while end > start:  # trailers
                start = end + 2
                end = buffer.find(b"\r\n", start)
            return None if end < 0 else (b"".join(parts), end + 2)
        if len(buffer) < start + size + 2:
            return None
        parts.append(bytes(buffer[start : start + size]))
        start += size + 2
