"""Nearest neighbors within a recording: leave-one-out, or test texts against a pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from testnuc._base.checks import checked_whole, hash_text
from testnuc.errors import InvalidInputError
from testnuc.index import NearestVectors, ranks_of
from testnuc.voting import vote_curves_pool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from testnuc.evaluation.recording import Recording
    from testnuc.voting import VotePolicy

__all__ = ["Neighborhood", "leave_one_out", "nearest", "splits", "winners_over_k"]

_ALWAYS_EXACT = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class Neighborhood:
    """The nearest pool texts of some texts, as rows of a recording."""

    #: int64[B]: the texts.
    rows: NDArray[np.int64]
    #: int64[B, K]: their neighbors, most similar first, padded with -1.
    ids: NDArray[np.int64]
    #: float32[B, K]: cosine similarities, padded with 0.
    similarities: NDArray[np.float32]

    @property
    def k(self) -> int:
        """K, the maximum number of neighbors of a text."""
        return int(self.ids.shape[1])


def nearest(
    recording: Recording,
    k: int,
    *,
    rows: NDArray[np.int64] | None = None,
    pool: NDArray[np.int64] | None = None,
) -> Neighborhood:
    """Return the k nearest pool texts of each text by exact search, without the text itself.

    Parameters
    ----------
    recording : Recording
    k : int
        Neighbors per text; limited by the size of the pool.
    rows, pool : int64[..], optional
        Rows of the query texts, and of the pool; default: all.

    Raises
    ------
    InvalidInputError
        `k` is less than 1, or the pool is empty.
    """
    checked_whole("k", k, least=1)
    everything = np.arange(len(recording), dtype=np.int64)
    rows = everything if rows is None else rows
    pool = everything if pool is None else pool
    if not len(pool):
        raise InvalidInputError("the pool is empty; use fewer test texts")
    index = NearestVectors(recording.vectors.shape[1], exact_below=_ALWAYS_EXACT)
    ranks = ranks_of([hash_text(recording.texts[i]) for i in pool.tolist()])
    index.add(recording.vectors[pool], ranks)
    place = np.full(len(recording), -1, dtype=np.int64)
    place[pool] = np.arange(len(pool))
    found, similarities = index.search(
        recording.vectors[rows], min(k, len(pool)), exclude=place[rows]
    )
    return Neighborhood(rows, np.where(found >= 0, pool[found], -1), similarities)


def leave_one_out(recording: Recording, k: int) -> Neighborhood:
    """Return the k nearest neighbors of every text among all other texts."""
    return nearest(recording, k)


def splits(
    recording: Recording, *, test: int = 500, seeds: Sequence[int] = range(5)
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """Yield (seed, test rows, pool rows) of random splits.

    The protocol of the paper, except that the pool never contains a test text (texts of a recording
    are distinct). The pool is shuffled: its first n texts are a random pool of size n.
    """
    if not 0 < test < len(recording):
        raise InvalidInputError(
            f"test is {test} of {len(recording)} texts; use fewer, so that texts remain for the "
            "pool"
        )
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(len(recording))
        yield seed, order[:test], order[test:]


def winners_over_k(
    recording: Recording,
    hood: Neighborhood,
    ks: Sequence[int],
    policies: Sequence[str | VotePolicy],
) -> NDArray[np.int32]:
    """Return the winners of the votes, int32[len(policies), len(ks), B]."""
    return vote_curves_pool(
        hood.ids,
        hood.similarities,
        recording.labels,
        recording.confidences,
        recording.labels[hood.rows],
        recording.confidences[hood.rows],
        n_classes=len(recording.names),
        ks=ks,
        policies=policies,
    )
