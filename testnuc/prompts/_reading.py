"""Reading replies: leniently in their form, strictly in which text an answer belongs to."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import orjson

from testnuc.errors import MismatchedReplyError, ReplyError, UnreadableReplyError
from testnuc.protocols import Answer

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Only this much of a reply's end is searched for JSON: an answer stands at the end.
_SEARCHED = 50_000
#: How many places of a reply are tried as the beginning of JSON.
_TRIES = 1000

_THINKING = re.compile(r"<(think|thinking|reasoning)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_FENCED = re.compile(r"```[\w-]*\s*\n?(.*?)```", re.DOTALL)
_OPENING = re.compile(r"[{\[]")
_ID = re.compile(r"\s*(?:text|sample|id)?\s*#?\s*([0-9]{1,9})(?:\.0*)?\s*", re.IGNORECASE)
_DECODER = json.JSONDecoder()


def parse_reply(content: str, n: int) -> tuple[Answer | ReplyError, ...]:
    """Read the answers to `n` texts out of what an LLM said.

    The JSON may stand in a code fence, after reasoning or before other prose. Answers to several
    texts are joined by their id, never by order: an id that is missing, or given twice with
    different answers, fails for that text alone, and an unknown id concerns nobody. Only ids that
    show another way of counting, from 0 or one past the last text, fail for all, since any answer
    may then belong to the text before or after.

    Parameters
    ----------
    content : str
        What the LLM said.
    n : int
        How many texts it was asked about.

    Returns
    -------
    tuple[Answer or ReplyError, ...]
        One for each text, in order. The function itself raises nothing.
    """
    if n == 1 and (usual := _usual(content)):
        return (usual,)
    items: list[dict[str, Any]] = []
    for value in _values(content):
        read = _items(value)
        if read is None:
            continue
        if n > 1 and isinstance(value, dict) and "id" in read[0] and len(read) == 1:
            items += read  # one answer a line, or what is whole of an answer that was cut off
        else:
            items = read  # the last one counts: drafts come before the answer
    if not items:
        return _all_failed(UnreadableReplyError, "the reply holds no JSON answer", content, n)
    if n == 1:
        answers = [_answer(item, content) for item in items]
        if any(item.get("id") is not None and _id_of(item["id"]) != 1 for item in items) or any(
            answer != answers[0] for answer in answers
        ):
            return _all_failed(
                MismatchedReplyError, "the reply answers other texts than the one asked", content, 1
            )
        return (answers[0],)
    return _joined(items, content, n)


def _usual(content: str) -> Answer | None:
    """Read the reply that nearly all are, a whole object with a label and a confidence."""
    try:
        value = orjson.loads(content)
    except ValueError:
        return None
    if type(value) is not dict or len(value) != 2:
        return None
    label, confidence = value.get("label"), value.get("confidence")
    if type(label) is str and label.strip() and type(confidence) is float and 0 <= confidence <= 1:
        return Answer(label, confidence)
    return None


def _joined(items: list[dict[str, Any]], content: str, n: int) -> tuple[Answer | ReplyError, ...]:
    """Put each answer to the text whose id it carries."""
    by_id: dict[int, Answer | ReplyError] = {}
    doubled: set[int] = set()
    foreign: set[int | None] = set()
    for item in items:
        key = _id_of(item.get("id"))
        if key is None or not 1 <= key <= n:
            foreign.add(key)
            continue
        answer = _answer(item, content)
        if key in by_id and by_id[key] != answer:
            doubled.add(key)
        by_id[key] = answer
    if 0 in foreign or n + 1 in foreign:
        return _all_failed(
            MismatchedReplyError, f"the reply's ids are not those of the {n} texts", content, n
        )
    return tuple(
        _failed(MismatchedReplyError, f"the reply has two answers with id {i}", content)
        if i in doubled
        else by_id.get(i)
        or _failed(MismatchedReplyError, f"the reply has no answer with id {i}", content)
        for i in range(1, n + 1)
    )


def _failed(kind: type[ReplyError], message: str, content: str) -> ReplyError:
    return kind(f"{message}: {content[:200]!r}", content=content[:2000])


def _all_failed(
    kind: type[ReplyError], message: str, content: str, n: int
) -> tuple[Answer | ReplyError, ...]:
    return tuple(_failed(kind, message, content) for _ in range(n))


def _values(content: str) -> Iterator[Any]:
    """Yield all JSON values that a reply may hold, in order; alone if it is nothing but JSON."""
    try:
        yield orjson.loads(content)
    except ValueError:
        pass
    else:
        return
    said = _THINKING.sub(" ", content)[-_SEARCHED:]
    fenced = _FENCED.findall(said)
    for block in fenced:
        try:
            value = orjson.loads(block.strip())
        except ValueError:
            continue
        yield value
    at = 0
    for _ in range(_TRIES):
        opening = _OPENING.search(said, at)
        if opening is None:
            return
        try:
            value, at = _DECODER.raw_decode(said, opening.start())
        except (ValueError, RecursionError):
            at = opening.start() + 1
        else:
            yield value


def _items(value: Any) -> list[dict[str, Any]] | None:
    """Return the answers in a JSON value, or None where it does not look like any."""
    if isinstance(value, dict):
        value = {str(key).strip().lower(): inner for key, inner in value.items()}
        if "label" in value:
            return [value]
        lists = [inner for inner in value.values() if isinstance(inner, list)]
        if len(lists) != 1:
            return None
        value = lists[0]
    if not isinstance(value, list):
        return None
    items = [
        {str(key).strip().lower(): inner for key, inner in item.items()}
        for item in value
        if isinstance(item, dict)
    ]
    return items if items and all("label" in item or "id" in item for item in items) else None


def _id_of(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float | str):
        found = _ID.fullmatch(str(value))
        return int(found[1]) if found else None
    return None


def _answer(item: dict[str, Any], content: str) -> Answer | ReplyError:
    label = item.get("label")
    if isinstance(label, list) and len(label) == 1:
        label = label[0]
    if isinstance(label, bool | int | float):
        label = json.dumps(label)
    if not isinstance(label, str) or not label.strip():
        return _failed(UnreadableReplyError, "the answer has no label", content)
    if not label.isascii():
        label = label.encode("utf-8", "replace").decode()  # an escaped half of a character
    return Answer(label, _confidence(item.get("confidence")))


def _confidence(value: Any) -> float | None:
    """Return 0..1, or None where a value cannot be read as a probability without guessing.

    A percent sign says what is meant; so does a whole number from 11 to 100. From 2 to 10 it could
    be percent or marks out of ten, and is not used.
    """
    percent = False
    if isinstance(value, str):
        value = value.strip()
        percent = value.endswith("%")
        value = value.removesuffix("%")
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if not math.isfinite(number):
        return None
    if percent or (10 < number <= 100 and number.is_integer()):
        number /= 100
    return number if 0 <= number <= 1 else None


_FIELDS = re.compile(
    r'"id"\s*:\s*"?(?P<id>[0-9]{1,9})|"label"\s*:\s*"(?P<label>(?:[^"\\]|\\.)*)"'
    r'|"(?:[^"\\]|\\.)*"',
    re.DOTALL,
)


def label_spans(content: str, n: int) -> dict[int, tuple[int, int]]:
    """Find where in a reply each text's label stands, for token log-probabilities.

    Parameters
    ----------
    content : str
        A reply that `parse_reply` can read.
    n : int
        How many texts it answers.

    Returns
    -------
    dict[int, tuple[int, int]]
        Position of the text -> first and last-plus-one character of its label. Texts whose label
        cannot be located, or stands there twice, are left out.
    """
    found: dict[int, tuple[int, int]] = {}
    unsure: set[int] = set()
    current = 1 if n == 1 else None
    for field in _FIELDS.finditer(content):
        if field["id"] is not None:
            current = int(field["id"])
        elif field["label"] is not None and current is not None:
            if current in found and n > 1:
                unsure.add(current)
            found[current] = field.span("label")
            current = 1 if n == 1 else None
    return {i - 1: span for i, span in found.items() if 1 <= i <= n and i not in unsure}
