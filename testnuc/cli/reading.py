"""Read files of texts: .csv, .tsv, .json, .jsonl, .parquet, .txt and .xlsx, or stdin."""

import csv
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson

from testnuc._base import jsonl
from testnuc._base.checks import valid_text
from testnuc._base.jsonl import bytes_of, json_object, json_of, lines_of, long_fields, unguarded
from testnuc.cli import parquet, xlsx
from testnuc.cli.decoding import (
    DELIMITER_LINE,
    DELIMITERS,
    checked_delimiter,
    decoded,
    delimiter_of,
    named,
    rows_by_name,
)
from testnuc.cli.memory import RunNote, text_mark
from testnuc.errors import InvalidInputError
from testnuc.records import PREFIX, line_of
from testnuc.results import Results, read_results

KINDS = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".xlsx", ".txt")
#: The file name that means stdin or stdout.
STANDARD = "-"
#: Likely names of a column of texts.
_LIKELY = ("text", "texts", "message", "content", "body", "description", "question", "comment")
#: Rows that are read to find the column of texts.
_LOOKED_AT = 50
#: Fewer texts are not said to look like ids.
_FEW = 10
#: First bytes of files that hold no plain text.
_MARKS = {
    b"PK\x03\x04": "an Excel workbook, perhaps; name it .xlsx",
    b"PAR1": "a Parquet file; name it .parquet",
}


@dataclass(frozen=True)
class Table:
    """The rows of a file of texts, or the texts of a store."""

    rows: list[dict[str, Any]]
    columns: list[str]
    text_column: str
    #: The file or store, for messages.
    file: str = "the table"
    #: The schema of a Parquet file.
    schema: Any = None
    #: Of a CSV file; an output in CSV has it, too.
    delimiter: str = ","
    encoding: str = "utf-8"
    #: The record of the run that wrote the file, if the file holds one.
    run: Sequence[Mapping[str, Any]] = ()

    @property
    def texts(self) -> list[Any]:
        """The text of each row."""
        return [row.get(self.text_column) for row in self.rows]

    @cached_property
    def note(self) -> RunNote:
        """The note of the file as it was read: to find it, the whole file is hashed."""
        return RunNote.of(self.file)

    @cached_property
    def later(self) -> set[int]:
        """The rows with a text that was not in the file when it was written, as its note says."""
        noted, texts = {*self.note.texts}, enumerate(self.texts)
        valid = ((at, text) for at, text in texts if noted and valid_text(text) is None)
        return {at for at, text in valid if text_mark(text) not in noted}

    @cached_property
    def results(self) -> Results:
        """The rows as results; their label set, if the file does not hold it, is of its note."""
        results = read_results(chain(self.rows, self.run), self.file, self.text_column)
        if not results.choices:
            options = self.note.options
            name_labels(results, options.get("labels") or (), options.get("none_label"))
        return results


def name_labels(
    results: Results, labels: Sequence[str] | Mapping[str, str], none_label: str | None
) -> None:
    """Name the label set of results: all labels, and not only those that occur, can be chosen."""
    results.choices = tuple(dict.fromkeys(filter(None, [*labels, none_label])))
    results.descriptions = dict(labels) if isinstance(labels, Mapping) else {}


def to_stderr(line: str) -> None:
    """Print a line to stderr; the command goes on where nobody can read it."""
    with suppress(OSError, ValueError):
        # both may go to one file
        print(end="", flush=True)
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr)


