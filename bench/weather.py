"""Hostile weather: clients and a byte-level fuzzer over real sockets, by seed; prints faults."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from importlib import import_module

from bench._seeds import add_options, run_all

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
            found[seed] = [f"the seed itself failed: {error!r}"[:600]]
            continue
        if broken:
            found[seed] = [f"{word:.600}" for word in broken]
        counts["seeds"] += 1
        counts["requests"] += len(world.requests)
        counts["mutated responses"] += sum(bool(sent.names) for sent in world.sent)
        counts["healthy texts"] += len(world.healthy)
    return found, counts


def main(argv: list[str]) -> None:
    """Print the violations and the seed of each; exit code 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m bench weather", description=__doc__)
    add_options(parser)
    arguments = parser.parse_args(argv)
    recorded = import_module("tests.weather.exchanges").recorded()
    print(
        f"{len(recorded):,} recorded exchanges of TESTNUC_DATA, beside those made up; they decide "
        "the course of a seed"
    )
    run_all(arguments, _run, _begin)
