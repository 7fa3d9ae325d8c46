"""Early exit: whether the unknown votes of a row can still change its winner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from testnuc.errors import InvalidInputError
from testnuc.voting.inputs import Ballots, classes, rows_of
from testnuc.voting.policy import VotePolicy

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def decided(
    labels: ArrayLike,
    similarities: ArrayLike,
    confidences: ArrayLike | None,
    known: ArrayLike,
    *,
    n_classes: int,
    policy: str | VotePolicy = "weighted",
    columns: ArrayLike | None = None,
) -> NDArray[np.bool_]:
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
) -> NDArray[np.int64]:
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
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    from testnuc._kernels.early import decide

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


def _counts(value: ArrayLike, name: str, n_rows: int, width: int) -> NDArray[np.int64]:
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
