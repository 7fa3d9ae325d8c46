"""Judgments in a table, as texts and labels."""

import csv
import os
from pathlib import Path

import orjson

from testnuc._base.checks import note_label
from testnuc._base.jsonl import bytes_of, lines_of, long_fields, unguarded
from testnuc.errors import InvalidInputError
from testnuc.types import SEPARATOR, split_labels


def read_marks(path: str | os.PathLike[str]) -> tuple[list[str], list[str] | list[list[str]]]:
    """Return the texts with a correct label in a .csv table of judgments, and these labels.

    The page of `Results.to_html` or ``testnuc report`` saves it, and ``testnuc learn RESULTS
    marks.csv`` learns from it. Where a text can have several labels, each has the list of them, []
    for none. Texts for which no label is right are omitted. `Review.load` reads a .json file.

    Raises
    ------
    InvalidInputError
        It cannot be read, is not a file of marks, or holds no text with a correct label, or a text
        with two of them.
    """
    right: dict[str, str] = {}
    several = False
    for number, mark in enumerate(_rows_of(path), 1):
        if mark.get("text") is None or "right_label" not in mark:
            raise InvalidInputError(
                f"{path}, mark {number} has no text and right_label; give what the page saved"
            )
        text, label = mark["text"], mark["right_label"]
        if not label:
            continue
        labels = _several(label)
        if labels is not None:
            several, label = True, SEPARATOR.join(labels)
        note_label(right, text, text, label, f"{path}, mark {number}: ")
    if not right:
        raise InvalidInputError(f"{path} holds no text with a correct label; mark some first")
    if several:
        return list(right), list(map(split_labels, right.values()))
    return list(right), list(right.values())


def _several(label: str) -> list[str] | None:
    """Return the labels in the JSON array of a cell; None: it is one label."""
    try:
        labels = orjson.loads(label) if label.startswith("[") else None
    except orjson.JSONDecodeError:
        return None
    return labels if labels is not None and all(isinstance(one, str) for one in labels) else None


def _rows_of(path: str | os.PathLike[str]) -> list[dict[str, str]]:
    if Path(path).suffix.lower() != ".csv":
        raise InvalidInputError(
            f"{path} is not .csv, and no review; give marks.csv, or the .json of a review"
        )
    try:
        content = bytes_of(path).decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InvalidInputError(f"{path} is not UTF-8: {exc}; save it as UTF-8") from exc
    try:
        with long_fields():
            rows = list(csv.DictReader(lines_of(content)))
    except csv.Error as exc:
        raise InvalidInputError(f"{path} is not CSV: {exc}") from exc
    return [{name: unguarded(value) for name, value in row.items()} for row in rows]
