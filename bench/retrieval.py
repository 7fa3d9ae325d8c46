"""The index compared with faiss, hnswlib, numpy and usearch: build, recall, speed, memory."""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import orjson

from bench._clusters import HOW, parts, vectors
from bench._memory import process_memory
from bench._report import Report
from bench._timing import interleaved, machine, median_ratio

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_SIZES = (10_000, 100_000)
_FULL = 1_000_000
_BATCH = 1_000
_SINGLES = 200
_KS = (10, 50)
#: Connectivity and expansion of all graphs.
_LINKS, _BUILD, _SEARCH = 16, 128, 64
_MEBI = 1 << 20


class _Peer(Protocol):
    def __init__(self, dim: int) -> None: ...

    def add(self, rows: NDArray[np.float16]) -> None: ...

    def search(self, queries: NDArray[np.float16], k: int) -> NDArray[np.int64]: ...


class _Testnuc:
    def __init__(self, dim: int) -> None:
        from testnuc.index.nearest import NearestVectors

        self.index = NearestVectors(dim)

    def add(self, rows: NDArray[np.float16]) -> None:
        start = len(self.index)
        self.index.add(rows, np.arange(start, start + len(rows), dtype=np.uint64))

    def search(self, queries: NDArray[np.float16], k: int) -> NDArray[np.int64]:
        return self.index.search(queries, k)[0]


class _Usearch:
    def __init__(self, dim: int) -> None:
        from usearch.index import Index

        self._index = Index(
            ndim=dim,
            metric="ip",
            dtype="f16",
            connectivity=_LINKS,
            expansion_add=_BUILD,
            expansion_search=_SEARCH,
        )

    def add(self, rows: NDArray[np.float16]) -> None:
        start = len(self._index)
        self._index.add(np.arange(start, start + len(rows)), rows)

    def search(self, queries: NDArray[np.float16], k: int) -> NDArray[np.int64]:
        keys = np.asarray(self._index.search(queries, k).keys)
        return keys.reshape(len(queries), -1).astype(np.int64)


class _FaissFlat:
    def __init__(self, dim: int) -> None:
        import faiss

        self._index: Any = faiss.IndexFlatIP(dim)

    def add(self, rows: NDArray[np.float16]) -> None:
        self._index.add(rows.astype(np.float32))

    def search(self, queries: NDArray[np.float16], k: int) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self._index.search(queries.astype(np.float32), k)[1]
        return found


class _FaissGraph(_FaissFlat):
    def __init__(self, dim: int) -> None:
        import faiss

        self._index = faiss.IndexHNSWFlat(dim, _LINKS, faiss.METRIC_INNER_PRODUCT)
        self._index.hnsw.efConstruction = _BUILD
        self._index.hnsw.efSearch = _SEARCH


class _Hnswlib:
    def __init__(self, dim: int) -> None:
        import hnswlib

        self._index = hnswlib.Index(space="ip", dim=dim)
        self._index.init_index(max_elements=1, M=_LINKS, ef_construction=_BUILD)
        self._index.set_ef(_SEARCH)

    def add(self, rows: NDArray[np.float16]) -> None:
        size = self._index.get_current_count()
        self._index.resize_index(size + len(rows))
        self._index.add_items(rows.astype(np.float32), np.arange(size, size + len(rows)))

    def search(self, queries: NDArray[np.float16], k: int) -> NDArray[np.int64]:
        return np.asarray(self._index.knn_query(queries.astype(np.float32), k)[0], np.int64)


class _Numpy:
    def __init__(self, dim: int) -> None:
        self._rows = np.empty((0, dim), dtype=np.float32)
        self._parts: list[NDArray[np.float32]] = []

    def add(self, rows: NDArray[np.float16]) -> None:
        self._parts.append(rows.astype(np.float32))

    def search(self, queries: NDArray[np.float16], k: int) -> NDArray[np.int64]:
        if self._parts:
            self._rows = np.concatenate([self._rows, *self._parts])
            self._parts = []
        found = []
        # bounds the score matrix
        for start in range(0, len(queries), 100):
            scores = queries[start : start + 100].astype(np.float32) @ self._rows.T
            best = np.argpartition(-scores, k, axis=1)[:, :k]
            order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1)
            found.append(np.take_along_axis(best, order, axis=1))
        return np.concatenate(found)


