"""The first neighbors of a row: their winner for each number, and whether it is certain."""

from __future__ import annotations

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
    winners: Int32s = _curves(ballots, ks, (policy,))[0]
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
) -> Int32s:
    """Return the winners for every policy and k, int32[len(policies), len(ks), B], in one pass.

    The parameters are those of `vote_pool`.
    """
    pool, own = (pool_labels, pool_confidences), (own_labels, own_confidences)
    ballots = Ballots.of_pool(neighbor_ids, similarities, pool, own, n_classes)
    return _curves(ballots, ks, policies)


def _curves(ballots: Ballots, ks: Sequence[int], policies: Sequence[str | VotePolicy]) -> Int32s:
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
    columns: ArrayLike | None = None,
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
    columns : int[B], optional
        Number of leading columns that exist in a row; default: all.

    Returns
    -------
    bool[B]
    """
    prefix, last = _prefix(labels, similarities, confidences, known, n_classes, policy, columns)
    return prefix <= last


def deciding_prefix(
    labels: ArrayLike,
    similarities: ArrayLike,
    confidences: ArrayLike | None,
    known: ArrayLike | None = None,
    *,
    n_classes: int,
    policy: str | VotePolicy = "weighted",
    columns: ArrayLike | None = None,
) -> Int64s:
    """Return the fewest leading columns that decide each row, int64[B]; -1 if undecided.

    These columns alone determine the row's winner, for any values in the others. Parameters as for
    `decided`; by default all columns are known, and then every row is decided.
    """
    prefix, last = _prefix(labels, similarities, confidences, known, n_classes, policy, columns)
    return np.where(prefix <= last, prefix, np.int64(-1))


def _prefix(
    labels: ArrayLike,
    similarities: ArrayLike,
    confidences: ArrayLike | None,
    known: ArrayLike | None,
    n_classes: int,
    policy: str | VotePolicy,
    columns: ArrayLike | None,
) -> tuple[Int64s, Int64s]:
    from testnuc._kernels.prefixes import decide

    lab, sim, conf = rows_of(labels, similarities, confidences)
    n_rows, width = lab.shape
    exist = _counts(width if columns is None else columns, "columns", n_rows, width)
    last = exist if known is None else _counts(known, "known", n_rows, width)
    beyond = np.flatnonzero(last > exist)
    if beyond.size > 0:
        row = beyond[0]
        raise InvalidInputError(f"row {row}: known is {last[row]} of {exist[row]} columns")
    out = np.empty(n_rows, np.int64)
    rows = (sim.ravel(), lab.ravel(), conf.ravel())
    bad = decide()(*rows, VotePolicy.of(policy).fields, classes(n_classes), width, last, exist, out)
    if bad >= 0:
        raise Ballots.of_rows(lab, sim, confidences, n_classes).refuse(bad)
    return out, last


def _counts(value: ArrayLike, name: str, n_rows: int, width: int) -> Int64s:
    """Return `value`, one number or one for each row, as int64[B] in 0..width."""
    array = np.asarray(value)
    if array.shape not in {(), (n_rows,)} or (array.size > 0 and array.dtype.kind not in "iu"):
        raise InvalidInputError(
            f"{name} has the shape {array.shape} and the dtype {array.dtype}; give an integer, or"
            f" one for each of the {n_rows} rows"
        )
    counts = np.empty(n_rows, np.int64)
    counts[:] = array
    wrong = np.flatnonzero((counts < 0) | (counts > width))
    if wrong.size > 0:
        row = wrong[0]
        raise InvalidInputError(f"row {row}: {name} is {counts[row]}; give 0 to {width}")
    return counts
