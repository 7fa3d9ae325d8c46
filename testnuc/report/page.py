"""Render the page: template, style, script and results in one file."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from functools import cache
from hashlib import blake2b, sha256
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from testnuc._base.checks import checked_whole
from testnuc._base.jsonl import write_whole
from testnuc.report.contents import contents
from testnuc.types import UNKNOWN

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from testnuc.types import Classification, Usage

__all__ = ["MOST_LISTED", "render", "write"]

#: Default for the most results that a page lists.
MOST_LISTED = 20_000
#: Characters that could end the script element of the data or a line of JavaScript, or that
#: UTF-8 cannot encode.
_UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
_PLACE = re.compile(r"\{\{(\w+)\}\}")


@runtime_checkable
class _Run(Protocol):
    """The attributes of `Results` about their run."""

    usage: Usage
    seconds: float
    model: str | None
    choices: tuple[str, ...]


def render(
    results: Sequence[Classification],
    *,
    usage: Usage | None = None,
    seconds: float | None = None,
    model: str | None = None,
    choices: Sequence[str] = (),
    title: str | None = None,
    key: str | None = None,
    most: int = MOST_LISTED,
) -> str:
    """Return an HTML page for browsing results.

    The page is self-contained, and its content security policy allows no network request. Texts and
    labels may be hostile: they are always rendered as text.

    Parameters
    ----------
    results : sequence of Classification
        `Results` provide the following four.
    usage, seconds : Usage, float, optional
        Usage and duration; not shown if unknown.
    model : str, optional
    choices : sequence of str, optional
        The label set; default: the labels that occur.
    title : str, optional
    key : str, optional
        Key of the page's marks in the browser's storage; default: a hash of its contents. Give one
        if the page is rendered again with other results, as a service does.
    most : int
        Most results to list; of more, those to review first. Counts are over all results.

    Raises
    ------
    InvalidInputError
        `most` is not an integer of at least 1.
    """
    checked_whole("most", most, least=1)
    if isinstance(results, _Run):
        usage = (None if results.usage == UNKNOWN else results.usage) if usage is None else usage
        seconds = results.seconds if seconds is None else seconds
        model = results.model if model is None else model
        choices = choices or results.choices
    shown = contents(results, usage=usage, seconds=seconds, model=model, choices=choices, most=most)
    data = _json(shown)
    shown_key = key or blake2b(data.encode(), digest_size=12).hexdigest()
    style, script = _asset("page.css"), _asset("page.js")
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "title": escape(title or f"testnuc: {len(shown['rows']):,} texts"),
        "policy": escape(policy),
        "style": style,
        "script": script,
        "key": escape(shown_key),
        "data": data,
    }
    # one pass: inserted contents are not substituted again
    return _PLACE.sub(lambda place: parts[place[1]], _asset("page.html"))


def write(
    results: Sequence[Classification],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    most: int = MOST_LISTED,
) -> None:
    """Write the page to a file atomically.

    Raises
    ------
    InvalidInputError
        It cannot be written.
    """
    write_whole(path, [render(results, title=title, most=most).encode("utf-8", "replace")])


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _digest(content: str) -> str:
    """Return the hash of an inline style or script for the content security policy."""
    return "sha256-" + b64encode(sha256(content.encode()).digest()).decode()


@cache
def _asset(name: str) -> str:
    return (files("testnuc.report") / name).read_text(encoding="utf-8")
