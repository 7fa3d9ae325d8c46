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
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from testnuc.trust.diagnosis import Candidate, Decision, Diagnosis
from testnuc.trust.near_copies import (
    JUDGES,
    Interval,
    at_similarity_one,
    chance,
    corrected,
    kappa_by_rank,
    pairs_of,
)
from testnuc.voting import VotePolicy, vote_curve, vote_curves

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from testnuc.trust.near_copies import Pairs

#: With fewer predictions, "auto" does not vote: the intervals would be wider than any effect.
MIN_PREDICTIONS = 200
#: Largest number of neighbors; more rarely helped.
MAX_NEIGHBORS = 30
#: Texts sampled for the diagnosis, which bounds its runtime.
_MAX_ROWS = 10_000
_KS = (10, 20, 30)
#: Neighbors in the vote that a user without a diagnosis would take.
_PLAIN_K = 10
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
#: Probability of excluding any label from the vote by mistake.
_FALSE_ALARM = 0.05
_BINS = 10
#: A label with a larger share of the predictions makes the set unbalanced.
_DOMINANT = 0.8


def diagnose(
    neighbor_ids: NDArray[np.int64],
    similarities: NDArray[np.float32],
    pool_labels: NDArray[np.int32],
    *,
    n_classes: int,
    row_ids: NDArray[np.int64] | None = None,
    k: int | None = None,
) -> Diagnosis:
    """Diagnose unlabeled predictions and select a vote.

    Parameters
    ----------
    neighbor_ids : int64[B, K]
        Positions of each text's neighbors in `pool_labels`, most similar first, padded with -1.
    similarities : float32[B, K]
    pool_labels : int32[N]
        Predicted labels; -1 = no prediction.
    n_classes : int
    row_ids : int64[B], optional
        Positions of the texts themselves; default 0, 1, ..
    k : int, optional
        A fixed number of neighbors; only the own weight is selected then.
    """
    if row_ids is None:
        row_ids = np.arange(len(neighbor_ids), dtype=np.int64)
    known = np.flatnonzero(pool_labels[row_ids] >= 0)
    if len(known) > _MAX_ROWS:
        known = known[np.linspace(0, len(known) - 1, _MAX_ROWS).astype(np.int64)]
    row_ids, ids, sims = row_ids[known], neighbor_ids[known], similarities[known]
    own = pool_labels[row_ids]
    others = np.where(ids >= 0, pool_labels[ids], -1).astype(np.int32)
    by_chance = chance(own, n_classes)
    kappas = kappa_by_rank(own, others, by_chance)
    pairs = pairs_of(own, others, ids, row_ids, sims)
    warnings = _warnings(own, n_classes)
    copies, copies_high, copies_low = _near_copies(pairs, by_chance)
    candidates: tuple[Candidate, ...] = ()
    reason = ""
    if len(own) < MIN_PREDICTIONS:
        reason = (
            f"only {len(own)} predictions, {MIN_PREDICTIONS} are needed: the LLM's own labels are "
            "kept"
        )
        why = f"{len(own):,} predictions are too few to judge neighbors by"
    elif copies_high >= 1:
        reason = (
            "near copies do not clearly disagree (agreement extrapolated to similarity 1 is up to "
            f"{min(copies_high, 1):.2f}): neighbors that disagree may have different labels, so "
            "the LLM's own labels are kept"
        )
        why = "near copies do not show that neighbors correct errors"
    elif copies_low <= _EVEN:
        reason = (
            f"near copies agree little beyond chance (at least {copies_low:.2f}): similarity or "
            "predictions are unreliable, so the LLM's own labels are kept"
        )
        why = "near copies agree little beyond chance"
    decision = Decision(None, 0, reason)
    if not reason:
        allowed = (1 - copies_high) * (1 - by_chance)
        votes = _judged_votes(own, others, sims, n_classes, k)
        candidates = _candidates(votes)
        decision = _choose(candidates, allowed)
        why = "near copies support no vote"
        if decision.policy is not None:
            why = "near copies support this vote"
            kept = _excluded_labels(votes, n_classes, decision.k, decision.policy)
            decision = replace(decision, kept=kept)
    return Diagnosis(
        predictions=len(own),
        kappa=tuple(kappas),
        agreement=_by_similarity(pairs, by_chance),
        near_copies=copies,
        near_copies_bounds=(copies_low, copies_high),
        candidates=candidates,
        decision=decision,
        warnings=warnings,
        why=why,
        differing=_differing(own, others, sims, n_classes),
    )


