"""What a run would cost, against what it then costs."""

from __future__ import annotations

import pytest

import testnuc
from testnuc import Limits, Sampling, TestNUC
from testnuc.testing import HashEmbedder, LoopbackLLM
from tests.conftest import LABELS, confident, gold, messages
from tests.doubles import Says

pytestmark = pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")


class Idle(HashEmbedder):
    """Counts the texts it is given."""

    embedded = 0

    async def embed(self, texts):
        self.embedded += len(texts)
        return await super().embed(texts)


@pytest.mark.parametrize("per_call", [1, 10])
async def test_a_batch_costs_what_was_estimated(loopback, per_call):
    texts = messages(95)
    embedder = Idle()
    async with loopback(sampling=Sampling(texts_per_call=per_call), embedder=embedder) as (
        llm,
        nuc,
    ):
        estimated = await nuc.estimate([*texts, *texts[:20]])
        assert (llm.requests, embedder.embedded, len(nuc)) == (0, 0, 0)
        assert nuc.usage.calls == 0
        await nuc.classify_many(texts)
        used = nuc.usage
        assert estimated.calls == used.calls == (95 if per_call == 1 else 10)
        # rather too high: the schema of the answer counts, which the loopback server does not see
        assert used.input_tokens <= estimated.input_tokens <= 2.5 * used.input_tokens
        assert 0.8 * used.output_tokens <= estimated.output_tokens <= 1.6 * used.output_tokens
        assert estimated.usd is None  # this address has no known prices
        again = await nuc.estimate([*texts, "a new one, my refund please"])
        assert (again.calls, again.store_hits) == (1, 95)
        nothing = await nuc.estimate(texts)
        assert (nothing.calls, nothing.input_tokens, nothing.usd) == (0, 0, 0.0)


async def test_a_pool_without_predictions_is_an_upper_bound(client_of):
    pool, texts = messages(60)[:50], messages(60)[50:52]
    async with LoopbackLLM(confident) as llm:
        async with TestNUC(**client_of(llm, k=5)) as nuc:
            await nuc.add(pool)
            await nuc.add(["a labeled one"], labels=["login"])
            estimated = await nuc.estimate(texts)
            assert estimated.calls == 2 + 2 * 5
            await nuc.classify_many(texts)
            assert 2 <= nuc.usage.calls <= 12
        async with TestNUC(**client_of(llm, k=40)) as nuc:
            await nuc.add(pool)
            assert (await nuc.estimate(texts)).calls == 2 + 50
            # a text of the pool is not its own neighbor
            assert (await nuc.estimate(pool[:2])).calls == 50
        async with TestNUC(**client_of(llm, k=40, neighbors="stored")) as nuc:
            await nuc.add(pool)
            assert (await nuc.estimate(texts)).calls == 2


async def test_dollars_of_a_model_with_a_price():
    async with TestNUC(LABELS, "openai/gpt-4o-mini", api_key="k", embedder=HashEmbedder()) as nuc:
        estimated = await nuc.estimate(messages(1_000))
    # 0.15 and 0.60 US dollars for a million tokens
    by_hand = (estimated.input_tokens * 0.15 + estimated.output_tokens * 0.6) / 1e6
    assert estimated.usd == pytest.approx(by_hand)
    assert estimated.calls == 1_000


async def test_tokens_of_a_provider_without_estimates_are_unknown():
    async with TestNUC(LABELS, model=Says(gold), embedder=HashEmbedder()) as nuc:
        estimated = await nuc.estimate(messages(20))
    assert (estimated.calls, estimated.input_tokens, estimated.output_tokens, estimated.usd) == (
        20,
        None,
        None,
        None,
    )
    assert [lane.lane for lane in estimated.lanes] == ["live"]


