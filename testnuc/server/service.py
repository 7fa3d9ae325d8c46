"""The routes of a service, with authentication, limits and error responses."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import time
from base64 import b64encode
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from typing import Any, Literal, TypeAlias

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from testnuc._version import __version__
from testnuc.client import TestNUC, parts_of
from testnuc.errors import TestNUCError
from testnuc.report import render
from testnuc.results import Results
from testnuc.server.access import (
    REQUEST_ID,
    cors_headers,
    log_request,
    preflight,
    request_id,
    require_caller,
)
from testnuc.server.auditing import TrafficSample
from testnuc.server.errors import RequestError, error_fields, request_error
from testnuc.server.metrics import Metrics
from testnuc.server.openapi import document
from testnuc.server.queue import Bodies, Queue
from testnuc.server.schemas import ClassifyRequest, read, record
from testnuc.server.settings import ServerSettings
from testnuc.types import Classification, Reason

#: Renders the HTML at ``/results`` from the latest results.
Page: TypeAlias = "Callable[[Sequence[Classification]], str | Awaitable[str]]"

_log = logging.getLogger("testnuc.server")

#: Results kept for the page.
_RECENT = 1_000
_NDJSON = "application/x-ndjson"


def _page_headers(own: str | None = None) -> dict[str, str]:
    """Return the headers of a page, which is self-contained.

    Of `own`, which holds nothing of a request, the scripts are allowed by their hash, and no other.
    """
    scripts = ["'unsafe-inline'"]
    if own is not None:
        parts = [part.partition("</script>")[0] for part in own.split("<script>")[1:]]
        digests = (sha256(script.encode()).digest() for script in parts)
        scripts = [f"'sha256-{b64encode(digest).decode()}'" for digest in digests]
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
    """Classifies texts over HTTP with one client, which the caller opens and closes.

    All requests share it: they are embedded together, and share in-flight calls. `page` renders the
    HTML at ``/results`` from the latest results, newest last; without it they are not shown. `app`
    serves all routes, for your own runner. Set `state` ("starting", "ready", "draining") to "ready"
    when the client can be used; `status` may also be "paused".
    """

    def __init__(
        self, nuc: TestNUC, settings: ServerSettings | None = None, *, page: Page | None = None
    ) -> None:
        self.nuc = nuc
        self.settings = settings or ServerSettings()
        self.state: Literal["starting", "ready", "draining"] = "starting"
        #: Whether requests are rejected because the service is shutting down.
        self.closing = False
        self.queue = Queue(self.settings.max_pending)
        self.recent: deque[Classification] = deque(maxlen=_RECENT)
        #: Bodies of requests that have not arrived in full.
        self.bodies = Bodies(self.settings.max_body, self.settings.body_timeout)
        #: Last use of a connection, by its protocol; None while in use.
        self.used: dict[asyncio.BaseProtocol, float | None] = {}
        self._in_flight: set[asyncio.Task[Any]] = set()
        self._metrics = Metrics(lambda: self.nuc.usage)
        self._metrics.gauges(
            pending_texts=("Texts being labeled or waiting.", lambda: self.queue.pending),
            pending_texts_limit=("Limit of pending texts.", lambda: self.queue.limit),
            pool_texts=("Texts in the pool.", lambda: len(self.nuc)),
            ready=(
                "1 while requests are accepted and can be answered.",
                lambda: self.status == "ready",
            ),
        )
        self._page = page
        #: Responses that only depend on the labels, by path: JSON and pages.
        self._facts = self._of_labels()
        self._since, self._before = time.time(), dict[str, Any]()
        folder = files("testnuc.server")
        self._static_pages = {
            path: (folder / name).read_text(encoding="utf-8")
            for path, name in (("/", "try.html"), ("/docs", "docs.html"))
        }
        #: Why the LLM's own labels were kept when they were last.
        self._decision: str | None = None
        self.app = web.Application(middlewares=[self._guard])
        #: Texts that are set aside; None: none are.
        self.audit = self._start_audit()
        self.app.on_response_prepare.append(self._add_headers)
        self.app.add_routes(
            [
                *(web.get(path, self._static) for path in self._static_pages),
                *(web.get(path, self._fact) for path in self._facts),
                web.get("/results", self._results_page),
                web.post("/v1/classify", self._classify),
                web.get("/v1/info", self._info),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics_page),
            ]
        )

    async def use(self, nuc: TestNUC) -> None:
        """Label by another client, which is open, and wait until none uses the one before."""
        self._before, self._since = self._active(), time.time()
        self.nuc, self._decision = nuc, None
        self._facts = self._of_labels()
        if self.audit is not None:
            self.audit.follow(nuc)
        requests = self._in_flight - {asyncio.current_task()}
        if requests:
            await asyncio.wait(requests)

    def _of_labels(self) -> dict[str, dict[str, Any]]:
        labels = self.nuc.labels
        described = labels.descriptions
        return {
            "/openapi.json": document(labels, self.settings),
            "/v1/labels": {
                "labels": [{"label": n, "description": described.get(n)} for n in labels.names]
            },
            "/healthz": {"status": "alive"},
        }

    def _active(self) -> dict[str, Any]:
        learned = self.nuc.learned
        since = datetime.fromtimestamp(self._since, UTC)
        return {
            "model": self.nuc.model,
            "labels": len(self.nuc.labels.names),
            "judged": 0 if learned is None else len(learned.judged),
            "since": since.isoformat(timespec="seconds"),
        }

    def _start_audit(self) -> TrafficSample | None:
        if self.settings.audit is None:
            return None
        audit = TrafficSample(self.nuc, self.settings.audit)
        self.app.cleanup_ctx.append(audit.running)
        self._metrics.gauges(
            audit_texts=("Texts set aside in this week.", lambda: len(audit.latest.sample)),
            audit_judged=("Judged texts.", lambda: audit.summary.get("judged", 0)),
            audit_accuracy=(
                "Accuracy of all judged texts.",
                lambda: audit.summary.get("accuracy", math.nan),
            ),
            audit_alarms=("Proved changes.", lambda: audit.summary.get("alarms", 0)),
        )
        return audit

    @property
    def status(self) -> Literal["starting", "ready", "paused", "draining"]:
        """The state, and whether the provider asked for a pause of more than a minute."""
        paused = self.state == "ready" and parts_of(self.nuc).transport.admission.pause
        return "paused" if paused else self.state

    # -- routes ------------------------------------------------------------------------------------

    async def _classify(self, request: web.Request) -> web.StreamResponse:
        self._refuse_if_closing()
        if self.state == "starting":
            message = "the service is starting; retry in 1 s"
            raise RequestError(503, "starting", message, retry_after=1)
        async with self.bodies.read(request) as body:
            asked = read(body, self.settings)
        # shutdown may have begun while the body arrived; it waits for admitted requests only
        self._refuse_if_closing()
        if not asked.texts:
            failed = asked.failed()
            if not _wants_lines(request, asked):
                return _json({"results": failed})
            return web.Response(body=b"".join(map(_line, failed)), content_type=_NDJSON)
        with self.queue.admit(len(asked.texts)) as leave:
            if _wants_lines(request, asked):
                return await self._stream(request, asked, leave)
            try:
                async with asyncio.timeout(self.settings.request_timeout):
                    return await self._whole(asked)
            except (TimeoutError, TestNUCError) as exc:
                refused = self._late() if isinstance(exc, TimeoutError) else request_error(exc)
                self._metrics.texts.labels("failed").inc(len(asked.texts))
                self._metrics.failures.labels(refused.kind).inc(len(asked.texts))
                if isinstance(exc, TimeoutError):
                    raise refused from exc
                raise

    def _refuse_if_closing(self) -> None:
        if self.closing:
            message = "the service is shutting down; retry in 5 s"
            raise RequestError(503, "closing", message, retry_after=5, close=True)

    async def _whole(self, asked: ClassifyRequest) -> web.Response:
        if not asked.many:
            result = await self.nuc.classify(asked.texts[0])
            self._note(result)
            return _json(record(result, asked))
        results = asked.failed()
        for result in await self.nuc.classify_many(asked.texts):
            self._note(result)
            results.append(record(result, asked))
            if len(results) % 64 == 0:
                # a record takes a fraction of a millisecond: yield to other requests
                await asyncio.sleep(0)
        results.sort(key=lambda found: found["index"])
        return _json({"results": results})

    async def _stream(
        self, request: web.Request, asked: ClassifyRequest, leave: Callable[[], None]
    ) -> web.StreamResponse:
        """Send each result as a line, as soon as it is ready.

        The headers wait for the first line, so that an immediate failure has its HTTP status. A
        later failure is sent as the last line.
        """
        response: web.StreamResponse | None = None
        lines = self._lines(asked, leave)
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
        self, asked: ClassifyRequest, leave: Callable[[], None]
    ) -> AsyncGenerator[bytes, None]:
        first, left = True, len(asked.texts)
        # a fatal error of one text may be that of all, which is sent once, as HTTP status
        held = [_line(failed) for failed in asked.failed()]
        try:
            async with aclosing(self._results(asked)) as results:
                async for result in results:
                    self._note(result)
                    leave()
                    left -= 1
                    held.append(_line(record(result, asked)))
                    if result.label is None and getattr(result.error, "fatal", False):
                        continue
                    for line in held:
                        first = False
                        yield line
                    held.clear()
            for line in held:
                yield line
        except Exception as exc:
            refused = exc if isinstance(exc, RequestError) else request_error(exc)
            self._metrics.texts.labels("failed").inc(left)
            self._metrics.failures.labels(refused.kind).inc(left)
            if first:
                raise
            # the headers are sent already
            _log.warning("a stream failed", exc_info=exc)
            yield _line(refused.body())

    async def _results(self, asked: ClassifyRequest) -> AsyncGenerator[Classification, None]:
        """Yield results; each may take as long as a request."""
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
            # the client does not read: its buffer would never be sent
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the client does not read its response") from exc

    async def _static(self, request: web.Request) -> web.Response:
        html = self._static_pages[request.path]
        return web.Response(text=html, content_type="text/html", headers=_page_headers(html))

    async def _fact(self, request: web.Request) -> web.Response:
        return _json(self._facts[request.path])

    async def _info(self, _: web.Request) -> web.Response:
        return _json(
            {
                "version": __version__,
                "status": self.status,
                **self._active(),
                "before": self._before or None,
                "pool": len(self.nuc),
                "decision": self._decision,
                "limits": self.settings.limits(),
            }
        )

    async def _results_page(self, _: web.Request) -> web.Response:
        if self._page is None:
            raise RequestError(404, "no_such_route", "this service shows no results")
        page = self._page(list(self.recent))
        html = await page if inspect.isawaitable(page) else page
        # its own policy, in its head, allows its scripts alone
        return web.Response(text=html, content_type="text/html", headers=_page_headers())

    async def _readyz(self, _: web.Request) -> web.Response:
        # once the pause is over it is ready: a request finds out whether the provider answers
        return _json({"status": self.status}, 200 if self.status == "ready" else 503)

    async def _metrics_page(self, _: web.Request) -> web.Response:
        headers = {"Content-Type": self._metrics.content_type}
        # process metrics are read from files
        return web.Response(body=await asyncio.to_thread(self._metrics.page), headers=headers)

    # -- common to all routes ------------------------------------------------------------------

    def routes(self) -> set[str]:
        """Return all paths."""
        return {r.resource.canonical for r in self.app.router.routes() if r.resource is not None}

    def abort(self) -> None:
        """Cancel all in-flight requests."""
        for task in self._in_flight:
            task.cancel()

    async def _add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        # also of a stream, whose headers are sent before its handler returns
        response.headers[REQUEST_ID] = request_id(request)
        if self.settings.cors_origins:
            response.headers.update(cors_headers(request, self.settings.cors_origins))

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        started = time.perf_counter()
        resource = request.match_info.route.resource
        route = "other" if resource is None else resource.canonical
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
            if self.settings.access_log:
                log_request(request, route, status, seconds)
            self.used[request.protocol] = time.monotonic()
            self._in_flight.discard(task)
        return response

    async def _answer(
        self, request: web.Request, route: str, handler: Handler
    ) -> web.StreamResponse:
        allowed_page = preflight(request, self.settings.cors_origins)
        if allowed_page is not None:
            return allowed_page
        try:
            require_caller(request, route, self.settings)
            return await handler(request)
        except RequestError as exc:
            refused = exc
        except web.HTTPException as exc:
            allowed = {"Allow": exc.headers["Allow"]} if "Allow" in exc.headers else {}
            hint = f"the routes are {', '.join(sorted(self.routes()))}"
            message = f"{request.method} {request.path[:100]}: {exc.reason}; {hint}"
            refused = RequestError(exc.status, "no_such_route", message, headers=allowed)
        except TestNUCError as exc:
            refused = request_error(exc)
            _log.warning("%s %s: %d, %s", request_id(request), route, refused.status, exc)
        except ConnectionError:
            _log.debug("%s: the client has disconnected", route)
            raise
        except Exception as exc:  # noqa: BLE001 - logged, and returned as 500
            refused = request_error(exc)
            _log.exception("%s %s failed", request_id(request), route)
        response = _json(refused.body(), refused.status, refused.headers)
        if refused.close:
            response.force_close()
        return response

    def _late(self) -> RequestError:
        message = (
            f"no result within {self.settings.request_timeout:g} s; retry: LLM responses that "
            "arrive meanwhile are stored"
        )
        return RequestError(504, "timeout", message, retry_after=5)

    def _note(self, result: Classification) -> None:
        unlabeled = "unlabeled" if result.error is None else "failed"
        self._metrics.texts.labels(unlabeled if result.label is None else "labeled").inc()
        if result.label is not None:
            self._metrics.labels.labels(result.source or "unknown").inc()
        if result.error is not None:
            kind = error_fields(result.error)["type"]
            self._metrics.failures.labels(kind).inc()
            _log.warning("a text failed: %s, %s", kind, result.error)
        self.recent.append(result)
        if self.audit is not None:
            self.audit.note(result)
        if isinstance(result.reason, Reason) and result.reason.code == "llm_kept":
            self._decision = str(result.reason)


def _wants_lines(request: web.Request, asked: ClassifyRequest) -> bool:
    return asked.many and (asked.stream or _NDJSON in request.headers.get("Accept", ""))


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


def page_of(nuc: TestNUC) -> Callable[[Sequence[Classification]], Awaitable[str]]:
    """Return the page function of a `Service`: the latest results, and the client's usage."""

    def made(rows: Sequence[Classification]) -> str:
        labels = nuc.labels
        results = Results(
            # the indices of each request start at 0
            [replace(row, index=at) for at, row in enumerate(rows)],
            nuc.usage,
            math.nan,
            model=nuc.model,
            choices=labels.names,
            descriptions=labels.descriptions,
        )
        title = f"testnuc: the latest {len(rows):,} texts" if rows else "testnuc: no text yet"
        return render(results, title=title, several=labels.multilabel)

    one = asyncio.Lock()

    async def page(results: Sequence[Classification]) -> str:
        # rendering takes a fraction of a second: one page at a time, off the event loop
        async with one:
            return await asyncio.to_thread(made, results)

    return page
