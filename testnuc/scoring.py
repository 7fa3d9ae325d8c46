"""Accuracy of results with known labels, and the difference between two runs, with intervals."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from testnuc._base.display import brief
from testnuc.errors import InvalidInputError

if TYPE_CHECKING:
    from testnuc._base.arrays import Float64s, Int64s
    from testnuc.results import Results
    from testnuc.types import Classification

__all__ = [
    "Comparison",
    "Evaluation",
    "Measured",
    "checked_gold",
    "compare",
    "evaluated",
    "gain_of",
    "matched",
    "paired_difference",
    "points",
    "wilson",
]

#: Standard errors of a 95 % interval.
_Z = 1.96
#: Resamples of the bootstrap, and its seed: the same results have the same interval.
_RESAMPLES, _SEED = 1_000, 0
#: Pairs of labels that are printed.
_PAIRS = 10


@dataclass(frozen=True, slots=True)
class Measured:
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Accuracy of results on texts with known labels. ``print`` it."""

    #: Number of texts.
    texts: int
    #: Texts without a label, which count as errors.
    unlabeled: int
    accuracy: Measured
    #: Accuracy of the LLM's own labels.
    own_accuracy: Measured
    #: `accuracy` minus `own_accuracy`, on the same texts.
    gain: Measured
    #: Mean F1 over all labels that occur, with an interval by bootstrap.
    macro_f1: Measured
    own_macro_f1: Measured
    #: What gave the label (`Classification.source`) -> number of texts and accuracy.
    by_source: Mapping[str, tuple[int, Measured]]
    results: Results = field(repr=False)

    __repr__ = brief

    def __str__(self) -> str:
        gain = self.gain
        lines = [
            f"{self.texts:,} texts, {self.unlabeled:,} without a label; 95 % intervals",
            f"accuracy   {self.accuracy}",
            f"  the LLM alone {self.own_accuracy}, difference {points(gain)}",
            f"macro F1   {self.macro_f1}",
            f"  the LLM alone {self.own_macro_f1}",
            *(
                f"accuracy of labels by {source}: {of}, {texts:,} texts"
                for source, (texts, of) in self.by_source.items()
            ),
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Where two runs give different labels. ``print`` it."""

    #: Texts that are in both.
    texts: int
    only_first: int
    only_second: int
    #: The results that differ, of the first and the second run.
    differing: Sequence[tuple[Classification, Classification]]
    #: Label of the first, label of the second, number of texts; most frequent first.
    pairs: Sequence[tuple[str | None, str | None, int]]
    #: Accuracy of the first and the second run; None: no labels were given.
    accuracies: tuple[Measured, Measured] | None = None
    #: The second accuracy minus the first, on the same texts.
    gain: Measured | None = None

    __repr__ = brief

    def __str__(self) -> str:
        part = len(self.differing) / self.texts
        lines = [
            f"{self.texts:,} texts are in both, {len(self.differing):,} labels differ ({part:.1%})"
        ]
        if self.accuracies is not None and self.gain is not None:
            first, second = self.accuracies
            lines.append(f"accuracy {first}, then {second}")
            lines.append(f"difference {points(self.gain)}")
        for one, other, texts in self.pairs[:_PAIRS]:
            lines.append(f"{texts:>7,}  {one or 'no label'} -> {other or 'no label'}")
        return "\n".join(lines)


def points(of: Measured) -> str:
    """Format a difference in percentage points."""
    return f"{100 * of.value:+.1f} points ({100 * of.low:+.1f} to {100 * of.high:+.1f}, 95 %)"


def wilson(right: int, texts: int) -> Measured:
    """Return a proportion with its Wilson score interval."""
    if not texts:
        return Measured(math.nan, 0.0, 1.0)
    part, square = right / texts, _Z * _Z
    middle = (part + square / (2 * texts)) / (1 + square / texts)
    spread = math.sqrt(part * (1 - part) / texts + square / (4 * texts * texts))
    spread *= _Z / (1 + square / texts)
    # rounding must not exclude the proportion itself
    return Measured(
        part, min(max(middle - spread, 0.0), part), max(min(middle + spread, 1.0), part)
    )


def paired_difference(wins: int, losses: int, texts: int) -> Measured:
    """Return the difference of two paired accuracies.

    On `wins` texts only the second is right, on `losses` only the first. The interval is the
    adjusted Wald interval of Bonett and Price 2012, "Adjusted Wald confidence interval for a
    difference of binomial proportions based on paired data" (JEBS).
    """
    up, down = (wins + 1) / (texts + 2), (losses + 1) / (texts + 2)
    error = _Z * math.sqrt((up + down - (up - down) ** 2) / (texts + 2))
    low, high = max(up - down - error, -1.0), min(up - down + error, 1.0)
    return Measured((wins - losses) / texts, low, high)


def gain_of(right: Sequence[tuple[bool, bool]]) -> Measured:
    """Return the second accuracy minus the first, of whether each is right about a text."""
    wins, losses = sum(b and not a for a, b in right), sum(a and not b for a, b in right)
    return paired_difference(wins, losses, len(right))


def matched(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """Return the positions of each text that is in both; repeated texts match in order."""
    waiting: dict[str, deque[int]] = defaultdict(deque)
    for at, text in enumerate(second):
        waiting[text].append(at)
    return [(at, waiting[text].popleft()) for at, text in enumerate(first) if waiting[text]]


def checked_gold(
    texts: Sequence[object], labels: Sequence[str], known: Sequence[str] = ()
) -> list[str]:
    """Return known labels of texts; with the label set `known`, they must be in it.

    Raises
    ------
    InvalidInputError
        There are none, or not as many as texts, or one is not in the label set.
    """
    gold = list(labels)
    if len(gold) != len(texts) or not gold:
        raise InvalidInputError(
            f"{len(texts):,} texts and {len(gold):,} labels; give one label for each text, and at "
            "least one"
        )
    for at, label in enumerate(gold):
        if not isinstance(label, str) or (known and label not in known):
            raise InvalidInputError(
                f"label {at} is {label!r:.80}, which is not one of the labels "
                f"{', '.join(map(repr, known[:6]))}"
            )
    return gold


def evaluated(results: Results, labels: Sequence[str]) -> Evaluation:
    """Return the accuracy of results, from the known label of each text, in order.

    Raises
    ------
    InvalidInputError
        There is not one for each text.
    """
    gold = checked_gold(results, labels)
    given, own = results.labels, [row.own_label for row in results]
    right = [label == of for label, of in zip(given, gold, strict=True)]
    alone = [label == of for label, of in zip(own, gold, strict=True)]
    counts: dict[str, list[bool]] = defaultdict(list)
    for row, hit in zip(results, right, strict=True):
        if row.label is not None:
            counts[row.source or "llm"].append(hit)
    return Evaluation(
        texts=len(gold),
        unlabeled=given.count(None),
        accuracy=wilson(sum(right), len(gold)),
        own_accuracy=wilson(sum(alone), len(gold)),
        gain=gain_of(list(zip(alone, right, strict=True))),
        macro_f1=_macro_f1(gold, given),
        own_macro_f1=_macro_f1(gold, own),
        by_source={s: (len(hits), wilson(sum(hits), len(hits))) for s, hits in counts.items()},
        results=results,
    )


def _macro_f1(gold: Sequence[str], given: Sequence[str | None]) -> Measured:
    """Return the mean F1 over all labels that occur, with its bootstrap interval."""
    names = sorted({*gold, *(label for label in given if label is not None)})
    number = {name: at for at, name in enumerate(names)}
    # texts with the same two labels are alike: resample their counts
    cells = Counter(
        (number[a], -1 if b is None else number[b]) for a, b in zip(gold, given, strict=True)
    )
    where = np.array(list(cells), np.int64)
    count = np.array(list(cells.values()), np.int64)
    drawn = np.random.default_rng(_SEED).multinomial(
        len(gold), count / count.sum(), size=_RESAMPLES
    )
    scores = _f1_of(drawn, where, len(names))
    low, high = np.quantile(scores, (0.025, 0.975))
    value = float(_f1_of(count[None], where, len(names))[0])
    return Measured(value, min(float(low), value), max(float(high), value))


def _f1_of(counts: Int64s, cells: Int64s, classes: int) -> Float64s:
    """Return the macro F1 of each row of counts of (gold, given) cells."""
    f1 = np.zeros((len(counts), classes))
    occurs = np.zeros((len(counts), classes), bool)
    for c in range(classes):
        expected = counts[:, cells[:, 0] == c].sum(axis=1)
        said = counts[:, cells[:, 1] == c].sum(axis=1)
        hit = counts[:, (cells[:, 0] == c) & (cells[:, 1] == c)].sum(axis=1)
        occurs[:, c] = expected + said > 0
        f1[:, c] = 2 * hit / np.maximum(expected + said, 1)
    mean: Float64s = f1.sum(axis=1) / np.maximum(occurs.sum(axis=1), 1)
    return mean


def compare(
    first: Sequence[Classification],
    second: Sequence[Classification],
    labels: Sequence[str] | None = None,
) -> Comparison:
    """Compare two runs on the same texts.

    Parameters
    ----------
    first, second : Results
        Texts are matched by their wording; repeated texts in order.
    labels : sequence of str, optional
        The known label of each text of `first`, in order.

    Returns
    -------
    Comparison

    Raises
    ------
    InvalidInputError
        They have no text in common, or there is not one label for each text.
    """
    gold = None if labels is None else checked_gold(first, labels)
    places = matched([row.text for row in first], [row.text for row in second])
    pairs = [(first[a], second[b]) for a, b in places]
    if not pairs:
        raise InvalidInputError("the two runs have no text in common; give runs on the same texts")
    differing = [pair for pair in pairs if pair[0].label != pair[1].label]
    counts = Counter((a.label, b.label) for a, b in differing)
    ordered = [(one, other, texts) for (one, other), texts in counts.most_common()]
    accuracies = gain = None
    if gold is not None:
        right = [(first[a].label == gold[a], second[b].label == gold[a]) for a, b in places]
        accuracies = (
            wilson(sum(a for a, _ in right), len(right)),
            wilson(sum(b for _, b in right), len(right)),
        )
        gain = gain_of(right)
    return Comparison(
        texts=len(pairs),
        only_first=len(first) - len(pairs),
        only_second=len(second) - len(pairs),
        differing=differing,
        pairs=ordered,
        accuracies=accuracies,
        gain=gain,
    )
