"""Learn a rule for texts that can have several labels: thresholds of scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from testnuc._engine.applying import judged_of
from testnuc._engine.argmax_learning import MOST_TEXTS, Offer
from testnuc.trust.head import fit_folds, folds_of
from testnuc.trust.label_scores import scores_of
from testnuc.trust.learned import Learned
from testnuc.trust.review_context import ReviewContext
from testnuc.trust.thresholds import Thresholds, learn_thresholds

if TYPE_CHECKING:
    from testnuc._base.arrays import Bools, Float16s
    from testnuc._engine.components import Components
    from testnuc._engine.run import Run
    from testnuc.trust.judgment import Judgment

#: Texts that a head is fitted on, and cells of these texts times labels, at most.
_FITTED, _CELLS = 40_000, 1 << 26
#: What gives labels, before anything is learned and after.
_KEPT = ("the vote", "what was learned so far")
#: Labels that are shown with a text: those with at least this score.
_SHOWN = 0.1


class ThresholdFit:
    """What speaks for each label of the texts of the pool that have a prediction.

    `run` has these texts, `vectors`, float16[n, dim], theirs.
    """

    goals = ("certify", "correct")

    def __init__(self, parts: Components, run: Run, vectors: Float16s) -> None:
        self._parts, self.run = parts, run
        assert parts.settings.threshold is not None
        self._threshold = parts.settings.threshold
        #: Position of each text, by hash.
        self.rows = {entry.hash: row for row, entry in enumerate(run.batch.own)}
        n, n_classes = run.batch.n_own, len(run.batch.labels.names)
        pool, folds = run.answers.labels(), folds_of(list(self.rows))
        used = np.flatnonzero(pool.known[:n])
        most = min(_FITTED, max(1, _CELLS // n_classes))
        if len(used) > most:
            used = used[np.linspace(0, len(used) - 1, most).astype(np.int64)]
        place = np.full(len(pool), -1, dtype=np.int64)
        place[used] = np.arange(len(used))
        row = place[pool.rows]
        targets = np.zeros((len(used), n_classes), dtype=np.float32)
        targets[row[row >= 0], pool.label[row >= 0]] = 1
        # a head of the LLM's own labels
        fitted = fit_folds(vectors[used], targets, folds[used], several=True)
        self._heads = tuple(head.rounded() for head in fitted)
        voted = run.votes.of_each_label(slice(0, n))
        self._scores = scores_of(voted, pool, folds, n_classes, self._heads, vectors)

    @staticmethod
    def wanted(parts: Components) -> tuple[int, int]:
        """Return the most texts to fit on, and the neighbors of each."""
        return MOST_TEXTS, parts.settings.k

    @staticmethod
    def goal(_: Learned | None) -> str:
        """Return the goal of a review if none is given."""
        return "certify"

    def offer(self, before: Learned | None, open_: Bools) -> Offer:
        """Return what a review draws from; `open_`: bool[n], texts that are not judged."""
        parts, scores = self._parts, self._scores
        vote = scores.vote
        if before is None:
            # nothing is calibrated: the weight on the side of the closest decision
            likely, given, trust = vote.share, scores.given, np.ones(len(scores))
            np.minimum.at(trust, vote.rows, np.where(given, likely, 1 - likely))
        else:
            assert isinstance(before.rule, Thresholds)
            found = before.rule.decide(scores)
            assert found.trust is not None
            likely, given, trust = found.share, found.is_given(), found.trust
        names, kept_own = parts.labels.names, parts.pipeline.settings.keeps_llm_labels
        kept = () if kept_own else (_KEPT[before is not None],)

        def shown(row: int) -> list[tuple[str, list[str]]]:
            at = np.arange(vote.starts[row], vote.starts[row + 1])
            at = at[scores.own[at] | given[at] | (likely[at] >= _SHOWN)]
            candidates = []
            for place in at[np.argsort(-likely[at], kind="stable")].tolist():
                by = [*(("the LLM",) if scores.own[place] else ()), *(kept if given[place] else ())]
                candidates.append(
                    (names[vote.label[place]], [*by, f"share {vote.share[place]:.2f}"])
                )
            return candidates

        changed = np.zeros(len(scores), dtype=np.bool_)
        # where labels are the LLM's own, those that a vote would change
        other = vote.share > self._threshold if kept_own else given
        changed[vote.rows[scores.by_llm() != other]] = True
        context = ReviewContext(
            differing=int((changed & open_).sum()),
            unlabeled=int((~scores.answered & open_).sum()),
            descriptions=parts.labels.descriptions,
            instructions=parts.instructions,
        )
        return Offer(trust, np.ones(len(scores), dtype=np.bool_), shown, context)

    def learned(self, judgments: tuple[Judgment, ...]) -> Learned:
        """Learn from all judgments."""
        labels = self._parts.labels
        judged = judged_of(judgments, self.rows, labels)
        lesson = learn_thresholds(
            self._scores, judged, len(labels.names), self._threshold, self._heads
        )
        return Learned.of(lesson, judged, labels.names, judgments)
