"""Asks to requests, and requests to batches that are within all limits."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from testnuc.batch.decoding import custom_id
from testnuc.batch.manifest import Item, Wanted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Iterator

    from testnuc._dispatch.inflight import Ask
    from testnuc._dispatch.predictor import Predictor
    from testnuc.batch.base import BatchAPI
    from testnuc.limits import Price
    from testnuc.protocols import WireProvider

__all__ = ["Filler", "Load", "Pack", "packs"]

#: The asks of one request: about distinct texts.
Pack = tuple["Ask", ...]
#: The part of the provider's bytes that is used: a request may be written a little differently
#: when it is sent, and some bytes are around it.
_FULL = 0.98
#: Requests written between two turns of the event loop.
_TURN = 500


@dataclass(slots=True, eq=False)
class Load:
    """The requests of one batch."""

    id: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    packs: list[Pack] = field(default_factory=list)
    #: Bytes of the requests.
    size: int = 0
    #: Estimated input tokens, most output tokens, and what they cost at most in 1e-12 US dollars.
    input_tokens: int = 0
    output_tokens: int = 0
    pico_usd: int = 0

    @property
    def items(self) -> tuple[Item, ...]:
        """What each request asks for."""
        return tuple(
            tuple(Wanted(ask.key, ask.text_hash, ask.sample) for ask in pack) for pack in self.packs
        )


def packs(asks: Iterable[Ask], per_call: int, alone: Collection[bytes] = ()) -> Iterator[Pack]:
    """Yield the asks of each request.

    Parameters
    ----------
    asks : iterable of Ask
    per_call : int
        Most texts in a request; those that are shown with examples have one of their own.
    alone : collection of bytes
        Keys of asks that get a request of their own.
    """
    together: list[Ask] = []
    # samples of one text come one after the other, and cannot share a request
    for ask in sorted(asks, key=lambda ask: ask.sample) if per_call > 1 else asks:
        if per_call == 1 or ask.demonstrations or ask.key in alone:
            yield (ask,)
            continue
        if len(together) == per_call or any(a.text_hash == ask.text_hash for a in together):
            yield tuple(together)
            together = []
        together.append(ask)
    if together:
        yield tuple(together)


@dataclass(frozen=True, slots=True)
class Filler:
    """Puts requests together to batches, and writes them.

    They are written twice, to know their size and to be sent: what waits to be sent may be ten
    times what can be held in memory.

    Parameters
    ----------
    predictor : Predictor
    provider : WireProvider
    api : BatchAPI
        Whose limits are held.
    price : Price, optional
    most_requests : int, optional
        The user's own limit.
    """

    predictor: Predictor
    provider: WireProvider
    api: BatchAPI
    price: Price | None
    most_requests: int | None

    async def loads(self, requests: Iterable[Pack], most_tokens: int | None) -> AsyncIterator[Load]:
        """Yield batches as full as the limits allow; a request beyond them has one for itself."""
        api = self.api
        most = min(api.max_requests, self.most_requests or api.max_requests)
        most_bytes = int(_FULL * api.max_bytes)
        load = Load()
        for done, pack in enumerate(requests, 1):
            request = self.predictor.request(pack)
            sent, received = self.provider.reserve(request)
            size = len(self._line(load, len(load.packs), pack))
            full = (
                len(load.packs) >= most
                or load.size + size > most_bytes
                or (most_tokens is not None and load.input_tokens + sent > most_tokens)
            )
            if full and load.packs:
                yield load
                load = Load()
            load.packs.append(pack)
            load.size += size
            load.input_tokens += sent
            load.output_tokens += received
            if self.price is not None:
                load.pico_usd += self.price.worst(sent, received)
            if done % _TURN == 0:
                await asyncio.sleep(0)
        if load.packs:
            yield load

    async def lines(self, load: Load) -> list[bytes]:
        """Return the requests of a batch as the provider takes them."""
        lines: list[bytes] = []
        for number, pack in enumerate(load.packs):
            lines.append(self._line(load, number, pack))
            if number % _TURN == 0:
                await asyncio.sleep(0)
        return lines

    def _line(self, load: Load, number: int, pack: Pack) -> bytes:
        body = self.provider.encode(self.predictor.request(pack))
        return self.api.line(custom_id(load.id.hex(), number), body)
