"""Learn from judgments of texts that can have several labels."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from testnuc._base.checks import checked_whole
from testnuc._engine.judgment_arrays import draws_of
from testnuc._engine.learning import Learning
from testnuc._engine.learning_base import MOST_TEXTS, LearningBase, check_enough
from testnuc._engine.multilabel import MultilabelNeighborhoods
from testnuc.errors import InvalidInputError
from testnuc.trust.head import OneVsRest, fit_one_vs_rest, folds_of
from testnuc.trust.label_pairs import LabelPairs, pairs_of
from testnuc.trust.multilabel import JudgedSets, MultilabelLearned, learn_sets
from testnuc.trust.review import Drawn, Review, ReviewItem, draw
from testnuc.trust.review_context import ReviewContext
from testnuc.types import split_labels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from testnuc._engine.components import Components
    from testnuc.trust.judgment import Judgment

__all__ = ["MultilabelLearning", "learning_of"]

#: The goals of a review; None is "certify".
_GOALS = ("certify", "correct")
#: Texts that a head is fitted on, and cells of these texts times labels, at most.
_FITTED, _CELLS = 40_000, 1 << 26
#: What gives labels, before anything is learned and after.
_KEPT = ("the vote", "what was learned so far")
#: Labels that are shown with a text: those with at least this score.
_SHOWN = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class _PoolPairs:
    """The texts of the pool, and what speaks for their labels."""

    digest: bytes
    neighborhoods: MultilabelNeighborhoods
    pairs: LabelPairs
    heads: tuple[OneVsRest, ...]
    #: Position of each text, by hash.
    rows: dict[bytes, int]


class MultilabelLearning(LearningBase[MultilabelLearned]):
    """What a client learns from judgments of texts that can have several labels.

    Parameters
    ----------
    parts : Components
    """

    def __init__(self, parts: Components) -> None:
        super().__init__(parts)
        self._last: _PoolPairs | None = None

    @property
    def learned(self) -> MultilabelLearned | None:
        """What was learned so far."""
        return self._parts.pipeline.settings.several

    async def review(self, n: int, goal: str | None, seed: int) -> Review:
        """Draw texts of the pool to be judged: at random, or the least trusted ones."""
        checked_whole("n", n, least=1)
        if goal is not None and goal not in _GOALS:
            raise InvalidInputError(
                f"goal is {goal!r}; with multilabel=True choose from {', '.join(_GOALS)}, or None"
            )
        await self._parts.ready()
        await self.load()
        fitted = await self._fitted()
        return await asyncio.to_thread(self._drawn, fitted, n, goal or "certify", seed)

    def _drawn(self, fitted: _PoolPairs, n: int, goal: str, seed: int) -> Review:
        before, parts, pairs = self.learned, self._parts, fitted.pairs
        seen = {j.hash for j in before.judged} if before is not None else set()
        open_ = np.array([key not in seen for key in fitted.rows], dtype=np.bool_)
        if before is None:
            # nothing is calibrated: the weight on the side of the closest decision
            scores, given = pairs.shares, pairs.given
            trust = np.ones(len(pairs))
            np.minimum.at(trust, pairs.rows, np.where(given, scores, 1 - scores))
        else:
            applied = before.apply(pairs)
            scores, given, trust = applied.scores, applied.given, applied.trust
        rng = np.random.default_rng([seed, len(seen)])
        every = np.ones(len(pairs), dtype=np.bool_)
        drawn = draw(n, goal, every, open_, trust, rng)
        own = pairs.by_llm()
        items = [
            self._item(fitted, index, found, float(trust[found.row]), scores, given)
            for index, found in enumerate(drawn)
        ]
        changed = np.zeros(len(pairs), dtype=np.bool_)
        # where labels are the LLM's own, those that a vote would change
        kept_own = parts.pipeline.settings.keeps_own
        other = pairs.shares > fitted.neighborhoods.threshold if kept_own else given
        changed[pairs.rows[own != other]] = True
        context = ReviewContext(
            differing=int((changed & open_).sum()),
            unlabeled=int((~pairs.answered & open_).sum()),
            descriptions=parts.labels.descriptions,
            instructions=parts.instructions,
        )
        names = parts.labels.names
        return Review(items, names, len(pairs), parts.model, context, multilabel=True)

    def _item(
        self,
        fitted: _PoolPairs,
        index: int,
        drawn: Drawn,
        trust: float,
        scores: NDArray[np.float32],
        given: NDArray[np.bool_],
    ) -> ReviewItem:
        row = drawn.row
        found, pairs, names = fitted.neighborhoods, fitted.pairs, self._parts.labels.names
        at = np.arange(pairs.starts[row], pairs.starts[row + 1])
        at = at[pairs.own[at] | given[at] | (scores[at] >= _SHOWN)]
        learned = self.learned is not None
        kept = () if self._parts.pipeline.settings.keeps_own else (_KEPT[learned],)
        candidates = []
        for place in at[np.argsort(-scores[at], kind="stable")].tolist():
            by = [*(("the LLM",) if pairs.own[place] else ()), *(kept if given[place] else ())]
            label = names[pairs.labels[place]]
            candidates.append((label, [*by, f"share {pairs.shares[place]:.2f}"]))
        return self._item_of(found, index, drawn, trust, candidates)

    def _checked(self, labels: Sequence[Any]) -> list[str | None]:
        checked: list[str | None] = []
        for position, said in enumerate(labels):
            joined = self._parts.labels.joined(said)
            if joined is None:
                raise InvalidInputError(
                    f"the labels {position} are {said!r}; with multilabel=True give a list of "
                    "distinct labels of the label set, [] for none"
                )
            checked.append(joined)
        return checked

    def _read(self, data: bytes) -> MultilabelLearned:
        return MultilabelLearned.from_bytes(data)

    async def _from(self, judged: tuple[Judgment, ...]) -> MultilabelLearned:
        fitted = await self._fitted()
        return await asyncio.to_thread(self._learned, fitted, judged)

    def _learned(self, fitted: _PoolPairs, judged: tuple[Judgment, ...]) -> MultilabelLearned:
        names = self._parts.labels.names
        number = {name: i for i, name in enumerate(names)}
        known = [j for j in judged if j.hash in fitted.rows]
        sets = JudgedSets(
            np.array([fitted.rows[j.hash] for j in known], dtype=np.int64),
            [
                None if j.label is None else frozenset(number[s] for s in split_labels(j.label))
                for j in known
            ],
            draws_of(known, len(fitted.pairs)),
            np.array([j.source != "referee" for j in known], dtype=np.bool_),
        )
        usual = fitted.neighborhoods.threshold
        return learn_sets(fitted.pairs, sets, names, usual, fitted.heads, judged)

    async def _fitted(self) -> _PoolPairs:
        """Return what speaks for the labels of the texts of the pool as it is."""
        parts = self._parts
        await parts.ready()
        found, vectors = await parts.pipeline.pool_predictions.labeled(
            parts.pipeline.settings, MOST_TEXTS, parts.settings.k
        )
        assert isinstance(found, MultilabelNeighborhoods)
        n = found.n_own
        check_enough(n)
        hashes = [entry.hash for entry in found.entries[:n]]
        said = ["" if p is None else f"{p.label}" for p in found.predictions[:n]]
        digest = blake2b(b"".join(hashes) + "\n".join(said).encode()).digest()
        if self._last is None or self._last.digest != digest:
            made = await asyncio.to_thread(_fit, found, vectors, hashes)
            rows = {key: row for row, key in enumerate(hashes)}
            self._last = _PoolPairs(digest, found, *made, rows)
        return self._last


def learning_of(parts: Components) -> Learning | MultilabelLearning:
    """Return what learns from judged texts, for one label or several."""
    return (MultilabelLearning if parts.labels.multilabel else Learning)(parts)


def _fit(
    found: MultilabelNeighborhoods, vectors: NDArray[np.float16], hashes: Sequence[bytes]
) -> tuple[LabelPairs, tuple[OneVsRest, ...]]:
    """Fit a head on the LLM's own labels, and return what speaks for each label."""
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
    return pairs_of(voted, pool, folds, n_classes, heads, vectors), heads
