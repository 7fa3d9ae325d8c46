"""The vote where a text has several labels, on arrays: validation, kernel, threads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from testnuc._base.checks import checked_whole
from testnuc.errors import InvalidInputError
from testnuc.voting.inputs import numbers
from testnuc.voting.policy import VotePolicy
from testnuc.voting.votes import in_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from numpy.typing import ArrayLike, NDArray

__all__ = ["THRESHOLD", "PoolLabels", "VotedLabels", "keep_own", "places_of", "vote_multilabel"]

#: Share from which a label is given.
THRESHOLD = 0.5
#: Rows, and the most labels, of one call of the kernel.
_ROWS, _LABELS = 16_384, 1 << 21
_NO_FACTORS = np.empty(0, np.float64)
_NO = (np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.uint8))


@dataclass(frozen=True, slots=True, eq=False)
class PoolLabels:
    """The labels of N texts, which may have none, one or several."""

    #: int64[N + 1]: the labels of text i are at ``offsets[i]:offsets[i + 1]``.
    offsets: NDArray[np.int64]
    #: int32[M], those of one text distinct.
    labels: NDArray[np.int32]
    #: float32[M], in 0..1, NaN = none given.
    confidences: NDArray[np.float32]
    #: uint8[N], 0 = no prediction; a text with a prediction may have no label.
    voted: NDArray[np.uint8]

    @classmethod
    def of(cls, given: Sequence[Sequence[tuple[int, float | None]] | None]) -> PoolLabels:
        """Return the labels of texts, each a sequence of (label, confidence); None: unknown."""
        sizes = [0 if one is None else len(one) for one in given]
        pairs = [pair for one in given if one for pair in one]
        return cls(
            np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64),
            np.array([label for label, _ in pairs], dtype=np.int32),
            np.array([np.nan if c is None else c for _, c in pairs], dtype=np.float32),
            np.array([one is not None for one in given], dtype=np.uint8),
        )

    def check(self, n_classes: int) -> None:
        """Raise an `InvalidInputError` if an array is invalid: the kernel would write outside."""
        n, m = self.voted.size, self.labels.size
        dtypes = (np.int64, np.int32, np.float32, np.uint8)
        for name, dtype in zip(self.__slots__, dtypes, strict=True):
            array = getattr(self, name)
            if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
                raise InvalidInputError(
                    f"{name} has the dtype {array.dtype} and the shape {array.shape}; give a "
                    f"contiguous {np.dtype(dtype)} array of one dimension"
                )
        offsets, sure = self.offsets, self.confidences
        if (
            offsets.size != n + 1
            or sure.size not in {0, m}
            or offsets[0] != 0
            or offsets[-1] != m
            or (np.diff(offsets) < 0).any()
        ):
            raise InvalidInputError(
                f"offsets has {offsets.size} values, labels {m}, confidences {sure.size} and voted "
                f"{n}; give N + 1 ascending offsets from 0 to M"
            )
        text = np.repeat(np.arange(n), np.diff(offsets))
        wrong = np.ones(m, dtype=np.bool_)
        # the first of each label of a text is right
        wrong[np.unique(text * 2**32 + self.labels, return_index=True)[1]] = False
        wrong |= (self.labels < 0) | (self.labels >= n_classes)
        if sure.size:
            wrong |= (sure < 0) | (sure > 1)
        if wrong.any():
            bad = text[wrong.argmax()]
            part = slice(int(offsets[bad]), int(offsets[bad + 1]))
            raise InvalidInputError(
                f"text {bad} has the labels {self.labels[part].tolist()} with the confidences "
                f"{sure[part].tolist()}; give distinct labels from 0 to {n_classes - 1}, and "
                "confidences from 0 to 1 or NaN"
            )


@dataclass(frozen=True, slots=True, eq=False)
class VotedLabels:
    """The outcome of B votes for each label; those of row i are at ``starts[i]:starts[i + 1]``."""

    #: int64[B + 1].
    starts: NDArray[np.int64]
    #: int32[T], the labels with a vote, largest share first.
    labels: NDArray[np.int32]
    #: float32[T], the weight of the texts that gave the label, over the weight of all voters.
    shares: NDArray[np.float32]
    #: bool[T], whether the share passes the threshold.
    given: NDArray[np.bool_]
    #: int32[B], the number of texts that voted, the text itself included.
    voters: NDArray[np.int32]
    #: float32[B], their weight.
    weight: NDArray[np.float32]

    @property
    def rows(self) -> NDArray[np.int64]:
        """The row of each label, int64[T]."""
        return np.repeat(np.arange(len(self.voters)), np.diff(self.starts))


def vote_multilabel(
    neighbor_ids: ArrayLike,
    similarities: ArrayLike,
    own_ids: ArrayLike,
    pool: PoolLabels,
    *,
    n_classes: int,
    policy: str | VotePolicy = "weighted",
    threshold: float | None = None,
    threads: int | None = None,
    checked: bool = False,
) -> VotedLabels:
    """Vote for each label in rows that point to their neighbors in a pool of predictions.

    Parameters
    ----------
    neighbor_ids : int64[B, K]
        Positions in the pool, most similar first, without the text itself; -1 is padding.
    similarities : float32[B, K]
    own_ids : int64[B]
        Positions of the texts themselves.
    pool : PoolLabels
    n_classes, policy, threads
        As for `testnuc.vote`. With confidences, a label counts as much as the text's confidence in
        it, out of the full weight of the text.
    threshold : float, optional
        A label is given if its share is larger; or equal, and the text itself gave it. Default:
        that of the policy, else 0.5.
    checked : bool
        Whether the pool was validated before.

    Examples
    --------
    >>> pool = PoolLabels.of([[(0, 0.9)], [(0, 0.8), (2, 0.7)], [(2, 0.6)]])
    >>> vote = vote_multilabel([[1, 2]], [[0.9, 0.8]], [0], pool, n_classes=3)
    >>> vote.labels.tolist(), vote.shares.astype(float).round(2).tolist(), vote.given.tolist()
    ([0, 2], [0.7, 0.63], [True, True])
    """
    n_classes = checked_whole("n_classes", n_classes, least=1, most=2**31 - 1)
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
    outside = own[(own < 0) | (own >= pool.voted.size)]
    if outside.size > 0:
        raise InvalidInputError(f"own_ids has {outside[0]}; the pool has {pool.voted.size} texts")
    rows = (ids, cosines, own, _read(pool, policy), policy.fields, float(threshold), n_classes)
    most = min(n_classes, (ids.shape[1] + 1) * int(np.diff(pool.offsets).max(initial=0)))
    # rows whose labels are in memory before it is known how many there are
    step = max(1, min(_ROWS, _LABELS // max(most, 1)))
    n_rows, kernel = len(own), _kernels().vote_labels()
    counts, voters = np.empty(n_rows, np.int64), np.empty(n_rows, np.int32)
    weight = np.empty(n_rows, np.float32)
    parts: dict[int, tuple[NDArray[Any], ...]] = {}

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
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return VotedLabels(starts, joined[0], joined[1], joined[2].view(np.bool_), voters, weight)


def places_of(
    starts: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the items of some rows are, and the starts of each row among them.

    The items of row i are at ``starts[i]:starts[i + 1]``.
    """
    counts = np.diff(starts)[rows]
    made = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    at = np.repeat(starts[rows] - made[:-1], counts) + np.arange(made[-1])
    return at, made


