"""Learn from judgments: texts are drawn, judgments merged, kept and erased, a rule is learned."""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from math import isnan
from typing import Any, TypeAlias, cast

import numpy as np

from testnuc._base.checks import checked_choice, checked_whole, names_of, values
from testnuc._base.display import today
from testnuc._engine.argmax_learning import ArgmaxFit
from testnuc._engine.carried import added_labels, judgments_of
from testnuc._engine.components import Components
from testnuc._engine.inputs import checked_texts, distinct, labels_by_place
from testnuc._engine.rows import nearest
from testnuc._engine.shortlist import described
from testnuc._engine.threshold_learning import ThresholdFit
from testnuc.embedders.cache import embedder_name
from testnuc.errors import InvalidInputError, StoreError, TestNUCError
from testnuc.trust import certificates
from testnuc.trust.audit import AuditWeek, is_audit
from testnuc.trust.evidence import Judgment
from testnuc.trust.learned import Learned
from testnuc.trust.review import Drawn, Review, ReviewItem, closest_label, draw
from testnuc.types import LEVELS

Fit: TypeAlias = ArgmaxFit | ThresholdFit

_log = logging.getLogger("testnuc.client")

#: Fewest texts with a prediction to learn from.
LEAST_TEXTS = 10
#: Neighbors shown with a text to be judged.
_SHOWN = 5
#: Of so many labels the page shows all; of more, so many whose names are similar to the text.
_SIMILAR_ABOVE, _SIMILAR = 5, 3
#: Who gives such a label.
SIMILAR = "its name"


