"""Prices and the meter."""

from __future__ import annotations

import pytest

from testnuc.errors import ConfigurationError
from testnuc.limits.budget import PICO, Meter, Price, require_price
from testnuc.limits.policies import Budget
from testnuc.protocols import TokenUsage


def usd(price, usage):
    return price.pico(usage) / PICO


def test_prices_of_known_models():
    price = Price.of("openai", "gpt-4o-mini")
    usage = TokenUsage(1_000_000, 1_000_000, cached_tokens=400_000)
    assert usd(price, usage) == pytest.approx(0.6 * 0.15 + 0.4 * 0.075 + 0.6)
    assert price.worst(1_000_000, 1_000_000) == 0.75 * PICO
    price = Price.of("anthropic", "claude-sonnet-4-20250514")
    usage = TokenUsage(1000, 100, cached_tokens=200, cache_write_tokens=300)
    assert usd(price, usage) == pytest.approx((500 * 3 + 200 * 0.3 + 300 * 3.75 + 100 * 15) / 1e6)
    assert price.worst(1000, 100) == (1000 * 3.75 + 100 * 15) * PICO / 1e6


def test_prices_agree_with_the_list_on_every_tier():
    from genai_prices import Usage, calc_price

    for provider, model in [
        ("openai", "gpt-4o"),
        ("openai", "gpt-4.1-nano"),
        ("anthropic", "claude-sonnet-4-5"),
        ("google", "gemini-2.5-pro"),
    ]:
        price = Price.of(provider, model)
        for tokens in (10, 199_999, 200_000, 200_001, 900_000):
            theirs = calc_price(
                Usage(input_tokens=tokens, output_tokens=77, cache_read_tokens=5),
                model,
                provider_id=provider,
            )
            ours = usd(price, TokenUsage(tokens, 77, cached_tokens=5))
            assert ours == pytest.approx(float(theirs.total_price))
            assert price.worst(tokens, 77) >= price.pico(TokenUsage(tokens, 77, 5))


def test_a_cache_of_an_hour_has_its_own_price():
    written = TokenUsage(1_000_000, 0, cache_write_tokens=1_000_000)
    for batch, factor in ((False, 1), (True, 0.5)):
        minutes = Price.of("anthropic", "claude-haiku-4-5", batch=batch)
        hour = Price.of("anthropic", "claude-haiku-4-5", batch=batch, cache_ttl="1h")
        assert usd(minutes, written) == pytest.approx(1.25 * factor)
        assert usd(hour, written) == pytest.approx(2 * factor)
        # a budget reserves it, too
        assert hour.worst(1_000_000, 0) == hour.pico(written)


@pytest.mark.parametrize(
    ("provider", "model", "url", "known"),
    [
        ("openai", "gpt-4o-mini", "https://api.openai.com/v1/chat/completions", True),
        ("openai", "gpt-4o-mini", "http://127.0.0.1:8000/v1/chat/completions", False),
        ("openai", "llama-3.3-70b-versatile", "https://api.groq.com/openai/v1/x", True),
        ("openai", "no-such-model", None, False),
        ("nobody", "gpt-4o-mini", None, False),
        ("groq", "llama-3.3-70b-versatile", "http://proxy.example/v1", True),
        ("local", "zero-shot", None, True),
    ],
)
def test_which_models_have_a_price(provider, model, url, known):
    assert (Price.of(provider, model, url) is not None) is known


def test_an_unpriced_model_cannot_keep_a_budget_in_usd():
    with pytest.raises(ConfigurationError, match=r"my-model.*Budget\(tokens"):
        require_price(Budget(usd=1), None, "my-model")
    require_price(Budget(tokens=1), None, "my-model")
    require_price(Budget(usd=1), Price.per_million(1, 2), "my-model")


