"""Connections that are closed when a server sends what it was not asked for.

A proxy that sends a response twice, or late, would answer the next text with it. aiohttp looks for
such bytes when a connection becomes idle, and not when it is used again; and they may arrive after
the next request was sent. And it parses all heads that arrive together: ten thousand interim
responses take a second.

`ConnectionPool.post` sends a request that differs from the last one in its body alone. aiohttp's
session takes twice as long: it prepares each request anew, and starts a task for its body.
"""

import asyncio
import logging
import re
import select
import socket
import time
from collections.abc import Mapping
from functools import partial
from itertools import count
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from testnuc.transport.api_errors import request_id

_log = logging.getLogger("testnuc.transport")

#: Heads of responses in what is read at once: interim ones (1xx), and the last. In JSON a line
#: break is escaped, so a body does not look like them.
_HEAD, _MOST_HEADS = b"\nHTTP/", 32
#: Numbers of connections; an address can be used again.
_NUMBERS = count()
#: In place of a number: an id that came on several connections.
_SEVERAL = -1
#: The first id in a response, which is its own; within what a model says, quotes are escaped.
_ID = re.compile(rb'"id"\s*:\s*("[^"]+"|\d+)')
#: One that says little: Ollama draws a number below 999, other servers count, or take the time.
_FEW_DIGITS = re.compile(rb"(\D*[^0-9A-Za-z])?\d{0,13}")
#: Characters of an id that was drawn at random, and not given by a mock.
_LONG = 20
#: When a response was made. Those of mocks have a constant, or none.
_CREATED = re.compile(rb'"created(?:_at)?"\s*:\s*(\d{10})(?!\d)')
_RECENT = 3600.0
#: Of a gateway that may still get the response of the server behind it, and send it.
_OF_GATEWAYS = {408, 502, 503, 504, 522, 524}
#: Most bytes that are written at once.
_MOST_AT_ONCE = 2**16
#: Responses that are remembered, to recognize one that is repeated.
_MOST_REMEMBERED = 1024


class _Connection(ResponseHandler):
    """A connection that closes itself if bytes arrive while it is idle, or a flood of heads."""

    #: Whether no response is expected.
    idle = False
    _poll: Any = None

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.number = next(_NUMBERS)

    def set_response_params(self, **parameters: Any) -> None:
        """Expect a response."""
        self.idle = False
        super().set_response_params(**parameters)

    async def read(self) -> Any:
        """Return the head of a response, and its content."""
        message, content = await super().read()
        if message.code in _OF_GATEWAYS:
            self.force_close()
        return message, content

    def data_received(self, data: bytes) -> None:
        """Pass on what arrived, if a response is expected."""
        if data.count(_HEAD) > _MOST_HEADS:
            self.set_exception(aiohttp.ServerDisconnectedError("a flood of responses"))
            if self.transport is not None:
                self.transport.abort()
            return
        # the end of a response makes the connection idle meanwhile
        unasked = self.idle and bool(data)
        if not unasked:
            # nothing: what follows a large response may still be in the parser
            super().data_received(data)
        if self.idle and self.transport is not None and (unasked or self._buffer):
            _log.info("a connection is closed: a server sent what it was not asked for")
            self.close()

    def is_connected(self) -> bool:
        """Whether the connection can be used; an idle one only if nothing has arrived."""
        return super().is_connected() and not (self.idle and self._has_data())

    def _has_data(self) -> bool:
        """Whether the socket has bytes, or its end, that the event loop has not read yet."""
        if self._poll is None:
            if self.transport is None or not hasattr(select, "poll"):
                return False
            self._poll = select.poll()
            self._poll.register(self.transport.get_extra_info("socket"), select.POLLIN)
        return bool(self._poll.poll(0))


class Repetitions:
    """Recognizes a response that was given before: a proxy may send it twice, or cache POST by URL.

    On the connection that carried it before, the id is the same: a proxy may change the rest. On
    another one, the whole body is, and the request is not: a gateway may answer equal requests
    equally. An id that comes on several connections is one that the server gives more than once;
    so may be one of few digits. While the server, which may be a mock, gave no other id, the rest
    must be the same, too, but for spaces; on another connection the id must be long, and the body
    tell that it was made lately.
    """

    __slots__ = ("_first", "_known", "_warned")

    def __init__(self) -> None:
        #: Of each of the last responses by the hash of its id: the connection, and hashes of the
        #: request and of the body.
        self._known: dict[int, tuple[int, int, int]] = {}
        self._first = b""
        self._warned = False

    def has(
        self, connection: object, headers: Mapping[str, str], data: bytes, request: bytes
    ) -> bool:
        """Whether a complete response is a repetition; then its connection is closed."""
        known = self._known
        if not isinstance(connection, _Connection):
            return False
        own = _ID.search(data)
        name = (request_id(headers) or "").encode() if own is None else own[1].strip(b'"')
        if _FEW_DIGITS.fullmatch(name):
            return False
        mark, sent, body = hash(name), hash(request), hash(data)
        number, *before = known.get(mark, (connection.number, sent, body))
        # once ids differ, they say enough
        rest = data.translate(None, b" \t\r\n") if len(known) < 2 else self._first
        if not known:
            self._first = rest
        of_other = before[0] != sent and before[1] == body
        again = mark in known and number == connection.number and rest == self._first
        if (again or of_other) and not self._warned:
            self._warned = True
            _log.warning(
                "several requests got the same response; unless the server is a mock, a proxy or "
                "gateway repeats or caches them"
            )
        if again or (of_other and (len(known) > 1 or _is_recent(name, data))):
            connection.close()
            return True
        known[mark] = (_SEVERAL if mark in known else number, sent, body)
        if len(known) > _MOST_REMEMBERED:
            del known[next(iter(known))]
        return False


