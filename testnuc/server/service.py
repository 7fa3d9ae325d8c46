"""The routes of a service, with authentication, limits and error responses."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from importlib.resources import files
from typing import Any, Literal, TypeAlias

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from testnuc._base.checks import hash_text
from testnuc._version import __version__
from testnuc.client import TestNUC, parts_of
from testnuc.errors import InvalidInputError, TestNUCError
from testnuc.limits.budget import BudgetAccount
from testnuc.report import render
from testnuc.report.page import digest_of
from testnuc.results import Results
from testnuc.server.access import (
    REQUEST_ID,
    Bodies,
    Callers,
    Queue,
    about,
    cors_headers,
    log_request,
    preflight,
    request_id,
    require_caller,
)
from testnuc.server.errors import RequestError, request_error
from testnuc.server.schemas import ClassifyRequest, openapi, read, record
from testnuc.server.served import Failed, Metrics, ServedSet, Value
from testnuc.server.settings import ServerSettings
from testnuc.transport.calls import PATIENCE
from testnuc.types import Classification

#: Renders the HTML at ``/results`` from a client and its latest results, in a thread.
Page: TypeAlias = "Callable[[TestNUC, Sequence[Classification]], str]"

_log = logging.getLogger("testnuc.server")

Status: TypeAlias = Literal["starting", "ready", "failing", "paused", "draining"]

#: Seconds after which refused scrapes are logged again.
_AGAIN = 600.0
_NDJSON = "application/x-ndjson"
#: Part of the time of a request that it waits for calls: what is known by then is its answer.
_OF_CALLS = 0.9


def _page_headers(own: str | None = None) -> dict[str, str]:
    """Return the headers of a page, which is self-contained.

    Of `own`, which holds nothing of a request, the scripts are allowed by their hash, and no other.
    """
    scripts = ["'unsafe-inline'"]
    if own is not None:
        parts = [part.partition("</script>")[0] for part in own.split("<script>")[1:]]
        scripts = [digest_of(part) for part in parts]
    return {
        "Content-Security-Policy": (
            f"default-src 'none'; style-src 'unsafe-inline'; script-src {' '.join(scripts)}; "
            "img-src data:; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }


class Service:
    """Classifies texts over HTTP with clients, which the caller opens and closes.

    All requests share a client: they are embedded together, and share in-flight calls. Clients by
    name are several label sets, each at ``/v1/NAME/classify``. `page` renders the HTML at
    ``/results`` from a client and its latest results, newest last; without it they are not shown.
    `app` serves all routes, for your own runner. Set `state` ("starting", "ready", "draining") to
    "ready" when the clients can be used; `status` may also be "failing" or "paused".
    """

    def __init__(
        self,
        nuc: TestNUC | Mapping[str, TestNUC],
        settings: ServerSettings | None = None,
        *,
        page: Page | None = None,
    ) -> None:
        self.settings = settings or ServerSettings()
        self.state: Literal["starting", "ready", "draining"] = "starting"
        #: Whether requests are rejected because the service is shutting down.
        self.closing = False
        #: Reloads, and those that changed nothing, because of a mistake in a file for example.
        self.reloads = self.failed_reloads = 0
        self.queue, self._callers = Queue(self.settings.max_pending), Callers()
        #: Bodies of requests that have not arrived in full.
        self.bodies = Bodies(self.settings.max_body, self.settings.body_timeout)
        #: Last use of a connection, by its protocol; None while in use.
        self.used: dict[asyncio.BaseProtocol, float | None] = {}
        self._unscraped_at = -_AGAIN
        self._in_flight: set[asyncio.Task[Any]] = set()
        self._several = isinstance(nuc, Mapping)
        self._metrics = Metrics(self._values, ["set"] if self._several else [])
        self._page, self._rendering = page, asyncio.Lock()
        #: Label sets by name; "": the only one, which has none.
        self.sets: dict[str, ServedSet] = {}
        #: Of every set that was ever served.
        self._accounts: dict[str, BudgetAccount] = {}
        self.sets = self._served(nuc)
        folder = files("testnuc.server")
        self._static_pages = {
            path: (folder / name).read_text(encoding="utf-8")
            for path, name in (("/", "try.html"), ("/docs", "docs.html"))
        }
        self.app = web.Application(middlewares=[self._guard])
        self.app.on_cleanup.append(self._close)
        self.app.on_response_prepare.append(self._add_headers)
        place = "/{set}" if self._several else ""
        self.app.add_routes(
            [
                *(web.get(path, self._static) for path in self._static_pages),
                *(web.get(path, self._fact) for path in self._facts),
                web.get(f"/results{place}", self._results_page),
                web.post(f"/v1{place}/classify", self._classify),
                web.post(f"/v1{place}/erase", self._erase),
                web.get(f"/v1{place}/labels", self._labels),
                web.get(f"/v1{place}/info", self._info),
                web.get("/v1/sets", self._infos),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics_page),
            ]
        )

    @property
    def clients(self) -> list[TestNUC]:
        """The clients that label."""
        return [served.nuc for served in self.sets.values()]

    async def use(self, nuc: TestNUC | Mapping[str, TestNUC]) -> None:
        """Label by other clients, which are open, and wait until none uses those before."""
        before, self.sets = self.sets, self._served(nuc)
        for served in self.sets.values():
            await served.begin()
        requests = self._in_flight - {asyncio.current_task()}
        if requests:
            await asyncio.wait(requests)
        for name in before.keys() - self.sets.keys():
            await before[name].close()

    def _served(self, given: TestNUC | Mapping[str, TestNUC]) -> dict[str, ServedSet]:
        """Return label sets with these clients; sets that were served go on with theirs."""
        clients = given if isinstance(given, Mapping) else {"": given}
        named = [*clients] if self._several else []
        wrong = [name for name in named if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name)]
        if wrong or not clients or isinstance(given, Mapping) != self._several:
            raise InvalidInputError(
                f"label sets are named {wrong or list(clients)}; name each with letters, digits, - "
                "and _, and do not mix a client without a name with others"
            )
        served = {
            name: self.sets.get(name)
            or ServedSet(nuc, self.settings, self._metrics, {"set": name} if name else {})
            for name, nuc in clients.items()
        }
        for name, nuc in clients.items():
            if served[name].nuc is not nuc:
                served[name].use(nuc)
            # what one process spends, whatever it labels by, also after it did not serve the set
            account = parts_of(nuc).transport.account
            account.join(self._accounts.get(name, account))
            self._accounts[name] = account
        labels = {name: nuc.labels for name, nuc in clients.items()}
        self._facts = {
            "/openapi.json": openapi(labels, self.settings),
            "/healthz": {"status": "alive"},
        }
        return served

    async def _close(self, _: web.Application) -> None:
        for served in self.sets.values():
            await served.close()

    @property
    def status(self) -> Status:
        """The state; whether all calls of a set fail, or all providers asked for a long pause."""
        return self._status(*self.sets.values())

    def _status(self, *sets: ServedSet) -> Status:
        found = {served.status for served in sets}
        if self.state != "ready":
            return self.state
        return found.pop() if len(found) == 1 else "failing" if "failing" in found else "ready"

    @property
    def _ready(self) -> bool:
        """Whether requests are answered: during a pause, where what was learned labels alone."""
        if (status := self.status) == "paused":
            return any(parts_of(nuc).pipeline.settings.head_decides for nuc in self.clients)
        return status in {"ready", "failing"}

    def _values(self) -> Iterator[Value]:
        """Yield what metrics say."""
        ready, queue = float(self._ready), self.queue
        yield Value("pending_texts", "Texts being labeled or waiting.", queue.pending, {})
        yield Value("pending_texts_limit", "Limit of pending texts.", queue.limit, {})
        yield Value("ready", "1 while requests are accepted and can be answered.", ready, {})
        failed = {"labels": self.failed_reloads, "tokens": self.settings.failed_tokens}
        for what, times in failed.items():
            where = {"what": what}
            yield Value("failed_reloads", "Reloads that failed.", times, where, counted=True)
        yield Value("reloads", "Reloads that succeeded.", self.reloads, {}, counted=True)
        for name, texts in self._callers.texts.items():
            yield Value("caller_texts", "Texts by caller.", texts, {"caller": name}, counted=True)
        for served in list(self.sets.values()):
            yield from served.values()

    def _set_of(self, request: web.Request) -> ServedSet:
        name = request.match_info.get("set", "")
        if name not in self.sets:
            hint = f"the label sets are {', '.join(self.sets)}"
            raise RequestError(404, "no_such_set", f"there is no {name[:64]!r}; {hint}")
        return self.sets[name]

    async def _erase(self, request: web.Request) -> web.Response:
        self._refuse_if_closing()
        served = self._set_of(request)
        async with self.bodies.read(request) as body:
            asked = read(body, self.settings)
        if served.audit is not None:
            await served.audit.flush(frozenset(map(hash_text, asked.texts)))
        erased = await served.nuc.remove(asked.texts, erase=True)
        # last: until then they are neighbors of other texts
        served.recent.clear()
        return _json({"erased": erased})

    async def _classify(self, request: web.Request) -> web.StreamResponse:
        self._refuse_if_closing()
        served = self._set_of(request)
        if self.state == "starting":
            message = "the service is starting; retry in 1 s"
            raise RequestError(503, "starting", message, retry_after=1)
        async with self.bodies.read(request) as body:
            asked = read(body, self.settings)
        # shutdown may have begun while the body arrived; it waits for admitted requests only
        self._refuse_if_closing()
        served.count_failed("invalid_input", len(asked.refused))
        lines = asked.many and (asked.stream or _NDJSON in request.headers.get("Accept", ""))
        seconds = self.settings.request_timeout
        if not asked.texts:
            results = asked.failed(served.nuc.labels)
            if not lines:
                return _json({"results": results})
            return web.Response(body=b"".join(map(_line, results)), content_type=_NDJSON)
        with (
            self.queue.admit(len(asked.texts)) as leave,
            served.answering(about(request), _OF_CALLS * seconds, len(asked.texts)) as failed,
        ):
            self._callers.admit(request, len(asked.texts))
            if lines:
                return await self._stream(request, self._lines(served, asked, leave, failed))
            try:
                async with PATIENCE.get().in_time(seconds):
                    return await self._whole(served, asked, failed)
            except TestNUCError as error:
                served.count_failed(request_error(error).kind, len(asked.texts))
                raise

    def _refuse_if_closing(self) -> None:
        if self.closing:
            message = "the service is shutting down; retry in 5 s"
            raise RequestError(503, "closing", message, retry_after=5, close=True)

    async def _whole(
        self, served: ServedSet, asked: ClassifyRequest, failed: Failed
    ) -> web.Response:
        if not asked.many:
            result = await served.nuc.classify(asked.texts[0])
            served.note(result, failed)
            return _json(record(result, asked))
        results = asked.failed(served.nuc.labels)
        found = await served.nuc.classify_many(asked.texts)
        faults = list(map(_fault, found))
        if faults[0] is not None and all(faults):
            raise faults[0]
        for result in found:
            served.note(result, failed)
            results.append(record(result, asked))
            if len(results) % 64 == 0:
                # a record takes a fraction of a millisecond: yield to other requests
                await asyncio.sleep(0)
        results.sort(key=lambda found: found["index"])
        return _json({"results": results})

    async def _stream(
        self, request: web.Request, lines: AsyncGenerator[bytes, None]
    ) -> web.StreamResponse:
        """Send each result as a line, as soon as it is ready.

        The headers wait for the first line, so that an immediate failure has its HTTP status. A
        later failure is sent as the last line.
        """
        response: web.StreamResponse | None = None
        async with aclosing(lines):
            async for line in lines:
                if response is None:
                    response = web.StreamResponse(headers={"Content-Type": _NDJSON})
                    await response.prepare(request)
                await self._send(request, response, line)
        assert response is not None
        await response.write_eof()
        return response

    async def _lines(
        self, served: ServedSet, asked: ClassifyRequest, leave: Callable[[], None], failed: Failed
    ) -> AsyncGenerator[bytes, None]:
        first, left = True, len(asked.texts)
        faults = list[Exception]()
        # a fault at one text may be that of all, which is sent once, as HTTP status
        held = [_line(refused) for refused in asked.failed(served.nuc.labels)]
        try:
            async with aclosing(served.nuc.stream(asked.texts, window=left)) as results:
                while left:
                    # each may take as long as a request
                    PATIENCE.get().renew()
                    async with PATIENCE.get().in_time(self.settings.request_timeout):
                        result = await anext(results)
                    served.note(result, failed)
                    leave()
                    left -= 1
                    held.append(_line(record(result, asked)))
                    if (fault := _fault(result)) is not None:
                        faults.append(fault)
                        if first or getattr(fault, "fatal", False):
                            continue
                    for line in held:
                        first = False
                        yield line
                    held.clear()
            if len(faults) == len(asked.texts):
                raise faults[0]  # noqa: TRY301 - as one that ends the stream
            for line in held:
                yield line
        except Exception as exc:
            error = request_error(exc)
            served.count_failed(error.kind, left)
            if first:
                raise
            failed[error.kind] += [exc] * left
            # the headers are sent already
            _log.warning("a stream failed", exc_info=exc)
            yield _line(error.body())

    async def _send(self, request: web.Request, response: web.StreamResponse, line: bytes) -> None:
        try:
            async with asyncio.timeout(self.settings.idle_timeout):
                await response.write(line)
        except TimeoutError as exc:
            # the client does not read: its buffer would never be sent
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the client does not read its response") from exc

    async def _static(self, request: web.Request) -> web.Response:
        html = self._static_pages[request.path]
        return web.Response(text=html, content_type="text/html", headers=_page_headers(html))

    async def _fact(self, request: web.Request) -> web.Response:
        return _json(self._facts[request.path])

    async def _labels(self, request: web.Request) -> web.Response:
        return _json(self._set_of(request).described)

    async def _info(self, request: web.Request) -> web.Response:
        return _json(await self._info_of(self._set_of(request)))

    async def _infos(self, _: web.Request) -> web.Response:
        every = list(self.sets.items())
        return _json({"sets": {name: await self._info_of(one) for name, one in every}})

    async def _info_of(self, served: ServedSet) -> dict[str, Any]:
        own = {"version": __version__, "status": self._status(served)}
        return own | await served.info() | {"limits": self.settings.limits()}

    async def _results_page(self, request: web.Request) -> web.Response:
        if self._page is None:
            raise RequestError(404, "no_such_route", "this service shows no results")
        served = self._set_of(request)
        # rendering takes a fraction of a second: one page at a time
        async with self._rendering:
            html = await asyncio.to_thread(self._page, served.nuc, list(served.recent))
        # its own policy, in its head, allows its scripts alone
        return web.Response(text=html, content_type="text/html", headers=_page_headers())

    async def _readyz(self, _: web.Request) -> web.Response:
        # once the pause is over it is ready: a request finds out whether the provider answers
        return _json({"status": self.status}, 200 if self._ready else 503)

    async def _metrics_page(self, _: web.Request) -> web.Response:
        headers = {"Content-Type": self._metrics.content_type}
        # process metrics are read from files
        return web.Response(body=await asyncio.to_thread(self._metrics.page), headers=headers)

    def routes(self) -> set[str]:
        """Return all paths."""
        return {r.resource.canonical for r in self.app.router.routes() if r.resource is not None}

    def abort(self) -> None:
        """Cancel all in-flight requests; clients that are closed then wait for no call."""
        for task in self._in_flight:
            task.cancel()
        for nuc in self.clients:
            for lane in parts_of(nuc).pipeline.lanes.values():
                lane.drain = 0.0

    async def _add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        # also of a stream, whose headers are sent before its handler returns
        response.headers[REQUEST_ID] = request_id(request)
        response.headers.update(cors_headers(request, self.settings.cors_origins))

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        started = time.perf_counter()
        resource = request.match_info.route.resource
        route = "other" if resource is None else resource.canonical
        if (name := request.match_info.get("set")) in self.sets:
            route = route.replace("{set}", str(name))
        self.used[request.protocol] = None
        task = asyncio.current_task()
        assert task is not None
        self._in_flight.add(task)
        status = 499
        try:
            response = await self._answer(request, route, handler)
            status = response.status
        finally:
            # 499: the client has disconnected
            seconds = time.perf_counter() - started
            self._metrics.request(route, status, seconds)
            if self.settings.access_log or status == 499:
                log_request(request, route, status, seconds)
            self.used[request.protocol] = time.monotonic()
            self._in_flight.discard(task)
        return response

    async def _answer(
        self, request: web.Request, route: str, handler: Handler
    ) -> web.StreamResponse:
        if (allowed_page := preflight(request, self.settings.cors_origins)) is not None:
            return allowed_page
        try:
            require_caller(request, route, self.settings)
            return await handler(request)
        except RequestError as exc:
            refused, now = exc, time.monotonic()
            if route == "/metrics" and now - self._unscraped_at > _AGAIN:
                self._unscraped_at = now
                _log.warning("a scrape of /metrics got %d: %s", exc.status, exc)
        except web.HTTPException as exc:
            allowed = {"Allow": exc.headers["Allow"]} if "Allow" in exc.headers else {}
            hint = f"the routes are {', '.join(sorted(self.routes()))}"
            message = f"{request.method} {request.path[:100]}: {exc.reason}; {hint}"
            refused = RequestError(exc.status, "no_such_route", message, headers=allowed)
        except TestNUCError as exc:
            refused = request_error(exc)
            said = request_id(request), route, refused.status, exc
            fields = about(request)["fields"] | {"type": refused.kind, "status": refused.status}
            if not PATIENCE.get().is_logged(exc):
                _log.warning("%s %s: %d, %s", *said, extra={"fields": fields})
        except ConnectionError:
            # raised, it would be an error with a traceback in aiohttp's log
            return web.Response(status=499)
        except Exception as exc:  # noqa: BLE001 - logged, and returned as 500
            refused = request_error(exc)
            _log.exception("%s %s failed", request_id(request), route, extra=about(request))
        response = _json(refused.body(), refused.status, refused.headers)
        if refused.close:
            response.force_close()
        return response


def _fault(result: Classification) -> Exception | None:
    """Return why a text has no label, if that is no fault of the text."""
    error = result.error
    fault = isinstance(error, TestNUCError) and request_error(error).status >= 500
    return error if fault and result.label is None else None


def _json(
    value: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    sent = {**(headers or {}), "X-Content-Type-Options": "nosniff"}
    body, kind = orjson.dumps(value), "application/json"
    return web.Response(body=body, status=status, content_type=kind, headers=sent)


def _line(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def page_of(nuc: TestNUC, rows: Sequence[Classification]) -> str:
    """Return the page of a `Service`: the latest results, and the client's usage."""
    results = Results(
        # the indices of each request start at 0
        [replace(row, index=at) for at, row in enumerate(rows)],
        nuc.usage,
        math.nan,
        model=nuc.model,
        choices=nuc.labels.names,
        instructions=parts_of(nuc).instructions,
        descriptions=nuc.labels.descriptions,
    )
    title = f"testnuc: the latest {len(rows):,} texts" if rows else "testnuc: no text yet"
    return render(results, title=title, several=nuc.labels.multilabel)
