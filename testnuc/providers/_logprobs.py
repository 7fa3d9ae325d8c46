"""Confidence from token log-probabilities: the probability of a label's tokens."""

from __future__ import annotations

import math
from typing import Any

from testnuc.errors import ReplyError
from testnuc.prompts import label_spans
from testnuc.protocols import Answer

__all__ = ["with_logprobs"]


def with_logprobs(
    answers: tuple[Answer | ReplyError, ...], content: str, logprobs: Any
) -> tuple[Answer | ReplyError, ...]:
    """Return the answers with the probability of their label's tokens as confidence.

    Parameters
    ----------
    answers : tuple[Answer or ReplyError, ...]
        Parsed from `content`.
    content : str
        The model's output.
    logprobs : Any
        The ``logprobs`` of its choice, unvalidated.

    Returns
    -------
    tuple[Answer or ReplyError, ...]
        The same labels; the confidence is None if the label's tokens cannot be located.
    """
    tokens = _tokens(logprobs)
    start = b"".join(token for token, _ in tokens).find(_utf8(content))
    spans = label_spans(content, len(answers)) if tokens and start >= 0 else {}
    found: list[Answer | ReplyError] = []
    for i, answer in enumerate(answers):
        if isinstance(answer, ReplyError):
            found.append(answer)
            continue
        confidence = None
        if i in spans:
            first, last = (start + len(_utf8(content[:at])) for at in spans[i])
            confidence = _probability(tokens, first, last)
        found.append(Answer(answer.label, confidence))
    return tuple(found)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _tokens(logprobs: Any) -> list[tuple[bytes, float]]:
    """Return the tokens as bytes with their log-probabilities; none if one is malformed."""
    listed = logprobs.get("content") if isinstance(logprobs, dict) else None
    tokens: list[tuple[bytes, float]] = []
    for token in listed if isinstance(listed, list) else ():
        if not isinstance(token, dict):
            return []
        value, raw, text = token.get("logprob"), token.get("bytes"), token.get("token")
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            return []
        if isinstance(raw, list) and all(type(b) is int and 0 <= b < 256 for b in raw):
            tokens.append((bytes(raw), float(value)))
        elif isinstance(text, str):
            tokens.append((_utf8(text), float(value)))
        else:
            return []
    return tokens


def _probability(tokens: list[tuple[bytes, float]], first: int, last: int) -> float | None:
    """Return the product of the probabilities of the tokens that overlap ``[first, last)``."""
    total, at, found = 0.0, 0, False
    for token, logprob in tokens:
        end = at + len(token)
        if at < last and end > first:
            total += logprob
            found = True
        at = end
    return math.exp(min(0.0, total)) if found else None
