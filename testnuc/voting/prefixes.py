"""The first neighbors of a row: their winner for each number, and whether it is certain."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from testnuc._base.arrays import Bools, Int32s, Int64s
from testnuc._base.checks import checked_whole
from testnuc.errors import InvalidInputError
from testnuc.voting.inputs import Ballots, classes, rows_of
from testnuc.voting.policy import PRESETS, VotePolicy


def vote_curve(
    labels: ArrayLike,
    similarities: ArrayLike,
    confidences: ArrayLike | None = None,
    *,
    n_classes: int,
    ks: Sequence[int],
    policy: str | VotePolicy = "weighted",
) -> Int32s:
    """Return the winners for every k of `ks`, int32[len(ks), B], in one pass over the neighbors.

    Row i has the labels that `vote` returns for the first ``1 + ks[i]`` columns; k = 0 gives the
    text's own prediction. The other parameters are those of `vote`.
    """
    ballots = Ballots.of_rows(labels, similarities, confidences, n_classes)
    winners: Int32s = curves(ballots, ks, (policy,))[0]
    return winners


def vote_curves(
    labels: ArrayLike,
    similarities: ArrayLike,
    confidences: ArrayLike | None = None,
    *,
    n_classes: int,
    ks: Sequence[int],
    policies: Sequence[str | VotePolicy] = tuple(PRESETS),
) -> Int32s:
    """Return the winners for every policy and k, int32[len(policies), len(ks), B], in one pass."""
    return curves(Ballots.of_rows(labels, similarities, confidences, n_classes), ks, policies)


def curves(ballots: Ballots, ks: Sequence[int], policies: Sequence[str | VotePolicy]) -> Int32s:
    """Return the winners for every policy and k, int32[len(policies), len(ks), B], in one pass."""
    from testnuc._kernels.prefixes import curve

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


def decided(
    labels: ArrayLike,
    similarities: ArrayLike,
    confidences: ArrayLike | None,
    known: ArrayLike,
    *,
    n_classes: int,
    policy: str | VotePolicy = "weighted",
) -> Bools:
    """Return for each row whether its winner is certain, for all possible unknown votes.

    An unknown neighbor i can vote for any label with a weight up to w_i (the policy's weight for
    its similarity at confidence 1), or abstain. With S the sum of these w_i, a winner x of weight
    v_x is certain if every other label y has ``v_y + S < v_x``, or ``v_y + S = v_x`` and the first
    supporter of x precedes that of y. A label without votes has v_y = 0, and its first supporter
    would come last. The condition is exact: for False, some completion has another winner.

    Parameters
    ----------
    labels, similarities, confidences : int32, float32, float32[B, 1 + K]
        As for `vote`. Labels and confidences of unknown columns are ignored.
    known : int[B] or int
        Number of known leading columns, including the text itself.
    n_classes, policy
        As for `vote`.

    Returns
    -------
    bool[B]
    """
    from testnuc._kernels.prefixes import decide

    lab, sim, conf = rows_of(labels, similarities, confidences)
    n_rows, width = lab.shape
    counts = _counts(known, n_rows, width)
    out = np.empty(n_rows, np.bool_)
    rows = (sim.ravel(), lab.ravel(), conf.ravel())
    fields, n_classes = VotePolicy.of(policy).fields, classes(n_classes)
    bad = decide()(*rows, fields, n_classes, width, counts, out.view(np.uint8))
    if bad >= 0:
        raise Ballots.of_rows(lab, sim, confidences, n_classes).refuse(bad)
    return out


def _counts(known: ArrayLike, n_rows: int, width: int) -> Int64s:
    """Return `known`, one number or one for each row, as int64[B] in 0..width."""
    array = np.asarray(known)
    if array.shape not in {(), (n_rows,)} or (array.size > 0 and array.dtype.kind not in "iu"):
        raise InvalidInputError(
            f"known has the shape {array.shape} and the dtype {array.dtype}; give an integer, or"
            f" one for each of the {n_rows} rows"
        )
    counts = np.empty(n_rows, np.int64)
    counts[:] = array
    wrong = np.flatnonzero((counts < 0) | (counts > width))
    if wrong.size > 0:
        row = wrong[0]
        raise InvalidInputError(f"row {row}: known is {counts[row]}; give 0 to {width}")
    return counts
