"""Judgments saved by the page, as texts and labels."""

import csv
import io
import os
from pathlib import Path
from typing import Any

import orjson

from testnuc._base.jsonl import bytes_of, json_of, long_fields, unguarded
from testnuc.errors import InvalidInputError
from testnuc.types import SEPARATOR, split_labels


def read_marks(path: str | os.PathLike[str]) -> tuple[list[str], list[str] | list[list[str]]]:
    """Return the texts with a correct label in a file of judgments, and these labels.

    Where a text can have several labels, each has the list of them, [] for none.

    ``testnuc learn RESULTS marks.json`` learns from them.

    Texts for which no label is right are omitted. `Review.load` reads all of a .json file.

    Parameters
    ----------
    path : str or path
        A .json or .csv file that the page of `Results.to_html` or ``testnuc report`` saved.

    Raises
    ------
    InvalidInputError
        It cannot be read, is not a file of marks, or holds no text with a correct label, or a text
        with two of them.
    """
    right: dict[str, str] = {}
    several = False
    for number, mark in enumerate(_marks_in(path), 1):
        if not isinstance(mark, dict) or not {"text", "right_label"} <= mark.keys():
            raise InvalidInputError(
                f"{path}, mark {number} has no text and right_label; give a review (.json) or "
                "marks that the page saved"
            )
        text, label = mark["text"], mark["right_label"]
        if label is None or label == "":
            continue
        labels = _several(label)
        if labels is not None:
            several, label = True, SEPARATOR.join(labels)
        if not isinstance(text, str) or not isinstance(label, str):
            raise InvalidInputError(f"{path}, mark {number}: text and right_label are not strings")
        if right.setdefault(text, label) != label:
            raise InvalidInputError(
                f"{path}, mark {number}: {text[:60]!r} has the label {label!r} and, before, "
                f"{right[text]!r}; give each text one label"
            )
    if not right:
        raise InvalidInputError(f"{path} holds no text with a correct label; mark some first")
    if several:
        return list(right), list(map(split_labels, right.values()))
    return list(right), list(right.values())


def _several(label: Any) -> list[str] | None:
    """Return the labels in a list, or in the JSON array of a cell; None: it is one label."""
    if isinstance(label, str) and label.startswith("["):
        try:
            label = orjson.loads(label)
        except orjson.JSONDecodeError:
            return None
    if not isinstance(label, list) or not all(isinstance(one, str) for one in label):
        return None
    return label


def _marks_in(path: str | os.PathLike[str]) -> list[Any]:
    kind = Path(path).suffix.lower()
    if kind not in {".json", ".csv"}:
        raise InvalidInputError(f"{path} is neither .json nor .csv; give a file of marks")
    try:
        content = bytes_of(path).decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InvalidInputError(f"{path} is not UTF-8: {exc}; save it as UTF-8") from exc
    if kind == ".csv":
        try:
            with long_fields():
                rows = list(csv.DictReader(io.StringIO(content, newline="")))
        except csv.Error as exc:
            raise InvalidInputError(f"{path} is not CSV: {exc}") from exc
        return [{name: unguarded(value) for name, value in row.items()} for row in rows]
    marks = json_of(content, path)
    if isinstance(marks, dict) and isinstance(marks.get("items"), list):
        # an item that is no object is refused where it is read
        return [
            {**item, "right_label": item.get("answer")} if isinstance(item, dict) else item
            for item in marks["items"]
        ]
    if not isinstance(marks, list):
        raise InvalidInputError(f"{path} does not hold a list of marks")
    return marks
