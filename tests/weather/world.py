"""One seed: a client labels texts through a hostile server, and once more when all is well."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import signal
import tempfile
import traceback
import warnings
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from zlib import crc32

from testnuc import Budget, LabelSet, Limits, RetryPolicy, Sampling, TestNUC
from testnuc._engine.components import Internals
from testnuc.errors import QuotaExceededError, TestNUCError
from testnuc.methods import SelfConsistency, TopKICL
from testnuc.providers.anthropic import Anthropic
from testnuc.providers.openai import OpenAI
from testnuc.stores.memory import MemoryStore
from testnuc.stores.sqlite.store import SqliteStore
from testnuc.testing import HashEmbedder
from testnuc.transport import Transport
from tests.weather.exchanges import (
    BUILT_IN,
    FORMATS,
    Asked,
    answer_text,
    asked_for,
    recorded,
    reply,
)
from tests.weather.loop import WeatherLoop, watched
from tests.weather.mutations import mutate
from tests.weather.response import Response
from tests.weather.server import Server, send_in_parts

LABELS = ["refund", "delivery", "login", "weather", "something else"]
WORDS = ["card", "lost", "parcel", "late", "password", "reset", "money", "back", "app", "slow"]
#: Virtual seconds in which a run must end.
HORIZON = 12 * 3600.0
#: Seconds of CPU time of a seed.
_PATIENCE = 60
#: How often a seed runs that blocks the loop.
_RUNS = 3


class PlainClient(TestNUC):
    """A client with parts in virtual time, and without compiled kernels."""

    def __init__(self, transport, **given) -> None:
        self._internals = Internals(kernels=False, transport=transport)
        super().__init__(**given)


@dataclass
class Sent:
    """A response that the server sent to its end."""

    run: int
    number: int
    texts: list[str]
    status: int | str
    #: Whether it is the right answer, unchanged.
    right: bool
    #: Whether a provider bills it, and a client can know.
    billed: bool
    names: list[str]


@dataclass
class Run:
    """What came of one run."""

    results: dict[str, object] = field(default_factory=dict)
    #: What was raised for a text, where each is classified alone.
    failed: dict[str, Exception] = field(default_factory=dict)
    error: BaseException | None = None
    stopped: Exception | None = None
    ended: bool = False
    seconds: float = 0.0
    calls: int = 0


class Weather:
    """All that a seed decides, and what happened."""

    def __init__(self, seed: int, *, data: bool = False) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self.format = random.choice(FORMATS)
        n = random.randint(8, 16)
        self.texts = [f"{i}: {' '.join(random.choices(WORDS, k=4))} {seed}" for i in range(n)]
        self.several = random.random() < 0.15
        self.right = {text: self._right(random) for text in self.texts}
        part = random.choice((0.3, 0.5, 0.8))
        self.healthy = {text for text in self.texts if random.random() < part}
        #: Probability that the response to another text is mutated.
        self.rate = random.choice((0.3, 0.7, 1.0))
        known = recorded() if data else ()
        self.exchanges = random.choices(known, k=4) if known and random.random() < 0.6 else []
        self.exchanges += random.sample(BUILT_IN, 4)
        alphabet = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
        tail = "".join(random.choices(alphabet, k=40))
        self.key = random.choice((f"sk-{tail}", f"{tail[:12]}/{tail[12:24]}+{tail[24:]}=", tail))
        # -- of the client --
        self.kind = random.choice(("many", "many", "many", "one", "stream"))
        self.method = random.choice((None,) * 6 + (SelfConsistency(3), TopKICL(2)))
        if self.several:
            self.method = None
        self.per_call = 1 if self.method or self.several else random.choice((1, 1, 1, 4))
        self.samples = 1 if self.method is None else self.method.samples
        self.file = random.random() < 0.1
        self.function = random.random() < 0.2
        self.budget = random.choice((None,) * 7 + (Budget(calls=40), Budget(tokens=3000)))
        self.settings = {
            "k": random.choice((0, 3)),
            "policy": random.choice(("auto", "majority")),
        }
        concurrency, rate = random.choice((1, 4, 16)), random.choice((None, None, None, 600))
        self.settings["join_pool"] = random.random() < 0.7
        self.settings["sampling"] = Sampling(texts_per_call=self.per_call)
        retry = RetryPolicy(
            attempts=random.choice((5, 10)),
            timeout=random.choice((5.0, 20.0)),
            deadline=random.choice((60.0, 200.0)),
        )
        self.limits = Limits(rate, concurrency=concurrency, retry=retry)
        #: Whether responses come in parts, with characters of several bytes; drawn apart, so that
        #: the rest of a seed stays as it was.
        self.parts = Random(f"parts {seed}").random() < 0.4
        #: Part of the texts that a proxy answers with another's answer first: it caches POST by
        #: URL. Drawn apart as well.
        self.hits = Random(f"cache {seed}").choice((0, 0, 0, 0.3, 1))
        #: What it has cached, by the prompt.
        self.cached: dict[str, bytes] = {}
        # -- what happened --
        self.sent: list[Sent] = []
        self.requests: list[tuple[int, list[str], int | str]] = []
        self.attempts: Counter[tuple] = Counter()
        self.runs: list[Run] = []
        self.said: list[str] = []
        self.complaints: list[str] = []
        #: Callbacks that held the loop for too long: their name and seconds of CPU time.
        self.blocked: list[tuple[str, float]] = []
        #: Rows of the store after the first run: label and text hash.
        self.stored: dict[bytes, list] = {}
        self.stored_bytes = b""
        self.server = Server(self.answer)

    def _right(self, random: Random):
        if self.several:
            return random.sample(LABELS, random.randint(1, 2))
        return random.choice(LABELS[:4])

    def complain(self, what: str) -> None:
        self.complaints.append(what)

    # -- the server --

    def answer(self, path: str, head: bytes, body: bytes):
        """Return the response to a request, the same for a seed whatever the order of requests."""
        run = len(self.runs)
        try:
            asked = asked_for(path, body)
        except (ValueError, KeyError, TypeError) as error:
            self.complain(f"a request is no request: {error!r}: {body[:200]!r}")
            return Response(400, [], b"{}"), lambda **_: None
        if self.key.encode() not in head:
            self.complain("a request without the key")
        # few-shot examples make another request of a text
        place = (run, asked.user)
        attempt = self.attempts[place]
        self.attempts[place] += 1
        source = f"{self.seed} {run} {attempt} {asked.user}"
        # with a letter that is no digit: an id of few digits says little, and may be another's
        random, asked = Random(source), replace(asked, name=f"{crc32(source.encode()):x}z")
        response = self._right_response(asked)
        hit = run == 0 and not self.healthy.intersection(asked.texts)
        right = not (hit and random.random() < self.rate)
        asked_before = {text for _, texts, _ in self.requests for text in texts}
        new = run == 0 and asked_before.isdisjoint(asked.texts)
        if new and self._answer_of_another(asked.user, response):
            right = False
        elif not right:
            self._spoil(random, response, asked)
            right = not response.names
        if self.parts:
            send_in_parts(Random(f"parts {source}"), response)
        self.requests.append((run, asked.texts, response.status))
        data = response.body
        number = len(self.requests)

        def sent(*, clean):
            if right and clean and run == 0:
                self.cached[asked.user] = data
            billed = response.status == 200 and response.framed and not _is_error(response)
            billed = billed and clean
            self.sent.append(
                Sent(
                    run,
                    number,
                    asked.texts,
                    response.status,
                    right and clean,
                    billed,
                    response.names,
                )
            )

        return response, sent

    def _answer_of_another(self, user: str, response: Response) -> bool:
        """Replace a response by a cached one; return whether there is any for this request.

        A client can tell once it knows two ids, and has read what was cached: hence the pause.
        """
        random = Random(f"cache {self.seed} {user}")
        others = [body for prompt, body in self.cached.items() if prompt != user]
        if random.random() >= self.hits or len(others) < 2:
            return False
        response.body = random.choice(others)
        response.steps = [("wait", 0.001), ("send", response.body)]
        response.set("content-length", str(len(response.body)))
        response.names.append("cached")
        return True

    def _right_response(self, asked: Asked) -> Response:
        said = answer_text([self.right[text] for text in asked.texts], several=self.several)
        value = reply(asked, said) | ({"fingerprint": "für 5 €, 😀" * 20} if self.parts else {})
        data = json.dumps(value, ensure_ascii=not self.parts).encode()
        return Response(200, [("content-type", "application/json")], data)

    def _spoil(self, random: Random, response: Response, asked: Asked) -> None:
        wrong = LABELS[4] if not self.several else [LABELS[4]]
        other = reply(asked, answer_text([wrong] * len(asked.texts), several=self.several))
        if random.random() < 0.4:
            exchange = random.choice(self.exchanges)
            response.status, response.body = exchange.status, exchange.body
            response.headers = list(exchange.headers)
            if any("ratelimit" in name.lower() for name, _ in exchange.headers):
                response.names.append("quota headers")  # of another account, so they lie
            response.names.append(f"exchange {exchange.status}")
            if random.random() < 0.4:
                return
        mutate(random, response, self.key, json.dumps(other).encode())
        if response.status in {204, 304} and response.steps:
            # their body comes when the connection may carry the next request
            response.framed = False

    # -- the client --

    def client(self, port: int, store, *, budget: Budget | None) -> PlainClient:
        """Return a client of this weather's server."""
        loop = asyncio.get_running_loop()
        base = f"http://127.0.0.1:{port}/v1"
        key = (lambda: self.key) if self.function else self.key
        if self.format == "anthropic":
            model = Anthropic("claude-haiku-4-5", base_url=base, api_key=key)
        else:
            responses = True if self.format == "responses" else None
            model = OpenAI("gpt-4o-mini", base_url=base, api_key=key, responses=responses)
        return PlainClient(
            labels=LabelSet(LABELS, multilabel=self.several),
            model=model,
            embedder=HashEmbedder(16),
            store=store,
            method=self.method,
            limits=replace(self.limits, budget=budget),
            transport=partial(
                Transport,
                clock=loop.time,
                wall=lambda: 1.7e9 + loop.time(),
                rng=Random(self.seed),
            ),
            **self.settings,
        )

    async def label(self, client: PlainClient, kind: str) -> Run:
        """Let a client label all texts."""
        run, loop = Run(), asyncio.get_running_loop()
        began = loop.time()

        async def one(text):
            try:
                run.results[text] = await client.classify(text)
            except TestNUCError as error:
                run.failed[text] = error
                raise

        async def work():
            if kind == "many":
                results = await client.classify_many(self.texts)
                run.results = {result.text: result for result in results}
                run.stopped = results.stopped
            elif kind == "one":
                ends = await asyncio.gather(*map(one, self.texts), return_exceptions=True)
                errors = [end for end in ends if end is not None]
                self.said += [_words(error) for error in errors]
                # an exhausted account meets every text
                errors.sort(key=lambda error: not isinstance(error, QuotaExceededError))
                run.stopped = errors[0] if errors else None
            else:
                async for result in client.stream(self.texts):
                    run.results[result.text] = result

        task = asyncio.create_task(work())
        await asyncio.wait([task], timeout=HORIZON)
        run.seconds = loop.time() - began
        run.ended = task.done()
        if not run.ended:
            where = [str(line) for line in task.get_stack(limit=3)]
            self.complain(f"the run has not ended after {HORIZON:.0f} s: {where}")
            task.cancel()
            await asyncio.wait([task], timeout=60)
        elif task.exception() is not None:
            run.error = task.exception()
        self.said.append(repr(client))
        return run

    async def live(self, folder: str) -> None:
        """Run through the weather, and then once more under a clear sky."""
        port = await self.server.start()
        try:
            store = SqliteStore(Path(folder) / "w.db") if self.file else MemoryStore()
            for budget, kind in ((self.budget, self.kind), (None, "many")):
                client = self.client(port, store, budget=budget)
                run = await self.label(client, kind)
                self._listen(run)
                await client.aclose()
                # one that broke off may be billed, and is counted apart
                run.calls = client.usage.calls + client.usage.incomplete
                await self._read(store)
                self.runs.append(run)
                if not run.ended:
                    break
                if self.file:
                    store = SqliteStore(Path(folder) / "w.db")
        finally:
            await self.server.stop()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        left = [task for task in left if task.get_name() != "weather"]
        if left:
            self.complain(f"tasks are left: {left}"[:500])

    def _listen(self, run: Run) -> None:
        for result in run.results.values():
            self.said.append(repr(result))
            if result.error is not None:
                self.said.append(_words(result.error))
        for error in (run.error, run.stopped):
            if error is not None:
                self.said.append(_words(error))

    async def _read(self, store) -> None:
        """Note what is stored."""
        if not self.runs and not self.file:
            rows = [*store._rows.values()]
        elif not self.runs:
            reader = SqliteStore(store.path)
            rows = await reader.predictions(count=100_000)
            await reader.close()
        else:
            return
        for row in rows:
            self.stored.setdefault(row.text_hash, []).append(row)
            self.said.append(repr(row))


