"""Who may call, and how much: tokens, limits of what is pending, request ids, the log, and CORS."""

import asyncio
import hmac
import json
import logging
import math
import re
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from typing import Any

from aiohttp import BasicAuth, web

from testnuc._base.checks import is_loopback
from testnuc.server.errors import RequestError
from testnuc.server.settings import Caller, ServerSettings

_log = logging.getLogger("testnuc.access")

#: Header of the id of a request, from the caller or made here.
REQUEST_ID = "X-Request-ID"
#: Random in each process, then counted: reading random bytes costs 20 us of a request.
_PROCESS, _COUNT = secrets.token_hex(8), count(1)
#: Requests of load balancers and monitors, which would fill the log.
_PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
#: For load balancers, client generators and pages; these responses contain no texts.
_OPEN = frozenset({"/", "/docs", "/healthz", "/readyz", "/openapi.json"})
#: The page that a browser opens with a password, or the start of those of label sets.
_PAGE = "/results"
_KEY = web.RequestKey("id", str)
#: Who sent a token.
_CALLER = web.RequestKey("caller", Caller)
#: Seconds over which throughput is averaged.
_MEMORY = 10.0
#: Most bytes of all unfinished bodies, or as many bodies of the largest size.
_LEAST_BYTES, _LEAST_BODIES = 64 * 1024 * 1024, 4
#: Bytes at the start of a body that do not count, so that small requests are always accepted: the
#: limit of connections bounds them.
_SMALL = 64 * 1024
_BUSY = "too many large requests arrive at once; retry in 5 s, or send fewer texts per request"


def request_id(request: web.Request) -> str:
    """Return the id of a request: the caller's, if it is plain, else a new one."""
    if _KEY not in request:
        given = request.headers.get(REQUEST_ID)
        # a log line must not hold what a caller can forge
        plain = given is not None and re.fullmatch(r"[A-Za-z0-9._:/+=-]{1,128}", given)
        request[_KEY] = given if given and plain else f"{_PROCESS}{next(_COUNT):016x}"
    return request[_KEY]


def about(request: web.Request) -> dict[str, Any]:
    """Return what a record of the log about a request has in its fields (``extra``)."""
    caller = request.get(_CALLER)
    more = {"caller": caller and caller.name, "set": request.match_info.get("set")}
    return {"fields": {"request_id": request_id(request), **more}}


def log_request(request: web.Request, route: str, status: int, seconds: float) -> None:
    """Log a request; its texts and headers are not in the line."""
    # a probe also fails while the service starts; `/metrics` says whether it is ready
    usual = logging.WARNING if status == 499 else logging.INFO
    level = logging.DEBUG if route in _PROBES else usual
    fields = about(request)["fields"] | {"remote": request.remote, "method": request.method}
    fields |= {"route": route, "status": status, "ms": round(1_000 * seconds, 1)}
    line = "%(request_id)s %(remote)s %(method)s %(route)s %(status)d %(ms).0f ms"
    line += ", without a full response" * (status == 499)
    _log.log(level, line, fields, extra={"fields": fields})


class JsonLines(logging.Formatter):
    """Formats log records as JSON, one a line; those of requests have fields of their own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line."""
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        line = json.dumps(fields, default=str, ensure_ascii=False, separators=(",", ":"))
        # a path may not be UTF-8
        return line.encode(errors="replace").decode()


def cors_headers(request: web.Request, origins: Sequence[str]) -> dict[str, str]:
    """Return the headers that let a page of an allowed origin read the response."""
    origin = request.headers.get("Origin")
    if origin is None or not {"*", origin}.intersection(origins):
        return {}
    return {
        "Access-Control-Allow-Origin": "*" if "*" in origins else origin,
        "Access-Control-Expose-Headers": f"{REQUEST_ID}, Retry-After",
        "Vary": "Origin",
    }


def preflight(request: web.Request, origins: Sequence[str]) -> web.Response | None:
    """Return the response to a preflight request of an allowed origin; None: it is none."""
    asked = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
    if not asked or not cors_headers(request, origins):
        return None
    return web.Response(
        status=204,
        headers={
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Allow-Headers": f"Authorization, Content-Type, Accept, {REQUEST_ID}",
            "Access-Control-Max-Age": "600",
        },
    )


def require_caller(request: web.Request, route: str, settings: ServerSettings) -> None:
    """Authenticate a request.

    Else it gets 401, for a token that is missing or wrong, or 421, for a Host header that is not a
    loopback address where the service has no token.
    """
    if route in _OPEN:
        return
    if settings.token is None:
        name = request.host
        host = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
        if not is_loopback(host):
            # a foreign page whose name resolves to this machine (DNS rebinding)
            hint = "use 127.0.0.1 or localhost, or configure a token"
            raise RequestError(421, "wrong_host", f"the Host header is {host[:100]!r}; {hint}")
        return
    given = request.headers.get("Authorization", "")
    scheme, _, value = given.partition(" ")
    page = route.startswith(_PAGE)
    if page and scheme.lower() == "basic":
        # a browser prompts for it: any name, the token as password
        scheme, value = "bearer", ""
        with suppress(ValueError):
            value = BasicAuth.decode(given, "utf-8").password
    token = value.strip().encode("utf-8", "surrogateescape")
    tokens = settings.tokens().items()
    # all of them are compared: how long it takes says nothing
    callers = [one for known, one in tokens if hmac.compare_digest(token, known.encode())]
    if scheme.lower() == "bearer" and callers:
        request[_CALLER] = callers[0]
    else:
        problem = "has a wrong token" if given else "is missing"
        message = f"the Authorization header {problem}; send 'Authorization: Bearer TOKEN'"
        asked = {"WWW-Authenticate": 'Basic realm="testnuc"' if page else "Bearer"}
        raise RequestError(401, "unauthorized", message, headers=asked)


