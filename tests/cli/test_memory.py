"""The stores of runs: nothing that was paid for is lost, and what was learned is found again."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from testnuc.cli.memory import AnswerStore, RunNote, _mark, _name_of
from testnuc.cli.options import client_options
from testnuc.testing import HashEmbedder, LoopbackLLM
from testnuc.types import Classification
from tests.cli.in_process import command_line, ran, rows_of, run_here
from tests.conftest import LABELS, confident, gold, messages


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
        before = Path("out.csv").read_bytes()
        code, _, err = classify(llm, second, "--overwrite", key="wrong-key")
        assert (code, Path("out.csv").read_bytes()) == (1, before), err
        assert classify(llm, second, "--overwrite")[0] == 0
        assert llm.calls == 60
        for file in (first, second, first):
            code, _, err = classify(llm, file, "--overwrite")
            assert (code, llm.calls) == (0, 60), err
            assert "30 stored" in err


def judge(*sources, labels=("delivery",) * 30):
    """Learn from marks of the first texts."""
    rows = [f"{text},{label}" for text, label in zip(messages(30), labels, strict=True)]
    Path("judged.csv").write_text("\n".join(["text,right_label", *rows]))
    ran("learn", *sources, "judged.csv")


APPLIED = "learned from 30 judgments, last of out.csv: applied"


def test_the_next_file_has_what_was_learned_and_costs_its_new_texts(tmp_path, monkeypatch):
    first, second = texts("a.txt", 0), texts("b.txt", 20)
    Path("folder").mkdir()
    with LoopbackLLM(confident) as llm:
        assert APPLIED not in classify(llm, first)[2]
        judge("out.csv")
        for output in ("new.csv", "folder/new.csv"):
            code, _, err = classify(llm, second, "-o", output)
            assert (code, llm.calls, APPLIED in err) == (0, 50, True), err
            # the judged ones among them
            assert Path(output).read_text().count(",person") == 10
        # later commands find it, from another folder too
        assert "30 judged" not in run_here("certify", "new.csv")[2]
        code, _, err = run_here("review", "new.csv", "-n", "5", "-o", "r.json", "--no-open")
        assert (code, "5 of 50 texts to judge" in err) == (0, True), err
        monkeypatch.chdir(tmp_path / "folder")
        code, _, err = classify(llm, "../b.txt", "-o", "../third.csv")
        assert (code, llm.calls, APPLIED in err) == (0, 50, True), err
        assert not Path(".testnuc").exists()


def test_labels_in_another_encoding_than_the_terminal_s_are_refused():
    Path("a.txt").write_text("one\ntwo")
    code, _, err = run_here("classify", "a.txt", "--labels", "gr\udcfcn,rot", "--model", "openai/t")
    assert code == 2
    assert r"--labels is ['gr\udcfcn', 'rot'], which is not UTF-8; write it in UTF-8" in err


def test_a_named_store_wins():
    first = texts("a.txt", 0)
    with LoopbackLLM(confident) as llm:
        assert classify(llm, first)[0] == 0
        judge("out.csv")
        code, _, err = classify(llm, first, "--store", "own.db", "-o", "own.csv")
        assert (code, llm.calls, "applied" in err) == (0, 60, False), err


@pytest.mark.skipif(sys.platform != "linux", reason="platform: names are UTF-8")
def test_a_named_store_whose_name_is_not_utf_8_ends_no_run():
    with LoopbackLLM(confident) as llm:
        code, _, err = classify(llm, texts("a.txt", 0), "--store", os.fsdecode(b"\xff.db"))
        assert (code, llm.calls) == (0, 30), err
    assert len(rows_of("out.csv")) == 30


def test_the_store_that_a_run_named_is_told():
    """It was forgotten: texts were embedded anew, and a page said that nobody had judged."""
    with LoopbackLLM(confident, api_key="test-key") as llm:
        classify(llm, texts("a.txt", 0), "--store", "labels.db")
        for words in (["count", "out.csv"], ["report", "out.csv", "--summary", "-o", "page.md"]):
            code, _, err = run_here(*words)
            assert (code, "judgments of out.csv are in" in err) == (2, True)
            assert "its run named: add --store labels.db;" in err
        # a page without them contradicted the file
        assert not Path("page.md").exists()
        code, _, err = run_here("count", "out.csv", "--store", "labels.db")
        assert (code, "nothing was judged in out.csv yet" in err) == (2, True)
        assert "its run named" not in err


def test_new_texts_in_old_results_have_no_answer():
    """Labels beside texts that were pasted over others became the LLM's answers to them."""
    with LoopbackLLM(confident, api_key="test-key") as llm:
        classify(llm, texts("a.txt", 0))
        rows, new = rows_of("out.csv"), messages(60)[30:]
        with Path("out.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0]])
            writer.writeheader()
            writer.writerows(row | {"text": text} for row, text in zip(rows, new, strict=True))
        said = "note: 30 texts, as in row 1, were not in out.csv when it was written: "
        for name in ("count", "review", "diagnose"):
            assert said in run_here(name, "out.csv")[2]
        classify(llm, texts("b.txt", 30), "-o", "new.csv")
        assert llm.calls == 60
    assert all(row["nuc_label"] == gold(row["text"]) for row in rows_of("new.csv"))


def test_other_line_ends_are_no_other_texts():
    """What was corrected in them was dropped: spreadsheets write LF within a cell."""
    row = Classification(0, "one\r\ntwo", "refund")
    note = RunNote(rows="".join(_mark(row)))
    (edited,) = note.edited([Classification(0, "one\ntwo", "login")])
    assert edited.label == "login"


def test_texts_that_differ_in_line_ends_alone_may_have_two_labels():
    """One of them counted as edited by a person."""
    rows = [Classification(0, "a\r\nb", "refund"), Classification(1, "a\nb", "login")]
    note = RunNote(rows="".join("".join(_mark(row)) for row in rows))
    assert note.edited(rows) == []
    edited = Classification(1, "a\nb", "delivery")
    assert note.edited([rows[0], edited]) == [edited]


def test_a_file_with_columns_of_ones_own_has_the_run_of_its_texts():
    """Joining the variables of a regression is the usual path; the run was not found."""
    with LoopbackLLM(confident, api_key="test-key") as llm:
        classify(llm, texts("a.txt", 0))
        judge("out.csv", "--at-random")
        rows = [row | {"length": str(len(row["text"]) // 20)} for row in rows_of("out.csv")]

        def write(name, rows):
            with Path(name).open("w", newline="") as file:
                writer = csv.DictWriter(file, [*rows[0]])
                writer.writeheader()
                writer.writerows(rows)

        write("joined.csv", rows[:25])
        out, _ = ran("count", "joined.csv", "--by", "length", key=None)
        assert "5 more texts are judged, of other files" in out
        # one of other labels is another file
        write("other.csv", [row | {"nuc_label": "new"} for row in rows])
        code, _, err = run_here("count", "other.csv", "--by", "length")
        assert (code, "leave texts and labels as they were written" in err) == (2, True)
        assert llm.calls == 30


def test_a_copy_without_the_hidden_folder_is_told():
    with LoopbackLLM(confident, api_key="test-key") as llm:
        classify(llm, texts("a.txt", 0))
        shutil.rmtree(".testnuc")
        _, _, err = run_here("count", "out.csv")
        assert ".db is missing, the store of out.csv" in err
        assert "copy its hidden .testnuc, too" in err
        # what reads makes no empty one
        assert not Path(".testnuc").exists()
        shutil.rmtree("out.csv.resume")
        code, _, err = run_here("count", "out.csv")
        assert (code, "copy the hidden folder .testnuc, too" in err) == (2, True)


@pytest.mark.parametrize(
    ("more", "calls", "says"),
    [
        (["--labels", "refund,delivery,login,other"], 60, "with other labels"),
        (["--labels", "spam,ham"], 60, None),
        (["--model", "openai/other"], 60, "with other model"),
        (["--instructions", "Be strict."], 60, "with other instructions"),
        (["--temperature", "0"], 60, "with other temperature"),
        (["--policy", "majority"], 30, "applied to the judged texts alone, under other vote"),
    ],
)
def test_what_was_learned_of_another_question_is_not_applied(more, calls, says):
    first = texts("a.txt", 0)
    with LoopbackLLM(lambda text: None if "x" in text else confident(text)) as llm:
        assert classify(llm, first)[0] == 0
        judge("out.csv")
        _, _, offer = classify(llm, first, *more, "-o", "other.csv", "--dry-run")
        assert llm.calls == 30
        code, _, err = classify(llm, first, *more, "-o", "other.csv")
        assert (code, llm.calls) == (0, calls), err
        # before anything is paid
        assert says is None or says in offer
        # also without an output
        _, _, plain = run_here("classify", first, *options(llm), *more, "--dry-run")
        assert says is None or says in plain
        assert (says in err) if says else ("judgments" not in err.replace("judged", ""))
        # each has its own
        assert len([*Path(".testnuc").glob("*.db")]) == (1 if calls == 30 else 2)
        code, _, err = classify(llm, first)
        assert (code, llm.calls, APPLIED in err) == (0, calls, True), err


def test_a_store_beside_an_output_of_an_earlier_version_is_found():
    first, second = texts("a.txt", 0), texts("b.txt", 30)
    with LoopbackLLM(confident) as llm:
        assert classify(llm, first)[0] == 0
        judge("out.csv")
        (store,) = Path(".testnuc").glob("*.db")
        store.rename("out.csv.resume/answers.db")
        note = Path("out.csv.resume/output.json")
        note.write_text(note.read_text().replace(store.name, "answers.db"))
        shutil.rmtree(".testnuc")
        for file, output, calls in ((first, "out.csv", 30), (second, "new.csv", 60)):
            code, _, err = classify(llm, file, "-o", output)
            assert (code, llm.calls, "30 judgments: applied" in err) == (0, calls, True), err
            assert "out.csv.resume has the answers" in err
        assert not Path(".testnuc").exists()
        assert "5 of 60 texts" in run_here("review", "new.csv", "-n", "5", "--no-open")[2]


def test_where_the_folder_is_read_only_the_store_is_beside_the_output(monkeypatch):
    first, second = texts("a.txt", 0), texts("b.txt", 30)
    Path("out").mkdir()
    access = os.access
    here = {Path(), Path(".testnuc")}
    with LoopbackLLM(confident) as llm, monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: path not in here and access(path, mode))
        assert classify(llm, first, "-o", "out/a.csv")[0] == 0
        assert not Path(".testnuc").exists()
        assert Path("out/a.csv.resume/answers.db").is_file()
        judge("out/a.csv")
        code, _, err = classify(llm, second, "-o", "out/b.csv")
        assert (code, llm.calls) == (0, 60), err
        assert "30 judgments, last of out/a.csv: applied" in err
        # one that is there is not paid for again
        shutil.copytree("out/a.csv.resume", ".testnuc")
        name = f"answers-{'0' * 32}.db"
        patch.setattr("testnuc.cli.memory._name_of", lambda _: name)
        Path(".testnuc/answers.db").rename(f".testnuc/{name}")
        code, _, err = classify(llm, first, "-o", "c.csv")
        assert (code, "its folder is read-only: copy it" in err) == (2, True), err
        assert llm.calls == 60


def test_a_copy_of_results_under_another_name_is_known():
    with LoopbackLLM(confident) as llm:
        assert classify(llm, texts("a.txt", 0))[0] == 0
    shutil.copy("out.csv", "final.csv")
    ran("review", "final.csv", "-n", "5", "--no-open", key=None)
    judge("final.csv")


def test_a_note_of_many_rows_still_has_the_options(monkeypatch):
    """It is not read if it is too large, and then the store of a run was not found."""
    monkeypatch.setattr("testnuc.cli.memory._LARGEST", 3_000)
    with LoopbackLLM(confident) as llm:
        assert classify(llm, texts("a.txt", 0, 300))[0] == 0
    note = RunNote.of("out.csv")
    assert (note.rows, note.options["labels"]) == ("", list(LABELS))
    assert note.edited(iter(())) == []


def _moved(was, now):
    """What a note says of labels that were written, and of those in the file now."""

    def rows(labels):
        return [Classification(at, f"{at}", one) for at, one in enumerate(labels)]

    marks = "".join("".join(_mark(row)) for row in rows(was))
    return RunNote(rows=marks).moved(rows(now))


@pytest.mark.parametrize(
    ("was", "now", "edited"),
    [
        *[("N/A", "", 0), ("None", "", 0), ("1.10", "1.1", 0), ("true", "TRUE", 0)],
        *[("refund", "", 1), ("1.1", "2.3", 1), ("N/A", "refund", 1), ("", "N/A", 1), ("", "1", 1)],
    ],
)
def test_what_pandas_makes_of_a_label_is_no_edit(was, now, edited):
    """All rows of such a label, which nobody had touched, became judgments."""
    labels = ["N/A", "None", "true", "1.1", "1.10", "2.3", "refund"]
    note = RunNote(rows="".join(_mark(Classification(0, "a", was))), options={"labels": labels})
    assert len(note.edited([Classification(0, "a", now)])) == edited


def test_single_edits_do_not_look_like_a_column_that_was_moved():
    """Edits towards a frequent label are like the rows above and below, too."""
    rng = random.Random(0)
    for kinds in (["other"] * 19 + ["rare"], ["a", "b"], [f"{n}" for n in range(30)]):
        for _ in range(20):
            was = [rng.choice(kinds) for _ in range(200)]
            for label in (kinds[0], kinds[-1]):
                now = [label if rng.random() < 0.3 else one for one in was]
                assert not _moved(was, now)
            start, by = rng.randrange(100), rng.choice([-3, -2, -1, 1, 2, 3])
            now = [was[at + by] if start <= at < 195 else one for at, one in enumerate(was)]
            if sum(a != b for a, b in zip(was, now, strict=True)) >= 5:
                assert _moved(was, now)
            if len(kinds) == 30:
                assert _moved(was, rng.sample(was, 200))
    # of a quarter, sorting changes fewer rows than of a half; of a text column, no label moves
    was = [rng.choice(["no", "no", "no", "yes"]) for _ in range(600)]
    for now in (sorted(was), sorted(was, reverse=True), rng.sample(was, 600)):
        assert _moved(was, now)


def test_a_note_names_no_store_elsewhere():
    texts("a.txt", 0)
    Path("out.csv.resume").mkdir()
    for name in ("../elsewhere.db", "/etc/passwd", "answers.db/../../x.db", 7, None):
        Path("out.csv.resume/output.json").write_text(f'{{"store": {name!r}}}'.replace("'", '"'))
        store = AnswerStore.of_results(None, "out.csv").where
        assert store == os.path.join("out.csv.resume", "answers.db")  # noqa: PTH118


def _linked(name, to):
    os.link(to, name)
    return name


def test_a_link_in_a_hidden_folder_changes_no_file_elsewhere(tmp_path):
    """A folder of somebody else may have them, and they may lead to any file of the user."""
    mine = [tmp_path / f"mine-{number}" for number in range(4)]
    with LoopbackLLM(confident, api_key="test-key") as llm:
        assert classify(llm, texts("a.txt", 0))[0] == 0
        hidden = [Path("out.csv.resume/output.json"), *Path(".testnuc").glob("output-*.json")]
        for place, own in zip([*hidden, Path(".testnuc/.gitignore")], mine, strict=False):
            place.unlink()
            place.symlink_to(own)
        for own in mine[:2]:
            own.write_text("{}")
        assert classify(llm, texts("b.txt", 20), "--overwrite")[0] == 0
    assert [own.read_text() for own in mine if own.exists()] == ["{}", "{}"]
    assert RunNote.of("out.csv").options
    assert not any(place.is_symlink() for place in hidden)


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
        ("learn old.csv judged.csv -o judged.csv --overwrite", ("[REVIEW|MARKS]..", "--output")),
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


def test_options_that_came_later_leave_earlier_runs_as_they_were():
    known = client_options() | {"labels": ["a", "b"]}
    assert _name_of(known) == "answers-3cd0fd26a8bfb7d9631ca9a481005267.db"
    first = texts("a.txt", 0)
    with LoopbackLLM(confident) as llm:
        assert classify(llm, first)[0] == 0
        for path in (Path("out.csv.resume/output.json"), *Path(".testnuc").glob("output-*")):
            note = json.loads(path.read_text())
            del note["options"]["temperature"], note["options"]["seed"]
            path.write_text(json.dumps(note))
        # not replaced without --overwrite unless it is the same run
        code, _, err = classify(llm, first)
        assert (code, llm.calls) == (0, 30), err
        # the settings are for new runs
        Path("testnuc.toml").write_text("temperature = 0")
        ran("review", "out.csv", "-n", "5", "--no-open", key=None)
        code, _, err = classify(llm, first, "-o", "other.csv")
        assert (code, llm.calls) == (0, 60), err


@pytest.mark.slow
def test_runs_at_once_disturb_each_other_in_nothing():
    """Several processes, some with a wrong key, on the same and on other texts."""
    root = str(Path(__file__).parents[2])
    first, second = texts("a.txt", 0), texts("b.txt", 30)
    with LoopbackLLM(confident, api_key="test-key", latency=0.01) as llm:
        assert classify(llm, texts("c.txt", 60), "--overwrite")[0] == 0
        replacing = ("-o", "out.csv", "--overwrite")
        embedder = HashEmbedder().name
        running = [
            subprocess.Popen(
                command_line("classify", file, *options(llm), *replacing, "--embedder", embedder),
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
            assert number % 2 or process.returncode == 0, err.decode()
        assert llm.calls == 90
        for file in ("c.txt", first, second):
            code, _, err = classify(llm, file, "--overwrite")
            assert (code, llm.calls) == (0, 90), err
