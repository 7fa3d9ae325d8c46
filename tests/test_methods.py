"""Every method over real sockets, alone and with the vote: calls, prompts, winners."""

from __future__ import annotations

import orjson
import pytest

from testnuc import (
    BestOfN,
    Limits,
    SelfConsistency,
    StandardPrompting,
    TestNUC,
    TopKICL,
    TopKICLP,
    WeightedBestOfN,
)
from testnuc.testing import LoopbackLLM
from tests import naive
from tests.conftest import LABELS, confident, gold, messages

pytestmark = pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")

REDUCTIONS = [
    (SelfConsistency, naive.self_consistency),
    (BestOfN, naive.best_of_n),
    (WeightedBestOfN, naive.weighted_best_of_n),
]


def sampled(text: str, time: int) -> tuple[str, float]:
    """Answer rightly two times of three, with a confidence that differs from time to time."""
    right = LABELS.index(gold(text))
    shift = 1 if (len(text) + time * 7) % 3 == 0 else 0
    return LABELS[(right + shift) % 3], (3 + (time * 5 + len(text)) % 7) / 10


def prompt(body):
    return body["messages"][-1]["content"]


def parsed(user):
    """Return the demonstrations, (text, label or None) each, and the sample of a prompt."""
    shown, section = [], None
    sample = None
    for line in user.split("\n"):
        if line.startswith("== "):
            section = line
        elif line.startswith("Text ") and section == "== Demonstrations ==":
            shown.append((orjson.loads(line.split(": ", 1)[1]), None))
        elif line.startswith("Label: "):
            shown[-1] = (shown[-1][0], orjson.loads(line.removeprefix("Label: ")))
        elif line.startswith("Text "):
            sample = orjson.loads(line.split(": ", 1)[1])
    return shown, sample


async def nearest(client_of, llm, texts, k):
    """Text -> its nearest others, most similar first, as a client without a method finds them."""
    async with TestNUC(**client_of(llm, k=k)) as nuc:
        return {r.text: [n.text for n in r.neighbors] for r in await nuc.classify_many(texts)}


@pytest.mark.parametrize(("method", "reference"), REDUCTIONS)
@pytest.mark.parametrize("k", [0, 5])
async def test_sampling_methods_alone_and_with_the_vote(loopback, method, reference, k):
    texts = messages(24)
    async with loopback(sampled, method=method(6), k=k, limits=Limits(concurrency=1)) as (llm, nuc):
        results = await nuc.classify_many(texts)
        assert llm.calls == nuc.usage.calls == 6 * 24
        assert set(llm.asked.values()) == {6}
    own = {}
    for result in results:
        label, confidence = reference([sampled(result.text, i) for i in range(6)])
        own[result.text] = (label, confidence)
        assert result.prediction.label == label
        assert result.prediction.confidence == pytest.approx(confidence)
    for result in results:
        assert len(result.neighbors) == k
        voters = [(LABELS.index(own[result.text][0]), 1.0, None)]
        for n in result.neighbors:
            # neighbors vote with predictions of the same method
            assert n.label == own[n.text][0]
            assert n.confidence == pytest.approx(own[n.text][1])
            voters.append((LABELS.index(n.label), n.similarity, None))
        assert LABELS.index(result.label) == naive.winner(voters, naive.PRESETS["weighted"])


async def test_more_samples_pay_for_the_difference_and_methods_share_them(client_of):
    from testnuc.stores.memory import MemoryStore

    texts = messages(20)
    store = MemoryStore()
    async with LoopbackLLM(sampled) as llm:
        for method, calls in (
            (StandardPrompting(), 20),
            (SelfConsistency(4), 80),
            (SelfConsistency(7), 140),
            (BestOfN(7), 140),
            (WeightedBestOfN(5), 140),
            (StandardPrompting(), 140),
        ):
            async with TestNUC(**client_of(llm, method=method, store=store, k=3)) as nuc:
                await nuc.classify_many(texts)
            assert llm.calls == calls, method


@pytest.mark.parametrize("k", [0, 4])
async def test_topk_icl_shows_the_nearest_texts_without_labels(client_of, k):
    texts = messages(40)
    async with LoopbackLLM(confident) as plain:
        near = await nearest(client_of, plain, texts, 6)
    async with LoopbackLLM(confident, record=100) as llm:
        async with TestNUC(**client_of(llm, method=TopKICL(k=6), k=k)) as nuc:
            results = await nuc.classify_many(texts)
            assert llm.calls == nuc.usage.calls == 40
            await nuc.classify_many(texts)
            assert llm.calls == 40
        for body in llm.bodies:
            shown, sample = parsed(prompt(body))
            assert shown == [(text, None) for text in near[sample]]
    assert all(len(r.neighbors) == k for r in results)
    assert [r.prediction.label for r in results] == [gold(t) for t in texts]


@pytest.mark.parametrize("k", [0, 4])
async def test_topk_iclp_shows_them_with_their_own_predictions(client_of, k):
    texts = messages(40)

    def answer(text: str) -> tuple[str, float]:
        # outside the label set: such a text is shown without a label
        return ("weather forecast", 0.9) if text == texts[7] else confident(text)

    async with LoopbackLLM(confident) as plain:
        near = await nearest(client_of, plain, texts, 6)
    async with LoopbackLLM(answer, record=200) as llm:
        async with TestNUC(**client_of(llm, method=TopKICLP(k=6), k=k)) as nuc:
            await nuc.classify_many(texts)
            # both stages, each text once; none that no prompt shows
            first = {t for ts in near.values() for t in ts}
            assert llm.calls == nuc.usage.calls == len(first) + 40
        stages = [parsed(prompt(body)) for body in llm.bodies]
        assert {sample for shown, sample in stages if not shown} == first
        second = {sample: shown for shown, sample in stages if shown}
        assert set(second) == set(texts)
        for sample, shown in second.items():
            assert shown == [
                (text, None if text == texts[7] else gold(text)) for text in near[sample]
            ]


