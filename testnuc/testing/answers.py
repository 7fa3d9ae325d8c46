"""Canned answers and latencies of the test server, and how the model words an answer."""

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import orjson

from testnuc.errors import InvalidInputError

#: The answer for a text: a label, or (label, confidence) with a confidence of 0..1 or None; or a
#: mapping of several labels to their confidences.
CannedAnswer = str | Sequence[Any] | Mapping[str, float | None]
#: Source of answers: a mapping or callable by text, or by text and zero-based sample index.
AnswerOf = (
    Mapping[str, CannedAnswer]
    | Callable[[str], CannedAnswer | None]
    | Callable[[str, int], CannedAnswer | None]
)
#: One label or several, and the confidence of one.
Stated = tuple[str | Mapping[str, float | None], float | None]
#: Seconds, a range of seconds, or a callable that draws seconds.
Latency = float | tuple[float, float] | Callable[[random.Random], float]
#: The label of ``wrong-label``.
WRONG_LABEL = "zqx no such label"

_BEFORE = "Sure! I read the samples with care. Here is the result:\n\n```json\n"
_AFTER = "\n```\n\nLet me know if you need anything else."

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def answer_function(answer: AnswerOf) -> tuple[Callable[[str, int], Any], bool]:
    """Normalize `answer` to a function of text and sample index; it returns None for unknown texts.

    Also returns whether it uses the sample index: if it has two required positional parameters;
    those with a default do not count.
    """
    if isinstance(answer, Mapping):
        get = answer.get
        return (lambda text, _: get(text)), False
    if not callable(answer):
        raise InvalidInputError(
            f"answer is {type(answer).__name__}; give a mapping of text to (label, confidence), or "
            "a callable that takes the text"
        )
    function: Callable[..., Any] = answer
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some builtins have no signature
        parameters = []
    required = [p for p in parameters if p.kind in _POSITIONAL and p.default is p.empty]
    if len(required) > 1:
        return function, True
    return (lambda text, _: function(text)), False


def latency_function(latency: Latency) -> Callable[[], float]:
    """Return a function that returns the latency of the next answer, in seconds."""
    rng = random.Random(0)  # noqa: S311 - not a secret
    if callable(latency):
        return lambda: latency(rng)
    low, high = latency if isinstance(latency, Sequence) else (latency, latency)
    if low < 0:
        raise InvalidInputError(f"latency is {latency}; give seconds, at least 0")
    return lambda: rng.uniform(low, high)


def by_hash(labels: Sequence[str]) -> Callable[[str], tuple[str, float]]:
    """Return an answer function that picks a label by the hash of the text.

    The label of a text is the same in every process.

    Parameters
    ----------
    labels : sequence of str
        The labels to choose from.

    Returns
    -------
    callable
        Text -> (label, confidence), with a confidence between 0.5 and 1.
    """
    labels = tuple(labels)
    if not labels:
        raise InvalidInputError("labels is empty; give at least one label")

    def answer(text: str) -> tuple[str, float]:
        code = crc32(text.encode("utf-8", "surrogatepass"))
        return labels[code % len(labels)], 0.5 + (code >> 20) / 8192

    return answer


@dataclass(frozen=True, slots=True)
class Content:
    """Output of the model, and its stop reason."""

    text: str
    #: ``stop``, ``length``, ``refusal`` or ``empty``.
    finish: str = "stop"
    #: The labels in `text`, each with its probability, in order.
    labels: tuple[tuple[str, float], ...] = ()


def compose(
    answers: Sequence[Stated],
    *,
    fault: str | None = None,
    confidence: bool = True,
    prose: bool = False,
) -> Content:
    """Render answers in the format that the prompt requests; other faults are ignored.

    `prose`: put the JSON in a code fence and add prose around it.
    """
    if fault == "refusal":
        return Content("I'm sorry, but I can't help with that.", "refusal")
    if fault == "empty-choices":
        return Content("", "empty")
    if fault == "wrong-label":
        answers = [(WRONG_LABEL, stated) for _, stated in answers]
    items = [_item(label, stated, confidence=confidence) for label, stated in answers]
    if len(items) == 1:
        text = orjson.dumps(items[0]).decode()
    else:
        packed = [{"id": i, **item} for i, item in enumerate(items, 1)]
        if fault == "duplicate-ids":
            packed[1]["id"] = 1
        elif fault == "missing-ids":
            packed.pop()
        elif fault == "invented-ids":
            packed[-1]["id"] = len(packed) + 7
        text = orjson.dumps({"answers": packed}).decode()
    if fault == "length":
        return Content(text[: len(text) // 2], "length")
    if prose or fault == "prose":
        text = f"{_BEFORE}{text}{_AFTER}"
    labels = tuple(
        (orjson.dumps(label).decode()[1:-1], 1.0 if stated is None else stated)
        for label, stated in answers
        if isinstance(label, str)
    )
    return Content(text, "stop", labels)


def _item(
    label: str | Mapping[str, float | None], stated: float | None, *, confidence: bool
) -> dict[str, Any]:
    if not isinstance(label, str):
        listed = [_item(one, sure, confidence=confidence) for one, sure in label.items()]
        return {"labels": listed}
    return {"label": label, "confidence": stated} if confidence else {"label": label}
