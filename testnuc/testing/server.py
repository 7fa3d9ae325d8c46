"""The test server's socket: an aiohttp.web application that breaks connections and restarts."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import orjson
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from testnuc._base.loop_thread import Background
from testnuc.errors import InvalidInputError

HOST = "127.0.0.1"
_SLOW_PIECES = 8
# close() with a linger time of zero sends RST instead of FIN
_NO_LINGER = struct.pack("ii", 1, 0)

#: How a response is sent; all but ``whole``, ``slow`` and ``reset-after`` lose it.
Delivery = Literal[
    "whole", "slow", "stalled", "refused", "reset-before", "reset-within", "reset-after"
]


@dataclass(slots=True, eq=False)
class HTTPRequest:
    """A request as received."""

    method: str
    #: Percent-encoded, without the query.
    path: str
    #: Names are compared without case, or in lower case.
    headers: Mapping[str, str]
    body: bytes
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Response:
    """A response, its delay and its faults."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    #: Seconds before the first byte.
    delay: float = 0.0
    delivery: Delivery = "whole"
    #: Seconds that a slow, stalled or refused delivery takes.
    duration: float = 0.0
    #: Called before the last bytes are written.
    delivered: Callable[[], None] = lambda: None


def json_response(value: object) -> Response:
    """Return a 200 response with a JSON body."""
    return Response(200, orjson.dumps(value))


