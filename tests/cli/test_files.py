"""Files as offices have them: encodings, delimiters, formats, stdin, and outputs that exist."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from testnuc.cli import xlsx
from testnuc.cli.decoding import decoded, delimiter_of
from testnuc.cli.files import write_results
from testnuc.cli.label_files import read_labels
from testnuc.cli.reading import Table, read_table, say_if_ids
from testnuc.errors import InvalidInputError, ProviderError
from testnuc.records import result_of
from testnuc.results import read_results
from testnuc.testing import HashEmbedder, LoopbackLLM
from testnuc.types import Classification, Prediction
from tests.cli.in_process import command_line, ran, run_here
from tests.conftest import LABELS, confident, gold, messages

GERMAN = "Wo bleibt mein Päckchen; für 5 €, größer als 3 Stück?"


def classify(llm, file, *more, run=run_here, **options):
    given = {"labels": ",".join(LABELS), "model": "openai/test", "base-url": llm.base_url}
    flags = [part for name, value in (given | options).items() for part in (f"--{name}", value)]
    return run("classify", file, *flags, "--policy", "weighted", *more)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_encoding_and_delimiter_are_recognized_and_noted(tmp_path, capsys, encoding, delimiter):
    file, out = tmp_path / "in.csv", io.StringIO()
    writer = csv.writer(out, delimiter=delimiter)
    writer.writerows([["id", "message"], *([i, f"{GERMAN} {i}"] for i in range(60))])
    file.write_bytes(out.getvalue().encode(encoding))
    table = read_table(str(file), "message")
    assert table.texts == [f"{GERMAN} {i}" for i in range(60)]
    assert table.columns == ["id", "message"]
    err = capsys.readouterr().err
    assert "--" not in err  # not every command has these options
    assert ("between columns" in err) == (delimiter != ",")
    assert (f"is read as {encoding}" in err) == (not encoding.startswith("utf-8"))
    if encoding == "cp1252":
        assert "as in 'Päckchen'" in err
    # named by the user, no note is printed
    given = {"encoding": encoding, "delimiter": "tab" if delimiter == "\t" else delimiter}
    assert read_table(str(file), "message", **given).texts == table.texts
    assert capsys.readouterr().err == ""


def test_the_line_in_which_excel_names_the_delimiter(tmp_path):
    file = tmp_path / "excel.csv"
    file.write_bytes(b"sep=;\r\nid;text\r\n1;a, b\r\n2;c\r\n")
    table = read_table(str(file), "text")
    assert (table.columns, table.texts) == (["id", "text"], ["a, b", "c"])


def test_an_output_that_is_a_link_stays_one(tmp_path):
    shared, link = tmp_path / "shared.csv", tmp_path / "out.csv"
    shared.write_text("old\n")
    link.symlink_to(shared)
    write_results(str(link), Table([{"text": "a"}], ["text"], "text"), {}, {})
    assert link.is_symlink()
    assert shared.read_text().startswith("text,")


def test_quotes_escaped_by_a_backslash(tmp_path, capsys):
    file = tmp_path / "spark.csv"
    file.write_text(
        'id,text,note\n1,"he said \\"no, thanks\\" ok",\n2,C:\\new,x\n3,"a \\"b\\" c",y\n'
    )
    table = read_table(str(file), "text")
    assert table.texts == ['he said "no, thanks" ok', "C:\\new", 'a "b" c']
    assert [row["note"] or "" for row in table.rows] == ["", "x", "y"]
    assert 'is read with \\" as a quote inside quotes' in capsys.readouterr().err


@pytest.mark.parametrize("row", ['1,"a\n2,"b"\n3,c', '1,"a" b\n2,c'])
def test_a_stray_quote_moves_no_text(tmp_path, row):
    file = tmp_path / "stray.csv"
    file.write_text(f"id,text\n{row}\n")
    with pytest.raises(InvalidInputError, match=r"line 2: a quote closes in the middle of a field"):
        read_table(str(file), "text")


def test_a_delimiter_in_texts_is_none_of_columns():
    assert delimiter_of("text\nHello, you; there\nAnother, one, two\n", ("text",)) not in ",;"
    assert delimiter_of("id;text, long\n1;a\n", ("text, long",)) == ";"
    assert delimiter_of("id,text\n1,a;b;c\n2,d;e;f\n", ("text",)) == ","
    assert delimiter_of('id\ttext\n1\t"a\nb, c"\n', ("other",)) == "\t"
    assert delimiter_of("", ("text",)) == ","


def test_an_unquoted_delimiter_loses_no_text(tmp_path):
    file = tmp_path / "in.csv"
    file.write_text("id,text\n1,hello there\n2,well, that was lost before\n")
    with pytest.raises(InvalidInputError, match=r"line 3 has 3 columns, the header 2: quote texts"):
        read_table(str(file), "text")
    # a trailing delimiter is no text
    file.write_text("id,text\n1,hello there,,\n2,well\n")
    assert read_table(str(file), "text").texts == ["hello there", "well"]


@pytest.mark.parametrize(
    ("raw", "encoding", "says"),
    [
        (
            b"text\nf\xfcr\n" + "größer für Öl\n".encode(),
            None,
            r"not text in utf-8: the byte 0xfc in line 2",
        ),
        (b"text\n\x00\x01\x02\x00\x03", None, "is not a text file"),
        (b"text\nf\xfcr", "utf-8", "is not text in utf-8"),
        (b"text\nhello", "utf-9", "--encoding is 'utf-9'; give a name such as"),
        (b"text\nhello", "base64", "--encoding is 'base64'"),
        (b"text\n\xffhello", "punycode", "in.csv is not text in punycode"),
        (b"PK\x03\x04..", None, "name it .xlsx"),
    ],
)
def test_what_cannot_be_decoded_says_why(tmp_path, raw, encoding, says):
    file = tmp_path / "in.csv"
    file.write_bytes(raw)
    with pytest.raises(InvalidInputError, match=says):
        read_table(str(file), "text", encoding=encoding)


def test_decoding_names_what_it_took():
    assert decoded("für".encode("cp1252"), "x") == ("für", "cp1252")
    assert decoded("\ufefffür".encode(), "x", "utf8") == ("für", "utf-8-sig")
    assert decoded("\ufefffür".encode("utf-16-le"), "x", "utf-16-le") == ("für", "utf-16-le")
    with pytest.raises(InvalidInputError, match="mark of utf-16, and --encoding is iso8859-1"):
        decoded("id,text".encode("utf-16"), "x", "latin-1")


@pytest.mark.parametrize(
    ("content", "column", "says"),
    [
        ("id;message\n1;a\n", "mesage", "did you mean --text-column 'message'?"),
        ("id,Text \n1,a\n", "text", "did you mean --text-column 'Text '?"),
        ("id,body_de,kind\n1,a long message,x\n", "text", "did you mean --text-column 'body_de'?"),
        ("id,nuc_trust,note\n1,abcdefghijkl,bcd\n", "text", "did you mean --text-column 'note'?"),
    ],
)
def test_a_wrong_column_suggests_the_right_one(tmp_path, content, column, says):
    file = tmp_path / "in.csv"
    file.write_text(content)
    with pytest.raises(InvalidInputError) as caught:
        read_table(str(file), column)
    assert says in str(caught.value)
    assert ";" not in str(caught.value).split("it has", 1)[1]


def test_columns_of_one_name_are_refused_as_one_would_be_lost(tmp_path):
    file = tmp_path / "in.csv"
    file.write_text("id,note,text,note,,\n1,first,money back,second,,\n")
    with LoopbackLLM(confident) as llm:
        code, _, err = classify(llm, file, "-o", tmp_path / "out.csv")
        assert (code, llm.requests) == (2, 0)
        assert "in.csv has 2 columns named 'note'; rename all but one" in err


@pytest.mark.parametrize("kind", ["csv", "xlsx"])
def test_columns_without_a_name_keep_their_values(tmp_path, kind):
    lines = [["", "text", "", "", "extra"], ["1", "a", "x", "", "e"], ["2", "b", "", "", ""]]
    file = tmp_path / f"in.{kind}"
    if kind == "csv":
        file.write_text("\n".join(map(",".join, lines)))
    else:
        book = pytest.importorskip("openpyxl").Workbook()
        for line in lines:
            book.active.append([value or None for value in line])
        book.save(file)
    table = read_table(str(file), "text")
    assert table.columns == ["unnamed column 1", "text", "unnamed column 3", "extra"]
    assert [[row[name] or "" for name in table.columns] for row in table.rows] == [
        ["1", "a", "x", "e"],
        ["2", "b", "", ""],
    ]


def test_a_wrong_delimiter_is_an_error(tmp_path):
    file = tmp_path / "in.csv"
    file.write_text("id;message\n1;a\n")
    with pytest.raises(InvalidInputError, match=r"--delimiter is ';;'; give a single"):
        read_table(str(file), "message", delimiter=";;")


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".json", ".jsonl", ".xlsx", ".parquet"])
def test_each_format_in_and_out(tmp_path, kind):
    texts = messages(12)
    first, file, out = tmp_path / "first.json", tmp_path / f"in{kind}", tmp_path / f"out{kind}"
    first.write_text(json.dumps([{"id": i, "text": f"={t}"} for i, t in enumerate(texts)]))
    with LoopbackLLM(lambda text: confident(text.removeprefix("="))) as llm:
        code, _, err = classify(llm, first, "-o", file)
        assert code == 0, err
        # what was written is read again
        code, _, err = classify(llm, file, "-o", out)
        assert code == 0, err
    made = read_table(str(out), "text")
    assert made.texts == [f"={t}" for t in texts]
    assert [row["nuc_own_label"] for row in made.rows] == [gold(t) for t in texts]
    assert [str(row["id"]) for row in made.rows] == [str(i) for i in range(12)]
    assert made.columns[:3] == ["id", "text", "nuc_label"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_several_labels_are_read_as_they_were_written(tmp_path, kind):
    """A row of a Parquet file names the labels of all: `probabilities` failed on what is null."""
    several = [
        Classification(0, "a", "x", shares={"x": 0.9, "y": 0.2}, trusts={"x": None}),
        Classification(1, "b", "z", shares={"z": 0.8}, trusts={"z": 0.7}),
        Classification(2, "c", "", shares={}),
    ]
    table = Table([{"text": row.text} for row in several], ["text"], "text")
    path = tmp_path / f"out.{kind}"
    write_results(str(path), table, dict(enumerate(several)), {})
    back = read_results(read_table(str(path), "text").rows, str(path))
    for one, read in zip(several, back, strict=True):
        assert (read.shares, read.trusts, read.labels) == (one.shares, one.trusts, one.labels)
        assert read.probabilities == one.probabilities


def test_lines_end_where_editors_end_them(tmp_path):
    file = tmp_path / "in.txt"
    file.write_bytes("one\u2028text\r\nan\x85other\rlast\n".encode())
    assert read_table(str(file), "text").texts == ["one\u2028text", "an\x85other", "last"]


def test_a_csv_file_of_a_tsv_file_has_commas(tmp_path):
    file, out = tmp_path / "in.tsv", tmp_path / "out.csv"
    file.write_text("id\ttext\n1\trefund\n")
    with LoopbackLLM(lambda _: (LABELS[0], 0.9)) as llm:
        assert classify(llm, file, "-o", out)[0] == 0
    assert out.read_text().startswith("id,text,nuc_label")


@pytest.mark.parametrize("kind", [".csv", ".xlsx"])
def test_what_a_cell_cannot_hold_is_text(tmp_path, kind):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    at, tags = datetime(2026, 1, 2, tzinfo=UTC), {"a": [1, None]}
    columns = {"text": ["refund"], "at": [at], "tags": [tags], "raw": [b"x"]}
    file, out = tmp_path / "in.parquet", tmp_path / f"out{kind}"
    parquet.write_table(arrow.table(columns), file)
    with LoopbackLLM(lambda _: (LABELS[0], 0.9)) as llm:
        code, _, err = classify(llm, file, "-o", out)
    assert code == 0, err
    row = read_table(str(out), "text").rows[0]
    assert datetime.fromisoformat(row["at"]) == at
    assert json.loads(row["tags"]) == tags
    assert row["raw"] == "b'x'"


def test_a_text_that_excel_would_cut_is_noted_before_the_run(tmp_path):
    pytest.importorskip("openpyxl")
    file = tmp_path / "in.csv"
    file.write_text(f"text\nrefund\n{'long ' * 8_000}\n")
    with LoopbackLLM(lambda _: (LABELS[0], 0.9)) as llm:
        code, _, err = classify(llm, file, "-o", tmp_path / "out.xlsx", "--dry-run")
    assert (code, llm.requests) == (0, 0)
    assert "cuts texts at 32,767 characters, the most in a cell of Excel (1 of them)" in err


def test_a_workbook_keeps_each_character_of_a_text(tmp_path):
    pytest.importorskip("openpyxl")
    texts = [
        "two\r\nlines",
        "old\rline",
        "feed\x0c",
        "nul\0",
        "_x000D_ written",
        "_x00_",
        "tab\tlf\n.",
    ]
    rows = [{"text": text, "_x000D_": 1} for text in texts]
    xlsx.write_rows(tmp_path / "out.xlsx", list(rows[0]), rows)
    columns, again = xlsx.read_rows(tmp_path / "out.xlsx", "text", print)
    assert (columns, again) == (list(rows[0]), rows)


def test_judged_texts_of_a_workbook_keep_their_labels(tmp_path):
    pytest.importorskip("openpyxl")
    file, out, review = tmp_path / "in.csv", tmp_path / "out.xlsx", tmp_path / "review.json"
    texts = [f"line {i}\r\n{text}" for i, text in enumerate(messages(12))]
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([["text"], *([text] for text in texts)])
    with LoopbackLLM(lambda _: (LABELS[0], 0.9)) as llm:
        assert classify(llm, file, "-o", out)[0] == 0
        asked = llm.requests
        ran("review", out, "-n", "4", "-o", review)
        judged = json.loads(review.read_text())
        assert {item["text"] for item in judged["items"]} <= set(texts)
        for item in judged["items"]:
            item["answer"] = LABELS[1]
        review.write_text(json.dumps(judged))
        ran("learn", out, review, "-o", tmp_path / "better.csv")
        assert llm.requests == asked
    labels = {
        r["text"]: r["nuc_label"] for r in read_table(str(tmp_path / "better.csv"), "text").rows
    }
    assert set(labels) == set(texts)
    assert all(labels[item["text"]] == LABELS[1] for item in judged["items"])


def test_a_text_that_a_workbook_cut_is_not_judged(tmp_path):
    pytest.importorskip("openpyxl")
    file, out = tmp_path / "in.csv", tmp_path / "out.xlsx"
    file.write_text(f"text\nrefund\n{'long ' * 8_000}\n")
    with LoopbackLLM(lambda _: (LABELS[0], 0.9)) as llm:
        assert classify(llm, file, "-o", out)[0] == 0
        code, _, err = run_here("review", out)
    assert code == 2
    assert "row 2: the text is cut at 32,767 characters" in err


def test_a_workbook_as_people_make_them(tmp_path, capsys):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.title = "Notes"
    book.active.append(["nothing here"])
    sheet = book.create_sheet("Tickets")
    rows = [[None, None, None], ["id", "message", "when"], [1, "a", None], [2, 42, None]]
    for row in rows:
        sheet.append(row)
    book.save(tmp_path / "in.xlsx")
    table = read_table(str(tmp_path / "in.xlsx"), "message")
    assert table.texts == ["a", "42"]
    assert "note: 'Tickets' of 2 sheets in " in capsys.readouterr().err
    # what nobody sees comes last
    book.active.append(["message"])
    book.move_sheet("Tickets", -1)
    sheet.sheet_state = "hidden"
    other = book.create_sheet("Shown")
    other.append(["message"])
    other.append(["seen"])
    book.save(tmp_path / "in.xlsx")
    assert read_table(str(tmp_path / "in.xlsx"), "message").texts == ["seen"]
    (tmp_path / "bad.xlsx").write_text("no workbook")
    with pytest.raises(InvalidInputError, match="not an Excel workbook"):
        read_table(str(tmp_path / "bad.xlsx"), "message")


def test_a_semicolon_file_of_windows_comes_back_as_one(tmp_path):
    file, out = tmp_path / "in.csv", tmp_path / "out.csv"
    lines = ["Nr;message", *(f"{i};{t} für" for i, t in enumerate(messages(8)))]
    file.write_bytes("\r\n".join(lines).encode("cp1252"))
    with LoopbackLLM(lambda text: confident(text.removesuffix(" für"))) as llm:
        code, _, err = classify(llm, file, "--text-column", "message", "-o", out)
    assert code == 0, err
    assert out.read_bytes().startswith(b"\xef\xbb\xbfNr;message;nuc_label;")
    assert "is read as cp1252, as in 'für'" in err


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("id,text\n1,hello there\n2,well now\n", ["hello there", "well now"]),
        ('{"text": "hello there"}\n{"text": "well now"}\n', ["hello there", "well now"]),
        ('["hello there", "well now"]', ["hello there", "well now"]),
        ("hello there\nwell, now\n", ["hello there", "well, now"]),
    ],
)
def test_stdin_and_stdout(monkeypatch, content, texts):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    with LoopbackLLM(lambda _: (LABELS[0], 0.9)) as llm:
        code, out, err = classify(llm, "-", "-o", "-")
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["text"] for row in rows] == texts
    assert {row["nuc_own_label"] for row in rows} == {LABELS[0]}


@pytest.mark.slow
def test_a_stdout_of_another_encoding(tmp_path):
    file = tmp_path / "in.txt"
    file.write_text(f"{GERMAN}\nlogin\n", encoding="utf-8")

    def run(*arguments):
        return subprocess.run(
            command_line(*arguments),
            capture_output=True, check=True,
            env={"OPENAI_API_KEY": "x", "PYTHONPATH": ":".join(sys.path),
                 "PYTHONIOENCODING": "ascii"},
        ).stdout  # fmt: skip

    with LoopbackLLM(lambda _: (LABELS[0], 0.9)) as llm:
        answers = classify(llm, file, run=run)
    # JSON is UTF-8 in any locale: no answer is lost
    assert json.loads(answers.splitlines()[0])["text"] == GERMAN
    for name, label in (("a.csv", "refund"), ("b.csv", "login")):
        (tmp_path / name).write_text(f'text,nuc_label\n"{GERMAN}",{label}\n', encoding="utf-8")
    assert b"P\\xe4ckchen" in run("compare", tmp_path / "a.csv", tmp_path / "b.csv")


@pytest.mark.parametrize("command", ["classify", "report"])
def test_an_output_that_is_no_file_is_refused_before_anything_is_read(tmp_path, command):
    suffix = ".csv" if command == "classify" else ".html"
    (tmp_path / "in.csv").write_text("text,nuc_label\na,refund\nb,login\n")
    os.mkfifo(f"pipe{suffix}")
    Path(f"loop{suffix}").symlink_to(f"loop{suffix}")
    more = ("--labels", "refund,login") if command == "classify" else ()
    for name, says in (("pipe", "is a pipe"), ("loop", "symbolic links"), ("x" * 252, "too long")):
        code, _, err = run_here(command, "in.csv", *more, "-o", name + suffix)
        assert code == 2
        assert says in err


@pytest.mark.slow
def test_a_full_disk_behind_stdout_is_an_error(tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(messages(4)))
    with LoopbackLLM(confident) as llm, Path("/dev/full").open("w") as full:

        def run(*arguments):
            return subprocess.run(
                command_line(*arguments),
                stdout=full, stderr=subprocess.PIPE, text=True, check=False,
                env={"OPENAI_API_KEY": "x", "PYTHONPATH": ":".join(sys.path)},
            )  # fmt: skip

        done = classify(llm, tmp_path / "in.txt", run=run)
    assert done.returncode == 2
    assert "stdout cannot be written: No space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_full_disk_leaves_no_part_of_a_result(tmp_path):
    script = (
        "import resource, sys\nfrom testnuc._base.jsonl import write_whole\n"
        "from testnuc.errors import InvalidInputError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n    write_whole(sys.argv[1], [b'x' * 100] * 100)\n"
        "except InvalidInputError as exc:\n    print(exc)\n"
    )
    (tmp_path / "out.csv").write_text("as before")
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "out.csv"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "cannot be written" in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["out.csv"]
    assert (tmp_path / "out.csv").read_text() == "as before"


def test_an_output_that_exists_is_replaced_on_request_alone(tmp_path):
    file, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
    file.write_text("\n".join(messages(8)))
    with LoopbackLLM(confident) as llm:
        assert classify(llm, file, "-o", out)[0] == 0
        before = out.read_bytes()
        # the same command again, whose answers are stored, changes nothing
        assert classify(llm, file, "-o", out)[0] == 0
        assert out.read_bytes() == before
        code, _, err = classify(llm, file, "-o", out, "--k", "0")
        assert code == 2
        assert f"{out} exists; add --overwrite to replace it, or name another -o" in err
        assert (llm.calls, out.read_bytes()) == (8, before)
        # an estimate writes nothing
        assert classify(llm, file, "-o", out, "--dry-run")[0] == 0
        assert classify(llm, file, "-o", out, "--overwrite")[0] == 0


@pytest.mark.parametrize("before", ["written", "none"])
def test_what_somebody_writes_into_the_output_during_the_run_is_kept(tmp_path, before):
    """It was seen before the run, and replaced after it."""
    file, out = tmp_path / "in.txt", tmp_path / "out.csv"
    file.write_text("\n".join(messages(15)))
    written = []

    def answer(text):
        if text == messages(16)[15]:
            edited = out.read_text() if out.exists() else "text,nuc_label\na,b\n"
            written.append(edited.replace(f",{LABELS[0]},", f",{LABELS[1]},", 1))
            out.write_text(written[0])
        return confident(text)

    with LoopbackLLM(answer) as llm:
        if before == "written":
            assert classify(llm, file, "-o", out)[0] == 0
        file.write_text("\n".join(messages(16)))
        code, _, err = classify(llm, file, "-o", out)
    assert (code, len(read_table(str(out), "text").rows)) == (0, 16), err
    kept = tmp_path / "out-2.csv"
    assert f"{out} was changed during the run; it is kept as {kept}" in err
    assert kept.read_text() == written[0]


@pytest.mark.parametrize("kind", [".json", ".jsonl", ".csv", ".xlsx"])
@pytest.mark.parametrize("source", [".json", ".jsonl"])
def test_long_numbers_keep_their_digits(tmp_path, source, kind):
    """JSON of more than 64 bits became a float."""
    file, out = tmp_path / f"in{source}", tmp_path / f"out{kind}"
    number = "-1234567890123456789012345"
    more = f'[{{"{number}": {number}}}], "tweet": 1234567890123456789, "part": 0.5'
    row = f'{{"text": "refund", "id": {number}, "more": {more}}}'
    file.write_text(f"[{row}]" if source == ".json" else row)
    with LoopbackLLM(lambda _: (LABELS[0], 0.9)) as llm:
        code, _, err = classify(llm, file, "-o", out)
    assert code == 0, err
    (row,) = read_table(str(out), "text").rows
    assert (str(row["id"]), str(row["tweet"])) == (number, "1234567890123456789")
    more = row["more"]
    assert (json.loads(more) if isinstance(more, str) else more) == [{number: int(number)}]
    if kind in {".json", ".jsonl"}:
        assert f'"id":{number},' in out.read_text()


def test_a_trial_of_the_first_texts_is_part_of_the_whole_run(tmp_path):
    file, out = tmp_path / "in.txt", tmp_path / "out.csv"
    file.write_text("\n".join(messages(20)))
    with LoopbackLLM(confident) as llm:
        assert classify(llm, file, "-o", out, "--limit", "5")[0] == 0
        assert (len(read_table(str(out), "text").rows), llm.calls) == (5, 5)
        assert classify(llm, file, "-o", out)[0] == 0
        assert (len(read_table(str(out), "text").rows), llm.calls) == (20, 20)
        code, _, err = classify(llm, file, "--limit", "0")
        assert code == 2
        assert "'--limit': Input should be greater than or equal to 1" in err


def test_with_a_store_a_run_on_the_same_texts_replaces_its_own_output_only(tmp_path):
    file, out, store = tmp_path / "in.txt", tmp_path / "out.csv", tmp_path / "answers.db"
    file.write_text("\n".join(messages(8)))
    with LoopbackLLM(confident) as llm:
        assert classify(llm, file, "-o", out, store=store)[0] == 0
        assert classify(llm, file, "-o", out, store=store)[0] == 0
        assert llm.calls == 8
        # a column that a person added
        rows = list(csv.DictReader(io.StringIO(out.read_text())))
        with out.open("w", newline="") as opened:
            writer = csv.DictWriter(opened, [*rows[0], "correct"])
            writer.writeheader()
            writer.writerows({**row, "correct": "refund"} for row in rows)
        code, _, err = classify(llm, file, "-o", out, store=store)
        assert code == 2
        assert "exists" in err
        # other texts
        out.write_text("text,nuc_label\nanother,refund\n")
        assert classify(llm, file, "-o", out, store=store)[0] == 2
        # a .txt file can be anything
        notes = tmp_path / "notes.txt"
        notes.write_text("of mine\n")
        assert classify(llm, file, "-o", notes, store=store)[0] == 2
        assert notes.read_text() == "of mine\n"
        plain = tmp_path / "labels.txt"
        assert [classify(llm, file, "-o", plain, store=store)[0] for _ in range(2)] == [0, 0]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("l.csv", "label,description\nrefund,money\nlost,\n", {"refund": "money", "lost": ""}),
        ("l.csv", "label\nrefund\nlost, or stolen\n", ["refund", "lost, or stolen"]),
        ("l.csv", "text;label\na;refund\nb;lost\nc;refund\n", ["refund", "lost"]),
        ("l.csv", "refund\nlost\n", None),
        ("l.csv", "label,description\nrefund,a\nrefund,b\n", None),
        ("l.txt", "refund\n\nlost, or stolen\n", ["refund", "lost, or stolen"]),
        ("l.json", '["refund", "lost"]', ["refund", "lost"]),
        ("l.json", '{"refund": "wants money", "lost": ""}', {"refund": "wants money", "lost": ""}),
        ("l.json", '[{"label": "a", "description": "x"}, {"label": "b"}]', {"a": "x", "b": ""}),
        ("l.json", '["a", {"label": "b", "was": ["c"]}]', ["a", "b"]),
        ("l.json", '["a", ["b"], {"label": "c"}]', None),
        ("l.json", "3", None),
        ("l.yaml", "refund: money\nno: a label\n", {"refund": "money", "no": "a label"}),
        ("l.yml", "- refund\n- yes\n", ["refund", "yes"]),
        ("l.yaml", "a: [", None),
        ("l.jsonl", '{"label": "refund"}\n{"label": "lost"}\n', ["refund", "lost"]),
    ],
)  # fmt: skip
def test_labels_from_files(tmp_path, name, content, expected):
    file = tmp_path / name
    file.write_text(content)
    if expected is None:
        with pytest.raises(InvalidInputError, match=name):
            read_labels(str(file))
    else:
        assert read_labels(str(file)) == expected


def test_labels_that_are_no_file():
    assert read_labels("refund, lost") == ["refund", "lost"]
    many = [f"label number {i}" for i in range(300)]
    assert read_labels(",".join(many)) == many
    with pytest.raises(InvalidInputError, match=r"no file labels\.csv"):
        read_labels("labels.csv")
    with pytest.raises(InvalidInputError, match="there is no such file, and it is one label"):
        read_labels("labels")


class Short(HashEmbedder):
    """Reads 20 characters."""

    async def cut(self, texts):
        return sum(len(text) > 20 for text in texts), 20


def test_long_texts_are_counted_before_the_run(tmp_path, monkeypatch):
    file = tmp_path / "in.txt"
    file.write_text("short\nalso short\nand one text that is much longer than the embedder reads\n")
    with LoopbackLLM(lambda _: (LABELS[0], 0.9)) as llm:

        def run(*arguments):
            import tests.cli.in_process as here

            monkeypatch.setattr(here, "HashEmbedder", Short)
            return run_here(*arguments)

        code, _, err = classify(llm, file, run=run)
    assert code == 0, err
    assert "note: texts longer than the 20 tokens that the embedder reads: 1 of 3; their" in err
    assert "shorten or split them, or choose another --embedder" in err


def test_a_dry_run_reports_texts_longer_than_the_model_reads(tmp_path):
    file = tmp_path / "in.json"
    file.write_text(json.dumps(["word " * 100_000, "short", "another"]))
    code, _, err = run_here("classify", file, "--labels", "a,b", "--dry-run")
    assert code == 0
    long = "texts longer than the 128,000 tokens that openai/gpt-4o-mini reads: about 1 of 3, which"
    assert long in err


SAID = [
    '=HYPERLINK("http://x","y")', "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\tx", "\rx", "'=1",
    "''+x", "'@x", "'", "''", "'quoted'", "-1", "+1.5", "-", "+", "- none", "a\nb", "refund", "=",
]  # fmt: skip


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_no_words_of_a_model_are_a_formula_and_all_are_read_back(tmp_path, suffix):
    rows = [{"text": said, "own": said} for said in SAID]
    table = Table(rows, ["text", "own"], "text")
    results = {
        at: Classification(
            label=None, prediction=Prediction(None, None, said), index=at, text=said, share=0.0,
            margin=0.0, voters=0, complete=True, error=ProviderError(said),
        )
        for at, said in enumerate(SAID)
    }  # fmt: skip
    output = tmp_path / f"out{suffix}"
    write_results(str(output), table, results, {}, run={})
    with output.open(newline="", encoding="utf-8") as file:
        raw = list(csv.DictReader(file, delimiter="\t" if suffix == ".tsv" else ","))
    for said, row in zip(SAID, raw, strict=True):
        # the user's own columns are theirs
        assert row["text"] == row["own"] == said
        for cell in (row["nuc_own_said"], row["nuc_error"]):
            assert not cell.startswith(("=", "@", "\t", "\r"))
            assert cell[:1] not in {"+", "-"} or set(cell[1:]) <= set("0123456789.,")
    read = read_table(str(output), "text", quiet=True)
    assert [row["nuc_own_said"] for row in read.rows] == SAID
    assert [result_of(row, 0, "text").prediction.said for row in read.rows] == SAID
    # once more, from what was read
    again = tmp_path / f"again{suffix}"
    write_results(str(again), read, results, {}, run={})
    assert again.read_bytes() == output.read_bytes()


def test_a_column_of_few_distinct_texts_is_named(capsys):
    """Channels were labeled in place of texts."""
    rows = [{"text": f"where is parcel {at}", "channel": "app"} for at in range(40)]
    say_if_ids(Table(rows, ["text", "channel"], "channel"))
    assert "40 rows hold 1 distinct texts in 'channel'; if that is not" in capsys.readouterr().err
    say_if_ids(Table(rows, ["text", "channel"], "text"))
    assert capsys.readouterr().err == ""
