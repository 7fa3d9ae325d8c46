"""The main job over real sockets: `TestNUC` against the loopback server."""

from __future__ import annotations

import asyncio
import math
import re

import numpy as np
import pytest

import testnuc
from testnuc import LabelSet, Limits, RetryPolicy, SmallPoolWarning, TestNUC, VotePolicy
from testnuc._engine.parameters import client_arguments
from testnuc.errors import InvalidInputError
from testnuc.testing import Faults, HashEmbedder, LoopbackLLM
from testnuc.types import row
from tests.conftest import LABELS, confident, gold, messages
from tests.doubles import Says
from tests.naive import PRESETS, as_float32
from tests.naive import vote as naive_vote

pytestmark = pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")


async def test_a_batch_is_its_own_pool_and_asks_once_a_text(loopback):
    texts = messages(60)
    async with loopback() as (llm, nuc):
        results = await nuc.classify_many([*texts, *texts[:5]])
        assert llm.calls == 60
        assert llm.texts == 60
        assert nuc.usage.calls == 60
        again = await nuc.classify_many(texts)
        assert llm.calls == 60
    assert [r.prediction.label for r in results] == [gold(t) for t in [*texts, *texts[:5]]]
    assert [r.index for r in results] == list(range(65))
    assert all(len(r.neighbors) == 10 for r in results)
    assert again.usage.calls == 0
    assert again.usage.store_hits == 60
    assert again.labels == results.labels[:60]


@pytest.mark.slow
async def test_the_vote_is_that_of_the_reference(loopback):
    # every third answer is wrong, so that the vote has something to do
    texts = messages(90)
    wrong = {t: LABELS[(LABELS.index(gold(t)) + 1) % 3] for t in texts[::4]}

    def answer(text: str) -> tuple[str, float]:
        return wrong.get(text, gold(text)), confident(text)[1]

    for policy in ("majority", "weighted", "confidence_weighted", "filtered"):
        async with loopback(answer, policy=policy, k=7) as (_, nuc):
            results = await nuc.classify_many(texts)
        for result in results:
            own = result.prediction
            voters = [(LABELS.index(own.label), 1.0, as_float32(own.confidence))]
            voters += [
                (LABELS.index(n.label), n.similarity, as_float32(n.confidence))
                for n in result.neighbors
            ]
            label, share, margin, _, count = naive_vote(voters, PRESETS[policy])
            assert (LABELS.index(result.label), result.voters) == (label, count)
            assert (result.share, result.margin) == (share, margin)
        for result in results:
            total = sum(result.votes.values())
            if total:
                assert result.share == pytest.approx(result.votes[result.label] / total, abs=1e-6)


async def test_neighbors_are_the_most_similar_texts_and_never_the_text_itself(loopback):
    texts = messages(40)
    vectors = await HashEmbedder().embed(texts)
    async with loopback(k=5) as (_, nuc):
        results = await nuc.classify_many(texts)
    for i, result in enumerate(results):
        cosines = vectors @ vectors[i]
        cosines[i] = -9
        nearest = np.sort(cosines)[::-1][:5]
        found = [n.similarity for n in result.neighbors]
        assert found == pytest.approx(nearest.tolist(), abs=2e-3)
        assert found == sorted(found, reverse=True)
        assert result.text not in [n.text for n in result.neighbors]


async def test_classify_asks_in_waves_and_stops_when_the_winner_is_certain(client_of):
    query = "refund please number 1000"
    async with LoopbackLLM(lambda _: ("refund", 0.9)) as llm:
        async with TestNUC(**client_of(llm, k=40, policy="majority")) as nuc:
            await nuc.add(messages(120))
            assert llm.calls == 0
            result = await nuc.classify(query)
            # the own vote and 20 neighbors outweigh any 20 others, and no fewer do
            assert llm.calls == result.voters == 21
            assert len(result.neighbors) == 20
            assert not result.complete
            # whatever is stored by now, the same prefix counts
            await nuc.predict_pool()
            again = await nuc.classify(query)
            assert (again.label, again.share, again.voters) == ("refund", result.share, 21)
        async with TestNUC(**client_of(llm, k=40, policy="majority", neighbors="stored")) as nuc:
            await nuc.add(messages(120))
            await nuc.predict_pool()
            full = await nuc.classify(query)
            assert (full.label, full.voters, full.complete) == ("refund", 41, True)


