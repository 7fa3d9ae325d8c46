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

    @property
    def name(self) -> str:
        """Short name of the kind, such as ``local``."""

    @property
    def model(self) -> str:
        """Name of the model, as its users call it."""

    @property
    def identity(self) -> str:
        """All else that can change an answer (an endpoint, a version); part of every key."""

    async def answer(self, request: Request) -> Reply:
        """Answer all texts of the request, or raise a `ProviderError`."""


@runtime_checkable
class WireProvider(Protocol):
    """A provider spoken to over HTTP: pure encoding and decoding, the transport does the rest."""

    @property
    def name(self) -> str:
        """Short name of the kind, such as ``openai``."""

    @property
    def model(self) -> str:
        """Name of the model, as its users call it."""

    @property
    def identity(self) -> str:
        """All else that can change an answer (an endpoint, a version); part of every key."""

    @property
    def url(self) -> str:
        """Absolute URL that calls are POSTed to."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of every call, the secret ones included; never shown."""

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

    @property
    def dim(self) -> int:
        """Length of a vector."""

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32[len(texts), dim], each row of unit norm."""


@dataclass(frozen=True, slots=True)
class StoredPrediction:
    """One prediction as a store keeps it."""

    #: 16 bytes: the hash of all that can change the prediction.
    key: bytes
    #: 16 bytes: the hash of all that the predictions of one client have in common.
    scope: bytes
    #: 16 bytes: the hash of the text.
    text_hash: bytes
    #: How-manieth answer to the same prompt, from 0.
    sample: int
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch of requests at a provider, as a store keeps it."""

    #: 16 bytes, our own: known before the provider has the batch.
    id: bytes
    #: The scope of the predictions that it is for.
    scope: bytes
    #: What it takes to read its answers: provider, base_url, model, labels, ..
    facts: Mapping[str, Any]
    #: How many requests it has.
    requests: int
    #: When it was decided on, in seconds since the epoch.
    created: float
    #: What each request asks for; see `testnuc.batch.manifest`. Empty once the batch has ended.
    items: bytes
    #: The provider's id; None: it is not known whether the provider has the batch.
    remote_id: str | None = None
    #: How it ended; None: it has not.
    outcome: str | None = None
    #: What its answers used; None: it has not ended.
    usage: Usage | None = None


@runtime_checkable
class Store(Protocol):
    """Remembers predictions and embeddings, so that nothing is paid for twice.

    All methods may be called concurrently from one event loop. Hashes and keys are 16 bytes.
    """

    @property
    def durable(self) -> bool:
        """Whether what is put outlives the process."""

    async def open(self) -> None:
        """Make ready; raises `StoreError` where the store cannot be used."""

    async def close(self) -> None:
        """Write what is not written and let go of files and connections."""

    def pool(self, embedder: str) -> Index | None:
        """Return the pool that lives in this store; None: the client keeps one in memory."""

    async def describe(self, scope: bytes, facts: Mapping[str, Any]) -> None:
        """Note what a scope is: ``model``, ``labels``, ..; once is enough."""

    async def count(self, scope: bytes) -> int:
        """Return how many texts have a prediction of this scope."""

    async def forget(self, *, model: str | None = None, scope: bytes | None = None) -> int:
        """Drop the predictions of a model, or of a scope; returns how many."""

    async def get_predictions(self, keys: Sequence[bytes]) -> list[Prediction | None]:
        """Return the stored prediction of each key."""

    async def put_predictions(self, rows: Sequence[StoredPrediction]) -> list[Prediction]:
        """Store predictions; return what stands: the first one stored under a key wins."""

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
    """One text of the pool."""

    text: str
    hash: bytes
    #: The label that a person said is right; such a text is never asked about.
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Matches:
    """The nearest pool texts of B queries, most similar first, equal ones by content hash."""

    #: int64[B, K]: the pool's own numbers of the texts; -1 where fewer than K were found.
    ids: NDArray[np.int64]
    #: float32[B, K]: cosines, at most 1; 0 where there is no neighbor.
    similarities: NDArray[np.float32]


@runtime_checkable
class Index(Protocol):
    """The pool: distinct texts and their vectors, searched by cosine."""

    def __len__(self) -> int: ...

    async def add(self, texts: Sequence[PoolText], vectors: NDArray[np.float16]) -> int:
        """Add the texts that are not there yet, with their vectors float16[len(texts), dim].

        A label given for a text that is there already is kept. Returns the snapshot: what to give
        `search` as `upto`, so that it finds no text that was added later.
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

        The text whose hash is ``exclude[i]`` is no neighbor of query ``i``.
        """

    async def scan(self, start: int, count: int) -> tuple[list[PoolText], int | None]:
        """Return at most `count` texts numbered from `start`, and where to go on; None: no more."""

    async def labels(self, hashes: Sequence[bytes]) -> list[str | None]:
        """Return the label that a person gave each text; None: none, or not in the pool."""

    async def stored_vectors(self, hashes: Sequence[bytes]) -> list[NDArray[np.float16] | None]:
        """Return the vector of each text that is in the pool, float16[dim]."""

    async def close(self) -> None:
        """Let go of threads and connections."""

    async def remove(self, hashes: Sequence[bytes]) -> int:
        """Take texts out of the pool; returns how many were in it."""

    async def open(self) -> None:
        """Make ready: load or mend what is kept outside this process."""

    async def fetch(self, ids: NDArray[np.int64]) -> list[PoolText]:
        """Return the texts with these numbers, int64[n], none of them -1."""


@runtime_checkable
class Method(Protocol):
    """How one text gets its own prediction: which samples are asked for, and what they come to."""

    @property
    def samples(self) -> int:
        """How many answers of the LLM one prediction takes."""

    @property
    def context(self) -> int:
        """How many neighbors are shown to the LLM as examples."""

    @property
    def labeled(self) -> bool:
        """Whether the examples carry their own predictions as labels."""

    def reduce(self, samples: Sequence[Prediction]) -> Prediction:
        """Make one prediction of all samples that were answered, in the order of their numbers."""
