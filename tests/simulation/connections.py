"""What stands between a process and its provider."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

from testnuc.protocols import Answer, Reply
from tests.simulation.records import Bug, label

if TYPE_CHECKING:
    from tests.simulation.process import Process


class PlayedConnections:
    """In place of `testnuc.transport.connections.Connections`, for one process."""

    def __init__(self, process: Process) -> None:
        self._process, self._server = process, process.world.server
        self.open, self.most, self.closed = 0, 0, False

    def require_loop(self):
        """Every process of a world has the one loop."""

    async def post(self, provider, body, *, headers=None, **_):
        self._enter()
        key = None if headers is None else headers["Authorization"].removeprefix("Bearer ")
        try:
            return await self._server.post(self._process, body, key)
        finally:
            self.open -= 1

    async def request(self, provider, method, url, *, data, content_type):
        self._enter(call=False)
        try:
            head = {"content-type": content_type}
            body = b"" if data is None else data.read()
            return await self._server.job(self._process, method, url, head, body)
        finally:
            self.open -= 1

    @asynccontextmanager
    async def stream(self, provider, url):
        answer = await self.request(provider, "GET", url, data=None, content_type="")
        pieces = iter([answer.data, b""])

        async def readany():
            return next(pieces)

        async def read():
            return answer.data

        yield SimpleNamespace(
            status=answer.status,
            headers=answer.headers,
            read=read,
            content=SimpleNamespace(readany=readany),
        )

    async def aclose(self):
        self.closed = True

    def _enter(self, *, call=True):
        if self._process.died:
            raise asyncio.CancelledError
        if self.closed:
            self._process.world.complain(f"{self._process.name} sends after its connections closed")
        self.open += 1
        if call:
            self.most = max(self.most, self.open)


class Stranger:
    """A provider of the user's own, with the faults of one."""

    name, model, identity = "stranger", "m", "1"

    def __init__(self, process: Process, fault: str | None) -> None:
        self._process, self._fault = process, fault

    async def answer(self, request):
        process = self._process
        if process.died:
            raise asyncio.CancelledError
        world = process.world
        process.arrived(list(request.texts))
        await asyncio.sleep(world.server.latency)
        bad = self._fault is not None and world.random.random() < 0.2
        if bad and self._fault == "raises":
            raise Bug("of the provider")
        confidence = {"high": "high", "nan": float("nan"), "big": 70}.get(self._fault, 0.5)
        answers = [Answer(label(t), confidence if bad else 0.5) for t in request.texts]
        if bad and self._fault == "label":
            answers = [Answer(None, 0.5) for _ in answers]
        if bad and self._fault == "few":
            answers = answers[1:]
        world.note("stranger", process.name, request.texts, bad)
        return Reply(tuple(answers))
