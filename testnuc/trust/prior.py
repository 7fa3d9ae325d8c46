"""Prior correction: votes against labels that a labeler over-uses.

With W[i, c] the weight that the votes on text i give label c, and t_c the share that label c should
have::

    W'[i, c] = W[i, c] * (t_c / sum_j W[j, c]) ** power

A label without any vote is left as it is. power 0 changes nothing, 1 gives every label the mass it
should have, 0.5 goes half the way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from testnuc.errors import InvalidInputError
from testnuc.voting import VoteResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["correct", "factors", "target_shares"]


def target_shares(
    prior: str | Mapping[str, float] | None, names: Sequence[str]
) -> NDArray[np.float64] | None:
    """Return the share that each label should have, float64[C], or None."""
    if prior is None:
        return None
    if isinstance(prior, str):
        if prior != "balanced":
            raise InvalidInputError(
                f"prior is {prior!r}; give 'balanced', a mapping of label to share, or None"
            )
        return np.full(len(names), 1 / len(names))
    if not isinstance(prior, Mapping) or set(prior) != set(names):
        raise InvalidInputError("prior needs a share for each of the labels, and for no other")
    shares = np.array([float(prior[name]) for name in names])
    if not all(math.isfinite(s) and s > 0 for s in shares):
        raise InvalidInputError("prior: every share must be above 0")
    total: NDArray[np.float64] = shares / shares.sum()
    return total


def factors(
    mass: NDArray[np.float64], target: NDArray[np.float64], power: float
) -> NDArray[np.float64]:
    """Return what the votes for each label are multiplied by, float64[C]."""
    shares = mass / mass.sum() if mass.sum() > 0 else mass
    ratio = np.divide(target, shares, out=np.ones_like(target), where=shares > 0)
    result: NDArray[np.float64] = ratio**power
    return result


def correct(
    result: VoteResult, weights: NDArray[np.float64], scale: NDArray[np.float64]
) -> VoteResult:
    """Return the outcome of votes whose weights are multiplied by `scale`.

    Parameters
    ----------
    result : VoteResult
        The outcome without correction: it decides ties, and rows in which nobody voted.
    weights : float64[B, C]
        Weight of each label's votes.
    scale : float64[C]
    """
    corrected = weights * scale
    rows = np.arange(len(weights))
    before = np.maximum(result.label, 0)
    best = corrected.argmax(axis=1)
    # equal weights: who won without correction stays
    best = np.where(corrected[rows, before] >= corrected[rows, best], before, best)
    total = corrected.sum(axis=1)
    voted = total > 0
    whole = np.where(voted, total, 1)
    top = corrected[rows, best]
    corrected[rows, best] = 0
    second = corrected.max(axis=1)
    return VoteResult(
        label=np.where(voted, best, result.label).astype(np.int32),
        share=np.where(voted, top / whole, 0).astype(np.float32),
        margin=np.where(voted, (top - second) / whole, 0).astype(np.float32),
        weight=total.astype(np.float32),
        voters=result.voters,
        votes=result.votes,
    )
