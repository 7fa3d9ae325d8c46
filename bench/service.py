"""The HTTP service under load: errors, latency, CPU, memory, compared with bare aiohttp.web."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from bench._http_load import Load, load, post
from bench._report import Report
from bench._server import serve_in_process
from bench._timing import machine
from testnuc.testing import HashEmbedder

if TYPE_CHECKING:
    from aiohttp import web

_LABELS = [f"intent number {i}" for i in range(20)]
#: Largest accepted ratio of p99 to median, and memory growth (absolute in MB, and relative).
_MAX_RATIO = 5.0
_MAX_GROWTH_MB, _MAX_GROWTH = 4.0, 0.02
_MEMORY = "process_resident_memory_bytes"
_CPU = "process_cpu_seconds_total"


def _text(i: int, kind: str) -> str:
    return f"{kind} {i}: what a customer writes of matter {i % 311} and of thing {i % 97}"


def _requests(host: str, kind: str, distinct: int) -> Iterator[bytes]:
    """Yield requests that cycle through `distinct` texts."""
    bodies = (orjson.dumps({"text": _text(i, kind)}) for i in cycle(range(distinct)))
    return (post(host, "/v1/classify", body) for body in bodies)


# -- the servers, one per process ------------------------------------------------------------------


def _serve(llm: str, policy: str, max_pending: int, embedder: str | None) -> None:
    """Run the service as `testnuc serve` does; without an embedder, words are hashed."""
    from testnuc import SmallPoolWarning, TestNUC
    from testnuc._base.loop_thread import run_to_end
    from testnuc.server import ServerSettings, Service, serve

    warnings.simplefilter("ignore", SmallPoolWarning)

    async def main() -> None:
        nuc = TestNUC(
            _LABELS, "openai/test", base_url=llm, api_key="key", policy=policy,
            embedder=embedder or HashEmbedder(),
        )  # fmt: skip
        settings = ServerSettings(
            port=0, max_pending=max_pending, max_texts=min(1_000, max_pending)
        )
        async with nuc:
            await nuc.warm_up()
            service = Service(nuc, settings)
            _count_work(service.app)
            await serve(service, listening=_print_url)

    run_to_end(main())


def _count_work(app: web.Application) -> None:
    """Record the CPU time of the process during each request.

    For a saturated process, this is the latency without other programs on the machine.
    """
    from aiohttp import web

    work: list[float] = []

    @web.middleware
    async def count(request: web.Request, handler: Any) -> web.StreamResponse:
        started = time.process_time()
        response: web.StreamResponse = await handler(request)
        if request.path == "/v1/classify" and response.status == 200:
            work.append(time.process_time() - started)
        return response

    async def report_work(_: web.Request) -> web.Response:
        body = orjson.dumps(work)
        work.clear()
        return web.Response(body=body)

    app.middlewares.insert(0, count)
    app.router.add_get("/work", report_work)


def _floor() -> None:
    """Run a minimal handler that parses JSON and returns a response of realistic size."""
    from aiohttp import web

    from testnuc._base.loop_thread import run_to_end

    answer = {
        "label": "intent number 1", "trust": 0.75, "share": 0.75, "margin": 0.5, "voters": 11,
        "complete": True, "own": {"label": "intent number 1", "confidence": 0.9},
        "reason": None, "error": None,
    }  # fmt: skip

    async def classify(request: web.Request) -> web.Response:
        given = orjson.loads(await request.read())
        assert given["text"]
        return web.Response(body=orjson.dumps(answer), content_type="application/json")

    async def metrics(_: web.Request) -> web.Response:
        import prometheus_client as prometheus

        registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=registry)
        return web.Response(body=prometheus.generate_latest(registry))

    async def main() -> None:
        app = web.Application()
        app.add_routes([web.post("/v1/classify", classify), web.get("/metrics", metrics)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1_024).start()
        _print_url(f"http://127.0.0.1:{runner.addresses[0][1]}")
        await asyncio.Event().wait()

    # ended by SIGTERM
    with suppress(KeyboardInterrupt):
        run_to_end(main())


def _print_url(url: str) -> None:
    print(url, flush=True)


@contextmanager
def _running(*arguments: str) -> Iterator[str]:
    """Run one of the servers; yields its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench", "service", *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        if not url:
            sys.exit(f"bench service: the server exited with code {process.wait()}")
        yield url
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


# -- measurements ----------------------------------------------------------------------------------


