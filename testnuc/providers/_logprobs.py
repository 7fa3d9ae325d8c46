"""Confidence from token log-probabilities: of a reply's label, or of all labels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from testnuc.errors import ReplyError
from testnuc.prompts import label_spans
from testnuc.protocols import Answer

__all__ = ["TOP", "with_logprobs", "with_scores"]

#: Alternatives of each token to ask for: OpenAI's and vLLM's limit.
TOP = 20


@dataclass(frozen=True, slots=True)
class _Token:
    text: bytes
    probability: float
    #: Other tokens that could have been in its place, with their probabilities.
    others: tuple[tuple[bytes, float], ...] = ()


def with_logprobs(
    answers: tuple[Answer | ReplyError, ...], content: str, logprobs: Any
) -> tuple[Answer | ReplyError, ...]:
    """Return the answers with the probability of their label's tokens as confidence.

    It is None if the label's tokens cannot be located in `content`. `logprobs` is that of the
    choice, unvalidated.
    """
    tokens = _tokens(logprobs)
    known = {i: _probability(tokens, *span) for i, span in _spans(content, tokens, len(answers))}
    return tuple(
        answer if isinstance(answer, ReplyError) else Answer(answer.label, known.get(i))
        for i, answer in enumerate(answers)
    )


def with_scores(
    answers: tuple[Answer | ReplyError, ...],
    content: str,
    logprobs: Any,
    labels: Sequence[str],
) -> tuple[Answer | ReplyError, ...] | None:
    """Return the answers with the most probable label, and its share of all labels' probability.

    An answer whose tokens lead to no label is that of `with_logprobs`. None: there are no
    log-probabilities.
    """
    tokens = _tokens(logprobs)
    if not tokens:
        return None
    found = list(with_logprobs(answers, content, logprobs))
    for i, (start, _) in _spans(content, tokens, len(answers)):
        scores = _scores(tokens, start, labels)
        best = max(range(len(labels)), key=scores.__getitem__)
        if scores[best] > 0 and not isinstance(found[i], ReplyError):
            found[i] = Answer(labels[best], scores[best] / math.fsum(scores))
    return tuple(found)


def _spans(content: str, tokens: Sequence[_Token], n: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the number of each text whose label is located, and the bytes of the label."""
    start = b"".join(token.text for token in tokens).find(_utf8(content))
    if tokens and start >= 0:
        for i, (first, last) in label_spans(content, n).items():
            yield i, (start + len(_utf8(content[:first])), start + len(_utf8(content[:last])))


def _scores(tokens: Sequence[_Token], start: int, labels: Sequence[str]) -> list[float]:
    """Return the probability that the tokens from byte `start` on lead to each label.

    The reply is one way through the tree of labels; at each of its tokens, an alternative leads to
    the labels that begin with it, to each of several with an equal part of its probability.
    """
    # with the closing quote, so that no label is the beginning of another
    targets = [orjson.dumps(label)[1:] for label in labels]
    scores = [0.0] * len(labels)

    def fitting(text: bytes) -> list[int]:
        return [i for i, t in enumerate(targets) if t.startswith(text) or text.startswith(t)]

    def share(probability: float, fit: Sequence[int]) -> None:
        for i in fit:
            scores[i] += probability / len(fit)

    way, chance, fit, at = b"", 1.0, list(range(len(labels))), 0
    for token in tokens:
        # the first token can hold the opening quote, too
        lead = token.text[: max(0, start - at)]
        at += len(token.text)
        if at <= start:
            continue
        for other, probability in token.others:
            if len(other) > len(lead) and other.startswith(lead):
                share(chance * probability, fitting(way + other[len(lead) :]))
        way += token.text[len(lead) :]
        chance *= token.probability
        fit = fitting(way)
        if len(fit) <= 1:
            break
    share(chance, fit)
    return scores


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _tokens(logprobs: Any) -> list[_Token]:
    """Return the tokens with their alternatives; none if one is malformed."""
    listed = logprobs.get("content") if isinstance(logprobs, dict) else None
    tokens: list[_Token] = []
    for given in listed if isinstance(listed, list) else ():
        read = _token(given)
        if read is None:
            return []
        top = given.get("top_logprobs")
        others = map(_token, top) if isinstance(top, list) else ()
        tokens.append(_Token(*read, tuple(o for o in others if o and o[0] != read[0])))
    return tokens


def _token(given: Any) -> tuple[bytes, float] | None:
    """Return a token as bytes, and its probability; None if it is malformed."""
    if not isinstance(given, dict):
        return None
    value, raw, text = given.get("logprob"), given.get("bytes"), given.get("token")
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    probability = math.exp(min(0.0, value))
    if isinstance(raw, list) and all(type(b) is int and 0 <= b < 256 for b in raw):
        return bytes(raw), probability
    return (_utf8(text), probability) if isinstance(text, str) else None


def _probability(tokens: Sequence[_Token], first: int, last: int) -> float | None:
    """Return the product of the probabilities of the tokens that overlap ``[first, last)``."""
    chance, at, found = 1.0, 0, False
    for token in tokens:
        end = at + len(token.text)
        if at < last and end > first:
            chance *= token.probability
            found = True
        at = end
    return chance if found else None
