"""``testnuc describe``: a page for a methods section, and the store that repeats a run."""

import csv
import datetime as dt
import hashlib
import io
import shutil
from pathlib import Path

import pytest

from testnuc.testing import LoopbackLLM
from tests.cli.in_process import run_here
from tests.cli.test_judging import TEXTS, judged, options, wrong_at_random


@pytest.fixture
def labeled(tmp_path, monkeypatch):
    """Labeled texts of a folder, of which 90 are judged."""
    monkeypatch.chdir(tmp_path)
    with Path("tickets.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for text in TEXTS)])
    with LoopbackLLM(wrong_at_random) as llm:
        assert run_here("classify", "tickets.csv", *options(llm), "-o", "out.csv")[0] == 0
        assert run_here("review", "out.csv", "-n", "90", "--goal", "count")[0] == 0
        judged("review.json")
        assert run_here("learn", "out.csv", "review.json")[0] == 0
        yield llm


@pytest.mark.slow
def test_a_page_says_how_labels_were_made(labeled):
    code, prompt, err = run_here("classify", "tickets.csv", *options(labeled), "--show-prompt")
    assert code == 0, err
    assert TEXTS[0] in prompt
    shutil.copy("review.json", "other.json")
    code, page, err = run_here("describe", "out.csv", "review.json", "other.json")
    assert code == 0, err
    for said in (
        f"Answers of {dt.datetime.now(dt.UTC).date()}",
        "the provider reported `",
        "240 texts (240 distinct) were labeled by the LLM `openai/test` at temperature 0.7",
        "90 of them were drawn at random and judged by people",
        "| refund |",
        "90 of 90 at random from all",
        "Certificate: ",
        "Krippendorff's alpha",
        "95% intervals: each interval alone",
        "- numpy ",
    ):
        assert said in page
    assert not any(text in page for text in TEXTS)
    shown = prompt.rstrip("\n").replace(TEXTS[0], "..")
    assert hashlib.sha256(shown.encode()).hexdigest() in page
    assert shown in page
    code, out, _ = run_here("describe", "out.csv", "-o", "methods.md")
    assert (code, out) == (0, "")
    assert "Krippendorff" not in Path("methods.md").read_text()
    assert run_here("describe", "out.csv", "-o", "methods.txt")[0] == 2


@pytest.mark.slow
def test_another_person_with_the_store_repeats_labels_and_numbers_without_a_call(labeled):
    calls = labeled.calls
    first = [run_here(command, "out.csv")[1] for command in ("count", "describe")]
    other = Path("other")
    other.mkdir()
    shutil.copy("tickets.csv", other)
    shutil.copy(next(Path(".testnuc").glob("**/*.db")), other / "answers.db")
    store = ["--store", "other/answers.db"]
    file, out = str(other / "tickets.csv"), str(other / "again.csv")
    code, _, err = run_here("classify", file, *options(labeled), *store, "-o", out)
    assert code == 0, err
    run_here("learn", "out.csv", "review.json", "-o", "relabeled.csv")
    columns = [
        [row["nuc_label"] for row in csv.DictReader(io.StringIO(Path(name).read_text()))]
        for name in ("relabeled.csv", out)
    ]
    assert columns[0] == columns[1]
    again = [run_here(command, out, *store)[1] for command in ("count", "describe")]
    assert again == first
    assert labeled.calls == calls
