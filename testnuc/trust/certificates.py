"""The trust above which labels are right to a given part, proved by judged texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from testnuc.trust.evidence import Draws, capital

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Certificate", "certify"]

#: Parts of the texts are tested in growing order until one fails, from each of these starts;
#: with the part of the error that a start may use.
_STARTS = ((0.4, 0.8), (0.1, 0.2))
_STEP = 0.025


@dataclass(frozen=True, slots=True)
class Certificate:
    """A proved accuracy of the labels above a trust.

    Parameters
    ----------
    accuracy, confidence : float
        At least `accuracy` of the labels above `trust` are right, with this confidence over the
        draw of the judged texts, against what was judged.
    trust : float
        inf where nothing is certified.
    part : float
        Of the texts, 0 to 1, that are at or above `trust`.
    judged : int
        Judged texts that count.
    reason : str
        Why nothing is certified, and what it would take; empty where something is.
    """

    accuracy: float
    confidence: float
    trust: float
    part: float
    judged: int
    reason: str = ""

    def __str__(self) -> str:
        if not self.part:
            return f"not certified: {self.reason}"
        return (
            f"{self.part:.0%} of the texts, those with a trust of at least {self.trust:.2f}, are "
            f"at least {self.accuracy:.0%} right, with {self.confidence:.0%} confidence "
            f"({self.judged} judged texts)"
        )


def certify(
    trust: NDArray[np.float64],
    rows: NDArray[np.int64],
    right: NDArray[np.bool_],
    draws: Draws,
    *,
    accuracy: float,
    confidence: float,
) -> Certificate:
    """Certify the largest part of the texts, highest trust first, that judgments prove accurate.

    Fixed-sequence testing (Bauer 1991): parts are tested in an order that does not depend on the
    judgments, and the first failure ends it. A part is tested by the exact binomial test where all
    texts were equally likely to be drawn, else by betting (`testnuc.trust.evidence`).

    The bound holds for finite samples where trust and labels do not depend on the judgments. Here
    each text's are made by the judgments of the other folds; `bench evidence` counts how often the
    certificates that result are wrong.

    Parameters
    ----------
    trust : float64[n]
        NaN = unknown, never certified.
    rows : int64[m]
        Judged texts, in the order they were drawn.
    right : bool[m]
        Whether their labels are right.
    draws : Draws
    accuracy, confidence : float
    """
    known = np.nan_to_num(trust, nan=-np.inf)
    order = np.sort(known)[::-1]
    n, m = len(known), len(rows)
    error = 1 - confidence
    best = (np.inf, 0.0)
    for start, share in _STARTS:
        steps = round((1 - start) / _STEP) + 1
        for part in np.minimum(1.0, start + _STEP * np.arange(steps)):
            threshold = float(order[max(0, int(np.ceil(part * n)) - 1)]) if n else -np.inf
            inside = known[rows] >= threshold
            if not np.isfinite(threshold) or not _proved(
                inside, right, draws, accuracy, error * share
            ):
                break
            best = (threshold, float((known >= threshold).mean()))
        if best[1]:
            break
    reason = "" if best[1] else _why(known[rows], right, accuracy, error * _STARTS[0][1], m)
    return Certificate(accuracy, confidence, *best, m, reason)


def _proved(
    inside: NDArray[np.bool_],
    right: NDArray[np.bool_],
    draws: Draws,
    accuracy: float,
    error: float,
) -> bool:
    if draws.uniform:
        from scipy.stats import binom

        hits, tries = int((inside & right).sum()), int(inside.sum())
        return bool(binom.sf(hits - 1, tries, accuracy) <= error)
    # a certificate is about all texts: what bounds a bet is the least likely of them
    left = draws.texts - np.arange(len(draws.probability), dtype=np.float64)
    mixed = ~np.isclose(draws.floor * left, 1)
    lowest = float((draws.probability * left)[mixed].min(initial=np.inf))
    if mixed.any() and lowest > 1:
        # some texts could not be drawn
        return False
    draws = Draws(draws.texts, draws.probability, np.where(mixed, lowest, 1) / left)
    values = np.where(inside, right - accuracy, 0.0)
    return bool(capital(values, draws, np.zeros(1))[0] >= np.log(1 / error))


def _why(
    trust: NDArray[np.float64], right: NDArray[np.bool_], accuracy: float, error: float, m: int
) -> str:
    """Return why nothing is certified, and what would help."""
    least = int(np.ceil(np.log(error) / np.log(accuracy) / _STARTS[0][0]))
    if m < least:
        return f"{m} judged texts are too few; {least} drawn at random are needed at least"
    top = np.argsort(-trust, kind="stable")[: max(1, int(_STARTS[0][0] * m))]
    share = float(right[top].mean())
    if share < accuracy:
        return (
            f"of the judged texts with the highest trust {share:.0%} are right, fewer than "
            f"{accuracy:.0%}: more judgments do not help, better labels do"
        )
    from scipy.stats import binom

    tries = len(top)
    while tries < 100_000 and binom.sf(int(share * tries) - 1, tries, accuracy) > error:
        tries = int(tries * 1.25) + 1
    return (
        f"of the judged texts with the highest trust {share:.0%} are right, which is not yet proof;"
        f" about {int(tries / _STARTS[0][0]):,} judged texts would do"
    )