async def test_texts_with_known_labels_are_never_asked_about(loopback):
    texts = messages(30)
    async with loopback() as (llm, nuc):
        await nuc.add(texts, labels=["login"] * 30)
        result = await nuc.classify("where is my parcel number 77")
        assert llm.calls == 1
        assert result.prediction.label == "delivery"
        assert result.label == "login"
        assert all((n.label, n.confidence) == ("login", 1.0) for n in result.neighbors)
        known = await nuc.classify(texts[0])
        assert llm.calls == 1
        assert known.prediction.confidence == 1.0


@pytest.mark.parametrize("several", [False, True])
async def test_no_vote_takes_a_known_label_away(several):
    texts = [f"where is my parcel {n}" for n in range(30)]
    labels = LabelSet(["delivery", "refund"], multilabel=several)
    known = [[label] if several else label for label in ["refund", *["delivery"] * 29]]
    policy = VotePolicy(threshold=0.5) if several else "majority"
    async with TestNUC(
        labels, Says(lambda _: "refund"), embedder=HashEmbedder(), policy=policy
    ) as nuc:
        await nuc.add(texts, labels=known)
        one, other = (await nuc.classify_many(texts))[:2]
        assert (one.labels, one.source, one.trust) == (("refund",), "person", 1.0)
        assert (other.labels, other.source) == (("delivery",), "person")


@pytest.mark.parametrize("several", [False, True])
async def test_no_referee_takes_a_known_label_away(several):
    texts, labels = messages(30), LabelSet(["delivery", "refund"], multilabel=several)
    async with TestNUC(labels, Says(lambda _: "delivery"), embedder=HashEmbedder()) as nuc:
        await nuc.classify_many(texts)
        review = await nuc.review(30, goal="count")
        for item in review:
            review.answer(item, ["delivery"] if several else "delivery", "referee")
        await nuc.learn(review)
        await nuc.add(texts[:1], labels=[["refund"] if several else "refund"])
        one, other = await nuc.classify_many(texts[:2])
        assert (one.labels, one.source, one.trust) == (("refund",), "person", 1.0)
        assert other.labels == ("delivery",)


@pytest.mark.parametrize("policy", ["auto", "majority"])
async def test_without_a_vote_or_a_pool_nothing_is_embedded(loopback, policy):
    embedder, texts = HashEmbedder(), messages(6)
    options = {"embedder": embedder, "k": 0, "join_pool": False, "policy": policy}
    async with loopback(**options) as (llm, nuc):
        results = await nuc.classify_many(texts)
        alone = await nuc.classify(texts[0])
        assert len(nuc) == 0
    assert results.labels == [gold(t) for t in texts]
    assert alone.label == gold(texts[0])
    assert embedder.embedded == 0
    assert llm.calls == 6


async def test_a_failed_text_is_voted_on_by_its_neighbors(loopback):
    texts = messages(30)

    def answer(text: str) -> tuple[str, float]:
        return ("nonsense label outside the set", 0.9) if text == texts[3] else confident(text)

    async with loopback(answer) as (_, nuc):
        results = await nuc.classify_many(texts)
    assert results[3].prediction.label is None
    assert results[3].prediction.said == "nonsense label outside the set"
    assert results[3].label == gold(texts[3])
    assert results[3].voters == len(results[3].neighbors)


async def test_concurrent_runs_share_their_calls(loopback):
    texts = messages(40)
    async with loopback(LoopbackLLM(confident, latency=0.01)) as (llm, nuc):
        first, second = await asyncio.gather(nuc.classify_many(texts), nuc.classify_many(texts))
        assert llm.calls == 40
        assert first.labels == second.labels
        assert nuc.usage.coalesced + nuc.usage.store_hits == 40


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_stream_whose_source_fails_yields_what_it_gave(loopback, kind):
    def source():
        yield from messages(7)
        raise KeyError("mine")

    async def later():
        for text in source():
            yield text

    async with loopback() as (llm, nuc):
        found = []
        with pytest.raises(KeyError, match="mine"):
            async for result in nuc.stream(source() if kind == "plain" else later(), window=3):
                found.append(result)  # noqa: PERF401 - it fails midway
        assert sorted(r.text for r in found) == sorted(messages(7))
        assert all(r.label is not None for r in found)
        assert llm.calls == 7


async def test_a_stream_whose_source_awaits_what_was_cancelled_ends(loopback):
    async def source():
        for text in messages(7):
            yield text
        task = asyncio.create_task(asyncio.Event().wait())
        task.cancel()
        await task

    found = []

    async def read(nuc):
        async for result in nuc.stream(source(), window=3):
            found.append(result)  # noqa: PERF401 - it fails midway

    async with loopback() as (llm, nuc):
        with pytest.raises(RuntimeError, match="CancelledError"):
            await asyncio.wait_for(read(nuc), 20)
        assert sorted(r.text for r in found) == sorted(messages(7))
        assert llm.calls == 7


