"""Timing on a shared machine."""

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
    """Time the contenders alternately, so that noise affects all of them equally.

    Returns the seconds of each run, without a first warm-up run.
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
    """Return the median of the ratios of consecutive runs."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def machine(*packages: str) -> str:
    """Describe the processor, Python and package versions."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    versions = [f"{package} {importlib.metadata.version(package)}" for package in packages]
    python = f"Python {platform.python_version()}"
    return ", ".join([f"{os.cpu_count()} x {processor}", python, *versions])
