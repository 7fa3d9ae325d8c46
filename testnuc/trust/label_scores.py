"""Texts with several labels: what speaks for each label, and thresholds by judged texts.

The score of a text and a label is the share of the vote, or the mean of the share and of a head's
probability. A label is given if its score is above its threshold. Thresholds maximize::

    sum of the Jaccard index over the judged texts - 20 * sum of (threshold - pooled threshold) ** 2

so that the threshold of a label moves away from the pooled one only as far as judgments demand it:
by 0.2 if that gains 0.8 texts. The pooled one moves away from that of the vote settings likewise.
Thresholds are fitted without the fold of the texts that they apply to, as in `testnuc.trust.model`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from testnuc._base.arrays import Bools, Float32s, Float64s, Floats, Int64s
from testnuc._base.display import Brief
from testnuc.trust.head import FOLDS, LinearHead, predict_folds
from testnuc.voting import Labels, places_of, starts_of

#: Cells of texts times labels that are in memory at a time.
_CELLS = 1 << 22
#: A label that only the head speaks for is dropped below this probability.
_LEAST = 0.05
_GRID = np.arange(0.025, 1, 0.05)
#: Jaccard index that a squared move of a threshold must gain.
_STRENGTH = 20.0
_ROUNDS = 2


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LabelScores(Brief):
    """What speaks for each label of n texts."""

    #: The labels that anything speaks for, in their order, with the shares of the vote and those
    #: that it gives under the vote settings; known: anything voted.
    vote: Labels
    #: float32[T], probabilities by a head; the shares without one.
    heads: Float32s
    #: bool[T], whether the LLM gave the label.
    own: Bools
    #: bool[n], whether the LLM's labels are known.
    answered: Bools
    #: int64[n].
    folds: Int64s

    def __len__(self) -> int:
        return len(self.folds)

    @property
    def given(self) -> Bools:
        """Which labels the vote gives under the vote settings, bool[T]."""
        return self.vote.is_given()

    def at(self, rows: Int64s) -> LabelScores:
        """Return the scores of some texts."""
        at, _ = places_of(self.vote.starts, rows)
        return LabelScores(
            self.vote.at(rows), self.heads[at], self.own[at], self.answered[rows], self.folds[rows]
        )

    def scores(self, *, with_head: bool) -> Float32s:
        """Return the score of each pair, float32[T]."""
        return (self.vote.share + self.heads) * np.float32(0.5) if with_head else self.vote.share

    def without_head(self) -> Bools:
        """Return which labels more than a head speaks for, bool[T]."""
        return (self.vote.share > 0) | self.own | self.given

    def above(self, thresholds: Float32s, *, with_head: bool = False) -> Bools:
        """Return which labels have a score above float32[FOLDS, C]; as before without a vote."""
        rows = self.vote.rows
        above = self.scores(with_head=with_head) > thresholds[self.folds[rows], self.vote.label]
        return np.where(self.vote.known[rows], above, self.given)

    def by_llm(self) -> Bools:
        """Return which labels the LLM gave; those of the vote where its labels are unknown."""
        return np.where(self.answered[self.vote.rows], self.own, self.given)


def scores_of(
    voted: Labels,
    pool: Labels,
    folds: Int64s,
    n_classes: int,
    heads: Sequence[LinearHead] = (),
    vectors: Floats | None = None,
) -> LabelScores:
    """Return what speaks for the labels of the first n texts of a pool.

    With a head for each fold, `vectors` are needed, too.
    """
    n, step = len(folds), max(1, _CELLS // n_classes)
    votes, by_head, own = [], [], []
    # of no text, one part without any
    for start in range(0, max(n, 1), step):
        part = slice(start, min(start + step, n))
        rows = np.arange(n)[part]
        vote, said = voted.at(rows), pool.at(rows)
        assert vote.voters is not None
        shares = vote.table(n_classes)
        given = vote.table(n_classes, vote.is_given())
        mine = said.table(n_classes, np.ones(len(said.label), np.bool_))
        head = shares
        if heads and vectors is not None:
            head = predict_folds(heads, vectors[part], folds[part])
        at = np.nonzero((shares > 0) | mine | given | (head >= _LEAST))
        starts = starts_of(np.bincount(at[0], minlength=len(rows)))
        label = at[1].astype(np.int32)
        votes.append(Labels(starts, label, shares[at], vote.voters > 0, given[at]))
        by_head.append(head[at])
        own.append(mine[at])
    vote, probabilities = Labels.stacked(votes), np.concatenate(by_head)
    return LabelScores(vote, probabilities, np.concatenate(own), pool.known[:n], folds)


def counts(scores: LabelScores, right: Labels, given: Bools) -> tuple[Int64s, Int64s, Int64s]:
    """Return of each text the number of given labels that are right, of given and of right ones."""
    rows, n = scores.vote.rows, len(right)
    hits = np.bincount(rows[given & scores.vote.among(right)], minlength=n)
    return hits, np.bincount(rows[given], minlength=n), np.diff(right.starts)


def exactly(scores: LabelScores, right: Labels, given: Bools) -> Bools:
    """Return which texts have all their right labels, and no other."""
    hits, count, sizes = counts(scores, right, given)
    exact: Bools = (hits == sizes) & (count == sizes) & right.known
    return exact


def jaccard(hits: Int64s, count: Int64s, sizes: Int64s) -> Float64s:
    """Return the Jaccard index of each text by its `counts`; 1 if it has no label and gets none."""
    union = count + sizes - hits
    return np.where(union > 0, hits / np.maximum(union, 1), 1.0)


def fit_thresholds(
    scores: LabelScores, right: Labels, n_classes: int, usual: float, *, with_head: bool = False
) -> Float32s:
    """Return the threshold of each label for the texts of each fold, float32[FOLDS, C].

    `right` are the labels that the texts should have, and `usual` is the threshold of the vote
    settings. With a head, thresholds are for scores with it.
    """
    thresholds = np.full((FOLDS, n_classes), usual, dtype=np.float32)
    for fold in range(FOLDS):
        others = np.flatnonzero((scores.folds != fold) & scores.vote.known)
        if len(others):
            some = scores.at(others)
            thresholds[fold] = _thresholds(
                some.vote, some.scores(with_head=with_head), right.at(others), n_classes, usual
            )
    return thresholds


def _thresholds(
    vote: Labels, scores: Float32s, truth: Labels, n_classes: int, usual: float
) -> Float32s:
    rows, right, sizes = vote.rows, vote.among(truth), np.diff(truth.starts)

    def counted(given: Bools) -> tuple[Int64s, Int64s]:
        hits = np.bincount(rows[given & right], minlength=len(sizes))
        return hits, np.bincount(rows[given], minlength=len(sizes))

    grid = np.append(_GRID, usual)
    sums = [jaccard(*counted(scores > threshold), sizes).sum() for threshold in grid]
    pooled = grid[int(np.argmax(sums - _STRENGTH * (grid - usual) ** 2))]
    thresholds = np.full(n_classes, pooled, dtype=np.float32)
    grid = np.append(_GRID, pooled)
    penalty = _STRENGTH * (grid - pooled) ** 2
    given = scores > pooled
    hits, count = counted(given)
    order = np.argsort(vote.label, kind="stable")
    names, first = np.unique(vote.label[order], return_index=True)
    groups = [
        (label, order[start:stop])
        for label, start, stop in zip(names.tolist(), first, [*first[1:], len(order)], strict=False)
    ]
    for _ in range(_ROUNDS):
        for label, at in groups:
            row, size = rows[at], sizes[rows[at]]
            # of the other labels of these texts
            hits[row] -= given[at] & right[at]
            count[row] -= given[at]
            without = jaccard(hits[row], count[row], size)
            inside = jaccard(hits[row] + right[at], count[row] + 1, size)
            passed = scores[at] > grid[:, None]
            sums = np.where(passed, inside, without).sum(axis=1)
            best = int(np.argmax(sums - penalty))
            thresholds[label] = grid[best]
            given[at] = passed[best]
            hits[row] += given[at] & right[at]
            count[row] += given[at]
    return thresholds