async def test_stream_of_an_async_iterable_with_invalid_texts_in_small_windows(loopback):
    async def source():
        for i, text in enumerate(messages(50)):
            yield 7 if i == 20 else " " if i == 30 else text

    async with loopback() as (llm, nuc):
        results = {r.index: r async for r in nuc.stream(source(), window=8)}
        assert llm.calls == 48
    assert sorted(results) == list(range(50))
    assert isinstance(results[20].error, testnuc.InvalidInputError)
    assert isinstance(results[30].error, testnuc.InvalidInputError)
    assert "30" in str(results[30].error)
    assert sum(r.error is not None for r in results.values()) == 2


@pytest.mark.parametrize("form", ["one", "several", "tree"])
async def test_an_invalid_text_of_a_stream_has_the_form_of_the_others(client_of, form):
    labels = ["a > b", "a > c", "refund"] if form == "tree" else LABELS
    async with LoopbackLLM(confident) as llm:
        given = client_of(llm, labels=labels, multilabel=form == "several")
        async with TestNUC(**given) as nuc:
            found = {r.text: r async for r in nuc.stream(["refund please", " "])}
    assert (found[" "].multilabel, found[" "].path) == {
        "one": (False, None), "several": (True, None), "tree": (False, ()),
    }[form]  # fmt: skip
    assert row(found["refund please"]).keys() - row(found[" "]).keys() <= {"own_confidences"}


async def test_a_shared_call_goes_on_while_anyone_waits_for_it(loopback):
    texts = messages(30)
    async with loopback(LoopbackLLM(confident, latency=0.03), limits=Limits(concurrency=5)) as (
        llm,
        nuc,
    ):
        first = asyncio.create_task(nuc.classify_many(texts))
        second = asyncio.create_task(nuc.classify_many(texts))
        await asyncio.sleep(0.04)
        first.cancel()
        results = await second
        assert [r.prediction.label for r in results] == [gold(t) for t in texts]
        assert llm.calls == 30


@pytest.mark.slow
async def test_same_answer_at_any_concurrency(loopback):
    texts = messages(120)
    seen = []
    for concurrency in (1, 7, 64):
        async with loopback(limits=Limits(concurrency=concurrency)) as (_, nuc):
            results = await nuc.classify_many(texts)
        seen.append([(r.label, r.share, r.margin) for r in results])
    assert seen[0] == seen[1] == seen[2]


async def test_a_thousand_labels_and_a_very_long_text(loopback):
    labels = [f"label number {i}" for i in range(1_000)]
    long = "a very long complaint, " * 900
    assert len(long) > 20_000
    async with loopback(lambda text: (labels[len(text) % 1_000], 0.5), labels=labels) as (_, nuc):
        results = await nuc.classify_many([long, "short one", "another one"])
    assert results[0].prediction.label == labels[len(long) % 1_000]
    assert results[1].prediction.label == labels[9]


async def test_none_label_and_descriptions_reach_the_prompt(loopback):
    described = {"refund": "wants money", "delivery": "wants a parcel"}
    async with loopback(
        LoopbackLLM(lambda _: ("other", 0.4), record=5),
        labels=described,
        none_label="other",
        instructions="Be strict & fair.",
    ) as (llm, nuc):
        result = (await nuc.classify_many(["hello there", "hi you"]))[0]
        assert result.label == "other"
        body = str(llm.bodies[0])
    for part in ("wants money", "wants a parcel", "other", "Be strict & fair."):
        assert part in body


async def test_missing_confidence_stays_missing(loopback):
    async with loopback(lambda t: (gold(t), None), policy="confidence_weighted") as (_, nuc):
        results = await nuc.classify_many(messages(12))
    assert results[0].prediction.confidence is None
    assert results[0].voters == 0
    assert (results[0].label, results[0].share) == (gold(messages(1)[0]), 0.0)


async def test_unknown_usage_is_not_zero(loopback):
    async with loopback(LoopbackLLM(confident, usage=False)) as (_, nuc):
        await nuc.classify_many(messages(3))
        assert nuc.usage.calls == 3
        assert nuc.usage.input_tokens is None
        assert nuc.usage.usd is None


