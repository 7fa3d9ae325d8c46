"""Recording what a labeler says, and what it costs, through the real client."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("pandas")

from bench.evaluation.costs import measure_costs
from bench.evaluation.datasets import load
from bench.evaluation.plots import plot
from bench.evaluation.recording import embedded, record, record_runs
from testnuc import Limits, SelfConsistency, StandardPrompting, TestNUC, TopKICL, TopKICLP
from testnuc.errors import InvalidInputError
from testnuc.limits.budget import Price
from testnuc.testing import HashEmbedder, LoopbackLLM
from tests.conftest import LABELS, confident, gold, messages

pytestmark = pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")


@pytest.fixture
def dataset(tmp_path):
    path = tmp_path / "tickets.jsonl"
    texts = messages(40)
    path.write_text(
        "".join(json.dumps({"text": t, "label": gold(t)}) + "\n" for t in [*texts, texts[0]])
    )
    return load(path)


def arguments(llm):
    return {
        "model": "openai/gpt-4o-mini",
        "base_url": llm.base_url,
        "api_key": "key",
        "embedder": HashEmbedder(),
    }


async def test_a_recording_asks_once_a_text_and_resumes_from_its_store(dataset, tmp_path):
    store = tmp_path / "answers.db"
    async with LoopbackLLM(confident) as llm:
        some = await record(dataset, **arguments(llm), store=store, rows=[3, 5])
        assert llm.calls == 2
        assert (some.labels >= 0).nonzero()[0].tolist() == [3, 5]
        whole = await record(dataset, **arguments(llm), store=store)
        assert llm.calls == 40
    assert len(whole) == 40
    assert whole.accuracy == 1
    assert whole.confidences.tolist() == [np.float32(confident(t)[1]) for t in whole.texts]
    expected = await HashEmbedder().embed(whole.texts)
    assert whole.vectors.astype(np.float32) == pytest.approx(expected, abs=1e-3)


async def test_runs_are_the_samples_of_self_consistency(dataset, tmp_path):
    store = tmp_path / "answers.db"

    def answer(text: str, time: int) -> tuple[str, float]:
        return LABELS[time % 3], time / 10

    async with LoopbackLLM(answer) as llm:
        runs = await record_runs(
            dataset, 4, **arguments(llm), store=store, limits=Limits(concurrency=1), rows=range(10)
        )
        assert llm.calls == 40
        await record(
            dataset, **arguments(llm), store=store, method=SelfConsistency(4), rows=range(10)
        )
        assert llm.calls == 40
    names = list(dataset.names)
    for number, run in enumerate(runs):
        assert set(run.labels[:10].tolist()) == {names.index(LABELS[number % 3])}
        assert set(run.labels[10:].tolist()) == {-1}
        assert run.confidences[0] == np.float32(number / 10)


async def test_foreign_texts_are_asked_about_with_the_labels_of_another_dataset(dataset, tmp_path):
    path = tmp_path / "other.jsonl"
    path.write_text(
        "".join(json.dumps({"text": f"weather {i}", "label": str(i % 2)}) + "\n" for i in range(9))
    )
    async with LoopbackLLM(lambda _: ("login", 0.2)) as llm:
        foreign = await record(load(path), **arguments(llm), labels_of=dataset)
    assert foreign.names == dataset.names
    assert set(foreign.gold.tolist()) == {-1}
    assert set(foreign.labels.tolist()) == {dataset.names.index("login")}


async def test_embeddings_are_kept_by_embedder_and_texts(tmp_path):
    texts, embedder = messages(30), HashEmbedder()
    first = await embedded(texts, embedder, cache_dir=tmp_path)
    again = await embedded(texts, embedder, cache_dir=tmp_path)
    assert embedder.embedded == 30
    assert (first == again).all()
    await embedded(texts[:20], embedder, cache_dir=tmp_path)
    assert embedder.embedded == 50
    assert first.astype(np.float32) == pytest.approx(await HashEmbedder().embed(texts), abs=1e-3)


async def test_local_zero_shot_is_given_words(tmp_path):
    path = tmp_path / "reddit.jsonl"
    path.write_text(
        '{"text": "money refund", "label": "refund_money.txt"}\n'
        '{"text": "courier", "label": "courier.txt"}\n'
    )
    recording = await record(load(path), model="local/zero-shot", embedder=HashEmbedder())
    assert recording.names == ("courier.txt", "refund_money.txt")
    assert recording.accuracy == 1


@pytest.mark.slow
async def test_costs_by_method(tmp_path):
    texts, pool = messages(60)[:6], messages(60)[6:]
    async with LoopbackLLM(confident) as llm:

        def client(**more):
            return TestNUC(LABELS, **arguments(llm), policy="weighted", **more)

        table = await measure_costs(
            client,
            texts,
            pool,
            methods={"one": StandardPrompting(), "ten": SelfConsistency(10), "icl": TopKICLP(4)},
            ks=(3,),
            price=Price.of("openai", "gpt-4o-mini"),
        )
        with pytest.raises(InvalidInputError, match="also in the pool"):
            await measure_costs(client, pool, pool)
    calls = table.set_index(["method", "way"])["calls"]
    assert calls["one", "alone"] == calls["one", "neighbors stored"] == calls["one", "batch"] == 1
    assert calls["one", "neighbors asked"] == 4
    assert calls["ten", "alone"] == calls["ten", "neighbors stored"] == calls["ten", "batch"] == 10
    assert calls["ten", "neighbors asked"] == 40
    # its own, and the standard prediction of each text it is shown
    assert calls["icl", "alone"] == 5
    assert calls["icl", "neighbors stored"] == 1
    assert calls["icl", "batch"] == 2
    assert (table["seconds"] > 0).all()
    assert (table["usd"] > 0).all()
    assert (table["input_tokens"] > table["output_tokens"]).all()
    pytest.importorskip("matplotlib")
    plot(table).savefig(tmp_path / "costs.png")


@pytest.mark.parametrize(
    ("method", "calls"),
    [(StandardPrompting(), 40), (SelfConsistency(3), 120), (TopKICL(4), 40), (TopKICLP(4), 80)],
)
async def test_nothing_is_asked_before_the_estimate_is_agreed_to(dataset, tmp_path, method, calls):
    seen = []

    def agree(usage):
        seen.append(usage)
        return len(seen) > 1

    async with LoopbackLLM(confident) as llm:
        options = {**arguments(llm), "method": method, "agree": agree, "store": tmp_path / "a.db"}
        with pytest.raises(InvalidInputError, match="cost estimate declined"):
            await record(dataset, **options)
        assert llm.requests == 0
        await record(dataset, **options)
        assert seen[0].calls == calls
        assert 0.9 * calls <= llm.calls <= calls
        # examples included; rather too high than too low
        assert llm.input_tokens <= seen[0].input_tokens < 3 * llm.input_tokens
