"""The interface of all batch APIs."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol
from urllib.parse import quote, urlencode

import orjson

from testnuc._base.display import shown
from testnuc._base.foreign import read_json, write_json
from testnuc.errors import ProviderError, RateLimitedError, ServerError, printable
from testnuc.limits.headers import count
from testnuc.limits.policies import LONGEST_WAIT
from testnuc.protocols import StoredBatch, WireProvider
from testnuc.transport import AuxiliaryRequests
from testnuc.transport.connections import HTTPAnswer

Wait = Callable[[float | None], Awaitable[None]]

#: Headers with the polling interval, in milliseconds.
_POLL_AFTER = ("openai-poll-after-ms", "retry-after-ms")
#: Most pages of a list that are read.
_MOST_PAGES = 1_000
#: Characters of a sentence of the server.
_MOST_WORDS = 500


class QueueFullError(RateLimitedError):
    """The batch was refused: the account has reached its limit of enqueued tokens."""

    def __init__(self, message: str, *, limit: int | None = None) -> None:
        super().__init__(message)
        self.limit = limit


class NoneChosenError(ProviderError):
    """The answer is none of the labels that the prompt showed: all of them are shown next."""


@dataclass(frozen=True, slots=True)
class RemoteBatch:
    """The state of a batch, as the provider reports it."""

    id: str
    #: In the provider's own terms.
    status: str
    ended: bool
    #: All requests, and those that have succeeded or failed.
    total: int
    done: int
    #: Requests that were answered, so billed; and those that were not, None: all others. By default
    #: it is unknown, and all of them may have been answered.
    answered: int = 0
    unanswered: int | None = 0
    #: Locations of the results, once it has ended.
    results: tuple[str, ...] = ()
    #: Uploaded files, which are deleted once the results are stored.
    uploads: tuple[str, ...] = ()
    #: Set if the batch failed as a whole.
    error: ProviderError | None = None
    #: Polling interval in seconds, if the provider states it.
    poll_after: float | None = None

    def most_answers(self, requests: int) -> int:
        """Return how many of so many requests may have been answered, so billed."""
        rest = 0 if self.unanswered is None else requests - self.unanswered
        return min(requests, max(self.answered, rest))


@dataclass(frozen=True, slots=True)
class BatchResultLine:
    """One line of results."""

    custom_id: str
    #: HTTP status of the request; 0 if it was not executed.
    status: int
    #: Body of the response or error.
    body: bytes
    #: Why it was not executed, in the provider's own terms.
    why: str = ""


class BatchProvider(WireProvider, Protocol):
    """A provider with a batch API: testnuc's own, subclasses, wrappers, or a user's."""

    @property
    def batch_format(self) -> str:
        """``openai``, ``anthropic``, ``mistral`` or ``gemini``."""

    def at(self, path: str, query: str = "") -> str:
        """Return the absolute URL of another path of the API, such as ``/batches``."""


class BatchAPI(ABC):
    """A provider's batch API: what all have in common."""

    #: Documented limits of a batch.
    max_requests: ClassVar[int]
    max_bytes: ClassVar[int]
    #: Of batches, after the base URL.
    path: ClassVar[str]
    #: Batches in a page of the list, and the query parameters that state it and continue the list.
    page: ClassVar[int]
    limit: ClassVar[str] = "limit"
    cursor: ClassVar[str]

    def __init__(self, provider: BatchProvider, exchanges: AuxiliaryRequests) -> None:
        self._provider = provider
        #: Where files and the list of batches are.
        self._storage = provider
        self._exchanges = exchanges

    @abstractmethod
    def line(self, custom_id: str, body: bytes) -> bytes:
        """Write one request of a batch."""

    @abstractmethod
    async def prepare(self, name: str, lines: Sequence[bytes]) -> bytes:
        """Upload the requests, without cost; return the argument of `create`."""

    @abstractmethod
    async def create(self, name: str, prepared: bytes) -> RemoteBatch:
        """Create the batch; not retried."""

    async def retrieve(self, remote_id: str) -> RemoteBatch:
        """Return the state of a batch."""
        return await self._batch("GET", self._at(remote_id))

    async def cancel(self, remote_id: str) -> RemoteBatch:
        """Cancel a batch; completed requests are billed."""
        return await self._batch("POST", f"{self._at(remote_id)}/cancel")

    @abstractmethod
    async def find(self, batch: StoredBatch, known: set[str], wait: Wait) -> str | None:
        """Find a batch whose id was lost; None if the provider does not list it.

        `known` are the ids of other batches, to which it adds those that it rules out; `wait` is
        called before each poll and each page. `ProviderError` with status 404: a batch may be ours,
        and its results are not there.
        """

    async def discard(self, uploads: Sequence[str]) -> None:  # noqa: B027 - not all have files
        """Delete uploaded files, if there are any; never raises `TestNUCError`."""

    @abstractmethod
    async def read(self, remote: RemoteBatch, take: Callable[[BatchResultLine], None]) -> None:
        """Pass each result to `take`; in any order, possibly more than once.

        What can be read is, before it raises the error of what cannot.
        """

    def result(self, content: bytes) -> BatchResultLine | None:
        """Parse a line of results; None if it is malformed, or does not show what became of it."""
        try:
            found = mapping(read_json(content))
        except ValueError:
            return None
        custom_id = found.get("custom_id")
        return self._result(custom_id, found) if isinstance(custom_id, str) else None

    def _words(self, value: object) -> str:
        """Return words of the server in one line, without the key."""
        text = value if isinstance(value, str) else shown(value)
        hide = getattr(self._provider, "shown", None)
        return printable(text[:_MOST_WORDS] if hide is None else hide(text[:_MOST_WORDS]))

    @abstractmethod
    def _remote(self, found: dict[str, Any], wait: float | None) -> RemoteBatch:
        """Return the state of a batch, from the provider's record and polling interval."""

    @abstractmethod
    def _result(self, custom_id: str, found: dict[str, Any]) -> BatchResultLine | None:
        """Return a line of results; None if it does not show what became of the request."""

    def _at(self, remote_id: str) -> str:
        return f"{self.path}/{quote(remote_id, safe='')}"

    async def _store(self, method: str, path: str, body: bytes = b"", **options: Any) -> HTTPAnswer:
        """Send a request about a file; options as in `AuxiliaryRequests.send`."""
        url = self._storage.at(path)
        return await self._exchanges.send(self._storage, method, url, body, **options)

    def _page(self, page: dict[str, Any], number: int) -> tuple[list[dict[str, Any]], str]:  # noqa: ARG002
        """Return the records of a page, so many from the first, and where the next begins."""
        listed = page.get("data", "missing") or []
        if not isinstance(listed, list):
            raise ServerError("the list of batches has no `data`")
        records = [one for one in listed if _id_of(one)]
        return records, _id_of(records[-1]) if records and page.get("has_more") else ""

    async def _batch(
        self, method: str, path: str, body: bytes = b"", *, again: bool = True
    ) -> RemoteBatch:
        """Send a request that is answered with a batch."""
        url = self._provider.at(path)
        answer = await self._exchanges.send(self._provider, method, url, body, again=again)
        return self._remote(json_object(answer), poll_after(answer.headers))

    async def _records(
        self, wait: Wait
    ) -> AsyncGenerator[tuple[dict[str, Any], float | None], None]:
        """Yield the records of all batches, each with the polling interval."""
        after, seen = "", {""}
        while len(seen) <= _MOST_PAGES:
            if after:
                await wait(0.0)
            query = {self.limit: str(self.page), **({self.cursor: after} if after else {})}
            url = self._storage.at(self.path, urlencode(query))
            answer = await self._exchanges.send(self._storage, "GET", url)
            records, after = self._page(json_object(answer, named=False), len(seen))
            for one in records:
                yield one, poll_after(answer.headers)
            if after in seen:
                return
            seen.add(after)

    async def _download(self, path: str, take: Callable[[BatchResultLine], None]) -> None:
        """Pass each line of results to `take`, except malformed ones."""

        def each(content: bytes) -> None:
            line = self.result(content)
            if line is not None:
                take(line)

        await self._exchanges.read_lines(self._storage, self._storage.at(path), each)


