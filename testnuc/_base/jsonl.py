"""Files whose errors name them: JSON, JSON Lines, CSV, and atomic writes."""

import csv
import io
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from testnuc.errors import InvalidInputError

#: Characters of a name that the temporary one repeats: a file system allows 255 bytes.
_KEPT = 40
#: Characters of a field of a CSV file, or a line of other texts: parsing takes four bytes for each.
LONGEST_FIELD = 2**24
#: What a spreadsheet may run, also if apostrophes precede it, so that each value can be read back.
_FORMULA = re.compile(r"'*(?:[=@\t\r]|[+-](?![0-9.,]*\Z))")
_GUARDED = re.compile(rf"'{_FORMULA.pattern}")


def part_of(path: Path) -> Path:
    """Return a temporary name beside a file, which no other run that writes this file has."""
    return path.with_name(f"{path.name[:_KEPT]}.{secrets.token_hex(4)}.part")


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary name, whose file then replaces this one, so that none is incomplete."""
    # a link is kept: others may read its target
    whole = Path(path).resolve()
    part = part_of(whole)
    try:
        yield part
        part.replace(whole)
    except OSError as exc:
        raise InvalidInputError(f"{path} cannot be written: {exc.strerror or exc}") from exc
    finally:
        # on a full disk: an incomplete file must not pass for a result
        with suppress(OSError):
            part.unlink(missing_ok=True)


def write_whole(path: str | os.PathLike[str], parts: Iterable[bytes]) -> None:
    """Write a file atomically."""
    with replacing(path) as part, part.open("xb") as file:
        file.writelines(parts)


def bytes_of(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file."""
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise InvalidInputError(f"{path} cannot be read: {exc.strerror or exc}") from exc


def json_of(content: str | bytes, source: object) -> Any:
    """Parse JSON, which messages name as `source`; long integers keep their digits."""
    try:
        found = orjson.loads(content)
        # which makes floats of integers of more than 64 bits; what nests deeper holds none
        with suppress(RecursionError):
            data = content.encode() if isinstance(content, str) else content
            return json.loads(data) if re.search(b"[0-9]{19}", data) else found
    except orjson.JSONDecodeError as exc:
        raise InvalidInputError(f"{source} is not JSON: {exc}") from exc
    return found


def table(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the records of a JSON Lines file."""
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield json_object(line, path, number)
    except OSError as exc:
        raise InvalidInputError(f"{path} cannot be read: {exc.strerror or exc}") from exc


def json_object(line: str | bytes, source: str | os.PathLike[str], number: int) -> dict[str, Any]:
    """Parse line `number`, from 1, of a JSON Lines file, which messages name as `source`."""
    record = json_of(line, f"{source}, line {number}")
    if not isinstance(record, dict):
        raise InvalidInputError(f"{source}, line {number} is not a JSON object")
    return record


def lines_of(content: str) -> Iterable[str]:
    """Return lines with their ends; `io.StringIO` would take four bytes for each character."""
    return io.TextIOWrapper(io.BytesIO(content.encode()), "utf-8", newline="")


@contextmanager
def long_fields() -> Iterator[None]:
    """Let fields of CSV files be longer than the default limit of 131,072 characters."""
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def guarded(value: Any) -> Any:
    """Return a cell of a CSV file that no spreadsheet runs as a formula; `unguarded` returns it."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def unguarded(value: Any) -> Any:
    """Return the value of a cell that `guarded` may have changed."""
    return value[1:] if isinstance(value, str) and _GUARDED.match(value) else value
