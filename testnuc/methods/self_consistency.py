"""Self-consistency: the label that most samples give."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from testnuc.intake import checked_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testnuc.results import Prediction

__all__ = ["SelfConsistency"]


@dataclass(frozen=True, slots=True)
class SelfConsistency:
    """Ask n times; the label most samples give is the prediction (the paper's Self-Consistency).

    The confidence is the winner's part of the samples that were answered. Answers outside the
    label set win nothing, but count among these. A tie goes to the label of the lowest sample
    number.

    Parameters
    ----------
    n : int
        Samples of one text. They are stored one by one: a larger n pays for the difference alone.
    """

    n: int = 10

    def __post_init__(self) -> None:
        checked_whole("n", self.n, least=1)

    @property
    def samples(self) -> int:
        """``n``."""
        return self.n

    @property
    def context(self) -> int:
        """No examples in the prompt."""
        return 0

    @property
    def labeled(self) -> bool:
        """No examples, no labels of them."""
        return False

    def reduce(self, samples: Sequence[Prediction]) -> Prediction:
        """Return the label of most samples; its confidence is its part of them."""
        # a Counter keeps the order of first appearance, and `most_common` ties by it
        counts = Counter(sample.label for sample in samples if sample.label is not None)
        if not counts:
            return replace(samples[0], confidence=None)
        winner, count = counts.most_common(1)[0]
        first = next(sample for sample in samples if sample.label == winner)
        return replace(first, confidence=count / len(samples))
