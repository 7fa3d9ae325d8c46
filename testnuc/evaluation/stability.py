"""Error rate and run-to-run consistency of labels."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from testnuc.errors import InvalidInputError
from testnuc.evaluation.neighborhoods import Neighborhood, nearest, winners_over_k
from testnuc.evaluation.plots import frame

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from testnuc.evaluation.recording import Recording

__all__ = ["consistency", "voted_runs"]


def consistency(winners: Mapping[str, NDArray[np.int32]], gold: NDArray[np.int32]) -> pd.DataFrame:
    """Return error rate and inconsistency ratio; columns ``method, error, inconsistency, runs``.

    The inconsistency ratio is the share of runs whose label differs from the text's most frequent
    label, averaged over texts; 0 if all runs agree.

    Parameters
    ----------
    winners : mapping
        Name of the method -> int32[runs, N], the label of each text in each run; -1 = none.
    gold : int32[N]
        Gold labels.

    Raises
    ------
    InvalidInputError
        An array has another shape.
    """
    rows = []
    for method, labels in winners.items():
        if labels.ndim != 2 or labels.shape[1] != len(gold):
            raise InvalidInputError(f"{method} has shape {labels.shape}; give (runs, {len(gold)})")
        rows.append(
            {
                "method": method,
                "error": float((labels != gold).mean()),
                "inconsistency": float((1 - _agreement(labels)).mean()),
                "runs": len(labels),
            }
        )
    return frame("consistency", rows)


def voted_runs(
    runs: Sequence[Recording],
    *,
    ks: Sequence[int] = (10, 50),
    policy: str = "weighted",
    rows: NDArray[np.int64] | None = None,
    pool: NDArray[np.int64] | None = None,
) -> dict[str, NDArray[np.int32]]:
    """Return the labels of each run, without and with the vote, for `consistency`.

    Parameters
    ----------
    runs : sequence of Recording
        Repeated recordings of the same texts; see `record_runs`.
    ks, policy
        Settings of the vote; each run votes with its own predictions.
    rows, pool : int64[..], optional
        As for `nearest`.
    """
    if not runs:
        raise InvalidInputError("runs is empty; give at least one recording")
    hood: Neighborhood = nearest(runs[0], max(ks), rows=rows, pool=pool)
    ks = [0, *(min(k, hood.k) for k in ks)]
    found = [winners_over_k(run, hood, ks, (policy,))[0] for run in runs]
    names = ["alone", *(f"vote (k={k})" for k in ks[1:])]
    return {name: np.stack([labels[i] for labels in found]) for i, name in enumerate(names)}


def _agreement(labels: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the share of runs that returned the most frequent label of each text, float64[N]."""
    ordered = np.sort(labels, axis=0)
    longest = np.ones(labels.shape[1], dtype=np.int64)
    current = np.ones(labels.shape[1], dtype=np.int64)
    for before, after in pairwise(ordered):
        current = np.where(before == after, current + 1, 1)
        longest = np.maximum(longest, current)
    return np.asarray(longest / len(labels))
