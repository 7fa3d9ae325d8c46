"""The client for code without an event loop: the same methods, each of which waits.

One thread in the background has an event loop, and every call goes there; so it works in scripts,
in threads, and inside of a loop that already runs, as in a notebook.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from testnuc.client import TestNUC
from testnuc.errors import TestNUCError

if TYPE_CHECKING:
    from types import TracebackType

    from testnuc.labels import LabelSet
    from testnuc.results import Classification, Usage

__all__ = ["SyncTestNUC"]

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds between two looks for Ctrl-C: on some systems waiting for a lock is deaf to it.
_LISTEN = 0.5


def _made_like(
    _init: Callable[Concatenate[TestNUC, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[SyncTestNUC, P], None]]:
    """Take over the parameters of the client."""

    def give(own: Callable[..., None]) -> Callable[Concatenate[SyncTestNUC, P], None]:
        @wraps(_init)
        def init(self: SyncTestNUC, /, *args: P.args, **kwargs: P.kwargs) -> None:
            own(self, *args, **kwargs)

        return init

    return give


def _waiting(
    method: Callable[Concatenate[TestNUC, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncTestNUC, P], T]:
    """Make a method that waits out of one that is awaited."""

    @wraps(method)
    def call(self: SyncTestNUC, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._wait(lambda: method(self._client, *args, **kwargs))

    return call


class SyncTestNUC:
    """`TestNUC` for code without ``await``; takes the same arguments.

    ``with SyncTestNUC(labels, model=..) as nuc: results = nuc.classify_many(texts)``. Any thread
    may call it, also one whose event loop runs (which then waits, too: there, prefer `TestNUC`).
    Ctrl-C cancels what was asked for; what was paid for is stored before the call ends.
    """

    @_made_like(TestNUC.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._client = TestNUC(*args, **kwargs)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False

    add = _waiting(TestNUC.add)
    calibrate = _waiting(TestNUC.calibrate)
    classify = _waiting(TestNUC.classify)
    classify_many = _waiting(TestNUC.classify_many)
    diagnose = _waiting(TestNUC.diagnose)
    estimate = _waiting(TestNUC.estimate)
    forget = _waiting(TestNUC.forget)
    predict_pool = _waiting(TestNUC.predict_pool)
    remove = _waiting(TestNUC.remove)
    stats = _waiting(TestNUC.stats)
    tune = _waiting(TestNUC.tune)

    def stream(
        self, texts: Iterable[str] | AsyncIterable[str], *, window: int = 4_096
    ) -> Iterator[Classification]:
        """Label texts from any iterable in bounded memory; see `TestNUC.stream`.

        The iterable is read in the background's thread.
        """
        results = self._client.stream(texts, window=window)
        try:
            while True:
                try:
                    yield self._wait(lambda: anext(results))
                except StopAsyncIteration:
                    return
        finally:
            # where the loop over it is left early, what is under way ends here
            if not self._closed:
                self._wait(results.aclose)  # type: ignore[attr-defined]

    @property
    def usage(self) -> Usage:
        """What this client has spent so far."""
        return self._client.usage

    @property
    def labels(self) -> LabelSet:
        """The labels to choose from."""
        return self._client.labels

    @property
    def model(self) -> str:
        """The model, as ``provider/name``."""
        return self._client.model

    def __len__(self) -> int:
        """Return the number of texts in the pool."""
        return len(self._client)

    def __repr__(self) -> str:
        return f"<Sync{repr(self._client).removeprefix('<')}"

    def __enter__(self) -> Self:
        try:
            self._wait(self._client.__aenter__)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Wait a few seconds for calls that were sent, store their answers, and let go of all."""
        if self._closed:
            return
        try:
            self._wait(self._client.aclose)
        finally:
            with self._lock:
                self._closed = True
                loop, thread, self._loop = self._loop, self._thread, None
                if loop is not None:
                    loop.call_soon_threadsafe(loop.stop)
            if thread is not None:
                thread.join()

    def _wait(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Do in the background what `begin` returns, and wait for its end, cancelled or not."""
        if threading.current_thread() is self._thread:
            raise TestNUCError(
                "a SyncTestNUC was called from its own background thread, which would wait for "
                "itself for ever; use TestNUC and await there"
            )
        ended: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []
        # what the caller has set, such as a trace's span, holds in the background, too
        context = contextvars.copy_context()

        def start() -> None:
            task = asyncio.get_running_loop().create_task(_awaited(begin), context=context)
            tasks.append(task)
            task.add_done_callback(lambda done: _settle(done, ended))

        def stop() -> None:
            for task in tasks:
                task.cancel()

        # under the lock, so that nothing is begun after the loop was told to stop
        with self._lock:
            if self._closed:
                raise TestNUCError("this client is closed; make a new one")
            loop = self._started()
            loop.call_soon_threadsafe(start)
        try:
            _until(ended)
        except BaseException:
            # Ctrl-C: it has its time to put away what was paid for; a second one does not wait
            loop.call_soon_threadsafe(stop)
            _until(ended)
            raise
        return ended.result()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # daemon: a client that was never closed does not keep the process from ending
            self._thread = threading.Thread(
                target=_run, args=(self._loop,), name="testnuc-sync", daemon=True
            )
            self._thread.start()
        return self._loop


async def _awaited(begin: Callable[[], Awaitable[T]]) -> T:
    return await begin()


def _until(ended: Future[Any]) -> None:
    """Wait for the end; raises what interrupts the waiting, not what the work raised."""
    while not ended.done():
        with contextlib.suppress(TimeoutError):
            ended.exception(_LISTEN)


def _settle(done: asyncio.Task[T], ended: Future[T]) -> None:
    if done.cancelled():
        ended.set_exception(asyncio.CancelledError())
    elif (failed := done.exception()) is not None:
        ended.set_exception(failed)
    else:
        ended.set_result(done.result())


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped, then end what is left in it."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
