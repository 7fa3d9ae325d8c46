"""The module that version 0.1.0 pickled the result of `tune` from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testnuc.voting import VotePolicy

__all__ = ["Tuning"]


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
