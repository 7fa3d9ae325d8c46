"""Learn from judgments of texts that can have several labels."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from testnuc._engine.judgment_arrays import Judged
from testnuc._engine.learning import Learning
from testnuc._engine.learning_base import MOST_TEXTS, LearningBase, Offer, PoolFit
from testnuc._engine.multilabel import MultilabelNeighborhoods
from testnuc.trust.head import OneVsRest, fit_one_vs_rest, folds_of
from testnuc.trust.label_pairs import LabelPairs, pairs_of
from testnuc.trust.multilabel import JudgedSets, MultilabelLearned, learn_sets
from testnuc.trust.review_context import ReviewContext
from testnuc.types import split_labels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from testnuc._engine.components import Components
    from testnuc._engine.neighborhoods import Neighborhoods
    from testnuc.trust.judgment import Judgment

__all__ = ["MultilabelLearning", "learning_of"]

#: Texts that a head is fitted on, and cells of these texts times labels, at most.
_FITTED, _CELLS = 40_000, 1 << 26
#: What gives labels, before anything is learned and after.
_KEPT = ("the vote", "what was learned so far")
#: Labels that are shown with a text: those with at least this score.
_SHOWN = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """What speaks for the labels of the texts of the pool."""

    pairs: LabelPairs
    heads: tuple[OneVsRest, ...]
    #: The threshold of the vote settings.
    usual: float


class MultilabelLearning(LearningBase[MultilabelLearned, _Pairs]):
    """What a client learns from judgments of texts that can have several labels."""

    _kind, _goals = MultilabelLearned, ("certify", "correct")

    def _goal(self, goal: str | None, before: MultilabelLearned | None) -> str:  # noqa: ARG002
        return goal or "certify"

    def _offer(
        self,
        fitted: PoolFit[_Pairs],
        before: MultilabelLearned | None,
        open_: NDArray[np.bool_],
    ) -> Offer:
        parts, pairs = self._parts, fitted.fit.pairs
        if before is None:
            # nothing is calibrated: the weight on the side of the closest decision
            scores, given = pairs.shares, pairs.given
            trust = np.ones(len(pairs))
            np.minimum.at(trust, pairs.rows, np.where(given, scores, 1 - scores))
        else:
            applied = before.apply(pairs)
            scores, given, trust = applied.scores, applied.given, applied.trust
        names, kept_own = parts.labels.names, parts.pipeline.settings.keeps_own
        kept = () if kept_own else (_KEPT[before is not None],)

        def shown(row: int) -> list[tuple[str, list[str]]]:
            at = np.arange(pairs.starts[row], pairs.starts[row + 1])
            at = at[pairs.own[at] | given[at] | (scores[at] >= _SHOWN)]
            candidates = []
            for place in at[np.argsort(-scores[at], kind="stable")].tolist():
                by = [*(("the LLM",) if pairs.own[place] else ()), *(kept if given[place] else ())]
                label = names[pairs.labels[place]]
                candidates.append((label, [*by, f"share {pairs.shares[place]:.2f}"]))
            return candidates

        changed = np.zeros(len(pairs), dtype=np.bool_)
        # where labels are the LLM's own, those that a vote would change
        other = pairs.shares > fitted.fit.usual if kept_own else given
        changed[pairs.rows[pairs.by_llm() != other]] = True
        context = ReviewContext(
            differing=int((changed & open_).sum()),
            unlabeled=int((~pairs.answered & open_).sum()),
            descriptions=parts.labels.descriptions,
            instructions=parts.instructions,
        )
        return Offer(trust, np.ones(len(pairs), dtype=np.bool_), shown, context)

    async def _from(self, judged: tuple[Judgment, ...]) -> MultilabelLearned:
        fitted = await self._fitted()
        return await asyncio.to_thread(self._learned, fitted, judged)

    def _learned(
        self, fitted: PoolFit[_Pairs], judgments: tuple[Judgment, ...]
    ) -> MultilabelLearned:
        names, fit = self._parts.labels.names, fitted.fit
        number = {name: i for i, name in enumerate(names)}
        judged = Judged.of(judgments, fitted.rows)
        sets = JudgedSets(
            judged.rows,
            [
                None if j.label is None else frozenset(number[s] for s in split_labels(j.label))
                for j in judged.known
            ],
            judged.draws,
            judged.person,
        )
        return learn_sets(fit.pairs, sets, names, fit.usual, fit.heads, judgments)

    def _wanted(self) -> tuple[int, int]:
        return MOST_TEXTS, self._parts.settings.k

    def _fit(
        self, found: Neighborhoods, vectors: NDArray[np.float16], hashes: Sequence[bytes]
    ) -> _Pairs:
        """Fit a head on the LLM's own labels."""
        assert isinstance(found, MultilabelNeighborhoods)
        n, n_classes, pool = found.n_own, len(found.labels.names), found.pool_labels
        folds = folds_of(hashes)
        used = np.flatnonzero(pool.voted[:n])
        most = min(_FITTED, max(1, _CELLS // n_classes))
        if len(used) > most:
            used = used[np.linspace(0, len(used) - 1, most).astype(np.int64)]
        place = np.full(len(pool.voted), -1, dtype=np.int64)
        place[used] = np.arange(len(used))
        row = place[np.repeat(np.arange(len(pool.voted)), np.diff(pool.offsets))]
        targets = np.zeros((len(used), n_classes), dtype=np.float32)
        targets[row[row >= 0], pool.labels[row >= 0]] = 1
        fitted = fit_one_vs_rest(vectors[used], targets, folds[used])
        heads = tuple(head.rounded() for head in fitted)
        voted = found.plain_labels(slice(0, n))
        pairs = pairs_of(voted, pool, folds, n_classes, heads, vectors)
        return _Pairs(pairs, heads, found.threshold)


def learning_of(parts: Components) -> Learning | MultilabelLearning:
    """Return what learns from judged texts, for one label or several."""
    return (MultilabelLearning if parts.labels.multilabel else Learning)(parts)