def read_table(
    file: str,
    text_column: str,
    *,
    encoding: str | None = None,
    delimiter: str | None = None,
    limit: int | None = None,
    quiet: bool = False,
    option: str | None = "--text-column",
    guess: bool = True,
) -> Table:
    """Read a file of texts, or `STANDARD`: stdin.

    Encoding and delimiter are recognized by default, and noted on stderr if unusual (not if
    `quiet`). `limit` is a number of rows, `option` the command's option that names the column of
    texts. In a file of results that lacks `text_column` that column is guessed, with `guess`.
    """
    given = checked_delimiter(delimiter)
    kind = None if file == STANDARD else kind_of(file)
    schema, own, found, run = None, ",", "utf-8", list[dict[str, Any]]()
    rows: list[dict[str, Any]]
    if kind == ".parquet":
        rows, schema = parquet.read_rows(existing(file))
        columns = list(schema.names)
    elif kind == ".xlsx":
        columns, rows = xlsx.read_rows(existing(file), text_column, to_stderr)
    else:
        content, found = content_of(file, encoding)
        file = "stdin" if file == STANDARD else file
        kind = kind or _kind_of_content(content, text_column, given)
        if kind == ".txt":
            # not splitlines, which also splits at characters within a line, such as U+2028
            # empty ones as well: an output of lines has one for each
            rows = [{"text": line.strip()} for line in lines_of(content.rstrip())]
            columns, text_column = ["text"], "text"
        elif kind in {".csv", ".tsv"}:
            guessed = "\t" if kind == ".tsv" else delimiter_of(content, (text_column,))
            columns, rows = _csv_rows(file, content, given or guessed)
            if kind == ".csv":
                own = given or (guessed if len(columns) > 1 else ",")
            if not quiet and given is None and own != ",":
                to_stderr(f"note: {file} is read with {named(own)} between columns")
        else:
            # the record of a run, written by `classify --full`, is not a text
            rows = []
            for row in _json_rows(file, content):
                (run if "nuc_run" in row else rows).append(row)
            columns = list(dict.fromkeys(name for row in rows for name in row))
        if not quiet and encoding is None and not found.startswith("utf-8"):
            to_stderr(_about_encoding(file, content, found))
    if not rows:
        raise InvalidInputError(f"{file} has no texts; give a file with at least two")
    text_column = column_of_results(file, text_column, columns, rows, guess=guess)
    _require_columns(file, columns, text_column, rows, option)
    return Table(rows[:limit], columns, text_column, file, schema, own, found, run)


def read_input(given: SimpleNamespace, *, guess: bool = True) -> Table:
    """Read the FILE of a command, with its options about it."""
    how = {name: getattr(given, name) for name in ("encoding", "delimiter", "limit")}
    return read_table(given.file, given.text_column, guess=guess, **how)


def column_of_results(
    file: str,
    name: str,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    *,
    guess: bool = True,
) -> str:
    """Return the column of texts; in a file of results it need not be named again."""
    if "nuc_label" not in columns:
        return name
    noted = RunNote.of(file).text_column
    known = noted if noted in columns else None
    if guess and known is not None and name not in (known, _LIKELY[0]):
        raise InvalidInputError(
            f"the run that wrote {file} read its texts from the column {known!r}; "
            "leave --text-column out"
        )
    if name in columns or name != _LIKELY[0]:
        return name
    if known is None and guess and (known := _longest(rows, columns)) is not None:
        to_stderr(f"note: the texts of {file} are read from the column {known!r} (--text-column)")
    return known or name


def _about_encoding(file: str, content: str, encoding: str) -> str:
    """Return how a file was decoded, with an example by which to see an error."""
    line = f"note: {file} is read as {encoding}"
    if encoding == "cp1252":
        words = re.finditer(r'[^\s,;|"]+', content)
        example = next((word[0] for word in words if not word[0].isascii()), "")[:20]
        line += f", as in {example!r}; if that looks wrong, save it as UTF-8"
    return line


def kind_of(file: str) -> str:
    """Return the suffix of a file of texts."""
    kind = Path(file).suffix.lower()
    if kind not in KINDS:
        more = "; save it as .xlsx or .csv" if kind in {".xls", ".ods", ".numbers"} else ""
        raise InvalidInputError(f"{file} is neither {', '.join(KINDS[:-1])} nor {KINDS[-1]}{more}")
    return kind


def _kind_of_content(content: str, text_column: str, delimiter: str | None) -> str:
    """Return the suffix that stdin would have: JSON, a CSV file with the column, or lines."""
    start = content.lstrip()[:1]
    if start in {"{", "["}:
        return ".jsonl" if start == "{" else ".json"
    header = content.lstrip().split("\n", 1)[0]
    delimiters = DELIMITERS if delimiter is None else (delimiter,)
    with long_fields():
        rows = [next(csv.reader([header.strip()], delimiter=d), []) for d in delimiters]
    return ".csv" if delimiter or any(text_column in row for row in rows) else ".txt"


def holds_rows(file: str) -> bool:
    """Return whether a file is a table of texts, by its name; a .json file, by its start."""
    kind = Path(file).suffix.lower()
    if "://" in file or kind not in KINDS or kind == ".txt":
        return False
    if kind != ".json":
        return True
    try:
        with Path(file).open("rb") as opened:
            return opened.read(256).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    except OSError:
        return False


def content_of(file: str, encoding: str | None = None) -> tuple[str, str]:
    """Return the content of a text file or of stdin, and its encoding."""
    if file == STANDARD:
        if sys.stdin.isatty():
            to_stderr("reading texts from the terminal; end with Ctrl-D")
        raw, name = sys.stdin.buffer.read(), "stdin"
    else:
        raw, name = bytes_of(existing(file)), file
    for mark, kind in _MARKS.items():
        if raw.startswith(mark):
            raise InvalidInputError(f"{name} is {kind}")
    content, found = decoded(raw, name, encoding)
    if not content.strip():
        raise InvalidInputError(f"{name} is empty")
    lined = Path(file).suffix.lower() in {".jsonl", ".txt"}
    if lined and (longest := max(map(len, content.split("\n")))) > jsonl.LONGEST_FIELD:
        raise InvalidInputError(f"{name} has a line of {longest:,} characters, over 16 million")
    return content, found


def existing(file: str) -> Path:
    """Return the path of a file that exists."""
    path = Path(file)
    if not path.exists():
        raise InvalidInputError(f"there is no file {file}; check the path")
    if path.is_dir():
        raise InvalidInputError(f"{file} is a folder; name a file in it")
    return path


def require_column(
    file: str,
    columns: Sequence[str],
    name: str,
    remedy: str,
    *,
    option: str | None = None,
    likely: str | None = None,
) -> None:
    """Check that a file has a column; else list its columns, and name the closest or `likely`."""
    if name in columns:
        return
    folded = {column.strip().casefold(): column for column in columns}
    close = get_close_matches(name.strip().casefold(), folded, 1, 0.7)
    near = folded[close[0]] if close else likely
    if near is not None and option is not None:
        remedy = f"did you mean {option} {near!r}?"
    raise InvalidInputError(
        f"{file} has no column {name!r}; it has {', '.join(map(repr, columns)) or 'none'}: {remedy}"
    )


def require_labels(table: Table, name: str) -> None:
    """Check that a file has the column of labels."""
    remedy = "name the column of labels with --label-column"
    require_column(table.file, table.columns, name, remedy, option="--label-column")


def _require_columns(
    file: str,
    columns: Sequence[str],
    name: str,
    rows: Sequence[Mapping[str, Any]],
    option: str | None,
) -> None:
    """Check that no two columns have one name, and one is that of texts; suggest the likely one."""
    for twice, times in Counter(filter(None, columns)).most_common(1):
        # a row has one value for each name
        if times > 1:
            raise InvalidInputError(
                f"{file} has {times} columns named {twice!r}; rename all but one"
            )
    remedy = f"name the text column with {option}"
    if option is None:
        remedy = f"the column of labels is named {name!r}"
    require_column(file, columns, name, remedy, option=option, likely=_longest(rows, columns))


