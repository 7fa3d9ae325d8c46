"""The benchmarks run, check themselves, and say what is wrong with their input."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from testnuc.testing import HashEmbedder
from tests.conftest import LABELS, gold, messages


def bench(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "bench", *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


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


def test_paper_names_wrong_paths(recorded):
    folder, predictions, _ = recorded
    code, _, err = bench("paper", "--data", folder, "--predictions", folder / "nowhere")
    assert code == 1
    assert "there is no file of predictions" in err
    code, _, err = bench("paper", "--data", folder, "--predictions", predictions)
    assert code == 1
    assert "there is no dataset" in err


def test_the_list_of_benchmarks():
    code, _, err = bench()
    assert code == 1
    assert "paper" in err
    code, _, err = bench("nothing")
    assert "there is no benchmark 'nothing'" in err


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
