"""Asks by number, and a consumer for tests of the scheduler."""

from __future__ import annotations

from contextlib import aclosing

from testnuc._dispatch.inflight import Ask


def asks(n, start=0):
    """Return asks with the keys of `start` .. `start` + n - 1."""
    keys = [i.to_bytes(16, "big") for i in range(start, start + n)]
    return [Ask(key, f"text {i}", key, i) for i, key in enumerate(keys, start)]


async def read(scheduler, asks, each=None):
    """Read all outcomes of a run, and call `each` with them; returns them by place."""
    found = {}
    async with aclosing(scheduler.run(asks)) as outcomes:
        async for ask, outcome in outcomes:
            if each is not None:
                each(ask, outcome)
            found[ask.place] = outcome
    return found
