"""HTTP sessions of providers, configured for little overhead per POST."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import IO, TYPE_CHECKING, NamedTuple

import aiohttp

from testnuc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from testnuc.protocols import WireProvider

__all__ = ["Connections", "HTTPAnswer", "key_headers"]

#: Timeouts are the caller's.
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)
#: Except for the connection to a server that never responded: base_url may be wrong.
_FIRST_CONNECT = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=4.0, sock_read=None)


class HTTPAnswer(NamedTuple):
    """A complete HTTP response."""

    status: int
    headers: Mapping[str, str]
    data: bytes


async def key_headers(provider: WireProvider) -> tuple[str | None, Mapping[str, str] | None]:
    """Return a key that can expire, and the headers that carry it; None if it is fixed."""
    keys = getattr(provider, "keys", None)
    if keys is None:
        return None, None
    key = await keys.current()
    return key, provider.key_headers(key)  # type: ignore[attr-defined]


class _Session(NamedTuple):
    #: Referenced so that its id is not reused.
    provider: WireProvider
    http: aiohttp.ClientSession


class Connections:
    """One aiohttp session per provider, opened with the first call.

    Its headers hold the API key, so a session must not be used for another provider. `limit` is the
    most connections to a provider: 1,000 calls cost 60 % more CPU with an unlimited pool.
    """

    def __init__(self, limit: int, *, trust_env: bool) -> None:
        self._limit = limit
        self._trust_env = trust_env
        self._sessions: dict[int, _Session] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def post(
        self,
        provider: WireProvider,
        body: bytes,
        *,
        reached: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> HTTPAnswer:
        """Send a call, and read the complete response, of any status.

        Connecting has a timeout unless the server was `reached` before. `headers` are of this
        request alone.
        """
        session = self._session(provider)
        # a redirect would send the key to another host; it is treated as an error instead
        response = await session.http.post(
            provider.url,
            # bytes would be looked up in aiohttp's registry of payloads
            data=aiohttp.BytesPayload(body),
            headers=headers,
            allow_redirects=False,
            timeout=_NO_TIMEOUT if reached else _FIRST_CONNECT,
        )
        # read() releases the connection at the end, and closes it if interrupted
        return HTTPAnswer(response.status, response.headers, await response.read())

    async def request(
        self,
        provider: WireProvider,
        method: str,
        url: str,
        *,
        data: IO[bytes] | None,
        content_type: str,
    ) -> HTTPAnswer:
        """Send an auxiliary request to the same provider, and read the complete response."""
        _, own = await key_headers(provider)
        response = await self._session(provider).http.request(
            method,
            url,
            data=data,
            headers={"Content-Type": content_type, **(own or {})},
            allow_redirects=False,
        )
        return HTTPAnswer(response.status, response.headers, await response.read())

    @asynccontextmanager
    async def stream(
        self, provider: WireProvider, url: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """GET a large response, to be read in chunks."""
        http = self._session(provider).http
        _, own = await key_headers(provider)
        async with http.get(url, headers=own, allow_redirects=False) as response:
            yield response

    async def aclose(self) -> None:
        """Close all sessions. No call may follow."""
        self._closed = True
        sessions = list(self._sessions.values())
        self._sessions.clear()
        for session in sessions:
            await session.http.close()

    def _session(self, provider: WireProvider) -> _Session:
        session = self._sessions.get(id(provider)) or self._open(provider)
        if self._loop is not asyncio.get_running_loop():
            raise ConfigurationError(
                "a client belongs to the event loop of its first call; create one for each loop"
            )
        return session

    def _open(self, provider: WireProvider) -> _Session:
        if self._closed:
            raise ConfigurationError("the client is closed; create a new one")
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        session = _Session(
            provider,
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._limit),
                headers={"Content-Type": "application/json", **provider.headers},
                # otherwise cookies cost 50 us per call
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=_NO_TIMEOUT,
                trust_env=self._trust_env,
            ),
        )
        self._sessions[id(provider)] = session
        return session
