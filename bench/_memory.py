"""Memory of a process."""

from __future__ import annotations

from pathlib import Path

__all__ = ["process_memory"]


def process_memory(pid: int | str = "self") -> dict[str, float]:
    """Return memory in MiB by Linux's names: VmRSS resident, VmHWM peak, RssAnon anonymous.

    Empty on other systems.

    Parameters
    ----------
    pid : int, optional
        Default: the current process.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    named = (line.partition(":") for line in lines if line.endswith(" kB"))
    return {name: int(value.split()[0]) / 1024 for name, _, value in named}
