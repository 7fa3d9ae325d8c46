"""CPU cost of tracing per call: OpenTelemetry off, without an SDK, and on."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench._report import Report
from bench._timing import machine
from testnuc.protocols import Answer, Reply, Request, Task, TokenUsage
from testnuc.transport import Transport
from testnuc.transport.calls import Call, estimate_tokens
from testnuc.transport.telemetry import Telemetry

if TYPE_CHECKING:
    from testnuc.protocols import Provider

#: Calls per run.
_CALLS = 2_000
_REQUEST = Request(Task("Label the text.", ("a", "b")), "1. text", ("text",))


class _Instant:
    name, model, identity = "local", "instant", ""
    _reply = Reply((Answer("a", 0.9),), TokenUsage(100, 10))

    async def answer(self, request: Request) -> Reply:
        del request
        return self._reply


class _Bare(Transport):
    """The transport without any tracing code."""

    async def answer(self, provider: Provider, request: Request) -> Reply:
        return await self._run(Call(request, estimate_tokens(provider, request), None, provider))


def _run(factory: Callable[[], Transport]) -> float:
    """Return the CPU time of a call in microseconds, without HTTP."""

    async def main() -> float:
        transport, provider = factory(), _Instant()
        await transport.answer(provider, _REQUEST)
        started = time.process_time()
        for _ in range(_CALLS):
            await transport.answer(provider, _REQUEST)
        spent = time.process_time() - started
        await transport.aclose()
        return 1e6 * spent / _CALLS

    return asyncio.run(main())


def _sdk() -> tuple[Any, Any]:
    try:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
    except ImportError:
        sys.exit("bench telemetry needs opentelemetry-sdk: pip install opentelemetry-sdk")
    # spans are not exported, so the cost of an exporter is not included
    return TracerProvider(), MeterProvider([InMemoryMetricReader()])


def main(arguments: list[str]) -> None:
    """Run all configurations alternately, so that noise affects all of them equally."""
    parser = argparse.ArgumentParser(prog="python -m bench telemetry", description=__doc__)
    parser.add_argument("--repeats", type=int, default=15, help="runs of each (default: 15)")
    parser.add_argument("--json", help="also write the report to this file")
    options = parser.parse_args(arguments)
    contenders: dict[str, Callable[[], Transport]] = {"bare": _Bare, "off": Transport}

    def once() -> dict[str, float]:
        return {name: _run(factory) for name, factory in contenders.items()}

    once()
    off = [once() for _ in range(options.repeats)]
    from opentelemetry import metrics, trace

    def without_sdk() -> Transport:
        return Transport(telemetry=Telemetry.of("local", "instant", None))

    contenders["API imported, no SDK"] = without_sdk
    rounds = [once() for _ in range(options.repeats)]
    tracing, metering = _sdk()
    trace.set_tracer_provider(tracing)
    metrics.set_meter_provider(metering)
    on = [_run(without_sdk) for _ in range(options.repeats)]

    report = Report(
        "telemetry",
        f"CPU of {_CALLS:,} calls without HTTP, interleaved, on {machine('opentelemetry-sdk')}",
    )
    every = off + rounds
    for name, values, ratios in (
        ("code without tracing", [r["bare"] for r in every], [1.0]),
        ("off", [r["off"] for r in every], [r["off"] / r["bare"] for r in every]),
        (
            "API imported, no SDK",
            [r["API imported, no SDK"] for r in rounds],
            [r["API imported, no SDK"] / r["bare"] for r in rounds],
        ),
        (
            "on: SDK, no exporter",
            on,
            [v / r["bare"] for v, r in zip(on, rounds, strict=True)],
        ),
    ):
        report.row(
            OpenTelemetry=name,
            **{
                "us per call": round(statistics.median(values), 2),
                "times the first": round(statistics.median(ratios), 3),
            },
        )
    report.note(
        "Medians; each run is compared with the adjacent run of the first line. A call over HTTP "
        "costs several times as much (bench throughput)."
    )
    report.show()
    if options.json:
        report.write(options.json)
