"""``testnuc report``: from the file that ``classify`` wrote to the page, and to better votes."""

from __future__ import annotations

import json

import pytest

import testnuc
from testnuc.testing import LoopbackLLM
from tests.cli.in_process import run_here
from tests.conftest import LABELS, confident, gold, messages
from tests.report.test_report import data_of


def classified(tmp_path, name, *options, rows=None):
    texts = messages(24)
    source, target = tmp_path / "in.jsonl", tmp_path / name
    rows = rows or [{"message": text, "id": i} for i, text in enumerate(texts)]
    source.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    with LoopbackLLM(confident) as llm:
        arguments = ["classify", source, "--labels", ",".join(LABELS), "--model", "openai/test"]
        arguments += ["--base-url", llm.base_url, "--text-column", "message", "-o", target]
        code, _, err = run_here(*arguments, "--policy", "weighted", *options)
    assert code == 0, err
    return target


def reported(*arguments):
    code, out, err = run_here("report", *arguments)
    assert (code, out) == (0, ""), err
    return err


def test_a_full_file_has_all_there_is_to_see(tmp_path):
    results, page = classified(tmp_path, "out.jsonl", "--full"), tmp_path / "report.html"
    err = reported(results, "-o", page, "--text-column", "message", "--title", "<Tickets>")
    assert err == f"24 texts, written to {page}\n"
    data = data_of(page.read_text(encoding="utf-8"))
    assert "<title>&lt;Tickets&gt;</title>" in page.read_text(encoding="utf-8")
    assert (data["model"], data["usage"]["calls"], data["total"]) == ("openai/test", 24, 24)
    assert data["labels"][: data["choices"]] == LABELS
    first = data["rows"][0]
    assert data["texts"][first["x"]] == messages(1)[0]
    assert len(first["k"]) == 10
    assert first["v"]
    records = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    assert [record["id"] for record in records[:-1]] == list(range(24))
    assert records[-1]["nuc_run"]["usage"]["calls"] == 24


def test_the_likely_column_of_another_file_is_taken_and_noted(tmp_path):
    results = classified(tmp_path, "out.csv").rename(tmp_path / "moved.csv")
    # as it is, it would be known by its content
    results.write_text(results.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    err = reported(results, "-o", tmp_path / "report.html")
    assert f"note: the texts of {results} are read from the column 'message'" in err


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl", "out.parquet"])
def test_another_file_has_less_and_that_is_said(tmp_path, name):
    results, page = classified(tmp_path, name), tmp_path / "report.html"
    # the run's column of texts is known
    err = reported(results, "-o", page)
    assert "--text-column" not in err
    code, _, err_ = run_here("report", results, "-o", page, "--text-column", "id")
    assert (code, "from the column 'message'" in err_) == (2, True)
    assert (
        "holds no neighbors and votes; write them with `testnuc classify --full -o FILE.jsonl`"
        in err
    )
    data = data_of(page.read_text(encoding="utf-8"))
    assert data["usage"] is None
    assert [data["labels"][row["o"]] for row in data["rows"]] == list(map(gold, messages(24)))


def test_the_labels_of_the_run_can_be_chosen(tmp_path):
    results, page = classified(tmp_path, "out.csv"), tmp_path / "report.html"
    labels = tmp_path / "labels.json"
    labels.write_text(json.dumps({**dict.fromkeys(LABELS, "common"), "never said": "rare"}))
    reported(results, "-o", page, "--text-column", "message", "--labels", labels)
    data = data_of(page.read_text(encoding="utf-8"))
    assert data["labels"][: data["choices"]] == [*LABELS, "never said"]
    assert data["descriptions"] == ["common"] * len(LABELS) + ["rare"]
    assert data["then"] == (
        f"testnuc learn {results} marks.json --text-column message --labels {labels}"
    )


def test_lines_within_a_text_are_no_lines_of_the_file(tmp_path):
    odd = [f"{text} one\u2028two\x85three\x0cfour" for text in messages(24)]
    rows = [{"message": text} for text in odd] + [{"message": "  "}, {"message": None}]
    results = classified(tmp_path, "out.jsonl", "--full", rows=rows)
    read = testnuc.Results.from_jsonl(results, text_column="message")
    assert [row.text for row in read] == [*odd, "  ", ""]
    assert "is empty" in str(read[24].error)


@pytest.mark.parametrize(
    ("file", "options", "says"),
    [
        (None, [], "there is no file"),
        ("results.txt", [], "has no texts with labels"),
        ("results.docx", [], "is not an SQLite file"),
        ("results.jsonl", ["-o", "report.pdf"], "name a .html or .htm file"),
        ("results.jsonl", ["-o", "no/such/report.html"], "no folder no/such; create it first"),
        ("results.jsonl", ["--text-column", "body"], "did you mean --text-column 'text'?"),
        ("results.jsonl", ["--rows", "0"], "'--rows'"),
        ("results.csv", [], "has no field 'nuc_label'"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(tmp_path, file, options, says):
    content = "text,x\na,1\n" if file == "results.csv" else '{"text": "a", "nuc_label": "b"}\n'
    if file is not None:
        (tmp_path / file).write_text(content)
    code, out, err = run_here("report", file or "missing.jsonl", *options)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "report.html").exists()
