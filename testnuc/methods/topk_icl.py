"""In-context learning without labeled data: the nearest texts of the pool in the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from testnuc.intake import checked_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testnuc.results import Prediction

__all__ = ["TopKICL", "TopKICLP"]


@dataclass(frozen=True, slots=True)
class TopKICL:
    """Show the LLM the k most similar texts of the pool, without labels (the paper's KNN-ICL).

    Parameters
    ----------
    k : int
        Texts shown, most similar first; how many neighbors vote is the client's own ``k``.
    """

    k: int = 10

    def __post_init__(self) -> None:
        checked_whole("k", self.k, least=1)

    @property
    def samples(self) -> int:
        """One."""
        return 1

    @property
    def context(self) -> int:
        """``k``."""
        return self.k

    @property
    def labeled(self) -> bool:
        """The texts alone."""
        return False

    def reduce(self, samples: Sequence[Prediction]) -> Prediction:
        """Return the only sample."""
        return samples[0]


@dataclass(frozen=True, slots=True)
class TopKICLP:
    """Show the LLM the k most similar texts with their predicted labels (the paper's KNN-ICL-P).

    The label of a text shown is its own prediction by `StandardPrompting`, shared with that method
    and stored like any other; a text whose prediction failed is shown without a label. With
    ``neighbors="stored"`` no text outside the batch is asked about for this: a text that has no
    such prediction is shown with the one that this method stored for it, or without a label.

    Parameters
    ----------
    k : int
        Texts shown, most similar first; how many neighbors vote is the client's own ``k``.
    """

    k: int = 10

    def __post_init__(self) -> None:
        checked_whole("k", self.k, least=1)

    @property
    def samples(self) -> int:
        """One."""
        return 1

    @property
    def context(self) -> int:
        """``k``."""
        return self.k

    @property
    def labeled(self) -> bool:
        """The texts with their predictions."""
        return True

    def reduce(self, samples: Sequence[Prediction]) -> Prediction:
        """Return the only sample."""
        return samples[0]
