"""A referee judges and labels; what it costs is foreseen, and counted apart from the labeler."""

from __future__ import annotations

import asyncio

import pytest

import testnuc
from testnuc import Results
from testnuc.errors import ServerError
from testnuc.testing import LoopbackLLM
from testnuc.trust.certificates import edges
from tests._engine.test_learning import LABELS, Clustered, Says, accuracy, gold, noisy, texts_of

TEXTS = texts_of(400)


@pytest.fixture
def servers():
    with LoopbackLLM(noisy) as small, LoopbackLLM(gold) as big:
        yield small, big


def client(servers, escalate=0.1, **more):
    small, big = servers
    referee = testnuc.OpenAI("gpt-4o", base_url=big.base_url, api_key="k")
    given = {
        "api_key": "k",
        "embedder": Clustered(),
        "referee": testnuc.Referee(referee, escalate),
        **more,
    }
    return testnuc.TestNUC(LABELS, "openai/gpt-4o-mini", base_url=small.base_url, **given)


@pytest.mark.slow
async def test_calls_are_foreseen_and_counted_apart(servers, tmp_path):
    small, big = servers
    async with client(servers, store=tmp_path / "s.db") as nuc:
        foreseen = await nuc.estimate(TEXTS)
        assert (foreseen.calls, foreseen.referee_calls) == (400, 140)
        assert "the referee: at most 140 calls, unknown" in str(foreseen)
        results = await nuc.classify_many(TEXTS)
        assert small.calls == results.usage.calls == nuc.usage.calls == 400
        asked = big.calls
        assert asked == results.referee_usage.calls == nuc.referee_usage.calls
        assert 40 < asked <= 140
        assert results.usage.input_tokens == small.input_tokens
        assert results.referee_usage.input_tokens == big.input_tokens
        assert f"the referee, {asked} calls" in results.summary()
        assert "openai/gpt-4o labeled the 40 least trusted texts\n" in results.summary()
        assert "labels changed" in results.summary()
        page = await nuc.describe(results)
        assert "- Referee, which judged or labeled some texts: `openai/gpt-4o`\n" in page
        path = tmp_path / "r.jsonl"
        results.to_jsonl(path)
        again = Results.from_jsonl(path)
        assert (again.usage, again.referee_usage) == (results.usage, results.referee_usage)
        assert again.summary() == results.summary()
        # judged once: only the least trusted texts are left
        assert (await nuc.estimate(TEXTS)).calls == 0
        assert (await nuc.estimate(TEXTS)).referee_calls == 40
    async with client(servers, store=tmp_path / "s.db") as nuc:
        repeated = await nuc.classify_many(TEXTS)
        assert repeated.usage.calls == 0
        assert (small.calls, big.calls) == (400, asked + repeated.referee_usage.calls)
        assert repeated.referee_usage.calls == 0
        assert repeated.labels == results.labels


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")
async def test_a_referee_that_judges_nearly_all_texts_certifies_none(servers):
    """What it judged counted as right beside what people drew."""
    for n, reason in ((60, "a referee judged the texts"), (130, "judge")):
        async with client(servers, escalate=0.0) as nuc:
            await nuc.classify_many(TEXTS[:n])
            learned = nuc.learned
            assert {one.source for one in learned.used} == {"referee"}
            certificate = learned.certify()
            assert certificate.coverage == 0
            assert reason in certificate.reason
            assert "Proved" not in str(learned)
            # strata stay those of all texts: draws of before are from these
            lowest = learned._strata(learned.right).lowest
            assert lowest.tolist() == edges(learned.trust.astype(float)).tolist()
            # also where all that was judged is erased
            erased = learned.without({one.hash for one in learned.judged})
            assert (erased.accuracy(), erased.by_label()) == (None, learned.by_label())
            assert str(erased)


@pytest.mark.slow
async def test_a_referee_judges_once_where_few_texts_have_a_prediction(servers, tmp_path):
    """Each run judged a hundred more: the pool was larger than what was learned from."""
    small, big = servers
    given = {"labeler": testnuc.UncertaintySampling(max_fraction=0.5), "store": tmp_path / "s.db"}
    async with client(servers, **given) as nuc:
        first = await nuc.classify_many(TEXTS)
    asked = small.calls, big.calls
    assert asked[0] == 200
    for _ in range(2):
        async with client(servers, **given) as nuc:
            again = await nuc.classify_many(TEXTS)
            assert (again.labels, again.escalated) == (first.labels, first.escalated)
    assert (small.calls, big.calls) == asked


