"""What all learning from judgments has in common: texts are drawn, judgments merged and kept."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import isnan
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np

from testnuc._base.checks import checked_whole
from testnuc._engine.inputs import checked_texts, distinct, known_label, values
from testnuc.embedders.cache import embedder_name
from testnuc.errors import InvalidInputError, StoreError
from testnuc.trust.judgment import Judgment
from testnuc.trust.learned import Learned
from testnuc.trust.multilabel import MultilabelLearned
from testnuc.trust.review import Review, ReviewItem, closest_label, draw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from testnuc._engine.components import Components
    from testnuc._engine.neighborhoods import Neighborhoods
    from testnuc.trust.review_context import ReviewContext

__all__ = ["LEAST_TEXTS", "MOST_TEXTS", "LearningBase", "Offer", "PoolFit"]

_log = logging.getLogger("testnuc.client")

#: Texts that candidates are fitted on at most.
MOST_TEXTS = 200_000
#: Fewest texts with a prediction to learn from.
LEAST_TEXTS = 10
#: Neighbors shown with a text to be judged.
_SHOWN = 5

L = TypeVar("L", Learned, MultilabelLearned)
F = TypeVar("F")


@dataclass(frozen=True, slots=True, eq=False)
class PoolFit(Generic[F]):
    """The texts of the pool, and what was fitted on them."""

    digest: bytes
    neighborhoods: Neighborhoods
    #: Position of each text, by hash.
    rows: dict[bytes, int]
    fit: F


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """What a review draws from, and shows."""

    #: float64[n], of the labels that are kept now.
    trust: NDArray[np.float64]
    #: bool[n], the texts on which candidates differ.
    support: NDArray[np.bool_]
    #: Row -> the candidates for a text: labels, and what gives each.
    candidates: Callable[[int], Iterable[tuple[str | None, Sequence[str]]]]
    context: ReviewContext


class LearningBase(ABC, Generic[L, F]):
    """What a client learns from judgments."""

    _kind: type[L]
    _goals: tuple[str, ...]

    def __init__(self, parts: Components) -> None:
        self._parts = parts
        self._lock = asyncio.Lock()
        #: Whether what is learned is kept in the store, and read from there.
        self.shared = True
        #: What the store was last known to hold.
        self._data: bytes | None = None
        self._last: PoolFit[F] | None = None
        parts.on_open = self.load

    @property
    def learned(self) -> L | None:
        """What was learned so far."""
        return cast("L | None", self._parts.pipeline.settings.taught)

    @abstractmethod
    def _fit(
        self, found: Neighborhoods, vectors: NDArray[np.float16], hashes: Sequence[bytes]
    ) -> F:
        """Fit on the texts of the pool that have a prediction."""

    @abstractmethod
    def _wanted(self) -> tuple[int, int]:
        """Return the most texts to fit on, and the neighbors of each."""

    @abstractmethod
    def _goal(self, goal: str | None, before: L | None) -> str | None:
        """Return the goal of a review, in place of None where there is a better one."""

    @abstractmethod
    def _offer(self, fitted: PoolFit[F], before: L | None, open_: NDArray[np.bool_]) -> Offer:
        """Return what a review draws from; `open_`: bool[n], texts that are not judged."""

    @abstractmethod
    async def _from(self, judged: tuple[Judgment, ...]) -> L:
        """Learn from all judgments."""

    async def review(self, n: int, goal: str | None, seed: int) -> Review:
        """Draw texts of the pool to be judged."""
        checked_whole("n", n, least=1)
        if goal is not None and goal not in self._goals:
            several = "with multilabel=True " if self._parts.labels.multilabel else ""
            raise InvalidInputError(
                f"goal is {goal!r}; {several}choose from {', '.join(self._goals)}, or None"
            )
        await self._parts.ready()
        await self.load()
        fitted = await self._fitted()
        # read once: it can be another later
        return await asyncio.to_thread(self._drawn, fitted, n, goal, seed, self.learned)

    def _drawn(
        self, fitted: PoolFit[F], n: int, goal: str | None, seed: int, before: L | None
    ) -> Review:
        parts, found = self._parts, fitted.neighborhoods
        seen = set() if before is None else {j.hash for j in before.judged}
        open_ = np.array([key not in seen for key in fitted.rows], dtype=np.bool_)
        offer = self._offer(fitted, before, open_)
        rng = np.random.default_rng([seed, len(seen)])
        items: list[ReviewItem] = []
        for drawn in draw(n, self._goal(goal, before), offer.support, open_, offer.trust, rng):
            row, trust = drawn.row, float(offer.trust[drawn.row])
            entry, own = found.entries[row], found.predictions[row]
            items.append(
                ReviewItem(
                    index=len(items),
                    text=entry.text,
                    hash=entry.hash,
                    own_label=None if own is None else own.label,
                    candidates=tuple((label, tuple(by)) for label, by in offer.candidates(row)),
                    trust=None if isnan(trust) else trust,
                    neighbors=found.near(row, _SHOWN),
                    goal=drawn.goal,
                    probability=drawn.probability,
                    floor=drawn.floor,
                )
            )
        labels = parts.labels
        return Review(
            items,
            labels.names,
            len(fitted.rows),
            parts.model,
            offer.context,
            multilabel=labels.multilabel,
        )

    async def _fitted(self) -> PoolFit[F]:
        """Return what is fitted on the pool as it is."""
        parts = self._parts
        await parts.ready()
        most, k = self._wanted()
        found, vectors = await parts.pipeline.pool_predictions.labeled(
            parts.pipeline.settings, most, k
        )
        n = found.n_own
        if n < LEAST_TEXTS:
            raise InvalidInputError(
                f"the pool has {n} texts with a prediction; label at least {LEAST_TEXTS} first, by "
                "`classify_many` or `predict_pool`"
            )
        hashes = [entry.hash for entry in found.entries[:n]]
        said = ["" if p is None else f"{p.label}" for p in found.predictions[:n]]
        digest = blake2b(b"".join(hashes) + "\n".join(said).encode()).digest()
        if self._last is None or self._last.digest != digest:
            made = await asyncio.to_thread(self._fit, found, vectors, hashes)
            rows = {key: row for row, key in enumerate(hashes)}
            self._last = PoolFit(digest, found, rows, made)
        return self._last

    async def learn_from(self, review: Review) -> L:
        """Learn from the answers of a review, and from all earlier ones."""
        labels = self._parts.labels
        if review.labels != labels.names or review.multilabel != labels.multilabel:
            raise InvalidInputError("the review has another label set than this client")
        if not review.judged:
            raise InvalidInputError("the review has no answer yet; answer some of its items")
        last = review.judged[-1].index
        return await self._learn(
            [
                Judgment(
                    item.text,
                    item.hash,
                    item.answer,
                    item.source,
                    item.probability,
                    item.floor,
                    review.texts,
                    item.goal == "certify" and item.probability is not None,
                )
                for item in review[: last + 1]
            ]
        )

    async def learn_labels(self, texts: Iterable[str], labels: Sequence[Any]) -> L:
        """Learn from the labels of texts that were chosen at random."""
        parts = self._parts
        given = await checked_texts(texts)
        if isinstance(labels, str) or len(labels) != len(given):
            raise InvalidInputError(f"there are {len(given)} texts; give a list of as many labels")
        said = list(values(labels, "labels"))
        if not said:
            raise InvalidInputError("there is no labeled text to learn from")
        said = [self._known(label, position) for position, label in enumerate(said)]
        entries, places = await distinct(given)
        of_place: dict[int, str | None] = {}
        for place, label in zip(places.tolist(), said, strict=True):
            if of_place.setdefault(place, label) != label:
                raise InvalidInputError(
                    f"{entries[place].text[:60]!r} has the label {label!r} and, before, "
                    f"{of_place[place]!r}; give each text one label"
                )
        await parts.ready()
        neighborhoods = await parts.pipeline.prepare(entries, together=True)
        await parts.pipeline.predict_own(neighborhoods)
        vectors = await parts.embedding.vectors(
            [e.text for e in entries], [e.hash for e in entries]
        )
        # also where classified texts do not join the pool: candidates are fitted on the pool
        await parts.pool.add(entries, vectors)
        size = max(len(parts.pool), len(entries))
        await self.load()
        before = self.learned
        left = size - (len(before.judged) if before is not None else 0)
        return await self._learn(
            [
                Judgment(
                    entry.text,
                    entry.hash,
                    of_place[place],
                    "person",
                    chance := 1 / max(left - place, 1),
                    chance,
                    size,
                    uniform=True,
                )
                for place, entry in enumerate(entries)
            ]
        )

    def _known(self, said: Any, position: int) -> str | None:
        """Return the right label of a text, as a judgment holds it."""
        labels = self._parts.labels
        if said is None and not labels.multilabel:
            return None
        wrong = isinstance(said, str) and said not in labels
        close = closest_label(said, labels.names) if wrong else ""
        return known_label(labels, said, position, close)

    async def unlearn(self) -> bool:
        """Forget what was learned; returns whether there was anything."""
        parts = self._parts
        await parts.ready()
        drop = getattr(parts.store, "drop_learned", None)
        if drop is not None:
            await drop(_key(parts))
        self._data = None
        known = self.learned is not None
        parts.pipeline.settings = parts.settings
        return known

    async def load(self) -> None:
        """Read what was learned from the store, here or by another client since."""
        parts = self._parts
        get = getattr(parts.store, "get_learned", None)
        if get is None or not self.shared:
            return
        data = await get(_key(parts))
        if data == self._data:
            return
        self._data = data
        if data is None:
            parts.pipeline.settings = parts.settings
            return
        try:
            learned: L = await asyncio.to_thread(self._kind.from_bytes, data)
        except StoreError as error:
            _log.warning("%s; labels are those of the LLM and its neighbors", error)
            return
        parts.pipeline.settings = parts.settings.with_taught(learned)

    async def _learn(self, new: Sequence[Judgment]) -> L:
        async with self._lock:
            await self.load()
            before = self.learned
            judged = {j.hash: j for j in before.judged} if before is not None else {}
            for judgment in new:
                if judgment.source is not None or judgment.hash not in judged:
                    # a second judgment takes the place of the first, and its draw
                    old = judged.get(judgment.hash)
                    judged[judgment.hash] = (
                        judgment
                        if old is None
                        else replace(old, label=judgment.label, source=judgment.source)
                    )
            learned = await self._from(tuple(judged.values()))
            parts = self._parts
            put = getattr(parts.store, "put_learned", None)
            if put is not None and self.shared:
                data = await asyncio.to_thread(learned.to_bytes)
                await put(_key(parts), data)
                self._data = data
            # once, on success: a concurrent run uses the former settings
            parts.pipeline.settings = parts.settings.with_taught(learned)
        return learned


def _key(parts: Components) -> bytes:
    """Return the key of what was learned: of the predictions and of the embedder."""
    name = embedder_name(parts.embedder).encode()
    return blake2b(parts.predictor.scope + name, digest_size=16).digest()
