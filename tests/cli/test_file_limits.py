"""Small files that would take much time or memory, and files that are no such files."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import tracemalloc
import zipfile
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from testnuc import Classification, InvalidInputError, LabelSet, Prediction, Results
from testnuc._base import jsonl
from testnuc.cli import parquet, xlsx
from testnuc.cli.files import write_results
from testnuc.cli.label_files import read_labels
from testnuc.cli.memory import RunNote
from testnuc.cli.reading import Table, read_table
from testnuc.cli.settings import read_settings
from testnuc.errors import ConfigurationError, StoreError
from testnuc.records import result_of
from testnuc.stores.sqlite.store import SqliteStore
from tests.cli.in_process import run_here

SPACE = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def book(name="a.xlsx", cells=()):
    made = pytest.importorskip("openpyxl").Workbook()
    for at, value in {"A1": "text", "A2": "first", "A3": "second", **dict(cells)}.items():
        made.active[at] = value
    made.save(name)
    return name


def with_part(content, part="xl/worksheets/sheet1.xml", method=zipfile.ZIP_DEFLATED):
    """Return a workbook with another content of a part."""
    with (
        zipfile.ZipFile(book()) as whole,
        zipfile.ZipFile("b.xlsx", "w", method) as changed,
    ):
        for name in whole.namelist():
            changed.writestr(name, content if name == part else whole.read(name))
    return "b.xlsx"


def sheet(rows):
    return f'<worksheet xmlns="{SPACE}"><sheetData>{rows}</sheetData></worksheet>'


@pytest.mark.parametrize("far", ["XFD1", "XFD2", "XFD3", "A1048576", "XFD1048576"])
def test_a_used_cell_far_away_costs_nothing(folder, far):
    table = read_table(book(cells={far: "x", "B1": "id", "B3": 7}), "text")
    assert [row["text"] for row in table.rows[:2]] == ["first", "second"]
    assert [row["id"] for row in table.rows[:2]] == [None, 7]
    assert len(table.columns) <= 3


def test_a_declared_size_is_not_filled_with_empty_cells(folder):
    rows = '<row r="1"><c r="A1" t="str"><v>text</v></c></row><row><c t="str"><v>a</v></c></row>'
    declared = sheet(rows).replace("<sheetData>", '<dimension ref="A1:XFD1048576"/><sheetData>')
    assert read_table(with_part(declared), "text").rows == [{"text": "a"}]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            sheet('<row r="999999999999"><c r="A999999999999" t="str"><v>b</v></c></row>'),
            "holds almost only empty cells",
        ),
        (
            sheet('<row><c t="str"><v>text</v></c></row>' + "<row><c r='XFD2'/></row>" * 400),
            "holds almost only empty cells",
        ),
        (sheet("<row/>" * 4_000_000), "unpacks to far more"),
        (
            "<!DOCTYPE x [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;'>]>" + sheet("<row>&b;</row>"),
            "defines XML entities",
        ),
        (
            ("<?xml version='1.0' encoding='UTF-16'?><!DOCTYPE x>" + sheet("")).encode("utf-16"),
            "defines XML entities",
        ),
        (sheet("<row>")[:90], "is not an Excel workbook"),
        (sheet('<row><c t="s"><v>999</v></c></row>'), "is not an Excel workbook"),
        (sheet('<row r="x"><c t="n"><v>y</v></c></row>'), "is not an Excel workbook"),
    ],
)
def test_a_workbook_that_bites_is_refused(folder, content, says):
    file = with_part(content)
    with pytest.raises(InvalidInputError, match=f"b.xlsx.*{says}"):
        read_table(file, "text")


def test_other_compression_and_many_sheets_are_refused(folder):
    file = with_part(sheet(" " * 100_000), method=zipfile.ZIP_BZIP2)
    with pytest.raises(InvalidInputError, match="compressed in an unusual way"):
        read_table(file, "text")
    with zipfile.ZipFile(book()) as whole:
        listed = whole.read("xl/workbook.xml").decode()
    one = re.search("<sheet [^>]*/>", listed)[0]
    file = with_part(listed.replace(one, one * 50_000), "xl/workbook.xml")
    with pytest.raises(InvalidInputError, match="unpacks to far more"):
        read_table(file, "other")


def test_of_several_sheets_only_headers_and_one_whole_are_read(folder, monkeypatch):
    made = pytest.importorskip("openpyxl").Workbook()
    for number in range(5):
        page = made.create_sheet(f"s{number}")
        page.append(["other" if number != 3 else "text"])
        for row in range(50):
            page.append([f"s{number} {row}"])
    made.save("many.xlsx")
    lines, real = [], xlsx._lines

    def counted(path, page):
        for line in real(path, page):
            lines.append(line)
            yield line

    monkeypatch.setattr(xlsx, "_lines", counted)
    assert read_table("many.xlsx", "text").texts[0] == "s3 0"
    assert len(lines) == 4 + 51


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", 'text,b\na,b\n"open,x\n' + "more,x\n" * 50, "line 3: a quote opens and is never"),
        ("a.csv", '"text,b\n' + "more,x\n" * 50, "line 1: a quote opens and is never closed"),
        ("a.csv", "text,b\nx,1\ntext,b\ny,2\n", "its header again, in row 2 below it"),
        ("a.csv", "text\n" + "a\n" * 3_000 + "b\0c\n", "zero byte in line 3002"),
        (
            "a.csv",
            "text," + ",".join(f"c{i}" for i in range(10_000)) + "\n" + "a\n" * 5_000,
            "10,001 columns and 5,000 rows, almost all of whose cells are empty",
        ),
        ("a.json", "[" * 100_000, "is not JSON"),
        ("a.jsonl", '{"text": "a", "more": ' + "[" * 400 + "]" * 400 + "}", "'more' is nested too"),
        ("a.json", '[{"text": "a", "more": ' + "[" * 400 + "]" * 400 + "}]", "'more' is nested"),
    ],
)
def test_a_table_that_bites_is_refused(folder, name, content, says):
    (folder / name).write_text(content)
    with pytest.raises(InvalidInputError, match=f"{name}.*{re.escape(says)}"):
        read_table(name, "text")


@pytest.mark.parametrize("name", ["a.csv", "a.txt"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_table_takes_a_few_times_the_memory_of_its_file(folder, name, end):
    lines = ["text", *(f"line {i} " + "word " * 100 for i in range(5_000))]
    (folder / name).write_bytes(end.join(lines).encode())
    tracemalloc.start()
    texts = read_table(name, "text").texts
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [text.strip() for text in texts[-5_000:]] == [line.strip() for line in lines[1:]]
    assert peak < 5 * sum(map(len, lines))


def test_a_field_of_many_millions_of_characters_is_refused(folder, monkeypatch):
    monkeypatch.setattr(jsonl, "LONGEST_FIELD", 200_000)
    (folder / "a.csv").write_text(f"text\na\n{'b' * 200_000}\n")
    assert len(read_table("a.csv", "text").texts[1]) == 200_000
    (folder / "a.csv").write_text(f"text\na\n{'b' * 200_001}\n")
    with pytest.raises(InvalidInputError, match=r"line 3: a field has over 16 million characters"):
        read_table("a.csv", "text")
    for name, line in (("a.jsonl", '{"text":"%s"}'), ("a.txt", "%s")):
        for more in (0, 1):
            long = line % ("b" * (200_000 + more - len(line % "")))
            (folder / name).write_text(f"{line % 'a'}\n{long}\n")
            if not more:
                assert len(read_table(name, "text").rows) == 2
        with pytest.raises(InvalidInputError, match=f"{name} has a line of 200,001 char"):
            read_table(name, "text")


def test_quotes_over_several_lines_are_read_to_the_end(folder):
    (folder / "a.csv").write_text('text\none\n"two\nthree\n""four"" five"')
    assert read_table("a.csv", "text").texts == ["one", 'two\nthree\n"four" five']
    (folder / "b.csv").write_text("text" + "," * 50_000 + "\n" + "a\n" * 20_000)
    table = read_table("b.csv", "text")
    assert (table.columns, len(table.rows)) == (["text"], 20_000)


def test_rows_are_as_wide_as_the_header(folder):
    (folder / "a.csv").write_text("text,,n,\na,,1,x\nb\n\nc,y\n")
    table = read_table("a.csv", "text")
    assert table.columns == ["text", "unnamed column 2", "n", "unnamed column 4"]
    assert [list(row.values()) for row in table.rows] == [
        ["a", "", "1", "x"],
        ["b", "", "", ""],
        ["c", "y", "", ""],
    ]


def laughs(levels=9):
    lines = ["a: &a [x, x]"]
    for level in range(levels):
        name, below = chr(98 + level), ", ".join([f"*{chr(97 + level)}"] * 9)
        lines.append(f"{name}: &{name} [{below}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (laughs(), "line 2: *a is an alias"),
        ("&a\n- *a\n", "line 2: *a is an alias"),
        # the second took the place of the first, and of the labels below it
        ("refund:\n  late: x\nother: y\nrefund:\n  lost: z\n", "'refund' twice in one place"),
        ("[" * 5_000, "is nested too deep"),
        ("- a\n" * 300_000, "1,200,000 characters"),
        ("{a: " * 60 + "b" + "}" * 60, "deeper than 32 levels"),
    ],
)
@pytest.mark.slow
def test_labels_in_yaml_that_bite_are_refused(folder, content, says):
    pytest.importorskip("yaml")
    (folder / "labels.yaml").write_text(content)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInputError, match=re.escape(says)):
            read_labels("labels.yaml")
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"refund": "money", "other": "x", "refund": "late"}', "'refund' twice in one place"),
        ('{"card": {"lost": ["a"], "lost": ["b"]}}', "'lost' twice in one place"),
        ('[{"label": "refund", "label": "card"}]', "'label' twice in one place"),
        ('[{"label": true}, {"label": "card"}]', "True; labels and descriptions are text"),
        ('[{"label": "a", "description": ["b"]}]', "['b']; labels and descriptions are text"),
        (
            '{"refund": "money", "other" "x"}',
            "is not JSON: Expecting ':' delimiter: line 1 column 29",
        ),
        # too deep for json, or for labels: that depends on Python
        ('{"a": ' * 1_010 + '"x"' + "}" * 1_010, "nested"),
    ],
)
def test_labels_in_json_that_bite_are_refused(folder, content, says):
    (folder / "labels.json").write_text(content)
    for given in ("labels.json", content):
        with pytest.raises(InvalidInputError, match=re.escape(says)):
            read_labels(given)


def test_numbers_in_json_are_labels_as_in_yaml_and_tables(folder):
    """They were refused, and a number of thousands of digits ended in a traceback."""
    long = "1" * 5_000
    (folder / "labels.json").write_text(f"[1, 2.50, {long}]")
    assert read_labels("labels.json") == ["1", "2.50", long]


def test_anchors_alone_and_deep_labels_in_json(folder):
    pytest.importorskip("yaml")
    (folder / "labels.yaml").write_text("- &first refund\n- delivery\n")
    assert read_labels("labels.yaml") == ["refund", "delivery"]
    (folder / "labels.json").write_text('{"a": ' * 900 + '"x"' + "}" * 900)
    with pytest.raises(InvalidInputError, match="deeper than 32 levels"):
        read_labels("labels.json")


@pytest.mark.parametrize(
    "content",
    [
        "k = " + "[" * 5_000,
        "# " + "a" * 300_000 + "\nk = 1",
        '"=".' + "a." * 60_000 + "a = 1",
        "labels = {" + "a." * 1_200 + "a = 1}",
    ],
)
def test_settings_that_bite_are_refused(folder, content):
    (folder / "testnuc.toml").write_text(content)
    code, _, err = run_here("report", "a.jsonl")
    assert code == 2
    assert "testnuc.toml" in err


def parquet_of(folder, **columns):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    write_table(arrow.table(columns), folder / "a.parquet", compression="zstd")
    assert (folder / "a.parquet").stat().st_size < 50_000
    return "a.parquet"


@pytest.mark.slow
def test_an_export_that_bites_is_not_imported(folder):
    rows = 1000
    same = {"kind": "text", "embedder": "e", "text": "x" * 200_000, "label": "a", "vector": "AAAA"}
    name = parquet_of(folder, **{column: [value] * rows for column, value in same.items()})
    with pytest.raises(InvalidInputError, match=r"a\.parquet unpacks to more than"):
        next(parquet.read(folder / name))
    # a store has any number of rows
    same["text"] = "x" * 20_000
    name = parquet_of(folder, **{column: [value] * 9 * rows for column, value in same.items()})
    assert sum(len(record["text"]) for record in parquet.read(folder / name)) == 180_000_000


def test_a_parquet_file_that_bites_is_refused(folder):
    arrow = pytest.importorskip("pyarrow")

    def repeated(value, times):
        places = arrow.array([0] * times, arrow.int32())
        return arrow.DictionaryArray.from_arrays(places, arrow.array([value]))

    files = (
        # many rows, one long value in many rows, and lists of both
        {"text": repeated("a", 3_000_000)},
        {"text": repeated("a" * 100_000, 3_000)},
        {
            "text": arrow.array(["a"]),
            "more": arrow.ListArray.from_arrays([0, 3_000_000], repeated("b", 3_000_000)),
        },
        {
            "text": arrow.array(["a"]),
            "more": arrow.ListArray.from_arrays([0, 3_000], repeated("b" * 100_000, 3_000)),
        },
    )
    for columns in files:
        before = arrow.total_allocated_bytes()
        with pytest.raises(InvalidInputError, match=r"a\.parquet unpacks to more than"):
            read_table(parquet_of(folder, **columns), "text")
        assert arrow.total_allocated_bytes() - before < 1_000_000
    (folder / "b.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(InvalidInputError, match="is not a Parquet file"):
        read_table("b.parquet", "text")
    rows = {"text": ["a", "b", None], "l": [["x"], None, ["y", "z"]], "m": [{"a": 1}, None, {}]}
    table = read_table(parquet_of(folder, **rows), "text")
    assert table.texts == ["a", "b", None]
    assert [row["l"] for row in table.rows] == rows["l"]
    assert str(table.schema.field("text").type) == "string"


def test_a_time_after_the_year_9999_in_parquet_is_an_error(folder):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    late = arrow.array([1, 2**62], arrow.timestamp("us", "UTC"))
    parquet.write_table(arrow.table({"text": ["a", "b"], "at": late}), folder / "a.parquet")
    with pytest.raises(InvalidInputError, match=r"a\.parquet holds a value that Python cannot"):
        read_table("a.parquet", "text")


def test_settings_without_an_end_take_no_memory(folder):
    with pytest.raises(ConfigurationError, match="more than 200,000 characters"):
        read_settings(Path("/dev/zero"), {})


DEEP = "[" * 1_000 + "]" * 1_000


def test_labels_and_notes_that_are_nested_deep_are_refused(folder):
    (folder / "labels.json").write_text(DEEP)
    with pytest.raises(InvalidInputError):
        LabelSet(read_labels("labels.json"))
    with pytest.raises(InvalidInputError):
        LabelSet({"a": orjson.loads(DEEP), "b": ""})
    (folder / "out.csv.resume").mkdir()
    (folder / "out.csv.resume" / "output.json").write_text(f'{{"options": {{"model": {DEEP}}}}}')
    # Python 3.13 can show what is nested so deep, 3.11 cannot
    note = RunNote.of("out.csv")
    assert note == RunNote() or repr(note)


@pytest.mark.parametrize("field", ["text", "nuc_label", "nuc_labels", "nuc_run"])
def test_results_that_are_nested_deep_are_shown_or_refused(folder, field):
    lines = ['{"text": "a", "nuc_label": "b"}', f'{{"nuc_run": {{"model": {DEEP}}}}}']
    if field != "nuc_run":
        lines = [lines[0][:-1] + f', "{field}": {DEEP}}}']
    (folder / "r.jsonl").write_text("\n".join(lines))
    try:
        results = Results.from_jsonl("r.jsonl")
    except InvalidInputError:
        return
    assert repr(results[0])
    assert str(results)


def test_a_header_of_commas_is_refused(folder):
    (folder / "in.csv").write_text("text" + "," * 200_000 + "\nhello\n")
    with pytest.raises(InvalidInputError, match="200,001 columns"):
        read_table("in.csv", "text")


def test_more_columns_than_a_sheet_has_are_refused_before_any_call(folder):
    pytest.importorskip("openpyxl")
    wide = ["text", *(f"c{number}" for number in range(16_380))]
    (folder / "wide.csv").write_text(f"{','.join(wide)}\na{',' * 16_380}\nb{',' * 16_380}\n")
    # a call would be refused: the address is that of no server
    nowhere = ["--labels", "a,b", "--base-url", "http://127.0.0.1:9/v1", "--model", "openai/test"]
    code, _, err = run_here("classify", "wide.csv", *nowhere, "-o", "out.xlsx")
    assert code == 2
    assert "out.xlsx cannot hold 2 rows of 16,381 columns; name a .csv file" in err


def test_half_characters_are_refused_before_any_call(folder):
    (folder / "in.csv").write_bytes(b"text,x\none,a\nL:a,+2AA-\n")
    with pytest.raises(InvalidInputError, match=r"a lone surrogate .* in line 3"):
        read_table("in.csv", "text", encoding="utf-7")


def labeled(label, prediction):
    return Classification(0, "a", label, 0.0, 0.0, 1, True, prediction, (), {})


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".xlsx", ".jsonl"])
def test_what_an_llm_says_can_be_read_again(folder, kind):
    said = "q\0z\ufffe\uffff\x01=1"
    row = labeled(None, Prediction(None, 0.5, said))
    write_results(f"out{kind}", Table([{"text": "a\uffff"}], ["text"], "text"), {0: row}, {})
    table = read_table(f"out{kind}", "text")
    assert table.rows[0]["nuc_error"].startswith("the LLM said what is no label: q")
    assert result_of(table.rows[0], 0, "text").prediction.said[0] == "q"


@pytest.mark.parametrize("kind", [".csv", ".json", ".jsonl", ".xlsx"])
def test_what_is_read_can_be_written_beside_its_label(folder, kind):
    """Else the table fails once its labels are paid for."""
    (folder / "in.jsonl").write_text('{"text": "a", "deep": %s}' % ("[" * 253 + "]" * 253))
    many = "1" * 25
    names = "".join(f'<c t="inlineStr"><is><t>{name}</t></is></c>' for name in ("text", "id"))
    first = f'<c t="inlineStr"><is><t>first</t></is></c><c><v>{many}</v></c>'
    for file in ("in.jsonl", with_part(sheet(f"<row>{names}</row><row>{first}</row>"))):
        table = read_table(file, "text")
        write_results(f"out{kind}", table, {0: labeled("b", None)}, {})
        assert read_table(f"out{kind}", "text").texts[0] in {"a", "first"}
    assert str(read_table(f"out{kind}", "text").rows[0]["id"]) == many
    (folder / "in.jsonl").write_text('{"text": "a", "deep": %s}' % ("[" * 254 + "]" * 254))
    with pytest.raises(InvalidInputError, match=r"in.jsonl, row 1: .deep. is nested too deep"):
        read_table("in.jsonl", "text")


def test_columns_of_an_earlier_run_do_not_stay(folder):
    earlier = {"text": "a", "nuc_labels": ["x"], "nuc_path": ["y"], "mine": 1, "nuc_neighbors": []}
    result = labeled("b", None)
    write_results("out.jsonl", Table([earlier], list(earlier), "text"), {0: result}, {})
    row = json.loads((folder / "out.jsonl").read_text())
    assert (row["nuc_label"], row["mine"]) == ("b", 1)
    assert not {"nuc_labels", "nuc_path", "nuc_neighbors"} & row.keys()


def test_a_line_of_text_stays_beside_its_label(folder):
    (folder / "in.txt").write_text("one\n\ntwo\n   \nthree\n\n")
    assert read_table("in.txt", "text").texts == ["one", "", "two", "", "three"]


SEVERAL = {
    "text": "a", "nuc_label": "b; c", "nuc_labels": ["b", "c"], "nuc_own_label": "b",
    "nuc_own_labels": ["b"], "nuc_own_confidences": [0.5], "nuc_shares": {"b": 0.5, "c": 0.5},
}  # fmt: skip
TREE = {
    "text": "a", "nuc_label": "b > c", "nuc_path": ["b", "b > c"], "nuc_path_shares": [1, 1],
    "nuc_path_trusts": [None, 0.5],
}  # fmt: skip


@pytest.mark.parametrize(
    ("record", "changes"),
    [
        *((SEVERAL, {name: 5}) for name in SEVERAL if name != "text"),
        (SEVERAL, {"nuc_own_labels": ["b", "c"]}),
        (SEVERAL, {"nuc_own_confidences": [0.5, 0.5]}),
        (SEVERAL, {"nuc_shares": {"b": "x"}}),
        (SEVERAL, {"nuc_trusts": ["b"]}),
        (TREE, {"nuc_path": ["b"]}),
        (TREE, {"nuc_path_trusts": [0.5]}),
        (TREE, {"nuc_path_shares": 5}),
    ],
)
def test_edited_results_are_refused(folder, record, changes):
    (folder / "r.jsonl").write_bytes(orjson.dumps(record))
    Results.from_jsonl("r.jsonl")
    (folder / "r.jsonl").write_bytes(orjson.dumps(record | changes))
    with pytest.raises(InvalidInputError, match="not written by testnuc"):
        Results.from_jsonl("r.jsonl")


@pytest.mark.parametrize("trust", [-0.5, 2, 1e30])
def test_a_trust_that_is_no_chance_is_refused(folder, trust):
    record = {"text": "a", "nuc_label": "b", "nuc_trust": trust}
    (folder / "r.jsonl").write_bytes(orjson.dumps(record))
    with pytest.raises(InvalidInputError, match="between 0 and 1"):
        Results.from_jsonl("r.jsonl")


@pytest.mark.parametrize(
    "made",
    [
        "CREATE VIEW v AS SELECT 1",
        "CREATE TRIGGER t AFTER INSERT ON predictions BEGIN SELECT 1; END",
        "CREATE VIRTUAL TABLE f USING fts5(x)",
        "CREATE INDEX i ON predictions (hex(zeroblob(20000000)))",
        "CREATE INDEX i ON predictions (label) WHERE label > hex(zeroblob(20000000))",
        "ALTER TABLE predictions ADD COLUMN g TEXT AS (hex(zeroblob(20000000)))",
        "ALTER TABLE predictions ADD COLUMN c TEXT CHECK (c > hex(zeroblob(20000000)))",
    ],
)
async def test_a_store_with_code_is_refused(folder, made):
    store = SqliteStore(folder / "s.db")
    await store.open()
    await store.close()
    with closing(sqlite3.connect("s.db")) as connection:
        connection.execute(made)
    with pytest.raises(StoreError, match="does not create"):
        await SqliteStore(folder / "s.db").open()


def test_a_label_that_is_zero_is_one(folder):
    (folder / "labels.jsonl").write_text('{"label": 0}\n{"label": 1}\n')
    assert read_labels("labels.jsonl") == ["0", "1"]


def test_records_with_keys_of_their_own_fill_no_table(folder):
    rows = [{"text": f"t{r}", **{f"{r}_{i}": 0 for i in range(50)}} for r in range(800)]
    (folder / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = ["classify", "in.jsonl", "--labels", "a,b", "--dry-run"]
    for kind in (".csv", ".xlsx", ".parquet"):
        code, _, err = run_here(*given, "-o", f"out{kind}")
        assert (code, "almost all of whose cells are empty" in err) == (2, True)
    assert run_here(*given, "-o", "out.jsonl")[0] == 0


@pytest.mark.parametrize("kind", ["device", "fifo", "large"])
def test_a_note_that_is_none_is_not_read(folder, kind):
    (folder / "out.csv").write_text("text,nuc_label\na,b\n")
    (folder / "out.csv.resume").mkdir()
    note = folder / "out.csv.resume" / "output.json"
    if kind == "device":
        note.symlink_to("/dev/zero")
    elif kind == "fifo":
        os.mkfifo(note)
    else:
        with note.open("wb") as file:
            file.truncate(1 << 40)
    assert RunNote.of("out.csv") == RunNote()