class Learning:
    """What a client learns from judgments."""

    def __init__(self, parts: Components) -> None:
        self._parts = parts
        #: How a rule is fitted.
        self._way = ArgmaxFit if parts.settings.threshold is None else ThresholdFit
        self._lock = asyncio.Lock()
        #: What the store was last known to hold.
        self._data: bytes | None = None
        #: Why that cannot be read.
        self._unread: StoreError | None = None
        #: What was fitted last, and the digest of the predictions that it was fitted on.
        self._last: tuple[bytes, Fit] | None = None

    @property
    def learned(self) -> Learned | None:
        """What was learned so far."""
        return self._parts.pipeline.settings.learned

    async def review(self, n: int, goal: str | None, seed: int, *, mixed: bool = False) -> Review:
        """Draw texts of the pool to be judged; without a goal, `mixed` ones whatever is learned."""
        checked_whole("n", n, least=1)
        checked_whole("seed", seed, least=0)
        if goal is not None:
            checked_choice("goal", goal, self._way.goals)
        await self.load()
        fitted = await self._fitted()
        if goal is None and not mixed:
            goal = fitted.goal(self.learned)
        known = self.learned if goal == "certify" else None
        if known and _lacks_some(known, fitted) and not known.certify().coverage:
            # the same judgments, for the texts that are left: else what is drawn would only teach
            await self._learn((), None)
        # read once: it can be another later
        before = self.learned if goal != "certify" else await self._extended(fitted)
        drawn = await asyncio.to_thread(self._drawn, fitted, n, goal, seed, before)
        return await self._with_similar(drawn)

    async def _with_similar(self, review: Review) -> Review:
        """Offer the labels whose names are most similar to each text, too: some no candidate gives.

        Where names cannot be embedded, a person still finds all labels in a field.
        """
        embedding, labels = self._parts.embedding, self._parts.labels
        names = [name for name in labels.names if name != labels.none_label]
        if len(names) <= _SIMILAR_ABOVE or not len(review):
            return review
        try:
            vectors = await embedding.embed(described(labels.some(names)))
        except TestNUCError as error:
            _log.debug("labels are not offered by similarity: %s", error)
            return review
        own = await embedding.embed([item.text for item in review])
        nearest_first = np.argsort(-(own @ vectors.T), axis=1)
        items = []
        for item, near in zip(review, nearest_first[:, :_SIMILAR].tolist(), strict=True):
            known = {label for label, _ in item.candidates}
            new = [(names[at], (SIMILAR,)) for at in near if names[at] not in known]
            items.append(replace(item, candidates=(*item.candidates, *new)))
        return review.with_items(items)

    async def _extended(self, fit: Fit) -> Learned | None:
        """Return what was learned; texts that came since get a trust, which is fixed then."""
        async with self._lock:
            while (before := self.learned) is not None and isinstance(fit, ArgmaxFit):
                data = self._data
                if not _is_ranked(before, fit) or before.texts == len(fit.rows):
                    break
                if await self._keep(await asyncio.to_thread(fit.extended, before), data):
                    break
                await self.load()
        return self.learned

    def _drawn(
        self, fit: Fit, n: int, goal: str | None, seed: int, before: Learned | None
    ) -> Review:
        parts, run = self._parts, fit.run
        # answers of a referee that are not used leave a text open
        seen = set() if before is None else {j.hash for j in before.used}
        open_ = np.array([entry.hash not in seen for entry in run.batch.own], dtype=np.bool_)
        if goal == "later" and before is not None:
            later = before.first_later(len(open_))
            open_[:later] = False
            # nothing came later: others are texts that the LLM was not asked about
            goal = goal if later else "count"
        offer = fit.offer(before, open_)
        rng = np.random.default_rng([seed, len(seen)])
        items: list[ReviewItem] = []
        ranking = ""
        if goal == "certify" and before is not None and _is_ranked(before, fit):
            ranking = before.ranking
            found = [Drawn(row, goal) for row in before.next_to_prove(n, rng)]
        else:
            # they keep the draw that they came from
            asked = () if before is None else before.reopened
            rows = [fit.rows[one.hash] for one in asked if one.hash in fit.rows][:n]
            found = [Drawn(row, "correct") for row in rows]
            found += draw(n - len(rows), goal, offer.support, open_, offer.trust, rng)
        for drawn in found:
            row, trust = drawn.row, float(offer.trust[drawn.row])
            entry, own = run.batch.entries[row], run.answers.predictions[row]
            items.append(
                ReviewItem(
                    index=len(items),
                    text=entry.text,
                    hash=entry.hash,
                    own_label=None if own is None else own.label,
                    candidates=tuple((label, tuple(by)) for label, by in offer.candidates(row)),
                    trust=None if isnan(trust) or not offer.calibrated else trust,
                    neighbors=nearest(run, row, _SHOWN),
                    goal=drawn.goal,
                    probability=drawn.probability,
                    floor=drawn.floor,
                    label=offer.label(row),
                )
            )
        return Review(
            items, parts.labels, len(fit.rows), parts.model, offer.context, ranking=ranking
        )

    async def _fitted(self) -> Fit:
        parts = self._parts
        run, vectors = await parts.pipeline.pool_predictions.labeled(
            parts.pipeline.settings, *self._way.wanted(parts)
        )
        n = run.batch.n_own
        if n < LEAST_TEXTS:
            raise InvalidInputError(
                f"the pool has {n} texts with a prediction; label at least {LEAST_TEXTS} first, by "
                "`classify_many` or `predict_pool`"
            )
        said = ["" if p is None else f"{p.label}" for p in run.answers.predictions[:n]]
        hashes = b"".join(entry.hash for entry in run.batch.own)
        digest = blake2b(hashes + "\n".join(said).encode()).digest()
        if self._last is None or self._last[0] != digest:
            self._last = digest, await asyncio.to_thread(self._way, parts, run, vectors)
        return self._last[1]

    async def learn_from(
        self,
        judged: Review | Learned,
        was: Mapping[str, Sequence[str]] | None = None,
        protect: Iterable[str] | None = None,
    ) -> Learned:
        """Learn from a review, or from what was learned with other labels, and all earlier ones."""
        labels = self._parts.labels
        if was is not None:
            was = names_of("was", was)
        if protect is None and isinstance(judged, Learned):
            kept = {*judged.protected}
            protect = [n for n in labels.names if kept & {*(was or {}).get(n, [n])}] or None
        found, protected = judgments_of(judged, labels, was), self._protected(protect)
        if added := {*added_labels(labels, judged.labels, was or {})}:
            fit = await self._fitted()
            for at, one in enumerate(found):
                row = fit.rows.get(one.hash)
                now = None if row is None else fit.run.answers.predictions[row]
                if now is not None and added & {*now.labels}:
                    # who judged it could not choose the label that the LLM gives it now
                    known = one.source is not None
                    maybe = labels.split(one.label or "") if known else one.possible
                    maybe = (*maybe, *added) if maybe else ()
                    found[at] = replace(one, label=None, source=None, possible=maybe)
        return await self._learn(found, protected)

    def _protected(self, names: Iterable[str] | None) -> tuple[int, ...] | None:
        """Return the numbers of labels, or of those below a level of a tree."""
        if names is None:
            return None
        known, found = self._parts.labels.names, set[int]()
        for name in [names] if isinstance(names, str) else values(names, "protect"):
            of = [n for n, it in enumerate(known) if f"{it}{LEVELS}".startswith(f"{name}{LEVELS}")]
            if not of:
                close = closest_label(name, known)
                raise InvalidInputError(f"protect: {name!r} is not in the label set{close}")
            found.update(of)
        return tuple(sorted(found))

    async def learn_labels(
        self, texts: Iterable[str], labels: Sequence[Any], protect: Iterable[str] | None = None
    ) -> Learned:
        """Learn from the labels of texts that were chosen at random."""
        parts, protected = self._parts, self._protected(protect)
        entries, places = await distinct(await checked_texts(texts))
        if not entries:
            raise InvalidInputError("there is no labeled text to learn from")
        right = labels_by_place(entries, places, labels, parts.labels, none=True)
        run = await parts.pipeline.prepare(entries, together=True)
        await parts.pipeline.predict_own(run)
        # also where classified texts do not join the pool: candidates are fitted on the pool
        await parts.pool.add(entries, await parts.embedding.vectors(entries))
        size = max(len(parts.pool), len(entries))
        await self.load()
        before = self.learned
        unjudged = size - (len(before.judged) if before is not None else 0)
        judged = []
        for place, entry in enumerate(entries):
            chance = 1 / max(unjudged - place, 1)
            drawn = (entry.text, entry.hash, right[place], "person", chance, chance, size)
            judged.append(Judgment(*drawn, uniform=True))
        return await self._learn(judged, protected)

    async def unlearn(self) -> bool:
        """Forget what was learned; returns whether there was anything.

        What cannot be read is set aside under another key: a newer version may read it.
        """
        parts = self._parts
        await self.load()
        known = self.learned is not None or self._unread is not None
        if self._unread is not None and self._data is not None:
            aside = blake2b(_key(parts) + self._data, digest_size=16).digest()
            await parts.store.swap_learned(aside, None, self._data)  # type: ignore[attr-defined]
        drop = getattr(parts.store, "drop_learned", None)
        if drop is not None:
            await drop(_key(parts))
        self._data = self._unread = None
        parts.pipeline.settings = parts.settings
        return known

    async def open(self) -> None:
        """Read what was learned; say so if that has another embedder."""
        await self.load()
        parts, store = self._parts, cast("Any", self._parts.store)
        unknown = self._data is None and parts.internals.shared and hasattr(store, "embedders")
        for name, _ in await store.embedders() if unknown else ():
            if await store.get_learned(key_of(parts.predictor.scope, name)) is not None:
                _log.warning("this run was judged with another embedder: embedder=%r", name)

    async def load(self) -> None:
        """Read what was learned from the store, here or by another client since."""
        parts = self._parts
        get = getattr(parts.store, "get_learned", None)
        if get is None or not parts.internals.shared:
            return
        data = await get(_key(parts))
        if data == self._data:
            return
        settings, unread = parts.settings, None
        if data is not None:
            try:
                learned = await asyncio.to_thread(Learned.from_bytes, data)
                if learned.labels != parts.labels.names:
                    said = "what was learned in this place of the store is of other labels; "
                    raise StoreError(f"{said}learn again after `unlearn`, which sets it aside")  # noqa: TRY301
                settings = settings.with_learned(learned)
            except StoreError as error:
                unread = error
                _log.warning("%s; labels are those of the LLM and its neighbors", error)
        # together: `learned` is what this data says
        self._data, self._unread, parts.pipeline.settings = data, unread, settings

    async def _learn(self, given: Sequence[Judgment], protected: tuple[int, ...] | None) -> Learned:
        """Learn; None: what was protected before still is."""
        new = [replace(judgment, day=judgment.day or today()) for judgment in given]
        async with self._lock:
            while True:
                await self.load()
                if self._unread is not None:
                    raise self._unread  # its judgments would be lost
                before, data = self.learned, self._data
                earlier = () if before is None else before.judged
                fitted = await self._fitted()
                judged = _merged(earlier, _as_later(new, earlier, fitted.rows))
                added = {*judged} - {*earlier}
                if (kept := protected) is None:
                    kept = () if before is None else before.rule.protected
                if (
                    before is not None
                    and kept == before.rule.protected
                    and _is_ranked(before, fitted)
                    and all(j.ranking in before.current for j in added)
                    and (added or not before.unused(fitted.rows))
                    # else texts that judged ones were drawn from may have come since
                    and (added or before.draws.drawn.any())
                ):
                    # all that is new was drawn to certify the labels as they are
                    learned = await asyncio.to_thread(fitted.checked, before, judged)
                else:
                    learned = await asyncio.to_thread(fitted.learned, judged, kept)
                    learned = learned.ranked([*fitted.rows])
                # else another client has learned meanwhile: its judgments count as well
                if await self._keep(learned, data):
                    return learned

    async def _keep(self, learned: Learned, before: bytes | None) -> bool:
        """Store what was learned, and use it; False: the store no longer holds what was before."""
        parts = self._parts
        swap = getattr(parts.store, "swap_learned", None)
        if swap is not None and parts.internals.shared:
            data = await asyncio.to_thread(learned.to_bytes)
            if not await swap(_key(parts), before, data):
                return False
            self._data = data
        # once, on success: a concurrent run uses the former settings
        parts.pipeline.settings = parts.settings.with_learned(learned)
        return True


