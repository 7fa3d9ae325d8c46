"""JSON that others wrote: read even if it breaks the rules, as long as the meaning is clear."""

import json
import re
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast

import orjson

T = TypeVar("T")

#: Longer bodies are read by orjson alone: the lenient reader takes ten times as long.
_LENIENT = 1 << 19
#: Most values in a body, and escapes in one that is read leniently: they take about 50 ms.
_MOST_VALUES = 100_000
#: More tokens than a call can have; a larger number is no count.
MOST_TOKENS = 100_000_000
_DIGITS = re.compile(r"[0-9]{1,9}")

#: Escapes in a string; the group is half of a pair of surrogates without the other half. Others are
#: matched in runs, as a function is called for each match.
_ESCAPES = re.compile(
    r"(?:\\(?:[^u]|u[^dD\\])[^\\]*+)++"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.",
    re.DOTALL,
)


def read_json(data: bytes, *, most: int = _MOST_VALUES) -> Any:
    """Parse JSON; raises ValueError and nothing else, also for a body of over `most` values.

    Accepted is what some servers and proxies write: a byte order mark, bytes that are not UTF-8,
    half a pair of surrogates, NaN and infinity, control characters in strings, long integers.
    """
    if len(data) > most and count_values(data) > most:
        raise ValueError(f"it has more than {most:,} values")
    try:
        return orjson.loads(data)
    except ValueError:
        if len(data) > _LENIENT or data.count(b"\\") > most:
            raise
        text = data.decode("utf-8-sig", "replace")
        text = _ESCAPES.sub(lambda found: r"\ufffd" if found[1] else found[0], text)
        try:
            return json.loads(text, strict=False, parse_int=read_integer)
        except RecursionError as problem:
            raise ValueError("nested too deeply") from problem


def read_integer(digits: str) -> float:
    """Return an integer of JSON; infinity for one that is too long for Python."""
    return int(digits) if len(digits) <= 4_000 else float(digits)


def count_values(data: bytes) -> int:
    """Return about how many values JSON has, at most, without reading it."""
    return sum(map(data.count, (b",", b"[", b"{")))


def write_json(value: Any) -> bytes:
    """Return a value of `read_json` as JSON; ``null`` if it is nested too deeply to be written."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return b"null"


def count(value: Any) -> int | None:
    """Return a valid number of tokens, else None; some servers write it as 7.0 or "7"."""
    if type(value) is not int:
        whole = isinstance(value, float) and value.is_integer()
        if not whole and not (isinstance(value, str) and _DIGITS.fullmatch(value)):
            return None
        value = int(value)
    return value if 0 <= value <= MOST_TOKENS else None


class Within(NamedTuple):
    """The bounds of a number, in its annotation, for `read_as`."""

    low: float
    high: float

    def __get_pydantic_core_schema__(self, kind: Any, schema_of: Any) -> Any:
        return schema_of(kind) | {"ge": self.low, "le": self.high}


def read_as(kind: type[T], plain: Any) -> T:
    """Return plain values as records of dataclasses; raises ValueError if they do not fit."""
    from pydantic import ValidationError

    try:
        found: T = _adapter(cast("Any", kind)).validate_python(plain)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        raise ValueError(": ".join([*map(str, first["loc"]), first["msg"]])) from exc
    return found


@cache
def _adapter(kind: Any) -> Any:
    """Return what checks a type: once, as making it takes longer than checking."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
