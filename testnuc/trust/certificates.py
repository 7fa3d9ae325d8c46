"""The trust above which labels are right to a given part, proved by judged texts, at any time.

The ranking is frozen before the draws. It is cut into strata; each draw is uniform among the texts
of its stratum that are left, whatever chose the stratum. All texts judged before are known.
A part is the first strata together. The evidence that it is accurate is a likelihood ratio: of a
prediction of each draw by the earlier ones, to the highest likelihood of any numbers of wrong
labels in the strata that would make the part not accurate. It is a test supermartingale: it exceeds
1 / e with a chance of at most e, however often one looks (Ville). Parts are tested in growing
order, and the first failure ends it, so that no error is split among them (Bauer 1991).

Texts that come later get the trust that the frozen rule gives them, and are cohorts of their own in
each stratum: the evidence goes on with draws among them, for these texts and the earlier ones
together. Given all texts, each draw is still uniform among those of its cohort and stratum.

Sources: Waudby-Smith and Ramdas 2020, "Confidence sequences for sampling without replacement";
2024, "Estimating means of bounded random variables by betting"; Spertus, Sridhar and Stark 2024,
"Sequential stratified inference for the mean"; Wasserman, Ramdas and Balakrishnan 2020.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from testnuc._base.arrays import Bools, Float64s, Int64s
from testnuc._base.checks import hash_text
from testnuc._base.display import Brief
from testnuc.types import Classification

#: Parts of the texts that are tested, in this order.
PARTS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
#: Of the error, the first ranking has this part, each later one the same part of what is left.
_FIRST = 0.9
#: Draws are predicted as if one draw before them had been wrong, and so many times as many right as
#: may be for each wrong one: Beta(1, 7/p). A smaller first parameter makes a wrong draw cost more.
_PER_WRONG = 7
#: For new texts: the texts are a sample of so many times as many.
_ENDLESS = 1e5
#: Lower accuracies that are tried are multiples of this, and at least so high.
_LEVEL, _LOWEST = 0.05, 0.5
#: Judgments that are asked for are a multiple of this.
_ROUND = 10
#: What is computed may be wrong by this.
_TINY = 1e-9
#: Steps of the two searches for the highest likelihood; the more texts, the smaller a multiplier.
_OUTER, _INNER, _FLATTEST, _STEEPEST = 16, 2, 1e-14, 20.0
#: Fields by the names that they had in files of older versions.
_EARLIER = {"part": "coverage", "more": "judgments_needed", "provable": "achievable"}


@dataclass(frozen=True, slots=True, repr=False)
class Certificate(Brief):
    """A proved accuracy of the labels above a trust.

    Parameters
    ----------
    accuracy, confidence : float
        At least `accuracy` of the labels of distinct texts above `trust` are right by what was
        judged, with this confidence over the draws: however often one looks, and over all
        certificates of a pool.
    trust : float
        inf where nothing is certified.
    coverage : float
        Of the distinct texts, 0 to 1, that are at or above `trust`.
    judged : int
        Judged texts that were drawn at random since trust was learned.
    reason : str
        Why nothing is certified, and what it would take; empty where something is.
    judgments_needed : int
        About how many more judged texts of a review for "certify" it would take; 0 where something
        is certified, or where more judgments do not help.
    level : int, optional
        Of labels in a tree: the level that is right, 1 = the top; `trust` is that of the whole
        label. None: whole labels.
    achievable : tuple of float, optional
        Where nothing is certified: the highest lower accuracy that could be, and its part of the
        texts. A level that is chosen after looking is a little less sure than `confidence`.
    texts : int
        Distinct texts that judged texts were drawn from: it says nothing of others. 0: unknown.
    judge_error : float, optional
        At most this part of the judgments is wrong, with the same confidence, by the truth that
        judges of the same texts agree on; None: no text was judged twice.
    label : str, optional
        Where a text can have several: it is of this one alone, and `coverage` is that of the
        distinct texts that have it.
    among : mapping, optional
        Key of each certified text (`Learned.keys`) -> its label; () where it may have several.
        None: unknown.
    """

    accuracy: float
    confidence: float
    trust: float
    coverage: float
    judged: int
    reason: str = ""
    judgments_needed: int = 0
    level: int | None = None
    achievable: tuple[float, float] | None = None
    texts: int = 0
    judge_error: float | None = None
    label: str | None = None
    among: Mapping[int, str | tuple[()] | None] | None = field(
        default=None, repr=False, compare=False
    )

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
        of = f"{self.texts:,}" if self.texts else "the"
        having = "" if self.label is None else f"of those with the label {self.label!r}, "
        said = (
            f"{self.coverage:.0%} of {of} distinct texts, {having}those with a trust of at least "
            f"{self.trust:.2f}, are at least {self.accuracy:.0%} right{at} by your judgments, with "
            f"{self.confidence:.0%} confidence ({self.judged:,} judged texts, drawn at random)"
        )
        if self.judge_error is not None:
            true = max(self.accuracy - self.judge_error, 0.0)
            said += f"; at least {true:.0%} by the truth that two judges agree on"
        return said

    def holds(self, result: Classification) -> bool:
        """Whether it says that the label, or labels, of a text are right."""
        if self.among is None:
            return result.trust is not None and result.trust >= self.trust
        key = key_of(hash_text(result.text))
        return key in self.among and self.among[key] in {result.label, ()}


def error_of(confidence: float, ranking: int) -> float:
    """Return the part of the error that the n-th frozen ranking has, from 0 on: the sum is all."""
    return (1 - confidence) * _FIRST * (1 - _FIRST) ** ranking


def key_of(digest: bytes) -> int:
    """Return what identifies a text, of its hash."""
    return int.from_bytes(digest[:8], "little")


@dataclass(frozen=True, eq=False)
class Strata:
    """The texts by frozen trust, cut where the parts end, the most trusted first, and by cohort.

    Arrays are [k, c]: the first cohort are the texts whose trust cut the strata.
    """

    #: The lowest trust of each stratum.
    lowest: Float64s
    texts: Int64s
    #: Texts judged before their trust was frozen, and those of them that are wrong.
    known: Int64s
    known_wrong: Int64s
    #: Draws since, and those of them that are wrong; a skipped text counts as wrong.
    draws: Int64s
    wrong: Int64s
    #: int64[c], the texts of each cohort, those of unknown trust included.
    sizes: Int64s

    @classmethod
    def of(
        cls,
        trust: Float64s,
        rows: Int64s,
        right: Bools,
        drawn: Bools,
        inside: Bools | None = None,
        ends: Sequence[int] = (),
    ) -> Self:
        """Count the judged texts of each stratum.

        `trust`, float64[n], is as it was frozen before the draws; NaN = unknown, never certified.
        `rows`, int64[m], are all judged texts; `right`, bool[m]: whether their labels are, by the
        frozen rule (skipped: no); `drawn`, bool[m]: whether they were drawn, after the freeze,
        uniformly inside their stratum and cohort, or from all. Only texts `inside`, bool[n], are
        counted. `ends` are those of the cohorts, one if empty.
        """
        ends = ends or (len(trust),)
        lowest = edges(trust[: ends[0]])
        cells = cells_of(trust, lowest, ends)

        def counted(some: Int64s) -> Int64s:
            # the last row: unknown trust
            counts = np.bincount(some, minlength=(len(lowest) + 1) * len(ends))
            return counts.astype(np.int64).reshape(-1, len(ends))

        if inside is not None:
            used = inside[rows]
            rows, right, drawn = rows[used], right[used], drawn[used]
        texts, judged = counted(cells if inside is None else cells[inside]), cells[rows]
        subsets = (~drawn, ~drawn & ~right, drawn, drawn & ~right)
        known, known_wrong, draws, wrong = (counted(judged[some])[:-1] for some in subsets)
        return cls(lowest, texts[:-1], known, known_wrong, draws, wrong, texts.sum(axis=0))

    def earlier(self, cohorts: int) -> "Strata":
        """Return the strata of the first cohorts alone."""
        counts = (self.texts, self.known, self.known_wrong, self.draws, self.wrong, self.sizes)
        return Strata(self.lowest, *(of[..., :cohorts] for of in counts))

    def evidence(self, parts: int, accuracy: float, *, endless: bool = False) -> Any:
        """Return the log evidence that the first strata are accurate; of many looks, too."""
        texts, draws, wrong = (of[..., :parts, :] for of in (self.texts, self.draws, self.wrong))
        if endless:
            left = texts * _ENDLESS
            budget = (1 - accuracy) * float(left.sum())
        else:
            left = (texts - self.known[:parts]).astype(np.float64)
            budget = too_many(int(texts.sum()), accuracy) - float(self.known_wrong[:parts].sum())
        return log_evidence(left, draws, wrong, budget, accuracy)

    def proven(self, accuracy: float, error: float, *, endless: bool = False) -> int:
        """Return how many of the first strata together are proved to be accurate."""
        for parts in range(1, len(self.lowest) + 1):
            if self.evidence(parts, accuracy, endless=endless) < -np.log(error):
                return parts - 1
        return len(self.lowest)

    def next(self, n: int, parts: int) -> Int64s:
        """Return the cells, see `cells_of`, of the next n draws to prove the first `parts` strata.

        Each is the one with the most texts for each draw, so that draws become proportional.
        """
        texts, found = self.texts[:parts].ravel(), []
        draws, open_ = self.draws[:parts].flatten(), (self.texts - self.known)[:parts].ravel()
        for _ in range(n):
            per = np.where(draws < open_, texts / (draws + 1.0), -1)
            if per.max(initial=-1) < 0:
                break
            found.append(int(per.argmax()))
            draws[found[-1]] += 1
        return np.array(found, dtype=np.int64)


def edges(trust: Float64s) -> Float64s:
    """Return the lowest trust of each stratum; equal trusts are in one stratum."""
    ascending = np.sort(trust[np.isfinite(trust)])
    sizes = np.ceil(np.array(PARTS) * len(trust) - _TINY).astype(np.int64)
    sizes = np.minimum(sizes, len(ascending))
    return np.unique(ascending[len(ascending) - sizes[sizes > 0]])[::-1]


def cells_of(trust: Float64s, lowest: Float64s, ends: Sequence[int]) -> Int64s:
    """Return the stratum and the cohort of each text in one number: stratum * cohorts + cohort."""
    cohort = np.searchsorted(ends, np.arange(len(trust)), side="right")
    # unknown trust, NaN, fails every comparison: its stratum is beyond the last
    return np.searchsorted(-lowest, -trust) * len(ends) + cohort


def too_many(texts: int, accuracy: float) -> int:
    """Return the fewest wrong labels with which texts are less right than this."""
    return int((1 - accuracy) * texts + _TINY) + 1


def log_evidence(left: Any, draws: Any, wrong: Any, budget: Any, accuracy: float) -> Any:
    """Return the log evidence for "fewer than `budget` of the texts left are wrong".

    Arrays [.., k, c] over strata and cohorts: what was left before the draws, these, the wrong
    ones. A draw is predicted by the earlier ones of its stratum, of whichever cohort.
    """
    from scipy.special import betaln

    left, draws, wrong, budget = (np.asarray(x, np.float64) for x in (left, draws, wrong, budget))
    a, b = 1.0, _PER_WRONG / (1 - accuracy)
    m, bad = draws.sum(axis=-1), wrong.sum(axis=-1)
    predicted = (betaln(a + bad, b + m - bad) - betaln(a, b)).sum(axis=-1)
    left, draws, wrong = (x.reshape(*x.shape[:-2], -1) for x in (left, draws, wrong))
    most = (left - (draws - wrong)).sum(axis=-1)
    found = predicted - _highest(left, draws, wrong, np.minimum(budget, most))
    # even if all others are wrong; and what is known suffices to refute it
    return np.where(budget > most, np.inf, np.where(budget <= wrong.sum(axis=-1), -np.inf, found))


def _highest(left: Any, draws: Any, wrong: Any, budget: Any) -> Any:
    """Return the highest log likelihood of the draws with at least `budget` wrong texts.

    Likelihoods are concave in real numbers of wrong texts. By weak duality each multiplier gives a
    bound that is not too low, the best one the maximum itself.
    """
    if left.shape[-1] == 1:
        at = np.maximum(_best_wrong(left, draws, wrong, np.zeros(budget.shape)), budget[..., None])
        return _log_likelihood(left, draws, wrong, at).sum(axis=-1)
    low, high, best = (np.full(budget.shape, x) for x in (_FLATTEST, _STEEPEST, np.inf))
    for step in range(_OUTER):
        price = np.sqrt(low * high) if step else np.zeros(budget.shape)
        at = _best_wrong(left, draws, wrong, price)
        total = at.sum(axis=-1)
        bound = _log_likelihood(left, draws, wrong, at).sum(axis=-1) + price * (total - budget)
        best = np.minimum(best, bound)
        enough = total >= budget
        if not step and enough.all():
            # the most likely numbers are too many
            break
        high, low = np.where(enough, price, high), np.where(enough, low, np.maximum(low, price))
    return best


def _log_likelihood(left: Any, draws: Any, wrong: Any, of: Any) -> Any:
    """Return the log chance to draw these in their order if `of` of the texts are wrong."""
    right = draws - wrong
    return _log_falling(of, wrong) + _log_falling(left - of, right) - _log_falling(left, draws)


def _best_wrong(left: Any, draws: Any, wrong: Any, price: Any) -> Any:
    """Return the numbers of wrong texts that are best if each is rewarded by `price`."""
    from scipy.special import digamma

    high, reward = left - (draws - wrong), np.exp(price)[..., None]
    # with log(x + 0.5) for digamma(x + 1) they solve a quadratic equation; then steps of Newton
    b = reward * high - left - wrong
    c = 0.5 * reward * (high + 0.5) + (wrong - 0.5) * (left + 0.5)
    q = np.abs(b) + np.sqrt(np.maximum(b * b + 4 * (reward - 1) * c, 0))
    at = np.where(b > 0, 0.5 * q / np.maximum(reward - 1, _FLATTEST), 2 * c / (q + _TINY))
    at = np.clip(at, wrong, high)
    for _ in range(_INNER):
        slope = digamma(at + 1) - digamma(at - wrong + 1)
        slope += digamma(high - at + 1) - digamma(left - at + 1)
        bend = 1 / (at - wrong + 0.5) - 1 / (at + 0.5)
        bend += 1 / (high - at + 0.5) - 1 / (left - at + 0.5)
        at = np.clip(at + (slope + price[..., None]) / (bend + _FLATTEST**2), wrong, high)
    return at


def _log_falling(n: Any, k: Any) -> Any:
    """Return the log of n (n - 1) .. (n - k + 1)."""
    from scipy.special import gammaln

    return gammaln(n + 1) - gammaln(n - k + 1)


def certify(
    strata: Strata, *, accuracy: float, confidence: float, ranking: int = 0, endless: bool = False
) -> Certificate:
    """Certify the largest part of the texts, highest trust first, that judgments prove accurate.

    It is about all cohorts together, or about the first ones alone, if more texts are proved so.
    `ranking`: rankings frozen before that were drawn from; `endless`: for new texts like these.
    """
    error = error_of(confidence, ranking)

    def best(accuracy: float) -> Certificate | None:
        found: list[tuple[int, Certificate]] = []
        for cohorts in range(len(strata.sizes), 0, -1):
            some = strata.earlier(cohorts)
            parts = some.proven(accuracy, error, endless=endless)
            if covered := int(some.texts[:parts].sum()):
                least, judged = float(strata.lowest[parts - 1]), int(some.draws.sum())
                every = int(some.sizes.sum())
                made = Certificate(accuracy, confidence, least, covered / every, judged)
                found.append((covered, made if endless else replace(made, texts=every)))
        # of equal ones that of most cohorts
        return max(found, key=lambda one: one[0], default=(0, None))[1]

    if (made := best(accuracy)) is not None:
        return made
    reason, more = _why(strata, accuracy, error, endless=endless)
    none = Certificate(accuracy, confidence, np.inf, 0.0, int(strata.draws.sum()), reason, more)
    highest = int(np.ceil(accuracy / _LEVEL - _TINY)) - 1
    for step in range(highest, round(_LOWEST / _LEVEL) - 1, -1):
        if lower := best(round(step * _LEVEL, 2)):
            return replace(none, achievable=(lower.accuracy, lower.coverage))
    return none


def _why(strata: Strata, accuracy: float, error: float, *, endless: bool) -> tuple[str, int]:
    """Return why nothing is certified, and about how many more draws of the first part it takes."""
    if not strata.texts.sum():
        return "the trust of the texts is unknown", 0
    first = int(np.searchsorted(strata.texts.sum(axis=1).cumsum(), 1)) + 1
    draws, wrong = int(strata.draws[:first].sum()), int(strata.wrong[:first].sum())
    share = float(strata.texts[:first].sum() / strata.texts.sum())
    text = f"of the {share:.0%} with the highest trust none was judged since trust was learned"
    if draws:
        text = (
            f"{draws - wrong:,} of {draws:,} drawn among the {share:.0%} with the highest trust "
            "are right"
        )
    odds = 1 - accuracy
    rate = (wrong + 1) / (draws + 1 + _PER_WRONG / odds)
    found = strata.evidence(first, accuracy, endless=endless)
    left = int((strata.texts - strata.known - strata.draws)[:first].sum())
    if rate >= odds or not left or np.isinf(found):
        return f"{text}: more judgments do not prove {accuracy:.0%}, better labels do", 0
    gain = rate * np.log(rate / odds) + (1 - rate) * np.log((1 - rate) / accuracy)
    more = min(int(-((np.log(error) + found) / gain // _ROUND)) * _ROUND, left)
    return f"{text}; about {more:,} more drawn there would probably do", more