def json_object(answer: HTTPAnswer, *, named: bool = True) -> dict[str, Any]:
    """Return the body of a response: an object, with an id if it is `named`."""
    try:
        found = read_json(answer.data)
    except ValueError:
        found = None
    if not isinstance(found, dict) or (named and not _id_of(found)):
        raise ServerError("the response of the batch API is not a JSON object, or has no id")
    return found


def mapping(value: object) -> dict[str, Any]:
    """Return a value that should be an object, or is one as JSON in a string; else an empty one."""
    if isinstance(value, str) and value.lstrip()[:1] == "{":
        with suppress(ValueError):
            value = read_json(value.encode("utf-8", "replace"))
    return value if isinstance(value, dict) else {}


def string(value: object) -> str:
    """Return a value that should be a string; "" if it is not."""
    return value if isinstance(value, str) else ""


def identifier(value: object) -> str:
    """Return an id, which some servers write as a number; "" if it is none."""
    return str(value) if type(value) is int and value >= 0 else string(value)


def _id_of(batch: object) -> str:
    """Return the id of a record; "" if it has none."""
    return identifier(mapping(batch).get("id"))


def written(value: object) -> bytes:
    """Return a value of a response as JSON; null instead of a field that cannot be written."""
    fields = {name: write_json(inner) for name, inner in mapping(value).items()}
    parts = {name: orjson.Fragment(inner) for name, inner in fields.items()}
    return orjson.dumps(parts) if parts else write_json(value)


def poll_after(headers: Mapping[str, str]) -> float | None:
    """Return the polling interval that a server asks for, in seconds."""
    for name in _POLL_AFTER:
        milliseconds = count(headers.get(name))
        if milliseconds is not None:
            return min(milliseconds / 1000, LONGEST_WAIT)
    return None
