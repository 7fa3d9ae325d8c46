"""No file that a command writes is another one of its files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testnuc.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Options of files that a command writes, and how parameters are shown if not as --name.
_WRITTEN = frozenset({"output", "plot", "store"})
_SHOWN = {
    "file": "FILE",
    "source": "RESULTS|STORE",
    "sources": "RESULTS|STORE",
    "judged": "REVIEW",
}


def require_distinct(options: Mapping[str, Any]) -> None:
    """Check that no file that a command writes is one that it reads, or writes as well."""
    places = [
        (name, place)
        for name, value in options.items()
        for place in (value if isinstance(value, list) else [value])
        if isinstance(place, str) and place != "-" and "://" not in place
    ]
    for at, (first, place) in enumerate(places):
        for second, other in places[at + 1 :]:
            pair = {first, second}
            # a store can be named as the source, and as the store
            if pair & _WRITTEN and pair - {"source", "sources", "store"} and _same(place, other):
                one, two = (_SHOWN.get(n, f"--{n.replace('_', '-')}") for n in (first, second))
                raise InvalidInputError(
                    f"{one} and {two} are one file, {place}; it was not changed: name another file "
                    f"for {two if second in _WRITTEN else one}"
                )


def _same(place: str, other: str) -> bool:
    try:
        return Path(place).samefile(other)
    except (OSError, ValueError):
        # not both are there
        return os.path.realpath(place) == os.path.realpath(other)
