"""API keys that expire: a function is asked for them, and asked again when one was rejected."""

import asyncio
import base64
import contextvars
import inspect
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import orjson

from testnuc.errors import ConfigurationError
from testnuc.protocols import APIKey
from testnuc.transport.endpoint import checked_key

_log = logging.getLogger("testnuc.transport")

#: Seconds before the end of a token's life at which another one is asked for, at most half of it;
#: and until which it is used while the function fails.
_MARGIN, _LAST = 60.0, 5.0
#: Most seconds for one answer of the function. One in a thread is not called again before it ends.
_LONGEST = 30.0
#: The wait after a failure of the function, doubled after each further one; and the longest.
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 10.0
#: Seconds of failures after which a function that never returned a key is given up: it is wrong.
_NEVER = 10.0
#: Keys that are removed from what a server says, and that a call is sent with, at most.
LATEST = 8


class KeySource:
    """Asks for a key, and for another one when it expires; a function is called in a thread.

    While a key is valid, it is used, and the next one is asked for in the background. Without one,
    calls wait, and the function is asked again after a failure. It is never called twice at a time.
    """

    def __init__(
        self, ask: Callable[[], str | Awaitable[str]], *, wall: Callable[[], float] = time.time
    ) -> None:
        self._ask = ask
        self._wall = wall
        #: The last key; None before the first one.
        self.key: str | None = None
        #: It and those before it, with which calls may still be in flight.
        self.latest: tuple[str, ...] = ()
        self._expires = self._renew_at = float("inf")
        self._asking: asyncio.Task[None] | None = None
        self._thread: Future[Any] | None = None
        #: Where that thread is; a forked child does not have it.
        self._process = 0
        self._answers = self._failures = 0
        self._failure: ConfigurationError | None = None
        #: When the function may be asked again, by the event loop's clock.
        self._next = 0.0

    async def current(self, within: float = _LONGEST) -> str:
        """Return a key that has not expired, as far as it says, within so many seconds."""
        now = self._wall()
        if self.key is None or now >= self._expires:
            await self._answered(within)
        elif now >= self._renew_at:
            self._start()
        assert self.key is not None
        return self.key

    async def replace(self, rejected: str | None, within: float = _LONGEST) -> None:
        """Ask for another key, unless the one that was rejected has been replaced."""
        if self.key == rejected:
            await self._answered(within)

    async def _answered(self, within: float) -> None:
        """Wait until the function has answered once more."""
        answers, loop = self._answers, asyncio.get_running_loop()
        ends = loop.time() + (min(within, _NEVER) if self.key is None else within)
        while self._answers == answers:
            asking, left = self._start(), ends - loop.time()
            if asking is None and self._next < ends:
                await asyncio.sleep(self._next - loop.time())
            elif asking is not None and left > 0:
                # cancelling or ending one wait must not end the question for others
                await asyncio.wait([asking], timeout=left)
            else:
                raise self._failure or _problem(f"has not returned for {within:.0f} s")

    def _start(self) -> asyncio.Task[None] | None:
        """Ask, unless the last failure was a moment ago; returns the question in progress."""
        loop = asyncio.get_running_loop()
        if self._asking is not None and self._asking.get_loop() is not loop:
            self._asking, self._next = None, 0.0  # of a loop that was closed
        if self._asking is None and loop.time() >= self._next:
            self._asking = loop.create_task(self._question(), name="testnuc-key")
        return self._asking

    async def _question(self) -> None:
        """Ask once; a failure is noted, and not raised."""
        failure = _problem("was cancelled")
        answered = False
        limit = asyncio.timeout(_LONGEST)
        try:
            async with limit:
                key = _checked(await self._call())
            answered = True
        except ConfigurationError as raised:
            failure = raised
        except Exception as raised:  # noqa: BLE001 - whatever the user's function raises
            words = f"raised {type(raised).__name__}; call it alone to see why"
            if limit.expired():
                words = f"has not returned for {_LONGEST:.0f} s"
            failure = _problem(words)
            failure.__cause__ = raised
        finally:
            self._asking = None
            if answered:
                self._accept(key)
            else:
                self._failures += 1
                self._failure = failure
                doublings = min(self._failures - 1, _LONGEST_WAIT)
                wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0**doublings)
                self._next = asyncio.get_running_loop().time() + wait
                _log.warning("no new key, asking again in %.2g s: %s", wait, failure)

    def _accept(self, key: str) -> None:
        now, expires = self._wall(), _expiry(key)
        if expires <= now:
            expires = float("inf")  # one of the clocks is wrong: the server decides
        self.key = key
        self.latest = (key, *self.latest[: LATEST - 1])
        self._expires = expires - min(_LAST, (expires - now) / 2)
        self._renew_at = expires - min(_MARGIN, (expires - now) / 2)
        self._answers += 1
        self._failures, self._failure, self._next = 0, None, 0.0

    async def _call(self) -> Any:
        if inspect.iscoroutinefunction(self._ask):
            return await self._ask()
        if self._thread is None or self._process != os.getpid():
            self._process = os.getpid()
            self._thread = _in_thread(self._ask)
        thread = self._thread
        try:
            # a thread that has begun is not cancelled with this wait
            key = await asyncio.wrap_future(thread)
        finally:
            if thread.done():
                # else the next question waits for it as well
                self._thread = None
        return await key if inspect.isawaitable(key) else key


def _in_thread(function: Callable[[], Any]) -> Future[Any]:
    """Call a function in a thread that does not keep the process from ending."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(function))
        except Exception as raised:  # noqa: BLE001 - raised where it is waited for
            future.set_exception(raised)
        except BaseException as raised:  # noqa: BLE001 - must not end the event loop
            future.set_exception(RuntimeError(repr(raised)))

    threading.Thread(target=run, name="testnuc-key", daemon=True).start()
    return future


def _checked(key: Any) -> str:
    if (checked := checked_key(key, ())) is None:
        raise _problem("returned None; return a key")
    return checked


def _problem(words: str) -> ConfigurationError:
    return ConfigurationError(f"the function given as api_key {words}")


def key_of(given: APIKey | None, variables: tuple[str, ...]) -> str | KeySource | None:
    """Return the key of a provider; parameters as `checked_key`, or a function to ask."""
    return KeySource(given) if callable(given) else checked_key(given, variables)


def _expiry(key: str) -> float:
    """Return the seconds since 1970 at which a JSON web token expires; infinity for other keys."""
    try:
        _, claims, _ = key.split(".")
        facts = orjson.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        return float(facts["exp"])
    except (ValueError, TypeError, KeyError):
        return float("inf")
