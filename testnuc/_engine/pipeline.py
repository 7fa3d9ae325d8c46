"""The way of a text: embed, find neighbors, ask, vote.

`Pipeline.prepare` finds the neighbors of texts in one snapshot of the pool, `Pipeline.predict` gets
the predictions that their votes need. Both work on a `Neighborhoods`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from testnuc._engine.examples import ExampleFinder
from testnuc._engine.neighborhoods import Neighborhoods, Snapshot, numbers_of, placed
from testnuc._engine.sampling import Sampler
from testnuc.protocols import Matches, PoolText
from testnuc.trust import MIN_PREDICTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from testnuc._dispatch.predictor import Predictor
    from testnuc._dispatch.scheduler import Scheduler
    from testnuc.embedders.cache import EmbeddingCache
    from testnuc.labels import LabelSet
    from testnuc.protocols import Index, Method, Store
    from testnuc.trust import Diagnosis, VoteSettings
    from testnuc.types import Prediction

__all__ = ["Pipeline"]

#: Queries searched at a time, so that other searches wait milliseconds.
_SEARCH = 1_024
#: A batch with so many predictions decides for itself; a smaller one by the pool's.
_WINDOW_DECIDES = 2_000
#: Parts of a large pool that are looked at.
_CHUNKS = 12
#: Texts whose stored predictions are looked up between two turns of the event loop.
_BLOCK = 256
#: How many times more neighbors are fetched when too few of them have a prediction.
_WIDEN = 4


@dataclass(frozen=True, slots=True)
class _Look:
    """What a look at the pool found, and when."""

    #: Texts in the pool.
    size: int
    #: Outcomes that had come in.
    outcomes: int
    found: Diagnosis

    def holds(self, size: int, outcomes: int) -> bool:
        """Whether another look would hardly find more: until the pool has grown by a quarter.

        Where there were too few predictions to judge by, until there can be enough.
        """
        missing = MIN_PREDICTIONS - self.found.predictions
        if missing > 0 and outcomes - self.outcomes + size - self.size >= missing:
            return False
        return size < 1.25 * self.size


class Pipeline:
    """Embeds, retrieves and asks for one client.

    Parameters
    ----------
    labels, settings, method
        What to vote on, how, on which predictions; ``settings.k`` neighbors are retrieved.
    neighbors : {"predict", "stored"}
        Whether neighbors without a prediction are asked about, or not considered.
    asker, fanout, embedding, pool, store
        The steps.
    join_pool : bool
        Whether texts that are classified become neighbors of later ones.
    """

    def __init__(
        self,
        labels: LabelSet,
        settings: VoteSettings,
        method: Method,
        neighbors: Literal["predict", "stored"],
        *,
        asker: Predictor,
        fanout: Scheduler,
        embedding: EmbeddingCache,
        pool: Index,
        store: Store,
        join_pool: bool,
    ) -> None:
        self.labels = labels
        #: Replaced as a whole; each run reads it once.
        self.settings = settings
        self._looked: _Look | None = None
        self._looking: asyncio.Task[Diagnosis] | None = None
        #: Texts whose outcome came in: no more predictions can have been made than these.
        self._outcomes = 0
        self.method = method
        self.neighbors = neighbors
        self.join_pool = join_pool
        self._asker = asker
        #: Lane -> what asks in it; the client adds those that it needs.
        self.lanes = {"live": fanout}
        self._embedding = embedding
        self._pool = pool
        self._store = store
        self._contexts: ExampleFinder | None = None
        if method.context:
            self._contexts = ExampleFinder(
                method, asker=asker, embedding=embedding, pool=pool, store=store
            )

    async def prepare(
        self, texts: Sequence[PoolText], *, together: bool, settings: VoteSettings | None = None
    ) -> Neighborhoods:
        """Find the neighbors of distinct texts.

        Parameters
        ----------
        texts : sequence of PoolText
            Distinct.
        together : bool
            True: the texts are each other's neighbors (they join the pool first). False: they see
            the pool as it is (and join it afterwards).
        settings : VoteSettings, optional
            For this run alone; default: those of the client.
        """
        settings = settings or self.settings
        hashes = [entry.hash for entry in texts]
        vectors = await self._embedding.vectors([entry.text for entry in texts], hashes)
        known = await self._pool.labels(hashes)
        await asyncio.sleep(0)
        texts = [
            entry if label is None else replace(entry, label=label)
            for entry, label in zip(texts, known, strict=True)
        ]
        together = together and self.join_pool
        upto = await self._pool.add(texts, vectors) if together else None
        snapshot = None
        if self._contexts is not None:
            upto = await self._contexts.snapshot() if upto is None else upto
            snapshot = Snapshot(upto)
            if not self.join_pool:
                snapshot.vectors = dict(zip(hashes, vectors, strict=True))
            if self.neighbors == "stored":
                snapshot.askable = frozenset(hashes) if together else frozenset()
        matches = await self._search(texts, vectors, settings.k, upto, together=together)
        if self.join_pool and not together:
            await self._pool.add(texts, vectors)
        window = await self._window(texts, matches, settings)
        window.snapshot = snapshot
        return window

    async def predict(
        self, window: Neighborhoods, *, waves: bool, done: Callable[[int], None] | None = None
    ) -> None:
        """Get the predictions that the votes of a window need.

        Parameters
        ----------
        window : Neighborhoods
        waves : bool
            Ask neighbors in waves and stop where the winner is certain.
        done : callable, optional
            Told each place whose prediction is in or failed.
        """
        own = range(window.n_own)
        if window.counting.policy is None:
            await self._ask(window, own, done)
            await self._decide(window)
        elif self.neighbors == "stored":
            # neighbors have theirs already, but for those that are asked about here
            await self._ask(window, own, done)
        elif not waves or window.neighbors.shape[1] == 0 or window.counting.prior is not None:
            await self._ask(window, _in_order(window, np.arange(window.n_own), None), done)
        else:
            rows = np.arange(window.n_own)
            for known in window.waves():
                await self._ask(window, _in_order(window, rows, known), done)
                rows = rows[~await _aside(len(rows), window.cut, rows, known)]
                if not len(rows):
                    break

    async def predict_own(self, window: Neighborhoods) -> None:
        """Get the predictions of the own texts, and those of neighbors that are stored."""
        await self._ask(window, range(window.n_own), None)
        await self._fill(window, range(window.n_own, len(window.entries)))

    async def _decide(self, window: Neighborhoods) -> None:
        """Decide by the predictions that there are, and ask about neighbors only if they vote."""
        decision = window.counting.decision
        if decision is None:
            if self.neighbors == "predict":
                await self._fill(window, range(window.n_own, len(window.entries)))
            predicted = sum(p is not None for p in window.predictions[: window.n_own])
            if predicted >= min(_WINDOW_DECIDES, max(len(self._pool) // 2, MIN_PREDICTIONS)):
                window.diagnosis = await asyncio.to_thread(window.diagnose)
            else:
                window.diagnosis = await self._last_diagnosis()
            decision = window.diagnosis.decision
        window.decide(decision)
        if decision.policy is not None and self.neighbors == "predict":
            voters = _in_order(window, np.arange(window.n_own), decision.k)
            await self._ask(window, voters, None)

    async def _last_diagnosis(self) -> Diagnosis:
        """Return what a look at the pool found not long ago; a thousand callers look once."""
        look = self._looked
        if look is not None and look.holds(len(self._pool), self._outcomes):
            return look.found
        if self._looking is None:
            self._looking = asyncio.create_task(self.diagnose(), name="testnuc-diagnose")
            self._looking.add_done_callback(self._end_look)
        # one caller that is cancelled leaves it to the others
        return await asyncio.shield(self._looking)

    def _end_look(self, look: asyncio.Task[Diagnosis]) -> None:
        self._looking = None
        if not look.cancelled():
            # whoever waits for it hears of a failure; perhaps nobody does any more
            look.exception()

    async def diagnose(self) -> Diagnosis:
        """Look at the predictions of the pool."""
        settings = self.settings
        size, outcomes = len(self._pool), self._outcomes
        chunks = range(0, size, _SEARCH)
        if len(chunks) > _CHUNKS:
            # spread over the pool, so that old and new texts are looked at
            chunks = range(0, size, size // _CHUNKS)
        texts: list[PoolText] = []
        for start in chunks:
            part, _ = await self._pool.scan(start, _SEARCH)
            stored = await self._stored(part)
            texts += [
                e for e, p in zip(part, stored, strict=True) if p is not None or e.label is not None
            ]
        if len(texts) < MIN_PREDICTIONS:
            window = await self._window(texts, _nobody(len(texts)), settings)
        else:
            hashes = [entry.hash for entry in texts]
            vectors = await self._embedding.vectors([entry.text for entry in texts], hashes)
            matches = await self._search(texts, vectors, settings.k, None, together=False)
            window = await self._window(texts, matches, settings)
        await self._fill(window, range(len(window.entries)))
        found = await asyncio.to_thread(window.diagnose)
        self._looked = _Look(size, outcomes, found)
        return found

    async def predict_pool(self, advance: Callable[[], None], lane: str = "live") -> None:
        """Get a prediction of every text of the pool that has none."""
        start: int | None = 0
        snapshot = None
        if self._contexts is not None:
            snapshot = Snapshot(await self._contexts.snapshot())
        while start is not None:
            texts, start = await self._pool.scan(start, _SEARCH)
            while lane != "live" and start is not None:
                # all at once: each part would be a day
                more, start = await self._pool.scan(start, _SEARCH)
                texts += more
            window = await self._window(texts, _nobody(len(texts)), self.settings)
            window.snapshot, window.lane = snapshot, lane
            if snapshot is not None and self.neighbors == "stored":
                await self._fill(window, range(len(texts)))
            await self._ask(window, range(len(texts)), lambda _: advance())

    async def _search(
        self,
        texts: Sequence[PoolText],
        vectors: NDArray[np.float16],
        k: int,
        upto: int | None,
        *,
        together: bool,
    ) -> Matches:
        batch = {entry.hash for entry in texts} if together else set()
        matches: Matches | None = None
        for start in range(0, len(texts), _SEARCH):
            part = slice(start, start + _SEARCH)
            hashes = [entry.hash for entry in texts[part]]
            if self.neighbors == "stored":
                found = await self._search_stored(vectors[part], hashes, k, upto, batch)
            else:
                found = await self._pool.search(vectors[part], k, exclude=hashes, upto=upto)
            if len(found.ids) == len(texts):
                return found
            if matches is None:
                # made once at full length: joining parts would hold everything twice
                shape = (len(texts), found.ids.shape[1])
                matches = Matches(np.empty(shape, np.int64), np.empty(shape, np.float32))
            matches.ids[part] = found.ids
            matches.similarities[part] = found.similarities
        return _nobody(0) if matches is None else matches

    async def _search_stored(
        self,
        vectors: NDArray[np.float16],
        hashes: Sequence[bytes],
        k: int,
        upto: int | None,
        batch: set[bytes],
    ) -> Matches:
        """Find the k nearest texts that have a prediction, or will have one with this batch."""
        ids = np.full((len(vectors), k), -1, dtype=np.int64)
        similarities = np.zeros((len(vectors), k), dtype=np.float32)
        usable: dict[int, bool] = {}
        rows = np.arange(len(vectors))
        want = k
        while len(rows) and want:
            found = await self._pool.search(
                vectors[rows], want, exclude=[hashes[i] for i in rows.tolist()], upto=upto
            )
            await self._note_usable(found.ids, batch, usable)
            missing = []
            for at, row in enumerate(rows.tolist()):
                good = [j for j, i in enumerate(found.ids[at].tolist()) if i >= 0 and usable[i]]
                good = good[:k]
                ids[row, : len(good)] = found.ids[at, good]
                similarities[row, : len(good)] = found.similarities[at, good]
                if len(good) < k and found.ids[at, -1] >= 0:
                    missing.append(row)
            rows = np.array(missing, dtype=np.int64)
            want *= _WIDEN
        return Matches(ids, similarities)

    async def _note_usable(
        self, ids: NDArray[np.int64], batch: set[bytes], usable: dict[int, bool]
    ) -> None:
        new = np.array([i for i in np.unique(ids).tolist() if i >= 0 and i not in usable], np.int64)
        entries = await self._pool.fetch(new)
        asked = [i for i, e in enumerate(entries) if e.label is None and e.hash not in batch]
        stored = await self._stored([entries[i] for i in asked])
        have = dict(zip(asked, stored, strict=True))
        for at, row in enumerate(new.tolist()):
            usable[row] = at not in have or have[at] is not None

    async def _stored(self, entries: Sequence[PoolText]) -> list[Prediction | None]:
        """Return the prediction of each text if all of its samples are stored."""
        found: list[Prediction | None] = []
        for start in range(0, len(entries), _BLOCK):
            found += await self._stored_block(entries[start : start + _BLOCK])
            await asyncio.sleep(0)
        return found

    async def _stored_block(self, entries: Sequence[PoolText]) -> list[Prediction | None]:
        if self._contexts is not None:
            return await self._contexts.stored(entries)
        n = self.method.samples
        keys = [
            self._asker.ask(entry.text, entry.hash, 0, sample).key
            for entry in entries
            for sample in range(n)
        ]
        found = await self._store.get_predictions(keys)
        samples = [[p for p in found[i : i + n] if p is not None] for i in range(0, len(found), n)]
        return [self.method.reduce(of) if len(of) == n else None for of in samples]

    async def _window(
        self, texts: Sequence[PoolText], matches: Matches, settings: VoteSettings
    ) -> Neighborhoods:
        """Give each text a place: own texts first, then the neighbors that are none of them."""
        ids = await _aside(len(texts), numbers_of, matches)
        others = await self._pool.fetch(ids)
        window: Neighborhoods = await _aside(
            len(texts), placed, self.labels, settings, texts, ids, others, matches
        )
        if self.neighbors == "stored":
            await self._fill(window, range(len(texts), len(window.entries)))
        return window

    async def _fill(self, window: Neighborhoods, places: Iterable[int]) -> None:
        """Put the stored predictions of the texts at some places."""
        unknown = [place for place in places if not window.asked(place)]
        stored = await self._stored([window.entries[place] for place in unknown])
        for place, prediction in zip(unknown, stored, strict=True):
            if prediction is not None:
                window.put(place, prediction)

    async def _ask(
        self, window: Neighborhoods, places: Iterable[int], done: Callable[[int], None] | None
    ) -> None:
        """Ask about the texts at distinct places that have no outcome yet."""

        def counted(place: int) -> None:
            self._outcomes += 1
            if done is not None:
                done(place)

        questions = Sampler(self.method, self._asker, window, places, counted)
        fanout = self.lanes[window.lane]
        if self._contexts is None or window.snapshot is None:
            await fanout.run(questions.asks(), questions.settle)
            return
        asks = questions.asks_with_examples(
            self._contexts, window.snapshot, fanout, whole=window.lane != "live"
        )
        try:
            await fanout.run(asks, questions.settle)
        finally:
            # also when a failure or a cancellation ends the run: these were paid for
            await questions.keep(self._contexts)


async def _aside(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function: in a thread, if it has so much to do that the event loop would wait."""
    if size < _SEARCH:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)


def _nobody(n: int) -> Matches:
    """Return the neighbors of n texts that have none."""
    return Matches(np.empty((n, 0), dtype=np.int64), np.empty((n, 0), dtype=np.float32))


def _in_order(window: Neighborhoods, rows: NDArray[np.int64], known: int | None) -> Iterator[int]:
    """Yield each place once: own texts, each followed by its (first `known`) neighbors."""
    seen = bytearray(len(window.entries))
    neighbors = window.neighbors
    for row in rows.tolist():
        for place in (row, *neighbors[row, :known].tolist()):
            if place >= 0 and not seen[place]:
                seen[place] = 1
                yield place
