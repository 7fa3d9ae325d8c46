"""Asks of one request, requests of one batch, and the provider's limit of enqueued tokens.

That limit is learned from its refusals.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from testnuc.batch.manifest import Item, RequestedPrediction

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from testnuc._dispatch.inflight import Ask

#: The asks of one request, about distinct texts.
Pack = tuple["Ask", ...]


@dataclass(slots=True, eq=False)
class PendingBatch:
    """The requests of one batch."""

    id: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    packs: list[Pack] = field(default_factory=list)
    #: Whether the prompt of each request shows some of the labels.
    partial: list[bool] = field(default_factory=list)
    #: Bytes of the requests.
    size: int = 0
    #: Estimated input tokens, most output tokens, and their highest cost in 1e-12 US dollars.
    input_tokens: int = 0
    output_tokens: int = 0
    pico_usd: int = 0
    #: The most input and output tokens of a request.
    largest: tuple[int, int] = (0, 0)

    @property
    def items(self) -> tuple[Item, ...]:
        """The predictions of each request."""
        return tuple(
            tuple(RequestedPrediction(ask.key, ask.text_hash, ask.sample, partial) for ask in pack)
            for pack, partial in zip(self.packs, self.partial, strict=True)
        )


def packs(asks: Iterable[Ask], per_call: int, alone: Collection[bytes] = ()) -> Iterator[Pack]:
    """Yield the asks of each request, at most `per_call`.

    Asks with few-shot examples have their own request, and so have those whose key is in `alone`.
    """
    together: list[Ask] = []
    if per_call > 1:
        # samples of one text cannot share a request, and one text that needs all labels shows them
        # to those that it is packed with
        asks = sorted(asks, key=lambda ask: (ask.sample, not ask.shown))
    for ask in asks:
        if per_call == 1 or ask.demonstrations or ask.key in alone:
            yield (ask,)
            continue
        if len(together) == per_call or any(a.text_hash == ask.text_hash for a in together):
            yield tuple(together)
            together = []
        together.append(ask)
    if together:
        yield tuple(together)


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
        if not limit or self.used <= limit:
            limit = max(1, self.used // 2)
        self.limit = limit if self.limit is None else min(self.limit, limit)

    def accepted(self) -> None:
        """Raise the limit after a batch, if one refusal has set it: that may be a mishap.

        So may several, if what is enqueued is more than they allow.
        """
        if self.limit is None:
            return
        if self.used > self.limit:
            self._refusals = 1
        if self._refusals == 1:
            raised = 2 * max(1, self.limit, self.used)
            self.limit = raised if self._most is None else min(raised, self._most)
