"""Build runs: neighbors of texts from the pool, stored predictions from the store."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from testnuc._base.arrays import Bools, Float16s, Int64s
from testnuc._dispatch.predictor import Predictor
from testnuc._engine.batch import TextBatch
from testnuc._engine.examples import ExampleFinder
from testnuc._engine.inputs import without_foreign_labels
from testnuc._engine.run import Run
from testnuc.embedders.cache import EmbeddingCache
from testnuc.errors import ProviderError
from testnuc.index.matching import empty_matches, scanned
from testnuc.labels import LabelSet
from testnuc.protocols import Index, Matches, Method, PoolText, Store
from testnuc.trust.auto_policy import MIN_PREDICTIONS, VoteSettings
from testnuc.trust.certificates import key_of
from testnuc.trust.diagnosis import Diagnosis
from testnuc.types import Prediction

#: Queries searched at a time, so that other searches wait milliseconds.
SEARCH = 1_024
#: Rows of neighbors whose places are looked up at a time.
_ROWS = 4_096
#: Texts looked up in the store before control returns to the event loop.
_BLOCK = 256
#: Factor by which the search widens if too few neighbors have a prediction.
_WIDEN = 4
#: How far it widens, as a multiple of k; then the texts with a prediction are searched alone.
_WIDEST = 16
#: What is known of a row.
_UNKNOWN, _VOTES, _SILENT = 0, 1, 2


@dataclass
class Retriever:
    """Searches the pool and the stored predictions of one client for run."""

    method: Method
    #: Whether all texts may be neighbors, or only those with a prediction.
    neighbors: Literal["predict", "stored"]
    predictor: Predictor
    pool: Index
    store: Store
    #: Set if the method uses few-shot examples.
    examples: ExampleFinder | None

    async def search(
        self,
        texts: Sequence[PoolText],
        vectors: Float16s,
        k: int,
        *,
        upto: int | None = None,
        together: bool = False,
    ) -> Matches:
        """Find the k nearest texts of each text, block by block.

        `upto` is the snapshot of the pool, the current one by default; `together`: the texts of
        this batch, which will get predictions, can be neighbors.
        """
        voters = StoredVoters(self, {entry.hash for entry in texts} if together else set())
        matches = empty_matches(len(texts), k)
        for start in range(0, len(texts), SEARCH):
            part = slice(start, start + SEARCH)
            hashes = [entry.hash for entry in texts[part]]
            if self.neighbors == "stored":
                found = await self._search_stored(vectors[part], hashes, k, upto, voters)
            else:
                found = await self.pool.search(vectors[part], k, exclude=hashes, upto=upto)
            matches.ids[part], matches.similarities[part] = found.ids, found.similarities
        return matches

    async def _search_stored(
        self,
        vectors: Float16s,
        hashes: Sequence[bytes],
        k: int,
        upto: int | None,
        voters: "StoredVoters",
    ) -> Matches:
        """Find the k nearest texts that have a prediction or get one in this batch."""
        kept = empty_matches(len(vectors), k)
        ids, similarities = kept.ids, kept.similarities

        async def keep(rows: Int64s, found: Matches) -> tuple[Bools, Bools]:
            """Keep the first k voters of each row; returns where k vote, and where all do."""
            votes = await voters.votes(found.ids)
            rank = votes.cumsum(axis=1) - 1
            at, column = np.nonzero(votes & (rank < k))
            ids[rows[at], rank[at, column]] = found.ids[at, column]
            similarities[rows[at], rank[at, column]] = found.similarities[at, column]
            return votes.sum(axis=1) >= k, (votes == (found.ids >= 0)).all(axis=1)

        def excluded(rows: Int64s) -> list[bytes]:
            return [hashes[i] for i in rows.tolist()]

        rows, want = np.arange(len(vectors)), k
        # where many texts have a prediction, the k nearest of them are among few of the nearest
        while len(rows) and 0 < want <= _WIDEST * k:
            found = await self.pool.search(vectors[rows], want, exclude=excluded(rows), upto=upto)
            full, _ = await keep(rows, found)
            rows = rows[~full & (found.ids[:, -1] >= 0)]
            want *= _WIDEN
        while len(rows) and want:
            found = await self.pool.search(
                vectors[rows], k, exclude=excluded(rows), upto=upto, among=await voters.rows()
            )
            ids[rows], similarities[rows] = -1, 0
            _, exact = await keep(rows, found)
            rows = rows[~exact]
            if len(rows):
                await voters.verify()
        return kept

    async def stored(self, entries: Sequence[PoolText]) -> list[Prediction | None]:
        """Return the prediction of each text if all of its samples are stored."""
        found, n = list[Prediction | None](), self.method.samples
        for start in range(0, len(entries), _BLOCK):
            part = entries[start : start + _BLOCK]
            if self.examples is not None:
                found += await self.examples.stored(part)
                continue
            keys = [self.predictor.key(entry.text, sample) for entry in part for sample in range(n)]
            hits = await self.store.get_predictions(keys)
            samples = [
                [p for p in hits[i : i + n] if p is not None] for i in range(0, len(hits), n)
            ]
            found += [self.method.reduce(of) if len(of) == n else None for of in samples]
            await asyncio.sleep(0)
        return found

    async def build(self, texts: Sequence[PoolText], matches: Matches) -> TextBatch:
        """Fetch the neighbors' texts and build the batch."""
        ids = await in_thread_if_large(len(texts), distinct_ids, matches)
        texts = without_foreign_labels(texts, self.predictor.labels)
        others = without_foreign_labels(await self.pool.fetch(ids), self.predictor.labels)
        batch: TextBatch = await in_thread_if_large(
            len(texts), build_batch, self.predictor.labels, texts, ids, others, matches
        )
        return batch

    async def start(
        self, batch: TextBatch, settings: VoteSettings, first: Run | None = None
    ) -> Run:
        """Return the run of a batch; with "stored", neighbors have their predictions.

        `first`: the run of the same texts without neighbors.
        """
        run = Run(batch, settings, None if first is None else first.answers)
        if batch.shortlists is not None or batch.snapshot is not None:
            # there is no prompt without neighbors
            for place, error in batch.rejected.items():
                run.answers.put(place, error)
        if self.neighbors == "stored":
            await self.fill(run, range(batch.n_own, len(batch.entries)))
        return run

    def alone(self, texts: Sequence[PoolText], settings: VoteSettings) -> Run:
        """Return a run without neighbors."""
        texts = without_foreign_labels(texts, self.predictor.labels)
        none, n = empty_matches(len(texts), 0), len(texts)
        return Run(
            TextBatch(self.predictor.labels, texts, n, none.ids, none.similarities), settings
        )

    async def fill(self, run: Run, places: Iterable[int]) -> None:
        """Set the stored predictions at the given places."""
        unknown = [place for place in places if not run.answers.has_outcome(place)]
        stored = await self.stored([run.batch.entries[i] for i in unknown])
        for place, prediction in zip(unknown, stored, strict=True):
            if prediction is not None:
                run.answers.put(place, prediction)


