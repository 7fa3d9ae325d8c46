"""How benchmarks take time on a machine that others use as well."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["interleaved", "machine", "median_ratio"]


def interleaved(
    contenders: Mapping[str, Callable[[], object]], repeats: int
) -> dict[str, list[float]]:
    """Time the contenders in turns, so that what disturbs the machine disturbs all of them.

    Returns the seconds of each run, after a first one that is not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():
        run()
    for _ in range(repeats):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of the ratios of runs that followed each other."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def machine(*packages: str) -> str:
    """Name the processor, Python, and the packages whose version matters."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    versions = [f"{package} {importlib.metadata.version(package)}" for package in packages]
    python = f"Python {platform.python_version()}"
    return ", ".join([f"{os.cpu_count()} x {processor}", python, *versions])
