"""Run worlds by seed in several processes, and print the violations of each."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

__all__ = ["Run", "add_options", "run_all"]

#: Runs seeds; returns the violations by seed, and counts.
Run = Callable[[range], tuple[dict[int, list[str]], Counter[str]]]

#: Seeds that a process runs at a time.
_PART = 20


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which seeds are run."""
    parser.add_argument("--seeds", type=int, default=10_000, help="number of seeds")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")


def run_all(
    arguments: argparse.Namespace, run: Run, begin: Callable[[], None] | None = None
) -> None:
    """Run all seeds, each process after `begin`; exit code 1 if there are violations."""
    end = arguments.start + arguments.seeds
    parts = [range(at, min(end, at + _PART)) for at in range(arguments.start, end, _PART)]
    started = time.perf_counter()
    broken = 0
    counts: Counter[str] = Counter()
    context: Any = multiprocessing.get_context("spawn")
    with context.Pool(arguments.jobs, begin) as pool:
        for found, counted in pool.imap(run, parts):
            counts += counted
            broken += len(found)
            for seed, words in found.items():
                for word in words:
                    print(f"seed {seed}: {word}", flush=True)
    seconds = time.perf_counter() - started
    facts = ", ".join(f"{number:,} {name}" for name, number in counts.items())
    print(f"{facts}; {seconds:.0f} s")
    print(f"{broken} of {arguments.seeds:,} seeds show violations")
    if broken:
        sys.exit(1)
