"""Accuracy of results with known labels, and the difference between two runs, with intervals."""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

import numpy as np

from testnuc._base.arrays import Float64s, Int64s
from testnuc._base.display import Brief, one_line
from testnuc.errors import InvalidInputError
from testnuc.results import Results
from testnuc.trust.shares import Z_95, Share
from testnuc.types import Classification, split_labels

T = TypeVar("T")

#: Cells of an array of the jackknife.
_CELLS = 1_000_000
#: Pairs of labels that are printed.
_PAIRS = 15


@dataclass(frozen=True, slots=True)
class Measured(Share):
    """An estimate with its 95 % interval."""

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation(Brief):
    """Accuracy of results on texts with known labels. ``print`` it.

    Texts that a person judged are left out: their label is the judgment. A text that is repeated
    counts as often in the values, and as one draw in the intervals.
    """

    #: Number of texts that are scored.
    texts: int
    #: Texts that a person judged, which are left out.
    judged: int
    #: Texts without a label, which count as errors.
    unlabeled: int
    accuracy: Measured
    #: Accuracy of the LLM's own labels.
    own_accuracy: Measured
    #: `accuracy` minus `own_accuracy`, on the same texts.
    gain: Measured
    #: Mean F1 over all labels that occur, with an interval by the jackknife.
    macro_f1: Measured
    own_macro_f1: Measured
    #: What gave the label (`Classification.source`) -> number of texts and accuracy.
    by_source: Mapping[str, tuple[int, Measured]]
    results: Results = field(repr=False)

    def __str__(self) -> str:
        gain = self.gain
        lines = [
            f"{self.texts:,} texts, {self.unlabeled:,} without a label; 95 % intervals",
            f"accuracy   {self.accuracy}",
            f"  the LLM alone {self.own_accuracy}, difference {points(gain)}",
            f"macro F1   {self.macro_f1}",
            f"  the LLM alone {self.own_macro_f1}",
            *([f"{self.judged:,} texts that a person judged are left out"] if self.judged else []),
            *(
                f"accuracy of labels by {source}: {of}, {texts:,} texts"
                for source, (texts, of) in self.by_source.items()
            ),
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Brief):
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
    #: Texts that a person judged in one of the runs, which the accuracies leave out.
    judged: int = 0

    def __str__(self) -> str:
        return self.describe()

    def describe(self, examples: int = 0) -> str:
        """Return what is printed, with some texts of each pair of labels."""
        part = len(self.differing) / self.texts
        lines = [
            f"{self.texts:,} texts are in both, {len(self.differing):,} labels differ ({part:.1%})"
        ]
        if self.accuracies is not None and self.gain is not None:
            first, second = self.accuracies
            lines.append(f"accuracy {first}, then {second}")
            lines.append(f"difference {points(self.gain)}")
        if self.judged:
            lines.append(f"{self.judged:,} texts that a person judged are left out of the accuracy")
        for one, other, texts in self.pairs[:_PAIRS]:
            lines.append(f"{texts:>7,}  {one or 'no label'} -> {other or 'no label'}")
            alike = (a.text for a, b in self.differing if (a.label, b.label) == (one, other))
            lines += [f"         {one_line(text, 90)}" for text in islice(alike, examples)]
        if more := len(self.pairs[_PAIRS:]):
            lines.append(f"         and {more} more pairs of labels")
        return "\n".join(lines)


def points(of: Measured) -> str:
    """Format a difference in percentage points."""
    return f"{100 * of.value:+.1f} points ({100 * of.low:+.1f} to {100 * of.high:+.1f}, 95 %)"


def wilson(right: float, texts: float) -> Measured:
    """Return a proportion with its Wilson score interval."""
    if texts <= 0:
        return Measured(math.nan, 0.0, 1.0)
    part, square = right / texts, Z_95 * Z_95
    middle = (part + square / (2 * texts)) / (1 + square / texts)
    spread = math.sqrt(part * (1 - part) / texts + square / (4 * texts * texts))
    spread *= Z_95 / (1 + square / texts)
    # rounding must not exclude the proportion itself
    return Measured(
        part, min(max(middle - spread, 0.0), part), max(min(middle + spread, 1.0), part)
    )


