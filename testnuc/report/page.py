"""Render pages, each in one file: results with style and script, or a description."""

import json
import os
import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from math import isfinite
from typing import Any

from markdown_it import MarkdownIt

from testnuc._base.checks import checked_whole
from testnuc._base.jsonl import write_whole
from testnuc.report.contents import contents
from testnuc.trust.review import Review, ReviewItem
from testnuc.types import UNKNOWN, Classification, Prediction

#: Default for the most results that a page lists.
MOST_LISTED = 20_000
#: Characters that could end the script element of the data or a line of JavaScript, or that
#: UTF-8 cannot encode.
_UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
_PLACE = re.compile(r"\{\{(\w+)\}\}")
#: In order: a script uses what those before it define.
_SCRIPTS = "marks live elements learned chooser explanation overview page"


def _results_of(review: Iterable[ReviewItem]) -> list[Classification]:
    """Return the texts of a review as results."""
    return [
        Classification(
            index=item.index,
            text=item.text,
            label=item.label,
            # a blind review does not say
            prediction=Prediction(item.own_label, None) if item.candidates else None,
            neighbors=item.neighbors,
            trust=item.trust,
        )
        for item in review
    ]


def render(
    results: Sequence[Classification] | None,
    *,
    review: Review | None = None,
    then: str | None = None,
    file: str | None = None,
    title: str | None = None,
    most: int = MOST_LISTED,
    several: bool | None = None,
    live: bool = False,
) -> str:
    """Return an HTML page for judging and browsing results.

    The page is self-contained, and its content security policy allows no network request, but to
    the server of a `live` page. Texts and labels may be hostile: they are always rendered as text.

    `results` None: the texts of the review. `review`: the texts to be judged, by default those that
    look wrong. `then` is the command that learns from the judgments, `file` the name of the file
    that they are saved in. At most `most` results are listed, those to review first; counts are
    over all. `several`: whether a text can have several labels, by default as the results say.
    `live`: each judgment of the review is sent to the server of the page.

    Raises
    ------
    InvalidInputError
        `most` is not an integer of at least 1.
    """
    checked_whole("most", most, least=1)
    listed = _results_of(review or ()) if results is None else results
    run: Any = results if hasattr(results, "usage") else None
    seconds = None if run is None or not isfinite(run.seconds) else round(run.seconds, 4)
    # a review says what the results do not
    model = getattr(run, "model", None) or getattr(review, "model", None)
    context = None if review is None else review.context
    descriptions, instructions = (
        getattr(run, name, None) or getattr(context, name, None)
        for name in ("descriptions", "instructions")
    )
    choices = getattr(run, "choices", ()) if review is None else review.labels
    if several is None:
        several = bool(listed) and listed[0].multilabel
    several = several or (review is not None and review.multilabel)
    shown = contents(listed, choices, descriptions or {}, review, most=most, several=several) | {
        "model": model,
        "seconds": seconds,
        "usage": None if run is None or run.usage == UNKNOWN else asdict(run.usage),
        "instructions": instructions,
        "learned": None if run is None else run.learned,
        "only": results is None,
        "live": live,
        "then": then,
        "file": file,
    }
    style, script = _asset("page.css"), "".join(_asset(f"{name}.js") for name in _SCRIPTS.split())
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    if live:
        policy += "; connect-src 'self'"
    data = json.dumps(shown, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    parts = {
        "title": escape(title or f"testnuc: {len(shown['rows']):,} texts"),
        "policy": escape(policy),
        "style": style,
        "script": script,
        "data": _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", data),
    }
    # one pass: inserted contents are not substituted again
    return _PLACE.sub(lambda place: parts[place[1]], _asset("page.html"))


def write(
    results: Sequence[Classification] | None, path: str | os.PathLike[str], **options: Any
) -> None:
    """Write the page to a file atomically; the options are those of `render`."""
    write_whole(path, [render(results, **options).encode("utf-8", "replace")])


def _digest(content: str) -> str:
    """Return the hash of an inline style or script for the content security policy."""
    return "sha256-" + b64encode(sha256(content.encode()).digest()).decode()


@cache
def _asset(name: str) -> str:
    return (files("testnuc.report") / name).read_text(encoding="utf-8")


_PLAIN_STYLE = (
    ":root{color-scheme:light dark}body{font:1rem/1.5 system-ui,sans-serif;max-width:52rem;"
    "margin:2rem auto;padding:0 1rem}table{border-collapse:collapse;display:block;overflow-x:auto}"
    "th,td{padding:.2rem .8rem .2rem 0;border-bottom:1px solid #8884;vertical-align:top;"
    "font-variant-numeric:tabular-nums}code{overflow-wrap:anywhere}"
)
_PLAIN_HEAD = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" '
    'content="width=device-width"><meta http-equiv="Content-Security-Policy" content="default-src '
    "'none'; style-src 'unsafe-inline'\">"
)
#: What a label cannot mean.
_NOT_IN_LABELS = ("link", "image", "autolink", "emphasis", "entity")


def page_of(markdown: str, title: str) -> str:
    """Return the page of the Markdown that `TestNUC.describe` writes; labels may be hostile."""
    reader = MarkdownIt("commonmark", {"html": False}).enable("table").disable([*_NOT_IN_LABELS])
    body = reader.render(markdown)
    return (
        f"{_PLAIN_HEAD}<title>{escape(title)}</title><style>{_PLAIN_STYLE}</style>\n{body}</html>\n"
    )
