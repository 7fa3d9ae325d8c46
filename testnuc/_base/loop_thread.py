"""An event loop in a thread of its own, for code that has none or is already inside one."""

from __future__ import annotations

import asyncio

# its hook must be there before ours: what is registered last runs first
import concurrent.futures.thread  # noqa: F401
import contextlib
import contextvars
import math
import os
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

from testnuc.errors import TestNUCError

__all__ = ["Background", "at_exit"]

T = TypeVar("T")

#: Seconds between two looks for Ctrl-C: on some systems waiting for a lock is deaf to it.
_LISTEN = 0.5

#: Seconds that the end of what was left is waited for.
_PATIENCE = 10.0

#: The threads that end by themselves; a process that ends waits for them.
_LEAVING: set[threading.Thread] = set()


def at_exit(function: Callable[[], None]) -> None:
    """Call a function when the process ends, while executors still take work.

    The hooks of `atexit` come too late for that. Where Python has no earlier ones, or ends already,
    nothing is called: all that was paid for is stored by then.
    """
    process = os.getpid()

    def here() -> None:
        # a forked process has what is to be ended, but none of its threads
        if os.getpid() == process:
            function()

    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        with contextlib.suppress(RuntimeError):
            register(here)


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
        ended, stop = self._begin(work)
        try:
            _until(ended)
        except BaseException:
            # Ctrl-C: it has its time to put away what was paid for
            self._loop.call_soon_threadsafe(stop)
            _until(ended)
            raise
        return ended.result()

    def end(self, work: Awaitable[object]) -> None:
        """Await the end of something that is left; it goes on if that takes longer than 10 s.

        Who leaves it may be the garbage collector, in a thread with a lock that the end needs.
        """
        ended, _ = self._begin(work)
        _until(ended, time.monotonic() + _PATIENCE)
        if ended.done():
            ended.result()

    def leave(self, last: Callable[[], Awaitable[object]]) -> None:
        """Do one last thing, then close, and wait for nothing: what a finalizer may call.

        The garbage collector runs finalizers in any thread and between any two steps of it, so
        that thread may hold a lock that the last thing needs. Takes no lock for the same reason.
        """
        if self._closed:
            return
        self._closed = True
        _LEAVING.add(self._thread)

        def start() -> None:
            self._loop.create_task(_awaited(last())).add_done_callback(done)

        def done(task: asyncio.Task[object]) -> None:
            if not task.cancelled() and (failed := task.exception()) is not None:
                message = "a client that was left could not be closed"
                self._loop.call_exception_handler({"message": message, "exception": failed})
            self._loop.stop()

        self._loop.call_soon_threadsafe(start)

    def close(self) -> None:
        """Stop the loop and wait for the thread; what still runs is cancelled."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _begin(self, work: Awaitable[T]) -> tuple[Future[T], Callable[[], None]]:
        """Return what becomes of the work, and what cancels it (to be called in the loop)."""
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
            self._call(start)
        except TestNUCError:
            # it is never awaited, and says nothing of that
            getattr(work, "close", lambda: None)()
            raise
        return ended, stop

    def _call(self, start: Callable[[], None]) -> None:
        if threading.current_thread() is self._thread:
            raise TestNUCError(
                "a client that waits was called from its own background thread, which would wait "
                "for itself for ever; use TestNUC and await there"
            )
        # under the lock, so that nothing is begun after the loop was told to stop
        with self._lock:
            if self._closed:
                raise TestNUCError("this client is closed; make a new one")
            if not self._thread.is_alive():
                raise TestNUCError(
                    "this client is that of the process that this one was forked from, and its "
                    "thread is there; make a new one here"
                )
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
            _LEAVING.discard(self._thread)


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def _until(ended: Future[T], deadline: float = math.inf) -> None:
    """Wait for the end; raises what interrupts the waiting, not what the work raised."""
    while not ended.done() and (left := deadline - time.monotonic()) > 0:
        with contextlib.suppress(TimeoutError):
            ended.exception(min(left, _LISTEN))


def _settle(done: asyncio.Task[T], ended: Future[T]) -> None:
    if done.cancelled():
        ended.set_exception(asyncio.CancelledError())
    elif (failed := done.exception()) is not None:
        ended.set_exception(failed)
    else:
        ended.set_result(done.result())


def _wait_for_leaving() -> None:
    for thread in _LEAVING.copy():
        thread.join()


at_exit(_wait_for_leaving)