def keep_own(voted: VotedLabels, own_ids: NDArray[np.int64], pool: PoolLabels) -> VotedLabels:
    """Return the same votes, with the labels that each text gave itself; without any, as voted.

    The policy of the votes is one in which the texts themselves vote; `own_ids` are their
    positions.
    """
    at, starts = places_of(pool.offsets, own_ids)
    own, own_row = pool.labels[at], np.repeat(np.arange(len(own_ids)), np.diff(starts))
    row = voted.rows
    width = 1 + max(voted.labels.max(initial=0), own.max(initial=0))
    mine = np.isin(row * width + voted.labels, own_row * width + own, assume_unique=True)
    return replace(voted, given=np.where(pool.voted[own_ids][row] > 0, mine, voted.given))


def _read(pool: PoolLabels, policy: VotePolicy) -> tuple[NDArray[Any], ...]:
    """Return the pool as the kernel reads it."""
    heads = pool.offsets << 1
    heads[:-1] |= pool.voted > 0
    factors = _NO_FACTORS
    if policy.uses_confidence:
        given = pool.confidences
        if not given.size:
            given = np.full(pool.labels.size, np.nan, np.float32)
        factors = np.empty(given.size, np.float64)
        _kernels().read_factors()(given, policy.fields, factors)
    return heads, pool.labels, factors


@cache
def _kernels() -> ModuleType:
    # imported by the first vote, because importing numba is slow
    from testnuc._kernels import multilabel

    return multilabel
