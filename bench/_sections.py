"""Reports with several tables and figures, as Markdown, JSON and PNG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from bench._report import Report

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["Sections"]

#: Small enough to be committed, large enough to be read.
_DPI = 90


class Sections:
    """A report with one section per table.

    Parameters
    ----------
    title : str
        What was measured, and how.
    command : str
        The command line that reproduces it.
    """

    def __init__(self, title: str, command: str) -> None:
        self.title = title
        self.command = command
        self._reports: list[Report] = []
        self._figures: dict[str, Figure] = {}

    def add(
        self,
        name: str,
        title: str,
        table: pd.DataFrame,
        *,
        figure: Figure | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        """Print a table and add it to the report, with its figure."""
        report = Report(name, title)
        for row in table.to_dict("records"):
            # pandas represents missing values as NaN
            report.row(**{key: None if value != value else value for key, value in row.items()})  # noqa: PLR0124
        for note in notes:
            report.note(note)
        self._reports.append(report)
        if figure is not None:
            self._figures[name] = figure
        report.show()
        print(flush=True)

    def write(self, folder: Path) -> None:
        """Write ``paper.md``, ``paper.json`` and one PNG per figure."""
        folder.mkdir(parents=True, exist_ok=True)
        lines = [f"# {self.title}", "", f"    {self.command}", ""]
        for report in self._reports:
            lines += [f"## {report.name}", "", report.text().rstrip(), ""]
            figure = self._figures.get(report.name)
            if figure is not None:
                image = f"{report.name}.png".replace(" ", "_")
                figure.savefig(folder / image, dpi=_DPI)
                lines += [f"![{report.title}]({image})", ""]
        (folder / "paper.md").write_text("\n".join(lines), encoding="utf-8")
        content: dict[str, Any] = {
            "title": self.title,
            "command": self.command,
            "sections": [
                {"name": r.name, "title": r.title, "notes": r.notes, "rows": r.rows}
                for r in self._reports
            ],
        }
        (folder / "paper.json").write_bytes(
            orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY)
        )
        print(f"written to {folder}", flush=True)
