"""Small tables of HTML for notebooks; whatever is put in is escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["cut", "facts", "grid"]

_LONGEST = 200


def cut(text: object) -> str:
    """Return what is shown of a text, which may be of any length."""
    told = str(text)
    return told if len(told) <= _LONGEST else told[: _LONGEST - 2] + " …"


def facts(title: str, pairs: Iterable[tuple[str, object]]) -> str:
    """Return a heading and a table of names and values; None is left out."""
    rows = "".join(
        f'<tr><th style="text-align:left" scope="row">{escape(name)}</th>'
        f'<td style="text-align:left" dir="auto">{escape(cut(value))}</td></tr>'
        for name, value in pairs
        if value is not None
    )
    return f'<p dir="auto"><strong>{escape(cut(title))}</strong></p><table>{rows}</table>'


def grid(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table with a head; None is a hyphen, a number has two digits."""
    top = "".join(f'<th scope="col" style="text-align:left">{escape(name)}</th>' for name in head)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td dir="auto" style="text-align:left">{escape(_told(value))}</td>' for value in row
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _told(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else cut(value)
