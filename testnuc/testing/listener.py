"""The listening socket of the test server, which can be stopped and restarted on one port."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from testnuc._base.loop_thread import Background
from testnuc.testing.http_connection import Connection, Traffic

if TYPE_CHECKING:
    from collections.abc import Callable

    from testnuc.testing.http_connection import HTTPRequest, Response

__all__ = ["Listener"]

HOST = "127.0.0.1"
_BACKLOG = 4096
_ACCEPTED_AT_ONCE = 100

#: Seconds between attempts to listen again.
_REOPEN_INTERVAL = 0.01


class Listener(Traffic):
    """Serve `respond` on 127.0.0.1, on the running event loop or in a separate thread.

    Port 0 binds a free port on first start and uses it for all restarts.
    """

    def __init__(self, respond: Callable[[HTTPRequest], Response], port: int = 0) -> None:
        super().__init__(respond)
        self.port = port
        self._socket: socket.socket | None = None
        self._reserved: socket.socket | None = None
        self._reopening: asyncio.TimerHandle | None = None
        self._accepting: set[asyncio.Task[Any]] = set()
        # the thread with the server's loop; None if the server runs on its caller's loop
        self._thread: Background | None = None

    async def start(self) -> None:
        """Listen; after a `stop`, on the same port."""
        if self._thread is None:
            await self._start()
        else:
            await asyncio.to_thread(self._thread.run, self._start())

    async def stop(self) -> None:
        """Stop listening and reset all connections, like a killed server."""
        if self._thread is None:
            await self._stop()
        else:
            await asyncio.to_thread(self._thread.run, self._stop())

    async def close(self) -> None:
        """Stop, and release the port."""
        await self._stop()
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    def start_thread(self) -> None:
        """Serve from a background thread with its own event loop; returns once listening."""
        thread = Background("LoopbackLLM")
        try:
            thread.run(self._start())
        except BaseException:
            thread.close()
            raise
        self._thread = thread

    def stop_thread(self) -> None:
        """Stop the background thread and release the port."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.run(self.close())
            thread.close()

    async def _start(self) -> None:
        if self._socket is None:
            self._stop_reopening()
            self._reserve()
            self._listen()

    async def _stop(self) -> None:
        self._stop_reopening()
        self._close()
        while self._accepting:
            await asyncio.wait(self._accepting)
        for connection in tuple(self.connections):
            connection.reset()
        while self.connections:  # noqa: ASYNC110 - each closes within a few loop iterations
            await asyncio.sleep(0)

    def refuse(self, seconds: float) -> None:
        """Refuse new connections for some seconds, and close idle ones."""
        self._close()
        for connection in tuple(self.connections):
            if not connection.busy:
                connection.close()
        self._stop_reopening()
        self._reopening = asyncio.get_running_loop().call_later(seconds, self._reopen)

    def _stop_reopening(self) -> None:
        if self._reopening is not None:
            self._reopening.cancel()
            self._reopening = None

    def _reopen(self) -> None:
        """Listen again; retries while remains of a connection occupy the port."""
        self._reopening = None
        if self._socket is not None:
            return
        try:
            self._listen()
        except OSError:
            loop = asyncio.get_running_loop()
            self._reopening = loop.call_later(_REOPEN_INTERVAL, self._reopen)

    def _reserve(self) -> None:
        """Bind the port without listening.

        While the server is down, connections to a bound port that does not listen are refused, and
        the system assigns the port to no other socket, not even as a local port.
        """
        if self._reserved is not None:
            return
        reserved = self._bind()
        self.port = reserved.getsockname()[1]
        self._reserved = reserved
        try:
            self._bind().close()
        except OSError:  # the platform does not allow two sockets on one port
            reserved.close()
            self._reserved = None

    # Not `loop.create_server`: Python 3.11 leaks a connection that arrives while an
    # `asyncio.Server` closes, and its client waits forever.

    def _listen(self) -> None:
        listening = self._bind()
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
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)

    def _close(self) -> None:
        """Stop listening; open connections stay."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _bind(self) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, self.port))
        except OSError:
            sock.close()
            raise
        sock.setblocking(False)  # noqa: FBT003
        return sock
