"""Names under which version 0.1.0 pickled classes of this package: `testnuc.trust.counting`, .."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testnuc._base.display import brief
from testnuc.trust.review_queue import ReviewReason as Review
from testnuc.trust.vote_settings import VoteSettings as Counting

if TYPE_CHECKING:
    from testnuc.voting import VotePolicy

__all__ = ["Calibration", "Counting", "Review", "Tuning"]

for _old in ("calibrating", "counting", "reviewing", "tuning"):
    sys.modules[f"testnuc.trust.{_old}"] = sys.modules[__name__]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What `calibrate` returned; `learn` took its place."""

    __repr__ = brief

    method: str
    shares: tuple[float, ...]
    chances: tuple[float, ...]
    texts: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """What `tune` returned; `learn` took its place."""

    policy: VotePolicy | None
    k: int
    prior_power: float
    alone: float
    gain: float
    interval: tuple[float, float]
    texts: int
    reason: str
