"""Standard prompting: one answer is the prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testnuc.results import Prediction

__all__ = ["StandardPrompting"]


@dataclass(frozen=True, slots=True)
class StandardPrompting:
    """Ask once; the answer is the prediction (the paper's baseline)."""

    @property
    def samples(self) -> int:
        """One."""
        return 1

    @property
    def context(self) -> int:
        """No examples in the prompt."""
        return 0

    @property
    def labeled(self) -> bool:
        """No examples, no labels of them."""
        return False

    def reduce(self, samples: Sequence[Prediction]) -> Prediction:
        """Return the only sample."""
        return samples[0]
