"""Peak memory of a large `classify_many`, beyond texts, embeddings and results."""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench._memory import process_memory
from bench._report import Report
from bench._server import serve_in_process
from testnuc import Results, TestNUC

_LABELS = [f"intent number {i}" for i in range(77)]
#: Texts of a warm-up run, which excludes one-time memory for imports and compiled code.
_WARM = 3_000
_MB = 1 << 20


class _PrecomputedEmbedder:
    """An embedder that returns precomputed vectors, which are allocated before the run."""

    name = "bench/given"

    def __init__(self, texts: Sequence[str], dim: int) -> None:
        rng = np.random.default_rng(0)
        centers = rng.normal(size=(500, dim)).astype(np.float32)
        self.dim = dim
        self.vectors = centers[rng.integers(0, 500, len(texts))]
        self.vectors += 0.5 * rng.normal(size=self.vectors.shape).astype(np.float32)
        self._at = {text: i for i, text in enumerate(texts)}

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self.vectors[[self._at[text] for text in texts]]


def _size(results: Results) -> float:
    """Return the size of the results in MB: neighbors, votes and predictions."""
    rows: Any = results._rows
    run, labels = rows._run, rows._labels
    arrays = [run.batch.neighbors, run.batch.similarities, run.answers.label]
    arrays += [run.answers.confidence, labels.starts, labels.label, labels.share, labels.known]
    size: float = sum(array.nbytes for array in arrays)
    size += sum(sys.getsizeof(p) + sys.getsizeof(p.confidence) for p in run.answers.predictions)
    return size / _MB


async def _run(n: int, dim: int, report: Report) -> None:
    texts = [f"message {i}: what a customer writes {i % 977} about {i % 313}" for i in range(n)]
    embedder = _PrecomputedEmbedder(texts, dim)
    with serve_in_process(_LABELS) as server:
        options: dict[str, Any] = {
            "model": "openai/test",
            "base_url": server.base_url,
            "api_key": "key",
            "embedder": embedder,
        }
        async with TestNUC(_LABELS, **options) as nuc:
            await nuc.classify_many(texts[:_WARM])
        async with TestNUC(_LABELS, **options) as nuc:
            gc.collect()
            before = process_memory()["VmRSS"]
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak
            results = await nuc.classify_many(texts)
            peak = process_memory()["VmHWM"] - before
            assert results.usage.calls == n, "one call per text"
            assert None not in results.labels
    embeddings, held = n * dim * 4 / _MB, _size(results)
    report.row(
        **{
            "texts": n,
            "dim": dim,
            "peak MB": round(peak),
            "embeddings MB": round(embeddings),
            "results MB": round(held),
            "above MB": round(peak - embeddings - held),
            "seconds": round(results.seconds),
        }
    )


def main(argv: list[str]) -> None:
    """Label many texts against a server in another process and measure the peak memory."""
    parser = argparse.ArgumentParser(prog="python -m bench memory", description=__doc__)
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--json", help="write the result to this file")
    arguments = parser.parse_args(argv)
    if not Path("/proc/self/clear_refs").exists():
        sys.exit("bench memory: needs Linux (/proc/self/clear_refs)")
    report = Report("memory", "classify_many in one process, the server in another; memory store")
    asyncio.run(_run(arguments.texts, arguments.dim, report))
    report.note("Texts are allocated before the run; embeddings are counted once, as float32.")
    report.show()
    if arguments.json:
        report.write(arguments.json)
