"""The paper's studies of the vote, on recorded predictions; each returns a DataFrame.

With `test` None a study is leave-one-out: the pool of a text is all other texts. Otherwise, for
each of `seeds`, `test` texts are drawn at random and the rest is the pool; the table has mean and
standard deviation over the seeds. ``k`` = 0 is the text's own prediction without a vote.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from bench.evaluation.neighborhoods import leave_one_out, nearest, splits, winners_over_k
from bench.evaluation.plots import frame
from testnuc.errors import InvalidInputError
from testnuc.voting import VotePolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    import pandas as pd
    from numpy.typing import NDArray

    from bench.evaluation.neighborhoods import Neighborhood
    from bench.evaluation.recording import Recording

__all__ = [
    "accuracy_of_the_choice",
    "accuracy_over_embedders",
    "accuracy_over_k",
    "accuracy_over_policies",
    "accuracy_over_pool_size",
    "accuracy_with_foreign_texts",
    "consistency",
    "voted_runs",
]

POLICIES = ("majority", "weighted", "confidence_weighted", "filtered")
KS = (0, 5, 10, 20, 30, 50, 100)
THETAS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
FLOORS = (0.3, 0.4, 0.5, 0.6, 0.7)
SIZES = (500, 1_000, 2_500, 5_000, None)


def accuracy_over_k(
    recording: Recording,
    *,
    ks: Sequence[int] = KS,
    policies: Sequence[str] = POLICIES,
    test: int | None = None,
    seeds: Sequence[int] = range(5),
) -> pd.DataFrame:
    """Return the accuracy for each policy and k; columns ``policy, k, accuracy, std, runs``."""
    ks = [k for k in ks if k < len(recording) - (test or 0)]
    runs = [
        _accuracies(recording, hood, ks, policies)
        for hood in _neighborhoods(recording, max(ks), test, seeds)
    ]
    return frame("accuracy_over_k", list(_cells(runs, ("policy", "k"), (policies, ks))))


def accuracy_over_policies(
    recording: Recording,
    *,
    k: int = 50,
    thetas: Sequence[float] = THETAS,
    floors: Sequence[float] = FLOORS,
    test: int | None = None,
    seeds: Sequence[int] = range(5),
) -> pd.DataFrame:
    """Return the accuracy of each policy, by confidence and by similarity threshold.

    Columns ``policy, threshold, accuracy, std, runs``: the policies of the paper, then ``filtered``
    (similarity-weighted, confidence of at least theta) for `thetas`, and ``similarity floor``
    (similarity-weighted, similarity of at least the threshold) for `floors`.
    """
    rows: list[tuple[str, float | None, str | VotePolicy]] = [("alone", None, "weighted")]
    rows += [(name, None, name) for name in POLICIES[:3]]
    rows += [("filtered", t, VotePolicy.filtered(t)) for t in thetas]
    rows += [("similarity floor", f, VotePolicy(min_similarity=f)) for f in floors]
    policies = [policy for _, _, policy in rows]
    runs = []
    for hood in _neighborhoods(recording, k, test, seeds):
        found = _accuracies(recording, hood, [0, min(k, hood.k)], policies)
        runs.append(np.concatenate([found[:1, 0], found[1:, 1]]))
    cells = _cells(runs, ("row",), (range(len(rows)),))
    return frame(
        "accuracy_over_policies",
        [
            {"policy": rows[cell.pop("row")][0], "threshold": rows[i][1], **cell}
            for i, cell in enumerate(cells)
        ],
    )


def accuracy_over_pool_size(
    recording: Recording,
    *,
    sizes: Sequence[int | None] = SIZES,
    ks: Sequence[int] = (10, 30, 50),
    policy: str | VotePolicy = "weighted",
    test: int = 500,
    seeds: Sequence[int] = range(5),
) -> pd.DataFrame:
    """Return the accuracy for each pool size; columns ``pool, k, accuracy, std, runs``.

    A size of None means all texts except the test texts. Pools are nested.
    """
    whole = len(recording) - test
    sizes = sorted({whole if size is None else min(size, whole) for size in sizes})
    runs = []
    for _, rows, pool in splits(recording, test=test, seeds=seeds):
        found = []
        for size in sizes:
            hood = nearest(recording, max(ks), rows=rows, pool=pool[:size])
            usable = [min(k, hood.k) for k in ks]
            found.append(_accuracies(recording, hood, usable, (policy,))[0])
        runs.append(np.stack(found))
    return frame("accuracy_over_pool_size", list(_cells(runs, ("pool", "k"), (sizes, ks))))


def accuracy_over_embedders(
    recording: Recording,
    vectors: Mapping[str, NDArray[Any]],
    *,
    ks: Sequence[int] = KS,
    policy: str | VotePolicy = "weighted",
    test: int | None = None,
    seeds: Sequence[int] = range(5),
) -> pd.DataFrame:
    """Return the accuracy for each embedder and k; columns ``embedder, k, accuracy, std, runs``.

    Parameters
    ----------
    recording : Recording
        The predictions; its own embeddings are not used.
    vectors : mapping
        Name of the embedder -> float[N, dim], an embedding of each text of the recording.
    ks, policy, test, seeds
        As for the other studies.
    """
    rows: list[dict[str, Any]] = []
    for embedder, found in vectors.items():
        other = recording.with_vectors(found)
        runs = [
            _accuracies(other, hood, ks, (policy,))[0]
            for hood in _neighborhoods(other, max(ks), test, seeds)
        ]
        rows += [{"embedder": embedder, **cell} for cell in _cells(runs, ("k",), (ks,))]
    return frame("accuracy_over_embedders", rows)


def accuracy_with_foreign_texts(
    recording: Recording,
    foreign: Recording,
    *,
    shares: Sequence[float] = (0.0, 0.6, 0.75),
    pool: int = 4_000,
    ks: Sequence[int] = (0, 3, 5, 10, 20, 30, 40, 50, 60, 80, 100),
    policies: Sequence[str] = ("majority", "weighted"),
    test: int = 500,
    seeds: Sequence[int] = range(5),
) -> pd.DataFrame:
    """Return the accuracy with a share of the pool replaced by texts of another dataset.

    Columns ``share, policy, k, accuracy, std, runs``.

    Parameters
    ----------
    recording : Recording
    foreign : Recording
        Texts of another dataset, predicted with the labels of `recording`; see
        ``record(labels_of=..)``.
    shares : sequence of float
        Share of the pool that is replaced, 0..1.
    pool : int
        Texts in the pool, including foreign ones.
    ks, policies, test, seeds
        As for the other studies.

    Raises
    ------
    InvalidInputError
        The label sets differ, or there are not enough texts.
    """
    if foreign.names != recording.names:
        raise InvalidInputError(
            f"{foreign.name} was recorded with other labels than {recording.name}; record it with "
            "labels_of=.."
        )
    wanted = round(pool * max(shares))
    own = set(recording.texts)
    usable = [i for i, text in enumerate(foreign.texts) if text not in own]
    if wanted > len(usable) or pool > len(recording) - test:
        raise InvalidInputError(
            f"a pool of {pool} texts, {wanted} of them foreign, is too large: there are "
            f"{len(usable)} foreign texts and {len(recording) - test} of {recording.name}"
        )
    combined = _concatenate(recording, foreign, usable)
    runs = []
    for seed, rows, rest in splits(recording, test=test, seeds=seeds):
        shuffled = np.random.default_rng([seed, 1]).permutation(len(usable)) + len(recording)
        found = []
        for share in shares:
            replaced = round(pool * share)
            mixed = np.concatenate([rest[: pool - replaced], shuffled[:replaced]])
            hood = nearest(combined, max(ks), rows=rows, pool=mixed)
            found.append(_accuracies(combined, hood, ks, policies))
        runs.append(np.stack(found))
    axes = (shares, policies, ks)
    return frame("accuracy_with_foreign_texts", list(_cells(runs, ("share", "policy", "k"), axes)))


def accuracy_of_the_choice(
    recording: Recording,
    *,
    ks: Sequence[int] = KS,
    policies: Sequence[str] = POLICIES,
    held_out: int = 500,
    test: int = 500,
    seeds: Sequence[int] = range(5),
) -> pd.DataFrame:
    """Return the test accuracy of the k and policy selected on held-out texts; one row per seed.

    Columns ``seed, policy, k, held_out, accuracy, alone``: k and the policy with the highest
    accuracy on `held_out` texts are evaluated on `test` other texts, whose gold labels are not used
    for the selection.
    """
    rows = []
    for seed, drawn, pool in splits(recording, test=held_out + test, seeds=seeds):
        known, unseen = drawn[:held_out], drawn[held_out:]
        usable = [k for k in ks if k <= len(pool)]
        on_known = _accuracies(
            recording, nearest(recording, max(usable), rows=known, pool=pool), usable, policies
        )
        on_test = _accuracies(
            recording, nearest(recording, max(usable), rows=unseen, pool=pool), usable, policies
        )
        # the first of equal maxima has fewer neighbors and a simpler policy
        best = np.unravel_index(int(on_known.T.argmax()), on_known.T.shape)
        at_k, at_policy = int(best[0]), int(best[1])
        rows.append(
            {
                "seed": seed,
                "policy": policies[at_policy],
                "k": usable[at_k],
                "held_out": float(on_known[at_policy, at_k]),
                "accuracy": float(on_test[at_policy, at_k]),
                "alone": float((recording.labels[unseen] == recording.gold[unseen]).mean()),
            }
        )
    return frame("accuracy_of_the_choice", rows)


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


def _neighborhoods(
    recording: Recording, k: int, test: int | None, seeds: Sequence[int]
) -> Iterable[Neighborhood]:
    k = max(k, 1)
    if test is None:
        yield leave_one_out(recording, k)
        return
    for _, rows, pool in splits(recording, test=test, seeds=seeds):
        yield nearest(recording, k, rows=rows, pool=pool)


def _accuracies(
    recording: Recording,
    hood: Neighborhood,
    ks: Sequence[int],
    policies: Sequence[str | VotePolicy],
) -> NDArray[np.float64]:
    """Return float64[len(policies), len(ks)]."""
    winners = winners_over_k(recording, hood, ks, policies)
    return np.asarray((winners == recording.gold[hood.rows]).mean(axis=2))


def _cells(
    runs: Sequence[NDArray[np.float64]],
    columns: Sequence[str],
    axes: Sequence[Sequence[Any]],
) -> Iterable[dict[str, Any]]:
    """Yield one row per cell, with mean and standard deviation over the runs."""
    stacked = np.stack(runs)
    mean = stacked.mean(axis=0)
    # sample standard deviation; undefined for one run
    std = stacked.std(axis=0, ddof=1) if len(runs) > 1 else np.full(mean.shape, np.nan)
    for place in np.ndindex(mean.shape):
        where = {name: axis[i] for name, axis, i in zip(columns, axes, place, strict=True)}
        yield {
            **where,
            "accuracy": float(mean[place]),
            "std": float(std[place]),
            "runs": len(runs),
        }


def _concatenate(recording: Recording, foreign: Recording, rows: Sequence[int]) -> Recording:
    return type(recording)(
        f"{recording.name}+{foreign.name}",
        recording.names,
        (*recording.texts, *(foreign.texts[i] for i in rows)),
        np.concatenate([recording.gold, np.full(len(rows), -1, dtype=np.int32)]),
        np.concatenate([recording.labels, foreign.labels[rows]]),
        np.concatenate([recording.confidences, foreign.confidences[rows]]),
        np.concatenate([recording.vectors, foreign.vectors[rows]]),
    )


def _agreement(labels: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the share of runs that returned the most frequent label of each text, float64[N]."""
    ordered = np.sort(labels, axis=0)
    longest = np.ones(labels.shape[1], dtype=np.int64)
    current = np.ones(labels.shape[1], dtype=np.int64)
    for before, after in pairwise(ordered):
        current = np.where(before == after, current + 1, 1)
        longest = np.maximum(longest, current)
    return np.asarray(longest / len(labels))
