"""Ctrl-C in a command."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["interruptible"]


@contextmanager
def interruptible() -> Iterator[None]:
    """Print one line after Ctrl-C; typer would exit silently."""
    try:
        yield
    except KeyboardInterrupt:
        # on a new line, after the remains of a progress bar
        print("\ntestnuc: interrupted", file=sys.stderr)  # noqa: T201 - the command's output
        sys.exit(130)
