"""A bounded loop of HTTP requests: so many connections, each asks as soon as it is answered."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

__all__ = ["Load", "load", "post"]


def post(host: str, path: str, body: bytes) -> bytes:
    """Return the bytes of a POST of JSON."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@dataclass(slots=True)
class Load:
    """What came of a loop."""

    seconds: float = 0.0
    #: Of the answers with status 200.
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    #: Connections that broke, or answers that were none.
    broken: int = 0
    #: The first answer that was neither 200 nor 429.
    worst: bytes = b""

    @property
    def answered(self) -> int:
        """Answers of any status."""
        return self.statuses.total()

    @property
    def errors(self) -> int:
        """All that is neither 200 nor 429."""
        return self.broken + self.answered - self.statuses[200] - self.statuses[429]

    def quantile(self, q: float) -> float:
        """Return a quantile of the latencies, in seconds."""
        ordered = sorted(self.latencies)
        return ordered[min(int(q * len(ordered)), len(ordered) - 1)]


class _Connection(asyncio.Protocol):
    """Sends one request after the other; checks what an answer is, as far as a load test can."""

    def __init__(self, requests: Iterator[bytes], result: Load, every: Callable[[], None]) -> None:
        self._requests = requests
        self._result = result
        self._every = every
        self._buffer = b""
        self._sent = 0.0
        self._waiting = False
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is none by its class
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

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
        self._ask()

    def _ask(self) -> None:
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
    """Ask until there are no more requests.

    Parameters
    ----------
    host, port
        Of the server.
    requests : iterator of bytes
        Whole requests.
    connections : int
        At a time; each waits for its answer.
    every : int
        Answers after each of which `then` is called.
    """
    result = Load()

    def count() -> None:
        if every and then is not None and result.answered % every == 0:
            then()

    started = time.perf_counter()
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: _Connection(requests, result, count), host, port)
        for _ in range(connections)
    ]
    await asyncio.gather(*(connection.done for _, connection in made))
    result.seconds = time.perf_counter() - started
    return result
