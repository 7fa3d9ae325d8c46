"""What users may bring their own of, and the records that pass between the layers.

A `Provider` answers requests, an `Embedder` turns texts into vectors, an `Index` finds the nearest
of them, a `Store` remembers what was paid for, a `Method` makes one prediction out of samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from testnuc.errors import ReplyError
    from testnuc.results import Prediction

__all__ = [
    "Answer",
    "Embedder",
    "Provider",
    "Reply",
    "Request",
    "Task",
    "TokenUsage",
    "WireProvider",
]


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """All that the calls of one client have in common: what stays the same from text to text.

    Compared by identity: a provider may keep what it prepared for a task.
    """

    #: The system message: instruction, guidelines, label options, output format.
    system: str
    #: The label names a reply may use, in order.
    labels: tuple[str, ...]
    temperature: float | None = 0.7
    top_p: float | None = 1.0
    #: Where the confidence comes from: the model's own words, or token log-probabilities.
    confidence: Literal["verbalized", "logprobs"] = "verbalized"
    #: Passed to the provider as they are (``max_tokens``, ``reasoning_effort``, ..).
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One call: the texts it asks about and the message that holds them."""

    task: Task
    #: The user message: demonstrations, then the numbered samples.
    user: str
    #: The texts asked about; text ``i`` has the id ``i + 1`` in the message.
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said of one text, before it is matched to the label set."""

    label: str
    #: 0..1, or None where the model gave none.
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one call, as the provider counted them."""

    #: All input tokens, cached ones included.
    input_tokens: int
    output_tokens: int
    #: Input tokens the provider served from its prompt cache.
    cached_tokens: int = 0
    #: Input tokens the provider wrote to its prompt cache (Anthropic bills them apart).
    cache_write_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """The answers of one call, one for each text of the request, in its order."""

    answers: tuple[Answer | ReplyError, ...]
    #: None where the provider did not say.
    usage: TokenUsage | None = None
    request_id: str | None = None


@runtime_checkable
class Provider(Protocol):
    """Answers requests in whatever way it likes: a local model, another SDK, a rule."""

    #: Short name of the kind, such as ``"local"``.
    name: str
    #: Name of the model, as its users call it.
    model: str
    #: All else that can change an answer (an endpoint, a version); part of every key.
    identity: str

    async def answer(self, request: Request) -> Reply:
        """Answer all texts of the request, or raise a `ProviderError`."""


@runtime_checkable
class WireProvider(Protocol):
    """A provider spoken to over HTTP: pure encoding and decoding, the transport does the rest."""

    name: str
    model: str
    identity: str
    #: Absolute URL that calls are POSTed to.
    url: str
    #: Headers of every call, the secret ones included; never shown.
    headers: Mapping[str, str]

    def encode(self, request: Request) -> bytes:
        """Body of the call."""

    def decode(self, request: Request, body: bytes) -> Reply:
        """Read a 200 answer; raises `ReplyError` (with nothing else) where it holds none."""

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> Exception:
        """Turn a non-200 answer into a `ProviderError`."""

    def adapt(self, error: Exception) -> bool:
        """Change how requests are encoded because of `error`; True: send the call again at once."""

    def reserve(self, request: Request) -> tuple[int, int]:
        """Estimated input tokens and the most output tokens of a call."""


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into unit vectors.

    May carry ``name: str``, its identity in stores; without one it is known by its qualified class
    name and dimension.
    """

    #: Length of a vector.
    dim: int

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32[len(texts), dim], each row of unit norm."""
