"""Several labels for one text: the kernel beside the single-label one, and what the vote gains."""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from bench._report import Report
from bench._timing import machine
from testnuc.evaluation.multilabel_scores import MultilabelScores, score_multilabel
from testnuc.voting import PoolLabels, vote_multilabel, vote_pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

#: B, K, C, N of the kernel's cases.
_SHAPES = {
    "10k,10,28,10k": (10_000, 10, 28, 10_000),
    "100k,10,77,100k": (100_000, 10, 77, 100_000),
    "100k,30,500,100k": (100_000, 30, 500, 100_000),
}
#: Chance that a text has 0, 1, 2, 3 labels: about that of GoEmotions and of tagged tickets.
_SIZES = (0.1, 0.55, 0.25, 0.1)
_DIM = 64
#: Distinct sets of labels; texts choose among them by Zipf's law.
_SETS = 120


def _pool(n: int, n_classes: int, random: np.random.Generator) -> PoolLabels:
    sizes = random.choice(len(_SIZES), n, p=_SIZES)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    first = np.repeat(random.integers(0, n_classes, n), sizes)
    # distinct labels of a text: steps of 1 from a random one
    step = np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes)
    labels = ((first + step) % n_classes).astype(np.int32)
    confidences = random.random(labels.size).astype(np.float32)
    return PoolLabels(offsets, labels, confidences, np.ones(n, np.uint8))


def _cpu(run: Callable[[], object], repeats: int) -> float:
    """Return the median of CPU milliseconds, which other processes disturb less than wall time."""
    run()
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        taken.append(time.process_time() - start)
    return statistics.median(taken) * 1e3


def _kernels(names: list[str], repeats: int) -> Report:
    report = Report(
        "kernel", "### The vote for each label, beside that for one (one thread, CPU ms)"
    )
    for name in names:
        n_rows, k, n_classes, n_pool = _SHAPES[name]
        random = np.random.default_rng(0)
        pool = _pool(n_pool, n_classes, random)
        ids = random.integers(0, n_pool, (n_rows, k))
        similarities = random.random((n_rows, k)).astype(np.float32)
        own = np.arange(n_rows) % n_pool
        single = random.integers(0, n_classes, n_pool).astype(np.int32)
        rows, said = (ids, similarities), single[own]
        call = partial(vote_multilabel, *rows, own, pool, n_classes=n_classes, threads=1)
        several = _cpu(call, repeats)
        plain = partial(vote_pool, *rows, single, None, said, None, n_classes=n_classes, threads=1)
        one = _cpu(plain, repeats)
        report.row(
            **{
                "B,K,C,N": name,
                "labels a text": float(np.diff(pool.offsets).mean()),
                "one label": one,
                "several": several,
                "several / one": several / one,
                "ns per neighbor": several * 1e6 / ids.size,
            }
        )
    return report


def _texts(
    n: int, n_classes: int, random: np.random.Generator
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.float32]]:
    """Return sets of labels, the set of each text, and unit vectors: unions of the labels."""
    sets = np.zeros((_SETS, n_classes), np.bool_)
    for one in sets:
        size = random.choice(len(_SIZES), p=_SIZES)
        one[random.choice(n_classes, size, replace=False)] = True
    chance = 1 / np.arange(1, _SETS + 1)
    set_of = random.choice(_SETS, n, p=chance / chance.sum())
    gold = sets[set_of]
    centers = random.normal(size=(n_classes, _DIM))
    vectors = gold @ centers + random.normal(size=_DIM) + 0.8 * random.normal(size=(n, _DIM))
    unit = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return sets, set_of, unit


def _answers(
    gold: NDArray[np.bool_], missed: float, wrong: float, random: np.random.Generator
) -> NDArray[np.bool_]:
    """Return what a simulated LLM says: it misses labels, and adds one to some texts."""
    said = gold & (random.random(gold.shape) >= missed)
    adds = random.random(len(gold)) < wrong
    said[adds, random.integers(0, gold.shape[1], int(adds.sum()))] = True
    return said


def _nearest(vectors: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    ids, similarities = [], []
    for start in range(0, len(vectors), 1_000):
        scores = vectors[start : start + 1_000] @ vectors.T
        scores[np.arange(len(scores)), np.arange(start, start + len(scores))] = -2
        found = np.argpartition(-scores, k, axis=1)[:, :k]
        near = np.take_along_axis(scores, found, axis=1)
        order = np.argsort(-near, axis=1, kind="stable")
        ids.append(np.take_along_axis(found, order, axis=1))
        similarities.append(np.take_along_axis(near, order, axis=1))
    return np.concatenate(ids), np.clip(np.concatenate(similarities), -1, 1)


def _listed(labels: NDArray[np.bool_]) -> list[list[str]]:
    return [[str(label) for label in np.flatnonzero(row)] for row in labels]


def _gain(n: int, n_classes: int, k: int) -> Report:
    report = Report(
        "gain",
        f"### Synthetic unions: {n:,} texts, {n_classes} labels, k = {k}, simulated LLM",
    )
    random = np.random.default_rng(1)
    sets, set_of, vectors = _texts(n, n_classes, random)
    gold = sets[set_of]
    ids, similarities = _nearest(vectors, k)
    right = _listed(gold)
    for missed, wrong, alike in (
        (0.1, 0.1, 0.5),
        (0.2, 0.3, 0.0),
        (0.2, 0.3, 0.5),
        (0.4, 0.5, 0.5),
    ):
        said = _answers(gold, missed, wrong, random)
        # near texts are answered alike, right or wrong
        same = random.random(n) < alike
        said[same] = _answers(sets, missed, wrong, random)[set_of[same]]
        pool = PoolLabels.of(
            [[(int(label), None) for label in np.flatnonzero(row)] for row in said]
        )
        scores: dict[str, MultilabelScores] = {"LLM": score_multilabel(right, _listed(said))}
        for threshold in (0.3, 0.5, 0.7):
            voted = vote_multilabel(
                ids, similarities, np.arange(n), pool, n_classes=n_classes, threshold=threshold
            )
            given = np.zeros_like(gold)
            row_of = np.repeat(np.arange(n), np.diff(voted.starts))
            given[row_of[voted.given], voted.labels[voted.given]] = True
            scores[f"vote at {threshold:g}"] = score_multilabel(right, _listed(given))
        for what, found in scores.items():
            report.row(
                **{
                    "labels missed": missed,
                    "texts with a wrong one": wrong,
                    "answered alike": alike,
                    "by": what,
                    "micro F1": found.micro_f1,
                    "macro F1": found.macro_f1,
                    "Jaccard": found.jaccard,
                    "exact match": found.exact_match,
                }
            )
    report.note(
        "Texts, answers and vectors are synthetic: a vector is the sum of the centers of its "
        "labels, and noise. Of the texts with the same labels, the part `answered alike` gets the "
        "same answer; all other errors are independent."
    )
    return report


def main(arguments: list[str]) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m bench multilabel", description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--texts", type=int, default=5_000)
    parser.add_argument("--labels", type=int, default=28)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--only", choices=("kernel", "gain"))
    options = parser.parse_args(arguments)
    print(machine("numpy", "numba"))
    if options.only != "gain":
        _kernels(list(_SHAPES), options.repeats).show()
    if options.only != "kernel":
        _gain(options.texts, options.labels, options.k).show()
