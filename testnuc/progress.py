"""A progress bar, one of the user's own, or none."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Observer", "Progress", "watched"]


class Observer(Protocol):
    """Is told how far a run is, in quick calls from the event loop."""

    def start(self, texts: int) -> None:
        """Hear how many distinct texts are to be labeled."""

    def stage(self, name: str) -> None:
        """Hear what is being done from now on: "embedding", then "asking"."""

    def advance(self, texts: int = 1) -> None:
        """Hear that so many more texts are done."""

    def close(self) -> None:
        """Hear that the run is over, or failed."""


def watched(progress: bool | Observer, texts: int) -> Observer:  # noqa: FBT001 - passed on
    """Return who is told of a run over so many texts."""
    if isinstance(progress, bool):
        return Progress(shown=progress, total=texts)
    progress.start(texts)
    return progress


class Progress:
    """Counts texts on a bar in the terminal or the notebook.

    Parameters
    ----------
    shown : bool
        False: count nothing.
    total : int, optional
        Texts in all.
    """

    def __init__(self, *, shown: bool, total: int | None = None) -> None:
        self._bar: Any = None
        if shown:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total, unit=" texts", dynamic_ncols=True)

    def start(self, texts: int) -> None:
        """Say how many texts there are."""
        if self._bar is not None:
            self._bar.reset(total=texts)

    def stage(self, name: str) -> None:
        """Say what is being done."""
        if self._bar is not None:
            self._bar.set_description(name)

    def advance(self, texts: int = 1) -> None:
        """Count texts that are done."""
        if self._bar is not None:
            self._bar.update(texts)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()
