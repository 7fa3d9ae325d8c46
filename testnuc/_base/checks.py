"""Checks of arguments, and the hash that identifies a text."""

import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from ipaddress import ip_address
from itertools import chain
from numbers import Integral, Real
from threading import RLock
from typing import Any

from testnuc.errors import InvalidInputError, MissingDependencyError

#: Values of an Arrow array that are converted at a time.
_SLICE = 1_024

#: Held while a thread imports packages, which take seconds: a child that is forked in the midst
#: would wait for them for ever, so a fork waits.
IMPORTING = RLock()
if hasattr(os, "register_at_fork"):
    _end = IMPORTING.release
    os.register_at_fork(before=IMPORTING.acquire, after_in_parent=_end, after_in_child=_end)


@contextmanager
def needing(message: str) -> Iterator[None]:
    """Raise `MissingDependencyError` with this message if a package cannot be imported."""
    try:
        with IMPORTING:
            yield
    except ImportError as exc:
        raise MissingDependencyError(message) from exc


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def hash_text(text: str) -> bytes:
    """Return the key of a text: 16 bytes, BLAKE2b of its UTF-8 form."""
    return blake2b(text.encode(), digest_size=16).digest()


def valid_text(text: object) -> str | None:
    """Return what is wrong with a text that cannot be labeled, to follow "text 3 ", or None."""
    if not isinstance(text, str):
        return f"is not a string but {type(text).__name__}; convert or leave it out"
    if not text or text.isspace():
        return "is empty; leave it out"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return (
                "holds a lone surrogate (half a character), which cannot be sent; decode its "
                'source correctly, or use text.encode("utf-8", "replace").decode()'
            )
    return None


def is_null(value: Any) -> bool:
    """Whether a value of a column is None, NaN, NA or NaT."""
    nan = isinstance(value, float) and math.isnan(value)
    return value is None or nan or type(value).__name__ in {"NAType", "NaTType"}


def values(column: Any, name: str = "texts", *, ordered: bool = False) -> Iterable[Any]:
    """Return an iterable of the values of a list, a pandas or polars Series, or an Arrow array.

    A table, which would yield the names of its columns, is refused; `ordered`: so is a set.
    """
    shape = getattr(column, "shape", None)
    if shape == () or (shape and (hasattr(column, "columns") or hasattr(column, "column_names"))):
        raise InvalidInputError(
            f"{name} is a {type(column).__name__}; give one of its columns, such as table['text']"
        )
    if hasattr(column, "to_pylist") and hasattr(column, "slice"):
        # strings instead of Arrow scalars, in chunks
        parts = (column.slice(start, _SLICE) for start in range(0, len(column), _SLICE))
        return chain.from_iterable(part.to_pylist() for part in parts)
    no_list = (str, bytes, set, frozenset) if ordered else (str, bytes)
    if isinstance(column, no_list) or not isinstance(column, Iterable):
        # the order of a set changes from process to process
        how = f", such as sorted({name})" if isinstance(column, (set, frozenset)) else ""
        raise InvalidInputError(f"{name} is {column!r:.60}; give a list{how}")
    return column


def names_of(name: str, given: Any) -> dict[Any, list[Any]]:
    """Return a mapping of names to one or several others, all as lists."""
    if not isinstance(given, Mapping):
        raise InvalidInputError(f"{name} is {given!r:.60}; give a mapping: {{'new': ['old']}}")
    return {
        new: [old] if isinstance(old, str) else list(values(old, f"{name}[{new!r:.60}]"))
        for new, old in given.items()
    }


def note_label(known: dict[Any, Any], key: Any, text: str, label: Any, where: str = "") -> None:
    """Note the label of a text, which two rows may have; raises InvalidInputError for another."""
    if known.setdefault(key, label) != label:
        raise InvalidInputError(
            f"{where}{text[:60]!r} has the label {label!r} and, before, {known[key]!r}; give each "
            "text one label"
        )


def checked_whole(name: str, value: Any, *, least: int, most: int | None = None) -> int:
    """Return `value` if it is an integer of at least `least` and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise InvalidInputError(f"{name} is {value!r}; give an integer of at least {least}")
    if most is not None and int(value) > most:
        raise InvalidInputError(f"{name} is {value!r}; give an integer of at most {most}")
    return int(value)


def is_chance(value: Any) -> bool:
    """Whether a stored value is None or a number from 0 to 1."""
    return value is None or (type(value) in {float, int} and 0 <= value <= 1)


def checked_positive(name: str, value: Any, *, zero: bool = False) -> None:
    """Check that `value` is a finite number above 0; with `zero` also if it is 0."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= sys.float_info.max or not (value or zero):
        bounds = "of at least 0" if zero else "above 0"
        raise InvalidInputError(f"{name} is {value!r}; give a finite number {bounds}")


def checked_number(name: str, value: Any, low: float, high: float, *, none: bool = False) -> None:
    """Check that `value` is a number from `low` to `high`, or None with `none`."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if (none and value is None) or (number and low <= value <= high):
        return
    percent = number and 50 <= value <= 100 * high and low <= value / 100 and high <= 1
    hint = f", such as {value / 100:g}" if percent else ", or None" if none else ""
    raise InvalidInputError(f"{name} is {value!r}; give a number from {low} to {high}{hint}")


def checked_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Check that `value` is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidInputError(f"{name} is {value!r}; choose from {', '.join(choices)}")
