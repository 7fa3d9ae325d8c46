"""A world of clients in virtual time: a provider, a store, processes and callers, all from a seed.

Real are clients, scheduler, transport, limits and budget; played are the connections, the server
behind them, the store's faults, and the callers. Nothing leaves the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import secrets
import warnings
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from itertools import count
from random import Random
from typing import TYPE_CHECKING
from unittest import mock

from testnuc import SmallPoolWarning
from testnuc.stores.memory import MemoryStore
from testnuc.testing import HashEmbedder
from tests.simulation.call_faults import NATURES
from tests.simulation.process import Process
from tests.simulation.provider import Server
from tests.simulation.records import PROCESS, WORDS
from tests.simulation.store import StoreFaults
from tests.virtual import ThreadlessLoop

if TYPE_CHECKING:
    from tests.simulation.records import Operation, Payment

#: Virtual seconds in which a world without batches must end, and one with batches.
#: A job that expires takes a day and may answer one text.
HORIZON, BATCH_HORIZON = 6 * 3600.0, 60 * 86_400.0


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
        #: Whether texts can have several labels, and whether processes are suspended.
        self.several = random.random() < 0.1
        self.suspends = self.leases and random.random() < 0.4
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


@contextmanager
def suspensions(loop):
    """Let no callback of a suspended process run before it wakes."""
    run = asyncio.Handle._run
    outside = contextvars.Context()
    number = count()

    def unless_asleep(handle):
        process = handle._context.get(PROCESS)
        until = 0.0 if process is None or not process.sleeps else process.asleep_until
        if not until:
            run(handle)
            return
        # in their order, soon after it wakes
        when = until + 1e-7 * next(number)
        loop.call_at(when, lambda: handle.cancelled() or handle._run(), context=outside)

    with (
        mock.patch.object(asyncio.Handle, "_run", unless_asleep),
        mock.patch.object(asyncio.TimerHandle, "_run", unless_asleep),
    ):
        yield


class _Ordered(dict):
    """A set in the order of insertion."""

    def add(self, item):
        self[item] = None

    def discard(self, item):
        self.pop(item, None)


@contextmanager
def ordered_groups():
    """Let task groups cancel their tasks in the order of their start, not of their addresses."""
    begin = asyncio.TaskGroup.__init__

    def ordered(group):
        begin(group)
        group._tasks = _Ordered()

    with mock.patch.object(asyncio.TaskGroup, "__init__", ordered):
        yield


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
        # the pause after which a batch is sent again
        stack.enter_context(mock.patch("testnuc.batch.lane.uniform", Random(seed).uniform))
        stack.enter_context(suspensions(loop))
        stack.enter_context(ordered_groups())
        runner = stack.enter_context(asyncio.Runner(loop_factory=lambda: loop))
        try:
            runner.run(_main(world))
        except RuntimeError as error:
            if "nothing will ever happen" not in str(error):
                raise
            world.complain(f"all tasks wait: {pending(world)}")
    return world
