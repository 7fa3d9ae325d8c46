"""Interfaces that users may implement, and the records that pass between the layers.

A `Provider` answers requests, an `Embedder` turns texts into vectors, an `Index` finds the nearest
ones, a `Store` stores predictions and embeddings, a `Method` reduces samples to one prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from testnuc.errors import ReplyError
    from testnuc.types import Prediction, Usage

__all__ = [
    "Answer",
    "Embedder",
    "Index",
    "Matches",
    "Method",
    "PoolText",
    "Provider",
    "Reply",
    "Request",
    "Store",
    "StoredBatch",
    "StoredPrediction",
    "Task",
    "TokenUsage",
    "WireProvider",
]


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """The common part of all calls of a client: the same for every text.

    Compared by identity, so that a provider may cache per task.
    """

    #: The system message: instruction, guidelines, label options, output format.
    system: str
    #: The label names, in order.
    labels: tuple[str, ...]
    temperature: float | None = 0.7
    top_p: float | None = 1.0
    #: Source of the confidence: verbalized by the model, or token log-probabilities.
    confidence: Literal["verbalized", "logprobs"] = "verbalized"
    #: Passed to the provider unchanged (``max_tokens``, ``reasoning_effort``, ..).
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One call: its texts, and the message with them."""

    task: Task
    #: The user message: few-shot examples, then the numbered texts.
    user: str
    #: Text ``i`` has the id ``i + 1`` in the message.
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The model's answer for one text, before it is matched to the label set."""

    label: str
    #: 0..1, or None if the model gave none.
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one call, as counted by the provider."""

    #: All input tokens, cached ones included.
    input_tokens: int
    output_tokens: int
    #: Input tokens the provider served from its prompt cache.
    cached_tokens: int = 0
    #: Input tokens the provider wrote to its prompt cache (Anthropic bills them separately).
    cache_write_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """The answers of one call, one for each text of the request, in order."""

    answers: tuple[Answer | ReplyError, ...]
    #: None if the provider did not return it.
    usage: TokenUsage | None = None
    request_id: str | None = None


@runtime_checkable
class Provider(Protocol):
    """Answers requests in any way: a local model, another SDK, a rule."""

    @property
    def name(self) -> str:
        """Short name of the kind, such as ``local``."""

    @property
    def model(self) -> str:
        """Name of the model."""

    @property
    def identity(self) -> str:
        """Everything else that affects answers (endpoint, version); part of every key."""

    async def answer(self, request: Request) -> Reply:
        """Answer all texts of the request, or raise a `ProviderError`."""


@runtime_checkable
class WireProvider(Protocol):
    """A provider over HTTP: pure encoding and decoding; the transport sends requests.

    With an attribute ``batch_format`` and a method ``at``, it also has a batch lane; see
    `testnuc.batch.base.BatchProvider`.
    """

    @property
    def name(self) -> str:
        """Short name of the kind, such as ``openai``."""

    @property
    def model(self) -> str:
        """Name of the model."""

    @property
    def identity(self) -> str:
        """Everything else that affects answers (endpoint, version); part of every key."""

    @property
    def url(self) -> str:
        """Absolute URL of calls, for POST."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of every call, with secrets; never shown."""

    def encode(self, request: Request) -> bytes:
        """Return the body of a call."""

    def decode(self, request: Request, body: bytes) -> Reply:
        """Decode a 200 response; raises only `ReplyError`, if it has no answer."""

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> Exception:
        """Return the `ProviderError` of a non-200 response."""

    def adapt(self, error: Exception) -> bool:
        """Adapt the encoding after `error`; True if the call should be retried at once."""

    def reserve(self, request: Request) -> tuple[int, int]:
        """Return the estimated input tokens and the most output tokens of a call."""


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into unit vectors.

    May have ``name: str``, its identity in stores; default: its qualified class name and
    dimension.
    """

    @property
    def dim(self) -> int:
        """Length of a vector."""

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32[len(texts), dim], each row of unit norm."""


