"""A raw HTTP server in the loop of its client: it does what a script of a response says."""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import time
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.weather.mutations import ENDLESS
from tests.weather.response import Response

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

_RESET = struct.pack("ii", 1, 0)


class Connection(asyncio.Protocol):
    """One connection: a response for each request, one after the other."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._buffer = b""
        self._task: asyncio.Task | None = None
        self._drained = asyncio.Event()
        self._drained.set()
        self.lost = False
        #: Whether it was sent bytes that belong to no response.
        self._dirty = False

    def connection_made(self, transport):
        self.transport = transport
        self._server.open.add(self)

    def connection_lost(self, exc):
        self.lost = True
        self._drained.set()
        self._server.open.discard(self)
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self):
        self._drained.clear()

    def resume_writing(self):
        self._drained.set()

    def data_received(self, data):
        self._buffer += data
        self._next()

    def _next(self):
        if self._task is not None and not self._task.done():
            return
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        _, _, length = head.lower().partition(b"content-length:")
        size = int(length.split(b"\r\n")[0]) if length else 0
        if len(rest) < size:
            return
        self._buffer = rest[size:]
        path = head.split(b" ", 2)[1].decode()
        self._task = asyncio.create_task(self._respond(path, head, rest[:size]), name="weather")
        self._task.add_done_callback(lambda _: self.lost or self._next())

    async def _respond(self, path, head, body):
        began = time.thread_time()
        response, sent = self._server.answer(path, head, body)
        started = response.head
        if started is None:
            started = head_of(response)
        whole = started + response.body
        # what a server needs is not the client's fault
        asyncio.get_running_loop().excused += time.thread_time() - began
        steps = response.steps
        if steps is None:
            steps = [("send", b"" if response.status in {204, 304} else response.body)]
        if started:
            # in one piece with what follows, as most servers do
            if steps and steps[0][0] == "send":
                started, steps = started + steps[0][1], steps[1:]
            self.transport.write(started)
        await self._play(steps)
        if not self.lost:
            sent(clean=not self._dirty)
        self._dirty |= not response.framed
        await self._play(response.after, idle=True)
        again = ("again",) in response.after and response.steps is None
        if again and response.status == 200 and b'"id"' in response.body and not self.lost:
            # by its id a client can tell that it does not answer the next request; an error is one
            self.transport.write(whole)

    def _asked(self) -> bool:
        """Whether the next request has arrived.

        An extra response would be taken for its own: HTTP/1.1 does not number responses, so that no
        client can tell. What arrives before the next request is sent must not answer it.
        """
        raw = self.transport.get_extra_info("socket")
        return bool(self._buffer or select.select([raw.fileno()], [], [], 0)[0])

    async def _play(self, steps, *, idle=False):
        for name, *given in steps:
            if self.lost or (idle and self._asked()):
                return
            match name:
                case "send":
                    self.transport.write(given[0])
                    await self._drained.wait()
                case "wait":
                    await asyncio.sleep(given[0])
                case "close":
                    self.transport.close()
                    return
                case "half":
                    self.transport.write_eof()
                case "reset":
                    raw = self.transport.get_extra_info("socket")
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    self.transport.abort()
                    return
                case "endless":
                    taken = 0
                    # of packed bytes few are a lot
                    most = ENDLESS if b"y" in given[0] or b"x" in given[0] else 8 * len(given[0])
                    while not self.lost and taken < most:
                        self.transport.write(given[0])
                        taken += len(given[0])
                        await self._drained.wait()
                        await asyncio.sleep(0)
                    self._server.taken = max(self._server.taken, taken)
                    if not self.lost:
                        await asyncio.sleep(1e6)


def head_of(response: Response) -> bytes:
    """Return the status line and headers of a response."""
    names = {name.lower() for name, _ in response.headers}
    lines = [f"HTTP/1.1 {response.status} Some Reason"]
    lines += [f"{name}: {value}" for name, value in response.headers]
    if not names & {"content-length", "transfer-encoding"} and response.steps != []:
        lines.append(f"content-length: {len(response.body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape")


def send_in_parts(random: Random, response: Response) -> None:
    """Let the same response travel in parts, as over the internet: head and characters are cut."""
    if response.steps is not None or response.head is not None or response.status in {204, 304}:
        return
    names = {name.lower() for name, _ in response.headers}
    body = response.body
    if random.random() < 0.5 and not names & {"content-length", "transfer-encoding"}:
        response.set("transfer-encoding", "chunked")
        at = sorted(random.sample(range(1, len(body)), min(3, len(body) - 1))) if body else []
        parts = [body[a:b] for a, b in pairwise([0, *at, len(body)])] if body else []
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    whole = head_of(response) + body
    cuts = sorted(random.sample(range(1, len(whole)), random.choice((1, 3, 8))))
    response.head, response.steps = b"", []
    for a, b in pairwise([0, *cuts, len(whole)]):
        response.steps += [("send", whole[a:b]), ("wait", random.choice((0.0, 0.001, 0.2)))]


class Server:
    """Listens on the loopback device; `answer` returns a response, and what to call when sent."""

    def __init__(
        self, answer: Callable[[str, bytes, bytes], tuple[Response, Callable[..., None]]]
    ) -> None:
        self.answer = answer
        self.open: set[Connection] = set()
        #: The most bytes of an endless response that a client took.
        self.taken = 0

    async def start(self) -> int:
        """Return the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Cut every connection."""
        self._server.close()
        for connection in list(self.open):
            connection.transport.abort()
        await asyncio.sleep(0)
