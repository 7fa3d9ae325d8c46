"""A first run beside its two halves: embedding alone, and asking alone."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
import warnings
from typing import TYPE_CHECKING

from bench._report import Report
from bench._server import serve_in_process
from bench.evaluation.recording import KnownVectors
from testnuc import Limits, SmallPoolWarning, TestNUC, UncertaintySampling, embedders
from testnuc.embedders.cache import EmbeddingCache
from testnuc.embedders.sentence_transformers import WHEEL_MODEL
from testnuc.index.memory_pool import Pool
from testnuc.protocols import PoolText
from testnuc.stores.memory import MemoryStore

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from testnuc.protocols import Embedder

_LABELS = [f"intent number {i}" for i in range(77)]


def _texts(n: int) -> list[str]:
    return [f"message {i}: what a customer writes of matter {i % 311}" for i in range(n)]


async def _embedded(embedder: Embedder, texts: list[str]) -> tuple[float, NDArray[np.float16]]:
    """Embed as a run does, and ask nothing."""
    cache = EmbeddingCache(embedder, MemoryStore(), Pool())
    start = time.perf_counter()
    vectors = await cache.vectors([PoolText.of(text) for text in texts])
    seconds = time.perf_counter() - start
    await cache.close()
    return seconds, vectors


async def _labeled(
    base_url: str, embedder: Embedder, texts: list[str], concurrency: int, ask: str
) -> tuple[float, int]:
    """Label with nothing stored; returns seconds and calls."""
    async with TestNUC(
        _LABELS,
        model="openai/test",
        base_url=base_url,
        api_key="key",
        embedder=embedder,
        limits=Limits(concurrency=concurrency),
        labeler=UncertaintySampling() if ask == "unsure" else "llm",
    ) as nuc:
        start = time.perf_counter()
        results = await nuc.classify_many(texts)
        return time.perf_counter() - start, results.usage.calls


async def _measured(given: argparse.Namespace, report: Report) -> None:
    texts = _texts(given.texts)
    embedder = embedders.resolve(given.embedder)
    await _embedded(embedder, texts[:64])
    for latency in given.latency:
        rows = []
        with serve_in_process(_LABELS, latency=latency) as server:
            # connections, and kernels that are compiled once
            await _labeled(server.base_url, embedder, texts[:64], given.concurrency, given.ask)
            for _ in range(given.rounds):
                embed, vectors = await _embedded(embedder, texts)
                known = KnownVectors(texts, vectors, embedder)
                seconds = []
                for each in (known, embedder):
                    spent, calls = await _labeled(
                        server.base_url, each, texts, given.concurrency, given.ask
                    )
                    seconds.append(spent)
                rows.append((embed, *seconds, seconds[1] / max(embed, seconds[0]), calls))
        embed, alone, both, ratio, calls = map(statistics.median, zip(*rows, strict=True))
        report.row(
            **{
                "latency ms": round(1_000 * latency),
                "calls": round(calls),
                "embedding, s": embed,
                "asking, s": alone,
                "both, s": both,
                "both / the longer": ratio,
            }
        )


def main(argv: list[str]) -> None:
    """Measure how far embedding and asking overlap."""
    parser = argparse.ArgumentParser(prog="python -m bench overlap", description=__doc__)
    parser.add_argument("--texts", type=int, default=1_000)
    parser.add_argument("--embedder", default=WHEEL_MODEL)
    parser.add_argument("--latency", type=float, nargs="+", default=[0.05, 0.2], help="seconds")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ask", choices=("all", "unsure"), default="all")
    parser.add_argument("--json", help="write the result to this file")
    given = parser.parse_args(argv)
    warnings.simplefilter("ignore", SmallPoolWarning)
    report = Report(
        "overlap",
        f"{given.texts:,} texts, {given.embedder}, ask={given.ask!r}, {given.concurrency} calls at "
        f"a time, medians of {given.rounds} rounds; the LLM is another process",
    )
    asyncio.run(_measured(given, report))
    report.note("asking: the same run with vectors that are known")
    report.show()
    if given.json:
        report.write(given.json)
