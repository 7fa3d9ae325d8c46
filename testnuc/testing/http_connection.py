"""A minimal HTTP/1.1 server connection with fault injection.

Built on `asyncio.Protocol`: a web framework cannot cut off a response at a given point, and is too
slow for benchmarks of the client.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal, cast

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Connection",
    "Delivery",
    "HTTPRequest",
    "Response",
    "Traffic",
    "header",
    "json_response",
]

#: How a response is sent; all but ``whole``, ``slow`` and ``reset-after`` lose it.
Delivery = Literal["whole", "slow", "stalled", "reset-before", "reset-within", "reset-after"]

_MAX_HEAD = 65_536
_SLOW_PIECES = 8
# close() with a linger time of zero sends RST instead of FIN
_NO_LINGER = struct.pack("ii", 1, 0)


@dataclass(slots=True, eq=False)
class HTTPRequest:
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
    """A response, its delay and its faults."""

    status: int
    body: bytes
    #: Extra header lines, each terminated by CRLF.
    headers: bytes = b""
    #: Seconds before the first byte.
    delay: float = 0.0
    delivery: Delivery = "whole"
    #: Duration of a slow or stalled delivery, in seconds.
    duration: float = 0.0
    #: Called when the complete body is written.
    delivered: Callable[[], None] | None = None
    #: Whether the body was truncated.
    spoiled: bool = False


def json_response(value: object) -> Response:
    """Return a 200 response with a JSON body."""
    return Response(200, orjson.dumps(value))


@dataclass(slots=True, eq=False)
class Traffic:
    """The open connections of a server, and counts of its requests."""

    respond: Callable[[HTTPRequest], Response]
    connections: set[Connection] = field(default_factory=set)
    in_flight: int = 0
    #: Maximum of `in_flight`.
    peak: int = 0
    #: Requests whose connection was closed before the response was written.
    abandoned: int = 0


def header(head: bytes, name: bytes) -> bytes | None:
    """Return the value of the header `name` (lower case), or None."""
    lowered = head.lower()
    start = lowered.find(b"\r\n" + name + b":")
    if start < 0:
        return None
    start += len(name) + 3
    end = lowered.find(b"\r\n", start)
    return head[start : end if end >= 0 else None].strip()


class Connection(asyncio.Protocol):
    """A keep-alive connection that serves one request at a time."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._buffer = bytearray()
        self._need = 0
        self._close = False
        self._continued = False
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        #: Whether a request is being answered.
        self.busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._traffic.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Cancel a pending response and unregister the connection."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        self._traffic.abandoned += self.busy
        self._idle()
        self._traffic.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        """Buffer bytes until a request is complete."""
        self._buffer += data
        while self._buffer and not self.busy and len(self._buffer) >= self._need:
            if not self._read():
                break

    def _read(self) -> bool:
        """Handle the first request in the buffer; False if it is incomplete."""
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
            self._send_continue(head)
            return False
        body, stop = found
        del buffer[:stop]
        self._need = 0
        self._continued = False
        self._close = (header(head, b"connection") or b"").lower() == b"close"
        self.busy = True
        traffic = self._traffic
        traffic.in_flight += 1
        traffic.peak = max(traffic.peak, traffic.in_flight)
        path, _, query = target.partition("?")
        response = traffic.respond(HTTPRequest(method, path, head, body, query))
        if response.delay > 0:
            self._later(response.delay, self._send, response)
        else:
            self._send(response)
        return True

    def _send_continue(self, head: bytes) -> None:
        """Send 100 Continue to a client that expects it."""
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
        self.data_received(b"")  # requests received meanwhile

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
                self._send_slowly(response, pieces)
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

    def _send_slowly(self, response: Response, pieces: list[bytes]) -> None:
        if self._transport is None:
            return
        piece = pieces.pop(0)
        if pieces:
            self._transport.write(piece)
            self._later(response.duration / _SLOW_PIECES, self._send_slowly, response, pieces)
        else:
            self._finish(response, piece)

    def _finish(self, response: Response, rest: bytes) -> None:
        """Count the response, then write the rest, so that counts include every seen response."""
        if self._transport is None or self._transport.is_closing():
            return
        if response.delivered is not None:
            response.delivered()
        self._idle()
        self._transport.write(rest)
        if self._close:
            self.close()

    def _idle(self) -> None:
        self._traffic.in_flight -= self.busy
        self.busy = False

    def close(self) -> None:
        """Close the connection with FIN."""
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
    """Return the status line and headers."""
    return b"%s%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (
        _status_line(response.status),
        response.headers,
        len(response.body),
    )


@cache
def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:  # 529 is specific to Anthropic
        phrase = "Unknown"
    return f"HTTP/1.1 {int(status)} {phrase}\r\n".encode()


def _size(digits: bytes, base: int) -> int:
    size = int(digits, base)
    if size < 0:
        raise ValueError
    return size


def _dechunk(buffer: bytearray, start: int) -> tuple[bytes, int] | None:
    """Return the body of a chunked request and its end; None if it is incomplete."""
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
