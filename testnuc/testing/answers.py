"""Canned answers and latencies of the test server."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zlib import crc32

from testnuc.errors import InvalidInputError

__all__ = ["AnswerOf", "CannedAnswer", "Latency", "answer_function", "by_hash", "latency_function"]

#: The answer for a text: a label, or (label, confidence) with a confidence of 0..1 or None; or a
#: mapping of several labels to their confidences.
CannedAnswer = str | Sequence[Any] | Mapping[str, float | None]
#: Source of answers: a mapping or callable by text, or by text and zero-based sample index.
AnswerOf = (
    Mapping[str, CannedAnswer]
    | Callable[[str], CannedAnswer | None]
    | Callable[[str, int], CannedAnswer | None]
)
#: Seconds, a range of seconds, or a callable that draws seconds.
Latency = float | tuple[float, float] | Callable[[random.Random], float]

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


def latency_function(latency: Latency, seed: int) -> Callable[[], float]:
    """Return a function that returns the latency of the next answer, in seconds."""
    rng = random.Random(seed)  # noqa: S311 - not a secret
    if callable(latency):
        return lambda: latency(rng)
    if isinstance(latency, Sequence):
        low, high = latency
        return lambda: rng.uniform(low, high)
    if latency < 0:
        raise InvalidInputError(f"latency is {latency}; give seconds, at least 0")
    seconds = float(latency)
    return lambda: seconds


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
