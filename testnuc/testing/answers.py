"""What a test server was told to answer."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zlib import crc32

from testnuc.errors import InvalidInputError

__all__ = ["AnswerOf", "Latency", "Told", "asker", "by_hash", "delays"]

#: What the model says of a text: a label, or a label and how sure it is (0..1; None: not told).
Told = str | Sequence[Any]
#: Tells what the model says: by text, or by text and how many answers to it came before.
AnswerOf = Mapping[str, Told] | Callable[[str], Told | None] | Callable[[str, int], Told | None]
#: Seconds, a range of seconds, or a callable that draws seconds.
Latency = float | tuple[float, float] | Callable[[random.Random], float]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def asker(answer: AnswerOf) -> tuple[Callable[[str, int], Any], bool]:
    """Make a callable of text and time asked of what the user gave.

    Returns
    -------
    callable
        Gives the answer, or None where there is none.
    bool
        Whether it makes use of the time asked. It does if two positional arguments are required;
        one with a default is the author's own.
    """
    if isinstance(answer, Mapping):
        get = answer.get
        return (lambda text, _: get(text)), False
    if not callable(answer):
        raise InvalidInputError(
            f"answer is {type(answer).__name__}; give a mapping of text to (label, confidence) or "
            "a callable of the text"
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


def delays(latency: Latency, seed: int) -> Callable[[], float]:
    """Make a callable that gives the seconds until each answer."""
    rng = random.Random(seed)  # noqa: S311 - not a secret
    if callable(latency):
        return lambda: latency(rng)
    if isinstance(latency, Sequence):
        low, high = latency
        return lambda: rng.uniform(low, high)
    if latency < 0:
        raise InvalidInputError(f"latency is {latency}; it is in seconds, 0 or more")
    seconds = float(latency)
    return lambda: seconds


def by_hash(labels: Sequence[str]) -> Callable[[str], tuple[str, float]]:
    """Make a callable that gives every text one of the labels, the same in every process.

    Parameters
    ----------
    labels : sequence of str
        The labels to pick from.

    Returns
    -------
    callable
        Text -> (label, confidence); the confidence is between 0.5 and 1.
    """
    labels = tuple(labels)
    if not labels:
        raise InvalidInputError("labels is empty; there is none to answer with")

    def answer(text: str) -> tuple[str, float]:
        code = crc32(text.encode("utf-8", "surrogatepass"))
        return labels[code % len(labels)], 0.5 + (code >> 20) / 8192

    return answer
