"""The auto policy: decides from unlabeled predictions whether and how to vote.

A vote corrects random errors of the LLM, but is harmful where neighbors have other labels. Both
make a text disagree with its neighbors. Near copies separate the two cases: they have the same
label, so their disagreement is random error. Three tests follow, each extrapolated to similarity 1
with an interval:

1. *Do near copies disagree?* The highest upper bound of the agreement kappa(1) over several
   bandwidths must be below 1. This fails for a strong LLM and for a pool without near copies.
2. *Are labels correct more often than not?* Two predictions that are each correct with probability
   q (beyond chance) agree with probability q^2, so the lower bound must exceed 1/4.
3. *Does a held-out nearest neighbor agree with the vote, or with the text's own label?* Candidates
   (k, own weight) must not change more near copies than disagree with each other. The candidate
   with the highest lower bound of this balance is selected, if it is above 0.

Labels whose texts lose by the vote, by the same held-out neighbors and with a correction for
multiple tests, are excluded from it: texts with such a label keep it.

Near copies can be unlike the other texts, which no label shows. So all of this is done only with
texts whose nearest neighbors are as similar as those of near copies, or less in small steps
(`_reach`); the others keep their labels.

`VoteSettings` are set by the user, decided so, or learned.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Self

import numpy as np
import orjson

from testnuc._base.arrays import Bools, Float32s, Float64s, Int32s, Int64s
from testnuc._base.checks import checked_whole
from testnuc._base.display import Brief
from testnuc.errors import InvalidInputError
from testnuc.labels import LabelSet
from testnuc.trust.argmax import Argmax
from testnuc.trust.diagnosis import Candidate, Decision, Diagnosis
from testnuc.trust.learned import Learned
from testnuc.trust.shares import Share
from testnuc.voting import THRESHOLD, VotePolicy, VoteResult, vote
from testnuc.voting.inputs import Ballots
from testnuc.voting.votes import curves

#: With fewer predictions, "auto" does not vote: the intervals would be wider than any effect.
MIN_PREDICTIONS = 200
#: Largest number of neighbors; more rarely helped.
MAX_NEIGHBORS = 30
#: Nearest neighbors per text that are compared with it and used as judges of a vote.
_JUDGES = 10
#: Texts sampled for the diagnosis, which bounds its runtime.
_MAX_ROWS = 10_000
_KS = (10, 20, 30)
#: Neighbors in the vote where nothing else is said, which a user without a diagnosis would take.
_DEFAULT_K = 10
_OWN_WEIGHTS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
#: Bandwidths: shares of the most similar pairs to fit a line to. Agreement need not be linear in
#: similarity, so the most pessimistic bandwidth is used.
_BANDWIDTHS = (0.05, 0.1, 0.2, 0.5)
#: Share of the most similar neighbors, which judge a vote.
_NEAR = 0.2
#: q^2 for labels that are correct half the time.
_EVEN = 0.25
#: Least number of changed labels for judging a candidate or a label.
_MIN_CHANGED = 30
#: Evidence reaches texts at twice the distance if these are at least and at most so many times the
#: texts before, and agree with their neighbors no more often, up to so many standard errors.
_FEWEST_FURTHER, _MOST_FURTHER, _RISE = 0.25, 2.0, 3.0
#: Smallest distance of neighbors that is doubled.
_LEAST_DISTANCE = 0.01
#: Probability of excluding any label from the vote by mistake.
_FALSE_ALARM = 0.05
_BINS = 10
#: A label with a larger share of the predictions makes the set unbalanced.
_DOMINANT = 0.8


def diagnose(
    neighbor_ids: Int64s,
    similarities: Float32s,
    pool_labels: Int32s,
    *,
    n_classes: int,
    row_ids: Int64s | None = None,
    k: int | None = None,
) -> Diagnosis:
    """Diagnose unlabeled predictions and select a vote.

    `neighbor_ids`, int64[B, K], are positions of each text's neighbors in `pool_labels`, most
    similar first, padded with -1; `similarities` is float32[B, K]; `pool_labels`, int32[N], are
    predicted labels, -1 = no prediction. `row_ids`, int64[B], are positions of the texts
    themselves, by default 0, 1, .. With a fixed `k`, only the own weight is selected.
    """
    if row_ids is None:
        row_ids = np.arange(len(neighbor_ids), dtype=np.int64)
    known = np.flatnonzero(pool_labels[row_ids] >= 0)
    if len(known) > _MAX_ROWS:
        known = known[np.linspace(0, len(known) - 1, _MAX_ROWS).astype(np.int64)]
    row_ids, ids, sims = row_ids[known], neighbor_ids[known], similarities[known]
    own, count = pool_labels[row_ids], len(known)
    # column 0 is the text itself
    others = np.where(ids >= 0, pool_labels[ids], -1)
    labels = np.concatenate([own[:, None], others], axis=1).astype(np.int32)
    cosines = np.concatenate([np.ones((count, 1), np.float32), sims], axis=1)
    cosines = np.where(labels >= 0, cosines, np.float32(0))
    shares = np.bincount(own, minlength=n_classes) / max(count, 1)
    by_chance = float((shares**2).sum()) if count else 1.0
    compared = (others >= 0).sum(axis=0)
    agree = (others == own[:, None]).sum(axis=0) / np.maximum(compared, 1)
    by_rank = np.where(compared > 0, agree, by_chance)
    pairs = _Pairs.of(labels, ids, row_ids, sims, by_chance)
    reach = _reach(labels, sims)
    near = cosines[:, 1:].max(axis=1, initial=-1) >= reach
    near_pairs = _Pairs.of(labels[near], ids[near], row_ids[near], sims[near], by_chance)
    copies, copies_high, copies_low = near_pairs.near_copies()
    candidates: tuple[Candidate, ...] = ()
    decision, warnings = Decision(None, 0, ""), []
    if count < MIN_PREDICTIONS:
        reason = f"{count:,} predictions are too few to judge neighbors by"
        warnings.append(f"the pool is too small: {MIN_PREDICTIONS} predictions are needed")
    elif copies_high >= 1:
        reason = "nearly identical texts hardly differ in labels, so that neighbors show no errors"
    elif copies_low <= _EVEN:
        reason = "nearly identical texts have other labels so often that similarity says little"
    else:
        votes = _judged_votes(labels[near], cosines[near], n_classes, k)
        candidates = _candidates(votes, count)
        decision = _choose(candidates, (1 - copies_high) * (1 - by_chance))
        reason = decision.reason
        if decision.policy is not None:
            kept = _excluded_labels(votes, n_classes, decision.k, decision.policy)
            decision = replace(decision, kept=kept, min_nearest=reach)
    if count and shares.max() > _DOMINANT:
        warnings.append(
            f"labels are unbalanced: {shares.max():.0%} of the predictions have one label"
        )
    plain = slice(_DEFAULT_K + 1)
    winners = vote(labels[:, plain], cosines[:, plain], n_classes=n_classes).label
    return Diagnosis(
        predictions=count,
        kappa=tuple(_kappa(one, by_chance) for one in by_rank.tolist()),
        agreement=pairs.by_similarity(),
        near_copies=copies,
        near_copies_bounds=(copies_low, copies_high),
        candidates=candidates,
        decision=replace(decision, reason=reason),
        warnings=tuple(warnings),
        differing=int((winners != own).sum()),
    )


def _reach(labels: Int32s, sims: Float32s) -> float:
    """Return how similar the nearest neighbor of a text must be for evidence to reach the text.

    From the 200 texts with the most similar neighbors on, the distance is doubled as long as the
    number of texts grows neither hardly (a gap) nor by far (other texts), and they do not agree
    with their nearest neighbors more often, as they would if the LLM erred less on them.
    """
    if not sims.shape[1]:
        return -1.0
    known = labels[:, 1] >= 0
    distances = 1 - sims[known, 0].astype(np.float64)
    order = np.argsort(distances, kind="stable")
    distances, agree = distances[order], (labels[known, 0] == labels[known, 1])[order]
    if len(distances) < MIN_PREDICTIONS:
        return -1.0
    distance = max(float(distances[MIN_PREDICTIONS - 1]), _LEAST_DISTANCE)
    inside = int(np.searchsorted(distances, distance, side="right"))
    while inside < len(distances):
        reached = int(np.searchsorted(distances, 2 * distance, side="right"))
        further, beyond = reached - inside, len(distances) - inside
        if not _FEWEST_FURTHER * min(inside, beyond) <= further <= _MOST_FURTHER * inside:
            break
        rate = agree[:reached].mean()
        error = np.sqrt(rate * (1 - rate) * (1 / inside + 1 / further))
        if agree[inside:reached].mean() - agree[:inside].mean() > _RISE * error:
            break
        distance, inside = 2 * distance, reached
    return 1 - distance


def _kappa(agreement: float, by_chance: float) -> float:
    """Return chance-corrected agreement: 0 = by chance, 1 = always."""
    return (agreement - by_chance) / (1 - by_chance) if by_chance < 1 else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Distinct pairs of a text and one of its `_JUDGES` nearest neighbors, both with a label."""

    #: int64[P], the row of the text.
    row: Int64s
    #: float64[P], the cosine of the two, and 1 where their labels are equal.
    similarity: Float64s
    agree: Float64s
    by_chance: float

    @classmethod
    def of(
        cls, labels: Int32s, ids: Int64s, row_ids: Int64s, sims: Float32s, by_chance: float
    ) -> Self:
        row, rank = np.nonzero(labels[:, 1 : _JUDGES + 1] >= 0)
        # mutual neighbors count as one observation
        key = np.sort(np.stack([row_ids[row], ids[row, rank]], axis=1), axis=1)
        once = np.sort(np.unique(key, axis=0, return_index=True)[1])
        row, rank = row[once], rank[once]
        agree = (labels[row, 0] == labels[row, rank + 1]).astype(np.float64)
        return cls(row, sims[row, rank].astype(np.float64), agree, by_chance)

    def near_copies(self) -> tuple[float, float, float]:
        """Return kappa at similarity 1, its highest upper bound, and its lower bound."""
        if len(self.row) < MIN_PREDICTIONS or self.by_chance >= 1:
            return 0.0, np.inf, -np.inf
        kappa = (self.agree - self.by_chance) / (1 - self.by_chance)
        found = {}
        for share in _BANDWIDTHS:
            near = self.similarity >= np.quantile(self.similarity, 1 - share)
            found[share] = at_similarity_one(self.similarity[near], kappa[near], self.row[near])
        middle = found[_NEAR]
        return middle.value, max(e.high for e in found.values()), middle.low

    def by_similarity(self) -> tuple[tuple[float, float, int], ...]:
        """Return (mean similarity, kappa, pairs) of bins with equally many pairs."""
        order = np.argsort(self.similarity, kind="stable")
        parts = np.array_split(order, min(_BINS, len(order))) if len(order) else ()
        bins = ((self.similarity[part], self.agree[part]) for part in parts)
        return tuple(
            (float(near.mean()), _kappa(float(agree.mean()), self.by_chance), len(near))
            for near, agree in bins
        )