def paired_difference(wins: float, losses: float, texts: float) -> Measured:
    """Return the difference of two paired accuracies.

    On `wins` texts only the second is right, on `losses` only the first. The interval is the
    adjusted Wald interval of Bonett and Price 2012, "Adjusted Wald confidence interval for a
    difference of binomial proportions based on paired data" (JEBS).
    """
    up, down = (wins + 1) / (texts + 2), (losses + 1) / (texts + 2)
    error = Z_95 * math.sqrt((up + down - (up - down) ** 2) / (texts + 2))
    low, high = max(up - down - error, -1.0), min(up - down + error, 1.0)
    return Measured((wins - losses) / texts, low, high)


def accuracy_of(right: Sequence[bool], texts: Sequence[str]) -> Measured:
    """Return the part of some texts that is right; a repeated text is one draw."""
    part = _independent(np.array(right, np.float64), texts) / max(len(right), 1)
    return wilson(sum(right) * part, len(right) * part)


def gain_of(right: Sequence[tuple[bool, bool]], texts: Sequence[str]) -> Measured:
    """Return the second accuracy minus the first; a repeated text is one draw."""
    wins, losses = sum(b and not a for a, b in right), sum(a and not b for a, b in right)
    gains = np.array([int(b) - int(a) for a, b in right], np.float64)
    part = _independent(gains, texts) / max(len(right), 1)
    return paired_difference(wins * part, losses * part, len(right) * part)


def _independent(values: Float64s, texts: Sequence[str]) -> float:
    """Return how many independent texts have a mean as exact as that of these values.

    A repeated text is one draw. The variance of the mean is the larger one of two: by the sums of
    the deviations of each text, and as if copies had the same value (Kish 1965).
    """
    n, copies = len(values), Counter(texts)
    if len(copies) == n:
        return n
    away: dict[str, float] = defaultdict(float)
    for text, value in zip(texts, values - values.mean(), strict=True):
        away[text] += float(value)
    kish = n * n / sum(number**2 for number in copies.values())
    together = sum(sums**2 for sums in away.values())
    apart = n * n * float(values.var())
    return min(kish, apart / together if together else kish)


