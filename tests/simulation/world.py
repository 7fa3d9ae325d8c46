"""A world of clients in virtual time: a provider, a store, processes and callers, all from a seed.

Real are clients, scheduler, transport, limits and budget; played are the connections, the server
behind them, the store's faults, and the callers. Nothing leaves the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import secrets
import warnings
from collections import Counter, defaultdict
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from random import Random
from types import SimpleNamespace
from unittest import mock

import aiohttp
from multidict import CIMultiDict

from testnuc import BatchPolicy, Budget, RateLimit, RetryPolicy, Sampling, SmallPoolWarning, TestNUC
from testnuc._engine.components import Components
from testnuc._engine.engine import Engine
from testnuc.errors import StoreError
from testnuc.index.memory_pool import Pool
from testnuc.methods import SelfConsistency, StandardPrompting, TopKICL, TopKICLP
from testnuc.prompts import samples_in, user_prompt
from testnuc.protocols import Answer, Reply
from testnuc.providers.openai import OpenAI
from testnuc.stores.memory import MemoryStore
from testnuc.testing import HashEmbedder
from testnuc.testing.batch_api import BatchServer
from testnuc.testing.batch_formats import Item
from testnuc.testing.batch_options import Batches
from testnuc.testing.content import Content, compose
from testnuc.testing.formats import OPENAI, Tokens
from testnuc.testing.http_connection import HTTPRequest
from testnuc.transport import Transport
from testnuc.transport.connections import HTTPAnswer
from tests.virtual import InlineExecutor, ThreadlessLoop

LABELS = ["refund", "delivery", "login", "other"]
WORDS = ["card", "lost", "parcel", "late", "password", "reset", "money", "back", "app", "slow"]
#: Virtual seconds in which a world without batches must end, and one with batches.
#: A job that expires takes a day and may answer one text.
HORIZON, BATCH_HORIZON = 6 * 3600.0, 60 * 86_400.0

#: What may happen to a single call.
CALL_FAULTS = (
    "429", "429-wait", "429-hour", "500", "503", "stall", "reset-before", "reset-after", "slow",
    "cut", "empty", "garbage", "no-usage", "error-200", "lie",
)  # fmt: skip
#: llama-cpp-python's answer to a request for structured output.
NO_STRUCTURE = OPENAI.error(
    500,
    "[{'type': 'literal_error', 'loc': ('body', 'response_format', 'type'), "
    "'msg': \"Input should be 'text' or 'json_object'\"}]",
    None,
    None,
)
#: What a text does to every call that holds it.
NATURES = ("refused-400", "filtered-400", "too-long-400", "unreadable", "refusal", "outside")

PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Bug(Exception):  # noqa: N818 - of an observer, a method or a provider
    """Raised by code of the user."""


@dataclass
class Payment:
    """A response with status 200, which a provider bills."""

    process: Process | None
    at: float
    #: What was asked: the same for two calls with the same key, but for the sample.
    asked: tuple
    text: str
    #: Whether it holds a readable answer for the text.
    usable: bool
    #: Whether the client received it.
    delivered: bool = False
    lane: str = "live"
    #: Whether the server broke the response: it was cut off, or empty.
    broken: bool = False
    #: Whether it is for the text itself, and not to label it as an example of another.
    own: bool = True


@dataclass
class Operation:
    """One call of a client's method by a caller."""

    process: Process
    kind: str
    texts: list[str]
    lane: str
    started: float
    ended: float | None = None
    error: BaseException | None = None
    results: list = field(default_factory=list)
    #: What ended the run early, after some of its texts were answered.
    stopped: Exception | None = None
    #: Ended by its caller: cancelled, or left.
    left: bool = False
    #: Whether the observer raises.
    observed: bool = False

    def __repr__(self):
        return f"{self.process.name} {self.kind}({len(self.texts)}, {self.lane})"