def _is_recent(name: bytes, data: bytes) -> bool:
    """Whether a server that is no mock seems to have made a response within the last hour."""
    created = _CREATED.search(data)
    long = len(name) >= _LONG and not name.isalpha()
    return long and created is not None and abs(time.time() - int(created[1])) < _RECENT


class Post:
    """A POST request but for its body: its head is encoded once.

    Raises the errors of aiohttp's session if `url` or `headers` cannot be sent.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parts = URL(url)
        self.request = aiohttp.ClientRequest("POST", parts, headers=headers)
        self.request.headers.popall("Content-Length", None)
        lines = [f"POST {parts.raw_path_qs} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in self.request.headers.items()]
        if any(sign in line for line in lines for sign in "\r\n\0"):
            raise ValueError("a header holds a line break")
        self._head = "\r\n".join([*lines, "Content-Length: "]).encode()

    def send(self, transport: asyncio.Transport | None, body: bytes) -> None:
        """Send the request with a body; does not wait, as the response may come before its end."""
        if transport is None or transport.is_closing():
            raise aiohttp.ClientConnectionResetError("the connection is closed")
        request = b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
        # in parts, or TLS would not say that a large one is not sent yet
        for start in range(0, len(request), _MOST_AT_ONCE):
            transport.write(request[start : start + _MOST_AT_ONCE])


class PostResponse:
    """A response whose head is read, as an `aiohttp.ClientResponse`."""

    __slots__ = ("_connection", "content", "headers", "protocol", "status")

    def __init__(self, connection: Connection, message: Any, content: aiohttp.StreamReader) -> None:
        self._connection = connection
        self.protocol = connection.protocol
        self.status: int = message.code
        self.headers: Mapping[str, str] = message.headers
        self.content = content
        # at its end, before anything else can arrive
        content.on_eof(connection.release)

    async def read(self) -> None:
        """Do nothing: at the end of the content the connection was released."""

    def close(self) -> None:
        """Close the connection, unless it was released."""
        self._connection.close()


class ConnectionPool(aiohttp.TCPConnector):
    """The connections of a session, at most `limit`."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit=limit)
        self._factory = partial(_Connection, loop=self._loop)  # type: ignore[assignment]

    async def _resolve_host(self, *name: Any, **more: Any) -> Any:
        try:
            return await super()._resolve_host(*name, **more)
        except (RuntimeError, KeyError) as exc:
            if not isinstance(exc, KeyError) and not isinstance(exc.__cause__, StopIteration):
                raise
            # or it would be remembered; those that waited for it find nothing there
            self.clear_dns_cache(*name[:2])
            raise socket.gaierror(socket.EAI_NONAME, "the name has no address") from exc

    async def post(self, post: Post, body: bytes, limits: aiohttp.ClientTimeout) -> PostResponse:
        """Send a request without a proxy, and read the head of the response; raises as aiohttp."""
        try:
            connection = await self.connect(post.request, [], limits)
        except TimeoutError as exc:
            raise aiohttp.ConnectionTimeoutError("no connection") from exc
        try:
            protocol = connection.protocol
            assert protocol is not None
            protocol.set_response_params(read_until_eof=True)
            post.send(protocol.transport, body)
            message, content = await protocol.read()
            while 100 <= message.code < 200 and message.code != 101:
                message, content = await protocol.read()
        except HttpProcessingError as exc:
            connection.close()
            raise aiohttp.ClientResponseError(
                post.request.request_info, (), status=exc.code, message=exc.message
            ) from exc
        except BaseException:
            connection.close()
            raise
        return PostResponse(connection, message, content)

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        transport = protocol.transport
        if transport is not None and (should_close or transport.get_write_buffer_size() > 0):
            # not `close`, which waits until the server has read the rest of the request
            transport.abort()
            should_close = True
        super()._release(key, protocol, should_close=should_close)
        if isinstance(protocol, _Connection):
            protocol.idle = True
