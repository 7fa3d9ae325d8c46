"""Capacity planning for 1e5, 1e7 and 1e9 texts: calls, cost, hours, disk, machines."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import selectors
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from bench._clusters import parts
from bench._report import Report
from testnuc._base.checks import hash_text
from testnuc.limits.admission import Admission
from testnuc.limits.budget import PICO, Price
from testnuc.limits.policies import Limits
from testnuc.protocols import PoolText, StoredPrediction, TokenUsage
from testnuc.stores.postgres import PostgresStore
from testnuc.types import Prediction

if TYPE_CHECKING:
    from collections.abc import Iterator

_TEXTS = (100_000, 10_000_000, 1_000_000_000)
_HOUR, _DAY = 3_600.0, 24.0
_GIBI = 1 << 30
#: Index memory per machine: 16 GiB.
_MACHINE_BYTES = 16 * _GIBI


@dataclass(frozen=True, slots=True)
class Units:
    """Resources per text, measured by other benchmarks."""

    #: CPU seconds per call, with transport and limits: `bench throughput`.
    call_cpu: float
    #: CPU seconds for everything except embedding and call: `bench scale`.
    vote_cpu: float
    #: Bytes of the SQLite file and of the index files: `bench store`.
    database_bytes: float
    index_bytes: float
    #: Bytes of memory for the index: `bench retrieval`.
    memory_bytes: float
    #: Bytes in PostgreSQL, including the graph; None if not measured.
    postgres_bytes: float | None = None


#: Options of the short benchmarks that run if no earlier result is given.
_QUICK = {
    "store": ["--sizes"],
    "retrieval": ["--only", "testnuc", "--sizes"],
    "scale": ["--batch", "1000", "--sizes"],
    "throughput": [
        "--clients",
        "testnuc",
        "--latency",
        "0",
        "--concurrency",
        "64",
        "--rounds",
        "1",
        "--calls",
    ],
}


def _rows(path: str) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = orjson.loads(Path(path).read_bytes())["rows"]
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as exc:
        sys.exit(f"bench capacity: {path} is not the JSON of a benchmark: {exc}")
    return rows


def _quick(kind: str, size: int) -> list[dict[str, Any]]:
    """Run a benchmark at a small size."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/{kind}.json"
        command = [sys.executable, "-m", "bench", kind, *_QUICK[kind], str(size), "--json", path]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return _rows(path)


def _read(kind: str, rows: list[dict[str, Any]]) -> tuple[dict[str, float], str]:
    """Return the unit costs from a benchmark's rows, and the size they were measured at."""
    if kind == "throughput":
        found = [row for row in rows if row["client"] == "testnuc"]
        return {"call_cpu": min(row["CPU us/call"] for row in found) * 1e-6}, "loopback"
    if kind == "store":
        row = max(rows, key=lambda r: r["texts"])
        per_text = (1 << 20) / row["texts"]
        return {
            "database_bytes": row["file MiB"] * per_text,
            "index_bytes": row["index MiB"] * per_text,
        }, f"{row['texts']:,} texts"
    if kind == "scale":
        size = max(row["pool"] for row in rows)
        spent = [r["all us"] for r in rows if r["pool"] == size and r["what"] != "known texts"]
        return {"vote_cpu": max(spent) * 1e-6}, f"a pool of {size:,}"
    row = max((r for r in rows if r["index"] == "testnuc"), key=lambda r: r["texts"])
    return {"memory_bytes": row["memory MiB"] * (1 << 20) / row["texts"]}, f"{row['texts']:,} texts"


async def _in_postgres(url: str, size: int, dim: int) -> float:
    """Return the bytes per text in PostgreSQL, measured in a temporary schema."""
    schema = f"bench_capacity_{os.getpid()}"
    store = PostgresStore(f"{url}{'&' if '?' in url else '?'}schema={schema}", exact_below=1)
    pool = store.pool("bench")
    start = 0
    for rows in parts(size, dim):
        texts = [f"message {i}: what a customer writes" for i in range(start, start + len(rows))]
        hashes = [hash_text(text) for text in texts]
        answer = Prediction("late parcel", 0.9)
        await store.put_predictions([StoredPrediction(h, hashes[0], h, 0, answer) for h in hashes])
        entries = [PoolText(t, h) for t, h in zip(texts, hashes, strict=True)]
        await pool.add(entries, rows)
        start += len(rows)
    # the first search builds the graph
    await pool.search(rows[:1], 1)

    async def measure(connection: Any) -> int:
        found: int = await connection.fetchval(
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE nspname = $1 AND relkind = 'r'",
            schema,
        )
        await connection.execute(f'DROP SCHEMA "{schema}" CASCADE')
        return found

    found = await store.database.run(measure)
    await store.close()
    return float(found) / size


# -- simulation in virtual time --------------------------------------------------------------------


class _Selector(selectors.SelectSelector):
    """Advances the clock of the loop instead of sleeping."""

    loop: _VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout is not None:
            self.loop.now += timeout
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock advances only while all tasks wait."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.now = 1_000.0
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def simulate(
    calls: int, limit: Limits, *, concurrency: int, latency: float, tokens: tuple[int, int]
) -> float:
    """Return the runtime of `calls` calls under the real limiter, in virtual seconds."""

    async def main(loop: _VirtualLoop) -> float:
        admission = Admission(replace(limit, concurrency=concurrency), clock=loop.time)
        left = iter(range(calls))

        async def work() -> None:
            for _ in left:
                permit = await admission.acquire(tokens[0], tokens[1])
                await asyncio.sleep(latency)
                admission.answered(permit, *tokens)

        await asyncio.gather(*(work() for _ in range(min(concurrency, calls))))
        return loop.now - 1_000.0

    loop = _VirtualLoop()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.close()


