"""A server, a wire provider and a transport, all as small as can be."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from random import Random

import orjson
from aiohttp import web

from testnuc.errors import (
    AuthenticationError,
    BadRequestError,
    RateLimitedError,
    RefusalError,
    ServerError,
    UnreadableReplyError,
)
from testnuc.limits.budget import Meter
from testnuc.limits.policies import Limits, RetryPolicy
from testnuc.protocols import Answer, Reply, Request, Task, TokenUsage
from testnuc.transport import Transport
from tests.accounts import reserved
from tests.doubles import posts_to

SECRET = "sk-very-secret-0123456789"
TASK = Task("Say the label.", ("a", "b"))
ONE = Request(TASK, "text", ("text",))
TWO = Request(TASK, "texts", ("one", "two"))
KINDS = {400: BadRequestError, 401: AuthenticationError, 429: RateLimitedError}


class Wire:
    """A wire provider as small as can be."""

    name = "openai"
    model = "test"
    identity = "test"

    def __init__(self, url, size=(10, 20)):
        self.url = url
        self.headers = {"Authorization": f"Bearer {SECRET}"}
        self.dialect = 1
        self.size = size

    def encode(self, request):
        return orjson.dumps({"user": request.user, "dialect": self.dialect})

    def decode(self, request, body):
        try:
            said = orjson.loads(body)
        except ValueError as error:
            raise UnreadableReplyError("no JSON", usage=TokenUsage(10, 1)) from error
        usage = said.get("usage")
        usage = None if usage is None else TokenUsage(*usage)
        if said["label"] is None:
            raise RefusalError("declined", usage=usage)
        return Reply(tuple(Answer(said["label"]) for _ in request.texts), usage)

    def error(self, status, headers, body):
        kind = KINDS.get(status, ServerError)
        return kind(f"{status}: {body.decode()}", status_code=status)

    def adapt(self, error, task):
        if "dialect" not in str(error) or self.dialect >= 9:
            return False
        self.dialect += 1
        return True

    def reserve(self, request):
        return self.size


def said(label="a", usage=(10, 2)):
    return web.json_response({"label": label, "usage": usage})


class Waits(list):
    """Stands in for sleeping: notes how long, and gives way once."""

    async def __call__(self, seconds):
        self.append(seconds)
        await asyncio.sleep(0)


@asynccontextmanager
async def serving(answer):
    """Serve `answer(number, request)`, numbers from 0; yields a provider and the requests."""
    seen = []

    async def handle(request):
        body = await request.read()
        seen.append((request.headers.copy(), orjson.loads(body)))
        response = answer(len(seen) - 1, request)
        return await response if asyncio.iscoroutine(response) else response

    async with posts_to(handle) as url:
        yield Wire(url), seen


@asynccontextmanager
async def raw(respond):
    """Serve `respond(number, writer)` over a socket; yields a provider and the requests' bodies.

    A `ConnectionError` closes the connection.
    """
    requests = []
    tasks = set()

    async def connected(reader, writer):
        tasks.add(asyncio.current_task())
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                _, _, rest = head.lower().partition(b"content-length: ")
                size = int(rest.split(b"\r\n")[0]) if rest else 0
                requests.append(await reader.readexactly(size))
                await respond(len(requests) - 1, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield Wire(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"), requests
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


@asynccontextmanager
async def sending(*, price=None, clock=time.monotonic, trust_env=False, **limits):
    """A transport that does not sleep between tries, and what it would have slept."""
    waits = Waits()
    limits.setdefault("retry", RetryPolicy(initial_wait=0.002))
    options = {"meter": Meter(price), "clock": clock, "trust_env": trust_env}
    transport = Transport(Limits(**limits), sleep=waits, rng=Random(0), **options)
    transport.waits = waits
    try:
        yield transport
    finally:
        await transport.aclose()
        assert transport.admission.in_flight == 0
        assert reserved(transport.account) == (0, 0, 0)


@asynccontextmanager
async def calling(answer=None, **limits):
    """Serve `answer`, "a" by default; yields a transport, a provider, and the requests."""
    answer = answer or (lambda n, r: said())
    async with serving(answer) as (wire, seen), sending(**limits) as transport:
        yield transport, wire, seen


async def stall():
    """Answer too late."""
    await asyncio.sleep(30)
    return said()


def cut_off(request):
    """Reset the connection."""
    request.transport.abort()
    return web.Response()
