"""Encoding, delimiter and columns of tables, given or recognized."""

import codecs
import csv
import io
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from testnuc.errors import InvalidInputError

#: Delimiters of CSV files, most common first.
DELIMITERS = (",", ";", "\t", "|")
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
#: "utf-7" and "unicode_escape" can give halves of characters, which no file can hold.
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
#: Characters and rows that are parsed to recognize a delimiter.
_SAMPLE, _ROWS = 65_536, 50
#: Empty cells that a table may have beside twice as many as it has filled.
EMPTY_CELLS = 5_000_000
_MOST_COLUMNS = 100_000


def decoded(raw: bytes, name: str, encoding: str | None = None) -> tuple[str, str]:
    """Return the content of a text file, and its encoding.

    By default it is recognized by a mark, zeros, or what UTF-8 allows; cp1252 otherwise.
    """
    marked = next((found for mark, found in _MARKS if raw.startswith(mark)), None)
    if encoding is None:
        encoding = marked or _recognized(raw, name)
    else:
        encoding = _checked(encoding)
        marked = marked or encoding
        if not encoding.startswith(marked.removesuffix("-sig")):
            raise InvalidInputError(
                f"{name} begins with the mark of {marked}, and --encoding is {encoding}; omit it"
            )
        encoding = marked if encoding == "utf-8" else encoding
    try:
        # utf-16-le keeps the mark
        content = raw.decode(encoding).removeprefix("\ufeff")
    except ValueError as exc:
        where = ""
        if isinstance(exc, UnicodeDecodeError):  # "punycode" does not say where
            line = raw.count(b"\n", 0, exc.start) + 1
            where = f": the byte 0x{raw[exc.start]:02x} in line {line}"
        raise InvalidInputError(
            f"{name} is not text in {encoding}{where}; name its --encoding, or save it as UTF-8"
        ) from exc
    strange = _NO_TEXT.search(content)
    if strange is not None:
        line = content.count("\n", 0, strange.start()) + 1
        what = "a zero byte" if strange[0] == "\0" else "a lone surrogate (half a character)"
        raise InvalidInputError(
            f"{name} holds {what} in line {line}, not part of a text; remove it"
        )
    return content, encoding


def _checked(encoding: str) -> str:
    try:
        found = codecs.lookup(encoding).name
        # "base64" is no encoding of text
        "".encode(found)
    except (LookupError, ValueError) as exc:
        raise InvalidInputError(
            f"--encoding is {encoding!r}; give a name such as utf-8, utf-16, cp1252 or latin-1"
        ) from exc
    return found


def _recognized(raw: bytes, name: str) -> str:
    start = raw[:4_096]
    if b"\0" in start:
        # Latin letters in UTF-16 have a zero in each second byte
        even, odd = start[::2].count(0), start[1::2].count(0)
        if max(even, odd) > 0.3 * len(start) / 2 and min(even, odd) < 0.05 * max(even, odd):
            return "utf-16-le" if odd > even else "utf-16-be"
        raise InvalidInputError(f"{name} is not a text file: it holds zero bytes; save it as UTF-8")
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        content = raw.decode("utf-8", "replace")
        # are more characters outside ASCII valid UTF-8 than not? then the others are damaged
        if sum(not letter.isascii() for letter in content) <= 2 * content.count("\ufffd"):
            # what spreadsheets of Western Europe and America write, if not UTF-8
            return "cp1252"
    return "utf-8"


def checked_delimiter(delimiter: str | None) -> str | None:
    """Return a delimiter that the user named: a single character."""
    if delimiter is None:
        return None
    found = {"tab": "\t", "\\t": "\t"}.get(delimiter.lower(), delimiter)
    if len(found) != 1 or found in '"\r\n':
        raise InvalidInputError(
            f"--delimiter is {delimiter!r}; give a single character such as ';', or tab"
        )
    return found


#: The first line in which Excel names the delimiter.
DELIMITER_LINE = re.compile(r'\A"?sep=([,;|\t])"?\r?\n', re.IGNORECASE)


def delimiter_of(content: str, wanted: Sequence[str]) -> str:
    """Return the delimiter of CSV content that finds the `wanted` columns, or fits best."""
    if said := DELIMITER_LINE.match(content):
        return said[1]
    sample = content[:_SAMPLE]
    if len(content) > _SAMPLE:
        sample = sample[: sample.rfind("\n") + 1] or sample

    def fit(delimiter: str) -> tuple[int, float, int]:
        rows: list[list[str]] = []
        with suppress(csv.Error):
            reader = csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter)
            rows.extend(islice(filter(None, reader), _ROWS))
        if not rows:
            return 0, 0.0, 0
        width = len(rows[0])
        even = sum(len(row) == width for row in rows) / len(rows)
        # a header of one column is the same under each
        return sum(name in rows[0] for name in wanted), even, width

    return max(DELIMITERS, key=fit)


def named(delimiter: str) -> str:
    """Return how a message names a delimiter."""
    return "tab" if delimiter == "\t" else f"'{delimiter}'"


def require_filled(file: str, columns: int, rows: int, filled: int) -> None:
    """Raise an error if a table would take far more memory and space than what is in it."""
    if columns * rows > EMPTY_CELLS + 2 * filled:
        raise InvalidInputError(
            f"{file} has {columns:,} columns and {rows:,} rows, almost all of whose cells are "
            "empty; leave out the columns that are not needed"
        )


def rows_by_name(
    file: str, header: Sequence[str], lines: Sequence[Sequence[Any]], empty: Any
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the columns and rows of a table; a cell that a line lacks is `empty`.

    Of the columns without a name, empty ones are left out, and several are named by position.
    """
    if len(header) > _MOST_COLUMNS:
        raise InvalidInputError(
            f"{file} has {len(header):,} columns; at most {_MOST_COLUMNS:,} are read: remove others"
        )
    unnamed = {at for at, name in enumerate(header) if not name}
    cells = ((at, value) for line in lines for at, value in enumerate(line) if at in unnamed)
    used = {at for at, value in cells if value not in ("", None)}
    kept = [
        (at, name or (f"unnamed column {at + 1}" if len(unnamed) > 1 else ""))
        for at, name in enumerate(header)
        if name or at in used
    ]
    require_filled(file, len(kept), len(lines), sum(map(len, lines)))
    rows = [{name: line[at] if at < len(line) else empty for at, name in kept} for line in lines]
    return [name for _, name in kept], rows
