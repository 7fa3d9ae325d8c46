"""An event loop in a thread of its own, for code that has none or is already inside one."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

from testnuc.errors import TestNUCError

__all__ = ["Background"]

T = TypeVar("T")

#: Seconds between two looks for Ctrl-C: on some systems waiting for a lock is deaf to it.
_LISTEN = 0.5


class Background:
    """Runs what is awaited on one event loop in a daemon thread; callers wait for the results.

    May be called from any thread but its own, also from one with a running loop (a notebook).
    """

    def __init__(self, name: str = "testnuc-background") -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._closed = False
        # daemon: what was never closed does not keep the process from ending
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Awaitable[T]) -> T:
        """Await something to its end; an interrupt of the caller cancels it and waits for that.

        A second interrupt does not wait.

        Raises
        ------
        TestNUCError
            The background is closed, or it is its own thread that would wait for itself.
        """
        ended: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []
        # what the caller has set, such as a trace's span, holds in the background, too
        context = contextvars.copy_context()

        def start() -> None:
            task = self._loop.create_task(_awaited(work), context=context)
            tasks.append(task)
            task.add_done_callback(lambda done: _settle(done, ended))

        def stop() -> None:
            for task in tasks:
                task.cancel()

        try:
            self._begin(start)
        except TestNUCError:
            # it is never awaited, and says nothing of that
            getattr(work, "close", lambda: None)()
            raise
        try:
            _until(ended)
        except BaseException:
            # Ctrl-C: it has its time to put away what was paid for
            self._loop.call_soon_threadsafe(stop)
            _until(ended)
            raise
        return ended.result()

    def close(self) -> None:
        """Stop the loop and wait for the thread; what still runs is cancelled."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _begin(self, start: Callable[[], None]) -> None:
        if threading.current_thread() is self._thread:
            raise TestNUCError(
                "a client that waits was called from its own background thread, which would wait "
                "for itself for ever; use TestNUC and await there"
            )
        # under the lock, so that nothing is begun after the loop was told to stop
        with self._lock:
            if self._closed:
                raise TestNUCError("this client is closed; make a new one")
            self._loop.call_soon_threadsafe(start)

    def _run(self) -> None:
        """Run the loop until it is stopped, then end what is left in it."""
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def _until(ended: Future[T]) -> None:
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
