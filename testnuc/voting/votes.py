"""The vote on arrays, of one label or several for each text: validation, kernel, threads."""

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
from numpy.typing import ArrayLike

from testnuc._base.arrays import Array, Bools, Float32s, Float64s, Int32s, Int64s
from testnuc._base.checks import checked_whole
from testnuc._base.display import Brief
from testnuc.errors import InvalidInputError
from testnuc.voting.inputs import Ballots, integers, rows_of, same_shape
from testnuc.voting.labels import Labels, starts_of
from testnuc.voting.policy import VotePolicy

#: Below this number of votes, a second thread does not pay off.
_SERIAL = 100_000
_MAX_THREADS = 8
_NO_WEIGHTS = np.empty((0, 0))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class VoteResult(Brief):
    """The outcome of B votes."""

    #: int32[B], the winner; -1: no votes, and the text has no own prediction.
    label: Int32s
    #: float32[B], the winner's share of the total weight.
    share: Float32s
    #: float32[B], the winner's share minus the runner-up's.
    margin: Float32s
    #: float32[B], the sum of all weights.
    weight: Float32s
    #: int32[B], the number of votes with a weight above 0, including the text's own.
    voters: Int32s
    #: float64[B, n_classes], the weight of every label, if it was requested.
    votes: Float64s | None = None


def vote(
    labels: ArrayLike,
    similarities: ArrayLike,
    confidences: ArrayLike | None = None,
    *,
    n_classes: int,
    policy: str | VotePolicy = "weighted",
    threads: int | None = None,
    votes: bool = False,
) -> VoteResult:
    """Vote in rows that hold the text itself and its neighbors.

    Parameters
    ----------
    labels : int32[B, 1 + K]
        Predicted labels, -1 = no prediction. Column 0 is the text itself, columns 1.. its
        neighbors, most similar first.
    similarities : float32[B, 1 + K]
        Cosines; 1.0 in column 0.
    confidences : float32[B, 1 + K], optional
        In 0..1, NaN = none.
    n_classes : int
        Number of labels.
    policy : str or VotePolicy
        "majority", "weighted", "confidence_weighted", "filtered", or your own.
    threads : int, optional
        Most threads; default: one per processor up to 8, and one for a small vote. The result is
        bit-identical.
    votes : bool
        Whether to return the weights of all labels.
    """
    ballots = Ballots.of_rows(labels, similarities, confidences, n_classes)
    return _vote(ballots, VotePolicy.of(policy), threads, votes=votes)


def vote_pool(
    neighbor_ids: ArrayLike,
    similarities: ArrayLike,
    pool_labels: ArrayLike,
    pool_confidences: ArrayLike | None,
    own_labels: ArrayLike,
    own_confidences: ArrayLike | None,
    *,
    n_classes: int,
    policy: str | VotePolicy = "weighted",
    threads: int | None = None,
    votes: bool = False,
) -> VoteResult:
    """Vote in rows that point to their neighbors in a pool of predictions.

    Parameters
    ----------
    neighbor_ids : int64, uint64 or uint32[B, K]
        Positions in the pool, most similar first, without the text itself. A position outside
        the pool (-1, the largest unsigned) is padding; its similarity is ignored.
    similarities : float32[B, K]
        Cosines.
    pool_labels : int32[N]
        Predicted labels, -1 = no prediction.
    pool_confidences : float32[N], optional
        In 0..1, NaN = none given.
    own_labels : int32[B]
        Predicted labels of the texts themselves, -1 = no prediction.
    own_confidences : float32[B], optional
        In 0..1, NaN = none given.
    n_classes, policy, threads, votes
        As for `vote`.
    """
    pool, own = (pool_labels, pool_confidences), (own_labels, own_confidences)
    ballots = Ballots.of_pool(neighbor_ids, similarities, pool, own, n_classes)
    return _vote(ballots, VotePolicy.of(policy), threads, votes=votes)