#: Name -> implementation and the package it needs.
_PEERS: dict[str, tuple[type[_Peer], str]] = {
    "testnuc": (_Testnuc, "usearch"),
    "usearch": (_Usearch, "usearch"),
    "faiss HNSW": (_FaissGraph, "faiss"),
    "hnswlib": (_Hnswlib, "hnswlib"),
    "faiss Flat": (_FaissFlat, "faiss"),
    "numpy": (_Numpy, "numpy"),
}


def _anonymous() -> float:
    """Return the anonymous memory of this process in MiB."""
    return process_memory().get("RssAnon", float("nan"))


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Return what one index does with the prepared vectors."""
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    queries, truth = np.load(folder / "queries.npy"), np.load(folder / "truth.npy")
    peer = _PEERS[name][0]
    # warm-up: excludes one-time memory for imports and compiled code
    warm = peer(rows.shape[1])
    warm.add(np.array(rows[:64]))
    warm.search(queries[:2], 10)
    del warm
    index, before = peer(rows.shape[1]), _anonymous()
    started, cpu = time.perf_counter(), time.process_time()
    for start in range(0, len(rows), 10_000):
        index.add(np.array(rows[start : start + 10_000]))
    result: dict[str, Any] = {
        "index": name,
        "texts": len(rows),
        "build s": time.perf_counter() - started,
        "build CPU s": time.process_time() - cpu,
    }
    for k in _KS:
        found = index.search(queries, k)
        result[f"recall@{k}"] = _recall(found, truth[:, :k])
    result["memory MiB"] = _anonymous() - before
    seconds = interleaved({"batch": lambda: index.search(queries, 10)}, 5)["batch"]
    result["batch q/s"] = len(queries) / statistics.median(seconds)
    cpu = time.process_time()
    index.search(queries, 10)
    result["CPU us"] = (time.process_time() - cpu) / len(queries) * 1e6
    ones = []
    for i in range(min(_SINGLES, len(queries))):
        started = time.perf_counter()
        index.search(queries[i : i + 1], 10)
        ones.append(time.perf_counter() - started)
    result["single us"] = statistics.median(ones) * 1e6
    if isinstance(index, _Testnuc) and index.index.graph is not None:
        result |= _overhead(index, queries)
    return result


def _overhead(ours: _Testnuc, queries: NDArray[np.float16]) -> dict[str, float]:
    """Compare with usearch's search on the same graph."""
    graph = ours.index.graph
    assert graph is not None
    own = graph._index
    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: ours.search(queries, 10),
        "own": lambda: own.search(queries, 10),
    }
    seconds = interleaved(runs, 15)
    spent: dict[str, float] = {}
    for name, run in runs.items():
        cpu = time.process_time()
        for _ in range(5):
            run()
        spent[name] = time.process_time() - cpu
    return {
        "over usearch": median_ratio(seconds["ours"], seconds["own"]) - 1,
        "best over best": min(seconds["ours"]) / min(seconds["own"]) - 1,
        "over usearch, CPU": spent["ours"] / spent["own"] - 1,
    }


