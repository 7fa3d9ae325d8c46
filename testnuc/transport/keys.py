"""API keys that expire: a function is asked for them, and asked again when one was rejected."""

from __future__ import annotations

import asyncio
import base64
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import orjson

from testnuc.errors import ConfigurationError
from testnuc.transport.endpoint import checked_key

if TYPE_CHECKING:
    from testnuc.protocols import APIKey

__all__ = ["KeySource", "key_of"]

#: Seconds before the end of a token's life at which it is replaced.
_MARGIN = 60.0


class KeySource:
    """Asks for a key, and for another one when it expires; a function is called in a thread."""

    def __init__(
        self,
        ask: Callable[[], str | Awaitable[str]],
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._ask = ask
        self._wall = wall
        #: The last key; None before the first call.
        self.key: str | None = None
        self._expires = float("inf")
        self._asking: asyncio.Task[None] | None = None

    async def current(self) -> str:
        """Return a key that has not expired, as far as it says."""
        if self.key is None or self._wall() >= self._expires:
            await self._renew()
        assert self.key is not None
        return self.key

    async def replace(self, rejected: str | None) -> None:
        """Ask for another key, unless the one that was rejected has been replaced."""
        if self.key == rejected:
            await self._renew()

    async def _renew(self) -> None:
        # one question at a time; a cancelled call does not cancel it for the others
        if self._asking is None:
            self._asking = asyncio.create_task(self._asked_again())
        await asyncio.shield(self._asking)

    async def _asked_again(self) -> None:
        try:
            if inspect.iscoroutinefunction(self._ask):
                key: Any = await self._ask()
            else:
                key = await asyncio.to_thread(self._ask)
                if inspect.isawaitable(key):
                    key = await key
        except Exception as raised:
            raise ConfigurationError(
                f"the function given as api_key raised {type(raised).__name__}; call it alone to "
                "see why"
            ) from raised
        finally:
            self._asking = None
        if key is None:
            raise ConfigurationError("the function given as api_key returned None; return a key")
        self.key = checked_key(key, ())
        self._expires = _expiry(key) - _MARGIN


def key_of(given: APIKey | None, variables: tuple[str, ...]) -> str | KeySource | None:
    """Return the key of a provider; parameters as `checked_key`, or a function to ask."""
    return KeySource(given) if callable(given) else checked_key(given, variables)


def _expiry(key: str) -> float:
    """Return the seconds since 1970 at which a JSON web token expires; infinity for other keys."""
    parts = key.split(".")
    if len(parts) != 3:
        return float("inf")
    try:
        claims = orjson.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (ValueError, TypeError, KeyError):
        return float("inf")
