"""The benchmarks run, check themselves, and say what is wrong with their input."""

from __future__ import annotations

import asyncio
import json
import re

import numpy as np
import pytest

from bench.__main__ import run
from testnuc.testing import HashEmbedder, LoopbackLLM
from tests.cli.in_process import in_process
from tests.conftest import LABELS, gold, messages

pytestmark = pytest.mark.slow


def bench(*arguments):
    return in_process(run, ["bench", *arguments])


@pytest.fixture
async def recorded(tmp_path):
    texts = messages(120)
    folder = tmp_path / "datasets" / "tickets"
    folder.mkdir(parents=True)
    (folder / "large.jsonl").write_text(
        "".join(json.dumps({"task": "tickets", "input": t, "label": gold(t)}) + "\n" for t in texts)
    )
    predictions = tmp_path / "predictions.jsonl"
    with predictions.open("w") as file:
        for i, text in enumerate([*texts, texts[0]]):
            said = LABELS[0] if i % 5 == 0 else gold(text)
            row = {"text": text, "gold": gold(text), "prediction": said, "confidence": 0.8}
            file.write(json.dumps(row) + "\n")
    embeddings = tmp_path / "embeddings.npy"
    np.save(embeddings, (await HashEmbedder().embed([*texts, texts[0]])).astype(np.float16))
    return tmp_path, predictions, embeddings


def test_paper_counts_and_curves(recorded, tmp_path):
    folder, predictions, embeddings = recorded
    result = tmp_path / "result.json"
    code, out, err = bench(
        "paper", "--data", folder, "--dataset", "tickets", "--predictions", predictions,
        "--embeddings", embeddings, "--json", result,
    )  # fmt: skip
    assert code == 0, err
    assert "120 distinct" in out
    written = json.loads(result.read_text())
    assert [row["policy"] for row in written["rows"]] == [
        "majority", "weighted", "confidence_weighted", "filtered",
    ]  # fmt: skip
    alone = np.mean([t_i % 5 != 0 or gold(t) == LABELS[0] for t_i, t in enumerate(messages(120))])
    assert written["rows"][0]["k=0"] == pytest.approx(alone, abs=0.01)