async def test_known_labels_are_shown_and_never_asked_for(client_of):
    texts = messages(20)
    async with LoopbackLLM(confident, record=50) as llm:
        async with TestNUC(**client_of(llm, method=TopKICLP(3), k=2)) as nuc:
            await nuc.add(texts, labels=["login"] * 20)
            await nuc.classify("where is my parcel number 99")
        assert llm.calls == 1
        shown, _ = parsed(prompt(llm.bodies[0]))
        assert [label for _, label in shown] == ["login"] * 3


@pytest.mark.parametrize(
    "method", [SelfConsistency(3), BestOfN(3), WeightedBestOfN(3), TopKICL(4), TopKICLP(4)]
)
async def test_waves_stop_when_the_winner_is_certain(loopback, method):
    async with loopback(
        LoopbackLLM(lambda _: ("refund", 0.9), record=2_000), k=40, policy="majority", method=method
    ) as (llm, nuc):
        await nuc.add(messages(120))
        result = await nuc.classify("refund please number 1000")
        assert (result.label, result.voters, result.complete) == ("refund", 21, False)
        prompts = [parsed(prompt(body)) for body in llm.bodies]
        own = [sample for shown, sample in prompts if shown or not method.context]
        assert len(set(own)) == 21
        assert len(own) == 21 * method.samples
    assert llm.calls < 121 * method.samples


@pytest.mark.parametrize(
    ("method", "each", "seen"),
    [
        (StandardPrompting(), 1, 1),
        (SelfConsistency(3), 3, 3),
        (BestOfN(3), 3, 3),
        (WeightedBestOfN(3), 3, 3),
        (TopKICL(4), 1, 1),
        # the pool is asked with and without examples; a new text costs its own call alone
        (TopKICLP(4), 1, 2),
    ],
)
async def test_stored_neighbors_vote_with_every_method(loopback, method, each, seen):
    async with loopback(method=method, neighbors="stored", k=5) as (llm, nuc):
        await nuc.add(messages(50))
        await nuc.predict_pool()
        calls = llm.calls
        assert calls <= seen * 50
        await nuc.predict_pool()
        assert llm.calls == calls
        for i in range(12):
            # each new text joins the pool, and with it the examples of its neighbors change
            result = await nuc.classify(f"courier lost it number {900 + i}")
            assert result.voters == 6
            assert all(n.label == "delivery" for n in result.neighbors[:2])
        assert llm.calls == calls + 12 * each


async def test_a_stored_batch_labels_the_examples_of_the_batch(client_of):
    texts = messages(30)
    async with LoopbackLLM(confident, record=100) as llm:
        method = TopKICLP(3)
        async with TestNUC(**client_of(llm, method=method, neighbors="stored", k=3)) as nuc:
            results = await nuc.classify_many(texts)
        assert llm.calls <= 60
        shown = [d for body in llm.bodies for d in parsed(prompt(body))[0]]
    assert all(label == gold(text) for text, label in shown)
    assert all(r.voters == 4 for r in results)


async def test_a_test_set_kept_out_of_the_pool_is_no_example(client_of):
    pool, test = messages(60)[:50], messages(60)[50:]
    async with LoopbackLLM(confident, record=500) as llm:
        async with TestNUC(**client_of(llm, method=TopKICL(4), join_pool=False)) as nuc:
            await nuc.add(pool)
            await nuc.classify_many(test)
            assert len(nuc) == 50
        for body in llm.bodies:
            shown, sample = parsed(prompt(body))
            assert len(shown) == 4
            assert {text for text, _ in shown} <= set(pool) - {sample}


async def test_the_first_text_of_all_has_no_examples(loopback):
    async with loopback(LoopbackLLM(confident, record=5), method=TopKICLP(4)) as (llm, nuc):
        result = await nuc.classify("refund please")
    assert result.label == "refund"
    assert parsed(prompt(llm.bodies[0])) == ([], "refund please")


@pytest.mark.slow
async def test_streams_show_examples_of_their_window(client_of):
    texts = messages(90)
    for method in (SelfConsistency(3), TopKICL(3), TopKICLP(3)):
        async with LoopbackLLM(confident) as llm:
            async with TestNUC(**client_of(llm, method=method)) as nuc:
                whole = await nuc.classify_many(texts)
            async with TestNUC(**client_of(llm, method=method)) as nuc:
                streamed = [r async for r in nuc.stream(texts, window=90)]
        streamed.sort(key=lambda r: r.index)
        assert [(r.label, r.share) for r in streamed] == [(r.label, r.share) for r in whole]


async def test_a_failed_sample_leaves_the_others(loopback):
    def answer(text: str, time: int) -> tuple[str, float] | None:
        return None if time == 1 else sampled(text, time)

    texts = messages(9)
    async with loopback(answer, method=SelfConsistency(4), k=2, limits=Limits(concurrency=1)) as (
        _,
        nuc,
    ):
        results = await nuc.classify_many(texts)
    assert all(r.prediction is not None and r.error is None for r in results)
