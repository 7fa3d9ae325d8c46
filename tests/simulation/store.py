"""The store that all processes share: it fails, stalls and dies."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testnuc.errors import StoreError
from testnuc.index.memory_pool import Pool
from testnuc.stores.memory import MemoryStore
from tests.virtual import InlineExecutor

if TYPE_CHECKING:
    from random import Random

    from tests.simulation.process import Process


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
