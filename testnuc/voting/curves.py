"""The winners for every number of neighbors, and for several policies, in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from testnuc._base.checks import checked_whole
from testnuc.errors import InvalidInputError
from testnuc.voting.inputs import Ballots
from testnuc.voting.policy import PRESETS, VotePolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray


def vote_curve(
    labels: ArrayLike,
    similarities: ArrayLike,
    confidences: ArrayLike | None = None,
    *,
    n_classes: int,
    ks: Sequence[int],
    policy: str | VotePolicy = "weighted",
) -> NDArray[np.int32]:
    """Return the winners for every k of `ks`, int32[len(ks), B], in one pass over the neighbors.

    Row i has the labels that `vote` returns for the first ``1 + ks[i]`` columns; k = 0 gives the
    text's own prediction. The other parameters are those of `vote`.
    """
    ballots = Ballots.of_rows(labels, similarities, confidences, n_classes)
    winners: NDArray[np.int32] = _curves(ballots, ks, (policy,))[0]
    return winners


def vote_curves(
    labels: ArrayLike,
    similarities: ArrayLike,
    confidences: ArrayLike | None = None,
    *,
    n_classes: int,
    ks: Sequence[int],
    policies: Sequence[str | VotePolicy] = tuple(PRESETS),
) -> NDArray[np.int32]:
    """Return the winners for every policy and k, int32[len(policies), len(ks), B], in one pass."""
    return _curves(Ballots.of_rows(labels, similarities, confidences, n_classes), ks, policies)


def vote_curves_pool(
    neighbor_ids: ArrayLike,
    similarities: ArrayLike,
    pool_labels: ArrayLike,
    pool_confidences: ArrayLike | None,
    own_labels: ArrayLike,
    own_confidences: ArrayLike | None,
    *,
    n_classes: int,
    ks: Sequence[int],
    policies: Sequence[str | VotePolicy] = tuple(PRESETS),
) -> NDArray[np.int32]:
    """Return the winners for every policy and k, int32[len(policies), len(ks), B], in one pass.

    The parameters are those of `vote_pool`.
    """
    ballots = Ballots.of_pool(
        neighbor_ids,
        similarities,
        pool_labels,
        pool_confidences,
        own_labels,
        own_confidences,
        n_classes,
    )
    return _curves(ballots, ks, policies)


def _curves(
    ballots: Ballots, ks: Sequence[int], policies: Sequence[str | VotePolicy]
) -> NDArray[np.int32]:
    from testnuc._kernels.curve import curve

    wanted = np.array([checked_whole("ks", k, least=0, most=2**63 - 1) for k in ks], dtype=np.int64)
    if wanted.size > 0 and wanted.max() > ballots.k:
        raise InvalidInputError(
            f"ks asks for {wanted.max()} neighbors, but a row has {ballots.k}; leave it out"
        )
    if isinstance(policies, (str, VotePolicy)):
        policies = (policies,)
    fields = np.array([VotePolicy.of(policy).fields for policy in policies]).reshape(-1, 6)
    distinct, place = np.unique(wanted, return_inverse=True)
    out = np.empty((len(policies), distinct.size, ballots.rows), np.int32)
    k, n_classes = ballots.k, ballots.n_classes
    shift = (k + 1).bit_length()
    bad = curve()(ballots.neighbors, ballots.own, fields, n_classes, k, shift, distinct, out)
    if bad >= 0:
        raise ballots.refuse(bad)
    return out if np.array_equal(distinct, wanted) else out[:, place]