def _metric(url: str, name: str) -> float:
    """Return a metric of a server."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    sys.exit(f"bench service: {url}/metrics has no {name}; this needs Linux")


def _work(url: str) -> list[float]:
    """Return the CPU seconds of each request since the last call; empty for the bare server."""
    try:
        with urllib.request.urlopen(f"{url}/work", timeout=30) as answer:
            seconds: list[float] = orjson.loads(answer.read())
    except urllib.error.HTTPError as exc:
        exc.close()
        return []
    return seconds


def _measure(url: str, kind: str, distinct: int, n: int, connections: int) -> dict[str, Any]:
    """Send n requests in ten parts, and measure memory after each part."""
    host = urlsplit(url).netloc
    address, port = host.split(":")
    requests = _requests(host, kind, distinct)
    parts: list[Load] = []
    work = Load()
    # warm-up: connections to the LLM and other one-time setup
    _in_loop(
        load(
            address,
            int(port),
            islice(_requests(host, f"warm {kind}", connections), 4 * connections),
            connections,
        )
    )
    _work(url)
    memory = [_metric(url, _MEMORY)]
    cpu = _metric(url, _CPU)
    for _ in range(10):
        part = islice(requests, n // 10)
        parts.append(_in_loop(load(address, int(port), part, connections)))
        # fetched per part, because it is stored in the measured process
        work.latencies += _work(url)
        memory.append(_metric(url, _MEMORY))
    cpu = _metric(url, _CPU) - cpu
    whole = _sum(parts)
    if whole.worst:
        sys.exit(f"bench service: {kind}: {whole.worst.decode(errors='replace')}")
    p50, p99 = whole.quantile(0.5), whole.quantile(0.99)
    # without the first part, which includes one-time growth
    settled = [bytes_ / 1e6 for bytes_ in memory[2:]]
    return {
        "requests": whole.answered,
        "errors": whole.errors,
        "429": whole.statuses[429],
        "requests/s": round(whole.answered / whole.seconds),
        "p50 ms": round(p50 * 1e3, 1),
        "p99 ms": round(p99 * 1e3, 1),
        "p99/p50": round(p99 / p50, 2),
        "by CPU": round(work.quantile(0.99) / work.quantile(0.5), 2) if work.latencies else None,
        "CPU us/request": round(cpu / whole.answered * 1e6),
        "MB": round(settled[0]),
        "MB more": round(settled[-1] - settled[0], 1),
        "MB by tenths": [round(bytes_ / 1e6, 1) for bytes_ in memory],
    }


def _sum(parts: list[Load]) -> Load:
    whole = Load()
    for part in parts:
        whole.seconds += part.seconds
        whole.latencies += part.latencies
        whole.statuses += part.statuses
        whole.broken += part.broken
        whole.worst = whole.worst or part.worst
    return whole


def _in_loop(work: Any) -> Load:
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        result: Load = runner.run(work)
    return result


def _all(arguments: argparse.Namespace) -> Report:
    report = Report(
        "service",
        f"{arguments.connections} connections in a closed loop, one text per request, policy "
        f"{arguments.policy!r}, embedder {arguments.embedder or 'hashed words'}; LoopbackLLM "
        "(latency 0), service and load in separate processes",
    )
    n, c = arguments.requests, arguments.connections
    service = ["--child", "service", "--policy", arguments.policy]
    service += ["--embedder", arguments.embedder] if arguments.embedder else []
    with _running("--child", "floor") as url:
        report.row(what="bare aiohttp.web", **_measure(url, "floor", n, min(n, 20_000), c))
    with (
        serve_in_process(_LABELS) as llm,
        _running(*service, "--llm", llm.base_url) as url,
    ):
        new = min(n, 10_000)
        report.row(what="new texts", **_measure(url, "new", new, new, c))
        seen = min(n, 2_000)
        _measure(url, "seen", seen, seen, c)
        report.row(what=f"{seen:,} repeated texts", **_measure(url, "seen", seen, n, c))
        asked = llm.stats()["calls"]
        # includes warm-up texts, which both loops over seen texts share
        distinct = new + seen + 2 * c
        if asked != distinct:
            sys.exit(f"bench service: {asked} calls for {distinct} distinct texts")
    with (
        serve_in_process(_LABELS) as llm,
        _running(*service, "--llm", llm.base_url, "--max-pending", str(c // 4)) as url,
    ):
        report.row(what=f"limited to {c // 4} pending", **_measure(url, "more", n, new, c))
    report.note("errors: lost connections, and responses other than 200 and 429")
    report.note("p50, p99: of responses with status 200; CPU: of the server process")
    report.note(
        "by CPU: p99/p50 of the CPU time of the service per request, which excludes the effect of "
        "other programs on the machine"
    )
    report.note("MB more: growth of resident memory from the first to the last tenth")
    report.note("LLM calls: one per distinct text")
    report.note(machine("aiohttp"))
    return report


def _faults(report: Report) -> list[str]:
    """Return the failed checks."""
    found = []
    for row in report.rows:
        name = row["what"]
        if row["errors"]:
            found.append(f"{name}: {row['errors']} errors")
        # high latency by wall clock only is caused by other programs
        ratio = min(row["p99/p50"], row["by CPU"] or row["p99/p50"])
        if ratio > _MAX_RATIO and "text" in name:
            found.append(f"{name}: p99 is {ratio} x the median")
        tenths = row["MB by tenths"][2:]
        first, last = statistics.median(tenths[:3]), statistics.median(tenths[-3:])
        if "repeated" in name and last - first > _MAX_GROWTH_MB + _MAX_GROWTH * first:
            found.append(f"{name}: memory grew from {first} to {last} MB")
    return found


def main(argv: list[str]) -> None:
    """Measure a bare server, then the service; exit code 1 on errors, stalls or memory growth."""
    parser = argparse.ArgumentParser(prog="python -m bench service", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--policy", default="weighted")
    parser.add_argument("--embedder", help="a name, as for TestNUC; default: hashed words")
    parser.add_argument("--json", help="write the result to this file")
    parser.add_argument("--child", choices=("service", "floor"), help=argparse.SUPPRESS)
    parser.add_argument("--llm", help=argparse.SUPPRESS)
    parser.add_argument("--max-pending", type=int, default=4_096, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.child == "service":
        _serve(arguments.llm, arguments.policy, arguments.max_pending, arguments.embedder)
        return
    if arguments.child == "floor":
        _floor()
        return
    gc.disable()
    report = _all(arguments)
    if arguments.json:
        report.write(arguments.json)
    faults = _faults(report)
    for row in report.rows:
        del row["MB by tenths"]
    report.show()
    if faults:
        sys.exit("bench service: " + "; ".join(faults))
