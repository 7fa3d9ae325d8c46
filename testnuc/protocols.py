"""Interfaces that users can implement, and the records passed between layers.

A `Provider` answers requests, an `Embedder` returns vectors of texts, an `Index` searches nearest
neighbors, a `Store` persists predictions and embeddings, and a `Method` reduces samples to one
prediction.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self, TypeAlias, TypeGuard, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from testnuc._base.checks import hash_text
from testnuc._base.display import Brief
from testnuc.errors import ReplyError
from testnuc.types import Prediction, Usage

_T = TypeVar("_T")


def implements(value: object, protocol: type[_T]) -> TypeGuard[_T]:
    """Whether an object has all public members of a protocol.

    From Python 3.12 on, `isinstance` does not see what an object delegates by ``__getattr__``.
    """
    return all(
        hasattr(value, name)
        for kind in protocol.__mro__
        if getattr(kind, "_is_protocol", False)
        for name in vars(kind)
        if not name.startswith("_")
    )


#: A key, or a function or coroutine function that is asked for it, and again when it expires.
APIKey: TypeAlias = str | Callable[[], str | Awaitable[str]]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Task(Brief):
    """The part of a call that is the same for all texts of a client.

    Tasks are compared by identity, so that a provider can cache prepared data per task.
    """

    #: The system message: instruction, guidelines, label options, output format.
    system: str
    #: The allowed labels, in order.
    labels: tuple[str, ...]
    temperature: float | None = 0.7
    top_p: float | None = 1.0
    #: Source of the confidence: stated in the reply, or token log-probabilities.
    confidence: Literal["verbalized", "logprobs"] = "verbalized"
    #: Passed to the provider unchanged (``max_tokens``, ``service_tier``, ..).
    options: Mapping[str, Any] = field(default_factory=dict)
    #: ``"least"``: the least that the model accepts; None: the provider's own.
    reasoning_effort: str | None = "least"
    #: Whether a text can have several labels, or none.
    multilabel: bool = False
    #: Whether the label is the one whose tokens are most probable.
    score_labels: bool = False
    #: Returns the position of the label that a whole reply is, or None.
    same: Callable[[str], int | None] | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Request(Brief):
    """One call to the LLM."""

    task: Task
    #: The user message: few-shot examples, then the numbered texts.
    user: str
    #: The texts to label; text ``i`` has id ``i + 1`` in the message.
    texts: tuple[str, ...]
    #: How often the format was stepped down because a reply was unreadable: 1 asks for any JSON
    #: object, 2 leaves the format to the prompt.
    step: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Answer(Brief):
    """The model's answer for one text, before it is matched to the label set."""

    label: str
    #: 0..1, or None if the model returned none.
    confidence: float | None = None
    #: Of a text that can have several labels: each with its confidence, in the order of the answer.
    labels: tuple[tuple[str, float | None], ...] | None = None

    @property
    def stated(self) -> tuple[tuple[str, float | None], ...]:
        """Its labels, one or several, each with its confidence."""
        return ((self.label, self.confidence),) if self.labels is None else self.labels


#: Of the texts of a request, in their order.
Answers: TypeAlias = tuple[Answer | ReplyError, ...]


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one call, as reported by the provider."""

    #: All input tokens, including cached ones.
    input_tokens: int
    output_tokens: int
    #: Input tokens read from the provider's prompt cache.
    cached_tokens: int = 0
    #: Input tokens written to the provider's prompt cache (Anthropic bills them separately).
    cache_write_tokens: int = 0
    #: The service tier that answered, which can change the price; "" if not reported.
    tier: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Reply(Brief):
    """The answers of one call, one per text of the request, in the same order."""

    answers: Answers
    #: None if the provider did not report it.
    usage: TokenUsage | None = None
    request_id: str | None = None


class Model(Protocol):
    """What identifies the model of a provider."""

    @property
    def name(self) -> str:
        """Short name of the provider, such as ``openai``."""

    @property
    def model(self) -> str:
        """Name of the model."""

    @property
    def identity(self) -> str:
        """Everything else that can change an answer (endpoint, version); part of stored keys."""


@runtime_checkable
class Provider(Model, Protocol):
    """Answers requests by any means: a local model, another SDK, a rule."""

    async def answer(self, request: Request) -> Reply:
        """Answer all texts of the request; raises `ProviderError`."""


@runtime_checkable
class WireProvider(Model, Protocol):
    """A provider behind an HTTP API: encodes and decodes; the transport sends and retries."""

    @property
    def url(self) -> str:
        """Absolute URL of the POST requests."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of every request, including secret ones; never logged."""

    def encode(self, request: Request) -> bytes:
        """Return the body of the HTTP request."""

    def decode(self, request: Request, body: bytes) -> Reply:
        """Decode a 200 response; raises `ReplyError`, and no other exception, if it is unusable."""

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> Exception:
        """Return the `ProviderError` for a response other than 200."""

    def adapt(self, error: Exception, task: Task) -> bool:
        """Adapt the encoding after the `error` of a call; True: retry the call immediately."""

    def reserve(self, request: Request) -> tuple[int, int]:
        """Return the estimated input tokens and the maximum output tokens of a call."""


@runtime_checkable
class Embedder(Protocol):
    """Computes embeddings of unit norm.

    An optional attribute ``name: str`` identifies the embedder in stores. The default is the
    qualified class name and the dimension.
    """

    @property
    def dim(self) -> int:
        """Dimension of a vector."""

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32[len(texts), dim], each row of unit norm.

        Raises
        ------
        InvalidInputError, BadRequestError
            A text cannot be embedded. It fails alone: the others are embedded without it. Any other
            exception ends the run.
        """


@dataclass(frozen=True, slots=True, repr=False)
class StoredPrediction(Brief):
    """One row of the predictions in a store."""

    #: 16 bytes: the hash of everything that can change the prediction.
    key: bytes
    #: 16 bytes: the hash of the settings that all predictions of one client share.
    scope: bytes
    #: 16 bytes: the hash of the text.
    text_hash: bytes
    #: Zero-based sample index among the answers to the same prompt.
    sample: int
    prediction: Prediction


@dataclass(frozen=True, slots=True, repr=False)
class StoredBatch(Brief):
    """One row of the batch jobs in a store."""

    #: 16 random bytes, assigned before the batch is submitted.
    id: bytes
    #: The scope of its predictions.
    scope: bytes
    #: Metadata needed to decode its answers: provider, base_url, model, labels, ..
    facts: Mapping[str, Any]
    #: Number of requests.
    requests: int
    #: Creation time, in seconds since the epoch.
    created: float
    #: The manifest of its requests; see `testnuc.batch.manifest`. Empty once the batch has ended.
    items: bytes
    #: The provider's id; None until the provider is known to have created the batch.
    remote_id: str | None = None
    #: Final status; None while the batch is open.
    outcome: str | None = None
    #: Usage of all its answers; None while the batch is open.
    usage: Usage | None = None


@runtime_checkable
class Store(Protocol):
    """Stores predictions and embeddings, so that each LLM call is made once.

    Methods may be called concurrently from one event loop. Hashes and keys are 16 bytes.
    """

    @property
    def durable(self) -> bool:
        """Whether stored data outlives the process."""

    async def open(self) -> None:
        """Open the store; raises `StoreError`."""

    async def close(self) -> None:
        """Flush pending writes, then close files and connections."""

    def pool(self, embedder: str) -> "Index | None":
        """Return the pool of an embedder; None if the store has no pools (memory is used then)."""

    async def describe(self, scope: bytes, facts: Mapping[str, Any]) -> None:
        """Store the metadata of a scope: ``model``, ``labels``, .."""

    async def count(self, scope: bytes) -> int:
        """Return the number of texts with a prediction in this scope."""

    async def forget(self, *, model: str | None = None, scope: bytes | None = None) -> int:
        """Delete the predictions of a model, or of a scope; returns their number."""

    async def get_predictions(self, keys: Sequence[bytes]) -> list[Prediction | None]:
        """Return the stored prediction for each key; None if missing."""

    async def put_predictions(self, rows: Sequence[StoredPrediction]) -> list[Prediction]:
        """Store predictions; the first one under a key wins. Returns the stored prediction each."""

    async def get_vectors(
        self, embedder: str, hashes: Sequence[bytes]
    ) -> list[NDArray[np.float16] | None]:
        """Return the stored embedding of each text, float16[dim]; None if missing."""

    async def put_vectors(
        self, embedder: str, hashes: Sequence[bytes], vectors: NDArray[np.float16]
    ) -> None:
        """Store embeddings, float16[len(hashes), dim]; existing ones are not changed."""


@dataclass(frozen=True, slots=True, repr=False)
class PoolText(Brief):
    """A text of the pool."""

    text: str
    hash: bytes
    #: The known (gold) label; the LLM is never called for such a text.
    label: str | None = None

    @classmethod
    def of(cls, text: str) -> Self:
        """Return a text with its hash."""
        return cls(text, hash_text(text))


@dataclass(frozen=True, slots=True, repr=False)
class Matches(Brief):
    """The nearest pool texts of B queries, most similar first; ties are ordered by text hash."""

    #: int64[B, K]: row numbers in the pool, padded with -1.
    ids: NDArray[np.int64]
    #: float32[B, K]: cosine similarities, at most 1; padded with 0.
    similarities: NDArray[np.float32]


@runtime_checkable
class Index(Protocol):
    """The pool: distinct texts and their vectors, searched by cosine."""

    def __len__(self) -> int: ...

    async def add(self, texts: Sequence[PoolText], vectors: NDArray[np.float16]) -> int:
        """Add the texts that are not in the pool yet.

        Parameters
        ----------
        texts : Sequence[PoolText]
            A text that is in the pool already only updates its label, if it has one.
        vectors : float16[len(texts), dim]
            Unit vectors.

        Returns
        -------
        int
            A snapshot: `search` with this value as `upto` ignores texts that are added later.
        """

    async def search(
        self,
        vectors: NDArray[np.float16],
        k: int,
        *,
        exclude: Sequence[bytes] | None = None,
        upto: int | None = None,
        among: NDArray[np.int64] | None = None,
    ) -> Matches:
        """Return the k nearest texts of each query vector.

        Parameters
        ----------
        vectors : float16[B, dim]
            Unit vectors.
        k : int
            Neighbors per query.
        exclude : Sequence[bytes], optional
            One hash per query; that text is left out of the query's neighbors.
        upto : int, optional
            A snapshot that `add` returned. Default: all texts.
        among : int64[n], optional
            Row numbers, ascending: of these texts alone.
        """

    async def scan(self, start: int, count: int) -> tuple[list[PoolText], int | None]:
        """Return the texts of rows `start` to `start + count`, and the next start or None."""

    async def labels(self, hashes: Sequence[bytes]) -> list[str | None]:
        """Return the known label of each text; None if it has none or is not in the pool."""

    async def labeled(self) -> dict[bytes, str]:
        """Return the known label of each text that has one, by hash."""

    async def rows(self, hashes: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the row numbers of those texts that are in the pool, ascending."""

    async def stored_vectors(self, hashes: Sequence[bytes]) -> list[NDArray[np.float16] | None]:
        """Return the vector of each text, float16[dim]; None if it is not in the pool."""

    async def close(self) -> None:
        """Stop threads and close connections."""

    async def remove(self, hashes: Sequence[bytes]) -> int:
        """Remove texts from the pool; returns how many were in it."""

    async def open(self) -> None:
        """Open the pool; load or rebuild its index."""

    async def fetch(self, ids: NDArray[np.int64]) -> list[PoolText]:
        """Return the texts of the rows int64[n], none of them -1."""


@runtime_checkable
class Method(Protocol):
    """How one text gets its own prediction: the samples to request and how to reduce them."""

    @property
    def samples(self) -> int:
        """Number of samples per text."""

    @property
    def context(self) -> int:
        """Number of neighbors in the prompt as few-shot examples."""

    @property
    def labeled(self) -> bool:
        """Whether the few-shot examples carry their own predictions as labels."""

    def reduce(self, samples: Sequence[Prediction]) -> Prediction:
        """Reduce the successful samples, in order of their sample index, to one prediction."""
