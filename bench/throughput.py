"""CPU per call, calls per second and peak memory, compared with other clients."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from bench._report import Report
from bench._server import serve_in_process
from testnuc import Limits

_LABELS = [f"intent number {i}" for i in range(77)]
_CLIENTS = ("aiohttp", "testnuc", "classify_many", "testnuc-sqlite", "openai", "litellm")
#: Divisor of the number of calls for slow clients.
_SLOW = {"openai": 8, "litellm": 12}
#: Timeout of a client in seconds; it is reported and not run again.
_TIMEOUT = 90


def _texts(n: int) -> list[str]:
    return [f"message {i}: " + "what a customer writes, " * 6 for i in range(n)]


# -- one client per process ----------------------------------------------------------------------


async def _aiohttp(base_url: str, texts: list[str], concurrency: int) -> int:
    """Bare aiohttp and orjson: build, send and parse, the minimum of every client."""
    import aiohttp

    from testnuc.labels import LabelSet
    from testnuc.prompts import writing

    system = writing.system_prompt(LabelSet(_LABELS))
    labeled = 0
    pending = iter(texts)
    connector = aiohttp.TCPConnector(limit=concurrency)
    async with aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Authorization": "Bearer key", "Content-Type": "application/json"},
    ) as session:

        async def work() -> None:
            nonlocal labeled
            for text in pending:
                body = orjson.dumps(_body(system, writing.user_prompt((text,))))
                async with session.post(f"{base_url}/chat/completions", data=body) as response:
                    answer = orjson.loads(await response.read())
                content = orjson.loads(answer["choices"][0]["message"]["content"])
                labeled += content["label"] in _LABELS

        await asyncio.gather(*(work() for _ in range(concurrency)))
    return labeled


def _body(system: str, user: str) -> dict[str, Any]:
    answer = {
        "type": "object",
        "properties": {
            "label": {"type": "string", "enum": _LABELS},
            "confidence": {"type": "number"},
        },
        "required": ["label", "confidence"],
        "additionalProperties": False,
    }
    return {
        "model": "test",
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
        "temperature": 0.7,
        "top_p": 1.0,
        "max_tokens": 100,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "strict": True, "schema": answer},
        },
    }


async def _testnuc(
    base_url: str, texts: list[str], concurrency: int, store: Any = None, *, many: bool = False
) -> int:
    """Run the full path of testnuc: limits, retries, single-flight, store, encode, parse.

    `many`: from `classify_many` to results, without a vote or a pool; without it, the calls alone.
    """
    from testnuc import TestNUC
    from testnuc.testing import HashEmbedder

    async with TestNUC(
        _LABELS,
        model="openai/test",
        base_url=base_url,
        api_key="key",
        embedder=HashEmbedder(),
        store=store,
        limits=Limits(concurrency=concurrency),
        k=0 if many else None,
        join_pool=not many,
    ) as nuc:
        if many:
            return sum(label in _LABELS for label in (await nuc.classify_many(texts)).labels)
        # calls only, without embedding and retrieval
        from testnuc._base.checks import hash_text

        labeled = 0
        scheduler, predictor = nuc._parts.scheduler, nuc._parts.predictor
        asks = (predictor.ask(text, hash_text(text), i) for i, text in enumerate(texts))
        async with aclosing(scheduler.run(asks)) as outcomes:
            async for _, outcome in outcomes:
                labeled += getattr(outcome, "label", None) in _LABELS
    return labeled


async def _sdk(base_url: str, texts: list[str], concurrency: int, kind: str) -> int:
    from testnuc.labels import LabelSet
    from testnuc.prompts import writing

    system = writing.system_prompt(LabelSet(_LABELS))
    labeled = 0
    pending = iter(texts)
    if kind == "openai":
        from openai import AsyncOpenAI

        client = AsyncOpenAI(base_url=base_url, api_key="key", max_retries=0)
        create: Any = client.chat.completions.create
        extra: dict[str, Any] = {}
    else:
        import litellm

        litellm.suppress_debug_info = True
        create = litellm.acompletion
        extra = {"api_base": base_url, "api_key": "key", "model": "openai/test"}

    async def work() -> None:
        nonlocal labeled
        for text in pending:
            answer = await create(**{**_body(system, writing.user_prompt((text,))), **extra})
            labeled += orjson.loads(answer.choices[0].message.content)["label"] in _LABELS

    await asyncio.gather(*(work() for _ in range(concurrency)))
    return labeled


def _child(client: str, base_url: str, n: int, concurrency: int, loop: str) -> None:
    """Measure one client and print the result as JSON."""
    import tempfile

    texts = _texts(n)

    async def main() -> tuple[int, float, float]:
        folder = tempfile.TemporaryDirectory()

        async def run(base: str, given: list[str], c: int) -> int:
            if client == "aiohttp":
                return await _aiohttp(base, given, c)
            if client == "testnuc":
                return await _testnuc(base, given, c)
            if client == "classify_many":
                return await _testnuc(base, given, c, many=True)
            if client == "testnuc-sqlite":
                return await _testnuc(base, given, c, Path(folder.name) / "bench.db")
            return await _sdk(base, given, c, client)

        # warm up connections, imports and caches
        warm = min(n, 2 * concurrency)
        await run(base_url, [f"warm {t}" for t in texts[:warm]], concurrency)
        cpu, wall = time.process_time(), time.perf_counter()
        labeled = await run(base_url, texts, concurrency)
        return labeled, time.process_time() - cpu, time.perf_counter() - wall

    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if loop == "uvloop":
        from uvloop import new_event_loop

        factory = new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        labeled, cpu, wall = runner.run(main())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(orjson.dumps({"labeled": labeled, "cpu": cpu, "wall": wall, "mb": peak}).decode())


# -- all clients ---------------------------------------------------------------------------------


def _measure(
    client: str, base_url: str, n: int, concurrency: int, loop: str
) -> dict[str, float] | None:
    """Run one client; None if it times out."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "bench", "throughput", "--child", client, "--url", base_url,
             "--calls", str(n), "--concurrency", str(concurrency), "--loop", loop],
            capture_output=True, check=False, timeout=_TIMEOUT,
            # prevents litellm from downloading prices
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        sys.exit(f"bench throughput: {client} failed: {done.stderr.decode()[-2000:]}")
    result: dict[str, float] = orjson.loads(done.stdout.splitlines()[-1])
    if result["labeled"] != n:
        sys.exit(f"bench throughput: {client} got {result['labeled']} labels for {n} texts")
    return result


