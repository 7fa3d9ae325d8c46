"""Outputs of commands: what may be written, and rows in each format."""

import csv
import io
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from testnuc._base.jsonl import guarded, write_whole
from testnuc.cli import parquet, xlsx
from testnuc.cli.decoding import require_filled
from testnuc.cli.reading import STANDARD, Table, kind_of, to_stderr
from testnuc.errors import InvalidInputError
from testnuc.records import CERTIFIED, PREFIX, SHORT, cell_of, file_row, line_of, short_row
from testnuc.types import CELLS, Classification

#: Fields of a label in a tree.
_LEVELS = ("nuc_path", "nuc_path_shares", "nuc_path_trusts")

#: Fields of the columns added to those of the input, in order; by default the first six.
_FIELDS = (
    "label trust certified source own_label error share margin voters alternative "
    "trust_of_alternative reason own_confidence own_said"
)
#: Column -> Arrow type.
_TYPES = {PREFIX + name: CELLS.get(name, "string") for name in _FIELDS.split()}


def require_store(place: str) -> None:
    """Check that a store exists, if it is a path."""
    if "://" not in place and not Path(place).is_file():
        raise InvalidInputError(f"there is no store {place}; check the path")


def require_kind(output: str | None, *kinds: str, what: str = "output") -> None:
    """Check the suffix of an output."""
    if output is not None and Path(output).suffix.lower() not in kinds:
        *others, last = kinds
        listed = f"{', '.join(others)} or {last}" if others else last
        raise InvalidInputError(f"the {what} is {output!r}; name a {listed} file")


def require_new(output: str | None, *kinds: str, overwrite: bool, what: str = "output") -> None:
    """Check that no file is overwritten by mistake, and its suffix if kinds are given."""
    if kinds:
        require_kind(output, *kinds, what=what)
    if output is not None and not overwrite and Path(output).exists():
        named = "-o" if what == "output" else f"--{what}"
        raise InvalidInputError(
            f"{output} exists; add --overwrite to replace it, or name another {named}"
        )


def free_name(output: str) -> str:
    """Return the name of an output, with a number if a file has it: review.json, review-2.json."""
    path, number = Path(output), 1
    while path.exists():
        number += 1
        path = Path(output).with_stem(f"{Path(output).stem}-{number}")
    return str(path)


def check_output(output: str | None, table: Table, *, overwrite: bool = True) -> None:
    """Check that the output can be written, before any call."""
    if output is None or output == STANDARD:
        return
    kind = kind_of(output)
    if Path(output).is_dir():
        raise InvalidInputError(f"{output} is a folder; name a file in it")
    require_new(output, overwrite=overwrite)
    if kind not in {".json", ".jsonl", ".txt"}:
        require_filled(table.file, len(table.columns), len(table.rows), sum(map(len, table.rows)))
    if kind == ".parquet":
        parquet.schema_of(table.rows, table.schema, {})
    if kind == ".xlsx":
        xlsx.require_room(output, len(table.columns), table.rows, to_stderr)


def write_results(
    output: str | None,
    table: Table,
    results: Mapping[int, Classification],
    problems: Mapping[int, str],
    *,
    run: Mapping[str, Any] | None = None,
    certified: Collection[int] | None = None,
) -> None:
    """Write each row with its label; to stdout as JSON Lines if no file is named.

    With a record of the run, write all fields of each result; JSON Lines also have votes and
    neighbors, and that record at the end. `certified` are the rows that are; None: unknown.
    """
    known = output is None or output == STANDARD or Path(output).suffix.lower() == ".jsonl"
    lines = known and run is not None
    # what an earlier run wrote would stand beside the new labels
    own = [name for name in table.columns if not name.startswith(PREFIX)]
    types = dict(islice(_TYPES.items(), len(SHORT) + 1) if run is None else _TYPES)
    tree = run is not None and any(result.path is not None for result in results.values())
    types |= dict.fromkeys(_LEVELS if tree else (), "string")
    empty: dict[str, Any] = dict.fromkeys(name for name in types if name not in _LEVELS)
    fields = short_row if run is None else partial(file_row, full=lines)
    rows = []
    for at, row in enumerate(table.rows):
        cells = empty | (fields(results[at]) if at in results else {"nuc_error": problems.get(at)})
        cells[CERTIFIED] = None if certified is None else "yes" if at in certified else "no"
        rows.append({name: row[name] for name in own if name in row} | cells)
    if lines and run is not None:
        rows.append(dict(run))
    if output is None or output == STANDARD:
        _write_out(b"".join(map(line_of, rows)).decode())
        return
    kind = kind_of(output)
    if kind != ".jsonl":
        # a cell holds no list
        rows = [{n: cell_of(v) if n in _LEVELS else v for n, v in row.items()} for row in rows]
    columns = [*own, *types]
    if kind == ".parquet":
        parquet.write_rows(Path(output), rows, table.schema, types)
        return
    if kind == ".xlsx":
        xlsx.write_rows(Path(output), columns, rows)
        return
    encoding = "utf-8"
    if kind == ".txt":
        text = "".join(f"{row['nuc_label'] or ''}\n" for row in rows)
    elif kind in {".csv", ".tsv"}:
        between = "\t" if kind == ".tsv" else table.delimiter
        plain = ({name: _csv_cell(name, row[name]) for name in row} for row in rows)
        text = csv_of(columns, plain, between)
        # a spreadsheet reads UTF-8 as another encoding unless a mark says so
        encoding = "utf-8" if table.encoding == "utf-8" else "utf-8-sig"
    elif kind == ".json":
        text = "[\n" + ",\n".join(line_of(row).decode().rstrip() for row in rows) + "\n]\n"
    else:
        text = b"".join(map(line_of, rows)).decode()
    write_whole(output, [text.encode(encoding, "replace")])


def csv_of(
    columns: Collection[str], rows: Iterable[Mapping[str, Any]], delimiter: str = ","
) -> str:
    """Return rows as CSV; the caller guards those that may be formulas."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, extrasaction="ignore", delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _write_out(text: str) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # JSON is UTF-8, whatever the locale of the shell cannot encode
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    sys.stdout.write(text)
    sys.stdout.flush()


def _csv_cell(name: str, value: Any) -> Any:
    """Return a value as a cell; the user's own columns stay as they are."""
    value = cell_of(value)
    if not name.startswith(PREFIX) or not isinstance(value, str):
        return value
    # the LLM's own words; a file with a zero byte is no text
    return guarded(value.replace("\0", "\ufffd"))
