"""Render pages, each in one file: results with style and script, or a description."""

import json
import math
import os
import re
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import chain, islice
from typing import Any

from markdown_it import MarkdownIt

from testnuc._base.checks import checked_whole
from testnuc._base.jsonl import write_whole
from testnuc.trust.label_check import MOST_CHECKED, checked_labels
from testnuc.trust.review import Review, ReviewItem
from testnuc.trust.review_queue import review_queue
from testnuc.types import SEPARATOR, UNKNOWN, Classification, Prediction, row, split_labels

#: Default for the most results that a page lists.
MOST_LISTED = 20_000
#: Characters that could end the script of the data or a line of JavaScript, or are not UTF-8.
_UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
_PLACE = re.compile(r"\{\{(\w+)\}\}")
#: In order: a script uses what those before it define.
_SCRIPTS = "marks live elements learned chooser explanation overview page"


def _results_of(review: Iterable[ReviewItem]) -> list[Classification]:
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
    seconds = None if run is None or not math.isfinite(run.seconds) else round(run.seconds, 4)
    # a review says what the results do not
    model = getattr(run, "model", None) or getattr(review, "model", None)
    context = None if review is None else review.context
    descriptions, instructions = (
        getattr(run, name, None) or getattr(context, name, None)
        for name in ("descriptions", "instructions")
    )
    choices = getattr(run, "choices", ()) if review is None else review.labels
    if several is None:
        several = any(row.multilabel for row in listed)
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
        f"default-src 'none'; script-src {digest_of(script)}; style-src {digest_of(style)}; "
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
    return _filled("page.html", parts)


def write(
    results: Sequence[Classification] | None, path: str | os.PathLike[str], **options: Any
) -> None:
    """Write the page to a file atomically; the options are those of `render`."""
    write_whole(path, [render(results, **options).encode("utf-8", "replace")])


def digest_of(content: str) -> str:
    """Return the hash of an inline style or script, as a content security policy has it."""
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"


def _filled(page: str, parts: Mapping[str, str]) -> str:
    """Return a page with its parts, in one pass: what they hold is not substituted again."""
    return _PLACE.sub(lambda place: parts[place[1]], _asset(page))


@cache
def _asset(name: str) -> str:
    return (files("testnuc.report") / name).read_text(encoding="utf-8")


def page_of(markdown: str, title: str) -> str:
    """Return the page of the Markdown that `TestNUC.describe` writes; labels may be hostile."""
    not_meant = ["link", "image", "autolink", "emphasis", "entity"]
    reader = MarkdownIt("commonmark", {"html": False}).enable("table").disable(not_meant)
    return _filled("plain.html", {"title": escape(title), "body": reader.render(markdown)})


_BINS = 10
#: Most pairs of labels that are listed.
_PAIRS = 12
#: The head of the review queue: this many texts, or this part of them if that is more.
_REVIEWS, _REVIEWED = 20, 0.1
#: Names on the page -> fields of a row.
_NUMBERS = {"t": "trust", "s": "share", "m": "margin", "f": "own_confidence"}
_JUDGES = frozenset({"person", "referee"})
_PLAIN = {
    "n": "voters",
    "c": "complete",
    "d": "own_said",
    "e": "error",
    "r": "reason",
    "g": "source",
}


