"""One result as a record of a file: written, and read back."""

import json
import math
from collections.abc import Mapping
from typing import Any

import orjson

from testnuc.errors import TestNUCError
from testnuc.types import SEPARATOR, Classification, Neighbor, Prediction, row, split_labels

#: Prefix of our columns in files, which hold the user's own columns, too.
PREFIX = "nuc_"
#: The columns that files have by default, besides `CERTIFIED`; the others with --full.
SHORT = ("nuc_label", "nuc_trust", "nuc_source", "nuc_own_label", "nuc_error")
#: Fields of a text with several labels, in JSON; a table has them as one string, `nuc_label`.
LISTS = ("nuc_labels", "nuc_shares", "nuc_trusts", "nuc_own_labels")
CERTIFIED = "nuc_certified"

#: In files with few columns, an answer that is no label stands where an error would.
_OUTSIDE = "the LLM said what is no label: "


def file_row(result: Classification, *, full: bool = False) -> dict[str, Any]:
    """Return the fields of a result for a file: names with a prefix, floats rounded."""
    fields = row(result, full=full) | ({"probabilities": result.probabilities} if full else {})
    return {PREFIX + name: rounded(value) for name, value in fields.items()}


def short_row(result: Classification) -> dict[str, Any]:
    """Return the fields of a result that most need; of several labels also as lists."""
    fields = file_row(result)
    if fields["nuc_error"] is None and (own := result.prediction) and own.said and own.unmatched:
        fields["nuc_error"] = _OUTSIDE + own.said
    return {name: fields[name] for name in (*SHORT, *LISTS) if name in fields}


def result_of(record: Mapping[str, Any], index: int, text_column: str) -> Classification:
    """Return the result in a record that `file_row` made; numbers may be strings.

    Raises ValueError, TypeError, KeyError or AttributeError if a value is malformed.
    """
    said, error = text_of(record.get("nuc_own_said")), text_of(record.get("nuc_error"))
    if error is not None and error.startswith(_OUTSIDE):
        said, error = error.removeprefix(_OUTSIDE), None
    text, label = record[text_column], text_of(record["nuc_label"])
    votes = _structure(record.get("nuc_votes"), {})
    labels, shares = _structure(record.get("nuc_labels"), None), None
    if labels is not None:
        # they are those of `nuc_label`, which a person may have edited; "" is a text without labels
        label, shares = _text(record["nuc_label"]), _parts(record.get("nuc_shares"))
        if not isinstance(labels, list):
            raise TypeError(f"nuc_labels is {labels!r:.60}, which is not a list")
        # a row of a Parquet file names the labels of all
        shares = {name: share for name, share in shares.items() if share is not None}
    return Classification(
        **_path(record),
        label=label,
        shares=shares,
        trusts={n: t for n, t in _parts(record.get("nuc_trusts")).items() if n in (labels or ())},
        prediction=_prediction(record, said, several=labels is not None),
        index=index,
        text=text if isinstance(text, str) else "" if text is None else str(text),
        share=_part(record.get("nuc_share")) or 0.0,
        margin=_number(record.get("nuc_margin")) or 0.0,
        voters=int(_number(record.get("nuc_voters")) or 0),
        complete=record.get("nuc_complete") not in {False, "False", "false"},
        neighbors=tuple(map(_neighbor, _structure(record.get("nuc_neighbors"), []))),
        votes={str(label): _number(weight) or 0.0 for label, weight in votes.items()},
        error=None if error is None else TestNUCError(error),
        trust=_part(record.get("nuc_trust")),
        reason=text_of(record.get("nuc_reason")),
        source=text_of(record.get("nuc_source")),
        alternative=text_of(record.get("nuc_alternative")),
        trust_of_alternative=_part(record.get("nuc_trust_of_alternative")),
    )


def _neighbor(near: Mapping[str, Any]) -> Neighbor:
    similarity, label = _number(near["similarity"]) or 0.0, text_of(near["label"])
    return Neighbor(str(near["text"]), similarity, label, _part(near["confidence"]))


def _path(record: Mapping[str, Any]) -> dict[str, Any]:
    if record.get("nuc_path") is None:
        return {}
    fields = {
        "path": tuple(map(str, _structure(record["nuc_path"], []))),
        "path_shares": tuple(_number(s) or 0.0 for s in _structure(record["nuc_path_shares"], [])),
        "path_trusts": tuple(map(_part, _structure(record["nuc_path_trusts"], []))),
    }
    if len(set(map(len, fields.values()))) > 1:
        raise ValueError("nuc_path, its shares and its trusts have different lengths")
    return fields


def _prediction(record: Mapping[str, Any], said: str | None, *, several: bool) -> Prediction | None:
    """Return the LLM's own answer in a record; None: it was not asked."""
    # of several labels, "" is an answer without labels
    label = (_text if several else text_of)(record.get("nuc_own_label"))
    confidence = _part(record.get("nuc_own_confidence"))
    if label is None and confidence is None and said is None:
        return None
    if not several:
        return Prediction(label, confidence, said)
    # a list without items is not written everywhere, and a short file has no confidences
    labels = list(map(str, _structure(record.get("nuc_own_labels"), [])))
    sure = _structure(record.get("nuc_own_confidences"), []) or [None] * len(labels)
    outside = split_labels(said)
    if said is not None and said.startswith("[["):
        # in older files, the whole answer as JSON
        outside = [name for name, _ in orjson.loads(said) if name not in labels]
    stated = [*zip(labels, map(_part, sure), strict=True), *((name, None) for name in outside)]
    return Prediction(label, confidence, SEPARATOR.join(outside) or None, tuple(stated))


def _structure(value: Any, nothing: Any) -> Any:
    """Return a list or an object; a CSV file holds them as JSON."""
    if value is None or value == "":
        return nothing
    return orjson.loads(value) if isinstance(value, str) else value


def _text(value: Any) -> str | None:
    if not isinstance(value, str | None):
        raise TypeError(f"{value!r:.60} is not a string")
    return value


def text_of(value: Any) -> str | None:
    """Return a string; None for the empty cell of a CSV file."""
    return None if value is None or value == "" else str(value)


def _number(value: Any) -> float | None:
    if value is None or value == "":
        return None
    # a spreadsheet may have written a decimal comma
    number = float(value.replace(",", ".") if isinstance(value, str) else value)
    return number if math.isfinite(number) else None


def _part(value: Any) -> float | None:
    """Return a number from 0 to 1; raises ValueError for another."""
    number = _number(value)
    if number is not None and not 0 <= number <= 1:
        raise ValueError(f"{value!r:.60} is not between 0 and 1")
    return number


def _parts(value: Any) -> dict[str, Any]:
    return {str(name): _part(part) for name, part in _structure(value, {}).items()}


def rounded(value: Any) -> Any:
    """Round all floats in a value, for the size of files."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def cell_of(value: Any) -> Any:
    """Return a value as a cell of a table, which holds lists and objects as JSON."""
    return _json(value).decode() if isinstance(value, dict | list | tuple) else value


def line_of(record: dict[str, Any]) -> bytes:
    """Return a record as a line of JSON."""
    return _json(record) + b"\n"


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value, default=str)
    except TypeError as exc:
        if "ecursion" in str(exc):
            raise
        # an integer of more than 64 bits, or half a character in a text that was rejected
        plain = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
        return plain.encode("utf-8", "replace")
