"""Files of texts, labels and results: .txt, .csv and .jsonl."""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from testnuc.errors import InvalidInputError
from testnuc.records import cells

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from testnuc.results import Classification

__all__ = ["Table", "check_output", "read_labels", "read_table", "write_results"]

_KINDS = (".csv", ".jsonl", ".txt")

#: What is written beside the input's own columns; the prefix keeps them apart from those.
_COLUMNS = (
    "nuc_label",
    "nuc_share",
    "nuc_margin",
    "nuc_voters",
    "nuc_own_label",
    "nuc_own_confidence",
    "nuc_error",
)


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a file of texts."""

    rows: list[dict[str, Any]]
    columns: list[str]
    text_column: str

    @property
    def texts(self) -> list[Any]:
        """The text of each row."""
        return [row.get(self.text_column) for row in self.rows]


def read_table(file: str, text_column: str) -> Table:
    """Read a file of texts.

    Raises
    ------
    InvalidInputError
        It is not there, of another kind, empty, or has no such column.
    """
    path = _existing(file)
    kind = _kind(file)
    content = _content(path)
    if kind == ".txt":
        lines = [line.strip() for line in content.splitlines()]
        rows: list[dict[str, Any]] = [{"text": line} for line in lines if line]
        columns, text_column = ["text"], "text"
    elif kind == ".csv":
        reader = csv.DictReader(io.StringIO(content, newline=""), restkey="(more)")
        columns = list(reader.fieldnames or [])
        rows = list(reader)
    else:
        rows = _json_lines(file, content)
        columns = list(dict.fromkeys(name for row in rows for name in row))
    if not rows:
        raise InvalidInputError(f"{file} has no texts; give a file with at least two")
    if text_column not in columns:
        raise InvalidInputError(
            f"{file} has no column {text_column!r}; it has {', '.join(map(repr, columns))}: "
            "name the one with the texts by --text-column"
        )
    return Table(rows, columns, text_column)


def read_labels(given: str) -> list[str] | dict[str, str]:
    """Read labels from a file, or from a list separated by commas.

    Raises
    ------
    InvalidInputError
        The file is not there, or holds no labels.
    """
    path = Path(given)
    if path.suffix not in (".txt", ".json") and not path.is_file():
        return [label for part in given.split(",") if (label := part.strip())]
    content = _content(_existing(given))
    if path.suffix != ".json":
        return [label for line in content.splitlines() if (label := line.strip())]
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as exc:
        raise InvalidInputError(f"{given} is not JSON: {exc}") from exc
    if isinstance(value, dict | list):
        return value
    raise InvalidInputError(f"{given} holds {type(value).__name__}; give a list or an object")


def check_output(output: str | None, file: str, *, full: bool = False) -> None:
    """Refuse an output that cannot be written, before anything is spent."""
    if output is None:
        return
    if full and Path(output).suffix.lower() != ".jsonl":
        raise InvalidInputError(f"{output} cannot hold neighbors and votes (--full); name a .jsonl")
    _kind(output)
    path = Path(output)
    if not path.parent.is_dir():
        raise InvalidInputError(f"{output}: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise InvalidInputError(f"{output} is a folder; name a file in it")
    if path.exists() and path.samefile(file):
        raise InvalidInputError(f"{output} is the input itself; name another file")


def write_results(
    output: str | None,
    table: Table,
    results: Mapping[int, Classification],
    problems: Mapping[int, str],
    *,
    run: Mapping[str, Any] | None = None,
) -> None:
    """Write each row with its label; JSON Lines to the terminal where no file is named.

    With a record of the run all of each result is written, and the record after the last.
    """
    rows = [
        {**row, **_cells(results.get(at), problems.get(at), full=run is not None)}
        for at, row in enumerate(table.rows)
    ]
    if run is not None:
        rows.append(dict(run))
    kind = ".jsonl" if output is None else _kind(output)
    if kind == ".txt":
        text = "".join(f"{row['nuc_label'] or ''}\n" for row in rows)
    elif kind == ".csv":
        text = _as_csv([*table.columns, *_COLUMNS], rows)
    else:
        text = "".join(orjson.dumps(row).decode() + "\n" for row in rows)
    if output is None:
        sys.stdout.write(text)
    else:
        # a new file first: an interruption must not leave half of one
        whole = Path(output)
        part = whole.with_name(whole.name + ".part")
        part.write_text(text, encoding="utf-8", newline="")
        part.replace(whole)


def _cells(result: Classification | None, problem: str | None, *, full: bool) -> dict[str, Any]:
    if result is None:
        return dict.fromkeys(_COLUMNS) | {"nuc_error": problem}
    if full:
        return cells(result)
    own = result.prediction
    values = (
        result.label,
        round(result.share, 6),
        round(result.margin, 6),
        result.voters,
        None if own is None else own.label,
        None if own is None else own.confidence,
        None if result.error is None else f"{type(result.error).__name__}: {result.error}",
    )
    return dict(zip(_COLUMNS, values, strict=True))


def _as_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _existing(file: str) -> Path:
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
        # utf-8-sig: spreadsheets put a byte order mark in front of the first column's name
        content = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InvalidInputError(f"{path} is not UTF-8: {exc}; save it as UTF-8") from exc
    except OSError as exc:
        raise InvalidInputError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    if not content.strip():
        raise InvalidInputError(f"{path} is empty")
    return content


def _json_lines(file: str, content: str) -> list[dict[str, Any]]:
    rows = []
    # not splitlines: JSON may hold what else that takes for the end of a line, such as U+2028
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as exc:
            raise InvalidInputError(f"{file}, line {number} is not JSON: {exc}") from exc
        if not isinstance(row, dict):
            raise InvalidInputError(f"{file}, line {number} is no JSON object")
        rows.append(row)
    return rows