async def test_the_pool_can_be_counted_pruned_and_asked_anew(loopback):
    texts = messages(40)
    async with loopback() as (llm, nuc):
        await nuc.add(texts)
        stats = await nuc.stats()
        assert (stats.texts, stats.predicted, stats.model) == (40, 0, "openai/test")
        await nuc.classify_many(texts[:10])
        assert (await nuc.stats()).predicted >= 10
        assert await nuc.remove([*texts[:5], "never seen"]) == 5
        assert len(nuc) == 35
        result = await nuc.classify(texts[20])
        assert not {n.text for n in result.neighbors} & set(texts[:5])
        asked = llm.calls
        # a removed text is remembered by the store, only not a neighbor any more
        await nuc.classify_many(texts[:5])
        assert llm.calls == asked
        assert await nuc.forget(model="openai/another") == 0
        assert await nuc.forget() == asked
        assert (await nuc.stats()).predicted == 0
        await nuc.classify_many(texts[:5])
        assert llm.calls > asked


# -- mistakes people make ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["fine", ""], "text 1"),
        (["fine", "  \n"], "text 1"),
        (["fine", None], "text 1"),
        ([3, "fine"], "text 0"),
        ("one string", "list"),
        (5, "list"),
    ],
)
async def test_bad_texts_are_refused_before_any_call(loopback, texts, says):
    async with loopback() as (llm, nuc):
        with pytest.raises(testnuc.InvalidInputError, match=says):
            await nuc.classify_many(texts)
        assert llm.requests == 0
        assert len(nuc) == 0


async def test_bad_single_texts_are_refused(loopback):
    async with loopback() as (llm, nuc):
        for text in ("", 7, None):
            with pytest.raises(testnuc.InvalidInputError):
                await nuc.classify(text)
        assert llm.requests == 0


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"labels": ["a", "a"]}, "a"),
        ({"labels": ["only"]}, "two"),
        ({"labels": "refund"}, "list"),
        ({"labels": []}, "two"),
        ({"k": -1}, "k is -1"),
        ({"k": 1_000_000}, "k is 1000000"),
        ({"k": 2.5}, "k is 2.5"),
        ({"policy": "wieghted"}, "weighted"),
        ({"neighbors": "maybe"}, "stored"),
        ({"temperature": 9}, "temperature is 9"),
        ({"max_concurrency": 0}, "concurrency is 0"),
        ({"limits": 5}, "limits is 5"),
        ({"texts_per_call": 0}, "texts_per_call is 0"),
        ({"model": "gpt-4o-mini"}, "openai/"),
        ({"model": 7}, "model is 7"),
        ({"embedder": 7}, "embedder is 7"),
        ({"store": 7}, "store is 7"),
        ({"request_options": {"f": object()}}, "request_options"),
    ],
)
def test_wrong_arguments_are_named(wrong, says):
    arguments = {
        "labels": LABELS,
        "model": "openai/test",
        "api_key": "k",
        "embedder": HashEmbedder(),
        **wrong,
    }
    with pytest.raises(testnuc.InvalidInputError, match=says):
        TestNUC(**client_arguments(arguments))


def test_a_missing_key_names_the_environment_variable():
    with pytest.raises(testnuc.errors.ConfigurationError, match="OPENAI_API_KEY"):
        TestNUC(LABELS, embedder=HashEmbedder())


@pytest.mark.filterwarnings("default::testnuc.SmallPoolWarning")
async def test_k_larger_than_the_pool_says_what_to_do(loopback):
    async with loopback(k=10) as (_, nuc):
        with pytest.warns(SmallPoolWarning, match=r"k is 10.*at most 3 neighbors.*add unlabeled"):
            results = await nuc.classify_many(messages(4))
        assert all(r.voters == 4 for r in results)


@pytest.mark.filterwarnings("default::testnuc.SmallPoolWarning")
async def test_a_pool_of_one_keeps_the_own_label_and_says_so(loopback):
    async with loopback() as (_, nuc):
        with pytest.warns(SmallPoolWarning, match="only the text itself votes"):
            results = await nuc.classify_many(["refund please"])
        assert (results[0].label, results[0].voters, results[0].share) == ("refund", 1, 1.0)


async def test_known_labels_must_fit(loopback):
    async with loopback() as (_, nuc):
        with pytest.raises(testnuc.InvalidInputError, match="not in the label set"):
            await nuc.add(["a text"], labels=["weather"])
        with pytest.raises(testnuc.InvalidInputError, match="2 texts need 2 labels"):
            await nuc.add(["a text", "b text"], labels=["refund"])
        with pytest.raises(testnuc.InvalidInputError, match="give each text one label"):
            await nuc.add(["a text", "a text"], labels=["refund", "login"])
        assert len(nuc) == 0