def _differing(
    own: NDArray[np.int32],
    others: NDArray[np.int32],
    sims: NDArray[np.float32],
    n_classes: int,
) -> int:
    """Return how many labels a plain vote of `_PLAIN_K` neighbors would change."""
    if not len(own):
        return 0
    labels = np.concatenate([own[:, None], others[:, :_PLAIN_K]], axis=1)
    cosines = np.concatenate([np.ones((len(own), 1), np.float32), sims[:, :_PLAIN_K]], axis=1)
    cosines = np.where(labels >= 0, cosines, np.float32(0))
    winners = vote_curve(labels, cosines, n_classes=n_classes, ks=(labels.shape[1] - 1,))
    return int((winners[0] != own).sum())


def _warnings(own: NDArray[np.int32], n_classes: int) -> tuple[str, ...]:
    found = []
    if len(own) < MIN_PREDICTIONS:
        found.append(
            f"the pool is too small: it has {len(own)} predictions, {MIN_PREDICTIONS} are needed"
        )
    if len(own):
        largest = np.bincount(own, minlength=n_classes).max() / len(own)
        if largest > _DOMINANT:
            found.append(
                f"the labels are unbalanced: {largest:.0%} of the predictions have the same label"
            )
    return tuple(found)


def _near_copies(pairs: Pairs, by_chance: float) -> tuple[float, float, float]:
    """Return kappa at similarity 1, its highest upper bound, and its lower bound."""
    if len(pairs.row) < MIN_PREDICTIONS or by_chance >= 1:
        return 0.0, np.inf, -np.inf
    kappa = (pairs.agree - by_chance) / (1 - by_chance)
    estimates = []
    for share in _BANDWIDTHS:
        near = pairs.similarity >= np.quantile(pairs.similarity, 1 - share)
        estimates.append(at_similarity_one(pairs.similarity[near], kappa[near], pairs.row[near]))
    middle = estimates[_BANDWIDTHS.index(_NEAR)]
    return middle.value, max(e.high for e in estimates), middle.low


def _by_similarity(pairs: Pairs, by_chance: float) -> tuple[tuple[float, float, int], ...]:
    """Return (mean similarity, kappa, pairs) of bins with equally many pairs."""
    if not len(pairs.row):
        return ()
    order = np.argsort(pairs.similarity, kind="stable")
    bins = []
    for part in np.array_split(order, min(_BINS, len(order))):
        agreement = float(pairs.agree[part].mean())
        kappa = corrected(agreement, by_chance)
        bins.append((float(pairs.similarity[part].mean()), kappa, len(part)))
    return tuple(bins)


@dataclass(frozen=True, slots=True, eq=False)
class _Votes:
    """The votes of all candidates, with and without each judge (a held-out near neighbor)."""

    ks: tuple[int, ...]
    #: int32[B], the texts' own labels.
    own: NDArray[np.int32]
    #: int32[own weights, ks, B], the winners with all neighbors.
    full: NDArray[np.int32]
    #: int64[J], the text of each judge.
    row: NDArray[np.int64]
    #: float64[J] and int32[J], similarity and label of each judge.
    similarity: NDArray[np.float64]
    judge: NDArray[np.int32]
    #: int32[own weights, ks, J], the winners without the judge.
    winners: NDArray[np.int32]

    def changes(self, p: int, q: int) -> NDArray[np.bool_]:
        """Return where the p-th own weight and q-th k change the text's own label, bool[J]."""
        changed: NDArray[np.bool_] = self.winners[p, q] != self.own[self.row]
        return changed

    def sides(self, p: int, q: int) -> NDArray[np.float64]:
        """Return what each judge agrees with: 1 vote, -1 own label, 0 neither or both; [J]."""
        for_vote = (self.judge == self.winners[p, q]).astype(np.float64)
        balance: NDArray[np.float64] = for_vote - (self.judge == self.own[self.row])
        return balance


