"""Neighborhood quality by gold labels: purity (eq. 1) and gold votes (eqs. 2, 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from testnuc.evaluation.neighborhoods import leave_one_out
from testnuc.evaluation.plots import frame
from testnuc.voting import vote_curves_pool

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from testnuc.evaluation.neighborhoods import Neighborhood
    from testnuc.evaluation.recording import Recording

__all__ = ["gold_votes", "gold_votes_over_k", "purity", "purity_over_k"]

_KS = (1, 2, 5, 10, 20, 30, 50, 100)


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
    winners = vote_curves_pool(
        hood.ids,
        hood.similarities,
        gold,
        None,
        no_own_vote,
        None,
        n_classes=n_classes,
        ks=[min(k, hood.k) for k in ks],
        policies=("majority", "weighted"),
    )
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
