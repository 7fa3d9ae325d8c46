"""Agreement between predictions of similar texts, extrapolated to similarity 1.

Uses predictions and similarities only; needs no gold labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Nearest neighbors per text that are compared with it and used as judges of a vote.
JUDGES = 10


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimated value and its standard error."""

    value: float
    error: float

    @property
    def low(self) -> float:
        """Two standard errors below."""
        return self.value - 2 * self.error

    @property
    def high(self) -> float:
        """Two standard errors above."""
        return self.value + 2 * self.error


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Distinct pairs of a text and a neighbor that both have a prediction."""

    #: int64[P], the row of the text.
    row: NDArray[np.int64]
    #: float64[P], the cosine of the two.
    similarity: NDArray[np.float64]
    #: float64[P], 1 where the two predictions are equal.
    agree: NDArray[np.float64]


def chance(labels: NDArray[np.int32], n_classes: int) -> float:
    """Return the probability that two random predictions agree; -1 = no prediction."""
    counts = np.bincount(labels[labels >= 0], minlength=n_classes)
    total = counts.sum()
    return float(((counts / total) ** 2).sum()) if total else 1.0


def corrected(agreement: float, by_chance: float) -> float:
    """Return chance-corrected agreement (kappa): 0 = by chance, 1 = always."""
    return (agreement - by_chance) / (1 - by_chance) if by_chance < 1 else 0.0


def kappa_by_rank(
    own: NDArray[np.int32], others: NDArray[np.int32], by_chance: float
) -> list[float]:
    """Return the kappa between each text and its r-th neighbor, for r = 1, 2, ..

    Predictions of texts and neighbors are int32[B] and int32[B, K]; -1 = none.
    """
    values = []
    for column in others.T:
        both = (own >= 0) & (column >= 0)
        agreement = float((own[both] == column[both]).mean()) if both.any() else by_chance
        values.append(corrected(agreement, by_chance))
    return values


def pairs_of(
    own: NDArray[np.int32],
    others: NDArray[np.int32],
    neighbor_ids: NDArray[np.int64],
    row_ids: NDArray[np.int64],
    similarities: NDArray[np.float32],
) -> Pairs:
    """Return the pairs of each text with its `JUDGES` nearest neighbors."""
    width = min(JUDGES, others.shape[1])
    row, rank = np.nonzero((own[:, None] >= 0) & (others[:, :width] >= 0))
    first, second = row_ids[row], neighbor_ids[row, rank]
    # mutual neighbors count as one observation
    key = np.stack([np.minimum(first, second), np.maximum(first, second)], axis=1)
    _, once = np.unique(key, axis=0, return_index=True)
    once.sort()
    row, rank = row[once], rank[once]
    return Pairs(
        row,
        similarities[row, rank].astype(np.float64),
        (own[row] == others[row, rank]).astype(np.float64),
    )


def at_similarity_one(
    similarity: NDArray[np.float64],
    value: NDArray[np.float64],
    row: NDArray[np.int64],
) -> Interval:
    """Return the mean of `value` extrapolated to similarity 1.

    Fits a line by least squares, with cluster-robust standard errors: values of one text, `row`,
    are dependent. The error grows with the distance of the similarities from 1, so a pool without
    near copies has wide intervals.
    """
    if len(value) < 3:
        return Interval(0.0, np.inf)
    x = np.stack([np.ones_like(similarity), similarity - 1], axis=1)
    inverse = np.linalg.inv(x.T @ x + 1e-9 * np.eye(2))
    line = inverse @ (x.T @ value)
    _, group = np.unique(row, return_inverse=True)
    scores = np.zeros((int(group.max()) + 1, 2))
    np.add.at(scores, group, x * (value - x @ line)[:, None])
    variance = inverse @ (scores.T @ scores) @ inverse
    return Interval(float(line[0]), float(np.sqrt(max(variance[0, 0], 0.0))))
