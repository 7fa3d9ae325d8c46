"""Hostile weather: clients and a byte-level fuzzer over real sockets, by seed; prints faults."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from importlib import import_module
from typing import Any

#: Seeds that a process runs at a time.
_PART = 20
#: Bytes of address space of a process that runs them: what reads without end must fail soon.
_SPACE = 4 << 30


def _begin() -> None:
    """Bound the memory of this process."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_SPACE, _SPACE))


def _run(seeds: range) -> tuple[dict[int, list[str]], Counter[str]]:
    """Run seeds; return the violations by seed, and counts."""
    # the worlds belong to the tests, which a checkout has and an installation has not
    violations = import_module("tests.weather.checks").violations
    weather = import_module("tests.weather.world").weather
    found: dict[int, list[str]] = {}
    counts: Counter[str] = Counter()
    for seed in seeds:
        try:
            world = weather(seed, data=True)
            broken = violations(world)
        except BaseException as error:  # noqa: BLE001 - printed with its seed
            found[seed] = [f"the seed itself failed: {error!r}"]
            continue
        if broken:
            found[seed] = broken
        counts["seeds"] += 1
        counts["requests"] += len(world.requests)
        counts["mutated responses"] += sum(bool(sent.names) for sent in world.sent)
        counts["healthy texts"] += len(world.healthy)
    return found, counts


def main(argv: list[str]) -> None:
    """Print the violations and the seed of each; exit code 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m bench weather", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="number of seeds")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    arguments = parser.parse_args(argv)
    recorded = import_module("tests.weather.exchanges").recorded()
    print(
        f"{len(recorded):,} recorded exchanges of TESTNUC_DATA, beside those made up; they decide "
        "the course of a seed"
    )
    end = arguments.start + arguments.seeds
    parts = [range(at, min(end, at + _PART)) for at in range(arguments.start, end, _PART)]
    started = time.perf_counter()
    broken = 0
    counts: Counter[str] = Counter()
    context: Any = multiprocessing.get_context("spawn")
    with context.Pool(arguments.jobs, _begin) as pool:
        for found, counted in pool.imap(_run, parts):
            counts += counted
            broken += len(found)
            for seed, words in found.items():
                for word in words:
                    print(f"seed {seed}: {word:.600}", flush=True)
    seconds = time.perf_counter() - started
    facts = ", ".join(f"{number:,} {name}" for name, number in counts.items())
    print(f"{facts}; {seconds:.0f} s")
    print(f"{broken} of {arguments.seeds:,} seeds show violations")
    if broken:
        sys.exit(1)
