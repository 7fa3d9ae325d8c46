"""The page: a template, a style, a script and the results, put together into one file."""

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

#: Results that a page lists unless told otherwise; a browser holds more, but nobody reads them.
MOST_LISTED = 20_000
#: What could end the script element the data is in, a line of JavaScript, or UTF-8 itself.
_UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
_PLACE = re.compile(r"\{\{(\w+)\}\}")


@runtime_checkable
class _Run(Protocol):
    """What `Results` say of their run."""

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
    """Return a page to look at results with, as HTML.

    It needs nothing but a browser, and its content security policy allows no request to anywhere.
    Texts and labels may be hostile: they are only ever text on it.

    Parameters
    ----------
    results : sequence of Classification
        `Results` bring the following four along.
    usage, seconds : Usage, float, optional
        What they cost; not shown where it is not known.
    model : str, optional
    choices : sequence of str, optional
        The labels there are to choose from; default: those that occur.
    title : str, optional
    key : str, optional
        Under which the browser keeps the marks made on the page; default: by its contents. Give one
        where the same page is made again with other results, as a service does.
    most : int
        Results that are listed; of more, those that need a look first. All are counted.

    Raises
    ------
    InvalidInputError
        `most` is not a whole number of at least 1.
    """
    checked_whole("most", most, least=1)
    if isinstance(results, _Run):
        usage = (None if results.usage == UNKNOWN else results.usage) if usage is None else usage
        seconds = results.seconds if seconds is None else seconds
        model = results.model if model is None else model
        choices = choices or results.choices
    shown = contents(results, usage=usage, seconds=seconds, model=model, choices=choices, most=most)
    # what is on the page says which page it is
    told = _json(shown)
    shown_key = key or blake2b(told.encode(), digest_size=12).hexdigest()
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
        "data": told,
    }
    # one pass: what is put in is not looked at again
    return _PLACE.sub(lambda place: parts[place[1]], _asset("page.html"))


def write(
    results: Sequence[Classification],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    most: int = MOST_LISTED,
) -> None:
    """Write the page to a file; it is there whole or not at all.

    Raises
    ------
    InvalidInputError
        It cannot be written.
    """
    write_whole(path, [render(results, title=title, most=most).encode("utf-8", "replace")])


def _json(value: Any) -> str:
    told = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", told)


def _digest(content: str) -> str:
    """Return how a content security policy names an inline style or script."""
    return "sha256-" + b64encode(sha256(content.encode()).digest()).decode()


@cache
def _asset(name: str) -> str:
    return (files("testnuc.report") / name).read_text(encoding="utf-8")