def hours(
    calls: int,
    limit: Limits,
    *,
    concurrency: int,
    latency: float,
    tokens: tuple[int, int],
    simulated: int,
) -> float:
    """Return the hours of a run: simulates `simulated` calls and extrapolates from the last half.

    The limiter reaches its steady state after the first minutes.
    """
    options: dict[str, Any] = {"concurrency": concurrency, "latency": latency, "tokens": tokens}
    count = min(calls, simulated)
    whole = simulate(count, limit, **options)
    if count == calls:
        return whole / _HOUR
    half = simulate(count // 2, limit, **options)
    pace = (whole - half) / (count - count // 2)
    return (whole + (calls - count) * pace) / _HOUR


def _lines(given: argparse.Namespace, units: Units) -> Iterator[dict[str, Any]]:
    provider, _, model = given.model.partition("/")
    price = Price.of(provider, model, given.base_url)
    limit = Limits(given.requests_per_minute, given.tokens_per_minute)
    tokens = (given.input_tokens, given.output_tokens)
    for texts in given.texts:
        calls = math.ceil(texts * (1 - given.duplicates))
        usd = None
        if price is not None:
            each = price.pico(TokenUsage(*tokens, given.cached_tokens))
            usd = each * calls / PICO
        cpu = calls * (units.call_cpu + units.vote_cpu)
        took = hours(
            calls,
            limit,
            concurrency=given.max_concurrency,
            latency=given.latency,
            tokens=tokens,
            simulated=given.simulated,
        )
        memory = calls * units.memory_bytes
        database = None
        if units.postgres_bytes is not None:
            database = calls * units.postgres_bytes / _GIBI
        # one core per process
        for_work = math.ceil(cpu / _HOUR / max(took, 1e-9))
        yield {
            "texts": texts,
            "calls": calls,
            "M tokens": calls * sum(tokens) / 1e6,
            "usd": usd,
            "hours": took,
            "days": took / _DAY,
            "CPU hours": cpu / _HOUR,
            "SQLite GiB": calls * units.database_bytes / _GIBI,
            "index files GiB": calls * units.index_bytes / _GIBI,
            "index memory GiB": memory / _GIBI,
            "PostgreSQL GiB": database,
            "machines": max(for_work, math.ceil(memory / _MACHINE_BYTES)),
        }


def main(arguments: list[str]) -> None:
    """Compute the resources for each size from unit costs and a simulation."""
    parser = argparse.ArgumentParser(prog="bench capacity", description=__doc__)
    parser.add_argument("--texts", type=int, nargs="+", default=list(_TEXTS))
    parser.add_argument("--duplicates", type=float, default=0.0, help="share of duplicate texts")
    parser.add_argument("--model", default="openai/gpt-4o-mini", help="model for the prices")
    parser.add_argument("--base-url", default="https://api.openai.com/v1")
    parser.add_argument("--input-tokens", type=int, default=600, help="input tokens per call")
    parser.add_argument("--cached-tokens", type=int, default=0, help="cached input tokens per call")
    parser.add_argument("--output-tokens", type=int, default=20)
    parser.add_argument("--requests-per-minute", type=int, default=30_000)
    parser.add_argument("--tokens-per-minute", type=int, default=150_000_000)
    parser.add_argument("--max-concurrency", type=int, default=512)
    parser.add_argument("--latency", type=float, default=0.8, help="seconds per call")
    parser.add_argument("--simulated", type=int, default=200_000, help="most calls to simulate")
    for kind in _QUICK:
        parser.add_argument(
            f"--{kind}", metavar="JSON", help=f"output of bench {kind} --json; default: run it"
        )
    parser.add_argument("--quick", type=int, default=10_000, help="size of benchmarks that are run")
    parser.add_argument("--postgres", metavar="URL", help="also measure this PostgreSQL server")
    parser.add_argument("--json", help="also write the report to this file")
    given = parser.parse_args(arguments)
    found: dict[str, float] = {}
    sources = []
    for kind in _QUICK:
        path = getattr(given, kind)
        costs, size = _read(kind, _rows(path) if path else _quick(kind, given.quick))
        found |= costs
        sources += [f"{name} {cost:.4g} (bench {kind}, {size})" for name, cost in costs.items()]
    if given.postgres:
        found["postgres_bytes"] = asyncio.run(_in_postgres(given.postgres, given.quick, 384))
        sources.append(f"postgres_bytes {found['postgres_bytes']:.4g} ({given.quick:,} texts)")
    units = Units(**found)
    report = Report(
        "capacity",
        f"{given.model}, {given.input_tokens} + {given.output_tokens} tokens per call, "
        f"{given.requests_per_minute:,} requests and {given.tokens_per_minute:,} tokens a minute, "
        f"{given.max_concurrency} concurrent calls of {given.latency:g} s",
    )
    for line in _lines(given, units):
        report.row(**line)
    report.note(f"unit costs, bytes and seconds per text: {'; '.join(sources)}")
    report.note(
        f"hours: the real limiter on a virtual clock, up to {given.simulated:,} calls, "
        "extrapolated from their second half. usd: without the provider's batch discount"
    )
    report.note(
        "machines: the larger of the processes (one core each) that reach the rate limit and the "
        "processes that hold the index at 16 GiB each; with PostgreSQL only the former applies"
    )
    report.show()
    if given.json:
        report.write(given.json)
