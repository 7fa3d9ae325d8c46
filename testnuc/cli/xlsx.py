"""Excel workbooks; needs openpyxl."""

from __future__ import annotations

import io
from datetime import date, time
from typing import TYPE_CHECKING, Any

from testnuc._base.jsonl import write_whole
from testnuc.cli.decoding import named, rows_by_name
from testnuc.errors import InvalidInputError, MissingDependencyError
from testnuc.records import cell_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["CELL", "read_rows", "require", "too_long", "write_rows"]

#: The most characters that Excel has in a cell, and the most rows in a sheet.
CELL, _ROWS = 32_767, 1_048_576


def too_long(rows: Sequence[Mapping[str, Any]]) -> int:
    """Return how many strings do not fit into a cell."""
    return sum(isinstance(v, str) and len(v) > CELL for row in rows for v in row.values())


def read_rows(path: Path, text_column: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the columns and rows of the first sheet that has the column, else of the first.

    Numbers in the column of texts become text; dates become text in all columns.
    """
    openpyxl = require()
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except Exception as exc:
        raise InvalidInputError(f"{path} is not an Excel workbook (.xlsx): {exc}") from exc
    try:
        found = [_rows_of(sheet, text_column) for sheet in book.worksheets]
    finally:
        book.close()
    return next((of for of in found if text_column in of[0]), found[0] if found else ([], []))


def _rows_of(sheet: Any, text_column: str) -> tuple[list[str], list[dict[str, Any]]]:
    lines = (line for line in sheet.iter_rows(values_only=True) if any(v is not None for v in line))
    header = ["" if name is None else str(name) for name in next(lines, ())]
    plain = ([v.isoformat() if isinstance(v, date | time) else v for v in line] for line in lines)
    columns, rows = rows_by_name(header, plain)
    for row in rows:
        text = row.get(text_column)
        if isinstance(text, int | float):
            row[text_column] = str(text)
    return columns, rows


def write_rows(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a workbook of one sheet atomically."""
    openpyxl = require()
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    if len(rows) >= _ROWS:
        raise InvalidInputError(f"{path} cannot hold {len(rows):,} rows; name a .csv file")
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("labels")

    def cell(value: Any) -> Any:
        value = cell_of(value)
        dated = isinstance(value, date | time) and getattr(value, "tzinfo", None) is None
        if value is None or dated or isinstance(value, int | float):
            return value
        # Excel has no cell for a time with a zone, for bytes and what else Parquet holds
        value = str(value)
        made = WriteOnlyCell(sheet, ILLEGAL_CHARACTERS_RE.sub("\ufffd", value)[:CELL])
        # a text that begins with "=" is no formula
        made.data_type = "s"
        return made

    sheet.append([cell(name) for name in columns])
    for row in rows:
        sheet.append([cell(row.get(name)) for name in columns])
    content = io.BytesIO()
    book.save(content)
    write_whole(path, [content.getvalue()])


def require() -> Any:
    """Return openpyxl, by which workbooks are read and written."""
    try:
        import openpyxl
    except ImportError as exc:
        raise MissingDependencyError(
            "Excel files need openpyxl; install it with: pip install 'testnuc[xlsx]', or save the "
            f"sheet as .csv (with {named(',')} or {named(';')})"
        ) from exc
    return openpyxl
