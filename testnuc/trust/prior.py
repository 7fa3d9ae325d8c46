"""Prior correction: reweights votes towards target label shares.

With W[i, c] the total vote weight of label c for text i, and t_c the target share of label c::

    W'[i, c] = W[i, c] * (t_c / sum_j W[j, c]) ** power

Labels without votes are unchanged. power 0 means no correction, 1 a full correction, 0.5 a partial
one.
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


def target_shares(
    prior: str | Mapping[str, float] | None, names: Sequence[str]
) -> NDArray[np.float64] | None:
    """Return the target share of each label, float64[C], or None.

    Raises
    ------
    InvalidInputError
        `prior` is invalid.
    """
    if prior is None:
        return None
    if isinstance(prior, str):
        if prior != "balanced":
            raise InvalidInputError(
                f"prior is {prior!r}; give 'balanced', a mapping of label to share, or None"
            )
        return np.full(len(names), 1 / len(names))
    if not isinstance(prior, Mapping) or set(prior) != set(names):
        raise InvalidInputError("prior must map every label, and nothing else, to its share")
    shares = np.array([float(prior[name]) for name in names])
    if not all(math.isfinite(s) and s > 0 for s in shares):
        raise InvalidInputError("prior has a share that is not positive; give shares above 0")
    total: NDArray[np.float64] = shares / shares.sum()
    return total


def factors(
    mass: NDArray[np.float64], target: NDArray[np.float64], power: float
) -> NDArray[np.float64]:
    """Return the correction factor of each label, float64[C].

    `mass` is the total vote weight per label, and `power`, 0..1, the strength of the correction.
    """
    shares = mass / mass.sum() if mass.sum() > 0 else mass
    ratio = np.divide(target, shares, out=np.ones_like(target), where=shares > 0)
    result: NDArray[np.float64] = ratio**power
    return result


def correct(
    result: VoteResult, weights: NDArray[np.float64], scale: NDArray[np.float64]
) -> VoteResult:
    """Return the vote result after multiplying the weights, float64[B, C], by `scale`.

    The uncorrected result breaks ties, and applies to rows without votes.
    """
    corrected = weights * scale
    rows = np.arange(len(weights))
    before = np.maximum(result.label, 0)
    best = corrected.argmax(axis=1)
    # a tie goes to the uncorrected winner
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
