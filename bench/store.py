"""The SQLite store: reads and writes, pool insertion and opening, disk and memory."""

from __future__ import annotations

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from bench._memory import process_memory
from bench._report import Report
from testnuc._base.checks import hash_text
from testnuc.protocols import PoolText, StoredPrediction
from testnuc.stores.sqlite import SqliteStore
from testnuc.types import Prediction

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_SIZES = (10_000, 100_000)
_FULL = 1_000_000
_EMBEDDER = "bench"
_SCOPE = hash_text("scope")
#: Keys per lookup and concurrent writers, as in a run of the client.
_LOOKED_UP, _WRITERS = 512, 64
_ADDED = 2_048
_QUERIES = 1_000
_K = 10
_MEBI = 1 << 20


def _text(i: int) -> str:
    return f"message {i}: what a customer writes when a parcel is late"


def _vectors(n: int, dim: int) -> Iterator[NDArray[np.float16]]:
    """Yield unit vectors around n / 100 centers, in chunks."""
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((max(n // 100, 1), dim), dtype=np.float32)
    for start in range(0, n, _ADDED):
        count = min(_ADDED, n - start)
        rows = centers[rng.integers(0, len(centers), count)]
        rows = rows + 0.7 * rng.standard_normal((count, dim), dtype=np.float32)
        yield (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def _queries(n: int, dim: int) -> NDArray[np.float16]:
    return next(_vectors(n, dim))[:_QUERIES]


def _memory() -> dict[str, float]:
    """Return anonymous and mapped memory of this process in MiB."""
    of = process_memory()
    if not of:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"own MiB": peak / 1024, "mapped MiB": float("nan")}
    return {"own MiB": of["RssAnon"], "mapped MiB": of["RssFile"] + of.get("RssShmem", 0)}


class _Pauses:
    """Measures the longest time that the event loop was blocked."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, time.perf_counter() - before - 0.001)


async def _put(store: SqliteStore, n: int) -> float:
    rows = iter(range(n))

    async def write() -> None:
        for i in rows:
            text = hash_text(_text(i))
            row = StoredPrediction(text, _SCOPE, text, 0, Prediction("late parcel", 0.9))
            await store.put_predictions([row])

    started = time.perf_counter()
    await asyncio.gather(*(write() for _ in range(_WRITERS)))
    return n / (time.perf_counter() - started)


async def _get(store: SqliteStore, hashes: Sequence[bytes]) -> float:
    started = time.perf_counter()
    for start in range(0, len(hashes), _LOOKED_UP):
        found = await store.get_predictions(hashes[start : start + _LOOKED_UP])
        if None in found:
            sys.exit("bench store: a stored prediction was not found")
    return len(hashes) / (time.perf_counter() - started)


async def _get_vectors(store: SqliteStore, hashes: Sequence[bytes]) -> float:
    started = time.perf_counter()
    for start in range(0, len(hashes), _ADDED):
        found = await store.get_vectors(_EMBEDDER, hashes[start : start + _ADDED])
        if any(vector is None for vector in found):
            sys.exit("bench store: a stored vector was not found")
    return len(hashes) / (time.perf_counter() - started)


async def _fill(path: Path, n: int, dim: int) -> dict[str, Any]:
    store = SqliteStore(path)
    await store.open()
    row: dict[str, Any] = {"puts/s": await _put(store, n)}
    some = np.random.default_rng(1).choice(n, min(n, 100_000), replace=False).tolist()
    hashes = [hash_text(_text(i)) for i in some]
    row["gets/s"] = await _get(store, hashes)
    pool = store.pool(_EMBEDDER)
    await pool.open()
    pauses = _Pauses()
    watcher = asyncio.create_task(pauses.watch())
    start, spent = 0, 0.0
    for vectors in _vectors(n, dim):
        texts = [
            PoolText(t, hash_text(t))
            for t in (_text(i) for i in range(start, start + len(vectors)))
        ]
        before = time.perf_counter()
        await pool.add(texts, vectors)
        spent += time.perf_counter() - before
        start += len(vectors)
    row["adds/s"] = n / spent
    row["vector gets/s"] = await _get_vectors(store, hashes)
    before = time.perf_counter()
    await pool.close()
    await store.close()
    row["close s"] = time.perf_counter() - before
    watcher.cancel()
    row["longest pause ms"] = pauses.longest * 1_000
    return row


async def _open(path: Path, n: int, dim: int) -> dict[str, Any]:
    queries = _queries(n, dim)
    await asyncio.to_thread(_warm)
    before = _memory()["own MiB"]
    started = time.perf_counter()
    store = SqliteStore(path)
    await store.open()
    pool = store.pool(_EMBEDDER)
    await pool.open()
    row: dict[str, Any] = {"open s": time.perf_counter() - started}
    started = time.perf_counter()
    found = await pool.search(queries[:1], _K)
    row["first search ms"] = (time.perf_counter() - started) * 1_000
    started = time.perf_counter()
    found = await pool.search(queries, _K)
    row["search us"] = (time.perf_counter() - started) / len(queries) * 1e6
    # the queries are texts of the pool, and must find themselves
    row["found"] = float((found.ids[:, 0] == np.arange(len(queries))).mean())
    memory = _memory()
    row["own MiB"] = memory["own MiB"] - before
    row["mapped MiB"] = memory["mapped MiB"]
    await pool.close()
    await store.close()
    return row


def _warm() -> None:
    """Compile and import everything outside the store."""
    from testnuc.index.nearest import NearestVectors

    index = NearestVectors(8, exact_below=4)
    index.add(np.eye(8, dtype=np.float16), np.arange(8, dtype=np.uint64))
    index.search(np.eye(8, dtype=np.float16), 1)


def _disk(path: Path) -> dict[str, float]:
    folder = Path(f"{path}.index")
    files = [p for p in folder.rglob("*") if p.is_file()]
    return {
        "file MiB": path.stat().st_size / _MEBI,
        "index MiB": sum(p.stat().st_size for p in files) / _MEBI,
    }


def main(arguments: list[str]) -> None:
    """Measure the store at each size; opening is measured in a new process."""
    parser = argparse.ArgumentParser(prog="bench store", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(_SIZES))
    parser.add_argument("--full", action="store_true", help=f"also {_FULL:,} texts")
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--folder", help="folder for the stores; default: a temporary folder")
    parser.add_argument("--json", help="also write the report to this file")
    parser.add_argument("--reopen", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.reopen is not None:
        path, n = given.reopen
        sys.stdout.buffer.write(orjson.dumps(asyncio.run(_open(Path(path), int(n), given.dim))))
        return
    report = Report("store", f"SqliteStore, {given.dim} dimensions, float16")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for n in [*given.sizes, *([_FULL] if given.full else [])]:
            path = Path(folder) / f"{n}.db"
            row = {"texts": n} | asyncio.run(_fill(path, n, given.dim))
            command = [sys.executable, "-m", "bench", "store", "--dim", str(given.dim)]
            done = subprocess.run(
                [*command, "--reopen", str(path), str(n)], check=True, stdout=subprocess.PIPE
            )
            report.row(**row, **orjson.loads(done.stdout), **_disk(path))
    report.note(
        f"puts: {_WRITERS} callers, one prediction each; gets: {_LOOKED_UP} keys per call; adds: "
        f"texts and vectors into pool and graph, {_ADDED:,} per call"
    )
    report.note(
        f"open: in a new process, until the pool can be searched; search: {_QUERIES:,} queries of "
        "the pool in one batch; found: share of queries whose first result is the query itself"
    )
    report.note("own: anonymous memory after opening and searching; mapped: shared and reclaimable")
    report.show()
    if given.json:
        report.write(given.json)
