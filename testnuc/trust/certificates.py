"""The trust above which labels are right to a given part, proved by judged texts.

Texts that were drawn at random from all that were left are a sample; all other judged texts are
known, but say nothing of the rest. A part of the texts is tested by the exact hypergeometric test.
Where texts were judged between the draws, the sample is of what they left: a part that would hold
few enough right labels then still has at least a known number of wrong ones among its other texts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from testnuc._base.display import brief

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testnuc._base.arrays import Bools, Float64s, Int64s
    from testnuc.trust.evidence import Draws

#: Parts of the texts are tested in growing order, from this one on, until one fails.
_START, _STEP = 0.3, 0.01
#: A proof is looked for after each review, so that each look may use only this part of the error.
_LOOK = 0.5
#: More judgments are planned so that this part is proved with this chance, as far as is known: by
#: the judged ones of it, and so many others whose part right lies between the accuracy and 1. So
#: many of the part are judged before one looks again.
_PLANNED, _LIKELY, _OTHERS, _AT_ONCE = 0.4, 0.6, 20, 60
#: Judged disagreements that prove a candidate that wins twice as often as it loses.
_ENOUGH = 100
#: Judgments that are asked for are a multiple of this.
_ROUND = 10
#: Lower accuracies that are tried are multiples of this, and at least so high.
_LEVEL, _LOWEST = 0.05, 0.5
#: What is computed may be wrong by this.
_TINY = 1e-9
#: Fields by the names that they had in files of older versions.
_EARLIER = {"part": "coverage", "more": "judgments_needed", "provable": "achievable"}


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
    coverage : float
        Of the texts, 0 to 1, that are at or above `trust`.
    judged : int
        Judged texts that were drawn at random from all that were left.
    reason : str
        Why nothing is certified, and what it would take; empty where something is.
    judgments_needed : int
        About how many more texts, judged at random from all, it would take; 0 where something is
        certified, or where more judgments do not help.
    level : int, optional
        Of labels in a tree: the level that is right, 1 = the top; `trust` is that of this level.
        None: whole labels.
    achievable : tuple of float, optional
        Where nothing is certified: the highest lower accuracy that could be, and its part of the
        texts. A level that is chosen after looking is a little less sure than `confidence`.
    """

    __repr__ = brief

    accuracy: float
    confidence: float
    trust: float
    coverage: float
    judged: int
    reason: str = ""
    judgments_needed: int = 0
    level: int | None = None
    achievable: tuple[float, float] | None = None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Return the certificate of stored fields, also by the names that they had before."""
        return cls(**{_EARLIER.get(name, name): value for name, value in fields.items()})

    @property
    def hint(self) -> str:
        """Which lower accuracy is proved now; empty where none is, or the asked one is."""
        if self.achievable is None:
            return ""
        accuracy, part = self.achievable
        return (
            f"{accuracy:.0%} is proved now, for {part:.0%} of the texts (a hint: a level that is "
            "chosen after looking is less sure)"
        )

    def __str__(self) -> str:
        if not self.coverage:
            return f"not certified: {self.reason}" + (f". {self.hint}" if self.achievable else "")
        at = "" if self.level is None else f" at level {self.level} of the labels"
        return (
            f"{self.coverage:.0%} of the texts, those with a trust of at least {self.trust:.2f}, "
            f"are at least {self.accuracy:.0%} right{at} by your judgments, with "
            f"{self.confidence:.0%} confidence ({self.judged:,} judged texts, drawn at random)"
        )


@dataclass(frozen=True, slots=True)
class LabelCertificate(Certificate):
    """A proved accuracy of one label, where a text can have several.

    `trust` is that of the label (`MultilabelClassification.trusts`), and `coverage` that of the
    texts that have it.
    """

    __repr__ = brief

    label: str = ""

    def __str__(self) -> str:
        # slots: super() without arguments would not find its class
        text = Certificate.__str__(self)
        return text.replace("of the texts,", f"of the texts with the label {self.label!r},", 1)


def wants_decisions(decides: str, right: Bools, draws: Draws, certificate: Certificate) -> bool:
    """Whether texts on which strategies differ would help more than texts drawn at random.

    Better labels come first: they also take fewer judgments to certify. The first three are those
    of `Learned`.
    """
    hits, weights = right[draws.drawn], 1 / draws.probability[draws.drawn]
    wrong = not len(hits) or float(np.average(hits, weights=weights)) < certificate.accuracy
    unsettled = decides == "settings" and len(hits) < _ENOUGH and wrong
    return not certificate.coverage and (unsettled or not certificate.judgments_needed)


def certify(
    trust: Float64s,
    rows: Int64s,
    right: Bools,
    uniform: Bools,
    person: Bools | None = None,
    *,
    accuracy: float,
    confidence: float,
) -> Certificate:
    """Certify the largest part of the texts, highest trust first, that judgments prove accurate.

    Fixed-sequence testing (Bauer 1991): parts are tested in growing order, and the first failure
    ends it. Which parts are tested depends on how many judged texts they hold, but not on the
    judgments: each is the first that may hold one more wrong label than the one before.

    A look has half of the error: one looks again after further judgments. The bound holds for
    finite samples where trust and labels do not depend on the judgments. Here each text's are made
    by the judgments of the other folds; `bench evidence` counts how often certificates are wrong.

    Parameters
    ----------
    trust : float64[n]
        NaN = unknown, never certified.
    rows : int64[m]
        All judged texts, in the order they were drawn.
    right : bool[m]
        Whether their labels are right.
    uniform : bool[m]
        Whether they were drawn at random from all texts that were left.
    person : bool[m], optional
        Whether a person judged them; default: all. What a referee judged is no sample: where it was
        drawn at random it may as well not have been, else it is known as the referee says.
    accuracy, confidence : float
    """
    if person is not None:
        used = person | ~uniform
        rows, right, uniform = rows[used], right[used], (uniform & person)[used]
    known = np.nan_to_num(trust, nan=-np.inf)
    ranked = _Ranked(known, known[rows], right, uniform, _LOOK * (1 - confidence))
    certificate = Certificate(accuracy, confidence, *ranked.largest(accuracy), int(uniform.sum()))
    if certificate.coverage:
        return certificate
    reason, more = ranked.why(accuracy)
    highest = int(np.ceil(accuracy / _LEVEL - _TINY)) - 1
    for step in range(highest, round(_LOWEST / _LEVEL) - 1, -1):
        lower = round(step * _LEVEL, 2)
        part = ranked.largest(lower)[1]
        if part:
            return replace(
                certificate, reason=reason, judgments_needed=more, achievable=(lower, part)
            )
    return replace(certificate, reason=reason, judgments_needed=more)


@dataclass(frozen=True, eq=False)
class _Ranked:
    """Texts by their trust, and the judged ones among them, as for `certify`."""

    #: Of all texts; -inf: unknown.
    trust: Float64s
    #: Of the judged texts.
    judged: Float64s
    right: Bools
    uniform: Bools
    #: The chance that a look gives a wrong certificate.
    error: float

    @cached_property
    def ascending(self) -> Float64s:
        """The trust of all texts, sorted."""
        return np.sort(self.trust)

    def largest(self, accuracy: float) -> tuple[float, float]:
        """Return the lowest trust that is proved, and the part of the texts; inf and 0: none.

        A part that may hold no more wrong labels than a smaller one proves less, and one that may
        hold none fails by a single bad draw: these are left out, but for the last part.
        """
        best, most = (np.inf, 0.0), None
        every = self._thresholds(_START)
        for threshold in every:
            wrong, limit = self._counted(threshold, accuracy)
            if threshold != every[-1] and (most is None or limit <= most):
                most = max(limit, 0) if most is None else most
                continue
            if wrong > limit:
                break
            best, most = (threshold, self._texts(threshold) / len(self.trust)), limit
        return best

    def _texts(self, threshold: float) -> int:
        """Return the number of texts with at least this trust."""
        return len(self.trust) - int(np.searchsorted(self.ascending, threshold))

    def _thresholds(self, start: float) -> list[float]:
        """Return the lowest trust of parts of the texts that grow from `start`."""
        n = len(self.trust)
        sizes = np.ceil(np.append(np.arange(start, 1, _STEP), 1) * n - _TINY).astype(np.int64)
        found = np.unique(self.ascending[n - np.maximum(sizes, 1)] if n else [])[::-1]
        return [float(x) for x in found[np.isfinite(found)]]

    def _counted(self, threshold: float, accuracy: float) -> tuple[int, int]:
        """Return how many of the draws from a part are wrong, and may be if it is accurate."""
        texts, inside = self._texts(threshold), self.judged >= threshold
        wrong, too_many = inside & ~self.right, _too_many(texts, accuracy)
        drawn, other = inside & self.uniform, inside & ~self.uniform
        draws = int(drawn.sum())
        if too_many - wrong.sum() > texts - inside.sum():
            # even if all others are wrong
            return 0, draws
        if not draws:
            return 0, -1
        # what is known before a draw is no longer among the texts that it is from
        left = texts - np.cumsum(other)[drawn]
        left_wrong = too_many - np.cumsum(other & wrong)[drawn]
        least = int(texts * float(np.min(left_wrong / left)) + _TINY)
        return int((drawn & wrong).sum()), _most_wrong(texts, least, draws, self.error)

    def why(self, accuracy: float) -> tuple[str, int]:
        """Return why nothing is certified, and how many more judgments would help."""
        from scipy.stats import betabinom

        m, count = len(self.judged), int(self.uniform.sum())
        text = f"{count:,} of {m:,} judged texts were drawn at random from all"
        thresholds = self._thresholds(_PLANNED)
        if not thresholds:
            return "the trust of the texts is unknown", 0
        texts, inside = self._texts(thresholds[0]), self.judged >= thresholds[0]
        drawn = inside & self.uniform
        draws, hits = int(drawn.sum()), int((drawn & self.right).sum())
        if draws:
            text += (
                f"; of those among the {_PLANNED:.0%} with the highest trust {hits:,} of {draws:,} "
                "are right"
            )
        right = hits + _OTHERS * (1 + accuracy) / 2
        wrong = draws + _OTHERS - right
        left, others = texts - int(inside.sum()), len(self.trust) - m
        if right < accuracy * (right + wrong) or not left:
            return f"{text}: more judgments do not prove {accuracy:.0%}, better labels do", 0
        tries, likely = 0, False
        while tries < min(left, _AT_ONCE) and not likely:
            tries += 1
            limit = _most_wrong(texts, _too_many(texts, accuracy), draws + tries, self.error)
            limit -= draws - hits
            likely = limit >= 0 and betabinom.cdf(limit, tries, wrong, right) >= _LIKELY
        more = -(-tries * others // left)
        more = min(-(-more // _ROUND) * _ROUND, others)
        ending = f"{'probably do' if likely else 'say more'}: {m + more:,} in all"
        return f"{text}; about {more:,} more, drawn at random from all, would {ending}", more


def _too_many(texts: int, accuracy: float) -> int:
    """Return the fewest wrong labels with which texts are less right than this."""
    return int((1 - accuracy) * texts + _TINY) + 1


def _most_wrong(texts: int, wrong: int, draws: int, error: float) -> int:
    """Return how many of the drawn texts may be wrong to prove that fewer than `wrong` of all are.

    -1: not even none.
    """
    if wrong <= 0:
        return -1
    chances = _chances(draws * wrong // max(texts, 1), texts, min(wrong, texts), draws)
    return int((chances <= error + _TINY).sum()) - 1


def _chances(most: int, texts: int, wrong: int, draws: int) -> Float64s:
    """Return the chance of at most 0, 1, .., `most` wrong ones among drawn texts; -1: [0].

    They are drawn from `texts` without replacement, and `wrong` is the number of wrong ones of all.
    """
    counts = np.arange(most + 1)
    if most < 0:
        return np.zeros(1)
    ways = _log_ways(wrong, counts) + _log_ways(texts - wrong, draws - counts)
    found: Float64s = np.cumsum(np.exp(ways - _log_ways(texts, np.array(draws))))
    return found


def _log_ways(texts: int, drawn: Int64s) -> Float64s:
    """Return the log of the number of ways to draw so many of these texts."""
    from scipy.special import gammaln

    possible = (drawn >= 0) & (drawn <= texts)
    k = np.where(possible, drawn, 0)
    ways = gammaln(texts + 1) - gammaln(k + 1) - gammaln(texts - k + 1)
    return np.where(possible, ways, -np.inf)
