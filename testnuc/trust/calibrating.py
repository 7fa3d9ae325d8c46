"""The module that version 0.1.0 pickled the result of `calibrate` from."""

from __future__ import annotations

from dataclasses import dataclass

from testnuc._base.display import brief

__all__ = ["Calibration"]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What `calibrate` returned; `learn` took its place."""

    __repr__ = brief

    method: str
    shares: tuple[float, ...]
    chances: tuple[float, ...]
    texts: int
