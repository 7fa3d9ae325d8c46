"""Progress of a run: a bar on a terminal or in a notebook, lines elsewhere, or an observer."""

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

from testnuc._base.display import one_line
from testnuc.errors import InvalidInputError
from testnuc.types import Usage, error_text

#: Seconds for which the last error is shown: longer than retries back off.
_RECENT = 120.0


class Observer(Protocol):
    """Receives the progress of a run.

    Methods are called on the event loop and must not block. An observer may have two more:
    ``embedded(texts)`` counts texts with an embedding, first those with a stored one, and
    ``note(error)`` receives the error of each failed request, retried or not.
    """

    def start(self, texts: int) -> None:
        """Start a run over `texts` distinct texts."""

    def stage(self, name: str) -> None:
        """Enter a stage: "embedding", while calls are made as well, then "asking"."""

    def advance(self, texts: int = 1) -> None:
        """Count `texts` more finished texts."""

    def close(self) -> None:
        """End the run, finished or failed."""


def start_progress(
    progress: bool | Observer,  # noqa: FBT001 - passed on
    texts: int,
    usage: Callable[[], Usage],
) -> Observer:
    """Return the observer of a run, started with the number of its texts."""
    if isinstance(progress, bool):
        observer: Observer = display_of(usage) if progress else Silent()
    elif isinstance(progress, type) or not hasattr(progress, "advance"):
        raise InvalidInputError(f"progress is {progress!r}; give True, False or an Observer")
    else:
        observer = progress
    observer.start(texts)
    return observer


def display_of(usage: Callable[[], Usage]) -> "LineProgress":
    """Return what shows the progress of a run: a bar, if it can be redrawn, else lines."""
    if sys.stderr.isatty() or "ipykernel" in sys.modules:
        return BarProgress(usage)
    # redrawn, a bar would fill a log file
    return LineProgress(usage)


class Silent:
    """Shows nothing."""

    def start(self, *_: object, **__: object) -> None:
        """Do nothing."""

    stage = advance = close = start


class LineProgress:
    """Prints a line to stderr every ten seconds, also while nothing is answered."""

    #: Seconds between updates.
    every = 10.0

    def __init__(
        self, usage: Callable[[], Usage], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._usage = usage
        self._clock = clock
        self._stage = ""
        #: Number of texts, and of those that are done.
        self.texts = self.done = 0
        self._embedded = self._stored = 0
        #: Number of texts with a stored vector; None: not known yet.
        self._with_vector: int | None = None
        self._error: Exception | None = None
        self._noted = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._started = self._shown = clock()

    def start(self, texts: int) -> None:
        """Set the number of texts."""
        self.texts, self.done, self._embedded, self._with_vector = texts, 0, 0, None
        self._stored = self._usage().store_hits
        self._started = self._shown = self._clock()
        self._schedule()

    def stage(self, name: str) -> None:
        """Set the name of the present stage."""
        self._stage = name
        self._started = self._clock()

    def embedded(self, texts: int) -> None:
        """Count texts with an embedding: first those whose vector is stored."""
        if self._with_vector is None:
            self._with_vector, self._started = texts, self._clock()
        self._embedded += texts
        if self._embedded >= self.texts:
            # calls began while texts were embedded
            self.stage("asking")
        self._update()

    def advance(self, texts: int = 1) -> None:
        """Count texts that are done."""
        self.done += texts
        self._update()

    def note(self, error: Exception) -> None:
        """Set the last error."""
        self._error, self._noted = error, self._clock()
        self._update()

    def close(self) -> None:
        """Stop updating."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def count(self) -> int:
        """Number of texts that have passed the present stage."""
        return self._embedded if self._embedding else self.done

    @property
    def _embedding(self) -> bool:
        return self._stage == "embedding"

    def show(self) -> None:
        """Print a line; a closed terminal or a full disk must not end the run."""
        with suppress(OSError, ValueError):
            self._show()

    def _show(self) -> None:
        figures = self.figures()
        line = f"{self._stage}: {self.count:,} of {self.texts:,} texts"
        print(f"{line}, {figures}" if figures else line, file=sys.stderr, flush=True)  # noqa: T201

    def figures(self) -> str:
        """Return rate, cost, retries, remaining time and the last error in a few words."""
        usage = self._usage()
        now = self._clock()
        # what is stored returns at once and must not count in the rate
        stored = self._with_vector or 0 if self._embedding else usage.store_hits - self._stored
        seconds, asked = now - self._started, self.count - stored
        pace = asked / seconds if asked > 0 and seconds > 0 else 0.0
        parts = [f"{pace:,.0f}/s" if pace >= 10 else f"{pace:.1f}/s"] if pace else []
        if usage.usd:
            parts.append(f"{usage.usd:.4f} USD")
        elif usage.usd is None:
            parts.append("price unknown")
        if usage.retries:
            parts.append(f"{usage.retries:,} retries")
        if usage.retries and not usage.calls:
            parts.append("no call answered yet")
        if pace and self.count < self.texts:
            left = timedelta(seconds=round((self.texts - self.count) / pace))
            parts.append(f"{left} left")
        if self._embedding and self.done:
            # the rate before is that of embedding
            parts.append(f"{self.done:,} asked")
        if self._error is not None and now - self._noted < _RECENT:
            parts.append(f"last error: {one_line(error_text(self._error) or '', 160)}")
        return ", ".join(parts)

    def _update(self) -> None:
        """Show the state, if the last time is long enough ago."""
        if self._clock() - self._shown >= self.every:
            self._shown = self._clock()
            self.show()

    def _schedule(self) -> None:
        """Update later, even if the run makes no progress."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        # a little later than due, so that a rounded timer does not fire too early
        due = self._shown + self.every - self._clock() + 0.01
        self._timer = loop.call_later(max(due, 0.01), self._tick)

    def _tick(self) -> None:
        self._update()
        self._schedule()


class BarProgress(LineProgress):
    """A tqdm bar on a terminal or in a notebook, with the same figures."""

    every = 0.1
    _bar: Any = None

    def start(self, texts: int) -> None:
        from tqdm.auto import tqdm

        form = "{desc} {bar:20} {n_fmt}/{total_fmt}{postfix}"
        with suppress(OSError, ValueError):
            # with a delay tqdm draws nothing here: it would keep its lock if that failed
            self._bar = tqdm(
                total=texts, bar_format=form, dynamic_ncols=True, file=sys.stderr, delay=1e-9
            )
        super().start(texts)

    def stage(self, name: str) -> None:
        super().stage(name)
        self.show()

    def close(self) -> None:
        super().close()
        self.show()
        with suppress(OSError, ValueError):
            if self._bar is not None:
                self._bar.close()

    def _show(self) -> None:
        if self._bar is None:
            return
        self._bar.n = self.count
        self._bar.set_description_str(self._stage, refresh=False)
        self._bar.set_postfix_str(self.figures(), refresh=False)
        # tqdm keeps its lock if drawing fails, and each embedder would wait for it
        self._bar.refresh(nolock=True)