def test_the_meter_distinguishes_known_from_unknown():
    meter = Meter(Price.per_million(1, 2))
    assert meter.since().usd == 0
    meter.add(TokenUsage(1000, 100, cached_tokens=10))
    mark = meter.mark()
    usage = meter.since()
    assert (usage.calls, usage.input_tokens, usage.output_tokens) == (1, 1000, 100)
    assert (usage.cached_tokens, usage.usd) == (10, pytest.approx(0.0012))
    meter.add(None)
    meter.retries += 1
    assert meter.since().input_tokens is None
    assert meter.since().usd is None
    assert meter.since(mark).calls == 1
    mark = meter.mark()
    meter.add(TokenUsage(7, 1))
    # unknown sticks to the sums it is part of, and to no others
    assert meter.since(mark).input_tokens == 7
    assert meter.since().output_tokens is None


def test_what_costs_nothing_costs_nothing_unknown_or_not():
    meter = Meter(Price.of("local", "zero-shot"))
    meter.add(None)
    assert meter.since().usd == 0
    assert meter.since().input_tokens is None
    meter = Meter()
    meter.add(TokenUsage(1, 1))
    assert meter.since().usd is None


def test_the_batch_lane_costs_half():
    for provider, model in [("openai", "gpt-4o-mini"), ("anthropic", "claude-haiku-4-5")]:
        live, batch = Price.of(provider, model), Price.of(provider, model, batch=True)
        for usage in (TokenUsage(10**6, 0), TokenUsage(0, 10**6)):
            assert usd(batch, usage) == pytest.approx(usd(live, usage) / 2)
    assert Price.of("openai", "no such model", batch=True) is None
    assert Price.of("local", "zero-shot", batch=True).is_free


def test_a_model_without_a_batch_price_of_its_own_costs_half(monkeypatch):
    monkeypatch.setattr("testnuc.limits.budget._BATCH", {"processing": "nowhere"})
    live, batch = Price.of("openai", "gpt-4o"), Price.of("openai", "gpt-4o", batch=True)
    for usage in (TokenUsage(10**6, 0), TokenUsage(0, 10**6), TokenUsage(10**6, 0, 10**6)):
        assert usd(batch, usage) == usd(live, usage) / 2


def test_the_service_tier_that_answered_has_its_own_price():
    price = Price.of("openai", "gpt-5-mini")
    usage = TokenUsage(1_000_000, 1_000_000)
    for tier in ("flex", "priority"):
        asked = Price.of("openai", "gpt-5-mini", tier=tier)
        answered = TokenUsage(1_000_000, 1_000_000, tier=tier)
        assert price.charge(answered) == asked.pico(usage) == asked.charge(usage)
        # a call may be answered in the standard tier all the same
        assert asked.charge(TokenUsage(1_000_000, 1_000_000, tier="default")) == price.pico(usage)
    assert price.charge(TokenUsage(1, 1, tier="flex")) < price.charge(TokenUsage(1, 1))
    assert price.charge(TokenUsage(1, 1, tier="priority")) > price.charge(TokenUsage(1, 1))
    for tier in ("", "default", "standard", "on_demand", "auto"):
        assert price.charge(TokenUsage(5, 7, tier=tier)) == price.pico(TokenUsage(5, 7))


def test_a_service_tier_without_a_price_is_unknown_rather_than_wrong():
    price = Price.of("anthropic", "claude-sonnet-4-5")
    assert price.charge(TokenUsage(1, 1, tier="standard")) == price.pico(TokenUsage(1, 1))
    assert price.charge(TokenUsage(1, 1, tier="priority")) is None
    assert Price.of("anthropic", "claude-sonnet-4-5", tier="priority") is None
    meter = Meter(price)
    meter.add(TokenUsage(1, 1, tier="priority"))
    assert meter.since().usd is None
    # batch results say "batch"; the batch lane has its own price
    batch = Price.of("anthropic", "claude-sonnet-4-5", batch=True)
    assert batch.charge(TokenUsage(9, 9, tier="batch")) == batch.pico(TokenUsage(9, 9))
    # a price of the user's own is what the user says
    assert Price.per_million(1, 1).charge(TokenUsage(1, 1, tier="x")) == 2_000_000
