"""Cached embeddings: from the pool, else the store, else the embedder.

Requests that arrive while the embedder is busy are batched: one embedder serves thousands of
concurrent callers in large batches. The error of one text reaches only the callers of that text.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import numpy as np

from testnuc._base.checks import hash_text
from testnuc.errors import BadRequestError, EmbeddingError, InvalidInputError, TestNUCError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from testnuc.protocols import Embedder, Index, Store
    from testnuc.transport.telemetry import Telemetry

    Vector = NDArray[np.float16]

__all__ = ["EmbeddingCache", "embedder_name"]

#: Most texts in a batch of the embedder.
_BATCH = 512
#: Vectors returned per iteration of the event loop.
_TURN = 64
#: Texts that are looked up at a time.
_CHUNK = 2_048


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

    Parameters
    ----------
    embedder : Embedder
        Called from one task at a time, with at most 512 texts. If it has a method ``embed_each``,
        which returns a vector or an error for each text, that is called instead of ``embed``.
    store : Store
        Stores embeddings, if it is durable.
    pool : Index
        Holds the vectors of its texts, so that they are not stored twice.
    """

    def __init__(self, embedder: Embedder, store: Store, pool: Index) -> None:
        self._embedder = embedder
        self._store = store
        self._pool = pool
        self._waiting: dict[bytes, tuple[str, asyncio.Future[NDArray[np.float16]]]] = {}
        self._running: dict[bytes, asyncio.Future[NDArray[np.float16]]] = {}
        self._pump: asyncio.Task[None] | None = None
        #: Length of the vectors seen so far.
        self._dim: int | None = None
        #: Number of texts that were embedded.
        self.embedded = 0
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

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32[len(texts), dim]; an `Embedder` like the one behind it."""
        return (await self.vectors(texts, [hash_text(t) for t in texts])).astype(np.float32)

    async def vectors(
        self,
        texts: Sequence[str],
        hashes: Sequence[bytes],
        embedded: Callable[[int], object] = int,
    ) -> NDArray[np.float16]:
        """Return the vector of each text, float16[len(texts), dim].

        Parameters
        ----------
        texts, hashes : sequence
        embedded : callable, optional
            Called with the number of texts after each batch; default: does nothing.

        Raises
        ------
        EmbeddingError
            The embedder failed or returned unusable vectors.
        """
        parts = [
            await self._chunk(texts[i : i + _CHUNK], hashes[i : i + _CHUNK], embedded)
            for i in range(0, len(texts), _CHUNK)
        ]
        if not parts:
            return np.empty((0, await self._stored_dim()), dtype=np.float16)
        vectors = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self._dim = vectors.shape[1]
        return vectors

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

    async def _chunk(
        self,
        texts: Sequence[str],
        hashes: Sequence[bytes],
        embedded: Callable[[int], object],
    ) -> NDArray[np.float16]:
        found = await self._pool.stored_vectors(hashes)
        missing = [i for i, vector in enumerate(found) if vector is None]
        if missing and self._store.durable:
            stored = await self._store.get_vectors(self.name, [hashes[i] for i in missing])
            for i, vector in zip(missing, stored, strict=True):
                found[i] = vector
            missing = [i for i in missing if found[i] is None]
        embedded(len(texts) - len(missing))
        if missing:
            new = await self._new(
                [texts[i] for i in missing], [hashes[i] for i in missing], embedded
            )
            for i, vector in zip(missing, new, strict=True):
                found[i] = vector
        return np.stack([vector for vector in found if vector is not None])

    async def _new(
        self,
        texts: Sequence[str],
        hashes: Sequence[bytes],
        embedded: Callable[[int], object],
    ) -> list[Vector]:
        """Embed texts and store their vectors; one text's error does not lose the others'."""
        # texts of similar length in a batch need little padding
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]), reverse=True)
        futures = [self._ask(texts[i], hashes[i]) for i in order]
        try:
            # cancellation does not cancel them: another caller may wait for the same text
            for start in range(0, len(futures), _BATCH):
                batch = futures[start : start + _BATCH]
                await asyncio.wait(batch, return_when=asyncio.FIRST_EXCEPTION)
                errors = [e for f in batch if isinstance(e := _outcome(f), BaseException)]
                if any(not isinstance(error, BadRequestError) for error in errors):
                    break
                if errors:
                    # one text was rejected: the others are embedded and stored all the same
                    await asyncio.wait(batch)
                embedded(len(batch) - len(errors))
        finally:
            for future in futures:
                # retrieved here, in case no other caller waits for it
                future.add_done_callback(_retrieve)
        outcomes = [_outcome(future) for _, future in sorted(zip(order, futures, strict=True))]
        new = [
            (key, outcome)
            for key, outcome in zip(hashes, outcomes, strict=True)
            if isinstance(outcome, np.ndarray)
        ]
        vectors = [vector for _, vector in new]
        if self._store.durable and new:
            await self._store.put_vectors(self.name, [key for key, _ in new], np.stack(vectors))
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return vectors

    def _ask(self, text: str, text_hash: bytes) -> asyncio.Future[NDArray[np.float16]]:
        running = self._running.get(text_hash)
        if running is not None:
            return running
        if text_hash in self._waiting:
            return self._waiting[text_hash][1]
        future = asyncio.get_running_loop().create_future()
        self._waiting[text_hash] = (text, future)
        if self._pump is None:
            self._pump = asyncio.create_task(self._embed_waiting(), name="testnuc-embed")
        return future

    async def _embed_waiting(self) -> None:
        try:
            while self._waiting:
                batch = dict(list(self._waiting.items())[:_BATCH])
                for text_hash, (_, future) in batch.items():
                    del self._waiting[text_hash]
                    self._running[text_hash] = future
                try:
                    vectors = await self._embed([text for text, _ in batch.values()])
                except Exception as exc:  # noqa: BLE001 - passed to the waiters
                    for _, future in batch.values():
                        if not future.done():
                            future.set_exception(exc)
                else:
                    await _hand_out([future for _, future in batch.values()], vectors)
                for text_hash in batch:
                    del self._running[text_hash]
        finally:
            self._pump = None

    async def _embed(self, texts: list[str]) -> list[Vector | Exception]:
        """Return the vector of each text, or its error."""
        self.embedded += len(texts)
        each = getattr(self._embedder, "embed_each", None)
        errors: dict[int, Exception] = {}
        try:
            if self.telemetry is None:
                given = await (each or self._embedder.embed)(texts)
            else:
                with self.telemetry.embeddings(self.name, len(texts)):
                    given = await (each or self._embedder.embed)(texts)
            if each is not None:
                errors = {i: row for i, row in enumerate(given) if isinstance(row, Exception)}
                if len(errors) == len(texts):
                    return list(errors.values())
                given = [row for i, row in enumerate(given) if i not in errors]
            vectors = np.asarray(given, dtype=np.float32)
        except TestNUCError:
            raise
        except Exception as exc:
            raise EmbeddingError(f"the embedder failed: {type(exc).__name__}: {exc}") from exc
        rest = [text for i, text in enumerate(texts) if i not in errors]
        found = iter(await self._unit(rest, vectors))
        return [errors[i] if i in errors else next(found) for i in range(len(texts))]

    async def _unit(
        self, texts: list[str], vectors: NDArray[np.float32]
    ) -> list[Vector | Exception]:
        if vectors.ndim != 2 or vectors.shape != (len(texts), self._embedder.dim):
            raise EmbeddingError(
                f"the embedder returned an array of shape {vectors.shape} for {len(texts)} texts; "
                f"expected ({len(texts)}, {self._embedder.dim})"
            )
        if len(texts) < _BATCH // 8:
            return _unit(texts, vectors)
        return await asyncio.to_thread(_unit, texts, vectors)

    async def close(self) -> None:
        """Stop embedding; waiters receive an error, because nobody cancelled them."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        waiting = [future for _, future in self._waiting.values()]
        for future in (*waiting, *self._running.values()):
            if not future.done():
                future.set_exception(TestNUCError("the client was closed"))
                _retrieve(future)
        self._waiting.clear()
        self._running.clear()


