"""classify_many in TestNUC-S mode on a large pool: CPU per text and step."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import testnuc
from bench._clusters import HOW, parts, vectors
from bench._report import Report
from bench._timing import machine
from testnuc._base.checks import hash_text
from testnuc._engine.retrieval import StoredVoters
from testnuc._engine.run import Run
from testnuc.protocols import Answer, PoolText, Reply, Request, StoredPrediction
from testnuc.types import Prediction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

_SIZES = (10_000, 100_000)
_FULL = 1_000_000
_LABELS = [f"intent number {i}" for i in range(77)]
STEPS = ("search", "usable", "texts", "labels", "add", "vectors", "ask", "vote")


def _text(i: int) -> str:
    return (
        f"message {i}: what a customer writes when a parcel is late and the phone is not answered"
    )


def _number(text: str) -> int:
    return int(text[len("message ") : text.index(":")])


def _label(text: str) -> str:
    return _LABELS[_number(text) % len(_LABELS)]


class _Embedder:
    """Returns precomputed vectors by the number in the text."""

    name = "bench"

    def __init__(self, dim: int, first: int, rows: NDArray[np.float16]) -> None:
        self.dim = dim
        self._first = first
        self._rows = rows
        self.cpu = 0.0

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        before = time.process_time()
        numbers = [_number(t) - self._first for t in texts]
        found = self._rows[numbers].astype(np.float32)
        self.cpu += time.process_time() - before
        return found


class _Provider:
    """Answers immediately."""

    name, model, identity = "bench", "bench", ""

    async def answer(self, request: Request) -> Reply:
        return Reply(tuple(Answer(_label(text), 0.9) for text in request.texts))


class _Steps:
    """CPU seconds per step of one client; steps are sequential."""

    def __init__(self) -> None:
        self.cpu = dict.fromkeys(STEPS, 0.0)
        self._inside = False

    def watch(self, owner: Any, method: str, step: str) -> None:
        """Measure a coroutine method, except within another step."""
        run = getattr(owner, method)

        async def timed(*arguments: Any, **options: Any) -> Any:
            if self._inside:
                return await run(*arguments, **options)
            self._inside, before = True, time.process_time()
            try:
                return await run(*arguments, **options)
            finally:
                self._inside = False
                self.cpu[step] += time.process_time() - before

        setattr(owner, method, timed)


@contextmanager
def _voting(steps: _Steps) -> Iterator[None]:
    vote = Run.labels

    def timed(*arguments: Any, **options: Any) -> Any:
        before = time.process_time()
        try:
            return vote(*arguments, **options)
        finally:
            steps.cpu["vote"] += time.process_time() - before

    Run.labels = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        Run.labels = vote  # type: ignore[method-assign]


@contextmanager
def _voters(steps: _Steps) -> Iterator[None]:
    methods = {name: getattr(StoredVoters, name) for name in ("votes", "rows", "verify")}
    for name in methods:
        steps.watch(StoredVoters, name, "usable")
    try:
        yield
    finally:
        for name, method in methods.items():
            setattr(StoredVoters, name, method)


def _client(store: str | None, embedder: _Embedder, **more: Any) -> testnuc.TestNUC:
    return testnuc.TestNUC(
        _LABELS,
        _Provider(),
        embedder=embedder,
        store=store,
        neighbors="stored",
        policy="weighted",
        **more,
    )


async def _fill(nuc: testnuc.TestNUC, n: int, dim: int, every: int) -> None:
    """Write pool and predictions directly into the store; every `every`-th text has none."""
    client = nuc._parts
    await client.ready()
    ask, scope = client.predictor.ask, client.predictor.scope
    start = 0
    for rows in parts(n, dim):
        texts = [_text(i) for i in range(start, start + len(rows))]
        entries = [PoolText(t, hash_text(t)) for t in texts]
        predictions = [
            StoredPrediction(
                ask(e.text, e.hash, 0).key, scope, e.hash, 0, Prediction(_label(e.text), 0.9)
            )
            for i, e in enumerate(entries, start)
            if not every or i % every
        ]
        await client.store.put_predictions(predictions)
        await client.pool.add(entries, rows)
        start += len(rows)


async def _classify(
    nuc: testnuc.TestNUC, embedder: _Embedder, texts: list[str]
) -> dict[str, float]:
    steps = _Steps()
    parts: Any = nuc._parts
    pipeline = parts.pipeline
    steps.watch(parts.pool, "search", "search")
    steps.watch(pipeline.retriever, "build", "texts")
    steps.watch(pipeline, "complete", "ask")
    steps.watch(parts.embedding, "each", "vectors")
    steps.watch(parts.pool, "labels", "labels")
    steps.watch(parts.pool, "add", "add")
    embedder.cpu = 0.0
    with _voting(steps), _voters(steps):
        started, cpu = time.perf_counter(), time.process_time()
        results = await nuc.classify_many(texts)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    if any(result.label is None for result in (results[0], results[-1])):
        raise SystemExit("bench scale: a text has no label")
    steps.cpu["vectors"] -= embedder.cpu
    per_text = 1e6 / len(texts)
    row = {f"{step} us": spent * per_text for step, spent in steps.cpu.items()}
    own = cpu - embedder.cpu
    row["rest us"] = (own - sum(steps.cpu.values())) * per_text
    row["all us"] = own * per_text
    row["wall us"] = seconds * per_text
    return row


async def _measure(
    store: str | None, n: int, dim: int, batch: int, every: int
) -> list[dict[str, Any]]:
    warm = min(batch, 512)
    new = vectors(2 * batch + warm, dim, seed=1)
    embedder = _Embedder(dim, n, new)
    texts = [_text(i) for i in range(n, n + len(new))]
    kind = "memory" if store is None else "sqlite"
    rows = []
    if store is not None:
        # an existing pool, as in a restarted service
        async with _client(store, embedder) as nuc:
            await _fill(nuc, n, dim, every)
    async with _client(store, embedder) as nuc:
        if store is None:
            await _fill(nuc, n, dim, every)
        await nuc.classify_many(texts[:warm])
        for name, start in (("new texts", warm), ("next batch", warm + batch)):
            row = await _classify(nuc, embedder, texts[start : start + batch])
            rows.append({"store": kind, "pool": n, "what": name, **row})
        # the same texts again: all predictions are stored
        row = await _classify(nuc, embedder, texts[warm : warm + batch])
        rows.append({"store": kind, "pool": n, "what": "known texts", **row})
    return rows


def main(arguments: list[str]) -> None:
    """Measure each store at each size."""
    parser = argparse.ArgumentParser(prog="bench scale", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(_SIZES))
    parser.add_argument("--full", action="store_true", help=f"also {_FULL:,} texts")
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--batch", type=int, default=2_000)
    parser.add_argument("--stores", nargs="+", choices=["memory", "sqlite"], default=["sqlite"])
    parser.add_argument(
        "--without", type=int, default=0, metavar="N", help="every N-th text has no prediction"
    )
    parser.add_argument("--folder", help="folder for the stores; default: a temporary folder")
    parser.add_argument("--json", help="also write the report to this file")
    given = parser.parse_args(arguments)
    report = Report(
        "scale",
        f"classify_many, neighbors='stored', k=10, {given.dim} dimensions, batches of "
        f"{given.batch:,}: microseconds of CPU per text; {machine('usearch', 'numpy')}",
    )
    for n in [*given.sizes, *([_FULL] if given.full else [])]:
        for kind in given.stores:
            with tempfile.TemporaryDirectory(dir=given.folder) as folder:
                path = str(Path(folder) / "store.db") if kind == "sqlite" else None
                run: Callable[..., Any] = _measure
                for row in asyncio.run(run(path, n, given.dim, given.batch, given.without)):
                    report.row(**row)
    report.note(
        "search: nearest texts; usable: lookup of stored predictions; texts: texts and "
        "predictions of neighbors; labels: known labels of the batch; add: the batch into pool and "
        "index; vectors: lookup and storage of embeddings; ask: predictions of the batch, by a "
        "provider without latency, and their storage; vote: the kernel; all: without the embedder"
    )
    report.note("new texts: no stored predictions; known texts: all predictions stored")
    report.note(HOW)
    report.show()
    if given.json:
        report.write(given.json)
