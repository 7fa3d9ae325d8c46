"""Prices of tokens, from the price list in genai-prices; never from the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from testnuc.errors import ConfigurationError
from testnuc.limits.policies import Budget
from testnuc.protocols import TokenUsage

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

    def halved(self) -> Rates:
        """Return half of each, rounded up."""
        each = (self.input, self.cached, self.cache_write, self.output)
        return Rates(*(-(-rate // 2) for rate in each))


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
            batched = listed or standard.halved()
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

    def halved(self) -> Price:
        """Return half the price, rounded up to a trillionth of a US dollar for each token."""
        return Price(self.rates.halved(), tuple((n, rates.halved()) for n, rates in self.tiers))

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


def require_price(budget: Budget | None, price: Price | None, model: str) -> None:
    """Reject a budget in US dollars for a model without a price: it cannot be enforced."""
    if budget is not None and budget.usd is not None and price is None:
        raise ConfigurationError(
            f"the price of {model!r} is unknown, so a budget in usd cannot be enforced; "
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


def _read(prices: Any, *, hour: bool) -> Price | None:
    """Read the prices of a text model from a genai-prices record.

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
            return None if price is None else float(price)
        reached = [tier.price for tier in price.tiers if tier.start <= start]
        return float(reached[-1] if reached else price.base)

    def rates(start: int) -> Rates:
        each = [at(price, start) for price in given]
        return Price.per_million(
            each[0] or 0.0, each[3] or 0.0, cached=each[1], cache_write=each[2]
        ).rates

    return Price(rates(-1), tuple((start, rates(start)) for start in starts))