def _is_error(response: Response) -> bool:
    """Whether the body may be that of an error, as one or in a stream."""
    body = response.body if response.plain is None else response.plain
    value = response.value()
    return (isinstance(value, dict) and bool(value.get("error"))) or b'"error": {' in body


def _words(error: BaseException) -> str:
    lines = [*traceback.format_exception(error), repr(error), repr(vars(error))]
    return "\n".join(lines)


class _Listener(logging.Handler):
    def __init__(self, weather: Weather) -> None:
        super().__init__(logging.DEBUG)
        self._weather = weather

    def emit(self, record):
        message = record.getMessage()
        self._weather.said.append(message)
        if any(not c.isprintable() for c in message):
            self._weather.complain(f"a log line holds a control character: {message!r:.300}")
        if record.exc_info:
            self._weather.said.append("".join(traceback.format_exception(*record.exc_info)))


@contextmanager
def _alarm():
    """Interrupt a turn of the loop that never ends."""

    def ring(*_):
        raise RuntimeError(f"the loop has been blocked, or runs in circles, for {_PATIENCE} s")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, _PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def weather(seed: int, *, data: bool = False) -> Weather:
    """Run the weather of a seed to its end; `data`: with the recorded exchanges, too.

    A seed that blocked the loop is run again: the first use of a module imports it, and on a busy
    machine the same work takes several times the CPU time. Only what always blocks is a fault.
    """
    for _ in range(_RUNS):
        world = _weather(Weather(seed, data=data))
        if not world.blocked:
            break
    return world


def _weather(world: Weather) -> Weather:
    loop = WeatherLoop()
    loggers = [logging.getLogger(name) for name in ("testnuc", "asyncio", "aiohttp")]
    listener = _Listener(world)
    collecting = gc.isenabled()
    with ExitStack() as stack:
        folder = ""
        if world.file:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        for logger in loggers:
            stack.callback(logger.setLevel, logger.level)
            stack.callback(setattr, logger, "propagate", logger.propagate)
            stack.callback(logger.removeHandler, listener)
            logger.addHandler(listener)
            logger.setLevel(logging.DEBUG)
            logger.propagate = False
        # a collection of all objects would count as a blocked loop
        gc.collect()
        gc.freeze()
        stack.callback(gc.unfreeze)
        gc.disable()
        stack.callback(gc.enable if collecting else gc.disable)
        stack.enter_context(_alarm())
        stack.enter_context(watched(loop))

        def handler(_, context):
            world.complain(f"{context['message']}: {context.get('exception')!r}")

        loop.set_exception_handler(handler)
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(world.live(folder))
        world.blocked = loop.blocked
        for path in Path(folder).iterdir() if folder else ():
            world.stored_bytes += path.read_bytes()
    return world