def _vote(ballots: Ballots, policy: VotePolicy, threads: int | None, *, votes: bool) -> VoteResult:
    plain, fast = _kernels()
    n_rows, k, n_classes = ballots.rows, ballots.k, ballots.n_classes
    ids, similarities, labels, confidences = ballots.neighbors
    out = np.empty((5, n_rows), np.int32)
    floats = out.view(np.float32)
    weights = np.empty((n_rows, n_classes)) if votes else _NO_WEIGHTS
    rest = (ballots.own, policy.fields, n_classes, k)
    run: Callable[[int, int], int]
    if not votes and not ballots.of_columns and fast.pays(n_rows, k, n_classes, labels.size):
        records = np.empty(labels.size + 1, np.int64)
        bad = fast.pack()(labels, confidences, policy.fields, n_classes, records)
        if bad >= 0:
            raise ballots.refuse_pool(bad)
        packed, by_blocks = (ids, similarities, records), fast.vote_packed()

        def run(start: int, stop: int) -> int:
            return int(by_blocks(packed, *rest, start, stop, out, floats))
    else:
        by_rows = plain.vote_rows()

        def run(start: int, stop: int) -> int:
            return int(by_rows(ballots.neighbors, *rest, start, stop, out, floats, weights))

    bad = in_blocks(run, n_rows, n_rows * (k + 1), threads)
    if bad >= 0:
        raise ballots.refuse(bad)
    return VoteResult(
        label=out[0],
        share=floats[2],
        margin=floats[3],
        weight=floats[4],
        voters=out[1],
        votes=weights if votes else None,
    )


@functools.cache
def _kernels() -> tuple[ModuleType, ModuleType]:
    # imported by the first vote, because importing numba is slow
    from testnuc._kernels import fast
    from testnuc._kernels import vote as plain

    return plain, fast


def in_blocks(
    run: Callable[[int, int], int], n_rows: int, n_votes: int, threads: int | None
) -> int:
    """Run a kernel over blocks of rows; each writes only its own. Returns the first bad row."""
    if threads is None:
        threads = 1 if n_votes < _SERIAL else processors()
    else:
        threads = checked_whole("threads", threads, least=1)
    threads = min(threads, n_rows, _MAX_THREADS)
    if threads <= 1:
        return run(0, n_rows)
    bounds = [n_rows * i // threads for i in range(threads + 1)]
    others = [_executor().submit(run, bounds[i], bounds[i + 1]) for i in range(1, threads)]
    bad_rows = [run(bounds[0], bounds[1]), *(future.result() for future in others)]
    return next((row for row in bad_rows if row >= 0), -1)


@functools.cache
def processors() -> int:
    """Return the number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


@functools.cache
def _executor() -> ThreadPoolExecutor:
    # threads do not survive a fork: a child starts its own
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_executor.cache_clear)
    return ThreadPoolExecutor(_MAX_THREADS - 1, thread_name_prefix="testnuc-vote")


def vote_curve(
    labels: ArrayLike,
    similarities: ArrayLike,
    confidences: ArrayLike | None = None,
    *,
    n_classes: int,
    ks: Sequence[int],
    policy: str | VotePolicy = "weighted",
) -> Int32s:
    """Return the winners for every k of `ks`, int32[len(ks), B].

    Row i has the labels that `vote` returns for the first ``1 + ks[i]`` columns; k = 0 gives the
    text's own prediction. The other parameters are those of `vote`.
    """
    ballots = Ballots.of_rows(labels, similarities, confidences, n_classes)
    winners: Int32s = curves(ballots, ks, (policy,))[0]
    return winners


def curves(ballots: Ballots, ks: Sequence[int], policies: Sequence[str | VotePolicy]) -> Int32s:
    """Return the winners for every policy and k, int32[len(policies), len(ks), B]."""
    wanted = [checked_whole("ks", k, least=0, most=2**63 - 1) for k in ks]
    if wanted and max(wanted) > ballots.k:
        raise InvalidInputError(
            f"ks asks for {max(wanted)} neighbors, but a row has {ballots.k}; leave it out"
        )
    out = np.empty((len(policies), len(wanted), ballots.rows), np.int32)
    for place, k in enumerate(wanted):
        nearest = ballots.nearest(k)
        for number, policy in enumerate(policies):
            out[number, place] = _vote(nearest, VotePolicy.of(policy), None, votes=False).label
    return out


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
    would come last. The condition is exact: for False, some completion has another winner. So three
    votes show it: of the known, without the winner, and with all unknown ones for what wins then.

    Parameters
    ----------
    labels, similarities, confidences : int32, float32, float32[B, 1 + K]
        As for `vote`. Labels and confidences of unknown columns are ignored.
    known : int[B] or int
        Number of known leading columns, including the text itself.
    n_classes, policy
        As for `vote`.
    """
    lab, sim, conf = rows_of(labels, similarities, confidences)
    counts = _counts(known, *lab.shape)
    unknown = np.arange(lab.shape[1]) >= counts[:, None]
    sure = np.where(unknown, np.float32(1), conf if conf.size else np.float32(np.nan))

    def winners(given: Array) -> Int32s:
        return vote(given, sim, sure, n_classes=n_classes, policy=policy).label

    said = np.where(unknown, np.int32(-1), lab)
    first = winners(said)
    # what comes next; of labels without votes, any
    rival = winners(np.where(said == first[:, None], np.int32(-1), said))
    rival = np.where(rival < 0, (first + 1) % n_classes, rival)
    last = winners(np.where(unknown, rival[:, None], said))
    certain: Bools = (last == first) & (counts > 0)
    return certain


def _counts(known: ArrayLike, n_rows: int, width: int) -> Int32s:
    """Return `known`, one number or one for each row, as int32[B] in 0..width."""
    array = np.asarray(known)
    counts = integers(array if array.ndim else array.repeat(n_rows), "known", 1)
    same_shape("known", counts, (n_rows,), "the number of rows")
    wrong = np.flatnonzero((counts < 0) | (counts > width))
    if wrong.size > 0:
        row = wrong[0]
        raise InvalidInputError(f"row {row}: known is {counts[row]}; give 0 to {width}")
    return counts


#: Share from which a label is given.
THRESHOLD = 0.5
#: Rows, and the most labels, of one call of the kernel.
_ROWS, _LABELS = 16_384, 1 << 21
_NO = (np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.uint8))


