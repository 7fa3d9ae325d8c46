"""A store in this process's memory: predictions last as long as the client."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from testnuc.protocols import StoredPrediction
    from testnuc.results import Prediction

__all__ = ["MemoryStore"]


class MemoryStore:
    """Predictions in a dict.

    Embeddings are not kept here: the pool holds those of its texts, and an embedding costs no call.
    """

    durable = False

    def __init__(self) -> None:
        self._predictions: dict[bytes, Prediction] = {}

    def __len__(self) -> int:
        return len(self._predictions)

    async def open(self) -> None:
        """Do nothing: memory is ready."""

    async def close(self) -> None:
        """Keep everything: a store that was given to several clients outlives each of them."""

    async def get_predictions(self, keys: Sequence[bytes]) -> list[Prediction | None]:
        """Return the stored prediction of each key."""
        get = self._predictions.get
        return [get(key) for key in keys]

    async def put_predictions(self, rows: Sequence[StoredPrediction]) -> list[Prediction]:
        """Store predictions; the first one under a key wins."""
        keep = self._predictions.setdefault
        return [keep(row.key, row.prediction) for row in rows]

    async def get_vectors(
        self, embedder: str, hashes: Sequence[bytes]
    ) -> list[NDArray[np.float16] | None]:
        """Return None for each text."""
        del embedder
        return [None] * len(hashes)

    async def put_vectors(
        self, embedder: str, hashes: Sequence[bytes], vectors: NDArray[np.float16]
    ) -> None:
        """Keep nothing."""
