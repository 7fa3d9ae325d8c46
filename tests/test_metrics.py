"""Scores of texts with one label or several, against scikit-learn, and on the command line."""

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
def test_scores_of_several_labels_are_those_of_scikit_learn(seed):
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


@pytest.mark.parametrize("seed", range(20))
def test_scores_are_those_of_scikit_learn(seed):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    names = [f"label {i}" for i in range(int(rng.integers(2, 7)))]
    n = int(rng.integers(1, 60))
    right = [str(x) for x in rng.choice(names[: max(1, len(names) - 1)], n)]
    said = [str(x) if rng.random() < 0.9 else None for x in rng.choice(names, n)]
    scores = score(right, said)
    assert scores.accuracy == pytest.approx(
        np.mean([a == b for a, b in zip(right, said, strict=True)])
    )
    labels = sorted({*right, *(s for s in said if s is not None)})
    filled = ["nothing" if s is None else s for s in said]
    expected = metrics.precision_recall_fscore_support(
        right, filled, labels=labels, zero_division=0
    )
    for i, of in enumerate(scores.per_class):
        assert (of.label, of.support) == (labels[i], expected[3][i])
        assert (of.precision, of.recall, of.f1) == pytest.approx([e[i] for e in expected[:3]])
    assert scores.macro_f1 == pytest.approx(np.mean(expected[2]))
    assert scores.unlabeled == said.count(None)


def test_the_calibration_error_by_hand():
    right, said = ["a"] * 4 + ["b"] * 2, ["a", "a", "b", "b", "b", None]
    # 0.95 twice, right both times; 0.55 three times, right once; without a label: not counted
    scores = score(right, said, [0.95, 0.95, 0.55, 0.55, 0.55, 0.99])
    assert scores.with_confidence == 5
    assert scores.calibration_error == pytest.approx((2 * 0.05 + abs(3 * 0.55 - 1)) / 5)
    assert score(right, said).calibration_error is None
    assert score(right, said, [None] * 6).calibration_error is None
    assert score(["a"], ["a"], [1.0]).calibration_error == 0


def test_unknown_labels_are_errors():
    found = score([["a"], []], [None, None])
    assert (found.unlabeled, found.micro_f1, found.jaccard, found.exact_match) == (2, 0, 0, 0)
    with pytest.raises(InvalidInputError, match="gold has 1 labels"):
        score([["a"]], [])
    with pytest.raises(InvalidInputError, match="no text has a gold label"):
        score([], [])


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
