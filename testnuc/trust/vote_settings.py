"""How the votes of one run are counted: what the user said, or what was decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from testnuc.trust.prior import target_shares
from testnuc.voting import VotePolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["VoteSettings"]


@dataclass(frozen=True, slots=True, eq=False)
class VoteSettings:
    """How votes are counted, and what is made of their trust.

    Parameters
    ----------
    policy : VotePolicy or None
        None: not decided yet.
    k : int
        Neighbors that vote.
    auto : bool
        Whether policy and k are decided from the predictions.
    fixed_k : bool
        Whether k is the user's, so that only the own weight is decided.
    prior : float64[C], optional
        The share that each label should have.
    prior_power : float
    min_trust : float, optional
        Below it a text gets no label.
    calibration : callable, optional
        Turns a share into the chance that the label is right.
    """

    policy: VotePolicy | None
    k: int
    auto: bool = False
    fixed_k: bool = False
    prior: NDArray[np.float64] | None = None
    prior_power: float = 1.0
    min_trust: float | None = None
    calibration: Callable[[float], float] | None = None

    @classmethod
    def of(
        cls,
        policy: str | VotePolicy,
        k: int | None,
        prior: str | Mapping[str, float] | None,
        prior_power: float,
        min_trust: float | None,
        names: Sequence[str],
        default_k: int,
        most: int,
    ) -> VoteSettings:
        """Return what the arguments of a client mean."""
        auto = isinstance(policy, str) and policy == "auto"
        if auto and k == 0:
            # nothing is left to decide
            auto, policy = False, "weighted"
        return cls(
            policy=None if auto else VotePolicy.of(policy),
            k=(most if auto else default_k) if k is None else k,
            auto=auto,
            fixed_k=k is not None,
            prior=target_shares(prior, names),
            prior_power=prior_power,
            min_trust=min_trust,
        )
