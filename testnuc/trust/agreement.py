"""How far several people's judgments agree: Cohen's kappa and Krippendorff's alpha (nominal).

Both are tested against scikit-learn and the package `krippendorff`. They are computed here since
the interval needs them without each text, and a formula needs no further package.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from testnuc._base.display import Brief
from testnuc.trust.shares import Z_95, upper_bound

#: What each person said of a text: labels, None = none of the labels. Skipped texts are missing.
_Texts: TypeAlias = "Counter[tuple[str | None, ...]]"


@dataclass(frozen=True, slots=True, repr=False)
class Agreement(Brief):
    """Agreement of several people, each value with its 95 % interval by the jackknife."""

    #: The part of pairs of judgments of a text that are equal, its lowest and highest value.
    equal: tuple[float, float, float]
    #: Krippendorff's alpha; NaN where all judgments are equal.
    alpha: tuple[float, float, float]
    #: Cohen's kappa, of two people; None: there are more.
    kappa: tuple[float, float, float] | None

    @property
    def error(self) -> float:
        """How often a judge errs at least, on average: of two who differ, one is wrong."""
        return (1 - self.equal[0]) / 2

    def __str__(self) -> str:
        values = [] if self.kappa is None else [f"Cohen's kappa {_shown(self.kappa)}"]
        values.append(f"Krippendorff's alpha {_shown(self.alpha)}")
        equal, low, high = self.equal
        return (
            f"{', '.join(values)}.\n"
            f"Your judgments agree in {equal:.1%} ({low:.1%} to {high:.1%}). Of two judges who "
            f"differ one is wrong, so a judge errs in at least {self.error:.1%} on average: what "
            f"is 90% right by one judge's judgments may be {0.9 - self.error:.1%} right, or less "
            "where judges err alike."
        )


def agreement_of(answers: Sequence[Sequence[str | None]], people: int) -> Agreement:
    """Return the agreement of people.

    `answers`: what those who judged a text said of it, for each text with at least two; in the
    order of the people, if there are two.
    """
    texts: _Texts = Counter(map(tuple, answers))
    return Agreement(
        _jackknife(_equal, texts),
        _jackknife(_alpha, texts),
        _jackknife(_kappa, texts) if people == 2 else None,
    )


def judge_error(agreed: Sequence[bool], confidence: float) -> float | None:
    """Return an upper bound of how often a judge errs on average; None: no text has two judgments.

    `agreed`: whether those of a text are equal. As if one of two who differ is right, and both who
    agree are: an interval of a binomial proportion (Clopper and Pearson 1934), halved.
    """
    if not agreed:
        return None
    return upper_bound(agreed.count(False), len(agreed), 1 - confidence) / 2


def _equal(texts: _Texts) -> float:
    pairs = sum(number * len(said) * (len(said) - 1) for said, number in texts.items())
    return _same(texts, pairs=True) / pairs


def _same(texts: _Texts, *, pairs: bool) -> float:
    """Return the number of equal pairs of judgments; else each is weighed by 1 / (judges - 1)."""
    return sum(
        number * of * (of - 1) / (1 if pairs else len(said) - 1)
        for said, number in texts.items()
        for of in Counter(said).values()
    )


def _alpha(texts: _Texts) -> float:
    """Return Krippendorff's alpha of nominal values (Krippendorff 2011)."""
    given: Counter[str | None] = Counter()
    for said, number in texts.items():
        for label in said:
            given[label] += number
    n = given.total()
    different = n * n - sum(of * of for of in given.values())
    if not different:
        return math.nan
    return 1 - (n - 1) * (n - _same(texts, pairs=False)) / different


def _kappa(texts: _Texts) -> float:
    """Return Cohen's kappa of two people (Cohen 1960)."""
    first: Counter[str | None] = Counter()
    second: Counter[str | None] = Counter()
    for (one, other), number in texts.items():
        first[one] += number
        second[other] += number
    n = texts.total()
    chance = sum(number * second[label] for label, number in first.items()) / n**2
    return math.nan if chance == 1 else (_equal(texts) - chance) / (1 - chance)


def _jackknife(value_of: Callable[[_Texts], float], texts: _Texts) -> tuple[float, float, float]:
    """Return a value with its 95 % interval: one text at a time is left out."""
    value, n = value_of(texts), texts.total()
    if n == 1 or math.isnan(value):
        return value, -1.0, 1.0
    left_out = [value_of(texts - Counter([kind])) for kind in texts]
    if any(map(math.isnan, left_out)):
        return value, -1.0, 1.0
    scores, weights = np.array(left_out), np.array([*texts.values()])
    mean = float(np.average(scores, weights=weights))
    error = Z_95 * math.sqrt((n - 1) * float(np.average((scores - mean) ** 2, weights=weights)))
    return value, max(value - error, -1.0), min(value + error, 1.0)


def _shown(values: tuple[float, float, float]) -> str:
    value, low, high = values
    if math.isnan(value):
        return "unknown (all judgments are equal)"
    return f"{value:.2f} ({low:.2f} to {high:.2f})"
