"""Counters of usage and cost."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from testnuc.limits.prices import PICO, Price
from testnuc.protocols import TokenUsage
from testnuc.types import Usage

#: The meter's counters at one moment.
Mark = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Meter:
    """Adds up calls, tokens and money.

    A value that is unknown for one call makes every sum that includes it unknown; so does a `price`
    of None the cost of every call.
    """

    price: Price | None = None
    #: Calls that the provider answered with 200, readable or not: they are billed.
    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    #: In 1e-12 US dollars.
    pico_usd: int = 0
    #: Calls with unknown tokens, and calls with an unknown price.
    unmeasured: int = 0
    unpriced: int = 0
    #: Counted by the client.
    store_hits: int = 0
    coalesced: int = 0
    #: Requests retried after a failure.
    retries: int = 0

    def add(self, usage: TokenUsage | None, price: Price | None = None) -> int | None:
        """Count one answered call; returns its cost in 1e-12 US dollars, None if unknown.

        `usage` is None if the provider did not report it. `price` is that of this call, if it
        differs from the others'.
        """
        self.calls += 1
        price = self.price if price is None else price
        if usage is None:
            self.unmeasured += 1
            pico_usd = 0 if price is not None and price.is_free else None
        else:
            self.input_tokens += usage.input_tokens
            self.cached_tokens += usage.cached_tokens
            self.output_tokens += usage.output_tokens
            pico_usd = None if price is None else price.charge(usage)
        if pico_usd is None:
            self.unpriced += 1
        else:
            self.pico_usd += pico_usd
        return pico_usd

    @classmethod
    def sum(cls, marks: Iterable[Mark]) -> Usage:
        """Return the total of several meters."""
        total = cls()
        for mark in marks:
            for name, n in zip(_COUNTERS, mark, strict=True):
                setattr(total, name, getattr(total, name) + n)
        return total.since()

    def mark(self) -> Mark:
        """Return the present counters, for `since`."""
        return tuple(getattr(self, name) for name in _COUNTERS)

    def since(self, mark: Mark | None = None) -> Usage:
        """Return the usage since a mark, or all; None for values that a call did not report."""
        names = _COUNTERS
        before = mark or (0,) * len(names)
        n = {name: getattr(self, name) - old for name, old in zip(names, before, strict=True)}
        known = n["unmeasured"] == 0
        return Usage(
            calls=n["calls"],
            input_tokens=n["input_tokens"] if known else None,
            cached_tokens=n["cached_tokens"] if known else None,
            output_tokens=n["output_tokens"] if known else None,
            usd=n["pico_usd"] / PICO if n["unpriced"] == 0 else None,
            store_hits=n["store_hits"],
            coalesced=n["coalesced"],
            retries=n["retries"],
        )


_COUNTERS = tuple(field.name for field in fields(Meter) if field.name != "price")
