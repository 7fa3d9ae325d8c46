"""Ranking of results for manual review."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from testnuc._base.checks import checked_whole
from testnuc._base.display import Brief
from testnuc.types import Classification

#: Texts in this lower quantile of nearest-neighbor similarity are outliers.
_OUTLIER = 0.02
#: Nearest neighbors in this upper quantile of similarity are near copies.
_COPY = 0.05
_HEAVY = 0.5


@dataclass(frozen=True, slots=True, repr=False)
class ReviewReason(Brief):
    """A result to review, and the reasons."""

    result: Classification
    #: Sum of the weights of all reasons; the queue is sorted by it, highest first.
    urgency: float
    #: The reasons, most important first.
    why: tuple[str, ...]


def review_queue(results: Iterable[Classification], n: int = 20) -> list[ReviewReason]:
    """Return the `n` results that most need manual review, most urgent first.

    Reasons are a missing label, low trust, a label changed by the vote, a near copy with another
    label, and a text that is far from all others. What a person judged needs none.

    Parameters
    ----------
    results : iterable of Classification
    n : int
        Maximum number of results.

    Raises
    ------
    InvalidInputError
        `n` is negative or not an integer.
    """
    checked_whole("n", n, least=0)
    rows = list(results)
    nearest = sorted(row.neighbors[0].similarity for row in rows if row.neighbors)
    far = nearest[int(_OUTLIER * len(nearest))] if nearest else -1.0
    copy = nearest[int((1 - _COPY) * (len(nearest) - 1))] if nearest else 2.0
    reviews = []
    for row in rows:
        if reasons := sorted(_reasons(row, far, copy), key=lambda reason: -reason[0]):
            urgency = sum(weight for weight, _ in reasons)
            reviews.append(ReviewReason(row, urgency, tuple(why for _, why in reasons)))
    reviews.sort(key=lambda review: (-review.urgency, review.result.index))
    return reviews[:n]


def _reasons(row: Classification, far: float, copy: float) -> Iterator[tuple[float, str]]:
    if row.source == "person":
        return
    if row.error is not None:
        yield 2.0, f"call failed: {row.error}"
    if row.label is None:
        said = row.prediction.said if row.prediction and row.own_label is None else None
        why = f"the answer {said[:60]!r} matches no label" if said else row.reason
        yield 2.0, why or "no label"
    if row.trust is not None and row.trust < 1:
        share = f"trust is {row.trust:.2f}"
        if row.trust < _HEAVY and row.source in {None, "vote"}:
            share += ": most of the vote went to other labels"
        yield 1 - row.trust, share
    if row.changed:
        who = {"head": "a model of your texts", "referee": "the referee"}.get(
            row.source or "", "the vote"
        )
        yield _HEAVY, f"{who} changed {row.own_label!r} to {row.label!r}"
    for neighbor in row.neighbors[:1]:
        if neighbor.similarity >= copy and neighbor.label not in {None, row.label}:
            yield _HEAVY, f"a near copy is labeled {neighbor.label!r}: {neighbor.text[:60]!r}"
        if neighbor.similarity < far:
            yield _HEAVY, f"far from all others: the nearest has {neighbor.similarity:.2f}"
