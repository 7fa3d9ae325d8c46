"""Other ways to compute a weighted vote."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from bench._cases import Case

__all__ = ["PEERS", "differing"]

#: Rows times classes of a dense table that is made at once.
_TABLE = 8_000_000


def _parts(case: Case, rows: int) -> Iterator[tuple[slice, NDArray[Any], NDArray[Any]]]:
    """Yield labels and weights of some rows at a time, the text itself first."""
    for start in range(0, len(case.ids), rows):
        at = slice(start, min(start + rows, len(case.ids)))
        labels = np.concatenate([case.own_labels[at, None], case.pool_labels[case.ids[at]]], axis=1)
        ones = np.ones((len(labels), 1))
        yield at, labels, np.concatenate([ones, case.similarities[at]], axis=1)


class _Votes:
    """Label, share and margin of each row, read off its table of weights."""

    def __init__(self, rows: int) -> None:
        self.label = np.empty(rows, np.int64)
        self.share = np.empty(rows)
        self.margin = np.empty(rows)

    def read(self, at: slice, table: NDArray[np.float64]) -> None:
        """Take the votes of some rows from ``table`` float64[rows, C], which is overwritten."""
        rows = np.arange(len(table))
        label = table.argmax(axis=1)
        best, total = table[rows, label], table.sum(axis=1)
        table[rows, label] = 0
        self.label[at] = label
        self.share[at] = best / total
        self.margin[at] = (best - table.max(axis=1)) / total


def _bincount_loop(case: Case) -> _Votes:
    votes = _Votes(len(case.ids))
    for row, ids in enumerate(case.ids):
        labels = np.append(case.own_labels[row], case.pool_labels[ids])
        weights = np.append(1.0, case.similarities[row])
        counts = np.bincount(labels, weights, minlength=case.n_classes)
        label = counts.argmax()
        best, total = counts[label], counts.sum()
        counts[label] = 0
        votes.label[row] = label
        votes.share[row] = best / total
        votes.margin[row] = (best - counts.max()) / total
    return votes


def _flat_bincount(case: Case) -> _Votes:
    votes = _Votes(len(case.ids))
    c = case.n_classes
    for at, labels, weights in _parts(case, max(1, _TABLE // c)):
        flat = (np.arange(len(labels))[:, None] * c + labels).ravel()
        table: NDArray[Any] = np.bincount(flat, weights.ravel(), minlength=len(labels) * c)
        votes.read(at, table.reshape(-1, c))
    return votes


def _add_at(case: Case) -> _Votes:
    votes = _Votes(len(case.ids))
    for at, labels, weights in _parts(case, max(1, _TABLE // case.n_classes)):
        table = np.zeros((len(labels), case.n_classes))
        np.add.at(table, (np.arange(len(labels))[:, None], labels), weights)
        votes.read(at, table)
    return votes


def _weighted_mode(case: Case) -> NDArray[Any]:
    weighted_mode = import_module("sklearn.utils.extmath").weighted_mode

    winners = np.empty(len(case.ids), np.int64)
    for at, labels, weights in _parts(case, len(case.ids)):
        winners[at] = weighted_mode(labels, weights, axis=1)[0][:, 0]
    return winners


def _sparse(case: Case) -> NDArray[Any]:
    csr_matrix = import_module("scipy.sparse").csr_matrix

    winners = np.empty(len(case.ids), np.int64)
    for at, labels, weights in _parts(case, len(case.ids)):
        starts = np.arange(0, labels.size + 1, labels.shape[1])
        shape = (len(labels), case.n_classes)
        table = csr_matrix((weights.ravel(), labels.ravel(), starts), shape=shape)
        table.sum_duplicates()
        winners[at] = np.asarray(table.argmax(axis=1)).ravel()
    return winners


def _polars(case: Case) -> NDArray[Any]:
    import polars as pl

    winners = np.empty(len(case.ids), np.int64)
    for at, labels, weights in _parts(case, len(case.ids)):
        frame = pl.DataFrame(
            {
                "row": np.repeat(np.arange(len(labels), dtype=np.int32), labels.shape[1]),
                "label": labels.ravel(),
                "weight": weights.ravel(),
            }
        )
        best = (
            frame.lazy()
            .group_by("row", "label")
            .agg(pl.col("weight").sum())
            .group_by("row")
            .agg(pl.col("label").sort_by("weight").last())
            .sort("row")
            .collect()
        )
        winners[at] = best["label"].to_numpy()
    return winners


#: The first three give label, share and margin as we do, the others the label alone.
PEERS: dict[str, Callable[[Case], Any]] = {
    "bincount loop": _bincount_loop,
    "flat bincount": _flat_bincount,
    "np.add.at": _add_at,
    "weighted_mode": _weighted_mode,
    "scipy.sparse": _sparse,
    "polars": _polars,
}


def differing(found: Any, expected: Any) -> int:
    """Return in how many rows a peer's answer is another than ours."""
    if not isinstance(found, _Votes):
        return int(np.count_nonzero(found != expected.label))
    same = found.label == expected.label
    for mine, theirs in ((expected.share, found.share), (expected.margin, found.margin)):
        same &= np.isclose(mine, theirs, rtol=0, atol=1e-5)
    return int(np.count_nonzero(~same))
