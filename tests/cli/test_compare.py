"""``testnuc compare``: two files of results."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.in_process import ran, run_here


@pytest.fixture
def files(tmp_path):
    first, second = tmp_path / "a.jsonl", tmp_path / "b.csv"
    texts = [f"text {i}" for i in range(20)]
    true = ["x" if i % 2 else "y" for i in range(20)]
    own = ["x"] * 20
    voted = ["x" if i % 2 or i < 4 else "y" for i in range(20)]
    voted[19] = None
    first.write_text(
        "".join(
            json.dumps({"text": t, "nuc_label": o, "truth": g}) + "\n"
            for t, o, g in zip(texts, own, true, strict=True)
        )
    )
    with second.open("w", newline="") as file:
        rows = csv.writer(file)
        # in another order, with a text of its own
        rows.writerows([["text", "nuc_label"], ["other", "x"]])
        rows.writerows(reversed(list(zip(texts, voted, strict=True))))
    return first, second


def test_a_text_does_not_control_the_terminal(tmp_path):
    for name, label in (("a", "x"), ("b", "y")):
        row = {"text": "one\x1b[2K\x9b2J", "nuc_label": label}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    code, out, _ = run_here("compare", tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert code == 0
    assert out.replace("\n", "").isprintable()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="platform: no /dev/full")
def test_a_full_disk_behind_stdout_is_one_line(files):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "testnuc", "compare", *map(str, files)],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    said = "testnuc: stdout cannot be written: No space left on device"
    assert done.stderr.splitlines()[1:] == [said]


@pytest.mark.skipif(sys.platform == "win32", reason="platform: pipes of POSIX")
def test_a_reader_that_has_enough_ends_no_command():
    """Else `testnuc learn .. -o FILE | head` would write no file, and say nothing."""
    # it prints more than any buffer holds, and then writes a file
    script = (
        "from pathlib import Path\nfrom testnuc import cli\n"
        "def app(**_):\n    print('x' * 999_999)\n    Path('made').touch()\n"
        "cli.app = app\ncli.main()\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", script], stdout=writer, stderr=-1, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr, Path("made").exists()) == (0, b"", True)


def test_labels_that_differ_are_counted_by_pair_with_examples(files):
    out, err = ran("compare", *files)
    lines = out.splitlines()
    assert lines[0] == "20 texts are in both, 9 labels differ (45.0%)"
    assert [line.split(maxsplit=1) for line in lines if "->" in line] == [
        ["8", "x -> y"], ["1", "x -> no label"],
    ]  # fmt: skip
    assert out.count("text ") == 3
    assert "0 texts are only in" in err
    assert "1 only in" in err
    assert "accuracy" not in out


def test_accuracies_and_their_difference(files):
    code, out, _ = run_here("compare", *files, "--gold", "truth")
    assert code == 0
    assert "accuracy 0.500 (" in out
    assert "then 0.850 (" in out
    assert "difference +35.0 points" in out
    # the file that holds the truth may be either
    code, out, _ = run_here("compare", *reversed(files), "--gold", "truth")
    assert "difference -35.0 points" in out


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--gold", "no"], "neither"),
        (["--label-column", "no"], "--label-column"),
        (["--text-column", "truth"], "--text-column"),
    ],
)
def test_errors_name_the_option(files, more, says):
    code, _, err = run_here("compare", *files, *more)
    assert code == 2
    assert says in err
    assert "Traceback" not in err


def test_judged_texts_are_left_out_of_accuracies(tmp_path):
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    first.write_text("text,nuc_label,truth\none,b,a\ntwo,b,a\nthree,a,a\n")
    second.write_text("text,nuc_label,nuc_source\none,a,person\ntwo,b,vote\nthree,a,vote\n")
    out, _ = ran("compare", first, second, "--gold", "truth")
    assert "1 texts that a person judged are left out of the accuracy" in out
    assert out.count("0.500 (") == 2