class World:
    """All that one seed decides, and the record of what happened."""

    def __init__(self, seed: int, loop: ThreadlessLoop) -> None:
        self.seed, self.loop = seed, loop
        self.random = random = Random(seed)
        self.trace = blake2b(digest_size=16)
        self.events: list[tuple] = []
        self.payments: list[Payment] = []
        self.requests: list[tuple[float, Process]] = []
        self.operations: list[Operation] = []
        self.processes: list[Process] = []
        self.complaints: list[str] = []
        # -- the plan --
        self.batches = random.random() < 0.15
        self.leases = random.random() < 0.4
        n = random.choice((1, 3, 8, 20, 50))
        self.texts = [
            f"{i}: {' '.join(random.choices(WORDS, k=random.randint(1, 6)))}" for i in range(n)
        ]
        share = random.choice((0.0, 0.0, 0.05, 0.3, 1.0))
        kinds = random.sample(NATURES, random.randint(1, 3))
        self.nature = {t: random.choice(kinds) for t in self.texts if random.random() < share}
        self.server = Server(self)
        self.rows = MemoryStore()
        self.key_leases: dict[bytes, tuple[str, float]] = {}
        self.store_faults = StoreFaults.drawn(random)
        self.embedder = HashEmbedder(16)

    @property
    def horizon(self) -> float:
        return BATCH_HORIZON if self.batches else HORIZON

    def note(self, *event) -> None:
        """Record an event; the hash of all events is the trace of the run."""
        event = (round(self.loop.time(), 6), *event)
        self.trace.update(repr(event).encode())
        self.events.append(event)

    def complain(self, what: str) -> None:
        self.complaints.append(what)


# -- the provider ----------------------------------------------------------------------------------


