"""Texts with several labels: what speaks for each label, and thresholds by judged texts.

The score of a text and a label is the share of the vote, or the mean of the share and of a head's
probability. A label is given if its score is above its threshold. Thresholds maximize::

    sum of the Jaccard index over the judged texts - 20 * sum of (threshold - pooled threshold) ** 2

so that the threshold of a label moves away from the pooled one only as far as judgments demand it:
by 0.2 if that gains 0.8 texts. The pooled one moves away from that of the vote settings likewise.
Thresholds are fitted without the fold of the texts that they apply to, as in `testnuc.trust.model`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from testnuc._base.display import brief
from testnuc.trust.head import FOLDS, predict_folds
from testnuc.voting import places_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from testnuc.trust.head import OneVsRest
    from testnuc.voting import PoolLabels, VotedLabels

__all__ = ["LabelPairs", "Truth", "fit_thresholds", "pairs_of"]

#: Cells of texts times labels that are in memory at a time.
_CELLS = 1 << 22
#: A label that only the head speaks for is dropped below this probability.
_LEAST = 0.05
_GRID = np.arange(0.025, 1, 0.05)
#: Jaccard index that a squared move of a threshold must gain.
_STRENGTH = 20.0
_ROUNDS = 2


@dataclass(frozen=True, slots=True, eq=False)
class LabelPairs:
    """The labels that anything speaks for, of n texts; those of text i are at starts[i:i + 2]."""

    __repr__ = brief

    #: int64[n + 1].
    starts: NDArray[np.int64]
    #: int32[T], ascending in each text.
    labels: NDArray[np.int32]
    #: float32[T], shares of the vote.
    shares: NDArray[np.float32]
    #: float32[T], probabilities by a head; the shares without one.
    heads: NDArray[np.float32]
    #: bool[T], whether the LLM gave the label.
    own: NDArray[np.bool_]
    #: bool[T], whether the vote gives it under the vote settings.
    given: NDArray[np.bool_]
    #: bool[n], whether the LLM's labels are known.
    answered: NDArray[np.bool_]
    #: bool[n], whether anything voted.
    voted: NDArray[np.bool_]
    #: int64[n].
    folds: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.folds)

    @property
    def rows(self) -> NDArray[np.int64]:
        """The text of each pair, int64[T]."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def at(self, rows: NDArray[np.int64]) -> LabelPairs:
        """Return the pairs of some texts."""
        at, starts = places_of(self.starts, rows)
        return LabelPairs(
            starts,
            self.labels[at],
            self.shares[at],
            self.heads[at],
            self.own[at],
            self.given[at],
            self.answered[rows],
            self.voted[rows],
            self.folds[rows],
        )

    def scores(self, *, with_head: bool) -> NDArray[np.float32]:
        """Return the score of each pair, float32[T]."""
        return (self.shares + self.heads) * np.float32(0.5) if with_head else self.shares

    def without_head(self) -> NDArray[np.bool_]:
        """Return which labels more than a head speaks for, bool[T]."""
        return (self.shares > 0) | self.own | self.given

    def above(
        self, thresholds: NDArray[np.float32], *, with_head: bool = False
    ) -> NDArray[np.bool_]:
        """Return which labels have a score above float32[FOLDS, C]; as before without a vote."""
        rows = self.rows
        above = self.scores(with_head=with_head) > thresholds[self.folds[rows], self.labels]
        return np.where(self.voted[rows], above, self.given)

    def by_llm(self) -> NDArray[np.bool_]:
        """Return which labels the LLM gave; those of the vote where its labels are unknown."""
        return np.where(self.answered[self.rows], self.own, self.given)


