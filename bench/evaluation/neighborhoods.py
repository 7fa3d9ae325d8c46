"""Nearest neighbors within a recording: leave-one-out, or test texts against a pool.

Their quality by gold labels is purity (eq. 1) and gold votes (eqs. 2, 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.evaluation.plots import frame
from testnuc._base.checks import checked_whole, hash_text
from testnuc.errors import InvalidInputError
from testnuc.index.matching import ranks_of
from testnuc.index.nearest import NearestVectors
from testnuc.voting.inputs import Ballots
from testnuc.voting.votes import curves

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from bench.evaluation.recording import Recording
    from testnuc.voting import VotePolicy

__all__ = [
    "Neighborhood",
    "gold_votes",
    "gold_votes_over_k",
    "leave_one_out",
    "nearest",
    "purity",
    "purity_over_k",
    "splits",
    "winners_over_k",
]

_ALWAYS_EXACT = 2**62
_KS = (1, 2, 5, 10, 20, 30, 50, 100)


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
    known = (recording.labels, recording.confidences)
    own = (recording.labels[hood.rows], recording.confidences[hood.rows])
    ballots = Ballots.of_pool(hood.ids, hood.similarities, known, own, len(recording.names))
    return curves(ballots, ks, policies)


def purity(gold: NDArray[np.int32], hood: Neighborhood, ks: Sequence[int]) -> NDArray[np.float64]:
    """Return the purity for each k, float64[len(ks)] (the paper's eq. 1).

    ``1/N sum_i 1/K sum_j 1(y_i = y_j)`` over the K nearest neighbors j of each text i, without the
    text itself. Missing neighbors are left out of the means.
    """
    exists = hood.ids >= 0
    same = (gold[hood.ids] == gold[hood.rows][:, None]) & exists
    counts = np.cumsum(exists, axis=1)
    means = np.cumsum(same, axis=1) / np.maximum(counts, 1)
    columns = [min(k, hood.k) - 1 for k in ks]
    found: NDArray[np.float64] = means[:, columns].mean(axis=0)
    return found


def gold_votes(
    gold: NDArray[np.int32], hood: Neighborhood, ks: Sequence[int], *, n_classes: int
) -> NDArray[np.float64]:
    """Return the accuracy of votes over the neighbors' gold labels, float64[2, len(ks)].

    Row 0 is the majority vote (eq. 2), row 1 the similarity-weighted vote (eq. 3). The text itself
    does not vote.
    """
    no_own_vote = np.full(len(hood.rows), -1, dtype=np.int32)
    ballots = Ballots.of_pool(
        hood.ids, hood.similarities, (gold, None), (no_own_vote, None), n_classes
    )
    winners = curves(ballots, [min(k, hood.k) for k in ks], ("majority", "weighted"))
    return np.asarray((winners == gold[hood.rows]).mean(axis=2))


def purity_over_k(recording: Recording, *, ks: Sequence[int] = _KS) -> pd.DataFrame:
    """Return leave-one-out purity over k; columns ``dataset, k, purity``."""
    ks = [k for k in ks if k < len(recording)]
    values = purity(recording.gold, leave_one_out(recording, max(ks)), ks)
    rows = [
        {"dataset": recording.name, "k": k, "purity": float(value)}
        for k, value in zip(ks, values, strict=True)
    ]
    return frame("purity_over_k", rows)


def gold_votes_over_k(recording: Recording, *, ks: Sequence[int] = _KS) -> pd.DataFrame:
    """Return the accuracy of gold votes over k; columns ``dataset, vote, k, accuracy``."""
    ks = [k for k in ks if k < len(recording)]
    hood = leave_one_out(recording, max(ks))
    values = gold_votes(recording.gold, hood, ks, n_classes=len(recording.names))
    rows = [
        {"dataset": recording.name, "vote": vote, "k": k, "accuracy": float(values[i, j])}
        for i, vote in enumerate(("majority", "weighted"))
        for j, k in enumerate(ks)
    ]
    return frame("gold_votes_over_k", rows)
