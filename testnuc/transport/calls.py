"""A call in flight, and the timer that bounds each of its attempts."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass

from testnuc import errors
from testnuc.limits.budget import Reservation
from testnuc.protocols import Provider, Request, WireProvider

#: Asked before each attempt of a call, after all waits; None: always. Set by the caller's task.
MAY_SEND: ContextVar[Callable[[], bool] | None] = ContextVar("testnuc-may-send", default=None)
#: Called with 1 when a call starts to back off, and with -1 when it stops. Set as `MAY_SEND` is.
ON_WAIT: ContextVar[Callable[[int], object]] = ContextVar("testnuc-on-wait", default=int)


class Patience:
    """Until when the request that the current task answers waits for calls.

    `seconds`: from its start, or the latest line of its answer, on; None: as long as they take.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        #: The latest failure of a call meanwhile.
        self.failures = deque[errors.ProviderError](maxlen=1)
        #: The failure that the log has of it.
        self.logged: str | None = None
        self._until: float | None = None
        self._waits = set[asyncio.Timeout]()
        self.renew()

    def renew(self, seconds: float | None = None) -> None:
        """Wait for as long again, or for so many seconds."""
        if self.seconds is not None:
            seconds = self.seconds if seconds is None else seconds
            self._until = asyncio.get_running_loop().time() + seconds
            for wait in self._waits:
                # its end may be a matter of this turn of the loop
                if not wait.expired():
                    wait.reschedule(self._until)

    def is_logged(self, error: Exception) -> bool:
        """Whether the log has a failure already, perhaps as the cause of another one."""
        return self.logged is not None and self.logged in str(error)

    def failed(self, error: errors.ProviderError) -> None:
        """Take note of a failure; of a provider that is down from now on, it ends the wait."""
        self.failures.append(error)
        if isinstance(error, errors.ProviderDownError):
            self.renew(0.0)

    @asynccontextmanager
    async def in_time(self, seconds: float | None = None) -> AsyncIterator[None]:
        """Wait so long, or until its end; raises then what the calls wait after."""
        wait = asyncio.timeout_at(self._until) if seconds is None else asyncio.timeout(seconds)
        if seconds is None:
            self._waits.add(wait)
        try:
            async with wait:
                yield
        except TimeoutError:
            for error in self.failures:
                if error.retryable and not isinstance(error, errors.ReplyError):
                    raise copy(error) from None
            late = (
                "no result within the time of the request; send it again: late answers are stored"
            )
            raise errors.CallTimeoutError(late, retry_after=5) from None
        finally:
            self._waits.discard(wait)


PATIENCE: ContextVar[Patience] = ContextVar("testnuc-patience", default=Patience())  # noqa: B039

#: Characters of a token, for providers that do not estimate; most texts have four.
_CHARACTERS_PER_TOKEN = 3


def estimate_tokens(provider: Provider, request: Request) -> tuple[int, int]:
    """Estimate input and output tokens of a call to a provider without a wire format."""
    reserve = getattr(provider, "reserve", None)
    if reserve is not None:
        input_tokens, output_tokens = reserve(request)
        return int(input_tokens), int(output_tokens)
    characters = len(request.task.system) + len(request.user)
    return characters // _CHARACTERS_PER_TOKEN + 1, 0


class NotSentError(Exception):
    """`MAY_SEND` was False: the attempt was not sent, and nothing was billed for it."""

    def __init__(self, unreadable: int = 0) -> None:
        #: Unreadable replies to earlier attempts, which were billed.
        self.unreadable = unreadable


@dataclass(slots=True, eq=False)
class Call:
    """A call in flight: its state across attempts."""

    request: Request
    #: Estimated input tokens, and maximum output tokens.
    size: tuple[int, int]
    wire: WireProvider | None
    other: Provider | None
    body: bytes = b""
    #: The reserved part of the budget; None: nothing, or settled.
    reservation: Reservation | None = None
    sends: int = 0
    #: Attempts that found no connection, so that nothing was sent.
    refusals: int = 0
    #: Whether the last attempt was one of these.
    unsent: bool = False
    adaptations: int = 0
    #: Failures after which it was sent again at once, and whether the last one was one of these.
    repeats: int = 0
    at_once: bool = False
    #: The key that was sent, if it can expire, and those that were rejected.
    key: str | None = None
    rejected_keys: tuple[str | None, ...] = ()
    #: Replies from which no label could be read, those of a larger packed call included; they are
    #: billed.
    unreadable: int = 0
    #: Whether the next request is a retry.
    again: bool = False
    #: When it was first sent; the deadline counts from there.
    started: float = 0.0
    #: When it was last sent.
    sent_at: float = 0.0
    #: The last failure that a new encoding could not cure.
    error: errors.ProviderError | None = None

    def __post_init__(self) -> None:
        self.unreadable = self.request.step
        if self.wire is not None:
            self.body = self.wire.encode(self.request)


#: A timer that fires so many seconds late waits as many more: the process was suspended, or its
#: loop blocked, and answers that arrived meanwhile are not read yet.
_LATE = 1.0


class Timer:
    """Cancels the current task after a timeout, but not while answers wait to be read."""

    __slots__ = ("_cancelling", "_due", "_handle", "_task", "fired")

    def __init__(self, seconds: float) -> None:
        task = asyncio.current_task()
        if task is None:
            raise errors.ConfigurationError("a call must be awaited inside an asyncio task")
        self._task = task
        self._cancelling = task.cancelling()
        self.fired = False
        self._due = task.get_loop().time() + seconds
        self._handle = task.get_loop().call_at(self._due, self._fire)

    def _fire(self) -> None:
        loop = self._task.get_loop()
        if loop.time() - self._due > _LATE:
            self._due = loop.time() + _LATE
            self._handle = loop.call_at(self._due, self._fire)
            return
        self.fired = True
        self._task.cancel()

    def stop(self) -> bool:
        """Disarm, once; return whether the pending CancelledError is this timer's alone."""
        self._handle.cancel()
        return self.fired and self._task.uncancel() <= self._cancelling
