"""The trust above which labels are right to a given part, proved by judged texts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np

from testnuc.trust.evidence import Draws, capital

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Certificate", "LabelCertificate", "certify", "proved", "wants_decisions"]

#: Parts of the texts are tested in growing order until one fails, from each of these starts;
#: with the part of the error that a start may use.
_STARTS = ((0.4, 0.8), (0.1, 0.2))
_STEP = 0.025
#: Judgments that prove a gain worth having where there is one.
_ENOUGH = 200
#: A probability that makes a bet nothing.
_TINY = 1e-100
#: Judgments that are asked for are a multiple of this, and at most so many.
_ROUND, _MOST = 10, 100_000


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
    more : int
        About how many more texts, judged at random from all, it would take; 0 where something is
        certified, or where more judgments do not help.
    level : int, optional
        Of labels in a tree: the level that is right, 1 = the top; `trust` is that of this level.
        None: whole labels.
    """

    accuracy: float
    confidence: float
    trust: float
    part: float
    judged: int
    reason: str = ""
    more: int = 0
    level: int | None = None

    def __str__(self) -> str:
        if not self.part:
            return f"not certified: {self.reason}"
        at = "" if self.level is None else f" at level {self.level} of the labels"
        return (
            f"{self.part:.0%} of the texts, those with a trust of at least {self.trust:.2f}, are "
            f"at least {self.accuracy:.0%} right{at}, with {self.confidence:.0%} confidence "
            f"({self.judged} judged texts)"
        )


@dataclass(frozen=True, slots=True)
class LabelCertificate(Certificate):
    """A proved accuracy of one label, where a text can have several.

    `trust` is that of the label (`MultilabelClassification.trusts`), and `part` that of the texts
    that have it.
    """

    label: str = ""

    def __str__(self) -> str:
        # slots: super() without arguments would not find its class
        text = Certificate.__str__(self)
        return text.replace("of the texts,", f"of the texts with the label {self.label!r},", 1)


class _Learned(Protocol):
    @property
    def decides(self) -> str: ...

    @property
    def right(self) -> NDArray[np.bool_]: ...

    def certify(self) -> Certificate: ...


def wants_decisions(learned: _Learned, certificate: Certificate) -> bool:
    """Whether texts on which ways to label differ would help more than texts drawn at random.

    Better labels come first: they also take fewer judgments to certify.
    """
    right = learned.right
    wrong = not len(right) or float(right.mean()) < certificate.accuracy
    unsettled = learned.decides == "settings" and len(right) < _ENOUGH and wrong
    return not certificate.part and (unsettled or not certificate.more)


@lru_cache(maxsize=2)
def proved(learned: _Learned) -> str:
    """Return how far labels are proved to be right, and what would help most next."""
    made = learned.certify()
    if made.part:
        return f"Proved: {made}. Next, judging the least trusted texts would help most."
    text = f"No labels are proved to be {made.accuracy * 100:g} % right yet"
    if not wants_decisions(learned, made):
        return f"{text}: {made.reason}."
    text += "" if made.more else f": {made.reason}"
    return f"{text}. Judging 50 more texts on which ways to label differ would help most."


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

    def least_of(part: float) -> float:
        """Return the lowest trust of a part of the texts, highest trust first."""
        return float(order[max(0, int(np.ceil(part * n)) - 1)]) if n else -np.inf

    for start, share in _STARTS:
        steps = round((1 - start) / _STEP) + 1
        for part in np.minimum(1.0, start + _STEP * np.arange(steps)):
            threshold = least_of(part)
            inside = known[rows] >= threshold
            if not np.isfinite(threshold) or not _proved(
                inside, right, draws, accuracy, error * share
            ):
                break
            best = (threshold, float((known >= threshold).mean()))
        if best[1]:
            break
    reason, more = "", 0
    if not best[1]:
        top = max(least_of(_STARTS[0][0]), np.finfo(np.float64).min)
        reason, more = _why(known[rows] >= top, right, draws, accuracy, error * _STARTS[0][1])
    return Certificate(accuracy, confidence, *best, m, reason, more)


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
    floor = np.maximum(_reach(draws), _TINY) / _left(draws)
    draws = Draws(draws.texts, draws.probability, floor)
    values = np.where(inside, right - accuracy, 0.0)
    return bool(capital(values, draws, np.zeros(1))[0] >= np.log(1 / error))


def _left(draws: Draws) -> NDArray[np.float64]:
    """Return the number of texts before each draw."""
    return draws.texts - np.arange(len(draws.probability), dtype=np.float64)


def _reach(draws: Draws) -> NDArray[np.float64]:
    """Return the lowest probability of any text at each draw, times the texts left.

    A certificate is about all texts: what bounds a bet is the least likely of them. 0: some texts
    could not be drawn, and nothing is bet. Where it is unknown, it is taken to be the same at all
    draws that are not uniform.
    """
    left = _left(draws)
    mixed = ~np.isclose(draws.floor * left, 1)
    lowest = float((draws.probability * left)[mixed].min(initial=np.inf))
    guess = np.where(mixed, lowest if lowest <= 1 else 0.0, 1.0)
    known = draws.lowest
    return guess if known is None else np.where(np.isnan(known), guess, known * left)


def _why(
    inside: NDArray[np.bool_],
    right: NDArray[np.bool_],
    draws: Draws,
    accuracy: float,
    error: float,
) -> tuple[str, int]:
    """Return why nothing is certified, and how many more judgments would help.

    Parameters
    ----------
    inside : bool[m]
        Judged texts of the first part that is tested.
    right : bool[m]
    draws : Draws
    accuracy, error : float
    """
    from scipy.stats import binom

    m = len(inside)
    least = int(np.ceil(np.log(error) / np.log(accuracy) / _STARTS[0][0]))
    fair = _reach(draws) > 0
    count = int(fair.sum())
    # a draw is about the texts that were left, and those that were drawn before are known
    weights = np.where(fair, 1 / draws.probability, 0) + np.cumsum(fair[::-1])[::-1] - fair
    weights = (np.ones(m) if draws.uniform else weights)[inside]
    known = bool(weights.sum())
    share = float(np.average(right[inside], weights=weights)) if known else 1.0
    text = f"of the {_STARTS[0][0]:.0%} of the texts with the highest trust about {share:.0%} are"
    if share < accuracy and count >= least:
        return (
            f"{text} right, fewer than {accuracy:.0%}: more judgments do not prove it, better "
            "labels do"
        ), 0
    # unequal weights are worth fewer texts (Kish 1965)
    now = tries = max(1, int(weights.sum() ** 2 / (weights**2).sum())) if known else 1
    while accuracy <= share and binom.sf(int(share * tries) - 1, tries, accuracy) > error:
        tries += max(1, tries // 20)
        if tries > _MOST:
            break
    more = max(least - count, int((tries - now) / _STARTS[0][0]), 1)
    more = -(-more // _ROUND) * _ROUND
    ending = f"about {more:,} more, drawn at random from all, would suffice: {m + more:,} in all"
    if count < least:
        unfair = f" of {m:,} (some texts could not be drawn for the others)" if count < m else ""
        return (
            f"{count:,} judged texts{unfair} count so far, and it takes {least:,}; {ending}",
            more,
        )
    return f"{text} right, which is not yet proof; {ending}", more
