"""The vote against its floor and against what else computes it, and one row."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from bench._cases import Case
from bench._report import Report
from bench._timing import interleaved, machine, median_ratio
from bench._voters import PEERS, differing
from testnuc._kernels import vote as plain
from testnuc.voting import VotePolicy

SHAPES = {
    "100k,10,77,10k": (100_000, 10, 77, 10_000),
    "100k,50,150,25k": (100_000, 50, 150, 25_000),
    "20k,500,150,1M": (20_000, 500, 150, 1_000_000),
    "1M,10,77,1M": (1_000_000, 10, 77, 1_000_000),
    "1k,1000,10k,1M": (1_000, 1_000, 10_000, 1_000_000),
}
#: A peer that would take longer than this is named, not run.
PATIENCE = 60.0


def _against_floor(names: list[str], repeats: int) -> Report:
    report = Report("floor", "### The vote and its floor, one thread")
    for name in names:
        case = Case.make(*SHAPES[name])
        lowest = case.floor()
        plain, fast = case.kernels()
        runs: dict[str, Callable[[], object]] = {
            "floor": lambda lowest=lowest: lowest(1),  # type: ignore[misc]
            "plain": plain,
            "call": case.vote,
        }
        if fast is not None:
            runs["fast"] = fast
        seconds = interleaved(runs, repeats)
        middle = {key: statistics.median(values) * 1e3 for key, values in seconds.items()}
        kernel = "plain" if fast is None else "fast"
        report.row(
            **{
                "B,K,C,N": name,
                "floor ms": middle["floor"],
                "plain ms": middle["plain"],
                "fast ms": middle.get("fast"),
                "plain / fast": median_ratio(seconds["plain"], seconds[kernel]),
                "fast / floor": median_ratio(seconds[kernel], seconds["floor"]),
                "best / best": min(seconds[kernel]) / min(seconds["floor"]),
                "ns per vote": middle[kernel] * 1e6 / case.ids.size,
                "vote_pool ms": middle["call"],
            }
        )
    return report


def _two_threads(names: list[str], repeats: int) -> Report:
    report = Report("threads", "### Times the speed of one thread, with two")
    for name in names:
        case = Case.make(*SHAPES[name])
        lowest = case.floor()
        runs: dict[str, Callable[[], object]] = {}
        for threads in (1, 2):
            runs[f"vote {threads}"] = lambda case=case, threads=threads: case.vote(threads)  # type: ignore[misc]
            runs[f"floor {threads}"] = lambda lowest=lowest, threads=threads: lowest(threads)  # type: ignore[misc]
        seconds = interleaved(runs, repeats)
        row: dict[str, Any] = {"B,K,C,N": name}
        for what in ("vote", "floor"):
            one, two = seconds[f"{what} 1"], seconds[f"{what} 2"]
            row[what] = median_ratio(one, two)
            row[f"{what}, best / best"] = min(one) / min(two)
        equal = case.vote(1).share.tobytes() == case.vote(2).share.tobytes()
        report.row(**row, **{"equal bits": "yes" if equal else "NO"})
    return report


def _against_peers(names: list[str]) -> Report:
    title = "### Times the seconds of vote_pool with one thread, the answers compared"
    report = Report("peers", title)
    skipped = []
    for name in names:
        case = Case.make(*SHAPES[name])
        expected = case.vote(1)
        row: dict[str, Any] = {"B,K,C,N": name}
        some = max(1, len(case.ids) // 50)
        part = case.first(some)
        ours = statistics.median(interleaved({"ours": case.vote}, 5)["ours"])
        row["ours ms"] = ours * 1e3
        for peer, run in PEERS.items():
            run(case.first(1))  # imports what it needs
            start = time.perf_counter()
            run(part)
            expectation = (time.perf_counter() - start) * len(case.ids) / some
            if expectation > PATIENCE:
                skipped.append(f"{peer} at {name} (some {expectation:.0f} s)")
                row[peer] = None
                continue
            repeats = 3 if expectation < 5 else 1
            seconds = []
            ratios = []
            for _ in range(repeats):
                start = time.perf_counter()
                found = run(case)
                seconds.append(time.perf_counter() - start)
                start = time.perf_counter()
                case.vote()
                ratios.append(seconds[-1] / (time.perf_counter() - start))
            wrong = differing(found, expected)
            times = statistics.median(ratios)
            row[peer] = f"{times:.{1 if times < 10 else 0}f}x"
            if wrong:
                row[peer] += f" ({wrong} differ)"
        report.row(**row)
    if skipped:
        report.note("Not run, over a minute: " + "; ".join(skipped) + ".")
    return report


def _one_row() -> Report:
    case = Case.make(1, 50, 150, 25_000)
    none, one = np.empty(0, np.float32), np.ones(1, np.float32)
    out = np.empty((5, 1), np.int32)
    given = (
        (case.ids.ravel().view(np.uint64), case.similarities.ravel(), case.pool_labels, none),
        (case.own_labels, one, one),
        VotePolicy.weighted().fields,
        case.n_classes,
        50,
        0,
        1,
        out,
        out.view(np.float32),
        np.empty((0, case.n_classes)),
    )
    kernel = plain.vote_rows()

    def many(run: Callable[[], object]) -> Callable[[], object]:
        return lambda: [run() for _ in range(1000)]

    seconds = interleaved({"kernel": many(lambda: kernel(*given)), "call": many(case.vote)}, 15)
    report = Report("row", "### One row (K=50, C=150, N=25k), microseconds")
    report.row(
        **{
            "kernel call": statistics.median(seconds["kernel"]) * 1e3,
            "vote_pool": statistics.median(seconds["call"]) * 1e3,
        }
    )
    return report


_FIRST_VOTE = """
import time
start = time.perf_counter()
import testnuc
imported = time.perf_counter()
from testnuc.voting import vote_pool
import numpy as np
one = np.zeros(1, np.int32)
ids, similarities = np.zeros((1, 1), np.int64), np.ones((1, 1), np.float32)
vote_pool(ids, similarities, one, None, one, None, n_classes=2)
print(imported - start, time.perf_counter() - start)
"""


def _fresh(repeats: int) -> Report:
    report = Report("fresh", "### A fresh process, from `import testnuc` to the first vote")
    with tempfile.TemporaryDirectory() as cache:
        for kind, count in (("cold", 1), ("warm", repeats)):
            runs = []
            for _ in range(count):
                done = subprocess.run(
                    [sys.executable, "-c", _FIRST_VOTE],
                    env={**os.environ, "NUMBA_CACHE_DIR": cache},
                    check=True,
                    capture_output=True,
                    text=True,
                )
                runs.append([float(value) for value in done.stdout.split()])
            report.row(
                **{
                    "cache": kind,
                    "import testnuc ms": statistics.median(run[0] for run in runs) * 1e3,
                    "to the first vote ms": statistics.median(run[1] for run in runs) * 1e3,
                }
            )
    return report


def main(argv: list[str]) -> None:
    """Measure all of it; some ten minutes with all peers."""
    parser = argparse.ArgumentParser(prog="python -m bench kernels", description=__doc__)
    parser.add_argument("--json", metavar="PATH", help="write the figures here as well")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--no-peers", action="store_true", help="only ours and the floor")
    options = parser.parse_args(argv)
    packages = ["numba", "numpy"]
    if not options.no_peers:
        packages += ["scikit-learn", "scipy", "polars"]
    title = machine(*packages)
    print(title)
    parts: list[Callable[[], Report]] = [
        lambda: _against_floor(options.shapes, options.repeats),
        lambda: _two_threads(options.shapes, options.repeats),
        _one_row,
        lambda: _fresh(5),
    ]
    if not options.no_peers:
        parts.append(lambda: _against_peers(options.shapes))
    done = []
    for part in parts:
        report = part()
        print()
        report.show()
        done.append({"name": report.name, "title": report.title, "rows": report.rows})
    if options.json:
        content = {"name": "kernels", "title": title, "tables": done}
        Path(options.json).write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
