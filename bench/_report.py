"""Reports of benchmarks: one table and notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

__all__ = ["Report"]


class Report:
    """Notes and rows of one benchmark.

    Parameters
    ----------
    name : str
        Name of the benchmark.
    title : str
        What was measured, and how.
    """

    def __init__(self, name: str, title: str) -> None:
        self.name = name
        self.title = title
        self.notes: list[str] = []
        self.rows: list[dict[str, Any]] = []

    def note(self, text: str) -> None:
        """Add a line below the table."""
        self.notes.append(text)

    def row(self, **cells: Any) -> None:
        """Add a row; columns are ordered by first appearance."""
        self.rows.append(cells)

    def text(self) -> str:
        """Return the report as Markdown."""
        lines = [self.title, ""]
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        if columns:
            table = [columns, *([_cell(row.get(name)) for name in columns] for row in self.rows)]
            widths = [max(len(line[i]) for line in table) for i in range(len(columns))]
            padded = [
                "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
                for line in table
            ]
            rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
            lines += [padded[0], rule, *padded[1:], ""]
        return "\n".join([*lines, *self.notes])

    def show(self) -> None:
        """Print the report."""
        print(self.text(), flush=True)

    def write(self, path: str) -> None:
        """Write the report as JSON."""
        content = {"name": self.name, "title": self.title, "notes": self.notes, "rows": self.rows}
        Path(path).write_bytes(
            orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY)
        )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1_000 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
