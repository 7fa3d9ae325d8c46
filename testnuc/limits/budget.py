"""Spending: what calls used and cost, and a budget of it.

The worst case of a call is reserved before it is sent, and settled after. Prices of tokens are from
the list in genai-prices, never from the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import partial
from operator import sub
from typing import Any, TypeVar

from testnuc.errors import BudgetExceededError, BudgetReservedError, ConfigurationError
from testnuc.limits.policies import Budget
from testnuc.protocols import TokenUsage
from testnuc.types import Usage

T = TypeVar("T")

#: Integers, so that sums are exact: 1e-12 US dollars, tokens, calls.
Amounts = tuple[int, int, int]
_NAMES = ("usd", "tokens", "calls")
#: Bytes of UTF-8 per token; low, so that estimates are rather too high.
BYTES_PER_TOKEN = 3.2


async def granted(
    future: asyncio.Future[T], give_back: Callable[[T], object], drain: Callable[[], object]
) -> T:
    """Wait for what a queue grants; if the caller is cancelled, others get it."""
    try:
        return await future
    except asyncio.CancelledError:
        # it may have been granted in the same iteration of the loop as the cancellation; else the
        # queue skips this waiter
        if future.done() and not future.cancelled() and future.exception() is None:
            give_back(future.result())
        else:
            future.cancel()
            drain()
        raise


@dataclass(slots=True, eq=False)
class Reservation:
    """The reserved worst case of a call or a batch job; settled, kept or released once."""

    amounts: Amounts
    #: Whether it is a batch job's, which takes hours.
    batch: bool = field(default=False, kw_only=True)
    open: bool = field(default=True, init=False)


class BudgetAccount:
    """Keeps the sum of spending and reservations at or below a budget; None: there is none.

    What a batch job has reserved counts as spent for calls: they do not wait for hours. Batch jobs
    wait for each other, and for calls.

    Belongs to one event loop: nothing awaits between a check and the update that follows.
    """

    def __init__(self, budget: Budget | None = None) -> None:
        budget = budget or Budget()
        #: Whether there is any limit, so that calls need a reservation.
        self.bounded = budget != Budget()
        usd = None if budget.usd is None else int(budget.usd * PICO)
        self._limits = (usd, budget.tokens, budget.calls)
        self._spent = [0, 0, 0]
        self._reserved = [0, 0, 0]
        #: The part of `_reserved` that batch jobs hold.
        self._batches = [0, 0, 0]
        #: What waits for each reservation: the amounts, and whether it is a batch job's.
        self._waiting: dict[asyncio.Future[Reservation], tuple[Amounts, bool]] = {}
        #: Seconds that a call waits for what others have reserved; but the first, until one ends.
        #: A service sets it: then calls do not wait for a provider that is down, either.
        self.patience: float | None = None
        self._stuck = False
        #: What `meters` had counted at the last `join`.
        self._metered = [0, 0, 0]
        #: Those of the calls that count here, also of a referee and after `join`.
        self.meters: set[Meter] = set()

    @property
    def left(self) -> dict[str, float]:
        """What is neither spent nor reserved of each limit, by name."""
        limits = zip(_NAMES, (PICO, 1, 1), self._limits, self._spent, self._reserved, strict=True)
        return {name: max(0, n - sum(of)) / one for name, one, n, *of in limits if n is not None}

    def join(self, other: BudgetAccount) -> None:
        """Count from now on together with another account, within the limits of this one.

        None of this one's calls is in flight.
        """
        if self._spent is not other._spent:
            other.book(*self._spent)
        metered = [*map(sum, zip(*(meter.spent for meter in other.meters), strict=True))] or [0] * 3
        if not other.bounded:
            # without limits nothing is reserved, and booked
            other.book(*map(sub, metered, other._metered))
        other._metered = metered
        other.meters |= self.meters
        other._limits, other.bounded = self._limits, self.bounded
        # the same sums, and the same queues
        vars(self).update(vars(other))
        self._drain()

    async def reserve(
        self, pico_usd: int, tokens: int, calls: int = 1, *, batch: bool = False
    ) -> Reservation:
        """Wait until the worst case of a call or a batch job fits, and reserve it.

        Settle, keep or release it. `BudgetExceededError`: it does not fit, whatever calls in flight
        cost. `BudgetReservedError`: it may fit once they end, which takes longer than `patience`.
        """
        amounts = (pico_usd, tokens, calls)
        first = not any(batch or not job for _, job in self._waiting.values())
        if first and (reservation := self._grant(amounts, batch=batch)) is not None:
            return reservation
        future: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        self._waiting[future] = amounts, batch
        try:
            async with asyncio.timeout(0 if self._stuck else self.patience):
                return await granted(future, self.release, self._drain)
        except TimeoutError:
            self._stuck = True
            reserved = "calls in flight have reserved what is left of the budget"
            raise BudgetReservedError(reserved) from None

    def settle(self, reservation: Reservation, pico_usd: int, tokens: int, calls: int = 1) -> None:
        """Book the actual cost of a call, and free the rest of its reservation."""
        if not reservation.open:
            return
        reservation.open = self._stuck = False
        for i in range(3):
            self._reserved[i] -= reservation.amounts[i]
            if reservation.batch:
                self._batches[i] -= reservation.amounts[i]
        self.book(pico_usd, tokens, calls)

    def book(self, pico_usd: int, tokens: int, calls: int) -> None:
        """Book spending without a reservation, of calls sent by another process.

        It may exceed the budget; then no reservation is granted.
        """
        for i, amount in enumerate((pico_usd, tokens, calls)):
            self._spent[i] += amount
        self._drain()

    def keep(self, reservation: Reservation) -> None:
        """Book the whole reservation: the call may have been billed, the amount is unknown."""
        self.settle(reservation, *reservation.amounts)

    def release(self, reservation: Reservation) -> None:
        """Free a reservation: the call was certainly not billed."""
        self.settle(reservation, 0, 0, 0)

    def _grant(self, amounts: Amounts, *, batch: bool) -> Reservation | None:
        fits = True
        for i, limit in enumerate(self._limits):
            if limit is None:
                continue
            spent = self._spent[i] + (0 if batch else self._batches[i])
            if spent + amounts[i] > limit:
                raise self._exceeded(i, amounts[i], spent)
            if self._spent[i] + self._reserved[i] + amounts[i] > limit:
                fits = False
        if not fits:
            return None
        for i in range(3):
            self._reserved[i] += amounts[i]
            if batch:
                self._batches[i] += amounts[i]
        return Reservation(amounts, batch=batch)

    def _drain(self) -> None:
        """Grant waiting reservations in order, until one does not fit; calls before batch jobs."""
        for future, (amounts, batch) in sorted(self._waiting.items(), key=lambda one: one[1][1]):
            if not future.done():
                try:
                    reservation = self._grant(amounts, batch=batch)
                except BudgetExceededError as error:
                    # this may be the end of another call: its failure is not the cause
                    error.__context__ = None
                    future.set_exception(error)
                else:
                    if reservation is None:
                        return
                    future.set_result(reservation)
            del self._waiting[future]

    def _exceeded(self, which: int, amount: int, spent: int) -> BudgetExceededError:
        limit = self._limits[which] or 0
        amounts, name = (amount, max(0, limit - spent), limit), _NAMES[which]
        need, rest, total = (str(x) if which else f"{x / PICO:.6f}" for x in amounts)
        held = ""
        if spent > self._spent[which]:
            held = " (batch jobs have reserved a part; it is known what they cost when they end)"
        return BudgetExceededError(
            f"the next call may need {need} {name}, but {rest} of the budget of {total} {name} "
            f"are left{held}; it was not sent. Set a larger --budget-{name} (Budget({name}=..)) to "
            "continue"
        )


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
    #: Requests retried after a failure, and those whose answer did not arrive: perhaps billed.
    retries: int = 0
    incomplete: int = 0
    #: Counted by the client.
    unstored: int = 0

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
        totals = map(sum, zip(*marks, strict=True))
        counted: dict[str, Any] = dict(zip(_COUNTERS, totals, strict=False))
        return cls(**counted).since()

    @property
    def spent(self) -> Amounts:
        """The sums that a budget limits, without what is unknown."""
        return self.pico_usd, self.input_tokens + self.output_tokens, self.calls

    def mark(self) -> Mark:
        """Return the present counters, for `since`."""
        return tuple(getattr(self, name) for name in _COUNTERS)

    def since(self, mark: Mark | None = None) -> Usage:
        """Return the usage since a mark, or all; None for values that a call did not report."""
        before = mark or (0,) * len(_COUNTERS)
        spent: dict[str, Any] = {
            name: getattr(self, name) - old for name, old in zip(_COUNTERS, before, strict=True)
        }
        pico_usd, unpriced = spent.pop("pico_usd"), spent.pop("unpriced")
        if spent.pop("unmeasured"):
            spent |= dict.fromkeys(("input_tokens", "cached_tokens", "output_tokens"))
        return Usage(**spent, usd=None if unpriced else pico_usd / PICO)


_COUNTERS = tuple(field.name for field in fields(Meter) if field.name != "price")

#: Units of money in a US dollar: integers, so that sums are exact.
PICO = 10**12
_MEGA = 10**6
#: Names of protocols that other providers use, too: their prices depend on the URL.
_PROTOCOLS = frozenset({"anthropic", "openai"})
#: The price list's variant for batch APIs.
_BATCH = {"processing": "batch"}
#: Service tiers at the listed price. "auto" in a request is the account's setting, mostly standard.
#: OpenRouter answers in "provisioned" whatever is asked for, at the listed price.
_STANDARD = frozenset(
    {"", "auto", "default", "on_demand", "provisioned", "standard", "standard_only"}
)
#: Providers that run on this machine.
_FREE = frozenset({"local"})


@dataclass(frozen=True, slots=True)
class Rates:
    """Price of one token of each kind, in 1e-12 US dollars."""

    input: int
    cached: int
    cache_write: int
    output: int


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a model.

    Calls with more input tokens than the number of a tier, ascending, pay its rates, for all their
    tokens. `service_tiers` are the prices of calls answered in other service tiers than the
    standard one, such as ``"flex"``; the price of those not in it is unknown. None: this price,
    whatever the tier.
    """

    rates: Rates
    tiers: tuple[tuple[int, Rates], ...] = ()
    service_tiers: Mapping[str, Price] | None = field(default=None, compare=False)

    @classmethod
    def per_million(
        cls,
        input: float,  # noqa: A002 - the usual name
        output: float,
        *,
        cached: float | None = None,
        cache_write: float | None = None,
    ) -> Price:
        """Return a price in US dollars per million tokens; `cached` costs as `input` by default."""
        return cls(
            Rates(
                input=_pico(input),
                cached=_pico(input if cached is None else cached),
                cache_write=_pico(input if cache_write is None else cache_write),
                output=_pico(output),
            )
        )

    @classmethod
    def of(
        cls,
        provider: str,
        model: str,
        url: str | None = None,
        *,
        batch: bool = False,
        tier: object = None,
        cache_ttl: str | None = None,
    ) -> Price | None:
        """Look up a model in the price list; None: unknown.

        A `url` of another known provider has its prices; with an unknown one, ``"openai"`` and
        ``"anthropic"`` only name the protocol, and the price is unknown. `batch`: the price in the
        provider's batch API; half the price if the list has none, as at OpenAI and Anthropic.
        `tier` is the service tier that is asked for; its price is unknown if the list has none.
        ``cache_ttl="1h"``: the prompt cache is kept for an hour, whose writes have their own price.
        """
        if provider in _FREE:
            return cls.per_million(0, 0)
        info = _listed(provider, model, url)
        if info is None:
            return None
        now = datetime.now(UTC)
        variants = [v.when for v in getattr(info, "price_variants", None) or ()]
        read = partial(_read, hour=cache_ttl == "1h")
        standard = read(info.get_prices(now))
        if standard is not None and batch:
            listed = read(info.get_prices(now, _BATCH)) if _BATCH in variants else None
            batched = listed or read(info.get_prices(now), part=0.5)
            assert batched is not None
            return replace(batched, service_tiers={"batch": batched})
        names = {when["service_tier"] for when in variants if set(when) == {"service_tier"}}
        tiers = {name: read(info.get_prices(now, {"service_tier": name})) for name in names}
        service_tiers = {name: found for name, found in tiers.items() if found is not None}
        special = isinstance(tier, str) and tier not in _STANDARD
        price = service_tiers.get(str(tier)) if special else standard
        if price is None or standard is None:
            return None
        # a call can be answered in the standard tier whatever it asked for
        service_tiers |= dict.fromkeys(_STANDARD - {"", "auto"}, standard)
        return replace(price, service_tiers=service_tiers)

    @property
    def is_free(self) -> bool:
        """Whether every token costs nothing."""
        return not self.tiers and self.rates == Rates(0, 0, 0, 0)

    def _rates(self, input_tokens: int) -> Rates:
        rates = self.rates
        for above, higher in self.tiers:
            if input_tokens <= above:
                break
            rates = higher
        return rates

    def pico(self, usage: TokenUsage) -> int:
        """Return the price of a call in 1e-12 US dollars, whatever service tier answered it."""
        rates = self._rates(usage.input_tokens) if self.tiers else self.rates
        cached, written = usage.cached_tokens, usage.cache_write_tokens
        plain = max(0, usage.input_tokens - cached - written)
        return (
            plain * rates.input
            + cached * rates.cached
            + written * rates.cache_write
            + usage.output_tokens * rates.output
        )

    def charge(self, usage: TokenUsage) -> int | None:
        """Return the price of a call in the service tier that answered it, in 1e-12 US dollars.

        None: the price of the tier is unknown.
        """
        known = self.service_tiers
        if known is None or not usage.tier:
            return self.pico(usage)
        if usage.tier in known:
            return known[usage.tier].pico(usage)
        return self.pico(usage) if usage.tier in _STANDARD else None

    def worst(self, input_tokens: int, max_output_tokens: int) -> int:
        """Return the most that a call can cost, in 1e-12 US dollars."""
        rates = self._rates(input_tokens)
        highest = max(rates.input, rates.cached, rates.cache_write)
        return input_tokens * highest + max_output_tokens * rates.output


