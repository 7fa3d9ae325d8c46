"""Small HTML tables for notebooks; all contents are escaped."""

from collections.abc import Iterable, Sequence
from html import escape

_LONGEST = 200


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
    body = "".join(
        "<tr>"
        + "".join(
            f'<td dir="auto" style="text-align:left">{escape(_cell(value))}</td>' for value in row
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else cut(value)