def _usable(client: str) -> bool:
    if client == "testnuc-sqlite":
        return find_spec("testnuc.stores.sqlite") is not None
    return client in ("aiohttp", "testnuc", "classify_many") or find_spec(client) is not None


def _compare(
    clients: list[str],
    latency: float,
    concurrency: int,
    arguments: argparse.Namespace,
    report: Report,
) -> None:
    """Measure the clients alternately, so that noise affects all of them equally."""
    runs: dict[str, list[dict[str, float]]] = {client: [] for client in clients}
    with serve_in_process(_LABELS, latency=latency) as server:
        for _ in range(arguments.rounds):
            for client in list(runs):
                n = max(arguments.calls // _SLOW.get(client, 1), 2 * concurrency)
                result = _measure(client, server.base_url, n, concurrency, arguments.loop)
                if result is None:
                    del runs[client]
                    report.note(
                        f"{client}: {n} calls, concurrency {concurrency}, latency {latency} s: "
                        f"timeout after {_TIMEOUT} s"
                    )
                    continue
                runs[client].append({**result, "calls": n})
    floor = None
    for client, measured in runs.items():
        cpu = statistics.median(r["cpu"] / r["calls"] for r in measured)
        rate = statistics.median(r["calls"] / r["wall"] for r in measured)
        floor = cpu if client == "aiohttp" else floor
        report.row(
            **{
                "latency ms": round(latency * 1_000),
                "concurrency": concurrency,
                "client": client,
                "CPU us/call": round(cpu * 1e6),
                "x aiohttp": None if floor is None else round(cpu / floor, 2),
                "calls/s": round(rate),
                "of possible": round(rate * latency / concurrency, 3) if latency else None,
                "peak MB": round(statistics.median(r["mb"] for r in measured)),
            }
        )


def main(argv: list[str]) -> None:
    """Measure each client in its own process, against a server in another process."""
    parser = argparse.ArgumentParser(prog="python -m bench throughput", description=__doc__)
    parser.add_argument("--calls", type=int, default=6_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", default="64,256")
    parser.add_argument("--latency", default="0,0.02,0.2", help="seconds")
    parser.add_argument("--clients", default=",".join(_CLIENTS))
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    parser.add_argument("--json", help="write the result to this file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.child:
        _child(
            arguments.child, arguments.url, arguments.calls, int(arguments.concurrency),
            arguments.loop,
        )  # fmt: skip
        return
    clients = [c for c in arguments.clients.split(",") if _usable(c)]
    report = Report(
        "throughput",
        f"medians of {arguments.rounds} rounds, {arguments.loop}, {len(_LABELS)} labels; "
        "the server is another process",
    )
    for c in arguments.clients.split(","):
        if c not in clients:
            report.note(f"{c} is not installed: pip install 'testnuc[bench]'")
    for latency in map(float, arguments.latency.split(",")):
        for concurrency in map(int, arguments.concurrency.split(",")):
            _compare(clients, latency, concurrency, arguments, report)
    report.show()
    if arguments.json:
        report.write(arguments.json)
