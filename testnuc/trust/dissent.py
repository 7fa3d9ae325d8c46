"""Whether a referee's answers that contradict the LLM show that it is better.

Neighbors and models of the texts ("candidates") do not know the referee. Three conditions:

1. They back its contradictions more often than by chance: the exact binomial test. The chance is
   that of the same answers at other texts: the part of the judged texts that the LLM labels
   otherwise on which a candidate gives the referee's label. With two labels a candidate that
   differs backs every contradiction, so texts on which candidates agree must be judged, too.
2. They back most of the contradictions where they differ from the LLM.
3. The referee contradicts the LLM on at most twice the texts where candidates do. One of two that
   contradict each other is wrong, so a better referee contradicts it at most twice as often as the
   LLM is wrong.

All three are evidence of neighbors and models, and not of people.
"""

from typing import NamedTuple

import numpy as np

from testnuc._base.arrays import Bools, Int32s

#: The error of the test, as of all bounds.
_ALPHA = 0.1


class Dissent(NamedTuple):
    """What a referee's contradictions of the LLM are worth."""

    #: Contradictions where candidates differ from the LLM: one of them agrees with the referee, or
    #: none.
    backed: int
    alone: int
    #: Whether all three conditions hold.
    better: bool


def dissent_of(
    own: Int32s, others: Int32s, answers: Int32s, differing: Bools, part: float
) -> Dissent:
    """Compare a referee with the LLM, by the labels of the judged texts.

    `own`, int32[m], are the LLM's labels, -1 = none; `others`, int32[c, m], those of the other
    candidates; `answers`, int32[m], the referee's. `differing`, bool[m]: where candidates differ
    from the LLM, as they do in a `part` of all texts.
    """
    from scipy.stats import binom

    against = answers != own
    backed = against & (others == answers).any(axis=0)
    n, hits = int(against.sum()), int(backed.sum())
    alone = int((against & ~backed & differing).sum())
    if not n:
        return Dissent(0, 0, better=False)
    given = {int(label): (others == label).any(axis=0) for label in np.unique(answers[against])}
    by_label = {label: float(of[own != label].mean()) for label, of in given.items()}
    chance = float(np.mean([by_label[int(label)] for label in answers[against]]))
    informed = float(binom.sf(hits - 1, n, chance)) <= _ALPHA
    rates = [float(against[at].mean()) if at.any() else 1.0 for at in (differing, ~differing)]
    plausible = part * rates[0] + (1 - part) * rates[1] <= 2 * part
    return Dissent(hits, alone, better=informed and plausible and hits > alone)
