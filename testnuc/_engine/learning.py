"""Draw texts to be judged, learn from the judgments, and keep what was learned."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from testnuc._base.checks import checked_whole
from testnuc._engine.applying import said_of, texts_among
from testnuc._engine.inputs import checked_texts, distinct, values
from testnuc._engine.judgments import (
    class_of,
    context_of,
    default_model,
    dissent_of,
    draws_of,
    parts_of,
)
from testnuc.embedders.cache import embedder_name
from testnuc.errors import InvalidInputError, StoreError
from testnuc.trust.candidates import LabelCandidate, candidates_of, choose, differing
from testnuc.trust.chances import fit_trust
from testnuc.trust.learned import Judgment, Learned, chosen_parts, rounded
from testnuc.trust.model import NEIGHBORS, HeadModel
from testnuc.trust.review import GOALS, Drawn, Review, ReviewItem, closest_label, draw

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from testnuc._engine.components import Components
    from testnuc._engine.neighborhoods import Neighborhoods
    from testnuc.trust.model import Texts

__all__ = ["LEAST_TEXTS", "Learning"]

_log = logging.getLogger("testnuc.client")

#: Texts that candidates are fitted on at most.
_MOST_TEXTS = 200_000
#: Fewest texts with a prediction to learn from.
LEAST_TEXTS = 10
#: Neighbors shown with a text to be judged.
_SHOWN = 5


@dataclass(frozen=True, slots=True, eq=False)
class _PoolFit:
    """The texts of the pool, and the candidates that were fitted on them."""

    digest: bytes
    neighborhoods: Neighborhoods
    texts: Texts
    candidates: list[LabelCandidate]
    #: Position of each text, by hash.
    rows: dict[bytes, int]


class Learning:
    """What a client learns from judgments.

    Parameters
    ----------
    parts : Components
    """

    def __init__(self, parts: Components) -> None:
        self._parts = parts
        self._last: _PoolFit | None = None
        self._lock = asyncio.Lock()
        #: Whether what is learned is kept in the store, and read from there.
        self.shared = True
        parts.on_open = self.load

    @property
    def learned(self) -> Learned | None:
        """What was learned so far."""
        return self._parts.pipeline.settings.learned

    async def review(self, n: int, goal: str | None, seed: int) -> Review:
        """Draw texts of the pool to be judged."""
        checked_whole("n", n, least=1)
        if goal is not None and goal not in GOALS:
            raise InvalidInputError(f"goal is {goal!r}; choose from {', '.join(GOALS)}, or None")
        fitted = await self._fitted()
        before = self.learned
        seen = {j.hash for j in before.judged} if before is not None else set()
        return await asyncio.to_thread(self._drawn, fitted, n, goal, seed, seen)

    def _drawn(
        self, fitted: _PoolFit, n: int, goal: str | None, seed: int, seen: set[bytes]
    ) -> Review:
        entries = fitted.neighborhoods.entries
        open_ = np.array([e.hash not in seen for e in entries[: len(fitted.texts)]])
        kept, trust = self._kept(fitted)
        rng = np.random.default_rng([seed, len(seen)])
        drawn = draw(n, goal, differing(fitted.candidates), open_, trust, rng)
        items = [
            self._item(fitted, index, found, float(trust[found.row]), int(kept[found.row]))
            for index, found in enumerate(drawn)
        ]
        parts, before = self._parts, self.learned
        context = context_of(
            fitted.candidates,
            () if before is None else before.judged,
            fitted.rows,
            parts.labels,
            parts.instructions,
        )
        return Review(items, parts.labels.names, len(fitted.texts), parts.model, context)

    def _item(
        self, fitted: _PoolFit, index: int, drawn: Drawn, trust: float, kept: int
    ) -> ReviewItem:
        row = drawn.row
        found, names = fitted.neighborhoods, (*self._parts.labels.names, None)
        given: dict[str | None, list[str]] = {}
        for candidate in fitted.candidates:
            given.setdefault(names[int(candidate.labels[row])], []).append(candidate.name)
        if self.learned is not None:
            given.setdefault(names[kept], []).append("what was learned so far")
        own = found.predictions[row]
        return ReviewItem(
            index=index,
            text=found.entries[row].text,
            hash=found.entries[row].hash,
            own_label=None if own is None else own.label,
            candidates=tuple((label, tuple(by)) for label, by in given.items()),
            trust=None if np.isnan(trust) else trust,
            neighbors=found.near(row, _SHOWN),
            goal=drawn.goal,
            probability=drawn.probability,
            floor=drawn.floor,
            lowest=drawn.lowest,
        )

    async def learn_from(self, review: Review) -> Learned:
        """Learn from the answers of a review, and from all earlier ones."""
        if review.labels != self._parts.labels.names:
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
                    item.lowest,
                )
                for item in review[: last + 1]
            ]
        )

    async def learn_labels(self, texts: Iterable[str], labels: Sequence[str | None]) -> Learned:
        """Learn from the labels of texts that were chosen at random."""
        parts = self._parts
        given = await checked_texts(texts)
        if isinstance(labels, str) or len(labels) != len(given):
            raise InvalidInputError(f"there are {len(given)} texts; give a list of as many labels")
        said = list(values(labels, "labels"))
        if not said:
            raise InvalidInputError("there is no labeled text to learn from")
        for position, label in enumerate(said):
            if label is not None and (not isinstance(label, str) or label not in parts.labels):
                close = closest_label(label, parts.labels.names) if isinstance(label, str) else ""
                raise InvalidInputError(
                    f"label {position} is {label!r}, which is not in the label set{close}"
                )
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
                    chance,
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
        known = self.learned is not None
        parts.pipeline.settings = parts.settings
        return known

    async def load(self) -> None:
        """Read what was learned from the store."""
        parts = self._parts
        get = getattr(parts.store, "get_learned", None)
        data = None if get is None or not self.shared else await get(_key(parts))
        if data is None:
            return
        try:
            learned = await asyncio.to_thread(Learned.from_bytes, data)
        except StoreError as error:
            _log.warning("%s; labels are those of the LLM and its neighbors", error)
            return
        parts.pipeline.settings = parts.settings.with_learned(learned)

    async def _learn(self, new: Sequence[Judgment]) -> Learned:
        async with self._lock:
            fitted = await self._fitted()
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
            kept = await self._kept_by_settings(fitted)
            learned = await asyncio.to_thread(self._learned, fitted, tuple(judged.values()), kept)
            parts = self._parts
            put = getattr(parts.store, "put_learned", None)
            if put is not None and self.shared:
                await put(_key(parts), await asyncio.to_thread(learned.to_bytes))
            # once, on success: a concurrent run uses the former settings
            parts.pipeline.settings = parts.settings.with_learned(learned)
        return learned

    def _learned(
        self, fitted: _PoolFit, judged: tuple[Judgment, ...], kept: NDArray[np.int32]
    ) -> Learned:
        texts, candidates = fitted.texts, fitted.candidates
        known = [j for j in judged if j.hash in fitted.rows]
        where = np.array([fitted.rows[j.hash] for j in known], dtype=np.int64)
        gold = np.array(
            [class_of(j.label, j.source, self._parts.labels) for j in known], dtype=np.int32
        )
        drawn = np.array([j.probability is not None for j in known], dtype=np.bool_)
        rows, labels = where[drawn], gold[drawn]
        draws = draws_of([j for j in known if j.probability is not None], len(texts))
        support = differing(candidates)
        if draws.uniform:
            support = np.ones_like(support)
        verdict = choose(texts, candidates, rows, labels, draws, support)
        taught = texts.with_judged(where[gold >= 0], gold[gold >= 0])
        model, decides, bases = parts_of(verdict, candidates, taught, every=bool(drawn.all()))
        vote, _ = chosen_parts(candidates)
        learned = Learned(
            labels=self._parts.labels.names,
            name=verdict.chosen.name,
            decides=decides,
            gain=verdict.gain,
            judged=judged,
            texts=len(texts),
            model=model,
            vote=vote,
            bases=() if draws.uniform else bases,
            coefficients=np.tile([0.0, 1.0, 0.0], (5, 1)),
            trust=np.empty(0, dtype=np.float32),
            rows=rows,
            right=np.empty(0, dtype=np.bool_),
            person=np.array(
                [j.source != "referee" for j in known if j.probability is not None], dtype=np.bool_
            ),
            draws=draws,
            dissent=dissent_of(known, where, gold, candidates),
        )
        if decides == "vote":
            kept = verdict.chosen.labels
        found = model.probabilities(taught)
        label = learned.label(taught, kept, found)
        right = (label[rows] == labels) & (labels >= 0)
        coefficients = fit_trust(taught, found, label, rows, right, draws.probability)
        learned = replace(learned, coefficients=coefficients, right=right)
        trust = learned.trusts(taught, found, label).astype(np.float32)
        return replace(learned, trust=trust)

    def _kept(self, fitted: _PoolFit) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the labels that are kept now, as far as learned models give them, and trust."""
        learned, texts = self.learned, fitted.texts
        own = texts.own
        if learned is not None:
            said = said_of(fitted.neighborhoods, range(len(texts)), learned)
            pairs = [(row, label) for row, (label, _) in said.items() if label >= 0]
            judged = np.array(pairs, dtype=np.int64).reshape(-1, 2)
            texts = texts.with_judged(judged[:, 0], judged[:, 1].astype(np.int32))
            kept = own if learned.decides != "vote" else learned.vote.label(texts)
            applied = learned.apply(texts, kept)
            return applied.label, applied.trust
        model = default_model(fitted.candidates)
        found = model.probabilities(texts)
        trust = found[np.arange(len(texts)), np.maximum(own, 0)].astype(np.float64)
        return own, np.where(own >= 0, trust, 0.0)

    async def _kept_by_settings(self, fitted: _PoolFit) -> NDArray[np.int32]:
        """Return the labels that the settings of the client give without judgments."""
        found = fitted.neighborhoods
        found.settings = self._parts.settings
        await asyncio.to_thread(found.decide_by_settings)
        await asyncio.to_thread(found.balance)
        return (await asyncio.to_thread(found.counted_vote, slice(0, found.n_own))).label

    async def _fitted(self) -> _PoolFit:
        """Return the candidates, fitted on the pool as it is."""
        parts = self._parts
        await parts.ready()
        found, vectors = await parts.pipeline.labeled_pool(_MOST_TEXTS, NEIGHBORS)
        n = found.n_own
        if n < LEAST_TEXTS:
            raise InvalidInputError(
                f"the pool has {n} texts with a prediction; label at least {LEAST_TEXTS} first, "
                "by `classify_many` or `predict_pool`"
            )
        hashes = [entry.hash for entry in found.entries[:n]]
        own = found.answers()[0][:n].copy()
        digest = blake2b(b"".join(hashes) + own.tobytes()).digest()
        if self._last is not None and self._last.digest == digest:
            return self._last
        texts = texts_among(found, np.arange(n), vectors, own)
        candidates = await asyncio.to_thread(candidates_of, texts)
        for i, candidate in enumerate(candidates):
            if isinstance(candidate.model, HeadModel):
                model = rounded(candidate.model)
                candidates[i] = replace(candidate, model=model)
        self._last = _PoolFit(
            digest, found, texts, candidates, {key: row for row, key in enumerate(hashes)}
        )
        return self._last


def _key(parts: Components) -> bytes:
    """Return the key of what was learned: of the predictions and of the embedder."""
    name = embedder_name(parts.embedder).encode()
    return blake2b(parts.predictor.scope + name, digest_size=16).digest()
