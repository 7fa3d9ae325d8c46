"""Asks to requests, and requests to batches that are within all limits."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from testnuc.batch.joining import custom_id
from testnuc.batch.records import Item, Wanted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Iterator

    from testnuc.asking import Asker
    from testnuc.asks import Ask
    from testnuc.batch.apis import BatchAPI
    from testnuc.limits import Price
    from testnuc.protocols import WireProvider

__all__ = ["Load", "Pack", "loads", "packs"]

#: The asks of one request: about distinct texts.
Pack = tuple["Ask", ...]
#: Requests written between two turns of the event loop.
_TURN = 500


@dataclass(slots=True, eq=False)
class Load:
    """The requests of one batch."""

    id: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    packs: list[Pack] = field(default_factory=list)
    #: The requests as the provider takes them; given up once it has them.
    lines: list[bytes] = field(default_factory=list)
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


async def loads(
    requests: Iterable[Pack],
    asker: Asker,
    provider: WireProvider,
    api: BatchAPI,
    *,
    price: Price | None,
    most_requests: int | None,
    most_tokens: int | None,
) -> AsyncIterator[Load]:
    """Yield batches, each as full as the limits allow; a request beyond them has one for itself.

    Parameters
    ----------
    requests : iterable of Pack
    asker : Asker
    provider : WireProvider
        Writes the requests.
    api : BatchAPI
        Whose limits are held, too.
    price : Price, optional
    most_requests, most_tokens : int, optional
    """
    most = min(api.max_requests, most_requests or api.max_requests)
    load = Load()
    for written, pack in enumerate(requests, 1):
        request = asker.request(pack)
        sent, received = provider.reserve(request)
        body = provider.encode(request)
        line = api.line(custom_id(load.id.hex(), len(load.packs)), body)
        full = (
            len(load.packs) >= most
            or load.size + len(line) + 2 > api.max_bytes - _TURN
            or (most_tokens is not None and load.input_tokens + sent > most_tokens)
        )
        if full and load.packs:
            yield load
            load = Load()
            line = api.line(custom_id(load.id.hex(), 0), body)
        load.packs.append(pack)
        load.lines.append(line)
        load.size += len(line) + 2
        load.input_tokens += sent
        load.output_tokens += received
        if price is not None:
            load.pico_usd += price.worst(sent, received)
        if written % _TURN == 0:
            await asyncio.sleep(0)
    if load.packs:
        yield load
