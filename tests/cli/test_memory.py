"""The store beside an output: nothing that was paid for is lost, whoever writes the output."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from testnuc.cli.memory import AnswerStore
from testnuc.testing import LoopbackLLM
from tests.cli.in_process import command_line, run_here
from tests.conftest import LABELS, confident, messages


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def options(llm):
    return ["--labels", ",".join(LABELS), "--model", "openai/test", "--base-url", llm.base_url]


def texts(name, start, n=30):
    Path(name).write_text("\n".join(messages(start + n)[start:]))
    return name


def classify(llm, file, *more, key="test-key"):
    return run_here("classify", file, *options(llm), "-o", "out.csv", *more, key=key)


def test_an_output_of_which_nothing_is_known_is_not_replaced_for_a_new_store():
    first = texts("a.txt", 0)
    with LoopbackLLM(confident, api_key="test-key") as llm:
        assert classify(llm, first)[0] == 0
        shutil.rmtree("out.csv.resume")
        for _ in range(2):
            code, _, err = classify(llm, first, "--store", "other.db")
            assert (code, "out.csv exists; add --overwrite" in err) == (2, True)
        assert llm.calls == 30


def files():
    """Return the content of all files here, but for what SQLite keeps of an open store."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path().rglob("*"))
        if path.is_file() and not path.name.endswith(("-wal", "-shm"))
    }


def test_answers_to_other_texts_are_kept_and_found_again():
    first, second = texts("a.txt", 0), texts("b.txt", 30)
    with LoopbackLLM(confident, api_key="test-key") as llm:
        assert classify(llm, first)[0] == 0
        before = files()
        # nothing succeeds, so nothing that is there changes
        code, _, err = classify(llm, second, "--overwrite", key="wrong-key")
        assert code == 1, err
        assert before.items() <= files().items()
        assert classify(llm, second, "--overwrite")[0] == 0
        assert llm.calls == 60
        for file in (first, second, first):
            code, _, err = classify(llm, file, "--overwrite")
            assert (code, llm.calls) == (0, 60), err
            assert "30 stored" in err


def test_what_was_learned_of_other_texts_is_found_again():
    first, second = texts("a.txt", 0), texts("b.txt", 30)
    Path("judged.csv").write_text(
        "text,right_label\n" + "\n".join(f"{text},delivery" for text in messages(30))
    )
    with LoopbackLLM(confident) as llm:
        assert classify(llm, first)[0] == 0
        code, _, err = run_here("learn", "out.csv", "judged.csv")
        assert code == 0, err
        assert classify(llm, second, "--overwrite")[0] == 0
        learned = "nothing was learned"
        assert learned in run_here("certify", "out.csv")[2]
        assert classify(llm, first, "--overwrite")[0] == 0
        assert learned not in run_here("certify", "out.csv")[2]


def test_an_interrupted_run_on_other_texts_is_resumed():
    first, second = texts("a.txt", 0), texts("b.txt", 30)
    with LoopbackLLM(confident) as llm:
        assert classify(llm, first)[0] == 0
        code, _, err = classify(llm, second, "--overwrite", "--limit", "10", "-o", "other.csv")
        assert (code, llm.calls) == (0, 40), err
        # the last -o counts: its store is another one
        code, _, err = classify(llm, second, "--overwrite", "--limit", "10")
        assert (code, llm.calls) == (0, 50), err
        assert classify(llm, first, "--overwrite")[0] == 0
        code, _, err = classify(llm, second, "--overwrite")
        assert (code, llm.calls) == (0, 70), err


def test_a_note_names_no_store_elsewhere():
    texts("a.txt", 0)
    Path("out.csv.resume").mkdir()
    for name in ("../elsewhere.db", "/etc/passwd", "answers.db/../../x.db", 7, None):
        Path("out.csv.resume/output.json").write_text(f'{{"store": {name!r}}}'.replace("'", '"'))
        store = AnswerStore.of(None, "out.csv").where
        assert store == os.path.join("out.csv.resume", "answers.db")  # noqa: PTH118


def _linked(name, to):
    os.link(to, name)
    return name


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("classify a.txt --labels a,b --store new.csv -o new.csv", ("--output", "--store")),
        ("classify a.txt --labels a,b --store ./x/../new.csv -o new.csv", ("--output", "--store")),
        ("classify a.txt --labels a,b --store link.csv -o old.csv", ("--output", "--store")),
        ("classify a.txt --labels l.txt -o l.txt --overwrite", ("--labels", "--output")),
        ("classify a.txt --labels l.txt --store l.txt", ("--labels", "--store")),
        ("classify a.txt --labels a,b -o a.txt --overwrite", ("FILE", "--output")),
        ("classify a.txt --labels a,b -o testnuc.toml --overwrite", ("--config", "--output")),
        ("--config my.csv classify a.txt --labels a,b -o my.csv", ("--config", "--output")),
        ("classify a.txt --labels a,b --store a.txt", ("FILE", "--store")),
        ("evaluate old.csv -o old.csv --overwrite", ("FILE", "--output")),
        ("learn old.csv judged.csv -o judged.csv --overwrite", ("REVIEW|MARKS..", "--output")),
        ("diagnose old.csv --plot old.csv", ("RESULTS|STORE", "--plot")),
        ("distill old.csv --labels a.head -o a.head", ("--labels", "--output")),
    ],
)
def test_no_file_is_two_of_the_files_of_a_command(command, names):
    Path("x").mkdir()
    for name in ("a.txt", "l.txt", "old.csv", "judged.csv", "a.head"):
        Path(name).write_text("text,label\none,a\n")
    Path("testnuc.toml").write_text("")
    Path("my.csv").write_text("")
    _linked("link.csv", "old.csv")
    before = files()
    code, _, err = run_here(*command.split())
    assert code == 2
    assert "{} and {} are one file".format(*names) in err
    assert files() == before


def test_a_store_that_is_no_store_is_not_changed():
    file = texts("a.txt", 0)
    Path("notes.txt").write_text("my notes")
    with LoopbackLLM(confident) as llm:
        code, _, err = classify(llm, file, "--store", "notes.txt")
        assert (code, llm.calls) == (2, 0)
    assert "notes.txt is not an SQLite file and was not changed" in err
    assert Path("notes.txt").read_text() == "my notes"


def test_runs_at_once_disturb_each_other_in_nothing():
    """Several processes, some with a wrong key, on the same and on other texts."""
    root = str(Path(__file__).parents[2])
    first, second = texts("a.txt", 0), texts("b.txt", 30)
    with LoopbackLLM(confident, api_key="test-key", latency=0.01) as llm:
        assert classify(llm, texts("c.txt", 60), "--overwrite")[0] == 0
        replacing = ("-o", "out.csv", "--overwrite")
        running = [
            subprocess.Popen(
                command_line("classify", file, *options(llm), *replacing),
                env={**os.environ, "OPENAI_API_KEY": key, "PYTHONPATH": root},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            for file in (first, second)
            for key in ("test-key", "wrong-key")
        ]
        for number, process in enumerate(running):
            _, err = process.communicate()
            # the answers of the other process may be some or all that a wrong key needs
            assert number % 2 or process.returncode == 0, err
        assert llm.calls == 90
        for file in ("c.txt", first, second):
            code, _, err = classify(llm, file, "--overwrite")
            assert (code, llm.calls) == (0, 90), err
