"""Input texts and labels: validated before any call, then deduplicated."""

import asyncio
from collections.abc import AsyncIterable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from testnuc._base.arrays import Int64s
from testnuc._base.checks import hash_text, is_null, note_label, valid_text, values
from testnuc.errors import InvalidInputError
from testnuc.labels import LabelSet
from testnuc.protocols import PoolText
from testnuc.trust.review import closest_label

#: Texts processed between two turns of the event loop.
_TURN = 1_024


def _null_in(column: Any, position: int, value: Any) -> str | None:
    """Return the problem with a null value (None, NaN, NA, NaT) of a column; None: not null."""
    if not is_null(value) or isinstance(column, list | tuple):
        return None
    row = ""
    index = getattr(column, "index", None)
    # `index` is a method of a list, but the row names of a pandas Series
    if index is not None and not callable(index):
        row = f" (row {index[position]!r})"
    return f"is null{row}; leave such rows out, as drop_nulls() or dropna() do"


async def checked_texts(texts: Iterable[str]) -> list[str]:
    """Return the texts as a list; raises `InvalidInputError` if one of them cannot be labeled."""
    if isinstance(texts, str | bytes):
        raise InvalidInputError(
            f"texts is one string ({texts[:40]!r}); give a list of texts, or use classify(text)"
        )
    if isinstance(texts, AsyncIterable):
        raise InvalidInputError("texts is an async iterable; use stream(texts)")
    given = list(values(texts))
    for position, text in enumerate(given):
        problem = valid_text(text)
        if problem is not None:
            problem = _null_in(texts, position, text) or problem
            raise InvalidInputError(f"text {position} {problem}")
        if position % _TURN == _TURN - 1:
            await asyncio.sleep(0)
    return given


def without_foreign_labels(entries: Sequence[PoolText], allowed: LabelSet) -> list[PoolText]:
    """Return the entries without labels of another label set; pools can be shared."""
    return [
        e if e.label is None or allowed.knows(e.label) else replace(e, label=None) for e in entries
    ]


async def distinct(texts: Sequence[str]) -> tuple[list[PoolText], Int64s]:
    """Return the distinct texts, and the place of each text among them, int64[len(texts)]."""
    entries: list[PoolText] = []
    place_of: dict[bytes, int] = {}
    places = np.empty(len(texts), dtype=np.int64)
    for position, text in enumerate(texts):
        key = hash_text(text)
        place = place_of.setdefault(key, len(entries))
        if place == len(entries):
            entries.append(PoolText(text, key))
        places[position] = place
        if position % _TURN == _TURN - 1:
            await asyncio.sleep(0)
    return entries, places


def labels_by_place(
    entries: Sequence[PoolText],
    places: Int64s,
    labels: Iterable[Any],
    allowed: LabelSet,
    *,
    none: bool = False,
) -> list[str | None]:
    """Return the given label of each distinct text, or all of its labels in one string.

    `none`: whether a text with one label may have None, because none of the labels is right.
    """
    given = list(values(labels, "labels", ordered=True))
    if len(given) != len(places):
        raise InvalidInputError(f"{len(places)} texts need {len(places)} labels, got {len(given)}")
    known: dict[int, str | None] = {}
    for position, (place, said) in enumerate(zip(places.tolist(), given, strict=True)):
        if (problem := _null_in(labels, position, said)) is not None:
            how = "[]" if allowed.multilabel else "in a list, None"
            said_of_none = f"; {how} is a judgment: none of the labels is right" * none
            raise InvalidInputError(f"label {position} {problem}{said_of_none}")
        label = _known_label(allowed, said, position, none=none)
        note_label(known, place, entries[place].text, label)
    return [known[place] for place in range(len(entries))]


def _known_label(allowed: LabelSet, said: Any, position: int, *, none: bool) -> str | None:
    if allowed.multilabel:
        joined = allowed.joined(said)
        if joined is None:
            raise InvalidInputError(
                f"the labels {position} are {said!r}; with multilabel=True give a list of "
                "distinct labels of the label set, [] for none"
            )
        return joined
    if said is None and none:
        return None
    if not isinstance(said, str) or said not in allowed:
        raise InvalidInputError(
            f"label {position} is {said!r}, which is not in the label set"
            + (closest_label(said, allowed.names) or "; correct it, or leave the text out")
        )
    return said