def at_similarity_one(similarity: Float64s, value: Float64s, row: Int64s) -> Share:
    """Return the mean of `value` extrapolated to similarity 1, and two standard errors around it.

    Fits a line by least squares, with cluster-robust standard errors: values of one text, `row`,
    are dependent. The error grows with the distance of the similarities from 1, so a pool without
    near copies has wide intervals.
    """
    if len(value) < 3:
        return Share(0.0, -np.inf, np.inf)
    x = np.stack([np.ones_like(similarity), similarity - 1], axis=1)
    inverse = np.linalg.inv(x.T @ x + 1e-9 * np.eye(2))
    line = inverse @ (x.T @ value)
    _, group = np.unique(row, return_inverse=True)
    scores = np.zeros((int(group.max()) + 1, 2))
    np.add.at(scores, group, x * (value - x @ line)[:, None])
    variance = inverse @ (scores.T @ scores) @ inverse
    middle, error = float(line[0]), float(np.sqrt(max(variance[0, 0], 0.0)))
    return Share(middle, middle - 2 * error, middle + 2 * error)


@dataclass(frozen=True, slots=True, eq=False)
class _Votes:
    """The votes of all candidates, with and without each judge (a held-out near neighbor)."""

    ks: tuple[int, ...]
    #: int32[B], the texts' own labels.
    own: Int32s
    #: int32[own weights, ks, B], the winners with all neighbors.
    full: Int32s
    #: int64[J], the text of each judge.
    row: Int64s
    #: float64[J], of each judge.
    similarity: Float64s
    #: bool[own weights, ks, J], where the vote without the judge changes the text's own label.
    changed: Bools
    #: float64[own weights, ks, J], what each judge agrees with: 1 vote, -1 own, 0 neither or both.
    sides: Float64s


