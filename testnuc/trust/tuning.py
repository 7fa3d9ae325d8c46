"""Tune voting from labeled texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from testnuc.errors import InvalidInputError
from testnuc.trust.prior import factors
from testnuc.voting import VotePolicy, vote_curves_pool, vote_pool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["Tuning", "tune_votes"]

_KS = (5, 10, 20, 30)
_OWN_WEIGHTS = (1.0, 2.0, 4.0, 8.0)
_THETAS = (0.7, 0.9)
_POWERS = (0.5, 1.0)
_FOLDS = 5
#: Standard errors by which a choice must beat the own predictions.
_MIN_Z = 2.0
#: Standard errors of a 90% interval.
_SPREAD = 1.645
#: Least net number of corrected texts, to exclude chance.
_MIN_GAIN = 4


@dataclass(frozen=True, slots=True)
class Tuning:
    """The vote selected from labeled texts."""

    #: None: no vote; the LLM's own labels are kept.
    policy: VotePolicy | None
    k: int
    #: Strength of the prior correction towards balanced labels; 0: none.
    prior_power: float
    #: Accuracy of the own predictions on the labeled texts.
    alone: float
    #: Cross-validated gain in accuracy, and its 90% interval.
    gain: float
    interval: tuple[float, float]
    texts: int
    reason: str

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.reason}; alone {self.alone:.3f}, gain {100 * self.gain:+.1f} points "
            f"({100 * low:+.1f} to {100 * high:+.1f}) on {self.texts} labeled texts"
        )


@dataclass(frozen=True, slots=True)
class _Choice:
    policy: VotePolicy
    k: int
    power: float


def tune_votes(
    neighbor_ids: NDArray[np.int64],
    similarities: NDArray[np.float32],
    pool_labels: NDArray[np.int32],
    pool_confidences: NDArray[np.float32],
    rows: NDArray[np.int64],
    gold: NDArray[np.int32],
    *,
    n_classes: int,
    seed: int = 0,
) -> Tuning:
    """Select policy, k and prior correction from labeled texts.

    Without a significant gain over the LLM's own labels, no vote is selected.

    Parameters
    ----------
    neighbor_ids, similarities : int64[N, K], float32[N, K]
        The neighbors of all texts, as positions.
    pool_labels, pool_confidences : int32[N], float32[N]
        Predictions; -1 and NaN if missing.
    rows : int64[n]
        Positions of the labeled texts.
    gold : int32[n]
        Their labels.
    n_classes, seed : int

    Raises
    ------
    InvalidInputError
        There are fewer than 5 labeled texts, or `rows` and `gold` differ in length.
    """
    if len(rows) < _FOLDS or len(rows) != len(gold):
        raise InvalidInputError(
            f"got {len(rows)} labeled texts and {len(gold)} labels; give about 50 of each"
        )
    own = pool_labels[rows]
    base = own == gold
    choices: list[_Choice] = []
    gains = []
    for choice, winners in _winners(
        neighbor_ids, similarities, pool_labels, pool_confidences, rows, n_classes
    ):
        choices.append(choice)
        gains.append((winners == gold).astype(np.float64) - base)
    table = np.array(gains)
    chosen = _best(table)
    fold = np.random.default_rng(seed).permutation(len(rows)) % _FOLDS
    validated = np.zeros(len(rows))
    for part in range(_FOLDS):
        out = fold == part
        pick = _best(table[:, ~out])
        if pick is not None:
            validated[out] = table[pick, out]
    gain = float(validated.mean())
    error = _SPREAD * float(validated.std(ddof=1)) / np.sqrt(len(rows))
    interval = (gain - error, gain + error)
    alone = float(base.mean())
    if chosen is None or interval[0] < 0:
        reason = "no vote is significantly better than the LLM's own labels"
        return Tuning(None, 0, 0.0, alone, 0.0, (0.0, 0.0), len(rows), reason)
    best = choices[chosen]
    reason = f"vote of {best.k} with {best.policy}" + (
        f", labels balanced with power {best.power:g}" if best.power else ""
    )
    return Tuning(best.policy, best.k, best.power, alone, gain, interval, len(rows), reason)


def _best(table: NDArray[np.float64]) -> int | None:
    """Return the choice with the most significant gain, or None if none is significant."""
    right, wrong = (table > 0).sum(axis=1), (table < 0).sum(axis=1)
    gain = right - wrong
    # z statistic of the sign test, over the texts whose outcome the choice changes
    z = gain / np.sqrt(np.maximum(right + wrong, 1))
    z = np.where(gain >= _MIN_GAIN, z, -np.inf)
    best = int(z.argmax())
    return best if z[best] >= _MIN_Z else None


def _winners(
    ids: NDArray[np.int64],
    similarities: NDArray[np.float32],
    labels: NDArray[np.int32],
    confidences: NDArray[np.float32],
    rows: NDArray[np.int64],
    n_classes: int,
) -> Iterator[tuple[_Choice, NDArray[np.int32]]]:
    """Yield each choice and its winners for the labeled texts, int32[n]."""
    ks = tuple(k for k in _KS if k <= ids.shape[1]) or (ids.shape[1],)
    policies = [VotePolicy(own_weight=w) for w in _OWN_WEIGHTS]
    if np.isfinite(confidences).any():
        policies.append(VotePolicy.confidence_weighted())
        policies += [VotePolicy.filtered(theta) for theta in _THETAS]
    winners = vote_curves_pool(
        ids[rows],
        similarities[rows],
        labels,
        confidences,
        labels[rows],
        confidences[rows],
        n_classes=n_classes,
        ks=ks,
        policies=policies,
    )
    for p, policy in enumerate(policies):
        for q, k in enumerate(ks):
            yield _Choice(policy, k, 0.0), winners[p, q]
    balanced = np.full(n_classes, 1 / n_classes)
    for k in ks:
        policy = VotePolicy()
        weights = vote_pool(
            ids[:, :k],
            similarities[:, :k],
            labels,
            None,
            labels[: len(ids)],
            None,
            n_classes=n_classes,
            policy=policy,
            votes=True,
        ).votes
        assert weights is not None
        for power in _POWERS:
            corrected = weights[rows] * factors(weights.sum(axis=0), balanced, power)
            best = np.where(corrected.max(axis=1) > 0, corrected.argmax(axis=1), -1)
            yield _Choice(policy, k, power), best.astype(np.int32)