def distinct_ids(matches: Matches) -> Int64s:
    """Return the distinct pool ids of all neighbors, ascending."""
    ids = matches.ids
    highest = int(ids.max(initial=-1))
    if highest >= 16 * ids.size:
        found = np.unique(ids)
        return found[found >= 0]
    # a byte per id takes less memory than a sorted copy of all neighbors
    seen = np.zeros(highest + 2, dtype=np.bool_)
    seen[ids.reshape(-1)] = True
    seen[-1] = False  # the -1 of the padding
    return np.flatnonzero(seen)


def build_batch(
    labels: LabelSet,
    texts: Sequence[PoolText],
    ids: Int64s,
    others: Sequence[PoolText],
    matches: Matches,
) -> TextBatch:
    """Return the batch of texts. Places: own texts first, then other neighbors.

    `ids`: int64[n], the pool ids of all neighbors, ascending; `others`: the texts with these ids.
    The ids in `matches` are overwritten with places.
    """
    entries = list(texts)
    places = {entry.hash: place for place, entry in enumerate(entries)}
    place_of = np.empty(len(ids), dtype=np.int64)
    for at, entry in enumerate(others):
        place = places.get(entry.hash)
        if place is None:
            place = len(entries)
            entries.append(entry)
        elif entry.label is not None:
            entries[place] = entry
        place_of[at] = place
    for start in range(0, len(texts), _ROWS):
        block = matches.ids[start : start + _ROWS]
        filled = block >= 0
        block[filled] = place_of[np.searchsorted(ids, block[filled])]
    return TextBatch(labels, entries, len(texts), matches.ids, matches.similarities)


