"""Best of n: of several samples the one, or the label, that the LLM is surest of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import fsum
from typing import TYPE_CHECKING

from testnuc.intake import checked_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testnuc.results import Prediction

__all__ = ["BestOfN", "WeightedBestOfN"]


@dataclass(frozen=True, slots=True)
class BestOfN:
    """Ask n times; the sample with the highest confidence is the prediction (Best-of-N).

    Answers outside the label set win nothing; a sample without a confidence wins only where none
    has one. A tie goes to the lowest sample number.

    Parameters
    ----------
    n : int
        Samples of one text, stored one by one.
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
        """Return the sample with the highest confidence, as it is."""
        usable = [sample for sample in samples if sample.label is not None]
        if not usable:
            return samples[0]
        return max(usable, key=_confidence)


@dataclass(frozen=True, slots=True)
class WeightedBestOfN:
    """Ask n times; each sample votes with its confidence (Weighted Best-of-N).

    The prediction's confidence is the winner's part of all samples' confidence. A sample without a
    confidence abstains; where none has one, the first sample stands, without a confidence. A tie
    goes to the label of the lowest sample number.

    Parameters
    ----------
    n : int
        Samples of one text, stored one by one.
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
        """Return the label with the most confidence; its confidence is its part of all."""
        given: dict[str, list[float]] = {}
        for sample in samples:
            if sample.label is not None and sample.confidence is not None:
                given.setdefault(sample.label, []).append(sample.confidence)
        # fsum: the order of the samples must not decide between equal sums
        sums = {label: fsum(parts) for label, parts in given.items()}
        total = fsum(s.confidence for s in samples if s.confidence is not None)
        if not sums or total <= 0:
            first = next((s for s in samples if s.label is not None), samples[0])
            return replace(first, confidence=None)
        winner = max(sums, key=sums.__getitem__)
        first = next(sample for sample in samples if sample.label == winner)
        return replace(first, confidence=min(1.0, sums[winner] / total))


def _confidence(sample: Prediction) -> float:
    return -1.0 if sample.confidence is None else sample.confidence
