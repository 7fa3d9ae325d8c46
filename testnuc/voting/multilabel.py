"""The vote where a text has several labels, on arrays: validation, kernel, threads."""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from testnuc._base.arrays import Array, Int64s
from testnuc.errors import InvalidInputError
from testnuc.voting.inputs import classes, numbers
from testnuc.voting.labels import Labels, starts_of
from testnuc.voting.policy import VotePolicy
from testnuc.voting.votes import in_blocks

#: Share from which a label is given.
THRESHOLD = 0.5
#: Rows, and the most labels, of one call of the kernel.
_ROWS, _LABELS = 16_384, 1 << 21
_NO_FACTORS = np.empty(0, np.float64)
_NO = (np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.uint8))


def vote_multilabel(
    neighbor_ids: ArrayLike,
    similarities: ArrayLike,
    own_ids: ArrayLike,
    pool: Labels,
    *,
    n_classes: int,
    policy: str | VotePolicy = "weighted",
    threshold: float | None = None,
    threads: int | None = None,
    checked: bool = False,
) -> Labels:
    """Vote for each label in rows that point to their neighbors in a pool of predictions.

    Arguments are as for `vote_pool`, but `pool` has labels with confidences as shares: a label
    counts as much as the text's confidence in it, out of the full weight of the text. It is given
    if its share is above `threshold` (default: that of the policy, else 0.5), or equal, and the
    text itself gave it. `checked`: the pool was validated before.

    >>> pool = Labels.of([[(0, 0.9)], [(0, 0.8), (2, 0.7)], [(2, 0.6)]])
    >>> vote = vote_multilabel([[1, 2]], [[0.9, 0.8]], [0], pool, n_classes=3)
    >>> vote.label.tolist(), vote.share.astype(float).round(2).tolist(), vote.given.tolist()
    ([0, 2], [0.7, 0.63], [True, True])
    """
    # imported by the first vote, because importing numba is slow
    from testnuc._kernels.multilabel import vote_labels

    n_classes = classes(n_classes)
    policy = VotePolicy.of(policy)
    if threshold is None:
        threshold = THRESHOLD if policy.threshold is None else policy.threshold
    if not isinstance(threshold, int | float | np.floating) or not 0 <= threshold <= 1:
        raise InvalidInputError(f"threshold is {threshold!r}; give a number from 0 to 1")
    ids = np.ascontiguousarray(neighbor_ids, dtype=np.int64)
    cosines = numbers(similarities, "similarities", 2)
    own = np.ascontiguousarray(own_ids, dtype=np.int64)
    if ids.shape != cosines.shape or own.shape != ids.shape[:1]:
        raise InvalidInputError(
            f"neighbor_ids has the shape {ids.shape}, similarities {cosines.shape} and own_ids "
            f"{own.shape}; give [B, K], [B, K] and [B]"
        )
    if not checked:
        pool.check(n_classes)
    outside = own[(own < 0) | (own >= pool.known.size)]
    if outside.size > 0:
        raise InvalidInputError(f"own_ids has {outside[0]}; the pool has {pool.known.size} texts")
    rows = (ids, cosines, own, _read(pool, policy), policy.fields, float(threshold), n_classes)
    most = min(n_classes, (ids.shape[1] + 1) * int(np.diff(pool.starts).max(initial=0)))
    # rows whose labels are in memory before it is known how many there are
    step = max(1, min(_ROWS, _LABELS // max(most, 1)))
    n_rows, kernel = len(own), vote_labels()
    counts, voters = np.empty(n_rows, np.int64), np.empty(n_rows, np.int32)
    weight = np.empty(n_rows, np.float32)
    parts: dict[int, tuple[Array, ...]] = {}

    def voted(start: int, stop: int) -> int:
        size = min(step, stop - start) * most
        out = (np.empty(size, np.int32), np.empty(size, np.float32), np.empty(size, np.uint8))
        for at in range(start, stop, step):
            end = min(at + step, stop)
            bad = int(kernel(*rows, at, end, *out, counts, voters, weight))
            if bad >= 0:
                return bad
            found = int(counts[at:end].sum())
            parts[at] = tuple(array[:found].copy() for array in out)
        return -1

    bad = in_blocks(voted, n_rows, ids.size + n_rows, threads)
    if bad >= 0:
        raise InvalidInputError(
            f"row {bad} has the similarities {cosines[bad].tolist()}; give cosines, from -1 to 1"
        )
    joined = [np.concatenate([parts[at][i] for at in sorted(parts)] or [_NO[i]]) for i in range(3)]
    given, starts = joined[2].view(np.bool_), starts_of(counts)
    return Labels(starts, joined[0], joined[1], voters > 0, given, voters=voters, weight=weight)


def keep_own(voted: Labels, own_ids: Int64s, pool: Labels) -> Labels:
    """Return the same votes, with the labels that each text gave itself; without any, as voted.

    The policy of the votes is one in which the texts themselves vote; `own_ids` are their
    positions.
    """
    own = pool.at(own_ids)
    mine = voted.among(own)
    return replace(voted, given=np.where(own.known[voted.rows], mine, voted.is_given()))


def _read(pool: Labels, policy: VotePolicy) -> tuple[Array, ...]:
    """Return the pool as the kernel reads it."""
    from testnuc._kernels.multilabel import read_factors

    heads = pool.starts << 1
    heads[:-1] |= pool.known
    factors = _NO_FACTORS
    if policy.uses_confidence:
        given = pool.share
        if not given.size:
            given = np.full(pool.label.size, np.nan, np.float32)
        factors = np.empty(given.size, np.float64)
        read_factors()(given, policy.fields, factors)
    return heads, pool.label, factors