def _judged_votes(
    own: NDArray[np.int32],
    others: NDArray[np.int32],
    sims: NDArray[np.float32],
    n_classes: int,
    k: int | None,
) -> _Votes:
    """Vote with every own weight and k, holding out each near neighbor as a judge."""
    width = others.shape[1]
    ks = tuple(n for n in _KS if n <= width) or (width,)
    if k is not None:
        ks = (min(k, width),)
    policies = [VotePolicy(own_weight=weight) for weight in _OWN_WEIGHTS]
    # column 0 is the text itself
    labels = np.concatenate([own[:, None], others], axis=1)
    cosines = np.concatenate([np.ones((len(own), 1), np.float32), sims], axis=1)
    cosines = np.where(labels >= 0, cosines, np.float32(0))
    full = vote_curves(labels, cosines, n_classes=n_classes, ks=ks, policies=policies)

    judged = labels[:, 1 : JUDGES + 1] >= 0
    cut = np.quantile(sims[:, :JUDGES][judged], 1 - _NEAR)
    row, rank = np.nonzero(judged & (sims[:, :JUDGES] >= cut))
    without = labels[row]
    without[np.arange(len(row)), rank + 1] = -1
    winners = vote_curves(without, cosines[row], n_classes=n_classes, ks=ks, policies=policies)
    similarity = sims[row, rank].astype(np.float64)
    return _Votes(ks, own, full, row, similarity, labels[row, rank + 1], winners)


def _candidates(votes: _Votes) -> tuple[Candidate, ...]:
    """Evaluate each candidate vote by held-out near neighbors."""
    found = []
    for p, weight in enumerate(_OWN_WEIGHTS):
        for q, n in enumerate(votes.ks):
            changes = votes.changes(p, q)
            changed = changes.astype(np.float64)
            found.append(
                Candidate(
                    k=n,
                    own_weight=weight,
                    changed=float((votes.full[p, q] != votes.own).mean()),
                    gain=at_similarity_one(votes.similarity, votes.sides(p, q), votes.row)
                    if changes.sum() >= _MIN_CHANGED
                    else Interval(0.0, 0.0),
                    overruled=at_similarity_one(votes.similarity, changed, votes.row).value,
                )
            )
    return tuple(found)


def _excluded_labels(votes: _Votes, n_classes: int, k: int, policy: VotePolicy) -> tuple[int, ...]:
    """Return the labels whose texts significantly lose by the vote."""
    p, q = _OWN_WEIGHTS.index(policy.own_weight), votes.ks.index(k)
    own, row = votes.own, votes.row
    changed = own[row][votes.changes(p, q)]
    tested = np.flatnonzero(np.bincount(changed, minlength=n_classes) >= _MIN_CHANGED)
    if not len(tested):
        return ()
    # Bonferroni correction for the number of tested labels
    errors = NormalDist().inv_cdf(1 - _FALSE_ALARM / 2 / len(tested))
    # judges of the same text are dependent, so sum them per text
    balance = np.bincount(row, votes.sides(p, q), minlength=len(own))
    total = np.bincount(own, balance, minlength=n_classes)
    spread = np.sqrt(np.bincount(own, balance**2, minlength=n_classes))
    return tuple(c for c in tested.tolist() if total[c] + errors * spread[c] < 0)


def _choose(candidates: tuple[Candidate, ...], allowed: float) -> Decision:
    fit = [c for c in candidates if c.gain.low > 0 and c.overruled <= allowed]
    if not fit:
        return Decision(
            None,
            0,
            f"near copies disagree in at least {allowed:.1%} of the cases, but held-out neighbors "
            "support no vote that changes so few labels: the LLM's own labels are kept",
        )
    best = max(fit, key=lambda c: (c.gain.low, c.own_weight, -c.k))
    return Decision(
        VotePolicy(own_weight=best.own_weight),
        best.k,
        f"near copies disagree in at least {allowed:.1%} of the cases, and held-out neighbors "
        f"agree with the vote of {best.k} neighbors and own weight {best.own_weight:g}: it changes "
        f"{best.changed:.1%} of the labels, with an expected gain of "
        f"{100 * best.gain.value:.1f} points ({100 * best.gain.low:.1f} to "
        f"{100 * best.gain.high:.1f}) for texts with near copies",
    )
