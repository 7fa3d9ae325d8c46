"""The event loop of a command, and one in a background thread, for synchronous code."""

import asyncio

# imported first: hooks run in reverse order of registration, and ours must run before its
import concurrent.futures.thread  # noqa: F401
import gc
import math
import os
import signal
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from testnuc.errors import TestNUCError

T = TypeVar("T")

#: Seconds between checks for Ctrl-C: on some systems a wait for a lock blocks it.
_CHECK = 0.5

#: Seconds to wait for cleanup.
_PATIENCE = 10.0

#: Threads that are closing; the process waits for them at exit.
_CLOSING: set[threading.Thread] = set()


def is_cancelled() -> bool:
    """Whether the running task was cancelled, and not only what it awaits."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def at_exit(function: Callable[[], None]) -> None:
    """Call a function at exit, while executors still accept work: `atexit` is too late for that.

    Where Python has no earlier hooks, or is exiting already, it is not called.
    """
    process = os.getpid()

    def here() -> None:
        # a forked process inherits the objects, but not their threads
        if os.getpid() == process:
            function()

    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        with suppress(RuntimeError):
            register(here)


class Background:
    """Runs awaitables on one event loop in a daemon thread; callers wait for the results.

    Call it from any thread but its own, also from one with a running loop (a notebook).
    """

    def __init__(self, name: str = "testnuc-background") -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._closed = False
        #: Awaitables of all threads that have not ended.
        self._begun: set[Future[Any]] = set()
        self._process = os.getpid()
        # daemon: an unclosed client does not prevent the process from exiting
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Awaitable[T]) -> T:
        """Run an awaitable and return its result; not from its own thread.

        An interrupt cancels it and waits for its cleanup; a second interrupt does not wait.
        """
        ended, stop = self._begin(work)
        try:
            _until(ended)
        except BaseException:
            # Ctrl-C: received answers are stored before it ends
            self._loop.call_soon_threadsafe(stop)
            _until(ended)
            raise
        return ended.result()

    def end(self, work: Awaitable[object]) -> None:
        """Run an awaitable for cleanup; after 10 s, return while it continues.

        The caller may be the garbage collector, in a thread that holds a lock the cleanup needs.
        """
        if self._closed or self._is_inherited:
            getattr(work, "close", lambda: None)()
            return
        ended, _ = self._begin(work)
        _until(ended, time.monotonic() + _PATIENCE)
        if ended.done():
            ended.result()

    def end_with(self, owner: object, last: Callable[[], Awaitable[object]]) -> Any:
        """Clean up and close when `owner` is no longer used, or at exit; return the finalizer."""
        ending = weakref.finalize(owner, self.leave, last)
        # the hooks of `atexit` run too late
        ending.atexit = False
        at_exit(ending)
        return ending

    def leave(self, last: Callable[[], Awaitable[object]]) -> None:
        """Schedule cleanup without blocking, then close; safe in finalizers.

        It takes no lock: the garbage collector may run in a thread that holds one.
        """
        if self._closed or self._is_inherited:
            return
        self._closed = True
        _CLOSING.add(self._thread)

        def start() -> None:
            self._loop.create_task(_awaited(last())).add_done_callback(done)

        def done(task: asyncio.Task[object]) -> None:
            if not task.cancelled() and (failed := task.exception()) is not None:
                message = "cleanup of an unclosed client failed"
                self._loop.call_exception_handler({"message": message, "exception": failed})
            self._loop.stop()

        self._loop.call_soon_threadsafe(start)

    def close(self) -> None:
        """Wait some seconds for what runs, stop the loop, and wait for the thread."""
        if self._is_inherited:
            return
        deadline = time.monotonic() + _PATIENCE
        for ended in list(self._begun):
            _until(ended, deadline)
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _begin(self, work: Awaitable[T]) -> tuple[Future[T], Callable[[], None]]:
        """Start an awaitable; return its future, and a function for the loop that cancels it."""
        ended: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []
        self._begun.add(ended)
        ended.add_done_callback(self._begun.discard)

        def start() -> None:
            # in a copy of the caller's context variables, such as the current span
            task = self._loop.create_task(_awaited(work))
            tasks.append(task)
            task.add_done_callback(lambda done: _settle(done, ended))

        def stop() -> None:
            for task in tasks:
                task.cancel()

        try:
            self._call(start)
        except TestNUCError:
            self._begun.discard(ended)
            # suppresses the warning that it was never awaited
            getattr(work, "close", lambda: None)()
            raise
        return ended, stop

    def _call(self, start: Callable[[], None]) -> None:
        if threading.current_thread() is self._thread:
            raise TestNUCError(
                "a synchronous client was called from its own background thread, which would "
                "deadlock; use TestNUC and await there"
            )
        if self._is_inherited:
            # before the lock, which a thread may have held at the fork
            raise TestNUCError(
                "this client was used before fork(); create one in the child process"
            )
        # under the lock, so that nothing starts after the loop was stopped
        with self._lock:
            if self._closed:
                raise TestNUCError("this client is closed; make a new one")
            self._loop.call_soon_threadsafe(start)

    @property
    def _is_inherited(self) -> bool:
        """Whether the thread is the parent's of a forked process."""
        return self._process != os.getpid()

    def _run(self) -> None:
        """Run the loop until it is stopped, then cancel its remaining tasks."""
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
            _CLOSING.discard(self._thread)


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def _until(ended: Future[T], deadline: float = math.inf) -> None:
    """Wait for a future; raises interrupts of the wait, not the error of the work."""
    while not ended.done() and (left := deadline - time.monotonic()) > 0:
        with suppress(TimeoutError):
            ended.exception(min(left, _CHECK))


def _settle(done: asyncio.Task[T], ended: Future[T]) -> None:
    if done.cancelled():
        ended.set_exception(asyncio.CancelledError())
    elif (failed := done.exception()) is not None:
        ended.set_exception(failed)
    else:
        ended.set_result(done.result())


def _wait_for_closing() -> None:
    for thread in _CLOSING.copy():
        thread.join()


at_exit(_wait_for_closing)


def run_to_end(main: Coroutine[None, None, T]) -> T:
    """Run a coroutine on uvloop if installed (a fifth less CPU per call), else on asyncio.

    Ctrl-C cancels it, so that it can store received answers; a second Ctrl-C exits at once. So do
    SIGTERM and SIGHUP, by which supervisors and closed terminals end a process.
    """
    # garbage collection over the texts and results of a large run would pause the whole process
    # for a tenth of a second at a time; in a thread, what others use now would stay for ever
    if threading.current_thread() is threading.main_thread():
        gc.freeze()
        gc.set_threshold(20_000)
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with suppress(ImportError):
        from uvloop import new_event_loop as factory
    with _ends_like_ctrl_c(main) as begun, asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(begun)


@contextmanager
def _ends_like_ctrl_c(main: Coroutine[None, None, T]) -> Iterator[Coroutine[None, None, T]]:
    """Yield a coroutine with which SIGTERM and SIGHUP do what asyncio does upon SIGINT."""
    if threading.current_thread() is not threading.main_thread():
        yield main
        return
    # not on Windows; one that is ignored stays so, as under nohup
    numbers = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
    ours = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    # but for asyncio, or they would be ignored with it: so it is in the background of a script
    if ignored := signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    async def begun() -> T:
        for number in ours:
            signal.signal(number, signal.getsignal(signal.SIGINT))
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return await main

    try:
        yield begun()
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
