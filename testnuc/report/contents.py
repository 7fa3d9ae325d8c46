"""What the page shows, as one structure: each text and label once, all else by number."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from testnuc.trust import review_queue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testnuc.types import Classification, Usage

__all__ = ["contents"]

_BINS = 10
#: Pairs of labels told of that the vote changed one into the other.
_PAIRS = 12
#: The head of the review queue: so many texts, or such a part of them if that is more.
_REVIEWS = 20
_REVIEWED = 0.1


class _Numbers:
    """Numbers strings in the order they come."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def of(self, value: str | None) -> int | None:
        return None if value is None else self.known.setdefault(value, len(self.known))


def contents(
    results: Sequence[Classification],
    *,
    usage: Usage | None,
    seconds: float | None,
    model: str | None,
    choices: Sequence[str],
    most: int,
) -> dict[str, Any]:
    """Return what the page's script reads.

    Of more than `most` results those are listed that a person should look at first; what is counted
    is counted over all.
    """
    rows = list(results)
    texts, labels = _Numbers(), _Numbers()
    for label in choices:
        labels.of(label)
    reviews = review_queue(rows, len(rows))
    # nearly every text has some reason: what is urgent is the head of the queue
    queue = {id(r.result) for r in reviews[: max(_REVIEWS, int(len(rows) * _REVIEWED))]}
    # by identity: results of several runs may have the same index
    why = {id(review.result): review for review in reviews}
    listed = rows
    if len(rows) > most:
        first = [review.result for review in reviews[:most]]
        rest = (row for row in rows if id(row) not in why)
        first.extend(row for row, _ in zip(rest, range(most - len(first)), strict=False))
        chosen = {id(row) for row in first}
        listed = [row for row in rows if id(row) in chosen]
    told = []
    for row in listed:
        own = row.prediction
        review = why.get(id(row))
        near = [
            [texts.of(n.text), _number(n.similarity), labels.of(n.label), _number(n.confidence)]
            for n in row.neighbors
        ]
        told.append(
            {
                "i": row.index,
                # an invalid text may be no string at all
                "x": texts.of(str(row.text)),
                "l": labels.of(row.label),
                "t": _number(row.trust),
                "s": _number(row.share),
                "m": _number(row.margin),
                "n": row.voters,
                "c": row.complete,
                "o": None if own is None else labels.of(own.label),
                "a": own is not None,
                "f": None if own is None else _number(own.confidence),
                "d": None if own is None else own.said,
                "e": None if row.error is None else _told(row.error),
                "r": row.reason,
                "u": 0 if review is None else _number(review.urgency),
                "q": id(row) in queue,
                "w": [] if review is None else review.why,
                "v": [[labels.of(label), _number(w)] for label, w in row.votes.items()],
                "k": near,
            }
        )
    summary = _summary(rows, labels)
    return {
        "model": model,
        "seconds": _number(seconds),
        "usage": None if usage is None else asdict(usage),
        "choices": len(choices),
        "total": len(rows),
        "summary": {**summary, "review": len(queue)},
        "labels": list(labels.known),
        "texts": list(texts.known),
        "rows": told,
    }


def _summary(rows: Sequence[Classification], labels: _Numbers) -> dict[str, Any]:
    """Count over all results, listed or not."""
    of_label: Counter[int | None] = Counter()
    pairs: Counter[tuple[int | None, int | None]] = Counter()
    bins = [0] * _BINS
    unknown = errors = 0
    for row in rows:
        label = labels.of(row.label)
        of_label[label] += 1
        if row.changed:
            pairs[labels.of(row.own_label), label] += 1
        errors += row.error is not None
        if row.trust is None or not math.isfinite(row.trust):
            unknown += 1
        else:
            bins[min(int(row.trust * _BINS), _BINS - 1)] += 1
    return {
        "labels": of_label.most_common(),
        "trust": bins,
        "unknown": unknown,
        "errors": errors,
        "changed": pairs.total(),
        "pairs": [[*pair, count] for pair, count in pairs.most_common(_PAIRS)],
        "otherPairs": max(len(pairs) - _PAIRS, 0),
    }


def _number(value: float | None) -> float | None:
    """Round, for the page's size; JSON has no NaN and no infinity."""
    return None if value is None or not math.isfinite(value) else round(float(value), 4)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
