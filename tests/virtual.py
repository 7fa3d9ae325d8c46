"""An event loop whose time passes only while all tasks wait: hours take milliseconds."""

from __future__ import annotations

import asyncio
import concurrent.futures
import selectors
from functools import wraps
from inspect import signature


class _Selector(selectors.SelectSelector):
    """Polls for what is ready; instead of sleeping it moves the loop's clock."""

    loop: VirtualLoop

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("all tasks wait, and no timer is set")
            # the loop asks for the time until its next timer, which rounding may cut short
            self.loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at 1,000 s; `now` is the time."""

    def __init__(self):
        selector = _Selector()
        selector.loop = self
        self.now = 1000.0
        super().__init__(selector)

    def time(self):
        return self.now


class ThreadlessLoop(VirtualLoop):
    """Runs what is meant for a thread at once, so that two runs take the same course."""

    def run_in_executor(self, executor, func, *args):
        future = self.create_future()
        outcome, value = future.set_result, None
        try:
            value = func(*args)
        except Exception as error:  # noqa: BLE001 - as a thread would pass it on
            outcome, value = future.set_exception, error
        # the caller waits for a turn of the loop, as it would for a thread
        self.call_soon(lambda: future.done() or outcome(value))
        return future

    def call_soon_threadsafe(self, callback, *args, context=None):
        return self.call_soon(callback, *args, context=context)


class InlineExecutor:
    """In place of a ThreadPoolExecutor."""

    def submit(self, function, *args):
        future = concurrent.futures.Future()
        try:
            future.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - as a thread would pass it on
            future.set_exception(error)
        return future

    def shutdown(self, **_):
        """There is no thread."""


def run(main):
    """Run a coroutine function of the loop in virtual time, and return its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:

        async def call():
            return await main(asyncio.get_running_loop())

        return runner.run(call())


def in_virtual_time(test):
    """Run an asynchronous test in virtual time; its first argument is the loop."""
    known = signature(test)

    @wraps(test)
    def timed(*args, **kwargs):
        run(lambda loop: test(loop, *args, **kwargs))

    # pytest takes the names of other arguments for those of fixtures
    timed.__signature__ = known.replace(parameters=[*known.parameters.values()][1:])
    return timed


class Clock:
    """A clock that a test sets."""

    now = 1000.0

    def __call__(self):
        return self.now


def skip(seconds):
    """Let time pass at once for the timers of the running loop, but not for what reads a clock."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds
