"""Files of texts, labels and results: .txt, .csv, .jsonl and .parquet."""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from testnuc._base.checks import valid_text
from testnuc._base.jsonl import json_object, write_whole
from testnuc.errors import InvalidInputError
from testnuc.results import file_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from testnuc.types import Classification

__all__ = [
    "Table",
    "check_output",
    "existing",
    "read_labels",
    "read_table",
    "require_column",
    "require_folder",
    "require_store",
    "tell",
    "usable",
    "write_results",
]

_KINDS = (".csv", ".jsonl", ".parquet", ".txt")

#: Columns added to those of the input, with Arrow types.
_TYPES = {
    "nuc_label": "string",
    "nuc_trust": "float64",
    "nuc_share": "float64",
    "nuc_margin": "float64",
    "nuc_voters": "int32",
    "nuc_own_label": "string",
    "nuc_own_confidence": "float64",
    "nuc_own_said": "string",
    "nuc_error": "string",
    "nuc_source": "string",
}


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a file of texts."""

    rows: list[dict[str, Any]]
    columns: list[str]
    text_column: str
    #: The schema of a Parquet file.
    schema: Any = None

    @property
    def texts(self) -> list[Any]:
        """The text of each row."""
        return [row.get(self.text_column) for row in self.rows]


def read_table(file: str, text_column: str) -> Table:
    """Read a file of texts.

    Raises
    ------
    InvalidInputError
        It is missing, empty, of an unknown format, or lacks the column.
    """
    path = existing(file)
    kind = _kind(file)
    rows: list[dict[str, Any]]
    schema = None
    content = "" if kind == ".parquet" else _content(path)
    if kind == ".parquet":
        from testnuc.cli import parquet

        rows, schema = parquet.read_rows(path)
        columns = list(schema.names)
    elif kind == ".txt":
        lines = [line.strip() for line in content.splitlines()]
        rows = [{"text": line} for line in lines if line]
        columns, text_column = ["text"], "text"
    elif kind == ".csv":
        columns, rows = _csv_rows(file, content)
    else:
        # the record of a run, written by `classify --full`, is not a text
        rows = [row for row in _json_lines(file, content) if "nuc_run" not in row]
        columns = list(dict.fromkeys(name for row in rows for name in row))
    if not rows:
        raise InvalidInputError(f"{file} has no texts; give a file with at least two")
    require_column(file, columns, text_column, "name the text column with --text-column")
    return Table(rows, columns, text_column, schema)


def require_column(file: str, columns: Sequence[str], name: str, remedy: str) -> None:
    """Check that a file has a column.

    Raises
    ------
    InvalidInputError
        It does not; the message lists its columns.
    """
    if name not in columns:
        raise InvalidInputError(
            f"{file} has no column {name!r}; it has {', '.join(map(repr, columns))}: {remedy}"
        )


def require_folder(output: str) -> None:
    """Check that the folder of an output file exists."""
    folder = Path(output).absolute().parent
    if not folder.is_dir():
        raise InvalidInputError(
            f"{output}: there is no folder {Path(output).parent}; create it first"
        )


def tell(line: str) -> None:
    """Print a line to stderr."""
    print(line, file=sys.stderr)  # noqa: T201 - the command's output


def require_store(place: str) -> None:
    """Check that a store exists, if it is a path."""
    if "://" not in place and not Path(place).is_file():
        raise InvalidInputError(f"there is no store {place}; check the path")


def usable(table: Table, file: str) -> tuple[dict[int, str], list[int]]:
    """Return the problem of each invalid text, and the rows with a valid text.

    Raises
    ------
    InvalidInputError
        No text is valid.
    """
    problems = {at: p for at, text in enumerate(table.texts) if (p := valid_text(text))}
    valid = [at for at in range(len(table.rows)) if at not in problems]
    if not valid:
        at, problem = next(iter(problems.items()))
        raise InvalidInputError(f"{file} has no usable text: row {at + 1} {problem}")
    return problems, valid


def read_labels(given: str) -> list[str] | dict[str, str]:
    """Read labels from a file, or from a list separated by commas.

    Raises
    ------
    InvalidInputError
        The file is missing, or holds no labels.
    """
    if given.lstrip()[:1] in {"[", "{"}:
        # from a settings file or the environment
        return _labels_in_json("labels", given)
    path = Path(given)
    if path.suffix not in (".txt", ".json") and not path.is_file():
        return [label for part in given.split(",") if (label := part.strip())]
    content = _content(existing(given))
    if path.suffix != ".json":
        return [label for line in content.splitlines() if (label := line.strip())]
    return _labels_in_json(given, content)


def _labels_in_json(name: str, content: str) -> list[str] | dict[str, str]:
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as exc:
        raise InvalidInputError(f"{name} is not JSON: {exc}") from exc
    if isinstance(value, dict | list):
        return value
    raise InvalidInputError(f"{name} holds {type(value).__name__}; give a list or an object")


def check_output(output: str | None, file: str, table: Table, *, full: bool = False) -> None:
    """Check that the output can be written, before any call."""
    if output is None:
        return
    if full and Path(output).suffix.lower() != ".jsonl":
        raise InvalidInputError(f"{output} cannot hold neighbors and votes (--full); name a .jsonl")
    _kind(output)
    path = Path(output)
    require_folder(output)
    if path.is_dir():
        raise InvalidInputError(f"{output} is a folder; name a file in it")
    if path.exists() and path.samefile(file):
        raise InvalidInputError(f"{output} is the input itself; name another file")
    if path.suffix.lower() == ".parquet":
        from testnuc.cli import parquet

        parquet.schema_of(table.rows, table.schema, {})


def write_results(
    output: str | None,
    table: Table,
    results: Mapping[int, Classification],
    problems: Mapping[int, str],
    *,
    run: Mapping[str, Any] | None = None,
) -> None:
    """Write each row with its label; to stdout as JSON Lines if no file is named.

    With a record of the run, write all fields of each result, then that record.
    """
    rows = [
        {**row, **_cells(results.get(at), problems.get(at), full=run is not None)}
        for at, row in enumerate(table.rows)
    ]
    if run is not None:
        rows.append(dict(run))
    kind = ".jsonl" if output is None else _kind(output)
    if output is not None and kind == ".parquet":
        from testnuc.cli import parquet

        parquet.write_rows(Path(output), rows, table.schema, _TYPES)
        return
    if kind == ".txt":
        text = "".join(f"{row['nuc_label'] or ''}\n" for row in rows)
    elif kind == ".csv":
        text = _as_csv([*(c for c in table.columns if c not in _TYPES), *_TYPES], rows)
    else:
        text = "".join(orjson.dumps(row, default=str).decode() + "\n" for row in rows)
    if output is None:
        sys.stdout.write(text)
    else:
        write_whole(output, [text.encode("utf-8", "replace")])


def _cells(result: Classification | None, problem: str | None, *, full: bool) -> dict[str, Any]:
    if result is None:
        return dict.fromkeys(_TYPES) | {"nuc_error": problem}
    fields = file_row(result, full=full)
    return fields if full else {name: fields[name] for name in _TYPES}


def _as_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _csv_rows(file: str, content: str) -> tuple[list[str], list[dict[str, Any]]]:
    # a text may exceed the default field limit of 128 kB; the content is in memory anyway
    before = csv.field_size_limit(max(len(content), 1))
    try:
        reader = csv.DictReader(io.StringIO(content, newline=""), restkey="(more)")
        return list(reader.fieldnames or []), list(reader)
    except csv.Error as exc:
        raise InvalidInputError(f"{file} cannot be read as CSV: {exc}") from exc
    finally:
        csv.field_size_limit(before)


def existing(file: str) -> Path:
    """Return the path of a file that exists.

    Raises
    ------
    InvalidInputError
        It does not, or is a folder.
    """
    path = Path(file)
    if not path.exists():
        raise InvalidInputError(f"there is no file {file}; check the path")
    if path.is_dir():
        raise InvalidInputError(f"{file} is a folder; name a file in it")
    return path


def _kind(file: str) -> str:
    kind = Path(file).suffix.lower()
    if kind not in _KINDS:
        raise InvalidInputError(f"{file} is neither {', '.join(_KINDS[:-1])} nor {_KINDS[-1]}")
    return kind


def _content(path: Path) -> str:
    try:
        # utf-8-sig: spreadsheets write a byte order mark before the first column's name
        content = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InvalidInputError(f"{path} is not UTF-8: {exc}; save it as UTF-8") from exc
    except OSError as exc:
        raise InvalidInputError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    if not content.strip():
        raise InvalidInputError(f"{path} is empty")
    return content


def _json_lines(file: str, content: str) -> list[dict[str, Any]]:
    # not splitlines, which also splits at characters that JSON may hold, such as U+2028
    lines = enumerate(content.split("\n"), 1)
    return [json_object(line, file, number) for number, line in lines if line.strip()]
