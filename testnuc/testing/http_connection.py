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

__all__ = ["Connection", "Delivery", "ReceivedRequest", "Response", "Site", "header"]

#: How a response reaches the client; all but ``whole``, ``slow`` and ``reset-after`` lose it.
Delivery = Literal["whole", "slow", "stalled", "reset-before", "reset-within", "reset-after"]

_MAX_HEAD = 65_536
_SLOW_PIECES = 8
# close() with a linger of zero seconds sends RST where it would send FIN
_NO_LINGER = struct.pack("ii", 1, 0)


@dataclass(slots=True, eq=False)
class ReceivedRequest:
    """A request as received."""

    method: str
    #: Without the query.
    path: str
    #: Header lines, each preceded by CRLF.
    head: bytes
    body: bytes
    query: str = ""


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
    #: Whether the body was cut.
    spoiled: bool = False


class Site(Protocol):
    """What a connection asks for its responses."""

    def respond(self, call: ReceivedRequest) -> Response:
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
        while self._buffer and not self.busy and len(self._buffer) >= self._need:
            if not self._read():
                break

    def _read(self) -> bool:
        """Answer the first request in the buffer; False if it is not whole."""
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(buffer) > _MAX_HEAD:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return False
        line, _, rest = bytes(buffer[:end]).partition(b"\r\n")
        head = b"\r\n" + rest
        start = end + 4
        try:
            method, target, version = line.decode("latin-1").split(" ")
            if header(head, b"transfer-encoding") == b"chunked":
                found = _dechunk(buffer, start)
            else:
                stop = start + _size(header(head, b"content-length") or b"0", 10)
                found = (bytes(buffer[start:stop]), stop) if len(buffer) >= stop else None
                self._need = stop
        except ValueError:
            version = ""
        if not version.startswith("HTTP/1."):
            self._refuse(HTTPStatus.BAD_REQUEST)
            return False
        if found is None:
            self._invite(head)
            return False
        body, stop = found
        del buffer[:stop]
        self._need = 0
        self._continued = False
        self._close = (header(head, b"connection") or b"").lower() == b"close"
        self.busy = True
        self._site.entered()
        path, _, query = target.partition("?")
        response = self._site.respond(ReceivedRequest(method, path, head, body, query))
        if response.delay > 0:
            self._later(response.delay, self._send, response)
        else:
            self._send(response)
        return True

    def _invite(self, head: bytes) -> None:
        """Let a client that waits for permission send its body."""
        if self._transport and not self._continued and header(head, b"expect"):
            self._continued = True
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _refuse(self, status: HTTPStatus) -> None:
        self._buffer.clear()
        if self._transport:
            self._transport.write(_start(Response(status, b"")))
            self._transport.close()

    def _later(self, delay: float, step: Callable[..., None], *args: object) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay, self._resume, step, *args)

    def _resume(self, step: Callable[..., None], *args: object) -> None:
        self._timer = None
        step(*args)
        self.data_received(b"")  # what came meanwhile

    def _send(self, response: Response) -> None:
        transport = self._transport
        if transport is None:
            return
        start, body = _start(response), response.body
        half = len(body) // 2
        match response.delivery:
            case "whole":
                self._finish(response, start + body)
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
                self._finish(response, start + body)
                self.reset()

    def _dribble(self, response: Response, pieces: list[bytes]) -> None:
        if self._transport is None:
            return
        piece = pieces.pop(0)
        if pieces:
            self._transport.write(piece)
            self._later(response.duration / _SLOW_PIECES, self._dribble, response, pieces)
        else:
            self._finish(response, piece)

    def _finish(self, response: Response, rest: bytes) -> None:
        """Count the response, then write the rest: who has seen it shall find it counted."""
        if self._transport is None or self._transport.is_closing():
            return
        if response.delivered is not None:
            response.delivered()
        self._idle()
        self._transport.write(rest)
        if self._close:
            self.close()

    def _idle(self) -> None:
        if self.busy:
            self.busy = False
            self._site.left()

    def close(self) -> None:
        """Close the connection in good order."""
        self._buffer.clear()
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Close the connection with RST."""
        self._buffer.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._idle()
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


def _size(digits: bytes, base: int) -> int:
    size = int(digits, base)
    if size < 0:
        raise ValueError
    return size


def _dechunk(buffer: bytearray, start: int) -> tuple[bytes, int] | None:
    """Body of a chunked request and where it ends; None while it is not whole."""
    parts: list[bytes] = []
    while True:
        end = buffer.find(b"\r\n", start)
        if end < 0:
            return None
        size = _size(bytes(buffer[start:end]).partition(b";")[0], 16)
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
