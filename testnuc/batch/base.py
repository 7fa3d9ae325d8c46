"""What the batch APIs have in common, whatever their wire formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from testnuc.errors import ProviderError, RateLimitedError
from testnuc.protocols import WireProvider

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from testnuc.protocols import StoredBatch

__all__ = [
    "BatchAPI",
    "BatchProvider",
    "BatchResultLine",
    "QueueFullError",
    "RemoteBatch",
    "poll_after",
]

#: Headers in which a server says when to ask again, in milliseconds.
_POLL_AFTER = ("openai-poll-after-ms", "retry-after-ms")


class QueueFullError(RateLimitedError):
    """The account's batches under way hold as many tokens as it may have; the batch was refused.

    Parameters
    ----------
    message : str
    limit : int, optional
        How many tokens that is, where the provider says.
    """

    def __init__(self, message: str, *, limit: int | None = None) -> None:
        super().__init__(message)
        self.limit = limit


@dataclass(frozen=True, slots=True)
class RemoteBatch:
    """A batch as its provider tells of it."""

    id: str
    #: The provider's own word for its state.
    status: str
    ended: bool
    #: Requests: all of them, and those that are done, well or badly.
    total: int
    done: int
    #: Where its results are, once it has ended.
    results: tuple[str, ...] = ()
    #: Why all of it failed.
    error: ProviderError | None = None
    #: Seconds to wait before asking again, where the provider says.
    poll_after: float | None = None


@dataclass(frozen=True, slots=True)
class BatchResultLine:
    """One line of results."""

    custom_id: str
    #: HTTP status of the request; 0: it was never executed.
    status: int
    #: Body of the answer, or of the error.
    body: bytes
    #: Why it was not executed, in the provider's word.
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

    #: As documented: most requests and most bytes of a batch.
    max_requests: int
    max_bytes: int

    def line(self, custom_id: str, body: bytes) -> bytes:
        """Write one request of a batch."""

    async def prepare(self, name: str, lines: Sequence[bytes]) -> bytes:
        """Send what can be sent without anything being billed; returns what `create` takes."""

    async def create(self, name: str, prepared: bytes) -> RemoteBatch:
        """Create the batch; sent once."""

    async def retrieve(self, remote_id: str) -> RemoteBatch:
        """Ask for the state of a batch."""

    async def cancel(self, remote_id: str) -> RemoteBatch:
        """Ask to end a batch early; what it has done stays, and is billed."""

    async def find(
        self,
        batch: StoredBatch,
        known: frozenset[str],
        wait: Callable[[float | None], Awaitable[None]],
    ) -> str | None:
        """Look for a batch whose id was lost; None: the provider does not have it.

        Parameters
        ----------
        batch : StoredBatch
        known : frozenset of str
            Ids that belong to other batches.
        wait : callable
            Waits before another look, where it takes more than one.
        """

    async def read(self, remote: RemoteBatch, take: Callable[[BatchResultLine], None]) -> None:
        """Pass the results on; in any order, and perhaps more than once."""


def poll_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server wants us to wait, if it says."""
    for name in _POLL_AFTER:
        value = headers.get(name, "")
        if value.isdecimal():
            return int(value) / 1000
    return None
