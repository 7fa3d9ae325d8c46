"""Progress of a command: a live bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from testnuc.progress import LineProgress

if TYPE_CHECKING:
    from collections.abc import Callable

    from testnuc.types import Usage

__all__ = ["RunProgress"]

#: Seconds between updates of the bar.
_BAR = 0.1


class RunProgress(LineProgress):
    """Shows texts, rate, cost, retries, remaining time and the last error; an `Observer`.

    By default it draws a bar (`live`) if stderr is a terminal.
    """

    def __init__(
        self,
        usage: Callable[[], Usage],
        *,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(usage, clock=clock)
        self._live = sys.stderr.isatty() if live is None else live
        self._bar: Any = None
        self._task: Any = None
        if self._live:
            self.every = _BAR

    def start(self, texts: int) -> None:
        """Set the number of texts, and draw the bar."""
        super().start(texts)
        if not self._live:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.table import Column

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn(
                "{task.fields[figures]}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
            ),
            console=Console(stderr=True),
            expand=True,
        )
        self._task = self._bar.add_task("", total=texts, figures="")
        self._bar.start()

    def stage(self, name: str) -> None:
        """Set the name of the present stage."""
        super().stage(name)
        if self._bar is not None:
            self.show()

    def close(self) -> None:
        """Stop updating."""
        super().close()
        if self._bar is not None:
            self.show()
            self._bar.stop()
            self._bar = None

    def show(self) -> None:
        """Draw the bar, or print a line."""
        if self._bar is not None:
            self._bar.update(
                self._task, completed=self.count, description=self._stage, figures=self.figures()
            )
        elif not self._live:
            super().show()
