"""How many tokens may wait at the provider: as many as it has taken so far."""

from __future__ import annotations

import asyncio

__all__ = ["TokenQueue"]


class TokenQueue:
    """Lets batches in while their tokens together stay within a limit; one is let in in any case.

    Parameters
    ----------
    limit : int, optional
        None: none is known yet.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.used = 0
        self._left = asyncio.Event()

    async def enter(self, tokens: int) -> None:
        """Wait until there is room."""
        while self.used and self.limit is not None and self.used + tokens > self.limit:
            self._left.clear()
            await self._left.wait()
        self.used += tokens

    def leave(self, tokens: int) -> None:
        """Make room."""
        self.used -= tokens
        self._left.set()

    def refused(self, said: int | None) -> None:
        """Lower the limit: what is in the queue was too much.

        Parameters
        ----------
        said : int, optional
            The provider's limit. Where less than that was too much, others use the queue, too.
        """
        if said is None or self.used <= said:
            said = max(1, self.used // 2)
        self.limit = said if self.limit is None else min(self.limit, said)
