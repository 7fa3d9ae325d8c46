"""Simulation: whole clients with faults, or with random features, by seed; prints violations."""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from importlib import import_module

from bench._seeds import add_options, run_all


def _run(seeds: range) -> tuple[dict[int, list[str]], Counter[str]]:
    """Run worlds, each twice; return the violations by seed, and counts."""
    # the worlds belong to the tests, which a checkout has and an installation has not
    violations = import_module("tests.simulation.checks").violations
    simulate = import_module("tests.simulation.world").simulate
    logging.disable(logging.CRITICAL)
    found: dict[int, list[str]] = {}
    counts: Counter[str] = Counter()
    for seed in seeds:
        try:
            world = simulate(seed)
            broken = violations(world)
            if simulate(seed).trace.digest() != world.trace.digest():
                broken.append("a second run of the seed took another course")
        except Exception as error:  # noqa: BLE001 - printed with its seed
            found[seed] = [f"the simulation itself failed: {error!r}"]
            continue
        if broken:
            found[seed] = broken
        counts["worlds"] += 1
        counts["processes"] += len(world.processes)
        counts["runs"] += len(world.operations)
        counts["requests"] += len(world.requests)
        counts["paid answers"] += len(world.payments)
        counts["virtual hours"] += int((world.loop.time() - 1000) // 3600)
    return found, counts


def _run_features(seeds: range) -> tuple[dict[int, list[str]], Counter[str]]:
    """Run clients with random features and operations; return as `_run`."""
    simulate = import_module("tests.simulation.features").simulate
    logging.disable(logging.CRITICAL)
    found: dict[int, list[str]] = {}
    counts: Counter[str] = Counter()
    for seed in seeds:
        try:
            world = simulate(seed)
        except Exception as error:  # noqa: BLE001 - printed with its seed
            found[seed] = [f"the simulation itself failed: {error!r}"]
            continue
        if world.broken:
            found[seed] = world.broken
        counts["worlds"] += 1
        counts["operations"] += len(world.trace)
        counts["calls"] += world.model.calls + world.better.calls
    return found, counts


_WORLDS = {"faults": _run, "features": _run_features}


def main(argv: list[str]) -> None:
    """Print the violations and the seed of each; exit code 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m bench simulate", description=__doc__)
    parser.add_argument("--world", choices=_WORLDS, default="faults", help="what is simulated")
    add_options(parser)
    arguments = parser.parse_args(argv)
    run_all(arguments, _WORLDS[arguments.world])
