"""The interface of both batch APIs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from testnuc.errors import ProviderError, RateLimitedError, ServerError
from testnuc.protocols import WireProvider

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from testnuc.protocols import StoredBatch
    from testnuc.transport.connections import HTTPAnswer

__all__ = [
    "BatchAPI",
    "BatchProvider",
    "BatchResultLine",
    "NoneChosenError",
    "QueueFullError",
    "RemoteBatch",
    "json_object",
    "poll_after",
]

#: Headers with the polling interval, in milliseconds.
_POLL_AFTER = ("openai-poll-after-ms", "retry-after-ms")


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
    #: Locations of the results, once it has ended.
    results: tuple[str, ...] = ()
    #: Uploaded files, which are deleted once the results are stored.
    uploads: tuple[str, ...] = ()
    #: Set if the batch failed as a whole.
    error: ProviderError | None = None
    #: Polling interval in seconds, if the provider states it.
    poll_after: float | None = None


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
        """A key of `testnuc.batch.registry`: ``openai`` or ``anthropic``."""

    def at(self, path: str, query: str = "") -> str:
        """Return the absolute URL of another path of the API, such as ``/batches``."""


class BatchAPI(Protocol):
    """A provider's batch API."""

    #: Documented limits of a batch.
    max_requests: int
    max_bytes: int

    def line(self, custom_id: str, body: bytes) -> bytes:
        """Write one request of a batch."""

    async def prepare(self, name: str, lines: Sequence[bytes]) -> bytes:
        """Upload the requests, without cost; return the argument of `create`."""

    async def create(self, name: str, prepared: bytes) -> RemoteBatch:
        """Create the batch; not retried."""

    async def retrieve(self, remote_id: str) -> RemoteBatch:
        """Return the state of a batch."""

    async def cancel(self, remote_id: str) -> RemoteBatch:
        """Cancel a batch; completed requests are billed."""

    async def find(
        self,
        batch: StoredBatch,
        known: frozenset[str],
        wait: Callable[[float | None], Awaitable[None]],
    ) -> str | None:
        """Find a batch whose id was lost; None if the provider does not have it.

        `known` are the ids of other batches; `wait` waits until the next poll.
        """

    async def discard(self, uploads: Sequence[str]) -> None:
        """Delete uploaded files; never raises `TestNUCError`."""

    async def read(self, remote: RemoteBatch, take: Callable[[BatchResultLine], None]) -> None:
        """Pass each result to `take`; in any order, possibly more than once."""


def json_object(answer: HTTPAnswer) -> dict[str, Any]:
    """Return the body of a response."""
    try:
        found = orjson.loads(answer.data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ServerError("the response of the batch API is not a JSON object")
    return found


def poll_after(headers: Mapping[str, str]) -> float | None:
    """Return the polling interval that a server asks for, in seconds."""
    for name in _POLL_AFTER:
        value = headers.get(name, "")
        if value.isdecimal():
            return int(value) / 1000
    return None
