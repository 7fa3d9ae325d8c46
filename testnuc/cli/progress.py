"""Progress of a run: a live bar on a terminal, periodic lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from testnuc.types import Usage

__all__ = ["RunProgress"]

#: Seconds between updates of the bar, and between lines.
_BAR, _LINE = 0.1, 10.0


class RunProgress:
    """Shows texts, rate, cost, retries and remaining time; an `Observer`.

    Parameters
    ----------
    usage : callable
        Returns the usage so far.
    live : bool, optional
        Whether to draw a bar; default: if stderr is a terminal.
    clock : callable
        Monotonic seconds.
    """

    def __init__(
        self,
        usage: Callable[[], Usage],
        *,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._usage = usage
        self._clock = clock
        self._live = sys.stderr.isatty() if live is None else live
        self._bar: Any = None
        self._task: Any = None
        self._stage = ""
        #: Number of texts, and of those that are done.
        self.texts = self.done = 0
        self._stored = 0
        self._started = self._shown = clock()

    def start(self, texts: int) -> None:
        """Set the number of texts."""
        self.texts = texts
        self._stored = self._usage().store_hits
        if not self._live:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("", total=texts, figures="")
        self._bar.start()

    def stage(self, name: str) -> None:
        """Set the name of the present stage."""
        self._stage = name
        self._started = self._clock()
        self._show()

    def advance(self, texts: int = 1) -> None:
        """Count texts that are done."""
        self.done += texts
        if self._clock() - self._shown >= (_LINE if self._bar is None else _BAR):
            self._show()

    def close(self) -> None:
        """Stop updating."""
        if self._bar is not None:
            self._show()
            self._bar.stop()
            self._bar = None

    def _show(self) -> None:
        self._shown = self._clock()
        if self._bar is not None:
            self._bar.update(
                self._task, completed=self.done, description=self._stage, figures=self.figures()
            )
        elif not self._live and self.done:
            line = f"{self._stage}: {self.done:,} of {self.texts:,} texts, {self.figures()}"
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - the command's output

    def figures(self) -> str:
        """Return rate, cost, retries and remaining time in a few words."""
        usage = self._usage()
        seconds = self._clock() - self._started
        parts = []
        # stored answers return at once and must not count in the rate
        asked = self.done - (usage.store_hits - self._stored)
        pace = asked / seconds if asked > 0 and seconds > 0 else 0.0
        if pace:
            parts.append(f"{pace:,.0f}/s" if pace >= 10 else f"{pace:.1f}/s")
        if usage.usd:
            parts.append(f"{usage.usd:.4f} USD")
        elif usage.usd is None:
            parts.append("price unknown")
        if usage.retries:
            parts.append(f"{usage.retries:,} retries")
        if pace and self.done < self.texts:
            parts.append(f"{_time((self.texts - self.done) / pace)} left")
        return ", ".join(parts)


def _time(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, whole = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{whole:02} min"
    return f"{minutes // 60}:{minutes % 60:02} h"