def _judged_votes(labels: Int32s, cosines: Float32s, n_classes: int, k: int | None) -> _Votes:
    """Vote with every own weight and k, holding out each near neighbor as a judge."""
    width = labels.shape[1] - 1
    ks = tuple(n for n in _KS if n <= width) or (width,)
    if k is not None:
        ks = (min(k, width),)
    policies = [VotePolicy(own_weight=weight) for weight in _OWN_WEIGHTS]
    full = curves(Ballots.of_rows(labels, cosines, None, n_classes), ks, policies)
    judged, near = labels[:, 1 : _JUDGES + 1] >= 0, cosines[:, 1 : _JUDGES + 1]
    row, rank = np.nonzero(judged & (near >= np.quantile(near[judged], 1 - _NEAR)))
    without = labels[row]
    without[np.arange(len(row)), rank + 1] = -1
    winners = curves(Ballots.of_rows(without, cosines[row], None, n_classes), ks, policies)
    own, judge = labels[row, 0], labels[row, rank + 1]
    sides = (winners == judge).astype(np.float64) - (judge == own)
    similarity = near[row, rank].astype(np.float64)
    return _Votes(ks, labels[:, 0], full, row, similarity, winners != own, sides)


def _candidates(votes: _Votes, count: int) -> tuple[Candidate, ...]:
    """Evaluate each candidate vote, which changes some of `count` labels, by near neighbors."""
    lines = []
    for p, weight in enumerate(_OWN_WEIGHTS):
        for q, n in enumerate(votes.ks):
            changed, gain = votes.changed[p, q].astype(np.float64), Share(0.0, 0.0, 0.0)
            if changed.sum() >= _MIN_CHANGED:
                gain = at_similarity_one(votes.similarity, votes.sides[p, q], votes.row)
            overruled = at_similarity_one(votes.similarity, changed, votes.row).value
            part = float((votes.full[p, q] != votes.own).sum() / count)
            lines.append(Candidate(n, weight, part, gain, overruled))
    return tuple(lines)