@pytest.mark.parametrize(
    ("labeler", "texts"),
    [("llm", 40), (testnuc.UncertaintySampling(min_agreement=0.875), 50)],
)
async def test_calls_are_made_while_texts_are_embedded(loopback, labeler, texts):
    class Held(HashEmbedder):
        """Returns vectors only after the server has answered all texts, or the random part."""

        async def embed(self, texts):
            await answered.wait()
            return await super().embed(texts)

    class Seen:
        def __init__(self):
            self.done = {}

        def start(self, texts):
            self.texts = texts

        def stage(self, name):
            self.done[name] = 0

        def close(self):
            pass

        def advance(self, texts=1):
            self.done[list(self.done)[-1]] += texts
            if sum(self.done.values()) == 40:
                answered.set()

    seen, answered = Seen(), asyncio.Event()
    async with loopback(embedder=Held(), labeler=labeler) as (llm, nuc), asyncio.timeout(60):
        results = await nuc.classify_many(messages(texts), progress=seen)
        asked = sum(result.source != "head" for result in results)
        assert llm.calls == results.usage.calls == asked >= 40
        assert results.usage.store_hits == 0
        assert all(result.voters > 1 for result in results if result.source != "head")
        assert sum(seen.done.values()) == texts
        assert seen.done["embedding"] == 40


async def test_a_broken_embedder_is_named(loopback):
    class Broken:
        dim = 3

        async def embed(self, texts):
            return np.full((len(texts), 3), math.nan, dtype=np.float32)

    class Wrong:
        dim = 3

        async def embed(self, texts):
            return np.ones((len(texts), 4), dtype=np.float32)

    for embedder, says in ((Broken(), "NaN"), (Wrong(), "shape")):
        async with loopback(embedder=embedder) as (llm, nuc):
            with pytest.warns(testnuc.SmallPoolWarning, match="no neighbor votes.*embedder"):
                results = await nuc.classify_many(messages(3))
            # calls are made meanwhile: what is answered is handed over
            assert 1 <= llm.requests <= 3
            assert results[0].reason.code == "not_embedded"
            assert says in results[0].reason
            assert isinstance(results.stopped, testnuc.errors.EmbeddingError)
            assert says in str(results.stopped)
            assert results[0].error is None
            assert results[0].label is not None


async def test_an_embedder_that_is_broken_does_not_hide_why_no_call_was_answered(client_of):
    class Broken(HashEmbedder):
        async def embed(self, texts):
            raise OSError("no such model")

    llm = LoopbackLLM(confident, faults=Faults(1.0, ["500"]))
    async with llm, TestNUC(**client_of(llm, embedder=Broken(), retry=RetryPolicy(1))) as nuc:
        with pytest.raises(testnuc.errors.EmbeddingError, match=r"no such model.* no call .* 500"):
            await nuc.classify_many(messages(3))


async def test_a_closed_client_says_so(client_of):
    async with LoopbackLLM(confident) as llm:
        nuc = TestNUC(**client_of(llm))
        await nuc.aclose()
        await nuc.aclose()
        with pytest.raises(testnuc.TestNUCError, match="closed"):
            await nuc.classify("refund please")


async def test_a_client_that_is_warm_has_loaded_its_embedder_without_a_call(loopback):
    embedder = HashEmbedder()
    async with loopback(embedder=embedder) as (llm, nuc):
        await nuc.warm_up()
        assert (embedder.embedded, llm.calls, len(nuc)) == (1, 0, 0)


async def test_a_forgotten_address_or_embedder_of_the_run_is_named(client_of, tmp_path, caplog):
    """Texts were sent to another company, and columns that need judgments were left out."""
    store = tmp_path / "labels.db"
    with LoopbackLLM(confident) as llm:
        given = client_of(llm, store=store)
        async with testnuc.TestNUC(**given) as nuc:
            await nuc.classify_many(messages(20))
            await nuc.learn(messages(12), ["refund"] * 12)
        forgotten = given | {"base_url": None, "embedder": HashEmbedder(16)}
        with pytest.raises(InvalidInputError, match=re.escape(f"give base_url={llm.base_url!r}")):
            async with testnuc.TestNUC(**forgotten):
                pass
        # another address that is named is meant, and so are other labels
        for other in ({"base_url": "http://127.0.0.1:9/v1"}, {"labels": [*given["labels"], "new"]}):
            async with testnuc.TestNUC(**forgotten | other) as nuc:
                assert nuc.learned is None
        assert not caplog.records
        async with testnuc.TestNUC(**given | {"embedder": HashEmbedder(16)}) as nuc:
            results = await nuc.classify_many(messages(20))
            assert "judged with another embedder: embedder='testnuc/hash-64" in caplog.text
            with pytest.raises(InvalidInputError, match=r"learned is None; .* base_url, labels"):
                results.to_pandas(debiased=nuc.learned)
        assert llm.calls == 20
