"""A progress bar, or none."""

from __future__ import annotations

from typing import Any

__all__ = ["Progress"]


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
