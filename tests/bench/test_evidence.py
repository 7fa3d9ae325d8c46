"""bench evidence runs on recorded answers of two models and prints every part."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bench import certificates, evidence
from bench._judged import Judge
from bench._recorded import read_recorded
from testnuc.testing import HashEmbedder
from tests.conftest import LABELS, gold, messages

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path, monkeypatch):
    texts = messages(160)
    where = tmp_path / "predictions"
    where.mkdir()
    for name, every in (("weak", 3), ("strong", 9)):
        with (where / f"tickets.{name}.jsonl").open("w") as file:
            for i, text in enumerate([*texts, texts[0]]):
                right = LABELS.index(gold(text))
                said = LABELS[(right + (i % every == 0)) % len(LABELS)]
                said = "something else" if i == 5 else said
                row = {"text": text, "gold": gold(text), "prediction": said}
                file.write(json.dumps(row) + "\n")

    async def embedded(texts, model):
        return (await HashEmbedder().embed(texts)).astype(np.float16)

    monkeypatch.setattr("bench._recorded._embed", embedded)
    return tmp_path


def test_every_part_is_printed_and_written(folder, capsys):
    out = folder / "out.json"
    given = ["--data", str(folder), "--cache", str(folder / "cache"), "--json", str(out)]
    evidence.main([*given, "--draws", "2", "--jobs", "1"])
    rows = json.loads(out.read_text())["rows"]
    assert {row["part"] for row in rows} == {
        "judgments", "random", "plain", "trust", "accuracy", "by label", "macro F1",
        "certificates", "later", "errors", "referee",
    }  # fmt: skip
    pairs = [row["pair"] for row in rows if row["part"] == "referee"]
    assert pairs == ["tickets.weak -> strong"]
    assert "tickets.weak" in capsys.readouterr().out
    assert list((folder / "cache").glob("tickets.*.npy"))


def test_certificates_of_worlds_at_the_boundary_are_counted(capsys):
    certificates.main(["--runs", "3", "--texts", "300", "--draws", "60"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(rows) == 6
    # its most trusted texts are wrong
    assert [cell.strip() for cell in rows[-1].split("|")[1:3]] == ["trust is upside down", "0"]


def test_a_folder_without_answers_is_named(tmp_path):
    with pytest.raises(SystemExit, match="no such"):
        evidence.main(["--data", str(tmp_path)])


def test_duplicates_are_removed_and_other_answers_abstain(folder):
    data = read_recorded(folder / "predictions" / "tickets.weak.jsonl", folder / "c", "any")
    assert len(data.gold) == len(set(messages(160)))
    assert data.texts.own[5] == -1
    small = data.part(np.arange(50))
    assert small.texts.neighbors.max() < 50


def test_the_default_review_knows_its_probabilities(folder):
    judge = Judge(read_recorded(folder / "predictions" / "tickets.weak.jsonl", folder, "any"))
    n = len(judge.data.gold)
    rows, draws = judge.mixture(0, n)
    assert sorted(rows) == list(range(n))
    assert (draws.floor >= 0.2 / n - 1e-12).all()
    assert draws.probability[-1] == pytest.approx(1)
