"""How many labels are right, of the LLM and now, by the texts that were drawn at random.

A review draws more texts on which candidates differ: these are one stratum, the others another.
Those that were drawn from a ranking by trust do not count, but are corrected. The trust of a judged
text is by another fit than that of the others, so that strata of trust hold other texts than they
did when the first texts were drawn: with them intervals miss the accuracy twice as often.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np

from testnuc._base.arrays import Array, Bools, Int64s
from testnuc.trust.shares import JudgedSample, Population, Share

#: Nominal confidence of what holds in 95 %: intervals of few draws in two strata miss a little more
#: often than they say, and labels of judged texts are by other fits than those of the others.
_CONFIDENCE = 0.97
#: Random draws that a stratum needs, for anything to be said.
_LEAST = 5


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
            text += f' About {self.to_halve:,} more judgments (goal "count") halve these intervals.'
        return text


def _percent(share: Share) -> str:
    return f"{100 * share.value:.0f} % ({100 * share.low:.0f} to {100 * share.high:.0f})"


def accuracy_of(
    differs: Bools, rows: Int64s, right: Bools, before: Array, drawn: Bools, ranked: Bools
) -> Accuracy | None:
    """Return how many labels are right; None: too few texts were drawn at random.

    `differs`, bool[n], are the strata: whether candidates differ on a text. `rows`, int64[m], are
    the texts that people judged or skipped; `right`, bool[m], whether their labels are right by a
    rule that does not know their judgments; `before`, int8[m], whether the LLM's are, -1: skipped;
    `drawn` and `ranked`, bool[m], which were drawn with equal chances in each stratum, and which
    from a ranking.
    """
    used, n = ~ranked, len(differs)
    sample = JudgedSample(rows[used], drawn[used], before[used, None] < 0)
    of_draws = np.bincount(differs[sample.rows[sample.drawn]], minlength=2)
    left = np.bincount(differs, minlength=2) - np.bincount(differs[sample.rows], minlength=2)
    if (of_draws[left > 0] < _LEAST).any() or not of_draws.any():
        return None
    strata = Population(differs.astype(np.int64)[:, None])

    def share(hits: Bools, more: float) -> Share:
        found = sample.totals(strata, hits[used, None], confidence=_CONFIDENCE)
        return Share(*(min(float(one[0]) + more, 1.0) for one in found))

    corrected = int((~right & (before >= 0)).sum()) / n
    # the width falls by the root of the number, and is zero once all are judged
    m = int(of_draws.sum())
    to_halve = ceil(3 * m * (n - m) / (n + 3 * m))
    return Accuracy(share(before > 0, 0.0), share(right & (before >= 0), corrected), to_halve)