class _Numbers:
    """Numbers strings in order of first use."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def of(self, value: str | None) -> int | None:
        return None if value is None else self.known.setdefault(value, len(self.known))


def contents(
    results: Sequence[Classification],
    choices: Sequence[str],
    descriptions: Mapping[str, str],
    review: Review | None,
    *,
    most: int,
    several: bool,
) -> dict[str, Any]:
    """Return the data about labels and texts that the page's script reads.

    Of more than `most` results, those to review first are listed; counts are over all results.
    Where a text can have `several` labels, they are one string, in the order of the label set.
    """
    rows = list(results)
    if several:
        choices = choices or sorted({one for r in rows for one in split_labels(r.label)})
        place = {label: number for number, label in enumerate(choices)}
        rows = [_in_order(result, place) for result in rows]
    texts, labels = _Numbers(), _Numbers()
    drawn = {} if review is None else {item.text: item for item in review}
    for label in choices:
        labels.of(label)
    reviews = review_queue(rows, len(rows))
    # nearly every text has some reason for review: only the head of the queue is urgent
    queue = {id(r.result) for r in reviews[: max(_REVIEWS, int(len(rows) * _REVIEWED))]}
    # by identity: results of several runs may have the same index
    why = {id(review.result): review for review in reviews}
    listed = rows
    if len(rows) > most:
        first = [result for result in rows if result.text in drawn]
        queued = (r.result for r in reviews if r.result.text not in drawn)
        rest = (r for r in rows if id(r) not in why and r.text not in drawn)
        order = islice(chain(first, queued, rest), max(most, len(first)))
        chosen = set(map(id, order))
        listed = [result for result in rows if id(result) in chosen]
    records = []

    def near(n: Any) -> list[Any]:
        return [texts.of(n.text), _number(n.similarity), labels.of(n.label), _number(n.confidence)]

    for result in listed:
        reason, neighbors = why.get(id(result)), result.neighbors
        if not neighbors and result.text in drawn:
            # a .csv file of results has none
            neighbors = drawn[result.text].neighbors
        fields = row(result, full=True)
        # the text's own vote alone says nothing about its label
        voted = result.voters > 1 and result.source not in _JUDGES
        votes = fields.get("shares", fields["votes"]) if voted else {}
        levels = zip(fields.get("path", ()), fields.get("path_trusts", ()), strict=True)
        records.append(
            {
                "i": result.index,
                # an invalid text may not be a string
                "x": texts.of(str(result.text)),
                "l": labels.of(fields["label"]),
                "o": labels.of(fields["own_label"]),
                "a": result.prediction is not None,
                **{short: _number(fields[name]) for short, name in _NUMBERS.items()},
                **{short: fields[name] for short, name in _PLAIN.items()},
                "u": 0 if reason is None else _number(reason.urgency),
                "q": id(result) in queue,
                "w": [] if reason is None else reason.why,
                "v": [[labels.of(label), _number(weight)] for label, weight in votes.items()],
                # the levels of a label in a tree, with their trust
                "p": [[name, _number(trust)] for name, trust in levels],
                "b": labels.of(fields["alternative"]),
                "bt": _number(fields["trust_of_alternative"]),
                "k": list(map(near, neighbors)),
            }
        )
    # where nobody asks for it, what takes long is left out
    checked = None if several or len(rows) > MOST_CHECKED else checked_labels(rows, choices)
    return {
        "choices": len(choices),
        "descriptions": [descriptions.get(label) for label in choices],
        "review": None if review is None else review.record(),
        "several": several,
        "total": len(rows),
        "summary": {**_summary(rows, labels, several=several), "review": len(queue)},
        "labels": list(labels.known),
        "texts": list(texts.known),
        "rows": records,
        "confused": [] if checked is None else [asdict(p) for p in checked.pairs[:_PAIRS]],
        "confusedSurely": checked is not None and checked.proved,
    }


def _in_order(result: Classification, place: Mapping[str, int]) -> Classification:
    """Return a result whose labels are in the order of the label set, in one string each."""

    def ordered(label: str | None) -> str | None:
        parts = () if label is None else split_labels(label)
        found = SEPARATOR.join(sorted(parts, key=lambda one: place.get(one, len(place))))
        return None if label is None else found

    own = result.prediction
    return replace(
        result,
        label=ordered(result.label),
        prediction=None if own is None else replace(own, label=ordered(own.label)),
        neighbors=tuple(replace(near, label=ordered(near.label)) for near in result.neighbors),
    )


def _summary(rows: Sequence[Classification], labels: _Numbers, *, several: bool) -> dict[str, Any]:
    """Count over all results, listed or not."""
    of_label: Counter[int | None] = Counter()
    pairs: Counter[tuple[int | None, int | None]] = Counter()
    bins = [0] * _BINS
    unknown = errors = disputed = unlabeled = 0
    for result in rows:
        label = labels.of(result.label)
        parts = split_labels(result.label) if several and result.label else [result.label]
        of_label.update(map(labels.of, parts))
        if result.changed:
            pairs[labels.of(result.own_label), label] += 1
        errors += result.error is not None
        # that none of the labels is right, a person may have said
        unlabeled += result.label is None and result.source != "person"
        disputed += result.changed if several else _disputed(result)
        if result.trust is None or not math.isfinite(result.trust):
            unknown += 1
        else:
            bins[min(int(result.trust * _BINS), _BINS - 1)] += 1
    return {
        "labels": of_label.most_common(),
        "trust": bins,
        "unknown": unknown,
        "errors": errors,
        "unlabeled": unlabeled,
        "disputed": disputed,
        "changed": pairs.total(),
        "pairs": [[*pair, count] for pair, count in pairs.most_common(_PAIRS)],
        "otherPairs": max(len(pairs) - _PAIRS, 0),
    }


def _disputed(result: Classification) -> bool:
    """Return whether ten neighbors outvote the LLM's own label, which counts twice."""
    if result.own_label is None:
        return False
    weights: defaultdict[str, float] = defaultdict(float, {result.own_label: 2.0})
    for near in result.neighbors[:10]:
        if near.label is not None:
            weights[near.label] += max(near.similarity, 0.0)
    return max(weights.values()) > weights[result.own_label]


def _number(value: float | None) -> float | None:
    """Round, for the page's size; JSON has no NaN and no infinity."""
    return None if value is None or not math.isfinite(value) else round(float(value), 4)
