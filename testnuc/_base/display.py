"""Short representations of records; for notebooks, as HTML tables whose contents are escaped."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from html import escape
from importlib import import_module
from typing import Any, TypeVar, overload

from testnuc._base.checks import needing
from testnuc.errors import printable

T = TypeVar("T")

#: Characters of a string, and of a whole representation.
_STRING, _WHOLE = 60, 240
#: Items that are shown of a sequence or mapping.
_ITEMS = 4
#: Characters of a text in a cell of a table.
_LONGEST = 200


def shown(value: object, most: int = 80) -> str:
    """Return the beginning of a representation, also of what is nested too deep for one."""
    try:
        return repr(value)[:most]
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deep"


def today() -> str:
    """Return the date, in UTC."""
    return datetime.now(UTC).date().isoformat()


def one_line(text: str, most: int) -> str:
    """Return a text in one line of so many characters, cut at its end, which controls nothing."""
    line = printable(text)
    return line if len(line) <= most else f"{line[: most - 2]}.."


def theme(*, dark: bool) -> AbstractContextManager[None]:
    """Return a context for figures, light on dark or as the user has set."""
    new_figure(1, 1)
    from matplotlib import rc_context, style

    colors = style.library["dark_background"] if dark else {}
    # names are no formulas, whatever dollar signs they have
    return rc_context({**colors, "text.parse_math": False})


def new_figure(width: float, height: float) -> Any:
    """Return an empty matplotlib figure of this size in inches."""
    with needing("plots need matplotlib: pip install 'testnuc[plots]'"):
        from matplotlib.figure import Figure
    return Figure(figsize=(width, height), layout="constrained")


def data_frames(library: str) -> Any:
    """Return the module of a library of data frames."""
    with needing(f"this needs {library}: pip install 'testnuc[frames]', or pip install {library}"):
        return import_module(library)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as lines; numbers, in all columns but the first, are to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = (
        (f"{first:<{widths[0]}}", *map(str.rjust, others, widths[1:])) for first, *others in rows
    )
    return "\n".join(map("  ".join, padded))


def cut(text: object) -> str:
    """Return a text as it is displayed, shortened if it is long."""
    shown = str(text)
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 2] + " …"


def facts(title: str, pairs: Iterable[tuple[str, object]]) -> str:
    """Return a heading and a table of names and values; rows with None are omitted."""
    rows = "".join(
        f'<tr><th style="text-align:left" scope="row">{escape(name)}</th>'
        f'<td style="text-align:left" dir="auto">{escape(cut(value))}</td></tr>'
        for name, value in pairs
        if value is not None
    )
    return f'<p dir="auto"><strong>{escape(cut(title))}</strong></p><table>{rows}</table>'


def grid(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table with a header; None is a hyphen, a float has two digits."""
    top = "".join(f'<th scope="col" style="text-align:left">{escape(name)}</th>' for name in head)
    cell = '<td dir="auto" style="text-align:left">{}</td>'.format
    lines = ("".join(cell(escape(_cell(value))) for value in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else cut(value)


class Brief:
    """A dataclass whose representation is one line.

    Fields that have their default are left out, long values are cut, and arrays are shown by type
    and shape.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        shown: list[str] = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if not field.repr or _is_default(value, field):
                continue
            shown.append(f"{field.name}={_value(value)}")
            if sum(map(len, shown)) + 2 * len(shown) > _WHOLE:
                shown[-1] = ".."
                break
        return f"{type(self).__qualname__}({', '.join(shown)})"


class Listed(Sequence[T]):
    """A sequence of `_rows`, which may be created on access; a slice is a list."""

    __slots__ = ()
    _rows: Sequence[T]

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._rows[at] for at in range(*index.indices(len(self._rows)))]
        return self._rows[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self._rows)


def _is_default(value: Any, field: Any) -> bool:
    if field.default_factory is not MISSING:
        return isinstance(value, Mapping | Sequence) and not value
    default = field.default
    alike = isinstance(default, str | int | float | tuple) and type(value) is type(default)
    return value is default or (alike and bool(value == default))


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, Mapping | tuple | list | set | frozenset):
        return _items(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if getattr(value, "shape", ()):
        return f"{value.dtype}{list(value.shape)}"
    if is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__qualname__}(..)"
    said = repr(value)
    return said if len(said) <= _STRING else said[: _STRING - 2] + ".."


def _items(value: Any) -> str:
    if len(value) > _ITEMS or any(map(is_dataclass, value)):
        return f"<{len(value):,} items>"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_value(k)}: {_value(v)}" for k, v in value.items()) + "}"
    return f"[{', '.join(map(_value, value))}]"


def _cut(value: str) -> str:
    return repr(value) if len(value) <= _STRING else repr(value[: _STRING - 2]) + ".."
