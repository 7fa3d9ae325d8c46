"""A closed-loop HTTP load generator: each connection sends its next request after a response."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

__all__ = ["Load", "load", "post"]


def post(host: str, path: str, body: bytes) -> bytes:
    """Return the bytes of a POST request with a JSON body."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@dataclass(slots=True)
class Load:
    """Results of a load test."""

    seconds: float = 0.0
    #: Latencies of responses with status 200, in seconds.
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    #: Connections lost during a request.
    broken: int = 0
    #: The first response other than 200 and 429.
    worst: bytes = b""

    @property
    def answered(self) -> int:
        """Number of responses with any status."""
        return self.statuses.total()

    @property
    def errors(self) -> int:
        """Number of lost connections and of responses other than 200 and 429."""
        return self.broken + self.answered - self.statuses[200] - self.statuses[429]

    def quantile(self, q: float) -> float:
        """Return a quantile of the latencies, in seconds."""
        ordered = sorted(self.latencies)
        return ordered[min(int(q * len(ordered)), len(ordered) - 1)]


class _Connection(asyncio.Protocol):
    """Sends requests one at a time and records status and latency."""

    def __init__(self, requests: Iterator[bytes], result: Load, every: Callable[[], None]) -> None:
        self._requests = requests
        self._result = result
        self._every = every
        self._buffer = b""
        self._sent = 0.0
        self._waiting = False
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is not an asyncio.Transport subclass
        self._transport = cast("asyncio.Transport", transport)
        self._send_next()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if not self.done.done():
            self._result.broken += self._waiting
            self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(rest) < length:
            return
        now = time.perf_counter()
        status = int(head[9:12])
        self._buffer = rest[length:]
        self._waiting = False
        self._result.statuses[status] += 1
        if status == 200:
            self._result.latencies.append(now - self._sent)
        elif status != 429 and not self._result.worst:
            self._result.worst = head[:60] + b" " + rest[:300]
        self._every()
        self._send_next()

    def _send_next(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self.done.set_result(None)
            self._transport.close()
            return
        self._waiting = True
        self._sent = time.perf_counter()
        self._transport.write(request)


async def load(
    host: str,
    port: int,
    requests: Iterator[bytes],
    connections: int,
    *,
    every: int = 0,
    then: Callable[[], None] | None = None,
) -> Load:
    """Send all requests.

    Parameters
    ----------
    host, port
        Address of the server.
    requests : iterator of bytes
        Complete HTTP requests.
    connections : int
        Number of connections; each has one request in flight.
    every : int
        Number of responses between calls of `then`.
    """
    result = Load()

    def count() -> None:
        if every and then is not None and result.answered % every == 0:
            then()

    started = time.perf_counter()
    loop = asyncio.get_running_loop()
    opened = [
        await loop.create_connection(lambda: _Connection(requests, result, count), host, port)
        for _ in range(connections)
    ]
    await asyncio.gather(*(connection.done for _, connection in opened))
    result.seconds = time.perf_counter() - started
    return result