class Callers:
    """Counts the texts of each caller, and rejects requests over its texts a minute."""

    def __init__(self) -> None:
        #: By name.
        self.texts = Counter[str]()
        #: What is left of the texts a minute, and when it was.
        self._left: dict[str, tuple[float, float]] = {}

    def admit(self, request: web.Request, texts: int) -> None:
        """Count texts; with none left of a minute, respond with 429.

        One request may take more than are left: the next one waits for them.
        """
        caller = request.get(_CALLER)
        if caller is None:
            return
        if (limit := caller.per_minute) is not None:
            now = time.monotonic()
            left, since = self._left.get(caller.name, (limit, now))
            left = min(limit, left + (now - since) * limit / 60)
            if left < 1:
                after = math.ceil((1 - left) * 60 / limit)
                message = f"{caller.name} has sent its {limit:,} texts a minute; retry in {after} s"
                raise RequestError(429, "caller_limit", message, retry_after=after)
            self._left[caller.name] = left - texts, now
        self.texts[caller.name] += texts


class Queue:
    """Counts pending texts, and rejects requests over a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        #: Texts being labeled or waiting.
        self.pending = 0
        self._done = 0.0
        self._since = time.monotonic()
        #: Whether no text is pending.
        self.empty = asyncio.Event()
        self.empty.set()

    @contextmanager
    def admit(self, texts: int) -> Iterator[Callable[[], None]]:
        """Count texts as pending until the context ends; over the limit, respond with 429.

        Yields a function that one of them leaves by, before that.
        """
        if self.pending + texts > self.limit:
            after, now = self.retry_after(texts), f"{self.pending} texts are pending"
            message = f"{now}, of at most {self.limit}; retry in {after} s"
            raise RequestError(429, "queue_full", message, retry_after=after)
        self.pending += texts
        self.empty.clear()
        left = texts

        def leave(done: int = 1) -> None:
            nonlocal left
            left -= done
            now = time.monotonic()
            self._done, self._since = self._recent(now) + done, now
            self.pending -= done
            if not self.pending:
                self.empty.set()

        try:
            yield leave
        finally:
            leave(left)

    def retry_after(self, texts: int) -> int:
        """Return the whole seconds until there is room, as far as known, at most a minute."""
        throughput = self._recent(time.monotonic()) / _MEMORY
        wanted = self.pending + texts - self.limit
        return min(max(1, math.ceil(wanted / throughput)), 60) if throughput > 0 else 1

    def _recent(self, now: float) -> float:
        return self._done * math.exp((self._since - now) / _MEMORY)


class Bodies:
    """Reads bodies of at most `largest` bytes, and rejects what exceeds `limit` in total."""

    def __init__(self, largest: int, timeout: float) -> None:
        self.largest = largest
        self.limit = max(_LEAST_BYTES, _LEAST_BODIES * largest)
        #: Bytes of unfinished bodies that count.
        self.pending = 0
        #: Connections whose body has not arrived in full, and since when.
        self.receiving: dict[asyncio.BaseProtocol, float] = {}
        self._timeout = timeout

    @asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[bytes]:
        """Yield the body of a request; its bytes count until the context ends."""
        problem, kind = "", request.content_type
        if kind != "application/json":
            # also protects from pages in a local browser, which would need a CORS preflight
            problem = f"Content-Type is {kind!r}; send JSON with 'Content-Type: application/json'"
        elif "Content-Encoding" in request.headers:
            problem = "the body is compressed; send it without Content-Encoding"
        if problem:
            raise RequestError(415, "unsupported_media_type", problem, close=True)
        self._check_size(request.content_length or 0)
        body, counted = bytearray(), 0
        self.receiving[request.protocol] = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout):
                # not request.read(), which would keep a copy for as long as the request lasts
                while part := await request.content.readany():
                    self._check_size(len(body) + len(part))
                    body += part
                    more = max(0, len(body) - _SMALL) - counted
                    counted += more
                    self.pending += more
                    if counted and self.pending > self.limit:
                        raise RequestError(503, "busy", _BUSY, retry_after=5, close=True)
            del self.receiving[request.protocol]
            yield bytes(body)
        except TimeoutError as exc:
            message = f"the body did not arrive within {self._timeout:g} s"
            raise RequestError(408, "slow_body", message, close=True) from exc
        finally:
            self.receiving.pop(request.protocol, None)
            self.pending -= counted

    def _check_size(self, size: int) -> None:
        if size > self.largest:
            message = f"the body has more than {self.largest:,} bytes; send fewer texts per request"
            raise RequestError(413, "body_too_large", message, close=True)
