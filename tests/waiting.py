"""Waiting in real time, for what is no event."""

from __future__ import annotations

import asyncio


async def until(condition, seconds=60):
    """Wait until a condition holds, which it does soon."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
