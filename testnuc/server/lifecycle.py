"""Run a service: start, wait for a signal, drain, stop."""

import asyncio
import contextlib
import gc
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from testnuc.errors import ConfigurationError
from testnuc.server.service import Service

_log = logging.getLogger("testnuc.server")
_http = logging.getLogger("testnuc.http")

#: With more connections, the one that has been idle, or has not sent its request, for longest is
#: closed. A process has a limit of open files, too; part of it is for stores and providers.
_MOST_CONNECTIONS, _PART_OF_FILES = 4_096, 0.75


def _without_content(record: logging.LogRecord) -> bool:
    """Make one line of a request that is no HTTP; its error quotes it: a token, or a text."""
    if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
        record.msg, record.exc_info = "a request of %s is not HTTP", None
        record.levelno, record.levelname = logging.INFO, "INFO"
    return True


_http.addFilter(_without_content)


async def serve(
    service: Service,
    *,
    prepare: Callable[[], Awaitable[object]] | None = None,
    listening: Callable[[str], object] | None = None,
    reload: Callable[[], Awaitable[object]] | None = None,
) -> bool:
    """Serve until SIGTERM or Ctrl-C, finish in-flight requests, then return.

    While `prepare` runs, and after the signal, ``/readyz`` returns 503. A second signal aborts
    in-flight requests. Return whether all were finished.

    `prepare` loads a model or fills the pool; its exceptions stop the service. `listening` is
    called with the URL, `reload` on SIGHUP once the service is ready (`Service.use` takes another
    client; its exceptions are logged). Without it SIGHUP is as SIGTERM. An address on which it
    cannot listen is a `ConfigurationError`.
    """
    settings = service.settings
    runner = web.AppRunner(
        service.app,
        access_log=None,
        logger=_http,
        # a disconnected client cancels its calls
        handler_cancellation=True,
        keepalive_timeout=settings.idle_timeout,
        # seconds to send finished responses
        shutdown_timeout=5.0,
        auto_decompress=False,
    )
    await runner.setup()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(runner.cleanup)
        hung_up = None if reload is None else asyncio.Event()
        signals = stack.enter_context(_signals(hung_up))
        assert runner.server is not None
        accept = partial(_accept, service, runner.server, _most_connections())
        try:
            server = await asyncio.get_running_loop().create_server(
                accept, settings.host, settings.port, backlog=1_024
            )
        except OSError as exc:
            raise ConfigurationError(
                f"cannot listen on {settings.host}:{settings.port}: {exc.strerror or exc}; choose "
                "another --port, or stop the program that uses it"
            ) from exc
        stack.callback(server.close)
        if listening is not None:
            listening(_url(server))
        beside = [asyncio.create_task(_close_idle(service, runner.server), name="testnuc-sweep")]
        if reload is not None and hung_up is not None:
            reloads = _reload(service, reload, hung_up)
            beside.append(asyncio.create_task(reloads, name="testnuc-reload"))
        try:
            await _until_signal(service, signals, prepare)
            return await _drain(service, signals)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)


async def _until_signal(
    service: Service, signals: asyncio.Semaphore, prepare: Callable[[], Awaitable[object]] | None
) -> None:
    async def start() -> None:
        if prepare is not None:
            await prepare()
        for served in service.sets.values():
            await served.begin()
        service.state = "ready"
        _log.info("ready")

    stop, starting = asyncio.create_task(signals.acquire()), asyncio.create_task(start())
    try:
        await asyncio.wait([stop, starting], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            # raises the exception of `prepare`
            await starting
            await stop
    finally:
        for task in (stop, starting):
            task.cancel()
        await asyncio.gather(stop, starting, return_exceptions=True)


async def _drain(service: Service, signals: asyncio.Semaphore) -> bool:
    """Finish in-flight requests; return whether all did."""
    service.state = "draining"
    _log.info("draining: %d texts pending", service.queue.pending)
    settings = service.settings
    again = asyncio.create_task(signals.acquire())
    try:
        if settings.grace:
            await asyncio.wait([again], timeout=settings.grace)
        service.closing = True
        empty = asyncio.create_task(service.queue.empty.wait())
        await asyncio.wait(
            [again, empty], timeout=settings.drain_timeout, return_when=asyncio.FIRST_COMPLETED
        )
        empty.cancel()
    finally:
        again.cancel()
    finished = not service.queue.pending
    level = logging.INFO if finished else logging.WARNING
    _log.log(level, "stopped with %d texts pending", service.queue.pending)
    if not finished:
        service.abort()
    return finished


def _accept(service: Service, server: web.Server, most: int) -> asyncio.Protocol:
    """Return the protocol of a new connection; closes an idle one if there are many."""
    if len(server.connections) >= most:
        since = {gone: at for gone, at in service.used.items() if at is not None}
        since |= service.bodies.receiving
        # until one was open
        any(map(_abort, sorted(since, key=since.__getitem__)))
    protocol = server()
    service.used[protocol] = time.monotonic()
    return protocol


def _most_connections() -> int:
    """Return how many connections are kept open."""
    try:
        import resource
    except ImportError:  # not on Windows
        return _MOST_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(1, min(_MOST_CONNECTIONS, int(files * _PART_OF_FILES)))


def _abort(connection: asyncio.BaseProtocol) -> bool:
    """Close a connection at once, its buffer unsent; return whether it was open."""
    transport = getattr(connection, "transport", None)
    was_open = transport is not None and not transport.is_closing()
    if transport is not None:
        transport.abort()
    return was_open


async def _close_idle(service: Service, server: web.Server) -> None:
    """Close connections that send no request, or do not read their response.

    aiohttp limits the time between two requests, but not that before the first one, nor that of
    stalled headers or responses.
    """
    idle = service.settings.idle_timeout
    while True:
        await asyncio.sleep(min(1.0, idle / 4))
        now = time.monotonic()
        for gone in service.used.keys() - set(server.connections):
            del service.used[gone]
        for connection in server.connections:
            since = service.used.setdefault(connection, now)
            if since is not None and now - since > idle:
                _abort(connection)


async def _reload(
    service: Service, reload: Callable[[], Awaitable[object]], hung_up: asyncio.Event
) -> None:
    while await hung_up.wait():
        hung_up.clear()
        if service.state != "ready":
            _log.warning("SIGHUP: the service is %s; nothing is reloaded", service.state)
            continue
        try:
            await reload()
        except Exception as exc:  # noqa: BLE001 - whatever it is, the service goes on
            service.failed_reloads += 1
            _log.error("the reload failed; the service goes on as before: %s", exc)
        else:
            service.reloads += 1
            _log.info("reloaded")
        finally:
            # clients and their models are cycles, and a collection by itself may be hours away
            gc.collect()


@contextlib.contextmanager
def _signals(hung_up: asyncio.Event | None) -> Iterator[asyncio.Semaphore]:
    """Count SIGINT, SIGTERM and SIGHUP; the last sets `hung_up` instead, if there is one."""
    received = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()

    def on_hang_up() -> None:
        if hung_up is None:
            received.release()
        else:
            _log.info("SIGHUP: reloading, once a reload in progress has ended")
            hung_up.set()

    handled = []
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        # not on Windows, where Ctrl-C cancels the main task; nor outside the main thread
        with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError, ValueError):
            number = getattr(signal, name)
            loop.add_signal_handler(number, on_hang_up if name == "SIGHUP" else received.release)
            handled.append(number)
    try:
        yield received
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


def _url(server: asyncio.Server) -> str:
    host, port = server.sockets[0].getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