class Server:
    """An HTTP server on 127.0.0.1; subclasses answer requests by `respond`.

    ``async with`` serves on the running event loop, ``with`` in a background thread. A `port` of 0
    is a free one, bound on first start; all restarts use it.
    """

    def __init__(self, port: int = 0) -> None:
        self._port = port
        #: Maximum number of concurrent requests.
        self.peak = 0
        #: Requests whose client disconnected before the response was written.
        self.abandoned = 0
        #: The connections whose request is being answered.
        self._busy: set[asyncio.Transport] = set()
        self._runner: web.AppRunner | None = None
        self._socket: socket.socket | None = None
        self._reserved: socket.socket | None = None
        self._reopening: asyncio.TimerHandle | None = None
        self._accepting: set[asyncio.Task[Any]] = set()
        # the thread with the server's loop; None if the server runs on its caller's loop
        self._thread: Background | None = None

    @property
    def base_url(self) -> str:
        """Base URL for clients."""
        if not self._port:
            raise InvalidInputError(f"{type(self).__name__} has no address until it is started")
        return f"http://{HOST}:{self._port}/v1"

    @property
    def in_flight(self) -> int:
        """Current number of requests in flight."""
        return len(self._busy)

    def respond(self, call: HTTPRequest) -> Response:
        """Return the response to a request."""
        raise NotImplementedError

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        transport = request.transport
        if transport is None:  # the client has disconnected
            return web.Response()
        path, query = request.rel_url.raw_path, request.query
        call = HTTPRequest(request.method, path, request.headers, body, query)
        self._busy.add(transport)
        self.peak = max(self.peak, len(self._busy))
        try:
            response = self.respond(call)
            if response.delay > 0:
                await asyncio.sleep(response.delay)
            return await self._deliver(request, transport, response)
        except asyncio.CancelledError:
            self.abandoned += transport in self._busy
            raise
        finally:
            self._busy.discard(transport)

    async def _deliver(
        self, request: web.Request, transport: asyncio.Transport, response: Response
    ) -> web.StreamResponse:
        body, kind, status = response.body, response.delivery, response.status
        headers = {"Content-Type": "application/json", **response.headers}
        whole = web.Response(status=status, headers=headers, body=body)
        if kind == "whole":
            self._finish(transport, response)
            return whole
        if kind in {"slow", "stalled", "reset-within"}:
            part = web.StreamResponse(status=status, headers=headers)
            part.content_length = len(body)
            await part.prepare(request)
            if kind == "slow":
                step = max(1, -(-len(body) // _SLOW_PIECES))
                while len(body) > step:
                    await part.write(body[:step])
                    body = body[step:]
                    await asyncio.sleep(response.duration / _SLOW_PIECES)
                self._finish(transport, response)
                await part.write_eof(body)
                return part
            # an end that looks like that of JSON may be read as a whole body of a wrong length
            await part.write(body[: len(body) // 2].rstrip(b"}"))
            await asyncio.sleep(response.duration)
        elif kind == "reset-after":
            self._finish(transport, response)
            await whole.prepare(request)
            await whole.write_eof()
            await asyncio.sleep(0)  # uvloop writes at the end of an iteration
        elif kind == "refused":
            self._refuse(response.duration)
        _reset(transport)
        return whole

    def _finish(self, transport: asyncio.Transport, response: Response) -> None:
        """Count a response before its last bytes are written: no client sees it earlier."""
        if transport.is_closing():  # aiohttp learns of this in the next iteration
            raise asyncio.CancelledError
        response.delivered()
        self._busy.discard(transport)

    async def start(self) -> None:
        """Listen; after a `stop`, on the same port."""
        await self._run(self._start())

    async def stop(self) -> None:
        """Refuse connections and reset open ones, like a killed server."""
        await self._run(self._stop())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._close()

    def __enter__(self) -> Self:
        thread = Background(type(self).__name__)
        try:
            thread.run(self._start())
        except BaseException:
            thread.close()
            raise
        self._thread = thread
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._thread is not None
        thread, self._thread = self._thread, None
        thread.run(self._close())
        thread.close()

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        await (work if self._thread is None else asyncio.to_thread(self._thread.run, work))

    async def _close(self) -> None:
        """Stop, and release the port."""
        await self._stop()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    async def _start(self) -> None:
        if self._socket is not None:
            return
        self._stop_listening()
        if self._reserved is None:
            # While the server is down, connections to a bound port that does not listen are
            # refused, and the system assigns the port to no other socket.
            self._reserved = self._bind()
            self._port = self._reserved.getsockname()[1]
            try:
                self._bind().close()
            except OSError:  # the platform does not allow two sockets on one port
                self._reserved.close()
                self._reserved = None
        self._listen()
        if self._runner is None:
            app = web.Application(client_max_size=0)
            app.router.add_route("*", "/{path:.*}", self._handle)
            self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
            await self._runner.setup()

    async def _stop(self) -> None:
        self._stop_listening()
        while self._accepting:
            await asyncio.wait(self._accepting)
        self._busy.clear()  # these were not abandoned by their clients
        for connection in self._open():
            if connection.transport is not None:
                _reset(connection.transport)
        while self._open():  # noqa: ASYNC110 - each closes within a few loop iterations
            await asyncio.sleep(0)

    def _refuse(self, seconds: float) -> None:
        """Refuse new connections for some seconds, and close idle ones."""
        self._stop_listening()
        for connection in self._open():
            if connection.transport not in self._busy:
                connection.force_close()
        self._reopening = asyncio.get_running_loop().call_later(seconds, self._reopen)

    def _reopen(self) -> None:
        """Listen again; retries while remains of a connection occupy the port."""
        try:
            self._listen()
        except OSError:
            self._reopening = asyncio.get_running_loop().call_later(0.01, self._reopen)

    # Not `loop.create_server`: Python 3.11 leaks a connection that arrives while an
    # `asyncio.Server` closes, and its client waits forever.

    def _listen(self) -> None:
        listening = self._bind()
        try:
            listening.listen(4096)
        except OSError:
            listening.close()
            raise
        self._socket = listening
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        assert self._runner is not None
        assert self._runner.server is not None
        loop, server = asyncio.get_running_loop(), self._runner.server
        with contextlib.suppress(BlockingIOError, InterruptedError, ConnectionAbortedError):
            accepted, _address = listening.accept()
            accepted.setblocking(False)  # noqa: FBT003
            task = loop.create_task(loop.connect_accepted_socket(server, accepted))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)

    def _stop_listening(self) -> None:
        """Close the socket; open connections stay."""
        if self._reopening is not None:
            self._reopening.cancel()
            self._reopening = None
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _open(self) -> list[RequestHandler]:
        server = None if self._runner is None else self._runner.server
        return [] if server is None else server.connections

    def _bind(self) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, self._port))
        except OSError:
            sock.close()
            raise
        sock.setblocking(False)  # noqa: FBT003
        return sock


def _reset(transport: asyncio.Transport) -> None:
    """Close a connection with RST."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()
