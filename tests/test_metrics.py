"""Scores of texts with several labels, against scikit-learn, and on the command line."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from testnuc.errors import InvalidInputError
from testnuc.metrics import score
from testnuc.testing import LoopbackLLM
from tests._engine.test_multilabel import labels_of
from tests.cli.in_process import ran
from tests.conftest import LABELS, messages


@pytest.mark.parametrize("seed", range(20))
def test_scores_equal_those_of_scikit_learn(seed):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    gold, given = rng.random((2, 30, 5)) < 0.4
    # a label that occurs nowhere has no F1
    gold[0] = True
    names = np.array(list("abcde"))
    found = score([names[row] for row in gold], [names[row] for row in given])
    assert found.micro_f1 == pytest.approx(metrics.f1_score(gold, given, average="micro"))
    assert found.macro_f1 == pytest.approx(metrics.f1_score(gold, given, average="macro"))
    assert found.exact_match == pytest.approx(metrics.accuracy_score(gold, given))
    jaccard = metrics.jaccard_score(gold, given, average="samples", zero_division=1.0)
    assert found.jaccard == pytest.approx(jaccard)
    assert [of.support for of in found.per_class] == gold.sum(axis=0).tolist()


def test_unknown_labels_are_errors():
    found = score([["a"], []], [None, None])
    assert (found.unlabeled, found.micro_f1, found.jaccard, found.exact_match) == (2, 0, 0, 0)
    with pytest.raises(InvalidInputError, match="gold has 1 labels"):
        score([["a"]], [])


def written(path, gold):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(gold)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_the_command_line_labels_and_scores(tmp_path, suffix):
    texts = messages(30)
    gold = [list(labels_of(text)) for text in texts]
    rows = [(t, "; ".join(g) if g else "[]") for t, g in zip(texts, gold, strict=True)]
    source = written(tmp_path / "in.csv", rows)
    results, scores = tmp_path / f"out{suffix}", tmp_path / "scores.json"
    with LoopbackLLM(labels_of) as llm:
        given = ["--model", "openai/test", "--base-url", llm.base_url, "--multilabel", "--k", "3"]
        given += ["--policy", "weighted"]
        ran("classify", source, "--labels", ",".join(LABELS), *given, "-o", results)
        ran("evaluate", source, *given, "-o", scores)
        labeled = json.loads(scores.read_text())
        calls = llm.calls
        out, _ = ran("evaluate", results, *given, "-o", scores, "--overwrite")
        assert llm.calls == calls
    assert "exact match" in out
    held = json.loads(scores.read_text())
    assert held == labeled
    assert held["alone"]["exact_match"] == held["alone"]["micro_f1"] == 1
    assert 0 < held["voted"]["micro_f1"] < 1
    if suffix == ".jsonl":
        first = json.loads(results.read_text().splitlines()[1])
        assert first["nuc_own_labels"] == gold[1]
        assert set(first["nuc_labels"]) == set(first["nuc_trusts"])