@dataclass(frozen=True, slots=True)
class StoredPrediction:
    """A stored prediction."""

    #: 16 bytes: hash of everything that affects the prediction.
    key: bytes
    #: 16 bytes: hash of the common part of a client's predictions.
    scope: bytes
    #: 16 bytes: the hash of the text.
    text_hash: bytes
    #: Zero-based sample index.
    sample: int
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A stored batch job."""

    #: 16 bytes; our own id, known before the batch is created.
    id: bytes
    #: Of its predictions.
    scope: bytes
    #: Needed to decode its results: provider, base_url, model, labels, ..
    facts: Mapping[str, Any]
    #: Number of requests.
    requests: int
    #: Seconds since the epoch.
    created: float
    #: The predictions of each request; see `testnuc.batch.manifest`. Empty once it has ended.
    items: bytes
    #: The provider's id; None if unknown: the batch may not exist.
    remote_id: str | None = None
    #: How it ended; None while open.
    outcome: str | None = None
    #: Of its results; None while open.
    usage: Usage | None = None


@runtime_checkable
class Store(Protocol):
    """Stores predictions and embeddings.

    All methods may be called concurrently from one event loop. Hashes and keys are 16 bytes.
    """

    @property
    def durable(self) -> bool:
        """Whether data outlives the process."""

    async def open(self) -> None:
        """Open the store; raises `StoreError` if it cannot be used."""

    async def close(self) -> None:
        """Flush writes; close files and connections."""

    def pool(self, embedder: str) -> Index | None:
        """Return the pool in this store; None if the pool is in the client's memory."""

    async def describe(self, scope: bytes, facts: Mapping[str, Any]) -> None:
        """Store the facts of a scope: ``model``, ``labels``, ..; idempotent."""

    async def count(self, scope: bytes) -> int:
        """Return the number of texts with a prediction in this scope."""

    async def forget(self, *, model: str | None = None, scope: bytes | None = None) -> int:
        """Delete the predictions of a model or scope; return their number."""

    async def get_predictions(self, keys: Sequence[bytes]) -> list[Prediction | None]:
        """Return the stored prediction of each key."""

    async def put_predictions(self, rows: Sequence[StoredPrediction]) -> list[Prediction]:
        """Store predictions; return the stored ones: the first one of a key wins."""

    async def get_vectors(
        self, embedder: str, hashes: Sequence[bytes]
    ) -> list[NDArray[np.float16] | None]:
        """Return the stored embedding of each text, float16[dim]."""

    async def put_vectors(
        self, embedder: str, hashes: Sequence[bytes], vectors: NDArray[np.float16]
    ) -> None:
        """Store embeddings, float16[len(hashes), dim]."""


@dataclass(frozen=True, slots=True)
class PoolText:
    """A text of the pool."""

    text: str
    hash: bytes
    #: Human label; such a text needs no prediction.
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Matches:
    """The nearest pool texts of B queries, most similar first, ties by content hash."""

    #: int64[B, K]: ids in the pool; -1 if fewer than K were found.
    ids: NDArray[np.int64]
    #: float32[B, K]: cosines, at most 1; 0 without a neighbor.
    similarities: NDArray[np.float32]


@runtime_checkable
class Index(Protocol):
    """The pool: distinct texts and their vectors, searched by cosine."""

    def __len__(self) -> int: ...

    async def add(self, texts: Sequence[PoolText], vectors: NDArray[np.float16]) -> int:
        """Add new texts with their vectors, float16[len(texts), dim].

        Updates the label of known texts, if one is given. Returns the snapshot, which `search`
        takes as `upto` to ignore texts that were added later.
        """

    async def search(
        self,
        vectors: NDArray[np.float16],
        k: int,
        *,
        exclude: Sequence[bytes] | None = None,
        upto: int | None = None,
    ) -> Matches:
        """Find the k nearest texts of each vector, float16[B, dim].

        The text with hash ``exclude[i]`` is not a neighbor of query ``i``.
        """

    async def scan(self, start: int, count: int) -> tuple[list[PoolText], int | None]:
        """Return at most `count` texts from id `start`, and the next `start`; None at the end."""

    async def labels(self, hashes: Sequence[bytes]) -> list[str | None]:
        """Return the human label of each text; None without one, or if not in the pool."""

    async def stored_vectors(self, hashes: Sequence[bytes]) -> list[NDArray[np.float16] | None]:
        """Return the vector of each text of the pool, float16[dim]."""

    async def close(self) -> None:
        """Release threads and connections."""

    async def remove(self, hashes: Sequence[bytes]) -> int:
        """Remove texts from the pool; return the number removed."""

    async def open(self) -> None:
        """Load or repair data outside this process."""

    async def fetch(self, ids: NDArray[np.int64]) -> list[PoolText]:
        """Return the texts with these ids, int64[n], none of them -1."""


@runtime_checkable
class Method(Protocol):
    """How a text gets its own prediction: the samples it needs, and their reduction."""

    @property
    def samples(self) -> int:
        """Number of LLM samples of a prediction."""

    @property
    def context(self) -> int:
        """Number of neighbors in the prompt as few-shot examples."""

    @property
    def labeled(self) -> bool:
        """Whether the examples have their predictions as labels."""

    def reduce(self, samples: Sequence[Prediction]) -> Prediction:
        """Reduce all successful samples, in order, to one prediction."""
