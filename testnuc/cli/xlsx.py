"""Excel workbooks; needs openpyxl."""

import io
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import IO, Any

from testnuc._base.checks import needing
from testnuc._base.jsonl import write_whole
from testnuc.cli.decoding import EMPTY_CELLS, rows_by_name
from testnuc.errors import InvalidInputError
from testnuc.records import cell_of

#: The most characters that Excel has in a cell, and the most rows and columns in a sheet.
CELL, _ROWS, _COLUMNS = 32_767, 1_048_576, 16_384
#: More columns than results add to those of a table.
_ADDED = 100
#: Bytes that are unpacked of a workbook: a constant, and so many for each byte of the file. A sheet
#: shrinks to a tenth, one of a single number to a thirtieth. Each part that is opened counts, too.
_UNPACKED, _RATIO, _OPENED = 8 * 1024 * 1024, 50, 4_096
#: Characters that XML cannot hold; it reads a carriage return as a line feed. Excel writes each of
#: them as ``_x000D_``, and so what looks like that.
_ESCAPED = re.compile("[\0-\x08\x0b-\x1f\ufffe\uffff]|_(?=x[0-9A-Fa-f]{4}_)")
_ESCAPE = re.compile("_x(00[01][0-9A-Fa-f]|005[Ff]|[Ff]{3}[EeFf])_")
_SURROGATE = re.compile("[\ud800-\udfff]")
_DOCTYPES = (b"<!DOCTYPE", "<!DOCTYPE".encode("utf-16-le")[:-1])


def require_room(
    path: str, columns: int, rows: Sequence[Mapping[str, Any]], tell: Callable[[str], None]
) -> None:
    """Check that a sheet can hold a table and its results; `tell` gets a line if it cuts texts."""
    require()
    if len(rows) >= _ROWS or columns + _ADDED > _COLUMNS:
        raise InvalidInputError(
            f"{path} cannot hold {len(rows):,} rows of {columns:,} columns; name a .csv file"
        )
    cells = (cell for row in rows for cell in row.values())
    if long := sum(isinstance(cell, str) and len(_escaped(cell)) > CELL for cell in cells):
        tell(
            f"note: {path} cuts texts at {CELL:,} characters, the most in a cell of Excel "
            f"({long:,} of them); a .csv file holds them whole"
        )


def is_cut(text: str) -> bool:
    """Whether a text of a workbook is probably the beginning of a longer one."""
    return len(_escaped(text)) >= CELL


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"_x{ord(found[0]):04X}_", text)


def read_rows(
    path: Path, text_column: str, tell: Callable[[str], None]
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the columns and rows of the first sheet that has the column, else of the first.

    Hidden sheets come last; where there are several, `tell` gets a line with the name of the one.
    Numbers among the texts become text; dates do in all columns.
    """
    require()
    from openpyxl.reader.excel import ExcelReader

    try:
        with path.open("rb") as file:
            reader = ExcelReader(file, read_only=True, data_only=True, keep_links=False)
            reader.archive = _Archive(path, file)
            reader.read()
            sheets = sorted(reader.wb.worksheets, key=lambda one: one.sheet_state != "visible")
            for sheet in sheets:
                # a declared size of all columns and rows would be filled with empty cells
                sheet.reset_dimensions()
            named = (sheet for sheet in sheets if text_column in next(_lines(path, sheet), ()))
            best = next(named, sheets[0] if sheets else None)
            if len(sheets) > 1 and best is not None:
                tell(f"note: {best.title!r} of {len(sheets)} sheets in {path} is read")
            return ([], []) if best is None else _rows_of(path, best, text_column)
    except InvalidInputError:
        raise
    except Exception as exc:
        if isinstance(exc.__cause__, InvalidInputError):
            # openpyxl makes another error of it
            raise exc.__cause__ from None
        raise InvalidInputError(f"{path} is not an Excel workbook (.xlsx): {exc}") from exc


class _Archive(zipfile.ZipFile):
    """A workbook's archive, of which no more is unpacked than a workbook of its size holds."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        super().__init__(file)
        self._path = path
        self._left = _UNPACKED + _RATIO * path.stat().st_size

    def open(self, name: Any, *args: Any, **more: Any) -> Any:
        """Open a member; what is read of it is counted."""
        info = name if isinstance(name, zipfile.ZipInfo) else self.getinfo(name)
        if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise InvalidInputError(f"{self._path} is compressed in an unusual way; save it again")
        file = super().open(name, *args, **more)
        read, before = file.read, b""
        self._take(_OPENED)

        def counted(n: int | None = -1) -> bytes:
            nonlocal before
            if n is None or n < 0:
                n = self._left + 1
            content: bytes = read(n)
            self._take(len(content))
            # a workbook has no entities: they could stand for any number of characters
            if any(mark in before + content for mark in _DOCTYPES):
                raise InvalidInputError(
                    f"{self._path} defines XML entities, which no workbook needs; save it again"
                )
            before = content[-len(_DOCTYPES[-1]) :]
            return content

        file.read = counted  # type: ignore[method-assign]
        return file

    def _take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise InvalidInputError(
                f"{self._path} unpacks to far more than a workbook of its size holds; save it "
                "again, or save the sheet as .csv"
            )


def _lines(path: Path, sheet: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a sheet that are not empty, each as wide as it is."""
    cells = used = 0
    for number, line in enumerate(sheet.iter_rows(values_only=True), 1):
        cells += len(line)
        filled = sum(value is not None for value in line)
        used += filled
        if number > _ROWS or cells > EMPTY_CELLS + 2 * used:
            raise InvalidInputError(
                f"{path}: up to row {number:,} the sheet {sheet.title!r} holds almost only empty "
                "cells; delete the cells beyond the table, or save the sheet as .csv"
            )
        if filled:
            yield line


def _rows_of(path: Path, sheet: Any, text_column: str) -> tuple[list[str], list[dict[str, Any]]]:
    lines = _lines(path, sheet)
    header = ["" if name is None else str(_value(name)) for name in next(lines, ())]
    plain = [list(map(_value, line)) for line in lines]
    columns, rows = rows_by_name(str(path), header, plain, None)
    for row in rows:
        text = row.get(text_column)
        if isinstance(text, int | float):
            row[text_column] = str(text)
    return columns, rows


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), value)
    return value.isoformat() if isinstance(value, date | time) else value


def write_rows(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a workbook of one sheet atomically."""
    openpyxl = require()
    from openpyxl.cell import WriteOnlyCell

    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("labels")

    def cell(value: Any) -> Any:
        value = cell_of(value)
        dated = isinstance(value, date | time) and getattr(value, "tzinfo", None) is None
        number = isinstance(value, float) or (isinstance(value, int) and len(str(value)) < 16)
        if value is None or dated or number:
            return value
        # Excel has no cell for 16 digits, a time with a zone, and what else Parquet holds
        value = str(value)
        made = WriteOnlyCell(sheet, _SURROGATE.sub("\ufffd", _escaped(value))[:CELL])
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
    with needing(
        "Excel files need openpyxl: pip install 'testnuc[xlsx]', or save the sheet as .csv"
    ):
        import openpyxl
    return openpyxl
