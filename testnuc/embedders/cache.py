"""Cached embeddings: from the pool, else the store, else the embedder.

Requests that arrive while the embedder is busy are batched: one embedder serves thousands of
concurrent callers in large batches.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from testnuc._base.checks import hash_text
from testnuc.errors import EmbeddingError, TestNUCError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from testnuc.protocols import Embedder, Index, Store
    from testnuc.transport.telemetry import Telemetry

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
    return f"{kind.__module__}.{kind.__qualname__}/{embedder.dim}"


class EmbeddingCache:
    """Returns unit vectors of texts, rounded to float16; embeds each text once.

    Parameters
    ----------
    embedder : Embedder
        Called from one task at a time, with at most 512 texts.
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
        #: Number of texts that were embedded.
        self.embedded = 0
        #: Traces every batch.
        self.telemetry: Telemetry | None = None

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self._embedder.dim

    @property
    def name(self) -> str:
        """Identity of the embedder in stores and keys."""
        return embedder_name(self._embedder)

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32[len(texts), dim]; an `Embedder` like the one behind it."""
        return (await self.vectors(texts, [hash_text(t) for t in texts])).astype(np.float32)

    async def vectors(self, texts: Sequence[str], hashes: Sequence[bytes]) -> NDArray[np.float16]:
        """Return the vector of each text, float16[len(texts), dim].

        Raises
        ------
        EmbeddingError
            The embedder failed or returned unusable vectors.
        """
        parts = [
            await self._chunk(texts[i : i + _CHUNK], hashes[i : i + _CHUNK])
            for i in range(0, len(texts), _CHUNK)
        ]
        if not parts:
            return np.empty((0, self._embedder.dim), dtype=np.float16)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    async def _chunk(self, texts: Sequence[str], hashes: Sequence[bytes]) -> NDArray[np.float16]:
        found = await self._pool.stored_vectors(hashes)
        missing = [i for i, vector in enumerate(found) if vector is None]
        if missing and self._store.durable:
            stored = await self._store.get_vectors(self.name, [hashes[i] for i in missing])
            for i, vector in zip(missing, stored, strict=True):
                found[i] = vector
            missing = [i for i in missing if found[i] is None]
        if missing:
            futures = [self._ask(texts[i], hashes[i]) for i in missing]
            try:
                # cancellation does not cancel them: another caller may wait for the same text
                await asyncio.wait(futures, return_when=asyncio.FIRST_EXCEPTION)
                for i, future in zip(missing, futures, strict=True):
                    found[i] = _vector(future)
            except BaseException:
                for future in futures:
                    # retrieved here, in case no other caller waits for it
                    future.add_done_callback(_retrieve)
                raise
            if self._store.durable:
                new = np.stack([v for i in missing if (v := found[i]) is not None])
                await self._store.put_vectors(self.name, [hashes[i] for i in missing], new)
        return np.stack([vector for vector in found if vector is not None])

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

    async def _embed(self, texts: list[str]) -> NDArray[np.float16]:
        self.embedded += len(texts)
        try:
            if self.telemetry is None:
                given = await self._embedder.embed(texts)
            else:
                with self.telemetry.embeddings(self.name, len(texts)):
                    given = await self._embedder.embed(texts)
            vectors = np.asarray(given, dtype=np.float32)
        except TestNUCError:
            raise
        except Exception as exc:
            raise EmbeddingError(f"the embedder failed: {type(exc).__name__}: {exc}") from exc
        if vectors.ndim != 2 or vectors.shape != (len(texts), self._embedder.dim):
            raise EmbeddingError(
                f"the embedder returned an array of shape {vectors.shape} for {len(texts)} texts; "
                f"expected ({len(texts)}, {self._embedder.dim})"
            )
        if len(texts) < _BATCH // 8:
            return _unit(texts, vectors)
        return await asyncio.to_thread(_unit, texts, vectors)

    async def close(self) -> None:
        """Stop embedding; waiters receive a `CancelledError`."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        for _, future in self._waiting.values():
            future.cancel()
        for future in self._running.values():
            future.cancel()
        self._waiting.clear()
        self._running.clear()


def _unit(texts: Sequence[str], vectors: NDArray[np.float32]) -> NDArray[np.float16]:
    """Return vectors of unit norm, rounded; rejects vectors without a direction."""
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    bad = ~(np.isfinite(norms) & (norms > 0))
    if bad.any():
        text = texts[int(bad.argmax())]
        raise EmbeddingError(
            f"the embedder returned NaN, infinity or a zero vector for the text {text[:80]!r}"
        )
    unit: NDArray[np.float16] = (vectors / norms[:, None]).astype(np.float16)
    return unit


async def _hand_out(
    futures: Sequence[asyncio.Future[NDArray[np.float16]]], vectors: NDArray[np.float16]
) -> None:
    for number, (future, vector) in enumerate(zip(futures, vectors, strict=True), 1):
        if not future.done():
            future.set_result(vector)
        if number % _TURN == 0:
            # each may wake a caller: not hundreds in one iteration of the loop
            await asyncio.sleep(0)


def _vector(future: asyncio.Future[NDArray[np.float16]]) -> NDArray[np.float16] | None:
    """Return the vector of a future; None while another future's failure will be raised."""
    return future.result() if future.done() else None


def _retrieve(future: asyncio.Future[NDArray[np.float16]]) -> None:
    if not future.cancelled():
        future.exception()
