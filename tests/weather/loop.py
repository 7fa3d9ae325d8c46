"""Real sockets in virtual time, with a measure of what each turn of the loop costs.

Client and server share one thread, so what one sends on the loopback device the other can read at
once: where no socket is ready, time may pass. What threads are asked for is waited for.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import selectors
import time
from contextlib import ExitStack, contextmanager
from unittest import mock

from testnuc.stores.sqlite.database import SqliteDatabase

#: Seconds of CPU time for which a callback may block the loop.
BLOCKED = 0.1
#: Real seconds of callbacks that are measured together: the CPU clock of a thread is slow to read.
_SHORT = 0.01
#: Real seconds in which a thread that works takes some CPU time, also on a busy machine; how much.
_THREAD, _USED = 60.0, 0.005
#: A jump of more virtual seconds looks at the sockets once more, for so many real seconds of each
#: virtual one, and at most so many: what was sent can be on its way while others keep the cores.
_LONG, _LOOK, _LONGEST_LOOK = 0.5, 0.004, 0.03


class _Selector(selectors.SelectSelector):
    loop: WeatherLoop

    def select(self, timeout=None):
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.loop.threads or timeout is None:
            while not ready:
                used = time.process_time()
                ready = super().select(_THREAD)
                if not ready and time.process_time() - used < _USED:
                    raise RuntimeError("all tasks wait, and no timer is set")
            return ready
        if timeout > _LONG:
            ready = super().select(min(_LOOK * timeout, _LONGEST_LOOK))
        if not ready:
            self.loop.now += timeout
        return ready


class WeatherLoop(asyncio.SelectorEventLoop):
    """Starts at 1,000 s; `now` is the time."""

    def __init__(self):
        selector = _Selector()
        selector.loop = self
        self.now = 1000.0
        #: What threads were asked for and have not answered.
        self.threads = 0
        #: Callbacks that held the loop for too long: their name and seconds of CPU time.
        self.blocked: list[tuple[str, float]] = []
        #: Seconds of CPU time of the server.
        self.excused = 0.0
        #: The time and the CPU time when a callback was last measured.
        self.measured = 0.0, 0.0
        super().__init__(selector)

    def time(self):
        return self.now


@contextmanager
def watched(loop):
    """Count what threads do, and measure every callback."""
    loop.measured = time.perf_counter(), time.thread_time()
    run, wrap, write = asyncio.Handle._run, asyncio.futures.wrap_future, SqliteDatabase.write

    def measured(handle):
        run(handle)
        wall = time.perf_counter()
        if wall - loop.measured[0] < _SHORT:
            return
        cpu = time.thread_time() - loop.excused
        if cpu - loop.measured[1] > BLOCKED:
            loop.blocked.append((repr(handle)[:300], cpu - loop.measured[1]))
        loop.measured = wall, cpu

    def counted(future, **given):
        wrapped = wrap(future, **given)
        if isinstance(future, concurrent.futures.Future):
            loop.threads += 1

            def answered(_):
                loop.threads -= 1

            wrapped.add_done_callback(answered)
        return wrapped

    async def writing(database, work):
        loop.threads += 1
        try:
            return await write(database, work)
        finally:
            loop.threads -= 1

    with ExitStack() as stack:
        for owner, name, replacement in (
            (asyncio.Handle, "_run", measured),
            (asyncio.TimerHandle, "_run", measured),
            (asyncio, "wrap_future", counted),
            (asyncio.futures, "wrap_future", counted),
            (SqliteDatabase, "write", writing),
        ):
            stack.enter_context(mock.patch.object(owner, name, replacement))
        yield
