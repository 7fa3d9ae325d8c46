"""Progress reporting: a tqdm bar or a user-supplied observer."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Observer", "Progress", "start_progress"]


class Observer(Protocol):
    """Receives the progress of a run.

    Methods are called on the event loop and must not block.
    """

    def start(self, texts: int) -> None:
        """Start a run over `texts` distinct texts."""

    def stage(self, name: str) -> None:
        """Enter a stage: "embedding", then "asking"."""

    def advance(self, texts: int = 1) -> None:
        """Count `texts` more finished texts."""

    def close(self) -> None:
        """End the run, finished or failed."""


def start_progress(progress: bool | Observer, texts: int) -> Observer:  # noqa: FBT001 - passed on
    """Return the observer of a run, started with the number of its texts."""
    if isinstance(progress, bool):
        return Progress(shown=progress, total=texts)
    progress.start(texts)
    return progress


class Progress:
    """A tqdm progress bar for the terminal or a notebook.

    Parameters
    ----------
    shown : bool
        False disables the bar.
    total : int, optional
        Number of texts.
    """

    def __init__(self, *, shown: bool, total: int | None = None) -> None:
        self._bar: Any = None
        if shown:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total, unit=" texts", dynamic_ncols=True)

    def start(self, texts: int) -> None:
        """Set the number of texts."""
        if self._bar is not None:
            self._bar.reset(total=texts)

    def stage(self, name: str) -> None:
        """Show the name of the stage."""
        if self._bar is not None:
            self._bar.set_description(name)

    def advance(self, texts: int = 1) -> None:
        """Count finished texts."""
        if self._bar is not None:
            self._bar.update(texts)

    def close(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()
