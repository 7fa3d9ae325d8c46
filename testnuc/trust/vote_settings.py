"""The vote settings of a client: set by the user, decided by the auto policy, or learned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from testnuc._base.checks import checked_whole
from testnuc._base.display import brief
from testnuc.trust.argmax import Argmax
from testnuc.trust.auto_policy import MAX_NEIGHBORS
from testnuc.trust.diagnosis import Decision
from testnuc.trust.prior import target_shares
from testnuc.voting import VotePolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from testnuc.trust.learned import Learned

_DEFAULT_K = 10


def given_policy(policy: str | VotePolicy) -> VotePolicy:
    """Return the policy that an argument of a client names, "auto" included."""
    if isinstance(policy, str) and policy == "auto":
        return VotePolicy.auto()
    return policy if isinstance(policy, VotePolicy) else VotePolicy.of(policy)


#: A file may name it; each text has an array of so many neighbors.
_MOST_NEIGHBORS = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class VoteSettings:
    """Vote policy, prior correction, and what was learned.

    Immutable. A run reads its settings once, and new settings replace the old ones as a whole, so a
    concurrent run uses either the old or the new ones.
    """

    __repr__ = brief

    #: None: decided from the predictions, or by `decision`.
    policy: VotePolicy | None
    #: Neighbors that vote, unless `decision` uses fewer.
    k: int
    #: Whether policy and k are decided from the predictions.
    auto: bool = False
    #: Whether the user set k, so that only the own weight is decided.
    fixed_k: bool = False
    #: float64[C], target share of each label.
    prior: NDArray[np.float64] | None = None
    prior_power: float = 1.0
    #: Labels with less trust are withheld.
    min_trust: float | None = None
    #: Fixed by learning or unpickling; otherwise each run decides.
    decision: Decision | None = None
    #: What was learned from judged texts.
    learned: Learned | None = None
    #: Whether several labels stay as the LLM gives them until judgments choose another way.
    llm_by_default: bool = False

    @classmethod
    def of(
        cls,
        policy: str | VotePolicy,
        k: int | None,
        names: Sequence[str],
        *,
        multilabel: bool = False,
    ) -> VoteSettings:
        """Return the settings for the arguments of a client.

        The diagnosis behind "auto" compares single labels: with several for a text, "auto" keeps
        those of the LLM, unless a threshold asks for a vote.
        """
        if k is not None:
            checked_whole("k", k, least=0, most=_MOST_NEIGHBORS)
        given = given_policy(policy)
        careful = multilabel and given.weight == "auto" and given.threshold is None
        if multilabel and given.weight == "auto":
            given = replace(given, weight="similarity")
        prior = target_shares(given.prior, names)
        fixed: VotePolicy | None
        if given.weight != "auto":
            fixed = replace(given, prior=None, prior_power=1.0, min_trust=None)
        else:
            # with k=0 there is nothing to decide
            fixed = VotePolicy.weighted() if k == 0 else None
        auto = fixed is None
        return cls(
            policy=fixed,
            k=(MAX_NEIGHBORS if auto else _DEFAULT_K) if k is None else k,
            auto=auto,
            fixed_k=k is not None,
            prior=prior,
            prior_power=given.prior_power,
            min_trust=given.min_trust,
            llm_by_default=careful,
        )

    @property
    def keeps_llm_labels(self) -> bool:
        """Whether texts have the LLM's own labels, several each; neighbors only weigh them."""
        return self.llm_by_default and (self.learned is None or self.learned.decides == "settings")

    @property
    def needs_no_neighbors(self) -> bool:
        """Whether neighbors need no prediction: they do not decide, and trust is not calibrated."""
        return self.head_decides or (self.llm_by_default and self.learned is None)

    @property
    def voters(self) -> int:
        """Most neighbors whose predictions a label needs."""
        if self.needs_no_neighbors:
            return 0
        if self.policy is not None or self.decision is None:
            return self.k
        return 0 if self.decision.policy is None else self.decision.k

    @property
    def retrieved(self) -> int:
        """Number of neighbors to retrieve."""
        return self.k if self.argmax is None else max(self.k, MAX_NEIGHBORS)

    @property
    def argmax(self) -> Argmax | None:
        """The learned rule, where a text has one label."""
        rule = None if self.learned is None else self.learned.rule
        return rule if isinstance(rule, Argmax) else None

    @property
    def head_decides(self) -> bool:
        """Whether a learned model gives one label each, and neighbors need no prediction."""
        return self.argmax is not None and self.argmax.decides == "head"

    def with_learned(self, learned: Learned) -> VoteSettings:
        """Return these settings, as a user gave them, with what was learned."""
        rule = learned.rule
        if not isinstance(rule, Argmax) or rule.decides != "vote":
            return replace(self, learned=learned)
        decision = Decision(VotePolicy(own_weight=rule.vote.own_weight), rule.vote.k, learned.name)
        return replace(
            self, policy=None, auto=True, k=MAX_NEIGHBORS, decision=decision, learned=learned
        )