def _longest(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str | None:
    """Return the column with a likely name, or the one with the longest strings."""
    for name in _LIKELY:
        for column in columns:
            if column.strip().casefold() == name:
                return column
    looked = rows[:_LOOKED_AT]
    sizes = {
        column: sum(len(v) for row in looked if isinstance(v := row.get(column), str))
        for column in columns
        if not column.startswith("nuc_")
    }
    return max(sizes, key=lambda column: sizes[column]) if any(sizes.values()) else None


def usable(table: Table) -> tuple[dict[int, str], list[int]]:
    """Return the problem of each invalid text, and the rows with a valid text, at least one."""
    problems = {at: p for at, text in enumerate(table.texts) if (p := _problem(text))}
    valid = [at for at in range(len(table.rows)) if at not in problems]
    if not valid:
        at, problem = next(iter(problems.items()))
        raise InvalidInputError(f"{table.file} has no usable text: row {at + 1} {problem}")
    return problems, valid


def say_if_ids(table: Table) -> None:
    """Say so if most texts are copies, or look like ids while another column has longer ones."""
    rows = table.rows[:_LOOKED_AT]
    cells = {c: [str(row.get(c) or "") for row in rows] for c in table.columns}
    texts = cells.pop(table.text_column, [])
    distinct = len({*map(str, table.texts)})
    if len(table.rows) >= _FEW * distinct:
        to_stderr(
            f"note: {len(table.rows):,} rows hold {distinct:,} distinct texts in "
            f"{table.text_column!r}; if that is not the text, stop here (Ctrl-C)"
        )
    if len(texts) < _FEW or len({*texts}) < len(texts) or any(" " in text for text in texts):
        return
    longer = max(cells, key=lambda name: sum(map(len, cells[name])), default="")
    if 2 * sum(map(len, texts)) < sum(" " in c and len(c) for c in cells.get(longer, ())):
        to_stderr(
            f"note: the texts in {table.text_column!r} look like ids, as {texts[0]!r}; if those in "
            f"{longer!r} are meant, stop here (Ctrl-C), and give --text-column {longer}"
        )


def _problem(text: Any) -> str | None:
    """Return what is wrong with a text, in words that do not name types of Python."""
    if text is None:
        return "is empty; leave it out"
    if isinstance(text, str):
        return valid_text(text)
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list"}
    return f"is {kinds.get(type(text), 'an object')}, not a text; put it in quotes or leave it out"


def _csv_rows(file: str, content: str, delimiter: str) -> tuple[list[str], list[dict[str, Any]]]:
    lines: list[list[str]] = []
    content = DELIMITER_LINE.sub("", content)
    try:
        lines = _fields(file, content, delimiter)
    except InvalidInputError:
        # Spark, Hadoop and MySQL write a quote inside quotes so
        with suppress(InvalidInputError):
            lines = _fields(file, content.replace('\\"', '""'), delimiter)
        if not lines:
            raise
        to_stderr(f'note: {file} is read with \\" as a quote inside quotes')
    header = lines.pop(0) if lines else []
    if len(header) > 1 and header in lines:
        raise InvalidInputError(
            f"{file} has its header again, in row {lines.index(header) + 1:,} below it, as files "
            "that were joined by `cat` do; remove that row"
        )
    columns, rows = rows_by_name(file, header, lines, "")
    ours = [name for name in columns if name.startswith(PREFIX)]
    for record in rows:
        record.update({name: unguarded(record[name]) for name in ours})
    return columns, rows


def _fields(file: str, content: str, delimiter: str) -> list[list[str]]:
    """Return the rows of a table, without empty ones; a stray quote could move what is between."""
    lines: list[list[str]] = []
    start = 0
    reader = csv.reader(lines_of(content), delimiter=delimiter, strict=True)
    try:
        with long_fields():
            for row in reader:
                start = reader.line_num
                if lines and any(row[len(lines[0]) :]):
                    raise InvalidInputError(
                        f"{file}, line {start} has {len(row)} columns, the header {len(lines[0])}: "
                        f"quote texts that hold {named(delimiter)}, or name another --delimiter"
                    )
                if row:
                    lines.append(row)
    except csv.Error as exc:
        problem = f"cannot be read as CSV: {exc}"
        if "unexpected end" in str(exc):
            problem = "a quote opens and is never closed, so that the rest of the file is one text"
        elif "field limit" in str(exc):
            problem = "a field has over 16 million characters, perhaps as a quote is never closed"
        elif "expected after" in str(exc):
            problem = "a quote closes in the middle of a field"
        raise InvalidInputError(
            f"{file}, line {start + 1}: {problem}; write a quote inside quotes as two quotes"
        ) from exc
    return lines


def _json_rows(file: str, content: str) -> Iterable[dict[str, Any]]:
    """Yield the objects of JSON Lines, or of one JSON array; a string in an array is a text."""
    if not content.lstrip().startswith("["):
        if Path(file).suffix.lower() == ".json":
            raise InvalidInputError(
                f"{file} is not a JSON array of objects or strings; name JSON Lines .jsonl"
            )
        # not splitlines, which also splits at characters that JSON may hold, such as U+2028
        lines = enumerate(content.split("\n"), 1)
        rows = [(number, json_object(line, file, number)) for number, line in lines if line.strip()]
    else:
        items = enumerate(json_of(content, file), 1)
        rows = [(at, {"text": item} if isinstance(item, str) else item) for at, item in items]
    for number, row in rows:
        if not isinstance(row, dict):
            raise InvalidInputError(f"{file}, item {number} is neither an object nor a string")
        for name, value in row.items():
            try:
                # each row is written again beside its label, once that is paid for
                line_of({name: value})
            except (orjson.JSONEncodeError, RecursionError) as exc:
                raise InvalidInputError(
                    f"{file}, row {number}: {name!r} is nested too deep to be written; leave it out"
                ) from exc
        yield row
