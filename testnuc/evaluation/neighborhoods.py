"""Who is near whom among recorded texts: leave-one-out, or test texts and a pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from testnuc._base.checks import checked_whole, hash_text
from testnuc.errors import InvalidInputError
from testnuc.index import NearestVectors
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
    """The nearest pool texts of some texts, all given by their rows in a recording."""

    #: int64[B]: the texts.
    rows: NDArray[np.int64]
    #: int64[B, K]: their neighbors, most similar first; -1 where there are fewer.
    ids: NDArray[np.int64]
    #: float32[B, K]: cosines; 0 where there is no neighbor.
    similarities: NDArray[np.float32]

    @property
    def k(self) -> int:
        """K, how many neighbors a text has at most."""
        return int(self.ids.shape[1])


def nearest(
    recording: Recording,
    k: int,
    *,
    rows: NDArray[np.int64] | None = None,
    pool: NDArray[np.int64] | None = None,
) -> Neighborhood:
    """Find the k nearest pool texts of each text by exact search; never the text itself.

    Parameters
    ----------
    recording : Recording
    k : int
        Fewer are found where the pool is smaller.
    rows, pool : int64[..], optional
        Which texts, and which may be neighbors; default: all.
    """
    checked_whole("k", k, least=1)
    everything = np.arange(len(recording), dtype=np.int64)
    rows = everything if rows is None else rows
    pool = everything if pool is None else pool
    if not len(pool):
        raise InvalidInputError("the pool is empty; leave some texts out of the test")
    index = NearestVectors(recording.vectors.shape[1], exact_below=_ALWAYS_EXACT)
    hashes = [hash_text(recording.texts[i]) for i in pool.tolist()]
    ranks = np.array([int.from_bytes(h[:8], "big") for h in hashes], dtype=np.uint64)
    index.add(recording.vectors[pool], ranks)
    place = np.full(len(recording), -1, dtype=np.int64)
    place[pool] = np.arange(len(pool))
    found, similarities = index.search(
        recording.vectors[rows], min(k, len(pool)), exclude=place[rows]
    )
    return Neighborhood(rows, np.where(found >= 0, pool[found], -1), similarities)


def leave_one_out(recording: Recording, k: int) -> Neighborhood:
    """Find the neighbors of every text among all others."""
    return nearest(recording, k)


def splits(
    recording: Recording, *, test: int = 500, seeds: Sequence[int] = range(5)
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """Yield (seed, test rows, pool rows): test texts drawn at random, the rest is the pool.

    The protocol of the paper, except that the pool never holds a test text (a recording has each
    wording once). The pool is in random order: its first n texts are a random pool of size n.
    """
    if not 0 < test < len(recording):
        raise InvalidInputError(
            f"test is {test} of {len(recording)} texts; give fewer, so that a pool is left"
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