async def test_the_price_of_a_referee_is_foreseen():
    better = testnuc.OpenAI("gpt-4o", api_key="k")
    given = {"api_key": "k", "embedder": Clustered(), "referee": better}
    async with testnuc.TestNUC(LABELS, "openai/gpt-4o-mini", **given) as nuc:
        judging = await nuc.estimate(TEXTS)
    given["referee"] = testnuc.Referee(better, escalate=0.5)
    async with testnuc.TestNUC(LABELS, "openai/gpt-4o-mini", **given) as nuc:
        more = await nuc.estimate(TEXTS)
    assert (judging.referee_calls, more.referee_calls) == (100, 300)
    assert more.usd == judging.usd
    assert more.referee_usd == pytest.approx(3 * judging.referee_usd, rel=0.1)
    assert judging.referee_usd > judging.usd


@pytest.mark.slow
async def test_a_stream_escalates_window_by_window(servers):
    small, big = servers
    async with client(servers) as nuc:
        rows = {row.index: row async for row in nuc.stream(TEXTS, window=100)}
        by_window = [
            sum(rows[i].source == "referee" for i in range(start, start + 100))
            for start in range(0, 400, 100)
        ]
        assert small.calls == 400
        assert all(number >= 10 for number in by_window)
        assert sum(row.source == "referee" for row in rows.values()) <= big.calls
        assert accuracy(rows.values()) > 0.9
    with LoopbackLLM(noisy) as small, LoopbackLLM(gold) as big:
        async with client((small, big)) as nuc:
            many = await nuc.classify_many(TEXTS)
        async with client((small, big)) as nuc:
            streamed = {r.index: r.label async for r in nuc.stream(TEXTS, window=400)}
            assert [streamed[i] for i in range(400)] == many.labels


@pytest.mark.slow
async def test_labels_are_not_lost_with_the_referee(servers, caplog):
    small, _ = servers
    with LoopbackLLM(gold, api_key="another") as big:
        async with client((small, big)) as nuc:
            results = await nuc.classify_many(TEXTS)
            assert results.labels.count(None) == 0
            assert results.escalated.startswith("the referee failed: AuthenticationError")
            assert "the referee failed: AuthenticationError" in results.summary()
            assert "the referee failed" in caplog.text
            rows = [row async for row in nuc.stream(TEXTS)]
            assert len(rows) == len(TEXTS)


async def test_with_too_few_texts_nothing_is_asked(servers):
    _, big = servers
    async with client(servers) as nuc:
        with pytest.warns(testnuc.SmallPoolWarning, match="8 predictions"):
            results = await nuc.classify_many(TEXTS[:8])
        assert results.escalated.startswith("nothing was escalated")
        assert big.calls == 0


@pytest.mark.slow
async def test_texts_whose_call_failed_are_not_asked_again(servers):
    _, big = servers
    refused = set(TEXTS[5:10])
    with LoopbackLLM(lambda text: None if text in refused else noisy(text)) as small:
        async with client((small, big)) as nuc:
            results = await nuc.classify_many(TEXTS)
            assert {r.text for r in results.errors} == refused
            requests = small.requests
            async with client((small, big), referee=None) as plain:
                await plain.classify_many(TEXTS)
            # as many as without a referee
            assert small.requests == 2 * requests


@pytest.mark.slow
async def test_concurrent_runs_judge_once(servers):
    _, big = servers
    async with client(servers, escalate=0.0) as nuc:
        await asyncio.gather(*(nuc.classify_many(TEXTS) for _ in range(3)))
        assert big.calls <= 100
        assert "by a referee" in str(nuc.learned)


async def test_a_referee_that_only_fails_is_not_said_to_name_no_label():
    def fail(text):
        raise ServerError("it is out of order")

    async with testnuc.TestNUC(
        LABELS, Says(noisy), embedder=Clustered(), referee=Says(fail)
    ) as nuc:
        results = await nuc.classify_many(texts_of(600))
    assert results.escalated == "the referee failed: ServerError: it is out of order"
    assert None not in results.labels


async def test_a_referee_that_names_none_of_the_labels_is_asked_once():
    texts, better = texts_of(600), Says(lambda text: "dunno")
    async with testnuc.TestNUC(LABELS, Says(noisy), embedder=Clustered(), referee=better) as nuc:
        results = await nuc.classify_many(texts)
        assert "name none of the labels" in results.escalated
        results = await nuc.classify_many(texts)
        assert None not in results.labels
        asked = len(better.asked)
        assert 0 < asked <= 100
        async for result in nuc.stream(texts):
            assert result.label is not None
        assert len(better.asked) == asked
