"""HTTP sessions of providers, configured for little overhead per POST."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

import aiohttp
from multidict import CIMultiDict

from testnuc.errors import ConfigurationError, ProviderError, ServerError, UnreadableReplyError
from testnuc.protocols import WireProvider
from testnuc.transport.failures import host
from testnuc.transport.pool import ConnectionPool, Post, PostResponse, Repetitions

#: Statuses of an answer: a proxy that changes a response makes it 203, a gateway may write 202.
OK = range(200, 300)
#: Most bytes of a response, decompressed: a hundred times what any answer has. A provider whose
#: responses are longer says so in `most_bytes`.
MOST_BYTES = 16 * 2**20
#: Most bytes of an error that are read.
_MOST_OF_ERROR = 2**18
#: Most bytes of a response of which any number is read at the same time, and how many larger ones.
_SMALL, _LARGE_ONES = 2**20, 4

#: Timeouts are the caller's.
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)
#: Except for the connection to a server that never responded: base_url may be wrong.
_FIRST_CONNECT = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=4.0, sock_read=None)


class HTTPAnswer(NamedTuple):
    """A complete HTTP response."""

    status: int
    headers: Mapping[str, str]
    data: bytes


async def read_response(
    response: aiohttp.ClientResponse | PostResponse,
    most: int,
    provider: WireProvider,
    kind: type[ProviderError],
    large: AbstractAsyncContextManager[Any] = nullcontext(),  # noqa: B008 - it has no state
) -> HTTPAnswer:
    """Read a response of at most `most` bytes, or the beginning of an error.

    A longer one is an error of this kind, and its connection is closed. aiohttp decompresses in
    parts of bounded size, as they are read. `large` is held while more than a few parts are read.
    """
    content, ok = response.content, response.status in OK
    largest = most if ok else min(most, _MOST_OF_ERROR)
    parts, size = list[bytes](), 0
    try:
        while size <= min(largest, _SMALL) and (part := await content.readany()):
            parts.append(part)
            size += len(part)
        if size > _SMALL:
            async with large:
                while size <= largest and (part := await content.readany()):
                    parts.append(part)
                    size += len(part)
        # nothing of it stays in this frame, which an error keeps
        data, part = b"" if ok and size > largest else b"".join(parts), b""
        parts.clear()
        if content.at_eof():
            await response.read()  # releases the connection
        else:
            response.close()
    except aiohttp.ClientPayloadError:
        # what it says of its length may be wrong
        data = b"".join([*parts, *content._buffer])  # noqa: SLF001 - what was not read yet
        size = len(data)
        parts.clear()
        part = b""
        response.close()
        if ok and not data.rstrip().endswith(b"}"):
            data = b""
            raise
    except BaseException:
        response.close()
        raise
    if ok and size > largest:
        raise kind(
            f"the response of {host(provider)} is longer than {most / 2**20:g} MB, and no answer "
            "is; check base_url",
            status_code=response.status,
        )
    # one part of a compressed response can be longer than all that is read of an error
    return HTTPAnswer(response.status, response.headers, data if ok else data[:largest])


async def key_headers(provider: WireProvider) -> tuple[str | None, Mapping[str, str] | None]:
    """Return a key that can expire, and the headers that carry it; None if it is fixed."""
    keys = getattr(provider, "keys", None)
    if keys is None:
        return None, None
    key = await keys.current()
    return key, provider.key_headers(key)  # type: ignore[attr-defined]


@dataclass
class _Session:
    #: Referenced so that its id is not reused.
    provider: WireProvider
    http: aiohttp.ClientSession
    pool: ConnectionPool
    repetitions: Repetitions = field(default_factory=Repetitions)
    #: The last call but for its body; its URL, and the headers of it alone.
    post: Post | None = None
    sent: tuple[str, Mapping[str, str] | None] | None = None

    def request(self, own: Mapping[str, str] | None) -> Post:
        """Return a call but for its body, with some headers of its own."""
        sent = self.provider.url, own
        if self.post is None or self.sent != sent:
            headers = CIMultiDict(self.http.headers)
            headers.update(own or {})
            self.post, self.sent = Post(self.provider.url, headers), sent
        return self.post


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
        self._large = asyncio.Semaphore(_LARGE_ONES)

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
        timeout = _NO_TIMEOUT if reached else _FIRST_CONNECT
        response: PostResponse | aiohttp.ClientResponse
        if self._trust_env:
            response = await session.http.post(
                provider.url,
                data=body,
                headers=headers,
                # which would send the key to another host; it is treated as an error instead
                allow_redirects=False,
                timeout=timeout,
            )
            connection: object = response._protocol  # noqa: SLF001 - no public one
        else:
            response = await session.pool.post(session.request(headers), body, timeout)
            connection = response.protocol
        most = getattr(provider, "most_bytes", MOST_BYTES)
        # billed, however long it is
        answer = await read_response(response, most, provider, UnreadableReplyError, self._large)
        if (
            session.repetitions.has(connection, answer.headers, answer.data, body)
            and answer.status in OK
        ):
            # this request may be billed as well
            raise UnreadableReplyError(
                f"{host(provider)} sent the response to another request; let no proxy cache POST"
            )
        return answer

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
        headers, http = {"Content-Type": content_type, **(own or {})}, self._session(provider).http
        response = await http.request(
            method, url, data=data, headers=headers, allow_redirects=False
        )
        return await read_response(response, MOST_BYTES, provider, ServerError, self._large)

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
        self.require_loop()
        return self._sessions.get(id(provider)) or self._open(provider)

    def require_loop(self) -> None:
        """Raise an error in another event loop than that of the first call.

        There, a wait for what this one does would never end.
        """
        self._loop = self._loop or asyncio.get_running_loop()
        if self._loop is not asyncio.get_running_loop():
            raise ConfigurationError(
                "a client belongs to the event loop of its first call; create one for each loop"
            )

    def _open(self, provider: WireProvider) -> _Session:
        if self._closed:
            raise ConfigurationError("the client is closed; create a new one")
        pool = ConnectionPool(self._limit)
        session = _Session(
            provider,
            aiohttp.ClientSession(
                connector=pool,
                headers={"Content-Type": "application/json", **provider.headers},
                # otherwise cookies cost 50 us per call
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=_NO_TIMEOUT,
                trust_env=self._trust_env,
            ),
            pool,
        )
        self._sessions[id(provider)] = session
        return session
