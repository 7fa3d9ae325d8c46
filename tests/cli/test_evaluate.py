"""``testnuc evaluate`` and ``testnuc diagnose``."""

from __future__ import annotations

import csv
import json

import pytest

from testnuc.testing import LoopbackLLM
from tests.cli.in_process import ran, run_here
from tests.conftest import LABELS, confident, gold, messages


def labeled(path, n=60, wrong=(), **more):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", *more])
        for i, text in enumerate(messages(n)):
            writer.writerow([text, LABELS[0] if i in wrong else gold(text), *more.values()])
    return path


def options(llm, **more):
    given = {"model": "openai/test", "base-url": llm.base_url, "policy": "weighted", **more}
    return [part for name, value in given.items() for part in (f"--{name}", value)]


def test_a_labeled_file_is_labeled_and_scored(tmp_path):
    source, scores = labeled(tmp_path / "in.csv", wrong=(1, 4)), tmp_path / "scores.json"
    with LoopbackLLM(confident) as llm:
        out, _ = ran("evaluate", source, *options(llm), "-o", scores)
        assert llm.calls == 60
    assert "accuracy" in out
    assert "macro-F1" in out
    assert "calibration error" in out
    held = json.loads(scores.read_text())
    # the LLM is right, the person is not in two of sixty
    assert held["alone"]["accuracy"] == pytest.approx(58 / 60)
    assert [of["label"] for of in held["voted"]["per_class"]] == sorted(LABELS)
    assert held["alone"]["calibration_error"] > 0


def test_results_with_a_column_of_right_labels_are_scored_without_a_call(tmp_path):
    source, results = labeled(tmp_path / "in.csv"), tmp_path / "results.csv"
    with LoopbackLLM(confident) as llm:
        given = [*options(llm), "--labels", ",".join(LABELS)]
        run_here("classify", source, *given, "-o", results)
        calls = llm.calls
        out, err = ran("evaluate", results, *options(llm))
        assert llm.calls == calls
    assert "no call was made" in err
    assert "1.000" in out


def test_results_are_scored_by_the_column_of_texts_that_their_run_read(tmp_path):
    source, results = tmp_path / "in.csv", tmp_path / "results.csv"
    source.write_text(labeled(tmp_path / "text.csv").read_text().replace("text,", "message,", 1))
    with LoopbackLLM(confident) as llm:
        given = [*options(llm), "--labels", ",".join(LABELS), "--text-column", "message"]
        run_here("classify", source, *given, "-o", results)
        code, out, err = run_here("evaluate", results, *options(llm))
    assert code == 0, err
    assert "1.000" in out


def test_errors_are_raised_before_any_call(tmp_path):
    source = labeled(tmp_path / "in.csv", wrong=(3,))
    empty = tmp_path / "empty.csv"
    empty.write_text("text,label\nhello,\nthere,\n")
    broken = tmp_path / "broken.csv"
    broken.write_text("text,label\nhello,[refund\nthere,login\n")
    with LoopbackLLM(confident) as llm:
        for file, more, says in (
            (source, ["--label-column", "intent"], "no column 'intent'; it has 'text', 'label'"),
            (source, ["--labels", "delivery,login"], "'refund' in column 'label' is not one of"),
            (source, ["-o", "scores.csv"], "name a .json file"),
            (source, ["-o", "no/such/scores.json"], "no folder"),
            (empty, [], "no label in column 'label'"),
            (broken, ["--multilabel"], "begins with [ and is not a JSON list"),
            (tmp_path / "nowhere.csv", [], "there is no file"),
        ):
            code, out, err = run_here("evaluate", file, *options(llm), *more)
            assert (code, out) == (2, ""), err
            assert says in err
            assert len(err.strip().splitlines()) == 1
        code, out, _ = run_here("evaluate", source, *options(llm), "--dry-run")
        assert code == 0
        assert "nothing was sent" in out
        assert llm.requests == 0


@pytest.mark.slow
def test_diagnose_results_and_stores(tmp_path):
    source, results = labeled(tmp_path / "in.csv", 240), tmp_path / "results.jsonl"
    store = tmp_path / "labels.db"
    with LoopbackLLM(confident) as llm:
        given = options(llm)[:4]
        more = ["--labels", ",".join(LABELS), "--store", store, "--policy", "weighted"]
        ran("classify", source, *given, *more, "-o", results)
        calls = llm.calls
        of_file, _ = ran("diagnose", results, "--store", tmp_path / "new.db")
        assert "testnuc review" in of_file
        code, of_file, err = run_here("diagnose", results, "--store", store)
        assert (code, "embedded" in err) == (0, False), err
        of_store, _ = ran("diagnose", store, *given, "--labels", ",".join(LABELS))
        # the same predictions, the same neighbors, the same finding
        assert of_file.partition("testnuc review")[0] == of_store.partition("testnuc review")[0]
        assert f"testnuc review {results} -n 50 --store {store}" in of_file
        assert "240 predictions" in of_file
        assert "agreement of near copies: " in of_file
        for arguments, says in (
            ((store, "--labels", "a,b"), f"240 answers, openai/test at {llm.base_url}, 3 labels"),
            ((store, *given, "--labels", "a,b"), "no answer of openai/test with these labels"),
            ((tmp_path / "nowhere.db",), "check the path"),
            ((source,), "does not hold the label set; name it with --labels"),
            ((results,), f"its run named: add --store {store};"),
            ((results, "--store", store, "--plot", "x.doc"), "name a .png"),
            ((results, "--store", store, "--plot", "no/such/x.png"), "no folder"),
        ):
            code, out, err = run_here("diagnose", *arguments)
            assert (code, out) == (2, ""), err
            assert says in err
        assert llm.calls == calls
    pytest.importorskip("matplotlib")
    picture = tmp_path / "found.png"
    ran("diagnose", results, "--store", store, "--plot", picture)
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_judged_texts_are_not_scored_by_their_judgments(tmp_path):
    given = tmp_path / "given.csv"
    rows = [("one", "a", "a", "person"), ("two", "a", "b", "vote"), ("three", "a", "a", "vote")]
    lines = [",".join(row) for row in [("text", "label", "nuc_label", "nuc_source"), *rows]]
    given.write_text("\n".join(lines) + "\n")
    scores = tmp_path / "scores.json"
    _, err = ran("evaluate", given, "-o", scores)
    assert "1 judged texts are left out" in err
    assert json.loads(scores.read_text())["voted"]["accuracy"] == 0.5
    given.write_text("\n".join(lines[:2]) + "\n")
    code, _, err = run_here("evaluate", given)
    assert code != 0
    assert "a person judged all 1 labeled texts" in err


def test_labels_that_a_store_has_with_descriptions_are_not_paid_for_again(tmp_path):
    source, store = labeled(tmp_path / "in.csv", 24), tmp_path / "labels.db"
    described = tmp_path / "labels.json"
    described.write_text(json.dumps({label: f"about {label}" for label in LABELS}))
    with LoopbackLLM(confident) as llm:
        given = [*options(llm)[:4], "--store", store]
        ran("classify", source, *given, "--labels", described)
        calls = llm.calls
        _, err = ran("evaluate", source, *given)
        assert "the labels are those of run 1, " in err
        assert llm.calls == calls == 24