def pairs_of(
    voted: VotedLabels,
    pool: PoolLabels,
    folds: NDArray[np.int64],
    n_classes: int,
    heads: Sequence[OneVsRest] = (),
    vectors: NDArray[np.floating] | None = None,
) -> LabelPairs:
    """Return what speaks for the labels of the first n texts of a pool.

    With a head for each fold, `vectors` are needed, too.
    """
    n, step = len(folds), max(1, _CELLS // n_classes)
    parts = []
    for start in range(0, n, step):
        stop = min(start + step, n)
        shares = np.zeros((stop - start, n_classes), dtype=np.float32)
        own, given = np.zeros(shares.shape, dtype=np.bool_), np.zeros(shares.shape, dtype=np.bool_)
        part = slice(int(voted.starts[start]), int(voted.starts[stop]))
        row = np.repeat(np.arange(stop - start), np.diff(voted.starts[start : stop + 1]))
        shares[row, voted.labels[part]] = voted.shares[part]
        given[row, voted.labels[part]] = voted.given[part]
        part = slice(int(pool.offsets[start]), int(pool.offsets[stop]))
        row = np.repeat(np.arange(stop - start), np.diff(pool.offsets[start : stop + 1]))
        own[row, pool.labels[part]] = True
        head = shares
        if heads and vectors is not None:
            head = predict_folds(heads, vectors[start:stop], folds[start:stop])
        row, label = np.nonzero((shares > 0) | own | given | (head >= _LEAST))
        counts = np.bincount(row, minlength=stop - start)
        at = (row, label)
        parts.append((counts, label, shares[at], head[at], own[at], given[at]))
    none: list[NDArray[np.float32]] = [np.empty(0, dtype=np.float32)]
    counts, label, share, found, mine, passed = (
        np.concatenate([part[i] for part in parts] or none) for i in range(6)
    )
    return LabelPairs(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        label.astype(np.int32),
        share,
        found,
        mine.astype(np.bool_),
        passed.astype(np.bool_),
        pool.voted[:n] > 0,
        voted.voters > 0,
        folds,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """The right labels of m judged texts, beside their pairs."""

    __repr__ = brief

    pairs: LabelPairs
    #: bool[T], whether the label is right.
    right: NDArray[np.bool_]
    #: int64[m], number of right labels.
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, pairs: LabelPairs, right: Sequence[Collection[int]]) -> Truth:
        """Return the truth of the texts of some pairs, from the right labels of each."""
        said = zip(pairs.rows.tolist(), pairs.labels.tolist(), strict=True)
        return cls(
            pairs,
            np.array([label in right[row] for row, label in said], dtype=np.bool_),
            np.array([len(labels) for labels in right], dtype=np.int64),
        )

    def at(self, rows: NDArray[np.int64]) -> Truth:
        """Return the truth of some of the texts."""
        kept = replace(self.pairs, own=self.right).at(rows)
        return Truth(self.pairs.at(rows), kept.own, self.sizes[rows])

    def counts(self, given: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of given labels that are right, and of given labels, of each text."""
        rows, m = self.pairs.rows, len(self.sizes)
        hits = np.bincount(rows[given & self.right], minlength=m)
        return hits, np.bincount(rows[given], minlength=m)

    def jaccard(self, given: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the Jaccard index of each text, float64[m]; 1 if it has no label and gets none."""
        return _jaccard(*self.counts(given), self.sizes)

    def exact(self, given: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which texts get exactly their labels, bool[m]."""
        hits, count = self.counts(given)
        exact: NDArray[np.bool_] = (hits == self.sizes) & (count == self.sizes)
        return exact


def fit_thresholds(
    truth: Truth, n_classes: int, usual: float, *, with_head: bool = False
) -> NDArray[np.float32]:
    """Return the threshold of each label for the texts of each fold, float32[FOLDS, C].

    `usual` is that of the vote settings. With a head, thresholds are for scores with it.
    """
    found = np.full((FOLDS, n_classes), usual, dtype=np.float32)
    for fold in range(FOLDS):
        others = np.flatnonzero((truth.pairs.folds != fold) & truth.pairs.voted)
        if len(others):
            found[fold] = _thresholds(truth.at(others), n_classes, usual, with_head=with_head)
    return found


def _thresholds(
    truth: Truth, n_classes: int, usual: float, *, with_head: bool
) -> NDArray[np.float32]:
    pairs, sizes = truth.pairs, truth.sizes
    scores, rows = pairs.scores(with_head=with_head), pairs.rows
    grid = np.append(_GRID, usual)
    sums = [truth.jaccard(scores > threshold).sum() for threshold in grid]
    pooled = grid[int(np.argmax(sums - _STRENGTH * (grid - usual) ** 2))]
    found = np.full(n_classes, pooled, dtype=np.float32)
    grid = np.append(_GRID, pooled)
    penalty = _STRENGTH * (grid - pooled) ** 2
    given = scores > pooled
    hits, count = truth.counts(given)
    order = np.argsort(pairs.labels, kind="stable")
    names, first = np.unique(pairs.labels[order], return_index=True)
    groups = [
        (label, order[start:stop])
        for label, start, stop in zip(names.tolist(), first, [*first[1:], len(order)], strict=False)
    ]
    for _ in range(_ROUNDS):
        for label, at in groups:
            row, right, size = rows[at], truth.right[at], sizes[rows[at]]
            # of the other labels of these texts
            hits[row] -= given[at] & right
            count[row] -= given[at]
            without = _jaccard(hits[row], count[row], size)
            inside = _jaccard(hits[row] + right, count[row] + 1, size)
            passed = scores[at] > grid[:, None]
            sums = np.where(passed, inside, without).sum(axis=1)
            best = int(np.argmax(sums - penalty))
            found[label] = grid[best]
            given[at] = passed[best]
            hits[row] += given[at] & right
            count[row] += given[at]
    return found


def _jaccard(
    hits: NDArray[np.int64], count: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.float64]:
    union = count + sizes - hits
    return np.where(union > 0, hits / np.maximum(union, 1), 1.0)
