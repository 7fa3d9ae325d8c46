"""Processes: a client each, its callers, and its end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from testnuc import BatchPolicy, Budget, LabelSet, Limits, RetryPolicy, Sampling, TestNUC
from testnuc._engine.components import Internals
from testnuc.errors import StoreError
from testnuc.methods import SelfConsistency, StandardPrompting, TopKICL, TopKICLP
from testnuc.providers.openai import OpenAI
from testnuc.transport import Transport
from tests.simulation.connections import PlayedConnections, Stranger
from tests.simulation.keys import WALL, Keys
from tests.simulation.records import LABELS, PROCESS, Bug, Operation, label
from tests.simulation.store import LeasingStore, PlayedStore

if TYPE_CHECKING:
    from tests.simulation.world import World


class PlayedClient(TestNUC):
    """A client on played parts."""

    def __init__(self, transport, **given) -> None:
        self._internals = Internals(kernels=False, transport=transport)
        super().__init__(**given)


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
        self.keys = Keys(world.loop, f"{world.seed} {number}")
        #: When it is suspended: begin and end.
        self.sleeps: list[tuple[float, float]] = []
        if random.random() < 0.12 and not world.batches and not world.several:
            self.own = random.choice((None, "raises", "high", "nan", "big", "label", "few"))
            model = Stranger(self, self.own)
        else:
            key = self.keys.ask if random.random() < 0.2 else "key"
            model = OpenAI("gpt-4o-mini", base_url="https://api.openai.com/v1", api_key=key)
            if model.keys is not None:
                model.keys._wall = lambda: WALL + world.loop.time()
        self.wire = not isinstance(model, Stranger)
        method = random.choice(
            (None, None, None, SelfConsistency(3), TopKICL(2), TopKICLP(2), BrokenMethod(random))
        )
        if world.several:
            method = None
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
            labels=LabelSet(LABELS, multilabel=world.several),
            model=model,
            embedder=SlowEmbedder(world, random.choice((0.0, 0.0, 0.0, 0.1))),
            store=self.store,
            k=3,
            policy=random.choice(("auto", "majority", "weighted")),
            method=method,
            neighbors=random.choice(("predict", "predict", "stored")),
            join_pool=random.random() < 0.8,
            sampling=Sampling(texts_per_call=self.per_call),
            limits=Limits(
                requests_per_minute=self.rpm,
                concurrency=self.concurrency,
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
            ),
            transport=partial(
                Transport,
                clock=clock,
                wall=lambda: WALL + clock(),
                rng=Random(world.seed),
                connections=self.connections,
            ),
        )
        self.scope = self.client._parts.predictor.scope
        self._in_flight = 0

    def arrived(self, texts) -> None:
        self.world.requests.append((self.world.loop.time(), self))

    @property
    def asleep_until(self) -> float:
        """When it wakes, if it is suspended now."""
        now = self.world.loop.time()
        return next((end for begin, end in self.sleeps if begin <= now < end), 0.0)

    def slept_since(self, began: float | None) -> bool:
        """Whether it was suspended while a call was made, or is before its answer is stored."""
        now = self.world.loop.time()
        soon = now + 3 * self.world.store_faults.stall
        return any(begin <= soon and end >= (began or now) for begin, end in self.sleeps)

    # -- its life --

    async def live(self) -> None:
        """Start callers, and end: after them, before them, or by a kill."""
        world, random = self.world, self.world.random
        PROCESS.set(self)
        callers = [
            asyncio.create_task(self._caller(), name=f"{self.name}-caller-{i}")
            for i in range(random.randint(1, 4))
        ]
        now = world.loop.time()
        for _ in range(random.randint(1, 2) if world.suspends and random.random() < 0.6 else 0):
            begin = now + random.choice((0.1, 1.0, 5.0, 30.0)) * random.random()
            self.sleeps.append((begin, begin + random.choice((5.0, 45.0, 120.0, 600.0))))
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
