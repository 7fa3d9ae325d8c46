"""Reply parsing: lenient about format, strict about which text an answer belongs to."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from testnuc._base.foreign import read_integer
from testnuc.errors import MismatchedReplyError, ReplyError, UnreadableReplyError
from testnuc.protocols import Answer, Answers

#: Characters at the end of a reply that are searched for JSON: the answer comes last.
_SEARCHED = 50_000
#: Characters that are read in vain, where JSON may begin, before the search ends; an attempt takes
#: as long as some characters.
_MOST_READ, _ATTEMPT = 400_000, 100
#: Characters of the longest reply, with reasoning.
_LONGEST = 1_000_000
#: Most values in a reply that is JSON as a whole, and how many more for each text: a million take
#: seconds to read.
_MOST_VALUES, _MOST_OF_TEXT = 10_000, 200

_TAG = re.compile(r"<(/?)(think|thinking|reasoning)>", re.IGNORECASE)
_FENCE = re.compile(r"\A```[\w-]*")
_OPENING = re.compile(r"[{\[]")
#: The beginning of a number, a constant or an escape, which the end of a reply cut off.
_BEGUN = re.compile(r"[-+.\w\\]{0,8}")
#: The beginning of a list of answers, with or without the object around it.
_LIST = re.compile(r'(?:\{\s*"\w{1,40}"\s*:\s*)?\[')
_CLOSING = re.compile(r"[\]}\s`]*")
#: A line that begins another sample or turn, as prompts do.
_TURN = re.compile(
    r"^[^\w\n]{0,20}(text|sample|user|human|assistant|input)\b ?\d{0,9}[^\w\n:]{0,9}:",
    re.IGNORECASE | re.MULTILINE,
)
#: Names of what a model considered: no answer of it.
_CONSIDERED = re.compile(
    r"alternat|candidat|consider|draft|exclu|option|other|possib|reject|runner|unlikely",
    re.IGNORECASE,
)
#: Fields in which a model that goes through all labels says whether one applies.
_APPLIES = ("applies", "applicable", "present", "relevant", "selected", "value", "match", "matches")
_SCORES = ("confidence", "score", "probability")
_DENIALS = frozenset({"false", "no", "0", "0.0"})
_BETWEEN = re.compile(r"[\s,]*")
_ID = re.compile(r"(?:text|sample|id)? ?#? ?([0-9]{1,9})(?:\.0*)?", re.IGNORECASE)
_DECODER = json.JSONDecoder(parse_int=read_integer)


def parse_reply(content: str, n: int, *, several: bool = False, truncated: bool = False) -> Answers:
    """Parse the answers for `n` texts from a reply.

    The JSON may be in a code fence, after reasoning or before other prose. Of different answers
    the last one counts, after a draft; where the reply begins with an answer, or goes on as the
    prompt does, the others may be to texts that the model invented, and it fails. Answers for
    several texts are matched by id, never by order. A missing id, or a duplicate id with different
    answers, fails for that text only; an unknown id is ignored. An id 0 or n + 1 fails for all
    texts, and so does a whole reply that ends before the id n: the model may have counted
    differently, or taken two texts for one, and every answer may belong to the text before or
    after.
    Where a text can have `several` labels, an answer has a list of them. Of a `truncated` reply
    only what is complete counts: all of it, or some of several texts.
    Errors are returned, never raised.
    """
    if len(content) > _LONGEST:
        return _all_errors(UnreadableReplyError, "the reply is too long", content, n)
    # a list of labels alone is an answer to one text
    alone = several and n == 1
    try:
        whole: Any = orjson.loads(content)
    except ValueError:
        found = _after_cut(content, n) if truncated else _values(content, n, several=alone)
        # in prose it may be the label options; a code fence is none
        alone = alone and bool(_after_cut(content, 1))
    else:
        # JSON has no more values than answers to `n` texts may have
        readable = sum(map(content.count, ",[{")) <= _MOST_VALUES + _MOST_OF_TEXT * n
        found = [whole] if readable else []
    answer_of = _several if several else _answer
    items: list[dict[str, Any]] = []
    for value in found:
        read = _items(value, several=several, alone=alone)
        if read is None:
            continue
        if n > 1 and isinstance(value, dict) and "id" in read[0] and len(read) == 1:
            items += read  # one answer per line, or the complete part of a truncated reply
        elif items and _labels_of(read) != _labels_of(items) and _goes_on(content):
            return _all_errors(
                MismatchedReplyError, "the reply has several answers to one text", content, n
            )
        else:
            items = read  # the last one wins: drafts come before the answer
    if not items:
        return _all_errors(UnreadableReplyError, "the reply contains no JSON answer", content, n)
    answers = tuple(answer_of(item, content) for item in items)
    if n == 1:
        return (_only(items, answers, content),)
    # one that ends within JSON was cut off, too
    whole = not truncated and content.rstrip().endswith(("}", "]", "```"))
    return _match_by_id(items, answers, content, n, whole=whole)


def _only(items: list[dict[str, Any]], answers: Answers, content: str) -> Answer | ReplyError:
    others = any(item.get("id") is not None and _id_of(item["id"]) != 1 for item in items)
    if others or any(answer != answers[0] for answer in answers):
        return _error(MismatchedReplyError, "the reply has answers for other texts", content)
    return answers[0]


def without_thinking(content: str) -> str:
    """Return the end of a reply without the reasoning that some models write before the answer."""
    text = content[-_SEARCHED:]
    inside = _cut_block(content, text) if len(text) < len(content) else None
    parts, at = [], 0
    for tag in _TAG.finditer(text):
        name = tag[2].lower()
        if inside is None and not tag[1]:
            parts.append(text[at : tag.start()])
            inside = name
        elif tag[1] and name == inside:
            inside, at = None, tag.end()
    if inside is None:
        parts.append(text[at:])
    return " ".join(parts).strip()


def _cut_block(content: str, text: str) -> str | None:
    """Return the name of the block of reasoning in which the searched part begins, or None."""
    tag = _TAG.search(text)
    if tag is not None:
        return tag[2].lower() if tag[1] else None
    tag = _TAG.match(content[:_ATTEMPT].lstrip())
    return tag[2].lower() if tag is not None and not tag[1] else None


def _match_by_id(
    items: list[dict[str, Any]], answers: Answers, content: str, n: int, *, whole: bool
) -> Answers:
    by_id: dict[int, Answer | ReplyError] = {}
    duplicate: set[int] = set()
    unknown: set[int | None] = set()
    for item, answer in zip(items, answers, strict=True):
        key = _id_of(item.get("id"))
        if key is None or not 1 <= key <= n:
            unknown.add(key)
            continue
        if key in by_id and by_id[key] != answer:
            duplicate.add(key)
        by_id[key] = answer
    if 0 in unknown or n + 1 in unknown or (whole and n not in by_id and not unknown):
        return _all_errors(
            MismatchedReplyError, f"the reply's ids are not those of the {n} texts", content, n
        )
    for i in range(1, n + 1):
        if i in duplicate or i not in by_id:
            number = "two answers" if i in duplicate else "no answer"
            by_id[i] = _error(MismatchedReplyError, f"the reply has {number} with id {i}", content)
    return tuple(by_id[i] for i in range(1, n + 1))


def _error(kind: type[ReplyError], message: str, content: str) -> ReplyError:
    return kind(f"{message}: {content[:200]!r}", content=content[:2000])


def _all_errors(kind: type[ReplyError], message: str, content: str, n: int) -> Answers:
    return tuple(_error(kind, message, content) for _ in range(n))


def _values(content: str, n: int, *, several: bool) -> list[Any]:
    """Return the JSON values in a reply that is not JSON as a whole, in order.

    A value that the end of the reply cut off is the answer to one text, but incomplete, and what
    came before it were drafts: then there is none. `several`: also if it holds complete values.
    """
    text = without_thinking(content)
    found: list[Any] = []
    at, left, cut, unfinished = 0, _MOST_READ, False, False
    while opening := _OPENING.search(text, at):
        at = opening.start()
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as problem:
            cut, reached = _stopped(problem, text)
            # each start may be read up to the end
            left -= _ATTEMPT + reached - at
            # what does not end holds all that follows
            unfinished |= left < 0 or (several and cut)
            if left < 0:
                break
            at += 1
        else:
            cut = False
            found.append(value)
    return [] if (cut or unfinished) and n == 1 else found


def _stopped(problem: Exception, text: str) -> tuple[bool, int]:
    """Return whether JSON stops at the end of the text, and how far it was read."""
    if not isinstance(problem, json.JSONDecodeError):
        return False, len(text)
    if problem.msg.startswith("Unterminated string"):
        return True, len(text)
    return _BEGUN.fullmatch(text, problem.pos) is not None, problem.pos


def _after_cut(content: str, n: int) -> list[Any]:
    """Return the JSON values of a truncated reply that are certain to be answers.

    That is a reply which is JSON but for a code fence, or the first answers to several texts, in
    the only JSON of the reply.
    """
    text = _without_fence(content)
    with suppress(ValueError):
        return [orjson.loads(text)]
    opening = _OPENING.search(text)
    if n == 1 or opening is None:
        return []
    at = opening.start()
    if begun := _LIST.match(text, at):
        at = begun.end()
    found: list[Any] = []
    while True:
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            # the answer that was cut off; what follows a complete list may be other answers
            whole = text.startswith("{", at) or _CLOSING.fullmatch(text, at)
            return found if whole else []
        if not isinstance(value, dict) or "id" not in _lowered(value):
            return []
        found.append(value)


def _goes_on(content: str) -> bool:
    """Whether a reply begins with JSON, or has turns of a dialog: its first answer is no draft."""
    if _TURN.search(without_thinking(content)):
        return True
    return _without_fence(content).lstrip().startswith(("{", "["))


def _without_fence(content: str) -> str:
    text = without_thinking(content)
    return _FENCE.sub("", text).removesuffix("```") if text.startswith("```") else text


def _labels_of(items: list[dict[str, Any]]) -> list[Any]:
    return [item.get("labels", item.get("label")) for item in items]


def _items(value: Any, *, several: bool, alone: bool) -> list[dict[str, Any]] | None:
    """Return the answers in a JSON value, or None if it has none.

    `alone`: the labels themselves are an answer, without the field.
    """
    field = "labels" if several else "label"
    if isinstance(value, dict):
        value = _lowered(value)
        if field in value or "label" in value:
            return [value]
        lists = [
            inner
            for name, inner in value.items()
            if isinstance(inner, list) and not _CONSIDERED.search(name[:_ATTEMPT])
        ]
        if len(lists) != 1:
            return None
        value, alone = lists[0], False
    if not isinstance(value, list):
        return None
    items = [_lowered(item) for item in value if isinstance(item, dict)]
    whole = len(items) == len(value) or not several
    if items and whole and all(field in item or "id" in item for item in items):
        return items
    if not alone or not value:
        return None
    labels = all(
        isinstance(one, str) or (isinstance(one, dict) and "label" in one) for one in value
    )
    return [{"labels": value}] if labels else None


def _lowered(item: dict[Any, Any]) -> dict[str, Any]:
    return {str(key).strip().lower(): inner for key, inner in item.items()}


def _id_of(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float | str):
        found = _ID.fullmatch(" ".join(str(value)[:100].split()))
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
    """Return the labels of an answer, in its order; duplicates and unknown labels stay.

    A label with the confidence 0, or one that a field such as ``"applies"`` denies, does not apply.
    """
    given = item["labels"] if "labels" in item else item.get("label")
    if isinstance(given, dict):
        if any(value is not True and _score(value) is None for value in given.values()):
            return _error(UnreadableReplyError, "not all labels have a number", content)
        given = [{"label": label, "confidence": _score(value)} for label, value in given.items()]
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list):
        return _error(UnreadableReplyError, "the answer has no list of labels", content)
    labels = []
    for one in given:
        entry = _lowered(one) if isinstance(one, dict) else {"label": one}
        if any(str(entry.get(name)).lower() in _DENIALS for name in (*_APPLIES, *_SCORES)):
            continue
        entry.setdefault("confidence", item.get("confidence"))
        answer = _answer(entry, content)
        if isinstance(answer, ReplyError):
            return answer
        if answer.confidence != 0:
            labels.append((answer.label, answer.confidence))
    return Answer("", None, tuple(labels))


def _score(value: Any) -> float | None:
    """Return the confidence that a label applies, 0 for False."""
    return 0.0 if value is False else _confidence(value)


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
    if percent or (10 < number <= 100 and number.is_integer()):
        number /= 100
    return number if 0 <= number <= 1 else None


#: A string that does not end takes the rest, so that no part of it is read again.
_FIELDS = re.compile(
    r'(?P<brace>[{}])|"id"\s*:\s*(?P<id>"[^"\\]{0,40}"|[-0-9.]{1,12})'
    r'|"label"\s*:\s*"(?P<label>(?:[^"\\]|\\.?)*+)(?P<end>"|\Z)|"(?:[^"\\]|\\.?)*+(?:"|\Z)',
    re.DOTALL,
)


@dataclass(slots=True)
class _Object:
    """The fields of an object of a reply that may be an answer."""

    depth: int
    id: int | None = None
    span: tuple[int, int] | None = None


def label_spans(content: str, labels: Sequence[str | None]) -> dict[int, tuple[int, int]]:
    """Return the start and end of each text's label in a reply, for token log-probabilities.

    By the position of the text. `labels` are those that `parse_reply` returned; None: an error. A
    label belongs to the id in the same object, in any order of its fields; of one text, the last
    one that is not in another's object counts. Left out are texts whose label is missing, is not
    the one that was returned, or occurs twice.
    """
    one = len(labels) == 1
    spans: dict[int, tuple[int, int]] = {}
    least, twice = 0, set[int]()
    for found in _objects(content):
        place = 0 if one else (found.id or 0) - 1
        if found.span is None or not 0 <= place < len(labels):
            continue
        if labels[place] is None or _unquoted(content[slice(*found.span)]) != labels[place]:
            continue
        if place in spans and (not one or found.depth > least):
            twice.add(place)
            continue
        spans[place], least = found.span, found.depth
    return {place: span for place, span in spans.items() if one or place not in twice}


def _objects(content: str) -> Iterator[_Object]:
    """Yield each object of a reply when it ends, or at the end of the reply."""
    stack = [_Object(0)]
    for field in _FIELDS.finditer(content):
        if field["brace"] == "{":
            stack.append(_Object(len(stack)))
        elif field["brace"] and len(stack) > 1:
            yield stack.pop()
        elif field["id"] is not None:
            stack[-1].id = _id_of(field["id"].strip('"'))
        elif field["end"]:
            stack[-1].span = field.span("label")
    yield from reversed(stack)


def _unquoted(text: str) -> str:
    """Return what is between the quotes of a JSON string."""
    try:
        value = str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return text
    return value.encode("utf-8", "replace").decode()
