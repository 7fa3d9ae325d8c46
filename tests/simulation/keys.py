"""A process' key function: its keys expire, and it fails for a while."""

from __future__ import annotations

import asyncio
import base64
import json
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.records import Bug

if TYPE_CHECKING:
    from tests.virtual import ThreadlessLoop

#: Seconds from the loop's clock to that of the wall.
WALL = 1.7e9


class Keys:
    """Issues tokens that say when they expire."""

    def __init__(self, loop: ThreadlessLoop, seed: str) -> None:
        # not the draws of the world: the function is asked at its own moments
        random = Random(seed)
        self._loop = loop
        self._life = random.choice((12.0, 90.0, 3600.0))
        self._latency = random.choice((0.0, 0.5))
        start = random.choice((0.0, 1.0, 5.0, 60.0))
        begins = loop.time() + start
        self._outage = begins, begins + random.choice((0.0, 2.5, 30.0, 600.0))
        #: From when and until when each token is valid, and when the function last failed.
        self.tokens: list[tuple[float, float]] = []
        self.failed_at: float | None = None

    async def ask(self) -> str:
        """Return a token; fails during the outage."""
        await asyncio.sleep(self._latency)
        now = self._loop.time()
        if self._outage[0] <= now < self._outage[1]:
            self.failed_at = now
            raise Bug("of the key function")
        self.tokens.append((now, now + self._life))
        claims = json.dumps({"exp": WALL + now + self._life}).encode()
        return f"h.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.s"

    def is_valid(self, key: str) -> bool:
        """Whether a token has not expired."""
        part = key.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return claims["exp"] > WALL + self._loop.time()
