"""How a vote weighs, which votes count, and when a label is withheld."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self, TypeAlias, get_args

import numpy as np

from testnuc._base.arrays import Float64s
from testnuc._base.checks import checked_choice, checked_number
from testnuc._base.display import Brief
from testnuc.errors import InvalidInputError

Weight: TypeAlias = Literal["uniform", "similarity", "similarity*confidence", "auto"]

#: Keeps sums within int64 for the maximum number of neighbors.
_MAX_OWN_WEIGHT = 1000


@dataclass(frozen=True, slots=True, repr=False)
class VotePolicy(Brief):
    """How a vote weighs, which votes count, and when a label is withheld.

    Parameters
    ----------
    weight : {"similarity", "uniform", "similarity*confidence", "auto"}
        The weight of a neighbor's vote. "auto": the client decides from the predictions whether
        and how neighbors vote, including the next three parameters.
    min_confidence : float, optional
        Votes with a lower confidence, or without one, do not count, including the text's own.
    min_similarity : float, optional
        Neighbors less similar do not count.
    own_weight : float
        Multiplies the text's own vote; 0 leaves the vote to the neighbors.
    prior : "balanced" or mapping of str to float, optional
        The share that each label should have in a batch: votes for labels that the LLM over-uses
        are reduced. Set it only where the shares are known. No effect on `TestNUC.classify`.
    prior_power : float
        1 = full correction, 0.5 = half of it.
    min_trust : float, optional
        A label with less trust is withheld: ``label`` is None, and ``reason`` says why.
    threshold : float, optional
        With ``multilabel=True``: a label is given if its share of the vote is larger, or equal and
        the LLM gave it to the text itself. Default: 0.5; under "auto", labels are the LLM's own.

    Notes
    -----
    "auto", `prior` and `min_trust` need the predictions of a client (``TestNUC(policy=..)``);
    `testnuc.voting.vote` and its variants refuse them.

    Examples
    --------
    ::

        TestNUC(labels, policy=VotePolicy("similarity", min_confidence=0.7))
        TestNUC(labels, policy=VotePolicy.auto(min_trust=0.8))
    """

    weight: Weight = "similarity"
    min_confidence: float | None = None
    min_similarity: float | None = None
    own_weight: float = 1.0
    #: The policy as the kernels read it, float64[6].
    fields: Float64s = field(init=False, repr=False, compare=False)
    # mappings are not hashable
    prior: Literal["balanced"] | Mapping[str, float] | None = field(default=None, hash=False)
    prior_power: float = 1.0
    min_trust: float | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        checked_choice("weight", self.weight, get_args(Weight))
        checked_number("min_confidence", self.min_confidence, 0, 1, none=True)
        checked_number("min_similarity", self.min_similarity, -1, 1, none=True)
        checked_number("own_weight", self.own_weight, 0, _MAX_OWN_WEIGHT)
        checked_number("prior_power", self.prior_power, 0, 2)
        checked_number("min_trust", self.min_trust, 0, 1, none=True)
        checked_number("threshold", self.threshold, 0, 1, none=True)
        fixed = (self.min_confidence, self.min_similarity, self.own_weight) != (None, None, 1.0)
        if self.weight == "auto" and fixed:
            raise InvalidInputError(
                "policy 'auto' decides min_confidence, min_similarity and own_weight itself; leave "
                "them out, or choose another weight"
            )
        uniform = self.weight == "uniform"
        # a uniform weight without a threshold ignores the similarity; other weights are 0 below 0
        lowest = -2.0 if uniform else 0.0
        least = lowest if self.min_similarity is None else max(self.min_similarity, lowest)
        fields = np.array(
            [
                uniform,
                self.weight == "similarity*confidence",
                self.uses_confidence,
                # as float32 like the confidences, so that 0.7 is not below 0.7
                np.float32(-1.0 if self.min_confidence is None else self.min_confidence),
                np.float32(least),
                self.own_weight,
            ],
            dtype=np.float64,
        )
        fields.flags.writeable = False
        object.__setattr__(self, "fields", fields)

    @classmethod
    def auto(
        cls,
        *,
        prior: Literal["balanced"] | Mapping[str, float] | None = None,
        prior_power: float = 1.0,
        min_trust: float | None = None,
    ) -> Self:
        """Let the client decide from the predictions whether and how neighbors vote."""
        return cls("auto", prior=prior, prior_power=prior_power, min_trust=min_trust)

    @classmethod
    def majority(cls) -> Self:
        """Give every vote the same weight."""
        return cls("uniform")

    @classmethod
    def weighted(cls) -> Self:
        """Weigh a vote by its similarity."""
        return cls("similarity")

    @classmethod
    def confidence_weighted(cls) -> Self:
        """Weigh a vote by its similarity times its confidence."""
        return cls("similarity*confidence")

    @classmethod
    def filtered(cls, min_confidence: float = 0.7) -> Self:
        """Weigh by similarity, and count only votes of at least this confidence."""
        return cls("similarity", min_confidence=min_confidence)

    @classmethod
    def of(cls, policy: "str | VotePolicy") -> "VotePolicy":
        """Return the policy itself, or the preset of that name.

        Raises
        ------
        InvalidInputError
            There is no such preset, or the policy needs the predictions of a client.
        """
        if isinstance(policy, VotePolicy):
            if policy.weight == "auto" or policy.prior is not None or policy.min_trust is not None:
                raise InvalidInputError(
                    f"policy is {policy!r}; 'auto', prior and min_trust need the predictions of a "
                    "client: use TestNUC(policy=..), or leave them out"
                )
            return policy
        preset = PRESETS.get(policy.replace("-", "_")) if isinstance(policy, str) else None
        if preset is None:
            choices = ", ".join(repr(name) for name in PRESETS)
            raise InvalidInputError(
                f"policy is {policy!r}; choose one of {choices}, or give a VotePolicy; "
                "TestNUC(policy=..) also takes 'auto'"
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
