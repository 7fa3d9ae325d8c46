"""Progress bars of runs."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Observer", "Progress", "watched"]


class Observer(Protocol):
    """Receives the progress of a run, in quick calls from the event loop."""

    def start(self, texts: int) -> None:
        """Receive the number of distinct texts to label."""

    def stage(self, name: str) -> None:
        """Receive the name of the next stage: "embedding", then "asking"."""

    def advance(self, texts: int = 1) -> None:
        """Receive the number of further texts that are done."""

    def close(self) -> None:
        """Receive the end of the run, by success or failure."""


def watched(progress: bool | Observer, texts: int) -> Observer:  # noqa: FBT001 - passed on
    """Return the observer of a run over `texts` texts."""
    if isinstance(progress, bool):
        return Progress(shown=progress, total=texts)
    progress.start(texts)
    return progress


class Progress:
    """Counts texts on a bar in the terminal or the notebook.

    Parameters
    ----------
    shown : bool
        Whether to show the bar.
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
        """Set the name of the present stage."""
        if self._bar is not None:
            self._bar.set_description(name)

    def advance(self, texts: int = 1) -> None:
        """Count texts that are done."""
        if self._bar is not None:
            self._bar.update(texts)

    def close(self) -> None:
        """Stop updating."""
        if self._bar is not None:
            self._bar.close()