def _is_ranked(learned: Learned, fit: Fit) -> bool:
    """Whether the first texts of the pool are those that were ranked."""
    return learned.ranking != "" and learned.ranking == learned.ranking_of([*fit.rows])


def _lacks_some(learned: Learned, fit: Fit) -> bool:
    """Whether few of the texts that were ranked are gone: the first of the pool are the others."""
    rows, ranked = [*map(certificates.key_of, fit.rows)], learned.keys.tolist()
    here = {*rows}
    left = [key for key in ranked if key in here]
    return len(ranked) / 2 < len(left) < len(ranked) and left == rows[: len(left)]


def _as_later(
    new: Sequence[Judgment], earlier: Sequence[Judgment], rows: Mapping[bytes, int]
) -> Sequence[Judgment]:
    """Return new judgments; draws of another store from what came later here say that they are."""
    drawn = [one for one in new if one.uniform and one.probability is not None and one.hash in rows]
    ends = [one.texts for one in earlier if one.uniform]
    ends += [one.texts for one in drawn] if ends else []
    if not drawn or not ends or min(rows[one.hash] for one in drawn) < max(ends):
        return new
    return [
        one if one.ranking else replace(one, probability=None, floor=None, texts=len(rows))
        for one in new
    ]


def _merged(earlier: Sequence[Judgment], new: Sequence[Judgment]) -> tuple[Judgment, ...]:
    """Return all judgments; a second one of a text takes the place of the first, and its draw.

    But what a person judged is not judged again by a referee. Reviews of one draw that are learned
    from again say anew whether several people agree.
    """
    judged = {judgment.hash: judgment for judgment in earlier}
    for judgment in new:
        old = judged.get(judgment.hash)
        if old is None:
            judged[judgment.hash] = judgment
            continue
        change, drawn = (old.source, judgment.source), judgment.probability is not None
        again = _same_draw(old, judgment)
        if judgment.source is None or change == ("person", "referee"):
            if judgment.agreed is False:
                # what one judge, or others, had said is open now; what was settled stays
                alone = old.source == "person" and old.agreed is not False
                found = replace(old, label=None, source=None, by="") if alone else old
                judged[judgment.hash] = replace(found, agreed=False)
            elif again and judgment.source is None:
                judged[judgment.hash] = replace(old, agreed=None)
            continue
        if change == ("referee", "person") and (drawn or judgment.ranking):
            # of the same review, or drawn again, as if the referee had not been asked
            del judged[judgment.hash]
            judged[judgment.hash] = judgment
            continue
        now = replace(
            old,
            **{name: getattr(judgment, name) for name in ("label", "source", "by", "possible")},
            agreed=judgment.agreed if again or judgment.agreed is not None else old.agreed,
            # who confirms an answer of a referee by hand chooses which
            uniform=judgment.uniform if again or "referee" in change else old.uniform,
        )
        judged[judgment.hash] = old if now == old else replace(now, day=judgment.day)
    return tuple(judged.values())


