"""Render the page: template, style, script and results in one file."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from testnuc._base.checks import checked_whole
from testnuc._base.jsonl import write_whole
from testnuc.report.contents import contents
from testnuc.types import UNKNOWN, Classification, MultilabelClassification, Prediction

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from testnuc.trust.review import Review
    from testnuc.types import Usage

__all__ = ["render", "write"]

#: Characters that could end the script element of the data or a line of JavaScript, or that
#: UTF-8 cannot encode.
_UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
_PLACE = re.compile(r"\{\{(\w+)\}\}")
_SCRIPTS = (
    "evidence.js",
    "marks.js",
    "live.js",
    "elements.js",
    "learned.js",
    "chooser.js",
    "explanation.js",
    "overview.js",
    "page.js",
)


#: Attributes of `Results` about their run.
_OF_RUN = ("usage", "seconds", "model", "choices", "descriptions", "instructions", "learned")


def _results_of(review: Review) -> list[Classification]:
    """Return the texts of a review as results that have the LLM's own labels."""
    return [
        Classification(
            index=item.index,
            text=item.text,
            label=item.own_label,
            share=0.0,
            margin=0.0,
            voters=0,
            complete=True,
            prediction=Prediction(item.own_label, None),
            neighbors=item.neighbors,
            trust=item.trust,
        )
        for item in review
    ]


def render(
    results: Sequence[Classification] | None,
    *,
    usage: Usage | None = None,
    model: str | None = None,
    choices: Sequence[str] = (),
    descriptions: Mapping[str, str] | None = None,
    review: Review | None = None,
    then: str | None = None,
    file: str | None = None,
    title: str | None = None,
    most: int = 20_000,
    several: bool | None = None,
    live: bool = False,
) -> str:
    """Return an HTML page for judging and browsing results.

    The page is self-contained, and its content security policy allows no network request, but to
    the server of a `live` page, which gets each judgment. Texts and labels may be hostile: they are
    always rendered as text.

    `Results` provide what is not given of usage, model, choices and descriptions; None is the texts
    of the review. Without a label set, `choices` are the labels that occur. `then` is the command
    that learns from the judgments, `file` the name of the file that they are saved in. Of more than
    `most` results, those to review first are listed; counts are over all. By default the review or
    the results say whether a text can have `several` labels.
    """
    checked_whole("most", most, least=1)
    listed: Sequence[Classification] = ()
    if results is not None:
        listed = results
    elif review is not None:
        listed = _results_of(review)
    # `Results` say more about their run than a list of them
    run = {name: getattr(listed, name, None) for name in _OF_RUN}
    if usage is None and run["usage"] != UNKNOWN:
        usage = run["usage"]
    model = run["model"] if model is None else model
    choices = choices or run["choices"] or ()
    descriptions = descriptions or run["descriptions"] or {}
    instructions = run["instructions"]
    if review is not None:
        choices, model = review.labels, model or review.model
        descriptions = descriptions or review.context.descriptions or {}
        instructions = instructions or review.context.instructions
    if several is None:
        several = bool(listed) and isinstance(listed[0], MultilabelClassification)
    shown = contents(
        listed,
        usage=usage,
        seconds=run["seconds"],
        model=model,
        choices=choices,
        descriptions=descriptions,
        instructions=instructions,
        calibrated=run["learned"] is not None,
        review=review,
        only=results is None,
        then=then,
        file=file,
        most=most,
        several=several or (review is not None and review.multilabel),
        live=live,
    )
    data = _json(shown)
    style, script = _asset("page.css"), "".join(map(_asset, _SCRIPTS))
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    if live:
        policy += "; connect-src 'self'"
    parts = {
        "title": escape(title or f"testnuc: {len(shown['rows']):,} texts"),
        "policy": escape(policy),
        "style": style,
        "script": script,
        "data": data,
    }
    # one pass: inserted contents are not substituted again
    return _PLACE.sub(lambda place: parts[place[1]], _asset("page.html"))


def write(
    results: Sequence[Classification] | None, path: str | os.PathLike[str], **options: Any
) -> None:
    """Write the page to a file atomically; `options` are those of `render`."""
    write_whole(path, [render(results, **options).encode("utf-8", "replace")])


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _digest(content: str) -> str:
    """Return the hash of an inline style or script for the content security policy."""
    return "sha256-" + b64encode(sha256(content.encode()).digest()).decode()


@cache
def _asset(name: str) -> str:
    return (files("testnuc.report") / name).read_text(encoding="utf-8")
