"""Uncertainty sampling: which texts skip the LLM.

A random part is asked about first. A head learns the answers, and predicts each text by the fit
without its fold, so that the random part is predicted as the texts that were not asked about are:
it audits them, and costs nothing that is not needed anyway. Texts are asked about where the head is
least sure, in rounds, until the others are few enough, and agree often enough in the audit, that
asking about them would change at most ``1 - min_agreement`` of all labels, with 90 % confidence
over all rounds.

Sources: uncertainty sampling, Lewis and Gale 1994; fixed-sequence testing, Bauer 1991; exact
binomial bounds, Clopper and Pearson 1934.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from testnuc._base.arrays import Bools, Float64s, Int32s, Int64s
from testnuc._base.checks import checked_number
from testnuc.errors import InvalidInputError
from testnuc.trust.calibration import chance_of, fit_line, log_odds
from testnuc.trust.head import LinearHead, fit_folds, predict_folds
from testnuc.trust.model import Texts, one_hot, vote_joined
from testnuc.trust.shares import upper_bound

#: Of all texts: the random part, and one round.
_FIRST, _ROUND = 0.1, 0.1
#: The random part has at least so many texts, divided by what may change: with fewer nothing is
#: proved even if the head agrees with the LLM on all of them.
_LEAST = 5
#: Of all bounds of a run together.
_ERROR = 0.1
#: Of the texts: asked about at most, where judgments prove a learned model better than the LLM.
_PROVED = 0.25
#: Answers for each label that are asked for even then: from fewer the model learns worse.
_ANSWERS = 25
#: Steps in which texts are taken as sure, as parts of those that were not asked about.
_STEP = 0.05
#: Where fewer of all texts than this can be skipped after two rounds, all are asked about.
_HOPELESS = 0.02


@dataclass(frozen=True, slots=True)
class UncertaintySampling:
    """Call the LLM only where a classifier trained on its answers is uncertain.

    Parameters
    ----------
    min_agreement : float
        Minimum agreement with labeling every text by the LLM, proved with 90 % confidence, before
        the remaining texts are left to the classifier. 1: the LLM labels all.
    max_fraction : float
        Maximum fraction of the texts that the LLM labels, whatever is proved by then.
    """

    min_agreement: float = 0.99
    max_fraction: float = 1.0

    def __post_init__(self) -> None:
        checked_number("min_agreement", self.min_agreement, 0, 1)
        checked_number("max_fraction", self.max_fraction, 0, 1)
        if not self.max_fraction:
            raise InvalidInputError("max_fraction is 0; give a fraction above 0")

    def where_proved(self, texts: int, n_classes: int) -> Self:
        """Return the rule where judgments prove that a learned model is better than the LLM."""
        most = max(_PROVED, _ANSWERS * n_classes / max(1, texts))
        return replace(self, max_fraction=min(self.max_fraction, most))

    def limit(self, texts: int) -> int:
        """Return the most texts to ask about."""
        return texts if self.max_fraction >= 1 else max(1, int(self.max_fraction * texts))

    def first(self, texts: int) -> int:
        """Return the size of the random part."""
        most = self.limit(texts)
        if self.min_agreement >= 1:
            return most
        return min(most, max(round(_FIRST * texts), round(_LEAST / (1 - self.min_agreement))))


def random_part(hashes: Sequence[bytes], rule: UncertaintySampling) -> Int64s:
    """Return the texts that are asked about first: those with the lowest hashes, in their order."""
    # other bytes than those of the folds
    order = sorted(range(len(hashes)), key=lambda row: hashes[row][::-1])
    return np.array(order[: rule.first(len(order))], dtype=np.int64)


class UncertaintySampler:
    """Chooses the texts to ask about, round by round.

    The `own` labels in `texts` are not read. The hashes give the random part: the same texts are
    asked about in the same order.
    """

    def __init__(self, texts: Texts, hashes: Sequence[bytes], rule: UncertaintySampling) -> None:
        self._texts, self._rule = texts, rule
        n = len(texts)
        self.first = random_part(hashes, rule)
        self.asked = np.zeros(n, dtype=np.bool_)
        self.asked[self.first] = True
        self._most = rule.limit(n)
        #: By fold, fitted on the LLM's labels.
        self.heads: tuple[LinearHead, ...] | None = None
        self._round = 0
        #: Of each text that was not asked about, by the head.
        self.labels = np.full(n, -1, dtype=np.int32)
        self.trust = np.zeros(n)
        #: Part of all labels that is proved to be as if the LLM had been asked about every text.
        self.agreement = 0.0

    def next(self, own: Int32s) -> Int64s:
        """Return the texts that the LLM labels next; none: the others skip it.

        `own`, int32[n], are the LLM's labels of the texts that were asked about; -1 = none.
        """
        n = len(self.asked)
        open_ = np.flatnonzero(~self.asked)
        if not len(open_):
            self.agreement = 1.0
            return open_
        self._round += 1
        chance, labels = self._predicted(np.where(self.asked, own, -1).astype(np.int32))
        audit = self.first
        # where the LLM gives no label, a label of the classifier is a change
        agrees = labels[audit] == own[audit]
        order = open_[np.argsort(-chance[open_], kind="stable")]
        error = _ERROR / (self._round * (self._round + 1))
        sure, self.agreement = self._sure(chance, order, audit, agrees, error)
        room = self._most - int(self.asked.sum())
        rest = order[sure:][::-1]
        if not len(rest) or room <= 0:
            self.labels[open_] = labels[open_]
            # the chance that the LLM would give the same label, calibrated on the audit
            odds = log_odds(chance)
            line = fit_line(odds[audit], agrees, np.ones(len(audit)))
            self.trust[open_] = chance_of(odds[open_], line)
            if room <= 0 and len(rest):
                # those that are left are the surest
                inside = chance[audit] >= chance[open_].min()
                changed = upper_bound(int((inside & ~agrees).sum()), int(inside.sum()), error)
                self.agreement = 1 - len(open_) / n * changed
            return open_[:0]
        hopeless = sure < _HOPELESS * n and self._round > 1 and self._most == n
        size = len(rest) if hopeless else max(1, round(_ROUND * n))
        chosen = rest[: min(size, room)]
        self.asked[chosen] = True
        return chosen

    def _predicted(self, own: Int32s) -> tuple[Float64s, Int32s]:
        """Return the probability of the likeliest label of each text, and the label."""
        texts = self._texts
        targets = one_hot(own, texts.n_classes)
        self.heads = fit_folds(texts.vectors, targets, texts.folds, self.heads)
        head = predict_folds(self.heads, texts.vectors, texts.folds)
        found = vote_joined(texts, head, own)
        return found.max(axis=1).astype(np.float64), found.argmax(axis=1).astype(np.int32)

    def _sure(
        self, chance: Float64s, order: Int64s, audit: Int64s, agrees: Bools, error: float
    ) -> tuple[int, float]:
        """Return how many texts, surest first, need no call, and the proved agreement."""
        n, sure, proved = len(chance), 0, 1.0
        for step in range(1, round(1 / _STEP) + 1):
            size = max(1, round(step * _STEP * len(order)))
            inside = chance[audit] >= chance[order[size - 1]]
            wrong = int((inside & ~agrees).sum())
            changed = size / n * upper_bound(wrong, int(inside.sum()), error)
            if changed > 1 - self._rule.min_agreement:
                break
            sure, proved = size, 1 - changed
        return sure, proved