def vote_multilabel(
    neighbor_ids: ArrayLike,
    similarities: ArrayLike,
    own_ids: ArrayLike,
    pool: Labels,
    *,
    n_classes: int,
    policy: str | VotePolicy = "weighted",
    threshold: float = THRESHOLD,
    threads: int | None = None,
) -> Labels:
    """Vote for each label in rows that point to their neighbors in a pool of predictions.

    Arguments are as for `vote_pool`, but not validated, and `pool` has labels with confidences as
    shares: a label counts as much as the text's confidence in it, out of the full weight of the
    text. It is given if its share is above `threshold`, or equal, and the text itself gave it.

    >>> pool = Labels.of([[(0, 0.9)], [(0, 0.8), (2, 0.7)], [(2, 0.6)]])
    >>> vote = vote_multilabel([[1, 2]], [[0.9, 0.8]], [0], pool, n_classes=3)
    >>> vote.label.tolist(), vote.share.astype(float).round(2).tolist(), vote.given.tolist()
    ([0, 2], [0.7, 0.63], [True, True])
    """
    # imported by the first vote, because importing numba is slow
    from testnuc._kernels.multilabel import vote_labels

    policy = VotePolicy.of(policy)
    ids = np.ascontiguousarray(neighbor_ids, dtype=np.int64)
    cosines = np.ascontiguousarray(similarities, dtype=np.float32)
    own = np.ascontiguousarray(own_ids, dtype=np.int64)
    heads = pool.starts << 1
    heads[:-1] |= pool.known
    read = heads, pool.label, pool.share
    rows = (ids, cosines, own, read, policy.fields, float(threshold), n_classes)
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
    """Return the same votes, with the labels that each text gave itself; without any, as voted."""
    own = pool.at(own_ids)
    return replace(voted, given=np.where(own.known[voted.rows], voted.among(own), voted.given))