def _recall(found: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    hits = (found[:, :, None] == truth[:, None, :]).any(axis=1)
    return float(hits.mean())


def prepare(folder: Path, n: int, dim: int) -> None:
    """Write the vectors of a pool and of queries, and the exact neighbors."""
    rows = np.lib.format.open_memmap(
        folder / "rows.npy", mode="w+", dtype=np.float16, shape=(n, dim)
    )
    queries = vectors(_BATCH, dim, seed=1, of=n)
    np.save(folder / "queries.npy", queries)
    single = queries.astype(np.float32)
    most = max(_KS)
    best = np.full((len(queries), most), -np.inf, dtype=np.float32)
    truth = np.full((len(queries), most), -1, dtype=np.int64)
    start = 0
    for part in parts(n, dim):
        rows[start : start + len(part)] = part
        scores = np.concatenate([best, single @ part.astype(np.float32).T], axis=1)
        ids = np.arange(start, start + len(part))
        numbers = np.concatenate([truth, np.broadcast_to(ids, (len(queries), len(part)))], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :most]
        best = np.take_along_axis(scores, order, axis=1)
        truth = np.take_along_axis(numbers, order, axis=1)
        start += len(part)
    rows.flush()
    np.save(folder / "truth.npy", truth)


async def _pgvector(url: str, folder: Path) -> dict[str, Any]:
    """Measure the pool of the PostgreSQL store."""
    from testnuc._base.checks import hash_text
    from testnuc.protocols import PoolText
    from testnuc.stores.postgres import PostgresStore

    rows, queries = np.load(folder / "rows.npy", mmap_mode="r"), np.load(folder / "queries.npy")
    truth = np.load(folder / "truth.npy")
    store = PostgresStore(url)
    pool = store.pool(f"bench {len(rows)} {os.getpid()}")
    started = time.perf_counter()
    for start in range(0, len(rows), 10_000):
        part = np.array(rows[start : start + 10_000])
        texts = [f"text {i}" for i in range(start, start + len(part))]
        await pool.add([PoolText(t, hash_text(t)) for t in texts], part)
    await pool.search(queries[:1], 10)
    result: dict[str, Any] = {
        "index": "pgvector",
        "texts": len(rows),
        "build s": time.perf_counter() - started,
    }
    for k in _KS:
        started = time.perf_counter()
        found = (await pool.search(queries, k)).ids
        result[f"recall@{k}"] = _recall(found, truth[:, :k])
        if k == 10:
            result["batch q/s"] = len(queries) / (time.perf_counter() - started)
    ones = []
    for i in range(min(_SINGLES, len(queries))):
        started = time.perf_counter()
        await pool.search(queries[i : i + 1], 10)
        ones.append(time.perf_counter() - started)
    result["single us"] = statistics.median(ones) * 1e6
    await store.close()
    return result


def main(arguments: list[str]) -> None:
    """Measure each index at each size, in separate processes."""
    parser = argparse.ArgumentParser(prog="bench retrieval", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(_SIZES))
    parser.add_argument("--full", action="store_true", help=f"also {_FULL:,} texts")
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--only", nargs="+", choices=list(_PEERS), default=list(_PEERS))
    parser.add_argument("--postgres", metavar="URL", help="also measure pgvector on this server")
    parser.add_argument("--folder", help="folder for the vectors; default: a temporary folder")
    parser.add_argument("--json", help="also write the report to this file")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one is not None:
        sys.stdout.buffer.write(orjson.dumps(measure(given.one[0], Path(given.one[1]))))
        return
    report = Report(
        "retrieval", f"Nearest neighbors, {given.dim} dimensions; {machine('usearch', 'numpy')}"
    )
    missing = [name for name in given.only if find_spec(_PEERS[name][1]) is None]
    for n in [*given.sizes, *([_FULL] if given.full else [])]:
        with tempfile.TemporaryDirectory(dir=given.folder) as name:
            folder = Path(name)
            prepare(folder, n, given.dim)
            for peer in given.only:
                if peer not in missing:
                    command = [sys.executable, "-m", "bench", "retrieval", "--one", peer, name]
                    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
                    report.row(**orjson.loads(done.stdout))
            if given.postgres:
                report.row(**asyncio.run(_pgvector(given.postgres, folder)))
    if missing:
        report.note(f"not installed: {', '.join(missing)}")
    report.note(HOW)
    report.note(
        f"batch: {_BATCH:,} queries, k=10, median of 5; single: median of {_SINGLES}; all threads. "
        f"Graphs: connectivity {_LINKS}, expansion {_BUILD} for building and {_SEARCH} for search; "
        "testnuc doubles the latter above 100,000 texts, and is exact below 5,000"
    )
    report.note(
        "over usearch: runtime of our search, including re-scoring, relative to usearch's search "
        "on the same graph and queries, median of 15 pairs, minus 1"
    )
    report.show()
    if given.json:
        report.write(given.json)