async def test_lanes_are_compared():
    limit = testnuc.Limits(requests_per_minute=100, tokens_per_minute=10_000)
    kinds = {
        "openai/gpt-4o-mini": (1, {}),
        "anthropic/claude-haiku-4-5": (2, {"policy": "auto"}),
        "openai/gpt-5-mini": (2, {"method": testnuc.TopKICLP(k=3)}),
    }
    for model, (stages, more) in kinds.items():
        arguments = {"policy": "weighted", "k": 5, "api_key": "k", "limits": limit} | more
        async with TestNUC(LABELS, model, embedder=HashEmbedder(), **arguments) as nuc:
            # texts of the pool, which may or may not vote
            await nuc.add(messages(1_005)[1_000:])
            estimated = await nuc.estimate(messages(1_000))
        live, batch = estimated.lanes
        assert (live.lane, batch.lane) == ("live", "batch")
        for lane in estimated.lanes:
            assert lane.calls == estimated.calls
            assert (lane.input_tokens, lane.output_tokens) == (
                estimated.input_tokens,
                estimated.output_tokens,
            )
        assert live.usd == estimated.usd > 0
        assert batch.usd == pytest.approx(estimated.usd / 2)
        tokens = estimated.input_tokens + estimated.output_tokens
        assert live.least_seconds == pytest.approx(60 * tokens / 10_000)
        assert (live.most_seconds, batch.least_seconds) == (None, None)
        assert batch.most_seconds == stages * 24 * 3600
        lines = str(estimated).splitlines()
        assert [line.split()[0] for line in lines] == ["lane", "live", "batch"]
        assert f"at most {24 * stages}" in lines[2]


async def test_what_is_stored_takes_no_time_and_what_is_unknown_is_said(loopback):
    async with loopback() as (_, nuc):
        estimated = await nuc.estimate(messages(5))
        assert estimated.lanes[0].least_seconds is None
        assert "unknown" in str(estimated)
        await nuc.classify_many(messages(5))
        estimated = await nuc.estimate(messages(5))
        assert [lane.usd for lane in estimated.lanes] == [0.0, 0.0]
        assert estimated.lanes[1].most_seconds == 0
        assert "5 predictions are stored already" in str(estimated)


async def test_it_says_that_the_store_has_the_same_labels_in_another_order(tmp_path):
    texts = messages(5)
    async with LoopbackLLM(confident) as llm:
        given = {
            "model": "openai/test",
            "base_url": llm.base_url,
            "embedder": HashEmbedder(32),
            "policy": "weighted",
            "store": str(tmp_path / "s.db"),
        }
        async with TestNUC(LABELS, **given) as nuc:
            assert not (await nuc.estimate(texts)).note
            await nuc.classify_many(texts)
            assert not (await nuc.estimate([*texts, "a new one"])).note
        async with TestNUC(LABELS[::-1], **given) as nuc:
            estimate = await nuc.estimate(texts)
        assert estimate.calls == 5  # the model is shown the labels in their order
        assert "5 texts with the same labels in another order" in estimate.note
        assert LABELS[0] in estimate.note
        assert estimate.note in str(estimate)
        async with TestNUC([*LABELS, "other"], **given) as nuc:
            assert not (await nuc.estimate(texts)).note


async def test_reasoning_fits_into_a_small_budget_and_is_estimated(client_of):
    texts = messages(5)
    async with LoopbackLLM(confident) as llm:
        budget = testnuc.Budget(tokens=6_000)
        given = client_of(
            llm, model="openai/gpt-5-mini", limits=Limits(budget=budget, concurrency=1)
        )
        async with TestNUC(**given) as nuc:
            results = await nuc.classify_many(texts)
            assert [r.error for r in results] == [None] * 5
        least, most = [], []
        for effort, found in (("least", least), ("high", most)):
            sampling = Sampling(reasoning_effort=effort)
            given = client_of(llm, model="openai/gpt-5-mini", sampling=sampling)
            async with TestNUC(**given) as nuc:
                found.append((await nuc.estimate(texts)).output_tokens)
        assert most[0] - least[0] == 5 * 1_024
