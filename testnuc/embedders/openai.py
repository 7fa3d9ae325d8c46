"""Embeddings from any server with OpenAI's ``/v1/embeddings``."""

import os
from base64 import b64decode
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from testnuc import errors
from testnuc._base.arrays import Float32s
from testnuc._base.foreign import count, read_json
from testnuc.limits.budget import BYTES_PER_TOKEN
from testnuc.limits.policies import Limits
from testnuc.protocols import Reply, Request, Task, TokenUsage
from testnuc.transport import Transport
from testnuc.transport.api_errors import as_error, without_key
from testnuc.transport.connections import MOST_BYTES
from testnuc.transport.endpoint import Endpoint, checked_key
from testnuc.types import Usage

_DEFAULT = "https://api.openai.com/v1"
#: Texts in one request; OpenAI allows 2,048 texts and 300,000 tokens.
_PER_CALL = 256
#: Estimated tokens in one request, and in one text; a longer text gets a request of its own.
_TOKENS_PER_CALL = 300_000
_TOKENS_PER_TEXT = 8_192
#: A text that is cut has at most so many characters, and then this part of them, until it fits.
_LONGEST = 24_000
_CUT = 0.75
#: Most numbers of a vector before its length is known, and most lists and fields for each text.
_MOST_NUMBERS, _MOST_FIELDS = 16_384, 50
#: Bytes of an error that are searched for its meaning.
_MOST_QUOTED = 2_000
#: Rejected texts after which a request counts as malformed, if none was ever accepted.
_MOST_REJECTED = 3
#: Requests in a row that may fail with a 401, 403 or 404 before any was accepted, and after: one
#: text may be at fault.
_FEW, _MANY = 4, 20
_UNAUTHORIZED = (errors.AuthenticationError, errors.UnknownModelError)

_TASK = Task(system="", labels=())


