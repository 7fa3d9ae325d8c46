"""The connections to providers, and what makes a POST over them cheap."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import IO, TYPE_CHECKING, NamedTuple

import aiohttp

from testnuc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from testnuc.protocols import WireProvider

__all__ = ["Connections", "HTTPAnswer"]

#: The caller's timer is the only one.
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)


class HTTPAnswer(NamedTuple):
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class _Session(NamedTuple):
    #: Held so that its id stays its own.
    provider: WireProvider
    http: aiohttp.ClientSession


class Connections:
    """One aiohttp session for each provider, opened with the first call.

    A session's headers hold the key, so they must not go to another provider.

    Parameters
    ----------
    limit : int
        Most connections to a provider: 1,000 calls that wait for an unlimited pool cost 60 % more.
    trust_env : bool
        Whether the proxies of the environment are used.
    """

    def __init__(self, limit: int, *, trust_env: bool) -> None:
        self._limit = limit
        self._trust_env = trust_env
        self._sessions: dict[int, _Session] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def post(self, provider: WireProvider, body: bytes) -> HTTPAnswer:
        """Send a call, and read all of its answer.

        Parameters
        ----------
        provider : WireProvider
            Where to, and with which headers.
        body : bytes
            What to send.

        Returns
        -------
        HTTPAnswer
            Whatever its status.
        """
        session = self._session(provider)
        # a redirect would carry the key elsewhere; it becomes the provider's error instead
        response = await session.http.post(provider.url, data=body, allow_redirects=False)
        # read() gives the connection back at the end, and closes it if it is cut short
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
        """Send another request to the same provider, and read all of its answer.

        Parameters
        ----------
        provider : WireProvider
            Whose headers it gets.
        method, url : str
        data : file, optional
            What to send.
        content_type : str

        Returns
        -------
        HTTPAnswer
            Whatever its status.
        """
        response = await self._session(provider).http.request(
            method,
            url,
            data=data,
            headers={"Content-Type": content_type},
            allow_redirects=False,
        )
        return HTTPAnswer(response.status, response.headers, await response.read())

    @asynccontextmanager
    async def stream(
        self, provider: WireProvider, url: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """GET something large, to be read piece by piece.

        Parameters
        ----------
        provider : WireProvider
            Whose headers it gets.
        url : str
        """
        http = self._session(provider).http
        async with http.get(url, allow_redirects=False) as response:
            yield response

    async def aclose(self) -> None:
        """Close all. No call may follow."""
        self._closed = True
        sessions = list(self._sessions.values())
        self._sessions.clear()
        for session in sessions:
            await session.http.close()

    def _session(self, provider: WireProvider) -> _Session:
        session = self._sessions.get(id(provider)) or self._open(provider)
        if self._loop is not asyncio.get_running_loop():
            raise ConfigurationError(
                "a client belongs to the event loop of its first call; make one for each loop"
            )
        return session

    def _open(self, provider: WireProvider) -> _Session:
        if self._closed:
            raise ConfigurationError("the client is closed; make a new one")
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        session = _Session(
            provider,
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._limit),
                headers={"Content-Type": "application/json", **provider.headers},
                # a provider that sets cookies costs 50 us a call otherwise
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=_NO_TIMEOUT,
                trust_env=self._trust_env,
            ),
        )
        self._sessions[id(provider)] = session
        return session
