"""Counts of labels from judged texts: coverage and width of intervals, on recorded predictions."""

from __future__ import annotations

import argparse
import math
import os
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench._recorded import distinct_rows, labeled
from bench._report import Report
from testnuc.scoring import wilson
from testnuc.trust.shares import JudgedSample, Share

if TYPE_CHECKING:
    from numpy.typing import NDArray

_JUDGED = (50, 100, 200, 400)
#: Labels with a smaller share are left out, as in the literature.
_LEAST = 0.01
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


def _shares(
    strata: NDArray[np.int64],
    right: NDArray[np.bool_],
    rows: NDArray[np.int64],
    inside: NDArray[np.int64],
) -> list[Share]:
    """Return the share of each label in some of the texts, int64[n], ascending."""
    here = rows[np.isin(rows, inside)]
    m = len(here)
    sample = JudgedSample(
        np.searchsorted(inside, here), np.ones(m, np.bool_), np.zeros(m, np.bool_)
    )
    return [Share(*one) for one in zip(*sample.totals(strata[inside], right[here]), strict=True)]


def _measure(task: tuple[str, int], *, folder: Path, draws: int) -> dict[str, Any]:
    name, m = task
    labels, own, gold, _ = labeled(distinct_rows(folder / f"{name}.jsonl"))
    n, kinds = len(gold), len(labels)
    every = np.bincount(gold, minlength=kinds) / n
    used = np.flatnonzero(every >= _LEAST)
    said, right, true = own[:, None] == used, gold[:, None] == used, every[used]
    strata = said.astype(np.int64)
    inside: dict[str, list[Any]] = {"strata": [], "PPI++": [], "people": []}
    widths: dict[str, list[Any]] = {kind: [] for kind in inside}
    apart, off = [], 0.0
    for seed in range(draws):
        rng = np.random.default_rng([seed, m])
        rows = rng.choice(n, m, replace=False)
        shares = _shares(strata, right, rows, np.arange(n))
        value, half = _normal(said, rows, right[rows])
        people = [wilson(int(k), m) for k in right[rows].sum(0)]
        for kind, *bounds in (
            ("strata", [s.low for s in shares], [s.high for s in shares]),
            ("PPI++", value - half, value + half),
            ("people", [p.low for p in people], [p.high for p in people]),
        ):
            low, high = np.array(bounds)
            inside[kind].append((low <= true + 1e-9) & (true - 1e-9 <= high))
            widths[kind].append((high - low) / 2)
        half_of = rng.random(n) < 0.5
        one, other = (
            _shares(strata, right, rows, np.flatnonzero(part)) for part in (half_of, ~half_of)
        )
        # the halves differ a little by chance
        is_so = right[half_of].mean(0) - right[~half_of].mean(0)
        differences = [a.less(b) for a, b in zip(one, other, strict=True)]
        apart.append([not d.low <= so <= d.high for d, so in zip(differences, is_so, strict=True)])
        if not seed:
            off = _peer(said, rows, right[rows])
    cover = {kind: np.mean(some, axis=0) for kind, some in inside.items()}
    width = {kind: 100 * float(np.mean(some)) for kind, some in widths.items()}
    return {
        "set": name,
        "labels": len(used),
        "LLM is off by": 100 * float(np.abs(said.mean(0) - true).max()),
        "judged": m,
        **{f"covered, {kind}": float(some.mean()) for kind, some in cover.items()},
        "worst label": float(cover["strata"].min()),
        **{f"width, {kind}": some for kind, some in width.items()},
        "of people's": width["strata"] / width["people"],
        "halves wrong": float(np.mean(apart)),
        "off ppi_py": off,
    }


def main(argv: list[str]) -> None:
    """Judge texts at random, and count: how often the intervals hold the true share."""
    parser = argparse.ArgumentParser(prog="python -m bench count", description=__doc__)
    parser.add_argument("--data", required=True, help="folder of .jsonl: text, gold, prediction")
    parser.add_argument("--sets", nargs="+", help="names of files without .jsonl (default: all)")
    parser.add_argument("--judged", type=int, nargs="+", default=list(_JUDGED))
    parser.add_argument("--draws", type=int, default=1_000)
    parser.add_argument("--quick", action="store_true", help="20 draws")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", help="write the result to this file")
    arguments = parser.parse_args(argv)
    folder, draws = Path(arguments.data), 20 if arguments.quick else arguments.draws
    names = arguments.sets or sorted(path.stem for path in folder.glob("*.jsonl"))
    tasks = [(name, m) for name in names for m in arguments.judged]
    report = Report(
        "count",
        "95 % intervals of the shares of labels (of at least 1 %) from texts judged at random. "
        "strata: testnuc; people: the judged texts alone (Wilson). Widths are half widths in "
        "points; halves wrong: intervals of the difference of two random halves that miss it",
    )
    work = partial(_measure, folder=folder, draws=draws)
    with get_context("spawn").Pool(arguments.jobs) as pool:
        for row in pool.imap(work, tasks):
            report.row(**row)
    report.note(f"{draws} draws.")
    report.show()
    if arguments.json:
        report.write(arguments.json)
