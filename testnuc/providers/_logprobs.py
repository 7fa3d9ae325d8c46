"""Confidence from token log-probabilities: of a reply's label, or of all labels."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import orjson

from testnuc.errors import ReplyError
from testnuc.prompts.reading import label_spans
from testnuc.protocols import Answer, Answers, Task

#: Alternatives of each token to ask for: OpenAI's and vLLM's limit.
TOP = 20
#: A log-probability below the first is zero, one above the second no logarithm but for rounding.
_LEAST, _ROUNDED = -1e4, 1e-3
#: Tokens and characters of the longest reply whose log-probabilities are read.
_MOST, _LONGEST = 4_000, 50_000


@dataclass(frozen=True, slots=True)
class _Token:
    text: bytes
    probability: float
    #: Other tokens that could have been in its place, unvalidated.
    top: Any = None


def with_logprobs(answers: Answers, content: str, logprobs: Any) -> Answers:
    """Return the answers with the probability of their label's tokens as confidence.

    It is None if the label's tokens cannot be located in `content`. `logprobs` is that of the
    choice, unvalidated.
    """
    tokens = _tokens(logprobs)
    known = {i: _probability(tokens, *span) for i, span in _spans(content, tokens, answers)}
    return tuple(
        answer if isinstance(answer, ReplyError) else Answer(answer.label, known.get(i))
        for i, answer in enumerate(answers)
    )


def with_scores(answers: Answers, content: str, logprobs: Any, task: Task) -> Answers | None:
    """Return the answers with the most probable label, and its share of all labels' probability.

    A label that is written in another way, as `task.same` finds it, is that label. An answer whose
    tokens lead to no label is that of `with_logprobs`. None: there are no log-probabilities.
    """
    tokens = _tokens(logprobs)
    if not tokens:
        return None
    # with the closing quote, so that no label is the beginning of another
    targets = {orjson.dumps(label)[1:]: i for i, label in enumerate(task.labels)}
    written = b"".join(token.text for token in tokens)
    found = list(with_logprobs(answers, content, logprobs))
    for i, (start, end) in _spans(content, tokens, answers):
        said = found[i]
        if isinstance(said, ReplyError):
            continue
        place = None if task.same is None else task.same(said.label)
        # in another case, or with escapes
        own = {} if place is None else {written[start:end] + b'"': place}
        scores = _scores(tokens, start, sorted((targets | own).items()), len(task.labels))
        best = max(range(len(scores)), key=scores.__getitem__)
        if scores[best] > 0:
            found[i] = Answer(task.labels[best], scores[best] / math.fsum(scores))
    return tuple(found)


def _spans(
    content: str, tokens: Sequence[_Token], answers: Answers
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the number of each text whose label is located, and the bytes of the label."""
    start = b"".join(token.text for token in tokens).find(_utf8(content))
    if tokens and start >= 0 and len(content) <= _LONGEST:
        labels = [None if isinstance(one, ReplyError) else one.label for one in answers]
        for i, (first, last) in label_spans(content, labels).items():
            yield i, (start + len(_utf8(content[:first])), start + len(_utf8(content[:last])))


def _scores(
    tokens: Sequence[_Token], start: int, targets: Sequence[tuple[bytes, int]], n: int
) -> list[float]:
    """Return the probability that the tokens from byte `start` on lead to each of `n` labels.

    The reply is one way through the tree of labels; at each of its tokens, an alternative leads to
    the labels that begin with it, to each of several with an equal part of its probability.
    """
    chances: dict[tuple[int, int], float] = {}

    def share(probability: float, text: bytes) -> int:
        """Add a probability to the targets that go on as `text`, and return how many there are."""
        first, last = bisect_left(targets, (text,)), bisect_left(targets, (text + b"\xff",))
        if first == last and first and text.startswith(targets[first - 1][0]):
            first -= 1
        chances[first, last] = chances.get((first, last), 0.0) + probability
        return last - first

    way, chance, at = b"", 1.0, 0
    for token in tokens:
        # the first token can hold the opening quote, too
        lead = token.text[: max(0, start - at)]
        at += len(token.text)
        if at <= start or not token.text:
            continue
        others = map(_token, token.top[:TOP] if isinstance(token.top, list) else ())
        for other, probability in filter(None, others):
            if other != token.text and len(other) > len(lead) and other.startswith(lead):
                share(chance * probability, way + other[len(lead) :])
        way += token.text[len(lead) :]
        chance *= token.probability
        if share(0.0, way) <= 1:
            break
    share(chance, way)
    scores = [0.0] * n
    for (first, last), probability in chances.items():
        for _, place in targets[first:last]:
            scores[place] += probability / (last - first)
    return scores


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _tokens(logprobs: Any) -> list[_Token]:
    """Return the tokens with their alternatives; none if one is malformed."""
    listed = logprobs.get("content") if isinstance(logprobs, dict) else None
    tokens: list[_Token] = []
    for given in listed if isinstance(listed, list) and len(listed) <= _MOST else ():
        read = _token(given)
        if read is None:
            return []
        tokens.append(_Token(*read, given.get("top_logprobs")))
    return tokens


def _token(given: Any) -> tuple[bytes, float] | None:
    """Return a token as bytes, and its probability; None if it is malformed."""
    if not isinstance(given, dict):
        return None
    value, raw, text = given.get("logprob"), given.get("bytes"), given.get("token")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # NaN is none either
    if not value <= _ROUNDED:
        return None
    # an integer can be too large for a float
    probability = math.exp(max(min(value, 0), _LEAST))
    if isinstance(raw, list) and all(type(b) is int and 0 <= b < 256 for b in raw):
        return bytes(raw), probability
    return (_utf8(text), probability) if isinstance(text, str) else None


def _probability(tokens: Sequence[_Token], first: int, last: int) -> float | None:
    """Return the product of the probabilities of the tokens that overlap ``[first, last)``."""
    ends = accumulate(len(token.text) for token in tokens)
    spans = ((token, end - len(token.text), end) for token, end in zip(tokens, ends, strict=True))
    found = [token.probability for token, start, end in spans if start < last and end > first]
    return math.prod(found) if found else None
