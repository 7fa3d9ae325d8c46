"""The limit of tokens enqueued at the provider, learned from its refusals."""

from __future__ import annotations

import asyncio

__all__ = ["TokenQueue"]


class TokenQueue:
    """Admits batches while their tokens stay within a limit; always admits one.

    Parameters
    ----------
    limit : int, optional
        None if unknown.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = self._most = limit
        self.used = 0
        self._refusals = 0
        self._released = asyncio.Event()

    async def acquire(self, tokens: int) -> None:
        """Wait until there is room."""
        while self.used and self.limit is not None and self.used + tokens > self.limit:
            self._released.clear()
            await self._released.wait()
        self.used += tokens

    def release(self, tokens: int) -> None:
        """Release tokens."""
        self.used -= tokens
        self._released.set()

    def refused(self, limit: int | None) -> None:
        """Lower the limit after a refusal.

        Parameters
        ----------
        limit : int, optional
            The provider's limit, if stated. Fewer tokens than that were refused if other programs
            use the queue, too.
        """
        self._refusals += 1
        if limit is None or self.used <= limit:
            limit = max(1, self.used // 2)
        self.limit = limit if self.limit is None else min(self.limit, limit)

    def accepted(self) -> None:
        """Raise the limit after a batch, if one refusal has set it: that may be a mishap."""
        if self._refusals == 1 and self.limit is not None:
            raised = 2 * max(1, self.limit, self.used)
            self.limit = raised if self._most is None else min(raised, self._most)