class OpenAIEmbedder:
    """A model behind ``/v1/embeddings`` as an `Embedder`.

    Parameters
    ----------
    model : str
        Its name at the server, such as ``"text-embedding-3-small"``.
    base_url : str, optional
        Default: ``OPENAI_BASE_URL``, else OpenAI's own.
    api_key : str, optional
        Default: ``OPENAI_API_KEY``.
    dimensions : int, optional
        Length of vectors, for models with several.
    limits : Limits
        Of the embedding model; separate from the LLM's.
    truncate : bool
        Whether a text that is too long for the model is cut; else it fails, alone.

    Raises
    ------
    ConfigurationError
        There is no key for OpenAI's host.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        dimensions: int | None = None,
        limits: Limits = Limits(concurrency=8),  # noqa: B008 - it has no state
        truncate: bool = False,
    ) -> None:
        endpoint = Endpoint.parse(base_url or os.environ.get("OPENAI_BASE_URL") or _DEFAULT)
        key = checked_key(api_key, ("OPENAI_API_KEY",))
        if key is None and endpoint.host == "api.openai.com":
            raise errors.ConfigurationError(
                f"no key for {endpoint.host}: set OPENAI_API_KEY in the environment, or choose a "
                "local embedder"
            )
        self.name = f"openai/{model}" + (f"/{dimensions}" if dimensions else "")
        self._wire = _Embeddings(model, endpoint, key, dimensions)
        self.calls_at_once = limits.concurrency
        self._transport = Transport(limits)
        self._truncate = truncate
        self._accepted = False
        #: Requests that failed with a 401, 403 or 404 since the last one that was accepted.
        self._failed = 0

    def __repr__(self) -> str:
        return f"OpenAIEmbedder({self._wire.model!r}, host={self._wire.host!r})"

    @property
    def dim(self) -> int:
        """Length of a vector; known after the first embedding."""
        if self._wire.dim is None:
            raise errors.EmbeddingError(
                f"the dimension of {self.name} is known after its first embedding"
            )
        return self._wire.dim

    @property
    def usage(self) -> Usage:
        """Calls and tokens of the embeddings."""
        return self._transport.meter.since()

    async def embed(self, texts: Sequence[str]) -> Float32s:
        """Return float32[len(texts), dim]; a call that fails raises a `ProviderError`."""
        rows = []
        for row in await self.embed_each(texts):
            if isinstance(row, Exception):
                raise row
            rows.append(row)
        return np.stack(rows)

    async def embed_each(self, texts: Sequence[str]) -> list[Float32s | Exception]:
        """Return the vector of each text, or the error of a text that the server rejects."""
        self._transport.require_loop()
        found: list[Float32s | Exception] = []
        for part in _parts(texts):
            found += await self._embed(part)
        if not self._accepted and found and all(isinstance(row, _UNAUTHORIZED) for row in found):
            assert isinstance(found[0], Exception)
            raise found[0]
        return found

    async def _embed(self, texts: tuple[str, ...]) -> list[Float32s | Exception]:
        """Embed in one request; if it is rejected, in halves, so that one text fails alone."""
        rows: dict[int, Float32s | Exception] = {}
        parts = deque([(0, texts)])
        rejected = 0
        while parts:
            start, part = parts.popleft()
            half = len(part) // 2
            halves = ((start, part[:half]), (start + half, part[half:]))
            try:
                reply = await self._transport.call(self._wire, Request(_TASK, "", part))
            except errors.BadRequestError as exc:
                if half:
                    parts.extendleft(reversed(halves))
                    continue
                if self._truncate and not exc.fatal and len(part[0]) > 1:
                    shorter = min(_LONGEST, int(len(part[0]) * _CUT))
                    parts.appendleft((start, (part[0][:shorter],)))
                    continue
                rejected += 1
                if exc.fatal and not self._accepted and rejected >= _MOST_REJECTED:
                    raise  # not the texts, but every request: an unknown parameter, for example
                rows[start] = exc
            except _UNAUTHORIZED as exc:
                self._failed += 1
                if self._failed >= (_MANY if self._accepted else _FEW):
                    raise
                if half:
                    # at the end: the other half shows soon whether the key is wrong
                    parts.extend(halves)
                    continue
                exc.fatal = not self._accepted
                rows[start] = exc
            else:
                assert isinstance(reply, _Vectors)
                self._accepted, self._failed = True, 0
                rows |= enumerate(reply.rows, start)
        return [rows[at] for at in range(len(texts))]

    async def cut(self, texts: Sequence[str]) -> tuple[int, int]:
        """Return about how many texts are cut or refused, and the tokens of OpenAI's limit."""
        long = (text for text in texts if len(text) > _TOKENS_PER_TEXT)
        return sum(_tokens(text) > _TOKENS_PER_TEXT for text in long), _TOKENS_PER_TEXT

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.aclose()


def _tokens(text: str) -> int:
    return int(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN) + 1


