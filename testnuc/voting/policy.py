"""How a vote weighs, and who may vote."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np

from testnuc.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["PRESETS", "VotePolicy"]

Weight: TypeAlias = Literal["uniform", "similarity", "similarity*confidence"]

#: Keeps sums in an int64 with the most neighbors that can vote.
_MAX_OWN_WEIGHT = 1000.0


@dataclass(frozen=True, slots=True)
class VotePolicy:
    """How a vote weighs, and who may vote.

    Parameters
    ----------
    weight : {"similarity", "uniform", "similarity*confidence"}
        What the vote of a neighbor weighs.
    min_confidence : float, optional
        Votes with a lower confidence, or with none, do not count; the text's own neither.
    min_similarity : float, optional
        Neighbors less similar do not count.
    own_weight : float
        Multiplies the text's own vote; 0 leaves the vote to the neighbors.
    """

    weight: Weight = "similarity"
    min_confidence: float | None = None
    min_similarity: float | None = None
    own_weight: float = 1.0
    #: The policy as the kernels read it, float64[6].
    fields: NDArray[np.float64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.weight not in get_args(Weight):
            choices = ", ".join(repr(choice) for choice in get_args(Weight))
            raise InvalidInputError(f"weight is {self.weight!r}; choose one of {choices}")
        for name, value, low, high in (
            ("min_confidence", self.min_confidence, 0.0, 1.0),
            ("min_similarity", self.min_similarity, -1.0, 1.0),
            ("own_weight", self.own_weight, 0.0, _MAX_OWN_WEIGHT),
        ):
            if value is None and name != "own_weight":
                continue
            if not isinstance(value, (int, float, np.integer, np.floating)) or not (
                low <= value <= high
            ):
                raise InvalidInputError(
                    f"{name} is {value!r}; give a number from {low:g} to {high:g}"
                )
        uniform = self.weight == "uniform"
        # without a threshold a uniform weight ignores the similarity; others are cut off at 0
        lowest = -2.0 if uniform else 0.0
        least = lowest if self.min_similarity is None else max(self.min_similarity, lowest)
        fields = np.array(
            [
                uniform,
                self.weight == "similarity*confidence",
                self.uses_confidence,
                # as float32, as the confidences are: 0.7 is not below 0.7
                np.float32(-1.0 if self.min_confidence is None else self.min_confidence),
                np.float32(least),
                self.own_weight,
            ],
            dtype=np.float64,
        )
        fields.flags.writeable = False
        object.__setattr__(self, "fields", fields)

    @classmethod
    def majority(cls) -> VotePolicy:
        """Give every vote the same weight."""
        return cls("uniform")

    @classmethod
    def weighted(cls) -> VotePolicy:
        """Weigh a vote by its similarity."""
        return cls("similarity")

    @classmethod
    def confidence_weighted(cls) -> VotePolicy:
        """Weigh a vote by its similarity times its confidence."""
        return cls("similarity*confidence")

    @classmethod
    def filtered(cls, min_confidence: float = 0.7) -> VotePolicy:
        """Weigh by similarity, and count only votes of at least this confidence."""
        return cls("similarity", min_confidence=min_confidence)

    @classmethod
    def of(cls, policy: str | VotePolicy) -> VotePolicy:
        """Return the policy itself, or the preset of that name."""
        if isinstance(policy, VotePolicy):
            return policy
        preset = PRESETS.get(policy) if isinstance(policy, str) else None
        if preset is None and isinstance(policy, str):
            preset = PRESETS.get(policy.replace("-", "_"))
        if preset is None:
            choices = ", ".join(repr(name) for name in PRESETS)
            raise InvalidInputError(
                f"policy is {policy!r}; choose one of {choices}, or give a VotePolicy"
            )
        return preset

    @property
    def uses_confidence(self) -> bool:
        """Whether a voter without a confidence abstains."""
        return self.weight == "similarity*confidence" or self.min_confidence is not None


PRESETS = {
    "majority": VotePolicy.majority(),
    "weighted": VotePolicy.weighted(),
    "confidence_weighted": VotePolicy.confidence_weighted(),
    "filtered": VotePolicy.filtered(),
}