def require_price(
    budget: Budget | None, price: Price | None, model: str, base_url: str | None = None
) -> None:
    """Reject a budget in US dollars for a model without a price: it cannot be enforced."""
    if budget is not None and budget.usd is not None and price is None:
        raise ConfigurationError(
            f"the price of {model!r} is unknown{' at this base_url (--base-url)' * bool(base_url)}"
            ", so a budget in usd cannot be enforced; "
            "limit tokens or calls: Budget(tokens=..), --budget-tokens, or Budget(calls=..)"
        )


def context_window(provider: str, model: str, url: str | None = None) -> int | None:
    """Return the tokens that a model reads and writes in one call; None if unknown."""
    info = None if provider in _FREE else _listed(provider, model, url)
    window = getattr(info, "context_window", None)
    return None if window is None else int(window)


def _listed(provider: str, model: str, url: str | None) -> Any:
    # takes 0.3 s to import
    from genai_prices.data_snapshot import get_snapshot

    snapshot = get_snapshot()
    found = None
    if url is not None:
        try:
            found = snapshot.find_provider(None, None, url).id
        except LookupError:
            if provider in _PROTOCOLS:
                return None
    try:
        return snapshot.find_provider_model(model, None, found or provider, None)[1]
    except LookupError:
        return None


def _pico(usd_per_million: float) -> int:
    return round(usd_per_million * PICO / _MEGA)


def _read(prices: Any, *, hour: bool, part: float = 1.0) -> Price | None:
    """Read the prices of a text model, or a part of them, from a genai-prices record.

    `hour`: whether what is written to the prompt cache is kept for an hour.
    """
    given = [
        getattr(prices, name)
        for name in ("input_mtok", "cache_read_mtok", "cache_write_mtok", "output_mtok")
    ]
    if hour and getattr(prices, "cache_write_1h_mtok", None) is not None:
        given[2] = prices.cache_write_1h_mtok
    if given[0] is None or given[3] is None:
        return None
    starts = sorted({tier.start for price in given for tier in getattr(price, "tiers", ())})

    def at(price: Any, start: int) -> float | None:
        if not hasattr(price, "tiers"):
            return None if price is None else part * float(price)
        reached = [tier.price for tier in price.tiers if tier.start <= start]
        return part * float(reached[-1] if reached else price.base)

    def rates(start: int) -> Rates:
        each = [at(price, start) for price in given]
        return Price.per_million(
            each[0] or 0.0, each[3] or 0.0, cached=each[1], cache_write=each[2]
        ).rates

    return Price(rates(-1), tuple((start, rates(start)) for start in starts))