def _same_draw(one: Judgment, two: Judgment) -> bool:
    """Whether both are of one draw of a text; what was chosen is of none."""
    drawn = one.probability is not None or one.ranking or (one.uniform and two.uniform)
    return bool(drawn) and (one.probability, one.ranking) == (two.probability, two.ranking)


def _key(parts: Components) -> bytes:
    return key_of(parts.predictor.scope, embedder_name(parts.embedder))


def key_of(scope: bytes, embedder: str) -> bytes:
    """Return the key of what was learned: of the predictions and of the embedder."""
    return blake2b(scope + embedder.encode(), digest_size=16).digest()


def numbered(scopes: Iterable[tuple[bytes, Mapping[str, Any]]]) -> dict[bytes, int]:
    """Return the number of each run in a store, from 1 on, which stays the same."""
    told = (scope for scope, facts in scopes if facts.get("labels"))
    return {scope: number for number, scope in enumerate(told, 1)}


async def learned_in(store: Any, scopes: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return what was learned from the predictions of each scope, by whichever embedder is last."""
    held = dict(await store.learned())
    names = [name for name, _ in await store.embedders()]
    keys = ((scope, key_of(scope, name)) for scope in scopes for name in names)
    return {scope: held[key] for scope, key in keys if key in held}


async def erase_texts(store: Any, hashes: Collection[bytes]) -> set[bytes]:
    """Delete all that a store holds of texts; return the hashes of which there was something."""
    if not hasattr(store, "erase"):
        raise InvalidInputError(f"{type(store).__name__} cannot erase; give a path as store")
    gone, found = frozenset(hashes), set[bytes]()
    for key, data in await store.learned():
        rest, held = _without(data, gone)
        if rest != data and not await store.swap_learned(key, data, rest):
            # it was changed meanwhile
            return await erase_texts(store, hashes)
        found |= held
    # last: it overwrites what was deleted
    return found.union(await store.erase([*gone]))


def _without(data: bytes, gone: frozenset[bytes]) -> tuple[bytes, frozenset[bytes]]:
    """Return what was learned, or set aside, without texts; and those that it held."""
    if is_audit(data):
        week = AuditWeek.of(data)
        held = week.erase(gone)
        return week.to_bytes() if held else data, held
    if data.startswith(b"{"):
        # of an audit: numbers alone
        return data, frozenset()
    learned = Learned.from_bytes(data)
    left, held = learned.without(gone), gone & {one.hash for one in learned.judged}
    return data if left is learned else left.to_bytes(), held
