"""Run a benchmark by name."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent


def benchmarks() -> dict[str, str]:
    """Return the benchmarks: name -> first line of the docstring."""
    found = {}
    for path in sorted(HERE.glob("[!_]*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found[path.stem] = text.splitlines()[0] if text else ""
    return found


def run() -> None:
    """Run the benchmark named on the command line."""
    known = benchmarks()
    if len(sys.argv) < 2 or sys.argv[1] not in known:
        wrong = f"unknown benchmark {sys.argv[1]!r}\n" if len(sys.argv) > 1 else ""
        names = "\n".join(f"  {name:<12} {line}" for name, line in known.items())
        sys.exit(f"{wrong}usage: python -m bench NAME [--help]\n\n{names}")
    import_module(f"bench.{sys.argv[1]}").main(sys.argv[2:])


if __name__ == "__main__":
    run()
