"""The page's data as one structure; texts and labels are stored once and referenced by number."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain, islice
from typing import Any

from testnuc.trust.label_check import MOST_CHECKED, checked_labels
from testnuc.trust.review import Review
from testnuc.trust.review_queue import review_queue
from testnuc.types import SEPARATOR, Classification, row, split_labels

_BINS = 10
#: Most pairs of labels that are listed.
_PAIRS = 12
#: The head of the review queue: this many texts, or this part of them if that is more.
_REVIEWS = 20
_REVIEWED = 0.1
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
    Where a text can have `several` labels, all of them are one string, in the order of the label
    set.
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
                "k": [
                    [
                        texts.of(n.text),
                        _number(n.similarity),
                        labels.of(n.label),
                        _number(n.confidence),
                    ]
                    for n in neighbors
                ],
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