def matched(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """Return the positions of each text that is in both; repeated texts match in order."""
    waiting: dict[str, deque[int]] = defaultdict(deque)
    for at, text in enumerate(second):
        waiting[text].append(at)
    return [(at, waiting[text].popleft()) for at, text in enumerate(first) if waiting[text]]


def checked_gold(
    texts: Sequence[object], labels: Sequence[str], known: Sequence[str] = ()
) -> list[str]:
    """Return known labels of texts, as many; with the label set `known`, they must be in it."""
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


def not_judged(
    pairs: Sequence[tuple[Classification, T]], what: str = "texts"
) -> list[tuple[Classification, T]]:
    """Return the pairs whose result no person judged: there the label is the judgment."""
    if open_ := [pair for pair in pairs if pair[0].source != "person"]:
        return open_
    raise InvalidInputError(
        f"a person judged all {len(pairs):,} {what}, so their labels are the judgments; give texts "
        "that were not judged"
    )


def evaluated(results: Results, labels: Sequence[str]) -> Evaluation:
    """Return the accuracy of results by the known label of each text; judged ones are left out."""
    known = checked_gold(results, labels)
    pairs = not_judged([*zip(results, known, strict=True)])
    gold, texts = [of for _, of in pairs], [row.text for row, _ in pairs]
    given, own = [row.label for row, _ in pairs], [row.own_label for row, _ in pairs]
    right = [label == of for label, of in zip(given, gold, strict=True)]
    alone = [label == of for label, of in zip(own, gold, strict=True)]
    by: dict[str, list[int]] = defaultdict(list)
    for at, (row, _) in enumerate(pairs):
        if row.label is not None:
            by[row.source or "llm"].append(at)
    return Evaluation(
        texts=len(gold),
        judged=len(known) - len(gold),
        unlabeled=given.count(None),
        accuracy=accuracy_of(right, texts),
        own_accuracy=accuracy_of(alone, texts),
        gain=gain_of(list(zip(alone, right, strict=True)), texts),
        macro_f1=_macro_f1(gold, given, texts),
        own_macro_f1=_macro_f1(gold, own, texts),
        by_source={
            source: (
                len(places),
                accuracy_of([right[at] for at in places], [texts[at] for at in places]),
            )
            for source, places in by.items()
        },
        results=results,
    )


def _macro_f1(gold: Sequence[str], given: Sequence[str | None], texts: Sequence[str]) -> Measured:
    """Return the mean F1 over all labels that occur, with its interval by the jackknife.

    One text at a time is left out, with its copies (Efron and Tibshirani 1993, "An introduction to
    the bootstrap", chapter 11). With few texts for a label the mean F1 is biased, so that a
    percentile bootstrap covers it too seldom; the jackknife estimates the bias, too.
    """
    names = {*gold, *(label for label in given if label is not None)}
    number = {name: at for at, name in enumerate(sorted(names))}
    cells: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for text, of, label in zip(texts, gold, given, strict=True):
        cells[text].append((number[of], -1 if label is None else number[label]))
    # texts with the same labels are left out once
    alike = Counter(tuple(sorted(of_text)) for of_text in cells.values())
    counts = np.array([*alike.values()], np.int64)
    total = _counted([cell for of_text in cells.values() for cell in of_text], len(number))
    value = float(_f1_of(total))
    left_out = []
    kinds, size = [*alike], max(_CELLS // len(number), 1)
    for start in range(0, len(kinds), size):
        parts = np.stack([_counted(kind, len(number)) for kind in kinds[start : start + size]])
        left_out.append(_f1_of(total - parts))
    scores, n = np.concatenate(left_out), len(cells)
    if n == 1:
        return Measured(value, 0.0, 1.0)
    mean = float(np.average(scores, weights=counts))
    error = Z_95 * math.sqrt((n - 1) * float(np.average((scores - mean) ** 2, weights=counts)))
    middle = value - (n - 1) * (mean - value)
    return Measured(
        value, max(min(middle - error, value), 0.0), min(max(middle + error, value), 1.0)
    )


def _counted(cells: Sequence[tuple[int, int]], classes: int) -> Int64s:
    """Return how often labels are right, given, and both: int64[3, classes].

    `cells` are numbers of labels: the right one, and the given one, -1 = none.
    """
    right, given = np.array(cells, np.int64).reshape(-1, 2).T
    kinds = right, given[given >= 0], right[right == given]
    return np.stack([np.bincount(of, minlength=classes) for of in kinds])


def _f1_of(counts: Int64s) -> Float64s:
    """Return the macro F1 of counts, int64[.., 3, classes], as `_counted` returns them."""
    occurs = counts[..., 0, :] + counts[..., 1, :]
    f1 = 2 * counts[..., 2, :] / np.maximum(occurs, 1)
    mean: Float64s = f1.sum(axis=-1) / np.maximum((occurs > 0).sum(axis=-1), 1)
    return mean


def _same(label: str | None, other: str | None) -> bool:
    """Return whether the labels of a text are the same; of several, the order says nothing."""
    return label == other or sorted(split_labels(label)) == sorted(split_labels(other))


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
        The known label of each text of `first`, in order. Texts that a person judged in one of the
        runs are left out of the accuracies.

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
    differing = [(a, b) for a, b in pairs if not _same(a.label, b.label)]
    counts = Counter((a.label, b.label) for a, b in differing)
    ordered = [(one, other, texts) for (one, other), texts in counts.most_common()]
    accuracies = gain = None
    judged = 0
    if gold is not None:
        open_ = [at for at in places if "person" not in (first[at[0]].source, second[at[1]].source)]
        if not open_:
            raise InvalidInputError(
                f"a person judged all {len(pairs):,} texts that are in both runs, so their labels "
                "are the judgments; leave the known labels out"
            )
        right = [
            (_same(first[a].label, gold[a]), _same(second[b].label, gold[a])) for a, b in open_
        ]
        texts = [first[a].text for a, _ in open_]
        one, other = zip(*right, strict=True)
        accuracies = (accuracy_of(one, texts), accuracy_of(other, texts))
        gain = gain_of(right, texts)
        judged = len(pairs) - len(open_)
    return Comparison(
        texts=len(pairs),
        only_first=len(first) - len(pairs),
        only_second=len(second) - len(pairs),
        differing=differing,
        pairs=ordered,
        accuracies=accuracies,
        gain=gain,
        judged=judged,
    )
