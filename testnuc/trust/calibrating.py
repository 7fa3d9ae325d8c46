"""The module that version 0.1.0 pickled the result of `calibrate` from."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Calibration"]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What `calibrate` returned; `learn` took its place."""

    method: str
    shares: tuple[float, ...]
    chances: tuple[float, ...]
    texts: int
