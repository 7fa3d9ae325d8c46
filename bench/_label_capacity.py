"""Memory and time of vote, shortlists and a model of labels with thousands of labels."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench._memory import process_memory
from bench._report import Report
from testnuc._engine.shortlist import nearest_labels
from testnuc.errors import InvalidInputError
from testnuc.trust.auto_policy import diagnose
from testnuc.trust.candidates import candidates_of
from testnuc.trust.model import Texts, most_texts
from testnuc.voting import Labels, vote_multilabel, vote_pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["capacity"]

_DIM, _K, _SIZE = 384, 30, 50
#: Texts that a client learns from at most.
_LEARNED = 200_000


def capacity(labels: int, texts: int) -> Report:
    """Measure each step on made vectors: texts lie around their labels.

    Parameters
    ----------
    labels, texts : int
    """
    rng = np.random.default_rng(0)
    names = _units(rng.standard_normal((labels, _DIM), dtype=np.float32))
    gold = rng.integers(labels, size=texts).astype(np.int32)
    vectors = np.empty((texts, _DIM), dtype=np.float16)
    for start in range(0, texts, 10_000):
        part = names[gold[start : start + 10_000]]
        noise = rng.standard_normal(part.shape, dtype=np.float32) / np.sqrt(_DIM)
        vectors[start : start + 10_000] = _units(part + 1.5 * noise)
    own = np.where(rng.random(texts) < 0.7, gold, rng.integers(labels, size=texts))
    own = own.astype(np.int32)
    report = Report(
        "labels", f"{labels:,} labels, {texts:,} texts of {_DIM} dimensions, {_K} neighbors"
    )
    near, similar = _neighbors(vectors, gold)
    # two labels for a text: its own, and one by chance
    sets = np.stack([own, (own + rng.integers(1, labels, texts)) % labels], axis=1)
    pool = Labels(
        np.arange(0, 2 * texts + 1, 2, dtype=np.int64),
        sets.ravel().astype(np.int32),
        np.ones(2 * texts, np.float32),
        np.ones(texts, np.bool_),
    )
    steps: dict[str, Callable[[], Any]] = {
        "vote": lambda: vote_pool(near, similar, own, None, own, None, n_classes=labels).label,
        "vote, two labels a text": lambda: vote_multilabel(
            near, similar, np.arange(texts), pool, n_classes=labels, threads=1
        ),
        "auto policy": lambda: diagnose(near, similar, own, n_classes=labels),
        f"shortlists of {_SIZE}": lambda: nearest_labels(names, vectors, _SIZE),
    }
    for name, step in steps.items():
        found, cells = _measured(step)
        if isinstance(found, np.ndarray):
            cells["right"] = float((found.reshape(texts, -1) == gold[:, None]).any(axis=1).mean())
        report.row(step=name, texts=texts, **cells)
    report.note("neighbors: texts of the same label and of those next to it; a search is not timed")
    try:
        most = most_texts(labels, _LEARNED)
    except InvalidInputError as error:
        report.note(f"model of labels: refused: {error}")
        return report
    some = np.arange(min(texts, most))
    inside = np.where(near[some] < len(some), near[some], -1)
    order = np.argsort(inside < 0, axis=1, kind="stable")
    learned = Texts(
        vectors[some],
        own[some],
        np.take_along_axis(inside, order, axis=1),
        np.take_along_axis(similar[some], order, axis=1),
        some % 5,
        labels,
    )
    _, cells = _measured(lambda: candidates_of(learned))
    report.row(step="all models that judgments choose from", texts=len(some), **cells)
    return report


def _neighbors(
    vectors: NDArray[np.float16], gold: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the texts around each in the order of labels, most similar first."""
    order = np.argsort(gold, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    steps = np.array([d for d in range(-(_K // 2), _K // 2 + 1) if d])
    near = order[(place[:, None] + steps) % len(order)]
    similar = np.empty(near.shape, dtype=np.float32)
    whole = vectors.astype(np.float32)
    for column in range(_K):
        similar[:, column] = np.einsum("ij,ij->i", whole, whole[near[:, column]])
    best = np.argsort(-similar, axis=1, kind="stable")
    return np.take_along_axis(near, best, axis=1), np.take_along_axis(similar, best, axis=1)


def _units(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    made: np.ndarray[Any, Any] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return made


def _measured(step: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return the result of a step, and its peak memory above what there was before."""
    before = process_memory()["VmRSS"]
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    start, cpu = time.perf_counter(), time.process_time()
    found = step()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    peak = process_memory()["VmHWM"] - before
    return found, {"seconds": seconds, "CPU s": cpu, "peak MiB": max(peak, 0)}
