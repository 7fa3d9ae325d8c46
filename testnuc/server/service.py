"""The routes of a service, and what guards them."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal

import orjson
from aiohttp import web

from testnuc.errors import TestNUCError
from testnuc.server.auth import require_caller
from testnuc.server.errors import Refused, of_error
from testnuc.server.metrics import Metrics, ServiceState
from testnuc.server.openapi import document
from testnuc.server.queue import Place, Queue
from testnuc.server.schemas import Asked, read, record
from testnuc.server.settings import ServerSettings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
    from typing import TypeAlias

    from testnuc.client import TestNUC
    from testnuc.types import Classification

    #: Makes the HTML at ``/`` of the results that the service remembers.
    Page: TypeAlias = "Callable[[Sequence[Classification]], str | Awaitable[str]]"

__all__ = ["Service"]

_log = logging.getLogger("testnuc.server")

#: Results that are kept for the page.
_REMEMBERED = 1_000
_NDJSON = "application/x-ndjson"
#: The page may use what is in it, and nothing else from anywhere.
_PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Service:
    """Answers HTTP requests with the labels of one client.

    Parameters
    ----------
    nuc : TestNUC
        Shared by all requests: they are embedded together, and no two ask the same. Opening and
        closing it is the caller's matter.
    settings : ServerSettings, optional
    page : callable, optional
        Makes the HTML at ``/`` of the results that are remembered, the latest last; may be a
        coroutine function. Default: ``/`` lists the routes.

    Attributes
    ----------
    app : aiohttp.web.Application
        Serves all routes; for a runner of your own.
    state : {"starting", "ready", "draining"}
        What ``/readyz`` tells. Set it to "ready" when the client can be used.
    recent : deque of Classification
        The latest results.
    """

    def __init__(
        self, nuc: TestNUC, settings: ServerSettings | None = None, *, page: Page | None = None
    ) -> None:
        self.nuc = nuc
        self.settings = settings or ServerSettings()
        self.state: Literal["starting", "ready", "draining"] = "starting"
        #: Whether requests are refused because the service is about to end.
        self.closing = False
        self.queue = Queue(self.settings.max_pending, time.monotonic)
        self.recent: deque[Classification] = deque(maxlen=_REMEMBERED)
        #: When a connection was last of use, by its protocol; None while it is.
        self.used: dict[asyncio.BaseProtocol, float | None] = {}
        self._under_way: set[asyncio.Task[Any]] = set()
        self._metrics = Metrics(self._metrics_state)
        self._page = page
        self._document = orjson.dumps(document(nuc.labels.names, self.settings))
        self.app = web.Application(
            middlewares=[self._guard], client_max_size=self.settings.max_body
        )
        self.app.add_routes(
            [
                web.get("/", self._root),
                web.post("/v1/classify", self._classify),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics_page),
                web.get("/openapi.json", self._openapi),
            ]
        )

    # -- routes ------------------------------------------------------------------------------------

    async def _classify(self, request: web.Request) -> web.StreamResponse:
        self._refuse_if_closing()
        if self.state == "starting":
            raise Refused(
                503, "starting", "the service is not ready yet; send this again in 1 s",
                headers={"Retry-After": "1"},
            )  # fmt: skip
        asked = read(await self._body(request), self.settings)
        # while the body came in, the end may have begun, which waits only for what was admitted
        self._refuse_if_closing()
        with self.queue.admit(len(asked.texts)) as place:
            if asked.many and (asked.stream or _NDJSON in request.headers.get("Accept", "")):
                return await self._stream(request, asked, place)
            try:
                async with asyncio.timeout(self.settings.request_timeout):
                    return await self._whole(asked)
            except TimeoutError as exc:
                raise self._late() from exc
            except TestNUCError:
                for _ in asked.texts:
                    self._metrics.text_failed()
                raise

    def _refuse_if_closing(self) -> None:
        if self.closing:
            raise Refused(
                503, "closing", "the service is about to end; send this again in 5 s",
                headers={"Retry-After": "5"}, close=True,
            )  # fmt: skip

    async def _whole(self, asked: Asked) -> web.Response:
        if not asked.many:
            result = await self.nuc.classify(asked.texts[0])
            self._note(result)
            return _json(record(result, explain=asked.explain, index=False))
        results = []
        for result in await self.nuc.classify_many(asked.texts):
            self._note(result)
            results.append(record(result, explain=asked.explain, index=True))
            if len(results) % 64 == 0:
                # a record takes a good part of a millisecond: others have their turn
                await asyncio.sleep(0)
        return _json({"results": results})

    async def _stream(self, request: web.Request, asked: Asked, place: Place) -> web.StreamResponse:
        """Send a line for each text as soon as it has its label.

        The head waits for the first line, so that what fails at once still has its status; what
        fails later is a line of its own, the last one.
        """
        response: web.StreamResponse | None = None
        lines = self._lines(asked, place)
        async with aclosing(lines):
            async for line in lines:
                if response is None:
                    response = web.StreamResponse(headers={"Content-Type": _NDJSON})
                    await response.prepare(request)
                await self._send(request, response, line)
        assert response is not None
        await response.write_eof()
        return response

    async def _lines(self, asked: Asked, place: Place) -> AsyncGenerator[bytes, None]:
        first = True
        # the failure of one text may be that of all, which is told once, and by the status
        held: list[bytes] = []
        try:
            async with aclosing(self._results(asked)) as results:
                async for result in results:
                    self._note(result)
                    place.leave()
                    held.append(_line(record(result, explain=asked.explain, index=True)))
                    if result.label is None and getattr(result.error, "fatal", False):
                        continue
                    for line in held:
                        first = False
                        yield line
                    held.clear()
            for line in held:
                yield line
        except Exception as exc:
            for _ in range(place.texts):
                self._metrics.text_failed()
            if first:
                raise
            # the head is sent: there is no other way left to tell
            _log.warning("a stream ended early", exc_info=exc)
            refused = exc if isinstance(exc, Refused) else of_error(exc)
            yield _line(refused.body())

    async def _results(self, asked: Asked) -> AsyncGenerator[Classification, None]:
        """Yield results; each has the time of a request to come."""
        async with aclosing(self.nuc.stream(asked.texts, window=len(asked.texts))) as results:
            while True:
                try:
                    async with asyncio.timeout(self.settings.request_timeout):
                        result = await anext(results)
                except StopAsyncIteration:
                    return
                except TimeoutError as exc:
                    raise self._late() from exc
                yield result

    async def _send(self, request: web.Request, response: web.StreamResponse, line: bytes) -> None:
        try:
            async with asyncio.timeout(self.settings.idle_timeout):
                await response.write(line)
        except TimeoutError as exc:
            # it reads nothing: what is buffered for it would never be sent
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the client does not take its answer") from exc

    async def _root(self, _: web.Request) -> web.Response:
        if self._page is None:
            return _json({"service": "testnuc", "routes": sorted(self.routes())})
        page = self._page(list(self.recent))
        html = await page if inspect.isawaitable(page) else page
        return web.Response(text=html, content_type="text/html", headers=_PAGE_HEADERS)

    async def _healthz(self, _: web.Request) -> web.Response:
        return _json({"status": "alive"})

    async def _readyz(self, _: web.Request) -> web.Response:
        return _json({"status": self.state}, 200 if self.state == "ready" else 503)

    async def _metrics_page(self, _: web.Request) -> web.Response:
        headers = {"Content-Type": self._metrics.content_type}
        # what it tells of the process is read from files
        return web.Response(body=await asyncio.to_thread(self._metrics.page), headers=headers)

    async def _openapi(self, _: web.Request) -> web.Response:
        return web.Response(body=self._document, content_type="application/json")

    def _metrics_state(self) -> ServiceState:
        return ServiceState(
            usage=self.nuc.usage,
            pending=self.queue.pending,
            limit=self.queue.limit,
            pool=len(self.nuc),
            ready=self.state == "ready",
        )

    # -- what they have in common ------------------------------------------------------------------

    def routes(self) -> set[str]:
        """Return the paths that are served."""
        return {r.resource.canonical for r in self.app.router.routes() if r.resource is not None}

    def abort(self) -> None:
        """Give up all requests under way."""
        for task in self._under_way:
            task.cancel()

    @web.middleware
    async def _guard(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        started = time.perf_counter()
        resource = request.match_info.route.resource
        route = "other" if resource is None else resource.canonical
        self.used[request.protocol] = None
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        status = 499
        try:
            response = await self._answer(request, route, handler)
            status = response.status
        finally:
            # 499: whoever asked has gone
            self._metrics.request(route, status, time.perf_counter() - started)
            self.used[request.protocol] = time.monotonic()
            self._under_way.discard(task)
        return response

    async def _answer(
        self,
        request: web.Request,
        route: str,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        try:
            require_caller(request, route, self.settings)
            return await handler(request)
        except Refused as exc:
            refused = exc
        except web.HTTPException as exc:
            allowed = {"Allow": exc.headers["Allow"]} if "Allow" in exc.headers else {}
            hint = f"the routes are {', '.join(sorted(self.routes()))}"
            message = f"{request.method} {request.path[:100]}: {exc.reason}; {hint}"
            refused = Refused(exc.status, "no_such_route", message, headers=allowed)
        except TestNUCError as exc:
            refused = of_error(exc)
            _log.warning("%s answered with %d: %s", route, refused.status, exc)
        except ConnectionError:
            _log.debug("%s: whoever asked has gone", route)
            raise
        except Exception as exc:  # noqa: BLE001 - logged whole, and answered with 500
            refused = of_error(exc)
            _log.exception("%s failed", route)
        response = _json(refused.body(), refused.status, refused.headers)
        if refused.close:
            response.force_close()
        return response

    async def _body(self, request: web.Request) -> bytes:
        if request.content_type != "application/json":
            # also what keeps a page in a browser of this machine from asking: it would need leave
            raise Refused(
                415, "unsupported_media_type",
                f"Content-Type is {request.content_type!r}; send JSON with "
                "'Content-Type: application/json'", close=True,
            )  # fmt: skip
        if "Content-Encoding" in request.headers:
            raise Refused(
                415, "unsupported_media_type",
                "the body is compressed; send it without Content-Encoding", close=True,
            )  # fmt: skip
        most = self.settings.max_body
        too_large = Refused(
            413, "body_too_large",
            f"the body has more than {most:,} bytes; send fewer texts at a time", close=True,
        )  # fmt: skip
        if request.content_length is not None and request.content_length > most:
            raise too_large
        try:
            async with asyncio.timeout(self.settings.body_timeout):
                return await request.read()
        except web.HTTPRequestEntityTooLarge as exc:
            raise too_large from exc
        except TimeoutError as exc:
            raise Refused(
                408, "slow_body",
                f"the body did not arrive within {self.settings.body_timeout:g} s; send it at once",
                close=True,
            ) from exc  # fmt: skip

    def _late(self) -> Refused:
        return Refused(
            504, "timeout",
            f"no answer within {self.settings.request_timeout:g} s; send it again: what the LLM "
            "answers meanwhile is stored", headers={"Retry-After": "5"},
        )  # fmt: skip

    def _note(self, result: Classification) -> None:
        self._metrics.text(result)
        self.recent.append(result)


def _json(
    value: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    return web.Response(
        body=orjson.dumps(value),
        status=status,
        content_type="application/json",
        headers={**(headers or {}), "X-Content-Type-Options": "nosniff"},
    )


def _line(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
