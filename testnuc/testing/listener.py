"""The socket of a test server: opened, killed and opened again on one port."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from testnuc.testing.http_connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from testnuc.testing.http_connection import ReceivedRequest, Response

__all__ = ["Listener"]

HOST = "127.0.0.1"
_BACKLOG = 4096
_ACCEPTED_AT_ONCE = 100


#: Seconds between two tries to listen again.
_REOPEN_AGAIN = 0.01


class Listener:
    """Serve `respond` on 127.0.0.1, on the running loop or in a thread of its own.

    Parameters
    ----------
    respond : callable
        Answers a request.
    port : int
        0 takes a free one at the first start and keeps it over restarts.
    """

    def __init__(self, respond: Callable[[ReceivedRequest], Response], port: int = 0) -> None:
        self.respond = respond
        self.port = port
        self.in_flight = 0
        self.peak = 0
        self.abandoned = 0
        self._connections: set[Connection] = set()
        self._socket: socket.socket | None = None
        self._reserved: socket.socket | None = None
        self._reopening: asyncio.TimerHandle | None = None
        self._arriving: set[asyncio.Task[Any]] = set()
        self._thread: threading.Thread | None = None
        # the loop of the thread; None where the server lives on the loop of its user
        self._home: asyncio.AbstractEventLoop | None = None
        self._halt = asyncio.Event()

    # -- what a connection reports ---------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """Keep track of a new connection."""
        self._connections.add(connection)

    def closed(self, connection: Connection, *, abandoned: bool) -> None:
        """Forget a connection."""
        self._connections.discard(connection)
        self.abandoned += abandoned

    def entered(self) -> None:
        """Count a request in flight."""
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)

    def left(self) -> None:
        """Count a request out of flight."""
        self.in_flight -= 1

    # -- on the running loop ---------------------------------------------------------------------

    async def start(self) -> None:
        """Listen; again on the same port after a `stop`."""
        if not await self._at_home(self.start) and self._socket is None:
            if self._reopening is not None:
                self._reopening.cancel()
                self._reopening = None
            self._reserve()
            self._listen()

    async def stop(self) -> None:
        """Stop listening and reset all connections, as a killed server would."""
        if await self._at_home(self.stop):
            return
        if self._reopening is not None:
            self._reopening.cancel()
            self._reopening = None
        self._close()
        while self._arriving:
            await asyncio.wait(self._arriving)
        for connection in tuple(self._connections):
            connection.reset()
        while self._connections:  # noqa: ASYNC110 - each leaves on one of the loop's next turns
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Stop, and give the port back."""
        await self.stop()
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    def refuse(self, seconds: float) -> None:
        """Refuse connections for a while, and close those that are idle."""
        self._close()
        for connection in tuple(self._connections):
            if not connection.busy:
                connection.close()
        if self._reopening is not None:
            self._reopening.cancel()
        self._reopening = asyncio.get_running_loop().call_later(seconds, self._reopen)

    def _reopen(self) -> None:
        """Listen again; the port can be taken for a moment by what is left of a connection."""
        self._reopening = None
        if self._socket is not None:
            return
        try:
            self._listen()
        except OSError:
            loop = asyncio.get_running_loop()
            self._reopening = loop.call_later(_REOPEN_AGAIN, self._reopen)

    def _reserve(self) -> None:
        """Bind the port without listening.

        While the server is down, connections to a port that is bound but does not listen are
        refused, and nobody else, not even as the near end of a connection, is given the port.
        """
        if self._reserved is not None:
            return
        reserved = self._bound()
        self.port = reserved.getsockname()[1]
        self._reserved = reserved
        try:
            self._bound().close()
        except OSError:  # a platform where two sockets cannot be bound to one port
            reserved.close()
            self._reserved = None

    # Connections are accepted here and not by `loop.create_server`: one that arrives in the moment
    # an `asyncio.Server` is closed is leaked by Python 3.11, and its client waits for ever.

    def _listen(self) -> None:
        listening = self._bound()
        try:
            listening.listen(_BACKLOG)
        except OSError:
            listening.close()
            raise
        self._socket = listening
        asyncio.get_running_loop().add_reader(self._socket, self._accept, self._socket)

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, _address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            accepted.setblocking(False)  # noqa: FBT003
            task = loop.create_task(
                loop.connect_accepted_socket(lambda: Connection(self), accepted)
            )
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    def _close(self) -> None:
        """Stop listening; what has been accepted stays."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _bound(self) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, self.port))
        except OSError:
            sock.close()
            raise
        sock.setblocking(False)  # noqa: FBT003
        return sock

    # -- in a thread of its own ------------------------------------------------------------------

    def start_thread(self) -> None:
        """Serve from a background thread with an event loop of its own; returns once listening."""
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(ready)), name="LoopbackLLM", daemon=True
        )
        self._thread.start()
        ready.result()

    def stop_thread(self) -> None:
        """End the background thread and give the port back."""
        if self._thread is not None and self._home is not None:
            self._home.call_soon_threadsafe(self._halt.set)
            self._thread.join()
            self._thread = None

    async def _serve(self, ready: Future[None]) -> None:
        self._home = asyncio.get_running_loop()
        self._halt = asyncio.Event()
        try:
            await self.start()
        except OSError as exc:
            self._home = None
            ready.set_exception(exc)
            return
        ready.set_result(None)
        await self._halt.wait()
        await self.close()
        self._home = None

    async def _at_home(self, step: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Run `step` on the loop of the thread, if that is another one."""
        if self._home is None or self._home is asyncio.get_running_loop():
            return False
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(step(), self._home))
        return True
