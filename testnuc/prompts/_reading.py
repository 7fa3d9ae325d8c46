"""Reply parsing: lenient about format, strict about which text an answer belongs to."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import orjson

from testnuc.errors import MismatchedReplyError, ReplyError, UnreadableReplyError
from testnuc.protocols import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Characters at the end of a reply that are searched for JSON: the answer comes last.
_SEARCHED = 50_000
#: Most positions of a reply that are tried as the start of JSON.
_MAX_STARTS = 1000

_THINKING = re.compile(r"<(think|thinking|reasoning)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_FENCED = re.compile(r"```[\w-]*\s*\n?(.*?)```", re.DOTALL)
_OPENING = re.compile(r"[{\[]")
_ID = re.compile(r"\s*(?:text|sample|id)?\s*#?\s*([0-9]{1,9})(?:\.0*)?\s*", re.IGNORECASE)
_DECODER = json.JSONDecoder()


def parse_reply(
    content: str, n: int, *, multilabel: bool = False
) -> tuple[Answer | ReplyError, ...]:
    """Parse the answers for `n` texts from a reply.

    The JSON may be in a code fence, after reasoning or before other prose. Answers for several
    texts are matched by id, never by order. A missing id, or a duplicate id with different answers,
    fails for that text only; an unknown id is ignored. An id 0 or n + 1 fails for all texts: the
    model may have counted differently, and every answer may belong to the text before or after.
    Errors are returned, never raised.
    """
    if n == 1 and not multilabel and (answer := _plain_answer(content)):
        return (answer,)
    answer_of = _several if multilabel else _answer
    items: list[dict[str, Any]] = []
    for value in _values(content):
        read = _items(value, multilabel=multilabel)
        if read is None:
            continue
        if n > 1 and isinstance(value, dict) and "id" in read[0] and len(read) == 1:
            items += read  # one answer per line, or the complete part of a truncated reply
        else:
            items = read  # the last one wins: drafts come before the answer
    if not items:
        return _all_errors(UnreadableReplyError, "the reply contains no JSON answer", content, n)
    if n == 1:
        answers = [answer_of(item, content) for item in items]
        if any(item.get("id") is not None and _id_of(item["id"]) != 1 for item in items) or any(
            answer != answers[0] for answer in answers
        ):
            return _all_errors(
                MismatchedReplyError, "the reply has answers for other texts", content, 1
            )
        return (answers[0],)
    return _match_by_id(items, content, n, answer_of)


def without_thinking(content: str) -> str:
    """Return a reply without the reasoning that some models write before it."""
    return _THINKING.sub(" ", content[-_SEARCHED:]).strip()


def _plain_answer(content: str) -> Answer | None:
    """Parse the most common reply, an object with a label and a confidence (fast path)."""
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


def _match_by_id(
    items: list[dict[str, Any]],
    content: str,
    n: int,
    answer_of: Callable[[dict[str, Any], str], Answer | ReplyError],
) -> tuple[Answer | ReplyError, ...]:
    by_id: dict[int, Answer | ReplyError] = {}
    duplicate: set[int] = set()
    unknown: set[int | None] = set()
    for item in items:
        key = _id_of(item.get("id"))
        if key is None or not 1 <= key <= n:
            unknown.add(key)
            continue
        answer = answer_of(item, content)
        if key in by_id and by_id[key] != answer:
            duplicate.add(key)
        by_id[key] = answer
    if 0 in unknown or n + 1 in unknown:
        return _all_errors(
            MismatchedReplyError, f"the reply's ids are not those of the {n} texts", content, n
        )
    return tuple(
        _error(MismatchedReplyError, f"the reply has two answers with id {i}", content)
        if i in duplicate
        else by_id.get(i)
        or _error(MismatchedReplyError, f"the reply has no answer with id {i}", content)
        for i in range(1, n + 1)
    )


def _error(kind: type[ReplyError], message: str, content: str) -> ReplyError:
    return kind(f"{message}: {content[:200]!r}", content=content[:2000])


def _all_errors(
    kind: type[ReplyError], message: str, content: str, n: int
) -> tuple[Answer | ReplyError, ...]:
    return tuple(_error(kind, message, content) for _ in range(n))


def _values(content: str) -> Iterator[Any]:
    """Yield the JSON values in a reply, in order: one if all of it is JSON."""
    try:
        yield orjson.loads(content)
    except ValueError:
        pass
    else:
        return
    searched = _THINKING.sub(" ", content)[-_SEARCHED:]
    for block in _FENCED.findall(searched):
        try:
            value = orjson.loads(block.strip())
        except ValueError:
            continue
        yield value
    at = 0
    for _ in range(_MAX_STARTS):
        opening = _OPENING.search(searched, at)
        if opening is None:
            return
        try:
            value, at = _DECODER.raw_decode(searched, opening.start())
        except (ValueError, RecursionError):
            at = opening.start() + 1
        else:
            yield value


def _items(value: Any, *, multilabel: bool) -> list[dict[str, Any]] | None:
    """Return the answers in a JSON value, or None if it has none."""
    field = "labels" if multilabel else "label"
    if isinstance(value, dict):
        value = _lowered(value)
        if field in value or "label" in value:
            return [value]
        lists = [inner for inner in value.values() if isinstance(inner, list)]
        if len(lists) != 1:
            return None
        value = lists[0]
    if not isinstance(value, list):
        return None
    items = [_lowered(item) for item in value if isinstance(item, dict)]
    whole = len(items) == len(value) or not multilabel
    if items and whole and all(field in item or "id" in item for item in items):
        return items
    if not multilabel or not value:
        return None
    # the labels alone, without the field
    alone = all(isinstance(one, str) or (isinstance(one, dict) and "label" in one) for one in value)
    return [{"labels": value}] if alone else None


def _lowered(item: dict[Any, Any]) -> dict[str, Any]:
    return {str(key).strip().lower(): inner for key, inner in item.items()}


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
        return _error(UnreadableReplyError, "the answer has no label", content)
    if not label.isascii():
        label = label.encode("utf-8", "replace").decode()  # replaces escaped lone surrogates
    return Answer(label, _confidence(item.get("confidence")))


def _several(item: dict[str, Any], content: str) -> Answer | ReplyError:
    """Return the labels of an answer, in its order; duplicates and unknown labels stay."""
    given = item["labels"] if "labels" in item else item.get("label")
    if isinstance(given, dict):
        given = [{"label": label, "confidence": value} for label, value in given.items()]
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list):
        return _error(UnreadableReplyError, "the answer has no list of labels", content)
    labels = []
    for one in given:
        entry = _lowered(one) if isinstance(one, dict) else {"label": one}
        entry.setdefault("confidence", item.get("confidence"))
        answer = _answer(entry, content)
        if isinstance(answer, ReplyError):
            return answer
        labels.append((answer.label, answer.confidence))
    return Answer("", None, tuple(labels))


def _confidence(value: Any) -> float | None:
    """Return a probability 0..1, or None if the value is ambiguous.

    A number with a percent sign is a percentage, and so is an integer from 11 to 100. An integer
    from 2 to 10 may be a percentage or a score out of ten, so it is dropped.
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
    """Return the start and end of each text's label in a reply, for token log-probabilities.

    By the position of the text; texts whose label is missing or occurs twice are left out.
    """
    found: dict[int, tuple[int, int]] = {}
    ambiguous: set[int] = set()
    current = 1 if n == 1 else None
    for field in _FIELDS.finditer(content):
        if field["id"] is not None:
            current = int(field["id"])
        elif field["label"] is not None and current is not None:
            if current in found and n > 1:
                ambiguous.add(current)
            found[current] = field.span("label")
            current = 1 if n == 1 else None
    return {i - 1: span for i, span in found.items() if 1 <= i <= n and i not in ambiguous}
