"""How many labels are right, of the LLM and now, by the texts that were drawn at random.

Before a ranking is frozen, texts are drawn from all that are left. Later ones are drawn from its
strata (`certificates`), each of which is then a stratum here, and what lies below them is another.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from testnuc.trust.certificates import edges, strata_of
from testnuc.trust.shares import JudgedSample, Population, Share

if TYPE_CHECKING:
    from testnuc._base.arrays import Array, Bools, Float64s, Int64s

#: Random draws that are needed for anything to be said.
_LEAST = 10


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How many labels are right by the judgments, with intervals of 95 % each."""

    #: The LLM's own labels.
    before: Share
    #: All labels as they are, those of judged texts corrected.
    now: Share
    #: About so many more judgments of texts drawn at random halve the intervals.
    to_halve: int

    def __str__(self) -> str:
        text = (
            f"About {_percent(self.now)} of all labels are right by your judgments, and "
            f"{_percent(self.before)} of the LLM's own; another judge may differ."
        )
        if self.to_halve:
            text += (
                f" About {self.to_halve:,} more judgments of texts drawn at random halve these "
                "intervals."
            )
        return text


def _percent(share: Share) -> str:
    return f"{100 * share.value:.0f} % ({100 * share.low:.0f} to {100 * share.high:.0f})"


def accuracy_of(
    trust: Float64s, rows: Int64s, right: Bools, before: Array, draws: tuple[Bools, Bools]
) -> Accuracy | None:
    """Return how many labels are right; None: too few texts were drawn at random.

    Parameters
    ----------
    trust : float64[n]
        What the ranking is by.
    rows : int64[m]
        The texts that people judged or skipped.
    right : bool[m]
        Whether their labels are right, by a rule that does not know their judgments.
    before : int8[m]
        Whether the LLM's labels are; -1: skipped.
    draws : (bool[m], bool[m])
        Which were drawn from all texts that were left, and which from the strata of the ranking.
    """
    anywhere, ranked = draws
    lowest = edges(trust)
    strata = strata_of(trust, lowest)
    below = ~np.isin(strata, strata[rows[ranked]])
    strata[below] = len(lowest)
    sample = JudgedSample(rows, anywhere | ranked, before < 0)
    unseen = below.any() and not below[rows[sample.drawn]].any()
    if unseen or sample.drawn.sum() < _LEAST:
        return None
    population = Population(strata[:, None])

    def share(hits: Bools, more: float) -> Share:
        found = sample.totals(population, hits[:, None])
        return Share(*(float(one[0]) + more for one in found))

    n, drawn = len(trust), int(sample.drawn.sum())
    corrected = int((~right & ~sample.missing).sum()) / n
    # the width falls by the root of the number, and is zero once all are judged
    to_halve = ceil(3 * drawn * (n - drawn) / (n + 3 * drawn))
    return Accuracy(share(before > 0, 0.0), share(right & (before >= 0), corrected), to_halve)
