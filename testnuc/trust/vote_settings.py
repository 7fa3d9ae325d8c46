"""The vote settings of a client: set by the user, decided by the auto policy, or learned.

Prior correction reweights votes toward target label shares. With W[i, c] the total vote
weight of label c for text i, and t_c the target share of label c::

    W'[i, c] = W[i, c] * (t_c / sum_j W[j, c]) ** power

Labels without votes are unchanged. power 0 means no correction, 1 a full correction, 0.5 a partial
one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import orjson

from testnuc._base.arrays import Float64s
from testnuc._base.checks import checked_whole
from testnuc._base.display import Brief
from testnuc.errors import InvalidInputError
from testnuc.trust.argmax import Argmax
from testnuc.trust.auto_policy import MAX_NEIGHBORS
from testnuc.trust.diagnosis import Decision
from testnuc.trust.learned import Learned
from testnuc.voting import THRESHOLD, VotePolicy, VoteResult

_DEFAULT_K = 10


def given_policy(policy: str | VotePolicy) -> VotePolicy:
    """Return the policy that an argument of a client names, "auto" included."""
    if isinstance(policy, str) and policy == "auto":
        return VotePolicy.auto()
    return policy if isinstance(policy, VotePolicy) else VotePolicy.of(policy)


#: A file may name it; each text has an array of so many neighbors.
_MOST_NEIGHBORS = 10_000


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class VoteSettings(Brief):
    """Vote policy, prior correction, and what was learned.

    Immutable. A run reads its settings once, and new settings replace the old ones as a whole, so a
    concurrent run uses either the old or the new ones.
    """

    #: None: decided from the predictions, or by `decision`.
    policy: VotePolicy | None
    #: Share of the vote above which a text has a label; None: it has the one of the largest share.
    threshold: float | None = field(default=None, kw_only=True)
    #: Neighbors that vote, unless `decision` uses fewer.
    k: int
    #: Whether policy and k are decided from the predictions.
    auto: bool = False
    #: Whether the user set k, so that only the own weight is decided.
    fixed_k: bool = False
    #: float64[C], target share of each label.
    prior: Float64s | None = None
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
        threshold = THRESHOLD if given.threshold is None else given.threshold
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
            threshold=threshold if multilabel else None,
            k=(MAX_NEIGHBORS if auto else _DEFAULT_K) if k is None else k,
            auto=auto,
            fixed_k=k is not None,
            prior=prior,
            prior_power=given.prior_power,
            min_trust=given.min_trust,
            llm_by_default=careful,
        )

    @property
    def basis(self) -> str:
        """What gives labels without judgments, in one string, to be compared."""
        fixed = None if self.policy is None else [*self.policy.fields]
        prior = None if self.prior is None else [*self.prior, self.prior_power]
        given = [fixed, prior, self.k, self.fixed_k, self.llm_by_default, self.threshold]
        return orjson.dumps(given, option=orjson.OPT_SERIALIZE_NUMPY).decode()

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
        learned = learned.under(self.basis)
        rule = learned.rule
        if not isinstance(rule, Argmax) or rule.decides != "vote":
            return replace(self, learned=learned)
        decision = Decision(VotePolicy(own_weight=rule.vote.own_weight), rule.vote.k, learned.name)
        return replace(
            self, policy=None, auto=True, k=MAX_NEIGHBORS, decision=decision, learned=learned
        )


def target_shares(prior: str | Mapping[str, float] | None, names: Sequence[str]) -> Float64s | None:
    """Return the target share of each label, float64[C], or None."""
    if prior is None:
        return None
    if isinstance(prior, str):
        if prior != "balanced":
            raise InvalidInputError(
                f"prior is {prior!r}; give 'balanced', a mapping of label to share, or None"
            )
        return np.full(len(names), 1 / len(names))
    if not isinstance(prior, Mapping) or set(prior) != set(names):
        raise InvalidInputError("prior must map every label, and nothing else, to its share")
    shares = np.array([float(prior[name]) for name in names])
    if not all(math.isfinite(s) and s > 0 for s in shares):
        raise InvalidInputError("prior has a share that is not positive; give shares above 0")
    total: Float64s = shares / shares.sum()
    return total


def factors(mass: Float64s, target: Float64s, power: float) -> Float64s:
    """Return the correction factor of each label, float64[C].

    `mass` is the total vote weight per label, and `power`, 0..1, the strength of the correction.
    """
    shares = mass / mass.sum() if mass.sum() > 0 else mass
    ratio = np.divide(target, shares, out=np.ones_like(target), where=shares > 0)
    return ratio**power


def correct(result: VoteResult, scale: Float64s) -> VoteResult:
    """Return the result after multiplying its votes for each label by `scale`, float64[C].

    The uncorrected result breaks ties, and applies to rows without votes.
    """
    assert result.votes is not None
    votes = result.votes * scale
    corrected = votes.copy()
    rows = np.arange(len(corrected))
    before = np.maximum(result.label, 0)
    best = corrected.argmax(axis=1)
    # a tie goes to the uncorrected winner
    best = np.where(corrected[rows, before] >= corrected[rows, best], before, best)
    total = corrected.sum(axis=1)
    voted = total > 0
    whole = np.where(voted, total, 1)
    top = corrected[rows, best]
    corrected[rows, best] = 0
    second = corrected.max(axis=1)
    return VoteResult(
        label=np.where(voted, best, result.label).astype(np.int32),
        share=np.where(voted, top / whole, 0).astype(np.float32),
        margin=np.where(voted, (top - second) / whole, 0).astype(np.float32),
        weight=total.astype(np.float32),
        voters=result.voters,
        votes=votes,
    )
