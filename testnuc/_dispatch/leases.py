"""Leases on keys: of all processes that share a store, one asks, and the others read its answer.

A store that has leases gives ``lease``, ``renew`` and ``release``, and may give ``lease_seconds``.
`Leases` renews what was leased until it is settled, and polls the store for the keys that others
hold: until their answers are stored, or until their leases end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Protocol

from testnuc.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from testnuc.types import Prediction

__all__ = ["LEASE_SECONDS", "LeaseStore", "Leases"]

_log = logging.getLogger("testnuc")

#: Seconds after which a process that has ended loses its leases; a store may say otherwise.
LEASE_SECONDS = 30.0
#: Seconds between two polls for what others ask: at first, the factor, and at most.
_FIRST, _GROWTH, _LONGEST = 0.05, 1.5, 2.0
#: Most keys polled at a time.
_CHUNK = 1_000


class LeaseStore(Protocol):
    """A store that several processes share, with leases on keys."""

    async def lease(self, keys: Sequence[bytes], seconds: float) -> list[bool]:
        """Return True for what is ours to ask; False: another asks, or has stored the answer."""

    async def renew(self, keys: Sequence[bytes], seconds: float) -> list[bool]:
        """Renew leases; False: it was lost."""

    async def release(self, keys: Sequence[bytes]) -> None:
        """Give up leases."""

    async def get_predictions(self, keys: Sequence[bytes]) -> list[Prediction | None]:
        """Return the stored prediction of each key."""


class Leases:
    """The leases of one scheduler, and the keys that it waits for other processes to answer.

    Parameters
    ----------
    store : LeaseStore
    granted : callable
        Called with keys that were waited for and are now leased; those that are not needed any
        more it passes to `done`.
    answered : callable
        Called with a key that was waited for, and its prediction.
    failed : callable
        Called with all keys that are waited for, and the error of the store.
    seconds : float
        How long a lease lasts. It is renewed in time while this process runs.
    sleep : callable
        Waits between polls; for tests.
    """

    def __init__(
        self,
        store: LeaseStore,
        *,
        granted: Callable[[list[bytes]], None],
        answered: Callable[[bytes, Prediction], None],
        failed: Callable[[list[bytes], Exception], None],
        seconds: float = LEASE_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._granted = granted
        self._answered = answered
        self._failed = failed
        self._seconds = seconds
        self._sleep = sleep
        self._held: set[bytes] = set()
        #: In the order in which they came.
        self._awaited: dict[bytes, None] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._releases: set[asyncio.Task[None]] = set()

    async def claim(self, keys: Sequence[bytes]) -> set[bytes]:
        """Try to lease keys; returns those that are ours. The others are waited for."""
        got = await self._store.lease(keys, self._seconds)
        mine = {key for key, ours in zip(keys, got, strict=True) if ours}
        self._hold(mine)
        # a key that this process holds for another run is no key to wait for
        self._awaited.update((key, None) for key in keys if key not in self._held)
        if self._awaited and self._watcher is None:
            self._watcher = asyncio.create_task(self._watch(), name="testnuc-awaited")
        return mine

    def done(self, keys: Iterable[bytes], *, stored: bool) -> None:
        """Release keys that have an outcome, or that are not needed any more.

        Parameters
        ----------
        keys : iterable of bytes
        stored : bool
            Whether they have answers: then the store has ended their leases already.
        """
        gone = []
        for key in keys:
            self._awaited.pop(key, None)
            if key in self._held:
                self._held.discard(key)
                gone.append(key)
        if gone and not stored:
            task = asyncio.create_task(self._release(gone), name="testnuc-release")
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def close(self) -> None:
        """Release all leases and end the polling."""
        self._awaited.clear()
        self.done(list(self._held), stored=False)
        tasks = [task for task in (self._keeper, self._watcher) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._releases, return_exceptions=True)

    def _hold(self, keys: set[bytes]) -> None:
        self._held |= keys
        for key in keys:
            self._awaited.pop(key, None)
        if self._held and self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name="testnuc-leases")

    async def _keep(self) -> None:
        """Renew leases while any are held: a call may take longer than a lease, a queue surely."""
        try:
            while self._held:
                await self._sleep(self._seconds / 3)
                if self._held:
                    # a lease that is lost costs a second call at worst: no reason to stop the run
                    try:
                        await self._store.renew(list(self._held), self._seconds)
                    except StoreError as exc:
                        _log.warning("leases could not be renewed: %s", exc)
        finally:
            self._keeper = None

    async def _watch(self) -> None:
        """Poll for answers of others, or for leases that they lost, while any are awaited."""
        pause = _FIRST
        try:
            while self._awaited:
                await self._sleep(pause)
                try:
                    found = await self._look()
                except Exception as exc:  # noqa: BLE001 - it stops the runs that wait
                    keys = list(self._awaited)
                    self._awaited.clear()
                    self._failed(keys, exc)
                    return
                pause = _FIRST if found else min(pause * _GROWTH, _LONGEST)
        finally:
            self._watcher = None

    async def _look(self) -> bool:
        found = False
        keys = list(self._awaited)
        for start in range(0, len(keys), _CHUNK):
            part = keys[start : start + _CHUNK]
            predictions = await self._store.get_predictions(part)
            for key, prediction in zip(part, predictions, strict=True):
                # not what was abandoned during the look-up
                if prediction is not None and key in self._awaited:
                    found = True
                    del self._awaited[key]
                    self._answered(key, prediction)
            left = [key for key in part if key in self._awaited]
            if not left:
                continue
            got = await self._store.lease(left, self._seconds)
            mine = [key for key, ours in zip(left, got, strict=True) if ours]
            if mine:
                found = True
                self._hold(set(mine))
                self._granted(mine)
        return found

    async def _release(self, keys: Sequence[bytes]) -> None:
        # they expire anyway
        with contextlib.suppress(StoreError):
            await self._store.release(keys)