def _unit(texts: Sequence[str], vectors: NDArray[np.float32]) -> list[Vector | Exception]:
    """Return vectors of unit norm, rounded, and an error for each vector without a direction."""
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    good = np.isfinite(norms) & (norms > 0)
    unit: NDArray[np.float16] = (vectors / np.where(good, norms, 1.0)[:, None]).astype(np.float16)
    return [
        row
        if usable
        else EmbeddingError(
            f"the embedder returned NaN, infinity or a zero vector for the text {text[:80]!r}"
        )
        for text, row, usable in zip(texts, unit, good, strict=True)
    ]


async def _hand_out(
    futures: Sequence[asyncio.Future[Vector]], vectors: Sequence[Vector | Exception]
) -> None:
    for number, (future, vector) in enumerate(zip(futures, vectors, strict=True), 1):
        if future.done():
            pass
        elif isinstance(vector, Exception):
            future.set_exception(vector)
        else:
            future.set_result(vector)
        if number % _TURN == 0:
            # each may wake a caller: not hundreds in one iteration of the loop
            await asyncio.sleep(0)


def _outcome(future: asyncio.Future[Vector]) -> Vector | BaseException | None:
    """Return the vector or the error of a future; None if it is not done."""
    if not future.done():
        return None
    if future.cancelled():
        return asyncio.CancelledError()
    return future.exception() or future.result()


def _retrieve(future: asyncio.Future[NDArray[np.float16]]) -> None:
    if not future.cancelled():
        future.exception()
