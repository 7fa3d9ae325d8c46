"""A store with leases, as `PostgresStore` has them, in memory."""

from __future__ import annotations

import asyncio

from testnuc.errors import StoreError
from testnuc.stores.memory import MemoryStore


class LeaseStore(MemoryStore):
    """The handle of a process on what all share; leases end by a clock that the test sets.

    `others` has what processes outside of the test have leased.
    """

    lease_seconds = 30.0

    def __init__(self, first=None):
        super().__init__()
        self.now = 0.0
        #: Key -> its owner, and when the lease ends.
        self.leases = {}
        self.others = set()
        self.broken = False
        self.slow = None
        if first is not None:
            vars(self).update(vars(first))

    async def lease(self, keys, seconds):
        if self.slow is not None:
            await self.slow.wait()
        await self._answering()
        free = [
            key not in self.others
            and key not in self._rows
            and self.leases.get(key, (None, -1))[1] <= self.now
            for key in keys
        ]
        self._take(keys, free, seconds)
        return free

    async def renew(self, keys, seconds):
        await self._answering()
        ends = (self.leases.get(key, (None, -1)) for key in keys)
        held = [owner is self and until > self.now for owner, until in ends]
        self._take(keys, held, seconds)
        return held

    async def release(self, keys):
        # other tasks run before it is done
        await asyncio.sleep(0)
        for key in keys:
            if self.leases.get(key, (None,))[0] is self:
                del self.leases[key]

    async def put_predictions(self, rows):
        for row in rows:
            self.leases.pop(row.key, None)
        return await super().put_predictions(rows)

    async def _answering(self):
        await asyncio.sleep(0)
        if self.broken:
            raise StoreError("gone")

    def _take(self, keys, granted, seconds):
        lease = self, self.now + seconds
        self.leases.update((key, lease) for key, mine in zip(keys, granted, strict=True) if mine)