def _excluded_labels(votes: _Votes, n_classes: int, k: int, policy: VotePolicy) -> tuple[int, ...]:
    """Return the labels whose texts significantly lose by the vote."""
    p, q = _OWN_WEIGHTS.index(policy.own_weight), votes.ks.index(k)
    own, row = votes.own, votes.row
    changed = own[row][votes.changed[p, q]]
    tested = np.flatnonzero(np.bincount(changed, minlength=n_classes) >= _MIN_CHANGED)
    # Bonferroni correction for the number of tested labels
    errors = NormalDist().inv_cdf(1 - _FALSE_ALARM / 2 / max(len(tested), 1))
    # judges of the same text are dependent, so sum them per text
    balance = np.bincount(row, votes.sides[p, q], minlength=len(own))
    total = np.bincount(own, balance, minlength=n_classes)
    spread = np.sqrt(np.bincount(own, balance**2, minlength=n_classes))
    return tuple(c for c in tested.tolist() if total[c] + errors * spread[c] < 0)


def _choose(candidates: tuple[Candidate, ...], allowed: float) -> Decision:
    fit = [c for c in candidates if c.gain.low > 0 and c.overruled <= allowed]
    if not fit:
        return Decision(None, 0, "no vote is shown to correct more labels than it spoils")
    best = max(fit, key=lambda c: (c.gain.low, c.own_weight, -c.k))
    return Decision(
        VotePolicy(own_weight=best.own_weight),
        best.k,
        f"this changes {best.changed:.1%} of the labels, with an expected gain of "
        f"{best.gain.signed()} points among texts that have near copies, by held-out neighbors; "
        "of other texts, and so of all, the gain is not known",
    )


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
    def of(cls, given: VotePolicy, k: int | None, labels: LabelSet) -> Self:
        """Return the settings for the arguments of a client.

        The diagnosis behind "auto" compares single labels: with several for a text, "auto" keeps
        those of the LLM, unless a threshold asks for a vote.
        """
        if k is not None:
            checked_whole("k", k, least=0, most=_MOST_NEIGHBORS)
        several, prior = labels.multilabel, target_shares(given.prior, labels.names)
        careful = several and given.weight == "auto" and given.threshold is None
        if given.weight == "auto" and (several or k == 0):
            # with k=0 there is nothing to decide
            given = replace(given, weight="similarity")
        auto = given.weight == "auto"
        fixed = None if auto else replace(given, prior=None, prior_power=1.0, min_trust=None)
        threshold = THRESHOLD if given.threshold is None else given.threshold
        return cls(
            policy=fixed,
            threshold=threshold if several else None,
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

    def with_learned(self, learned: Learned) -> Self:
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
            raise InvalidInputError(f"prior is {prior!r}; give 'balanced', label -> share, or None")
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

    With W[i, c] the total vote weight of label c for text i, and t_c the target share of label c,
    the corrected weight is ``W[i, c] * (t_c / sum_j W[j, c]) ** power``. `mass` is that sum; power
    0 means no correction, 1 a full one. Labels without votes are unchanged.
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
    rows, before = np.arange(len(votes)), np.maximum(result.label, 0)
    second, top = np.partition(votes, -2, axis=1)[:, -2:].T
    # a tie goes to the uncorrected winner
    best = np.where(votes[rows, before] >= top, before, votes.argmax(axis=1))
    total = votes.sum(axis=1)
    voted = total > 0
    whole = np.where(voted, total, 1)
    return VoteResult(
        label=np.where(voted, best, result.label).astype(np.int32),
        share=np.where(voted, top / whole, 0).astype(np.float32),
        margin=np.where(voted, (top - second) / whole, 0).astype(np.float32),
        weight=total.astype(np.float32),
        voters=result.voters,
        votes=votes,
    )