async def test_cost_of_a_million(tmp_path):
    rows = [
        {"text": text, "gold": gold(text), "prediction": gold(text), "confidence": 0.8}
        for text in messages(400)
    ]
    (tmp_path / "predictions").mkdir()
    (tmp_path / "predictions" / "banking77.some.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "embeddings").mkdir()
    vectors = await HashEmbedder().embed([row["text"] for row in rows])
    np.save(tmp_path / "embeddings" / "banking77.some.npy", vectors)
    result = tmp_path / "result.json"
    code, _, err = await asyncio.to_thread(
        bench, "cost", "--million", "--data", tmp_path, "--json", result
    )
    assert code == 0, err
    found = {row["way"]: row for row in json.loads(result.read_text())["rows"]}
    assert found["each text alone"]["calls"] == 1_000_000
    assert found["20 texts a call, batch lane"]["calls"] == 50_000
    # half of the texts here, and as many of a million
    head = found["5,000 texts, 20 texts a call, batch lane, 50 judged texts"]
    assert (head["calls"], head["accuracy"] > 0.8) == (10, True)


def test_paper_names_wrong_paths(recorded):
    folder, predictions, _ = recorded
    code, _, err = bench("paper", "--data", folder, "--predictions", folder / "nowhere")
    assert code == 1
    assert "predictions file" in err
    code, _, err = bench("paper", "--data", folder, "--predictions", predictions)
    assert code == 1
    assert "dataset" in err
    assert "does not exist" in err


def test_the_list_of_benchmarks():
    code, _, err = bench()
    assert code == 1
    assert "paper" in err
    code, _, err = bench("nothing")
    assert "unknown benchmark 'nothing'" in err


def test_store_measures_and_opens_again(tmp_path):
    result = tmp_path / "result.json"
    code, out, err = bench(
        "store", "--sizes", 300, "--dim", 16, "--folder", tmp_path, "--json", result
    )
    assert code == 0, err
    assert "| 300 " in out
    row = json.loads(result.read_text())["rows"][0]
    assert row["texts"] == 300
    assert row["found"] == 1.0
    assert row["file MiB"] > 0
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"], "it clears up after itself"


def study(folder, out, *more):
    return bench(
        "paper", "--data", folder, "--dataset", "tickets", "--out", out, "--test", "30", "--seeds",
        "2", *more,
    )  # fmt: skip


@pytest.fixture
def named(recorded):
    """Name the recorded dataset as one of the paper's, as only those are known by name."""
    folder, predictions, embeddings = recorded
    (folder / "datasets" / "tickets").rename(folder / "datasets" / "banking77")
    # each text once: the embeddings are row for row those of the dataset
    rows = predictions.read_text().splitlines()[:-1]
    predictions.write_text("\n".join(rows) + "\n")
    np.save(embeddings, np.load(embeddings)[:-1])
    return folder, predictions, embeddings


def test_paper_studies_of_recorded_answers(named, tmp_path):
    folder, predictions, embeddings = named
    out = tmp_path / "out"
    code, printed, err = study(
        folder, out, "--dataset", "banking77", "--predictions", predictions, "--embeddings",
        embeddings, "--study", "datasets,k,policies,pool,choice,gold", "--k", "10",
    )  # fmt: skip
    assert code == 0, err
    assert "0.712" in printed  # the paper's own, beside ours
    written = json.loads((out / "paper.json").read_text())
    names = [section["name"] for section in written["sections"]]
    assert names == [
        "datasets", "k", "k_splits", "policies", "pool", "choice", "purity", "gold_votes",
    ]  # fmt: skip
    first = written["sections"][0]["rows"][0]
    assert (first["policy"], first["paper"]) == ("alone", 0.652)
    assert first["difference"] == pytest.approx(first["accuracy"] - 0.652)
    assert (out / "paper.md").read_text().count("![") == 7
    for image in out.glob("*.png"):
        assert image.read_bytes()[:4] == b"\x89PNG"


def test_paper_asks_a_model_only_after_a_yes_and_resumes(named, tmp_path):
    folder, _, _ = named
    with LoopbackLLM(lambda text: (gold(text), 0.8)) as llm:
        arguments = [
            "--dataset", "banking77", "--model", "openai/gpt-4o-mini", "--base-url", llm.base_url,
            "--api-key", "key", "--store", tmp_path / "answers.db", "--study", "datasets", "--k",
            "5", "--methods", "Self-Consistency,KNN-ICL-P",
        ]  # fmt: skip
        code, printed, err = study(folder, tmp_path / "out", *arguments)
        assert code == 1
        assert "Confirm with --yes" in err
        first = int(re.search(r"at most ([\d,]+) calls", printed)[1].replace(",", ""))
        # ten samples of the texts that the votes need, which are nearly all
        assert 1_000 < first <= 1_200
        assert llm.requests == 0
        code, printed, err = study(folder, tmp_path / "out", *arguments, "--yes")
        assert code == 0, err
        calls = llm.calls
        # then one with examples, whose labels are the first samples where there are any
        assert first + first // 10 <= calls <= first + first // 10 + 20
        code, _, err = study(folder, tmp_path / "out", *arguments, "--yes")
        assert code == 0, err
        assert llm.calls == calls
    rows = json.loads((tmp_path / "out" / "paper.json").read_text())["sections"][0]["rows"]
    assert {row["method"] for row in rows} == {"Self-Consistency", "KNN-ICL-P"}
    assert all(row["accuracy"] == 1 for row in rows)


def test_paper_names_wrong_studies(named):
    folder, predictions, _ = named
    code, _, err = bench("paper", "--data", folder, "--study", "nothing", "--model", "local/x")
    assert code == 1
    assert "unknown study 'nothing'; choose from datasets, gold, k" in err
    code, _, err = bench("paper", "--data", folder, "--study", "k")
    assert code == 2
    assert "give one of --model and --predictions" in err
    code, _, err = bench(
        "paper", "--data", folder, "--dataset", "clinc", "--study", "gold,purity",
        "--predictions", predictions,
    )  # fmt: skip
    assert code == 1


def test_faults_finds_nothing_lost(tmp_path):
    result = tmp_path / "result.json"
    code, out, err = bench(
        "faults", "--texts", 200, "--killed-for", 0.3, "--kinds", "429,500,truncated,missing-ids",
        "--json", result,
    )  # fmt: skip
    assert code == 0, out + err
    rows = json.loads(result.read_text())["rows"]
    assert [row["fault"] for row in rows][:2] == ["none", "429"]
    assert len(rows) == 10
    assert all(row["lost"] == row["violations"] == 0 for row in rows)
    assert sum(row["faults"] for row in rows) > 20


@pytest.mark.torch
def test_cost_of_the_demos_messages(tmp_path):
    result = tmp_path / "result.json"
    code, out, err = bench("cost", "--texts", 40, "--k", 5, "--json", result)
    assert code == 0, out + err
    rows = {row["way"]: row for row in json.loads(result.read_text())["rows"]}
    calls = {way: row["calls per text"] for way, row in rows.items()}
    assert calls["plain prompting"] == calls["a batch as its own pool"] == 1
    assert calls["5 + 1 calls per text (computed)"] == 6
    assert calls["a batch as its own pool, 10 texts per call"] == 0.1
    assert calls["single texts, stored neighbors (TestNUC-S)"] == 1
    assert calls["single texts, early exit"] > 1
    assert calls["single texts, early exit"] <= calls["single texts, each neighbor once (computed)"]
    usd = {way: row["usd per 1,000 texts"] for way, row in rows.items()}
    assert usd["plain prompting"] > 0
    for way in ("a batch as its own pool", "a batch as its own pool, 10 texts per call"):
        lane = f"{way}, batch lane"
        assert calls[lane] == calls[way]
        assert usd[lane] == pytest.approx(usd[way] / 2, rel=0.01)


def test_cost_names_a_wrong_folder(tmp_path):
    code, _, err = bench("cost", "--data", tmp_path)
    assert code == 1
    assert "does not exist" in err