async def in_thread_if_large(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; in a thread if `size` is large, so as not to block the event loop."""
    if size < SEARCH:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)


@dataclass
class StoredVoters:
    """The texts of the pool that can vote in one run.

    A text votes if it has a known label or a stored prediction, or if it gets one in this run.
    """

    retriever: Retriever
    #: Hashes of the texts that get a prediction in this run.
    batch: set[bytes]
    #: What is known of each row.
    _state: NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, dtype=np.int8))
    _rows: Int64s | None = None

    async def votes(self, ids: Int64s) -> Bools:
        """Return which rows vote; -1 does not."""
        highest = int(ids.max(initial=-1))
        if highest >= len(self._state):
            more = np.zeros(max(highest + 1, 2 * len(self._state)), dtype=np.int8)
            more[: len(self._state)] = self._state
            self._state = more
        new = np.unique(ids[ids >= 0])
        new = new[self._state[new] == _UNKNOWN]
        for start in range(0, len(new), SEARCH):
            await self._check(new[start : start + SEARCH])
        voting: Bools = ids >= 0
        voting[voting] = self._state[ids[voting]] == _VOTES
        return voting

    async def _check(self, rows: Int64s) -> None:
        found = await self.retriever.pool.fetch(rows)
        entries = without_foreign_labels(found, self.retriever.predictor.labels)
        asked = [i for i, e in enumerate(entries) if e.label is None and e.hash not in self.batch]
        stored = await self.retriever.stored([entries[i] for i in asked])
        state = np.full(len(rows), _VOTES, dtype=np.int8)
        state[[i for i, p in zip(asked, stored, strict=True) if p is None]] = _SILENT
        self._state[rows] = state

    async def rows(self) -> Int64s:
        """Return all rows that can vote, ascending; some of them may turn out not to."""
        if self._rows is None:
            pool, predictor = self.retriever.pool, self.retriever.predictor
            known = await pool.labeled()
            hashes = {h for h, label in known.items() if predictor.labels.knows(label)} | self.batch
            predicted = getattr(self.retriever.store, "predicted", None)
            if predicted is None:
                # all texts of the pool are checked, once
                hashes.update([e.hash async for part in scanned(pool, SEARCH) for e in part])
            else:
                hashes.update(await predicted(predictor.scope))
            self._rows = await pool.rows(list(hashes))
        return self._rows

    async def verify(self) -> None:
        """Check all rows that can vote, so that `rows` holds only those that do."""
        rows = await self.rows()
        self._rows = rows[await self.votes(rows)]


#: Parts of a large pool that are sampled for a diagnosis.
_CHUNKS = 12


@dataclass(frozen=True, slots=True)
class _PoolDiagnosis:
    """A diagnosis of the pool, and its state at that time."""

    #: Texts in the pool.
    size: int
    #: Texts with a stored prediction.
    predicted: int
    #: Outcomes received by then.
    outcomes: int
    diagnosis: Diagnosis

    def is_current(self, size: int, outcomes: int) -> bool:
        """Whether the diagnosis is still valid: until pool or predictions may be a quarter more.

        A diagnosis with too few predictions is valid until there may be enough.
        """
        missing = MIN_PREDICTIONS - self.diagnosis.predictions
        if missing > 0 and outcomes - self.outcomes + size - self.size >= missing:
            return False
        return size < 1.25 * self.size and 4 * (outcomes - self.outcomes) < self.predicted


@dataclass
class PoolPredictions:
    """Reads the stored predictions of the texts in the pool."""

    retriever: Retriever
    embedding: EmbeddingCache
    closed: Callable[[], bool]
    #: Texts with an outcome so far: an upper bound on new predictions.
    outcomes: int = 0
    #: The last diagnosis.
    last: _PoolDiagnosis | None = None
    #: Held while the pool is diagnosed: concurrent callers share one computation.
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: Increased by `forget_diagnosis`.
    _resets: int = 0

    async def recent_diagnosis(self, settings: VoteSettings) -> Diagnosis:
        """Return a recent diagnosis of the pool."""
        async with self._lock:
            last, outcomes, resets = self.last, self.outcomes, self._resets
            if last is not None and not last.is_current(len(self.retriever.pool), outcomes):
                predicted = await self.retriever.store.count(self.retriever.predictor.scope)
                # as if only new predictions had been counted so far
                last = replace(last, outcomes=outcomes - max(predicted - last.predicted, 0))
                if self._resets == resets:
                    self.last = last
            if last is None or not last.is_current(len(self.retriever.pool), outcomes):
                return await self.diagnose(settings)
            return last.diagnosis

    def forget_diagnosis(self) -> None:
        """Diagnose again before the next decision: texts or predictions were removed."""
        self._resets += 1
        self.last = None

    async def diagnose(self, settings: VoteSettings) -> Diagnosis:
        """Diagnose the predictions of the pool."""
        size, outcomes, resets = len(self.retriever.pool), self.outcomes, self._resets
        predicted = await self.retriever.store.count(self.retriever.predictor.scope)
        chunks = range(0, size, SEARCH)
        if len(chunks) > _CHUNKS:
            # spread over the pool, so that old and new texts are sampled
            chunks = range(0, size, size // _CHUNKS)
        texts: list[PoolText] = []
        for start in chunks:
            found, _ = await self.retriever.pool.scan(start, SEARCH)
            part = without_foreign_labels(found, self.retriever.predictor.labels)
            stored = await self.retriever.stored(part)
            texts += [
                e for e, p in zip(part, stored, strict=True) if p is not None or e.label is not None
            ]
        if self.closed():
            raise ProviderError("the client was closed")
        if len(texts) < MIN_PREDICTIONS:
            run = self.retriever.alone(texts, settings)
            await self.retriever.fill(run, range(len(texts)))
        else:
            run, _ = await self._with_neighbors(texts, settings, settings.k)
        diagnosis = await asyncio.to_thread(run.votes.diagnose)
        if self._resets == resets:
            self.last = _PoolDiagnosis(size, predicted, outcomes, diagnosis)
        return diagnosis

    async def labeled(self, settings: VoteSettings, most: int, k: int) -> tuple[Run, Float16s]:
        """Return the texts of the pool that have a prediction, k neighbors of each, and vectors.

        Of a pool with more than `most` texts, they are spread over it evenly.
        """
        every = max(1, -(-len(self.retriever.pool) // most))
        texts: list[PoolText] = []
        async for found in scanned(self.retriever.pool, SEARCH):
            part = without_foreign_labels(found, self.retriever.predictor.labels)
            part = [e for e in part if e.label is None]
            part = [e for e in part if int.from_bytes(e.hash[1:5]) % every == 0]
            stored = await self.retriever.stored(part)
            texts += [e for e, p in zip(part, stored, strict=True) if p is not None]
        if settings.learned is not None:
            # texts with a fixed trust stay the first ones: others may be answered only now
            fixed = {key: at for at, key in enumerate(settings.learned.keys.tolist())}
            texts.sort(key=lambda entry: fixed.get(key_of(entry.hash), len(fixed)))
        return await self._with_neighbors(texts, settings, k)

    async def _with_neighbors(
        self, texts: Sequence[PoolText], settings: VoteSettings, k: int
    ) -> tuple[Run, Float16s]:
        vectors = await self.embedding.vectors(texts)
        matches = await self.retriever.search(texts, vectors, k)
        run = await self.retriever.start(await self.retriever.build(texts, matches), settings)
        await self.retriever.fill(run, range(len(run.batch.entries)))
        return run, vectors
