"""Reviews, learning, certificates and the page where a text has several labels."""

import json
import shutil
from pathlib import Path

import pytest

from testnuc.cli.answered_texts import with_empty_set
from testnuc.labels import LabelSet, as_stored
from testnuc.testing import LoopbackLLM
from testnuc.trust.review import Review
from testnuc.types import Classification, Prediction
from tests.cli.in_process import judge, ran, run_here
from tests.cli.test_judging import LABELS, TEXTS, true_label
from tests.report.test_report import data_of


def true_labels(text):
    number = int(text.split("#")[1])
    if number % 8 == 7:
        return []
    first = LABELS.index(true_label(text))
    return sorted({LABELS[first], LABELS[(first + 1) % 3]} if number % 2 else {LABELS[first]})


def says(text):
    """Misses the second of two labels."""
    return dict.fromkeys(true_labels(text)[:1], 0.9)


@pytest.fixture
def tickets():
    rows = (f"{text},{'; '.join(reversed(true_labels(text)))}" for text in TEXTS[:80])
    Path("tickets.csv").write_text("\n".join(["text,right", *rows]))
    return "tickets.csv"


@pytest.mark.slow
@pytest.mark.parametrize("output", ["labeled.csv", "labeled.jsonl"])
def test_a_file_is_judged_learned_from_and_certified(tickets, output):
    full = ["--full"] if output.endswith(".jsonl") else []
    with LoopbackLLM(says) as llm:
        _, err = ran(
            "classify", tickets, "-o", output, *full, "--multilabel", "--labels", ",".join(LABELS),
            "--model", "openai/test", "--base-url", llm.base_url, "--k", "3",
        )  # fmt: skip
        calls = llm.calls
    # the options of the run are known
    assert "exact match" in ran("evaluate", output, "--label-column", "right")[0]
    assert f"testnuc review {output} -n 50" in err
    ran("review", output, "-n", "30", "--no-open")
    assert data_of(Path("review.html").read_text("utf-8"))["several"] is True
    judged = {item.text: set(true_labels(item.text)) for item in judge("review.json", true_labels)}
    out, _ = ran("learn", output, "review.json", "-o", "better.jsonl")
    assert "30 of 80 texts are judged" in out
    rows = list(map(json.loads, Path("better.jsonl").read_text("utf-8").splitlines()))
    rows = [row for row in rows if row.get("text") in judged]
    assert len(rows) == 30
    assert all(set(row["nuc_labels"]) == judged[row["text"]] for row in rows)
    assert {row["nuc_source"] for row in rows} == {"person"}
    _, err = ran("certify", output, "--accuracy", "0.5")
    assert "exactly its labels" in err
    code, out, err = run_here("certify", output, "--label", "login", "-o", "sure.jsonl")
    assert code in {0, 3}, err
    assert "label 'login'" in out or "not certified" in out
    code, _, err = run_here("unlearn", output)
    assert (code, "dropped" in err) == (0, True)
    ran("report", output, "-o", "page.html")
    data = data_of(Path("page.html").read_text("utf-8"))
    assert data["several"] is True
    assert set(data["labels"][: data["choices"]]) == set(LABELS)
    assert llm.calls == calls


@pytest.mark.slow
def test_sets_are_answered_in_the_terminal(tickets, monkeypatch):
    with LoopbackLLM(says) as llm:
        ran(
            "classify", tickets, "--store", "answers.db", "-o", "labeled.csv", "--multilabel",
            "--labels", ",".join(LABELS), "--model", "openai/test", "--base-url", llm.base_url,
            "--limit", "20", "--k", "3",
        )  # fmt: skip
    lines = iter(["refund, log", "0", "weather", "9,1", "", "q"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    _, err = ran("review", "answers.db", "-n", "3", "--answer")
    assert [item.answer for item in Review.load("review.json")] == ["refund; login", "", None]
    assert "no label begins with 'weather'" in err
    assert "several labels, separated by commas" in err
    out, _ = ran("learn", "answers.db", "review.json")
    assert "2 of 20 texts are judged" in out


@pytest.mark.parametrize("output", ["labeled.csv", "labeled.jsonl"])
def test_answers_outside_the_labels_do_not_damage_another_store(tickets, output):
    def says_banana(text):
        return {"banana": 0.9} if int(text.split("#")[1]) % 6 == 5 else says(text)

    with LoopbackLLM(says_banana) as llm:
        options = ["--multilabel", "--labels", ",".join(LABELS), "--model", "openai/test"]
        options += ["--base-url", llm.base_url]
        ran("classify", tickets, "-o", output, *options)
        shutil.rmtree(f"{output}.resume")
        shutil.rmtree(".testnuc")
        elsewhere = [*options, "--store", "shared.db"]
        ran("review", output, *elsewhere, "-n", "5", "--no-open")
        sent = llm.requests
        ran("classify", tickets, "-o", "again.csv", *elsewhere)
        assert llm.requests == sent


def test_the_labels_of_the_llm_are_read_from_a_file_without_a_column_for_them():
    """A short CSV file has them in one string."""
    said = Prediction("refund; login", 0.9, "banana")
    found = with_empty_set(Classification(0, "a text", "refund", prediction=said, source="llm"))
    assert found.own_labels == ("refund", "login")
    stored = LabelSet(LABELS, multilabel=True).restored(as_stored(found.prediction))
    assert (stored.labels, stored.unmatched) == (("refund", "login"), ("banana",))
