"""Cached embeddings: from the pool, else the store, else the embedder.

Requests that arrive while the embedder is busy are batched: one embedder serves thousands of
concurrent callers in large batches. The error of one text reaches only the callers of that text.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from heapq import nsmallest
from typing import Any, TypeAlias

import numpy as np

from testnuc._base.arrays import Float16s, Float32s
from testnuc._base.loop_thread import is_cancelled
from testnuc.errors import BadRequestError, EmbeddingError, InvalidInputError, TestNUCError
from testnuc.protocols import Embedder, Index, PoolText, Store
from testnuc.transport.telemetry import Telemetry

#: What a text gets: its vector, or its own error.
Row: TypeAlias = Float16s | Exception
#: Called with the number of texts after each batch.
OnEmbedded: TypeAlias = Callable[[int], object]

#: Most texts in a batch of the embedder.
_BATCH = 512
#: Seconds that each further call waits, so that a call which does not hang takes the texts.
_LATE = 0.2
#: Vectors returned per iteration of the event loop.
_TURN = 64
#: Texts that are looked up at a time.
_CHUNK = 2_048
#: Seconds from which a faster way to embed is worth a note.
_LONG = 30.0
#: An embedder that rejects the input: one of its texts, perhaps.
_REJECTED = (BadRequestError, InvalidInputError)
#: Rejected texts after which every request counts as malformed, if none was ever accepted.
_MOST_REJECTED = 3


def embedder_name(embedder: Embedder) -> str:
    """Return the identity of an embedder: its ``name``, else its class and dimension."""
    given = getattr(embedder, "name", None)
    if isinstance(given, str) and given:
        return given
    kind = type(embedder)
    try:
        dim = embedder.dim
    except EmbeddingError:
        dim = None
    if dim is None:
        raise InvalidInputError(
            f"the embedder {kind.__qualname__} does not know its dimension yet; give it an "
            "attribute `name`, which identifies its vectors in stores"
        )
    return f"{kind.__module__}.{kind.__qualname__}/{dim}"


class EmbeddingCache:
    """Returns unit vectors of texts, rounded to float16; embeds each text once.

    The embedder is called from one task at a time, or as many as its `calls_at_once`, so that one
    call which hangs delays no others; with at most 512 texts, or its `texts_at_once`. Texts of all
    requests are taken in turn, so that a long list does not delay others. If it has a method
    ``embed_each``, which returns a vector or an error for each text, that is called instead of
    ``embed``. If ``embed`` rejects its texts, it is called for halves of them, so that one text
    fails alone. A durable store keeps the vectors, except those of texts in the pool.
    """

    def __init__(self, embedder: Embedder, store: Store, pool: Index) -> None:
        self._embedder = embedder
        self._store = store
        self._pool = pool
        #: Texts that wait for the embedder, with their turns, by hash; and the futures of these and
        #: of those that it has. A result is a vector, or the error of this text alone; an exception
        #: is that of all.
        self._waiting: dict[bytes, tuple[int, str]] = {}
        #: At which a request begins.
        self._turn = 0
        self._futures: dict[bytes, asyncio.Future[Row]] = {}
        #: How many callers wait for a text, by hash.
        self._callers = Counter[bytes]()
        self._pumps: set[asyncio.Task[None]] = set()
        #: Length of the vectors seen so far.
        self._dim: int | None = None
        self._accepted, self._rejected = False, 0
        #: Traces every batch.
        self.telemetry: Telemetry | None = None

    @property
    def dim(self) -> int:
        """Length of a vector; known from the first vector on, if the embedder does not know it."""
        return self._embedder.dim if self._dim is None else self._dim

    @property
    def name(self) -> str:
        """Identity of the embedder in stores and keys."""
        return embedder_name(self._embedder)

    def advice(self, seconds: float) -> str:
        """Return how to embed faster, if embedding took long; "" if not, or if it is unknown."""
        name = getattr(self._embedder, "faster", None) if seconds > _LONG else None
        if name is None:
            return ""
        return (
            f"embedding took {seconds:.0f} s; the embedder {name} takes about half of that on this "
            "CPU (its vectors are stored apart)"
        )

    async def embed(self, texts: Sequence[str]) -> Float32s:
        """Return float32[len(texts), dim]; an `Embedder` like the one behind it."""
        return (await self.vectors([PoolText.of(text) for text in texts])).astype(np.float32)

    async def vectors(self, texts: Sequence[PoolText]) -> Float16s:
        """Return the vector of each text, float16[len(texts), dim].

        `EmbeddingError`: the embedder failed or returned unusable vectors.
        """
        vectors, errors = await self.each(texts)
        for error in errors.values():
            raise error
        return vectors

    async def each(
        self, texts: Sequence[PoolText], on_embedded: OnEmbedded = int
    ) -> tuple[Float16s, dict[int, Exception]]:
        """Return the vector of each text, as `vectors`, and the errors of single texts.

        A text that the embedder rejects has a row of zeros, and its error at its position.
        """
        rows: list[Row] = []
        for start in range(0, len(texts), _CHUNK):
            rows += await self._chunk(texts[start : start + _CHUNK], on_embedded)
        errors = {at: row for at, row in enumerate(rows) if isinstance(row, Exception)}
        vectors = np.zeros((len(texts), await self._stored_dim()), dtype=np.float16)
        for at, row in enumerate(rows):
            if not isinstance(row, Exception):
                vectors[at] = row
        return vectors, errors

    async def _stored_dim(self) -> int:
        """Return the length of a vector if it is known without an embedding, else 0."""
        if self._dim is None:
            embedders = getattr(self._store, "embedders", None)
            known = dict(await embedders()) if embedders is not None else {}
            self._dim = known.get(self.name)
        if self._dim is None:
            with contextlib.suppress(EmbeddingError):
                self._dim = self._embedder.dim
        return self._dim or 0

    async def _chunk(self, texts: Sequence[PoolText], on_embedded: OnEmbedded) -> list[Row]:
        hashes = [entry.hash for entry in texts]
        found: dict[int, Row | None] = dict(enumerate(await self._pool.stored_vectors(hashes)))
        missing = [i for i, vector in found.items() if vector is None]
        if missing and self._store.durable:
            stored = await self._store.get_vectors(self.name, [hashes[i] for i in missing])
            found |= zip(missing, stored, strict=True)
            missing = [i for i in missing if found[i] is None]
        known = (len(row) for row in found.values() if isinstance(row, np.ndarray))
        self._dim = next(known, self._dim)
        on_embedded(len(texts) - len(missing))
        if missing:
            new = await self._new([texts[i] for i in missing], on_embedded)
            found |= zip(missing, new, strict=True)
        return [row for row in found.values() if row is not None]

    async def _new(self, texts: Sequence[PoolText], on_embedded: OnEmbedded) -> list[Row]:
        """Embed texts and store their vectors; an error does not lose those of other texts."""
        # texts of similar length in a batch need little padding
        order = sorted(range(len(texts)), key=lambda i: len(texts[i].text), reverse=True)
        futures = [self._ask(texts[i], nth) for nth, i in enumerate(order)]
        try:
            for start in range(0, len(futures), _BATCH):
                batch = futures[start : start + _BATCH]
                await asyncio.wait(batch, return_when=asyncio.FIRST_EXCEPTION)
                await self._keep([texts[i].hash for i in order[start : start + _BATCH]], batch)
                if any(map(_is_lost, batch)):
                    break
                on_embedded(len(batch))
        finally:
            for future in futures:
                # retrieved here, in case no other caller waits for it
                future.add_done_callback(_retrieve)
            self._leave([entry.hash for entry in texts])
        for future in futures:
            if future.done():
                # raises what ended the batch
                future.result()
        return [future.result() for _, future in sorted(zip(order, futures, strict=True))]

    async def _keep(self, hashes: Sequence[bytes], batch: Sequence[asyncio.Future[Row]]) -> None:
        if not self._store.durable:
            return
        new = {
            key: row
            for key, future in zip(hashes, batch, strict=True)
            if not _is_lost(future) and isinstance(row := future.result(), np.ndarray)
        }
        if new:
            await self._store.put_vectors(self.name, [*new], np.stack([*new.values()]))

    def _leave(self, hashes: Sequence[bytes]) -> None:
        """Note that a caller no longer waits: texts for which no other one waits are dropped."""
        self._callers.subtract(hashes)
        for text_hash in hashes:
            if self._callers[text_hash] <= 0:
                del self._callers[text_hash]
                # unless the embedder has it
                if self._waiting.pop(text_hash, None) is not None:
                    self._futures.pop(text_hash).cancel()

    def _ask(self, entry: PoolText, nth: int) -> asyncio.Future[Row]:
        """Ask for the n-th text of a request."""
        text_hash = entry.hash
        self._callers[text_hash] += 1
        future = self._futures.get(text_hash)
        if future is None:
            future = self._futures[text_hash] = asyncio.get_running_loop().create_future()
            self._waiting[text_hash] = self._turn + nth, entry.text
            if (n := len(self._pumps)) < getattr(self._embedder, "calls_at_once", 1):
                work = self._embed_waiting(n * _LATE)
                self._pumps.add(asyncio.create_task(work, name="testnuc-embed"))
        return future

    async def _embed_waiting(self, pause: float) -> None:
        most = getattr(self._embedder, "texts_at_once", _BATCH)
        try:
            if pause:
                await asyncio.sleep(pause)
            while self._waiting:
                hashes = nsmallest(most, self._waiting, key=lambda one: self._waiting[one][0])
                turns, texts = zip(*map(self._waiting.pop, hashes), strict=True)
                # at least the next one, so that no text waits forever
                self._turn = max(self._turn + 1, turns[-1])
                futures = [self._futures[text_hash] for text_hash in hashes]
                try:
                    rows = await self._embed([*texts])
                except Exception as exc:  # noqa: BLE001 - passed to the waiters
                    for future in futures:
                        if not future.done():
                            future.set_exception(exc)
                else:
                    await _hand_out(futures, rows)
                for text_hash in hashes:
                    self._futures.pop(text_hash, None)
        finally:
            self._pumps.discard(asyncio.current_task())

    async def _embed(self, texts: list[str]) -> list[Row]:
        """Return the vector of each text, or its error."""
        given, errors = await self._given(texts)
        if len(errors) == len(texts):
            return list(errors.values())
        try:
            vectors = np.asarray(given, dtype=np.float32)
        except (ValueError, TypeError) as exc:
            raise EmbeddingError(f"the embedder failed: {type(exc).__name__}: {exc}") from exc
        rest = [text for i, text in enumerate(texts) if i not in errors]
        found = iter(await self._unit(rest, vectors))
        return [errors[i] if i in errors else next(found) for i in range(len(texts))]

    async def _given(self, texts: list[str]) -> tuple[Any, dict[int, Exception]]:
        """Return the vectors of the accepted texts, and the error of each other one."""
        each = getattr(self._embedder, "embed_each", None)
        if each is not None:
            rows = await self._call(each, texts)
            errors = {i: row for i, row in enumerate(rows) if isinstance(row, Exception)}
            return [row for i, row in enumerate(rows) if i not in errors], errors
        try:
            vectors = await self._call(self._embedder.embed, texts)
        except _REJECTED as exc:
            if len(texts) == 1:
                self._rejected += 1
                if not self._accepted and self._rejected >= _MOST_REJECTED:
                    raise
                return [], {0: exc}
        else:
            self._accepted = True
            return vectors, {}
        half = len(texts) // 2
        first, errors = await self._given(texts[:half])
        second, others = await self._given(texts[half:])
        return [*first, *second], errors | {half + i: error for i, error in others.items()}

    async def _call(self, embed: Callable[[list[str]], Awaitable[Any]], texts: list[str]) -> Any:
        span: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if self.telemetry is not None:
            span = self.telemetry.embeddings(self.name, len(texts))
        try:
            with span:
                return await embed(texts)
        except TestNUCError:
            raise
        except asyncio.CancelledError as exc:
            if is_cancelled():
                raise
            raise EmbeddingError("the embedder failed: what it waited for was cancelled") from exc
        except Exception as exc:
            raise EmbeddingError(f"the embedder failed: {type(exc).__name__}: {exc}") from exc

    async def _unit(self, texts: list[str], vectors: Float32s) -> list[Row]:
        if vectors.shape != (len(texts), self.dim):
            raise EmbeddingError(
                f"the embedder returned an array of shape {vectors.shape} for {len(texts)} texts; "
                f"expected ({len(texts)}, {self.dim})"
            )
        self._dim = vectors.shape[1]
        if len(texts) < _BATCH // 8:
            return unit_rows(texts, vectors)
        return await asyncio.to_thread(unit_rows, texts, vectors)

    async def close(self) -> None:
        """Stop embedding; waiters get an error, because they were not cancelled."""
        # another caller may ask while it ends
        while pumps := list(self._pumps):
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._pumps.difference_update(pumps)  # those that had not begun
        for future in self._futures.values():
            if not future.done():
                future.set_exception(TestNUCError("the client was closed"))
                _retrieve(future)
        self._waiting.clear()
        self._futures.clear()


def unit_rows(texts: Sequence[str], vectors: Float32s) -> list[Row]:
    """Return vectors of unit norm, rounded, and an error for each vector without a direction."""
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    good = np.isfinite(norms) & (norms > 0)
    unit: Float16s = (vectors / np.where(good, norms, 1.0)[:, None]).astype(np.float16)
    what = "the embedder returned NaN, infinity or a zero vector for the text"
    return [
        row if usable else EmbeddingError(f"{what} {text[:80]!r}")
        for text, row, usable in zip(texts, unit, good, strict=True)
    ]


async def _hand_out(futures: Sequence[asyncio.Future[Row]], rows: Sequence[Row]) -> None:
    for number, (future, row) in enumerate(zip(futures, rows, strict=True), 1):
        if not future.done():
            future.set_result(row)
        if number % _TURN == 0:
            # each may wake a caller: not hundreds in one iteration of the loop
            await asyncio.sleep(0)


def _is_lost(future: asyncio.Future[Row]) -> bool:
    """Whether a text has neither a vector nor an error of its own."""
    return not future.done() or future.cancelled() or future.exception() is not None


def _retrieve(future: asyncio.Future[Row]) -> None:
    if not future.cancelled():
        future.exception()