class Server:
    """Answers the calls of all processes."""

    def __init__(self, world: World) -> None:
        self.world, random = world, world.random
        self.latency = random.choice((0.01, 0.2, 2.0))
        self.rate = random.choice((0.0, 0.0, 0.05, 0.2, 0.5))
        self.kinds = random.sample(CALL_FAULTS, random.randint(1, 4))
        #: What becomes of the whole server, and when, in answered calls and in seconds.
        self.fate = random.choice((None,) * 8 + ("quota", "revoked", "model-gone", "down", "pause",
                                                 "absent", "no-structure-500"))  # fmt: skip
        self.after = random.choice((0, 1, 5, 20))
        self.outage: tuple[float, float] | None = None
        self.structured = random.random() < 0.9
        self.answered = 0
        #: Requests for structured output that this server answered with a 500, which arrived: a
        #: client that disconnects before has learned nothing.
        self.unstructured = 0
        self.jobs = BatchServer(
            Batches(
                validation=random.randint(0, 1),
                polls=random.choice((1, 3, 20)),
                poll_after=random.choice((5.0, 600.0, 3600.0)),
                outcomes=[random.choice((None, None, *("expired", "failed"))) for _ in range(4)],
                shuffle=random.random() < 0.5,
                duplicates=random.choice((0.0, 0.3)),
                missing=random.choice((0.0, 0.2)),
                refusals=random.choice((0, 0, 2)),
                lost=random.choice(((), (0,))),
                broken=random.choice((0, 1)),
            ),
            SimpleNamespace(admit=lambda call: None),
            self._item,
        )

    async def post(self, process: Process, body: bytes) -> HTTPAnswer:
        """Answer a call, fail, stall or disconnect."""
        world, random = self.world, self.world.random
        prompt = OPENAI.prompt(json.loads(body))
        texts = samples_in(prompt.user)
        process.arrived(texts)
        fault = random.choice(self.kinds) if random.random() < self.rate else None
        latency = self.latency * random.uniform(0.5, 1.5)
        if fault == "slow":
            latency += 12.0
        down = self._down()
        world.note("call", process.name, texts, fault, down)
        if down:
            await asyncio.sleep(random.uniform(0.0, 0.01))
            raise refused()
        try:
            await asyncio.sleep(1e7 if fault == "stall" else latency)
        except asyncio.CancelledError:
            # the server does not notice: it answers, and bills
            if fault in {None, "slow", "stall"} and self._status(prompt, texts)[0] == 200:
                self._pay(process, prompt, texts, usable=True, delivered=False)
            raise
        if self._down() or fault == "reset-before":
            raise aiohttp.ServerDisconnectedError
        headers = CIMultiDict({"x-request-id": "req"})
        if fault == "lie":
            headers["x-ratelimit-limit-requests"] = "1000"
            headers["x-ratelimit-remaining-requests"] = random.choice(("0", "1", "-5", "many"))
            headers["x-ratelimit-reset-requests"] = random.choice(("3s", "0s", "9h", "soon", "-4s"))
        elif fault == "429-wait":
            headers["retry-after"] = random.choice(("2", "20", "0", "-7", "never"))
        elif fault == "429-hour":
            headers["retry-after"] = "3600"
        status, data = self._status(prompt, texts, fault)
        if status == 200:
            usable = fault not in {"cut", "empty", "garbage", "reset-after", "error-200"}
            if fault == "error-200":
                data = OPENAI.error(500, "The engine is overloaded.", None, None)
            else:
                delivered = fault != "reset-after"
                broken = fault in {"cut", "empty"}
                self._pay(process, prompt, texts, usable=usable, delivered=delivered, broken=broken)
        if fault == "reset-after":
            raise aiohttp.ClientPayloadError("cut off")
        self.unstructured += data == NO_STRUCTURE
        return HTTPAnswer(status, headers, data)

    def _down(self) -> bool:
        """Whether the server is down."""
        if self.fate == "absent":
            return True
        if self.answered < self.after or self.fate not in {"down", "pause"}:
            return False
        now = self.world.loop.time()
        if self.outage is None:
            length = 1e9 if self.fate == "down" else self.world.random.choice((3.0, 60.0, 600.0))
            self.outage = now, now + length
        return self.outage[0] <= now < self.outage[1]

    def _status(self, prompt, texts, fault=None) -> tuple[int, bytes]:
        """Return status and body of a response."""
        error = OPENAI.error
        if self.answered >= self.after:
            match self.fate:
                case "quota":
                    return 429, error(429, "You exceeded your quota.", "insufficient_quota", None)
                case "revoked":
                    return 401, error(401, "Incorrect API key provided.", "invalid_api_key", None)
                case "model-gone":
                    return 404, error(404, "The model does not exist.", "model_not_found", None)
        if fault is not None and fault[:3] in {"429", "500", "503"}:
            return int(fault[:3]), error(int(fault[:3]), "Try again.", None, None)
        if prompt.structured and not self.structured:
            message = "response_format is not supported"
            return 400, error(400, message, "unsupported_parameter", "response_format")
        if prompt.structured and self.fate == "no-structure-500":
            return 500, NO_STRUCTURE
        natures = {self.world.nature.get(text) for text in texts}
        if "refused-400" in natures:
            message = "Invalid prompt: your prompt was blocked for safety reasons."
            return 400, error(400, message, "invalid_prompt", None)
        if "filtered-400" in natures:
            return 400, error(400, "The response was filtered.", "content_filter", "prompt")
        if "too-long-400" in natures:
            message = "The input token count (9000) exceeds the maximum number of tokens allowed."
            return 400, error(400, message, None, None)
        content = self._content(prompt, texts, fault)
        tokens = None
        if fault != "no-usage":
            tokens = Tokens(prompt.tokens, 5 + 10 * len(texts))
        data = OPENAI.success(self.answered, prompt, content, tokens)
        if fault == "cut":
            data = data[: len(data) // 2]
        return 200, data

    def _content(self, prompt, texts, fault) -> Content:
        natures = {self.world.nature.get(text) for text in texts}
        if fault == "empty":
            return compose([("x", None)], fault="empty-choices")
        if fault == "garbage":
            return Content("I would rather talk about the weather.")
        if "refusal" in natures:
            return compose([("x", None)], fault="refusal")
        if "unreadable" in natures:
            return Content("That is a hard one. Could you say more?")
        answers = [
            ("nothing of this" if self.world.nature.get(text) == "outside" else label(text), 0.8)
            for text in texts
        ]
        return compose(answers, confidence=prompt.confidence)

    def _pay(self, process, prompt, texts, *, usable, delivered, lane="live", broken=False) -> None:
        self.answered += delivered
        world = self.world
        scope = None if process is None else process.scope
        natures = {world.nature.get(text) for text in texts}
        readable = usable and not natures & {"unreadable", "refusal"}
        for text in texts:
            # few-shot examples are a part of the key
            whole = process is not None and process.per_call == 1
            asked = (scope, text, prompt.user if whole else None)
            now = world.loop.time()
            # an example is labeled by a prompt without examples, unlike a text of such a method
            own = not (whole and process.context) or prompt.user != user_prompt((text,), ())
            paid = Payment(process, now, asked, text, readable, delivered, lane, broken, own)
            world.payments.append(paid)
            world.note("paid", text, readable, delivered, lane)

    # -- batch jobs --

    def _item(self, wire, call) -> Item:
        prompt = wire.prompt(json.loads(call.body))
        texts = samples_in(prompt.user)
        status, data = self._status(prompt, texts)
        self.unstructured += data == NO_STRUCTURE
        if status == 200:
            self._pay(None, prompt, texts, usable=True, delivered=True, lane="batch")
        return Item(status, data)

    async def job(self, process, method, url, head, body) -> HTTPAnswer:
        """Answer a request to the batch API."""
        path, _, query = url.removeprefix("https://api.openai.com").partition("?")
        self.world.note("job", process.name, method, path)
        if self._down():
            raise refused()
        await asyncio.sleep(self.latency)
        if self.world.random.random() < self.rate / 2:
            raise aiohttp.ServerDisconnectedError
        response = self.jobs.respond(HTTPRequest(method, path, head, body, query))
        if response.delivery != "whole":
            raise aiohttp.ServerDisconnectedError
        lines = [line.split(": ", 1) for line in response.headers.decode().split("\r\n") if line]
        return HTTPAnswer(response.status, CIMultiDict(lines), response.body)


def refused() -> aiohttp.ClientConnectorError:
    key = SimpleNamespace(host="api.openai.com", port=443, ssl=True, is_ssl=True)
    return aiohttp.ClientConnectorError(key, ConnectionRefusedError(111, "Connection refused"))


def label(text: str) -> str:
    return LABELS[blake2b(text.encode(), digest_size=1).digest()[0] % 3]


class PlayedConnections:
    """In place of `testnuc.transport.connections.Connections`, for one process."""

    def __init__(self, process: Process) -> None:
        self._process, self._server = process, process.world.server
        self.open, self.most, self.closed = 0, 0, False

    async def post(self, provider, body, **_):
        self._enter()
        try:
            return await self._server.post(self._process, body)
        finally:
            self.open -= 1

    async def request(self, provider, method, url, *, data, content_type):
        self._enter(call=False)
        try:
            head = f"\r\ncontent-type: {content_type}\r\n".encode()
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


# -- the store -------------------------------------------------------------------------------------


@dataclass
class StoreFaults:
    """How a store fails."""

    rate: float
    kinds: list[str]
    operations: list[str]
    stall: float
    #: From this number of operations on everything fails; None: never.
    broken_after: int | None

    @classmethod
    def drawn(cls, random: Random) -> StoreFaults:
        operations = ["get", "put", "lease", "renew", "release", "batch"]
        return cls(
            rate=random.choice((0.0, 0.0, 0.0, 0.02, 0.2, 0.7)),
            kinds=random.sample(("raise", "raise-after", "stall", "oserror"), random.randint(1, 2)),
            operations=random.sample(operations, random.randint(1, 4)),
            stall=random.choice((0.5, 8.0, 60.0)),
            broken_after=random.choice((None,) * 9 + (0, 5, 30)),
        )


class PlayedStore(MemoryStore):
    """The handle of one process on the store that all share; it fails, stalls and dies."""

    durable = True
    lease_seconds = 30.0

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process, self._world = process, process.world
        shared = self._world.rows
        self._rows, self._facts = shared._rows, shared._facts
        self._batches, self._batch_leases = shared._batches, shared._leases
        self._operations = 0
        self.opened = self.closed = False
        #: Hashes of texts whose predictions the store was given and did not accept.
        self.unstored: Counter[bytes] = Counter()
        self.trouble = False

    def pool(self, embedder):
        del embedder
        pool = Pool()
        for name in ("_adder", "_searcher"):
            getattr(pool, name).shutdown()
            setattr(pool, name, InlineExecutor())
        return pool

    async def open(self):
        self.opened = True

    async def close(self):
        self.closed = True

    async def _operate(self, name, action):
        """Do something atomically, after the faults of the day."""
        world, faults = self._world, self._world.store_faults
        if self._process.died:
            raise asyncio.CancelledError
        if self.closed and name == "put":
            world.complain(f"{self._process.name} stores answers after closing its store")
        self._operations += 1
        broken = faults.broken_after is not None and self._operations > faults.broken_after
        kind = None
        if broken:
            kind = "raise"
        elif name in faults.operations and world.random.random() < faults.rate:
            kind = world.random.choice(faults.kinds)
        await asyncio.sleep(0.001)
        if kind is not None:
            self.trouble = True
            world.note("store", self._process.name, name, kind)
        if kind == "stall":
            await asyncio.sleep(faults.stall * world.random.uniform(0.5, 1.5))
        if self._process.died:
            raise asyncio.CancelledError
        if kind == "raise":
            raise StoreError("the store is gone")
        if kind == "oserror":
            raise OSError("disk")
        result = action()
        if kind == "raise-after":
            raise StoreError("the connection broke after the commit")
        return result

    async def get_predictions(self, keys):
        return await self._operate(
            "get", lambda: [getattr(self._rows.get(key), "prediction", None) for key in keys]
        )

    async def put_predictions(self, rows):
        def put():
            for row in rows:
                self._world.key_leases.pop(row.key, None)
            return [self._rows.setdefault(row.key, row).prediction for row in rows]

        try:
            return await self._operate("put", put)
        except BaseException:
            self.unstored.update(row.text_hash for row in rows)
            raise

    async def put_batch(self, batch, owner, seconds):
        def put():
            self._batches.setdefault(batch.id, batch)
            self._claim(batch.id, owner, seconds)

        await self._operate("batch", put)

    async def claim_batch(self, batch, owner, seconds):
        return await self._operate("batch", lambda: self._claim(batch, owner, seconds))

    def _claim(self, batch, owner, seconds):
        found, now = self._batches.get(batch), self._world.loop.time()
        if found is None or found.outcome is not None:
            return False
        holder, until = self._batch_leases.get(batch, (owner, 0.0))
        if holder != owner and until > now:
            return False
        self._batch_leases[batch] = owner, now + seconds
        return True

    async def note_batch(self, batch, remote_id):
        note = super().note_batch
        await self._operate("batch", lambda: None)
        await note(batch, remote_id)

    async def end_batch(self, batch, outcome, usage):
        end = super().end_batch
        await self._operate("batch", lambda: None)
        return await end(batch, outcome, usage)


class LeasingStore(PlayedStore):
    """The same with leases, as PostgreSQL has them."""

    async def lease(self, keys, seconds):
        def take():
            now, name, granted = self._world.loop.time(), self._process.name, []
            for key in keys:
                free = key not in self._rows
                free = free and self._world.key_leases.get(key, ("", 0.0))[1] <= now
                if free:
                    self._world.key_leases[key] = name, now + seconds
                granted.append(free)
            return granted

        return await self._operate("lease", take)

    async def renew(self, keys, seconds):
        def extend():
            now, name, leases = self._world.loop.time(), self._process.name, self._world.key_leases
            held = [leases.get(key, ("", 0.0)) for key in keys]
            mine = [owner == name and until > now for owner, until in held]
            leases.update((k, (name, now + seconds)) for k, m in zip(keys, mine, strict=True) if m)
            return mine

        return await self._operate("renew", extend)

    async def release(self, keys):
        def give():
            for key in keys:
                if self._world.key_leases.get(key, ("",))[0] == self._process.name:
                    del self._world.key_leases[key]

        await self._operate("release", give)


# -- processes and callers -------------------------------------------------------------------------


class PlayedClient(TestNUC):
    """A client on played parts."""

    def __init__(self, **given) -> None:
        parts = Components(**given)
        self.engine = Engine(parts)
        self.labels = parts.labels
        self.model = parts.model


@dataclass(frozen=True)
class BrokenMethod(StandardPrompting):
    """A method of the user whose `reduce` raises now and then."""

    random: Random = field(default_factory=Random)

    @property
    def samples(self):
        return 2

    def reduce(self, samples):
        if self.random.random() < 0.1:
            raise Bug("of the method")
        return samples[0]


class SlowEmbedder:
    """Takes time, and fails now and then."""

    dim, name = 16, "hash"

    def __init__(self, world: World, rate: float) -> None:
        self._world, self._rate = world, rate

    async def embed(self, texts):
        await asyncio.sleep(0.05)
        if self._world.random.random() < self._rate:
            raise Bug("of the embedder")
        return await self._world.embedder.embed(texts)


class Observer:
    """Follows a run, and raises at a certain moment."""

    def __init__(self, at: int) -> None:
        self._left = at

    def _count(self, *_):
        self._left -= 1
        if self._left == 0:
            raise Bug("of the observer")

    start = stage = advance = _count

    def close(self):
        self._count()


class Process:
    """A client, its callers, and its end: closed, or killed."""

    def __init__(self, world: World, number: int) -> None:
        self.world, random, self.name = world, world.random, f"p{number}"
        #: In the order of their creation.
        self.tasks: dict[asyncio.Task, None] = {}
        self.died = self.closed = False
        self.closing_at: float | None = None
        self.closed_at: float | None = None
        self.store = (LeasingStore if world.leases else PlayedStore)(self)
        self.connections = PlayedConnections(self)
        self.own = None
        if random.random() < 0.12 and not world.batches:
            self.own = random.choice((None, "raises", "high", "nan", "big", "label", "few"))
            model = Stranger(self, self.own)
        else:
            model = OpenAI("gpt-4o-mini", base_url="https://api.openai.com/v1", api_key="key")
        self.wire = not isinstance(model, Stranger)
        method = random.choice(
            (None, None, None, SelfConsistency(3), TopKICL(2), TopKICLP(2), BrokenMethod(random))
        )
        self.per_call = 1 if method is not None and method.context else random.choice((1, 1, 1, 4))
        self.rpm = random.choice((None, None, None, 30, 120))
        budget = random.choice(
            (None,) * 6 + (Budget(calls=random.choice((1, 7, 30))), Budget(usd=0.0005))
        )
        self.budget = budget if self.wire or budget is None or budget.usd is None else None
        self.concurrency = random.choice((1, 2, 8, 32))
        self.samples = 1 if method is None else method.samples
        self.context = method is not None and method.context > 0 and method.labeled
        clock = world.loop.time
        self.client = PlayedClient(
            labels=LABELS,
            model=model,
            embedder=SlowEmbedder(world, random.choice((0.0, 0.0, 0.0, 0.1))),
            store=self.store,
            k=3,
            policy=random.choice(("auto", "majority", "weighted")),
            method=method,
            neighbors=random.choice(("predict", "predict", "stored")),
            join_pool=random.random() < 0.8,
            sampling=Sampling(texts_per_call=self.per_call),
            rate_limit=None if self.rpm is None else RateLimit(requests_per_minute=self.rpm),
            max_concurrency=self.concurrency,
            retry=RetryPolicy(
                attempts=random.choice((2, 5, 10)),
                timeout=random.choice((5.0, 20.0)),
                deadline=random.choice((30.0, 90.0)),
            ),
            budget=self.budget,
            batches=BatchPolicy(
                rest=random.choice(("batch", "live", "error")),
                max_requests=random.choice((None, 5)),
                in_flight=random.choice((1, 4)),
            ),
            kernels=False,
            transport=partial(
                Transport,
                clock=clock,
                wall=lambda: 1.7e9 + clock(),
                rng=Random(world.seed),
                connections=self.connections,
            ),
        )
        self.scope = self.client.engine.parts.predictor.scope
        self._in_flight = 0

    def arrived(self, texts) -> None:
        self.world.requests.append((self.world.loop.time(), self))

    # -- its life --

    async def live(self) -> None:
        """Start callers, and end: after them, before them, or by a kill."""
        world, random = self.world, self.world.random
        PROCESS.set(self)
        callers = [
            asyncio.create_task(self._caller(), name=f"{self.name}-caller-{i}")
            for i in range(random.randint(1, 4))
        ]
        end = random.choice(("after", "after", "after", "close", "close", "kill"))
        world.note(self.name, "lives", end, len(callers))
        if end == "after":
            await asyncio.wait(callers)
        else:
            early = random.choice((0.1, 1.0, 10.0, 100.0))
            await asyncio.wait(callers, timeout=random.uniform(0.0, early))
        if end == "kill":
            self.died = True
            world.note(self.name, "killed")
            await self._bury()
            return
        self.closing_at = world.loop.time()
        closers = [
            asyncio.create_task(self._close(), name=f"{self.name}-close-{i}")
            for i in range(random.choice((1, 1, 2)))
        ]
        if random.random() < 0.1:
            await asyncio.sleep(random.choice((0.0, 1.0)))
            closers[0].cancel()
        await asyncio.wait(closers)
        await asyncio.wait(callers)

    async def _close(self) -> None:
        try:
            await self.client.aclose()
        except asyncio.CancelledError:
            self.world.note(self.name, "close cancelled")
        except Exception as error:  # noqa: BLE001 - checked later
            self.world.note(self.name, "close failed", repr(error))
            if not isinstance(error, (StoreError, OSError)):
                self.world.complain(f"{self.name}: aclose raised {error!r}")
        else:
            if self.closed_at is None:
                self.closed_at = self.world.loop.time()
        self.closed = True

    async def _caller(self) -> None:
        world, random = self.world, self.world.random
        for _ in range(random.randint(1, 3)):
            await asyncio.sleep(random.choice((0.0, 0.0, 0.3, 5.0)))
            kinds = ("many", "many", "many", "one", "stream", "pool", "add", "diagnose")
            kind = random.choice(kinds)
            some = random.sample(world.texts, random.randint(1, len(world.texts)))
            if kind == "one":
                some = some[:1]
            lane = "live"
            if world.batches and kind in {"many", "pool"} and random.random() < 0.6:
                lane = "batch"
            operation = Operation(self, kind, some, lane, world.loop.time())
            world.operations.append(operation)
            world.note(self.name, "begins", kind, len(some), lane)
            task = asyncio.create_task(self._operate(operation), name=f"{self.name}-{kind}")
            if random.random() < 0.2:
                await asyncio.wait([task], timeout=random.choice((0.0, 0.05, 1.0, 20.0)))
                operation.left |= not task.done()
                task.cancel()
            await asyncio.wait([task])

    async def _operate(self, operation: Operation) -> None:
        world, client, random = self.world, self.client, self.world.random
        try:
            match operation.kind:
                case "many":
                    progress = False
                    if random.random() < 0.15:
                        operation.observed, progress = True, Observer(random.randint(1, 12))
                    results = await client.classify_many(
                        operation.texts, lane=operation.lane, progress=progress
                    )
                    operation.results = list(results)
                    operation.stopped = getattr(results, "stopped", None)
                case "one":
                    operation.results = [await client.classify(operation.texts[0])]
                case "stream":
                    leave = random.choice((None, None, 0, 3))
                    stream = client.stream(operation.texts, window=random.choice((2, 4096)))
                    async for result in stream:
                        operation.results.append(result)
                        if leave is not None and len(operation.results) > leave:
                            operation.left = True
                            break
                    await stream.aclose()
                case "pool":
                    await client.add(operation.texts)
                    await client.predict_pool(lane=operation.lane)
                case "add":
                    known = [label(t) for t in operation.texts] if random.random() < 0.3 else None
                    await client.add(operation.texts, known)
                case "diagnose":
                    await client.diagnose()
        except asyncio.CancelledError as error:
            operation.error = error
        except Exception as error:  # noqa: BLE001 - checked later
            operation.error = error
        finally:
            operation.ended = world.loop.time()
            words = [(r.text, r.label, type(r.error).__name__) for r in operation.results]
            world.note(self.name, "ends", operation.kind, type(operation.error).__name__, words)

    async def _bury(self) -> None:
        """Drop the tasks of a killed process: they get no turn that could change anything."""
        for _ in range(100):
            life = asyncio.current_task()
            tasks = [task for task in self.tasks if not task.done() and task is not life]
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            await asyncio.sleep(0)


async def _history(world: World) -> None:
    """Let processes live, one after the other and beside each other."""
    random = world.random
    lives = []
    for number in range(random.choice((1, 1, 2, 3))):
        process = Process(world, number)
        world.processes.append(process)
        life = asyncio.create_task(process.live(), name=f"{process.name}-life")
        process.tasks.pop(life, None)
        lives.append(life)
        if not world.leases or random.random() < 0.5:
            # without leases, processes follow each other
            await asyncio.wait([life])
    for life in lives:
        await asyncio.wait([life])
        life.result()


async def _main(world: World) -> None:
    loop = world.loop

    def factory(loop, coro, **given):
        task = asyncio.Task(coro, loop=loop, **given)
        process = PROCESS.get()
        if process is not None:
            process.tasks[task] = None
        return task

    def handler(_, context):
        owner = context.get("task") or context.get("future")
        if not any(p.died and owner in p.tasks for p in world.processes):
            world.complain(f"{context['message']}: {context.get('exception')!r}")

    loop.set_task_factory(factory)
    loop.set_exception_handler(handler)
    begun = loop.time()
    history = asyncio.create_task(_history(world), name="history")
    try:
        await asyncio.wait([history], timeout=world.horizon)
        if not history.done():
            world.complain(f"not ended after {world.horizon:.0f} s; pending: {pending(world)}")
            return
        history.result()
        # whatever is still under way after its client was closed has ten seconds
        await asyncio.sleep(10.0)
        left = pending(world)
        if left:
            world.complain(f"tasks are left: {left}")
    finally:
        world.note("end", round(loop.time() - begun, 3))


def pending(world: World) -> list[str]:
    """Name the tasks of live processes that have not ended, and where they wait."""
    found = defaultdict(int)
    for process in world.processes:
        for task in process.tasks:
            if not task.done() and not process.died:
                stack = task.get_stack(limit=8)
                where = stack[-1] if stack else None
                place = f"{where.f_code.co_name}:{where.f_lineno}" if where else "?"
                found[f"{task.get_name()} at {place}"] += 1
    return [f"{name} x{n}" if n > 1 else name for name, n in sorted(found.items())]


def simulate(seed: int) -> World:
    """Run the world of a seed to its end."""
    loop = ThreadlessLoop()
    world = World(seed, loop)
    draw = Random(seed)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", SmallPoolWarning)
        for name in ("token_bytes", "token_hex"):
            fake = draw.randbytes if name == "token_bytes" else lambda n: draw.randbytes(n).hex()
            stack.enter_context(mock.patch.object(secrets, name, fake))
        runner = stack.enter_context(asyncio.Runner(loop_factory=lambda: loop))
        try:
            runner.run(_main(world))
        except RuntimeError as error:
            if "nothing will ever happen" not in str(error):
                raise
            world.complain(f"all tasks wait: {pending(world)}")
    return world
