"""A service on a real socket, and a provider whose answers can be held back."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp

from testnuc import Limits, TestNUC
from testnuc.protocols import Answer, Reply, TokenUsage
from testnuc.server import ServerSettings, Service, serve
from testnuc.testing import HashEmbedder, LoopbackLLM
from tests.conftest import LABELS, confident
from tests.waiting import until

JSON = {"Content-Type": "application/json"}


class Held:
    """Answers as `confident` does, but only while `gate` is set."""

    name, model, identity = "held", "test", "1"

    def __init__(self, *, is_open=False):
        self.gate = asyncio.Event()
        if is_open:
            self.gate.set()
        self.asked = []

    async def answer(self, request):
        self.asked += request.texts
        await self.gate.wait()
        return Reply(tuple(Answer(*confident(t)) for t in request.texts), TokenUsage(10, 5))

    async def asked_for(self, texts):
        """Wait until so many texts were asked."""
        while len(self.asked) < texts:  # noqa: ASYNC110 - what is waited for is no event
            await asyncio.sleep(0.001)


def client(model, **more):
    given = {
        "embedder": HashEmbedder(),
        "policy": "weighted",
        "k": 3,
        "limits": Limits(concurrency=8),
    }
    return TestNUC(LABELS, model, **{**given, **more})


@asynccontextmanager
async def served(nuc, page=None, prepare=None, reload=None, **settings):
    """Serve a client, or several by name; yields the service and a session of it."""
    service = Service(nuc, ServerSettings(**{"port": 0, **settings}), page=page)
    url = asyncio.get_running_loop().create_future()
    running = serve(service, prepare=prepare, listening=url.set_result, reload=reload)
    task = asyncio.create_task(running)
    async with AsyncExitStack() as opened:
        for one in nuc.values() if isinstance(nuc, dict) else [nuc]:
            await opened.enter_async_context(one)
        try:
            await asyncio.wait([url, task], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
            if prepare is None:
                await until(lambda: service.state != "starting")
            timeout = aiohttp.ClientTimeout(total=60)
            unlimited = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(
                url.result(), timeout=timeout, connector=unlimited
            ) as session:
                yield service, session
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def running(client_of, settings=None, answer=confident, **more):
    """Serve a client of a loopback server; yields this one, the service and a session of it."""
    server = answer if isinstance(answer, LoopbackLLM) else LoopbackLLM(answer)
    async with server as llm:
        nuc = TestNUC(**client_of(llm, **more))
        async with served(nuc, **(settings or {})) as (service, session):
            yield llm, service, session
