"""Leases on keys: one process makes the call, the others that share its store read the answer.

A store with leases has ``lease``, ``renew`` and ``release``, and optionally ``lease_seconds``.
`Leases` renews the leases it holds until their keys have an outcome. For keys leased by other
processes it polls the store until the answer is stored or the lease expires.

A process that was suspended, or whose store did not respond, may have lost its leases. So a call is
sent only under a lease that has not expired by the clock of this process; else `confirm` renews it
first, and a key that another process has taken is awaited.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from testnuc.errors import StoreError
from testnuc.types import Prediction

_log = logging.getLogger("testnuc")

#: Seconds until the leases of a dead process expire; a store may set `lease_seconds`.
LEASE_SECONDS = 30.0
#: Poll interval in seconds: the first, its growth factor, and the longest.
_FIRST, _GROWTH, _LONGEST = 0.05, 1.5, 2.0
#: Most keys polled at a time.
_CHUNK = 1_000
#: Renewals in a row that take longer than a lease lasts, until the store is too slow for a run.
_MOST_LATE = 5
#: The expiry of a lease that another process took.
_LOST = float("-inf")


@dataclass
class Leases:
    """The leases of one scheduler, and the keys that other processes have leased."""

    #: With ``lease``, ``renew`` and ``release``, as `testnuc.stores.postgres.PostgresStore`.
    store: Any
    _: KW_ONLY
    #: Called with awaited keys that are leased now; it must pass those that are no longer needed
    #: to `done`.
    granted: Callable[[list[bytes]], None]
    #: Called with an awaited key and its stored prediction.
    answered: Callable[[bytes, Prediction], None]
    #: Called with all awaited keys and the store's error.
    failed: Callable[[list[bytes], Exception], None]
    #: Waits between polls; for tests.
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def __post_init__(self) -> None:
        #: How long a lease lasts; it is renewed after a third of this.
        self.seconds: float = getattr(self.store, "lease_seconds", LEASE_SECONDS)
        #: Leased keys, and when their leases expire, by `_now`.
        self.held: dict[bytes, float] = {}
        #: What the store says of its connections: what breaks them may end leases.
        self._breaks: int = getattr(self.store, "breaks", 0)
        #: Keys leased by other processes, in insertion order.
        self._awaited: dict[bytes, None] = {}
        #: Renewals in a row that came too late.
        self._late = 0
        self._renewal: asyncio.Task[None] | None = None
        self._poller: asyncio.Task[None] | None = None
        self._releases: set[asyncio.Task[None]] = set()
        self._closed = False
        # after a suspension one renewal covers the keys of all workers
        self._confirming = asyncio.Lock()

    async def claim(self, keys: Sequence[bytes]) -> set[bytes]:
        """Try to lease keys; returns those that were leased. The others are awaited."""
        mine = await self.take(keys)
        # a key that this process already holds, for another run, is not awaited
        self._awaited.update((key, None) for key in keys if key not in self.held)
        if self._awaited and self._poller is None:
            self._poller = asyncio.create_task(self._poll_loop(), name="testnuc-awaited")
        return mine

    def expired(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return the held keys whose leases may have expired, for `confirm`."""
        if self._breaks != (breaks := getattr(self.store, "breaks", 0)):
            self._breaks = breaks
            self.held = dict.fromkeys(self.held, _LOST)
        now = _now()
        return [key for key in keys if self.held.get(key, now) < now]

    async def confirm(self, keys: Sequence[bytes]) -> set[bytes]:
        """Renew leases that may have expired, and try to lease those that were lost again.

        Returns the keys that were leased again. Other lost keys are awaited. `StoreError`: leases
        expire before the store responds.
        """
        async with self._confirming:
            if self.expired(keys):
                await self._renew(list(self.held))
            if self._late >= _MOST_LATE:
                self._late = 0
                raise StoreError(
                    f"the store took over {self.seconds:g} s to renew leases that last as long, "
                    f"{_MOST_LATE} times in a row: nothing can be sent. See what slows the store, "
                    "and run again; nothing paid for is lost"
                )
        lost = self.expired(keys)
        for key in lost:
            del self.held[key]
        return await self.claim(lost) if lost else set()

    def done(self, keys: Iterable[bytes], *, stored: bool) -> None:
        """Release keys that have an outcome or are no longer needed.

        `stored`: their answers were stored, which ends their leases in the store.
        """
        gone = []
        for key in keys:
            self._awaited.pop(key, None)
            if self.held.pop(key, None) is not None:
                gone.append(key)
        if gone and not stored:
            task = asyncio.create_task(self._release(gone), name="testnuc-release")
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def close(self) -> None:
        """Release all leases and stop polling."""
        self._closed = True
        self._awaited.clear()
        self.done(list(self.held), stored=False)
        tasks = [task for task in (self._renewal, self._poller) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._releases, return_exceptions=True)

    def cancel(self) -> None:
        """Stop at once; leases that are not released expire."""
        self._closed = True
        for task in (self._renewal, self._poller, *self._releases):
            if task is not None:
                task.cancel()

    async def take(self, keys: Sequence[bytes]) -> set[bytes]:
        """Lease keys, and hold those that were granted; the others are not awaited."""
        if self._releases:
            # a key that this process is giving back is not free yet
            await asyncio.wait(self._releases)
        # before the call: the store's clock starts no earlier
        until = _now() + self.seconds
        got = await self.store.lease(keys, self.seconds)
        mine = [key for key, leased in zip(keys, got, strict=True) if leased]
        for key in mine:
            self.held[key] = until
            self._awaited.pop(key, None)
        # those that a store grants after `close` expire
        if self.held and self._renewal is None and not self._closed:
            self._renewal = asyncio.create_task(self._renew_loop(), name="testnuc-leases")
        return set(mine)

    async def _renew(self, keys: Sequence[bytes]) -> None:
        """Renew leases; one that was lost counts as expired."""
        until = _now() + self.seconds
        got = await self.store.renew(keys, self.seconds)
        # breaks before that, and connections made for it, have ended none of these
        self._breaks = getattr(self.store, "breaks", 0)
        self._late = self._late + 1 if _now() > until else 0
        for key, renewed in zip(keys, got, strict=True):
            # the key may have got an outcome meanwhile
            if key in self.held:
                self.held[key] = until if renewed else _LOST

    async def _renew_loop(self) -> None:
        """Renew leases while any are held: calls and queueing can outlast a lease."""
        try:
            while self.held:
                await self.sleep(self.seconds / 3)
                if self.held:
                    # what was sent completes without a lease; the rest is confirmed before it is
                    try:
                        await self._renew(list(self.held))
                    except StoreError as exc:
                        _log.warning("leases could not be renewed: %s", exc)
        finally:
            self._renewal = None

    async def _poll_loop(self) -> None:
        """Poll the awaited keys for stored answers and for expired leases."""
        pause = _FIRST
        try:
            while self._awaited:
                await self.sleep(pause)
                try:
                    found = await self._poll()
                except Exception as exc:  # noqa: BLE001 - fails the waiting runs
                    keys = list(self._awaited)
                    self._awaited.clear()
                    self.failed(keys, exc)
                    return
                pause = _FIRST if found else min(pause * _GROWTH, _LONGEST)
        finally:
            self._poller = None

    async def _poll(self) -> bool:
        """Check all awaited keys once; returns whether any was answered or leased."""
        found = False
        keys = list(self._awaited)
        for start in range(0, len(keys), _CHUNK):
            part = keys[start : start + _CHUNK]
            for key, prediction in zip(part, await self.store.get_predictions(part), strict=True):
                # the key may have been abandoned during the look-up
                if prediction is not None and key in self._awaited:
                    found = True
                    del self._awaited[key]
                    self.answered(key, prediction)
            left = [key for key in part if key in self._awaited]
            if left and (mine := await self.take(left)):
                found = True
                self.granted([key for key in left if key in mine])
        return found

    async def _release(self, keys: Sequence[bytes]) -> None:
        # unreleased leases expire
        with contextlib.suppress(StoreError):
            await self.store.release(keys)


def _now() -> float:
    """Return the time of the event loop, plus what the computer slept, which it does not count."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    slept = 0.0 if boot is None else time.clock_gettime(boot) - time.monotonic()
    return asyncio.get_running_loop().time() + slept
