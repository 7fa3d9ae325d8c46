"""What all learning from judgments has in common: judgments are merged, kept and forgotten."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from dataclasses import replace
from hashlib import blake2b
from math import isnan
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from testnuc._engine.inputs import checked_texts, distinct, values
from testnuc.embedders.cache import embedder_name
from testnuc.errors import InvalidInputError, StoreError
from testnuc.trust.judgment import Judgment
from testnuc.trust.learned import Learned
from testnuc.trust.multilabel import MultilabelLearned
from testnuc.trust.review import ReviewItem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from testnuc._engine.components import Components
    from testnuc._engine.neighborhoods import Neighborhoods
    from testnuc.trust import Review
    from testnuc.trust.review import Drawn

__all__ = ["LEAST_TEXTS", "MOST_TEXTS", "LearningBase", "check_enough"]

_log = logging.getLogger("testnuc.client")

#: Texts that candidates are fitted on at most.
MOST_TEXTS = 200_000
#: Fewest texts with a prediction to learn from.
LEAST_TEXTS = 10
#: Neighbors shown with a text to be judged.
_SHOWN = 5

L = TypeVar("L", Learned, MultilabelLearned)


class LearningBase(ABC, Generic[L]):
    """What a client learns from judgments.

    Parameters
    ----------
    parts : Components
    """

    def __init__(self, parts: Components) -> None:
        self._parts = parts
        self._lock = asyncio.Lock()
        #: Whether what is learned is kept in the store, and read from there.
        self.shared = True
        #: What the store was last known to hold.
        self._data: bytes | None = None
        parts.on_open = self.load

    @property
    @abstractmethod
    def learned(self) -> L | None:
        """What was learned so far."""

    @abstractmethod
    async def review(self, n: int, goal: str | None, seed: int) -> Review:
        """Draw texts of the pool to be judged."""

    @abstractmethod
    async def _from(self, judged: tuple[Judgment, ...]) -> L:
        """Learn from all judgments."""

    @abstractmethod
    def _read(self, data: bytes) -> L:
        """Return what was learned from its bytes."""

    @abstractmethod
    def _checked(self, labels: Sequence[Any]) -> list[str | None]:
        """Return the right label of each text, as a judgment holds it."""

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
        said = self._checked(said)
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
            learned = await asyncio.to_thread(self._read, data)
        except StoreError as error:
            _log.warning("%s; labels are those of the LLM and its neighbors", error)
            return
        parts.pipeline.settings = parts.settings.with_taught(learned)

    @staticmethod
    def _item_of(
        found: Neighborhoods,
        index: int,
        drawn: Drawn,
        trust: float,
        candidates: Iterable[tuple[str | None, Sequence[str]]],
    ) -> ReviewItem:
        """Return a drawn text as an item of a review."""
        row = drawn.row
        own = found.predictions[row]
        return ReviewItem(
            index=index,
            text=found.entries[row].text,
            hash=found.entries[row].hash,
            own_label=None if own is None else own.label,
            candidates=tuple((label, tuple(by)) for label, by in candidates),
            trust=None if isnan(trust) else trust,
            neighbors=found.near(row, _SHOWN),
            goal=drawn.goal,
            probability=drawn.probability,
            floor=drawn.floor,
        )

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


def check_enough(texts: int) -> None:
    """Raise an `InvalidInputError` if too few texts have a prediction."""
    if texts < LEAST_TEXTS:
        raise InvalidInputError(
            f"the pool has {texts} texts with a prediction; label at least {LEAST_TEXTS} first, by "
            "`classify_many` or `predict_pool`"
        )


def _key(parts: Components) -> bytes:
    """Return the key of what was learned: of the predictions and of the embedder."""
    name = embedder_name(parts.embedder).encode()
    return blake2b(parts.predictor.scope + name, digest_size=16).digest()
