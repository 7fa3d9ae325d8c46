"""An event loop in a thread of its own, for code that has none or is already inside one."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["Background"]

T = TypeVar("T")


class Background:
    """Runs coroutines on one event loop in a daemon thread; callers wait for their results.

    May be called from any thread but its own, also from one with a running loop (a notebook).
    """

    def __init__(self, name: str = "testnuc-background") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; an interrupt of the caller cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            # KeyboardInterrupt: what is awaited must end, too; no effect on what has ended
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop and wait for the thread; what still runs is cancelled."""
        if self._loop.is_closed():
            return
        self.run(self._cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_all(self) -> None:
        mine = asyncio.current_task()
        rest = [task for task in asyncio.all_tasks() if task is not mine]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()