def _parts(texts: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the texts of each request, in order; a text that may be too long is alone."""
    part: list[str] = []
    size = 0
    for text in texts:
        tokens = _tokens(text)
        alone = tokens > _TOKENS_PER_TEXT
        if part and (alone or len(part) == _PER_CALL or size + tokens > _TOKENS_PER_CALL):
            yield tuple(part)
            part, size = [], 0
        if alone:
            yield (text,)
        else:
            part.append(text)
            size += tokens
    if part:
        yield tuple(part)


def _usage(answer: Any) -> TokenUsage | None:
    """Return the tokens that a response reports; None: unknown."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    tokens = count(usage.get("prompt_tokens")) if isinstance(usage, dict) else None
    return None if tokens is None else TokenUsage(tokens, 0)


def _vector(given: Any) -> Float32s:
    """Return the numbers of a list, or of little-endian float32 in base64; None: there are none."""
    if isinstance(given, str):
        return np.frombuffer(b64decode(given, validate=True), dtype="<f4").astype(np.float32)
    return np.asarray([] if given is None else given, dtype=np.float32).ravel()


@dataclass(frozen=True, slots=True, eq=False)
class _Vectors(Reply):
    #: Of each text.
    rows: tuple[Float32s, ...] = ()


class _Embeddings:
    """The wire format of ``/v1/embeddings``; a `WireProvider` whose replies hold vectors."""

    name = "openai"
    #: A vector in JSON takes up to 32 bytes for each of some thousand numbers.
    most_bytes = 4 * MOST_BYTES
    #: Whether a call with several texts is repeated as a whole after an unreadable reply.
    repeats_packed = True

    def __init__(
        self, model: str, endpoint: Endpoint, key: str | None, dimensions: int | None
    ) -> None:
        self.model = model
        self.host = endpoint.netloc
        self.identity = f"{endpoint.at(endpoint.path)}/{dimensions}"
        self.url = endpoint.at((endpoint.path or "/v1") + "/embeddings")
        self.headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._key = key
        self._dimensions = dimensions
        #: Length of a vector; None before the first, if no `dimensions` are asked for.
        self.dim = dimensions
        # base64 takes a quarter of the bytes; servers without it return lists
        self._encoding: str | None = "base64"

    def encode(self, request: Request) -> bytes:
        body: dict[str, Any] = {"model": self.model, "input": request.texts}
        if self._encoding is not None:
            body["encoding_format"] = self._encoding
        if self._dimensions is not None:
            body["dimensions"] = self._dimensions
        return orjson.dumps(body)

    def decode(self, request: Request, body: bytes) -> Reply:
        """Decode the vectors, in the order of the texts."""
        usage: TokenUsage | None = None
        try:
            fields = sum(map(body.count, (b"[", b"{", b":")))
            most = len(request.texts) * ((self.dim or _MOST_NUMBERS) + _MOST_FIELDS)
            # a list and a field take far longer to read than a number
            crowded = fields > _MOST_FIELDS * (1 + len(request.texts))
            value = read_json(body, most=0 if crowded else most)
            usage = _usage(value)
            failed = isinstance(value, dict) and "data" not in value and value.get("error")
            data = [] if failed else value["data"]
            found = {item["index"]: item["embedding"] for item in data}
            with np.errstate(over="ignore"):  # infinity is an error of the vectors, found later
                rows = [_vector(found[at]) for at in range(len(data))]
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as exc:
            raise errors.UnreadableReplyError(
                f"{self.host} answered with no embeddings: {self.shown(repr(body[:200]))}",
                usage=usage,
            ) from exc
        if failed:
            raise self.error(200, {}, body)
        lengths = {len(row) for row in rows if len(row)}
        dim = self.dim or min(lengths, default=0)
        if len(rows) != len(request.texts) or lengths != {dim} or not dim:
            raise errors.UnreadableReplyError(
                f"{self.host} answered with {len(rows)} embeddings for {len(request.texts)} texts, "
                f"of up to {max(lengths, default=0)} numbers; expected {dim}",
                usage=usage,
            )
        self.dim = dim
        # a text without a vector fails alone, as one with a vector that has no direction
        none = np.full(dim, np.nan, dtype=np.float32)
        return _Vectors((), usage, None, tuple(row if len(row) else none for row in rows))

    def shown(self, text: str) -> str:
        """Return words of the server without the key."""
        return without_key(text, self._key)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> errors.ProviderError:
        where = f"{self.model} at {self.host}"
        error = as_error(
            status, headers, body, where=where, key=self._key, hint="Check OPENAI_API_KEY."
        )
        if status >= 500 and b"NaN" in body[:_MOST_QUOTED]:
            # Ollama's model has no vector for one of the texts
            error = errors.BadRequestError(str(error), status_code=status)
            error.fatal = False
        return error

    def adapt(self, error: Exception, task: Task) -> bool:  # noqa: ARG002
        """Omit the encoding if the server rejects it."""
        if self._encoding is not None and "encoding_format" in str(error):
            self._encoding = None
            return True
        return False

    def reserve(self, request: Request) -> tuple[int, int]:
        return sum(map(_tokens, request.texts)), 0
