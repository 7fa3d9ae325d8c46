"""A head in a file: texts per second of one core, and a million texts in bounded memory.

The texts are labeled in this process, and then by what `testnuc serve --head` runs, over HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import numpy as np
import orjson

from bench._memory import process_memory
from bench._report import Report
from testnuc import Head, TestNUC
from testnuc._base.loop_thread import run_to_end
from testnuc.cli.options_of_run import client_of
from testnuc.head import TrainedOn
from testnuc.protocols import Answer, Reply
from testnuc.server import ServerSettings, Service, page_of, serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

    from testnuc.protocols import Request

_NOISE = 1 << 16
#: Of the simulated LLM.
_WRONG = 0.3
#: Texts in memory at a time.
_CHUNK = 8_192
_RATE_TEXTS = 100_000
#: Texts of a request to the service, the most that it accepts by default, and connections.
_REQUEST, _CONNECTIONS = 1_000, 2


class Synthetic:
    """Embeds the texts of a class around a center; texts are ``class number``."""

    name = "synthetic"

    def __init__(self, dim: int, n_classes: int) -> None:
        random = np.random.default_rng(0)
        self.dim = dim
        self._centers = random.normal(size=(n_classes, dim)).astype(np.float32)
        self._noise = 1.5 * random.normal(size=(_NOISE + dim,)).astype(np.float32)

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32[n, dim]."""
        pairs = np.array([text.split() for text in texts], dtype=np.int64)
        at = (pairs[:, 1] * 7_919) % _NOISE
        made = self._centers[pairs[:, 0]] + self._noise[at[:, None] + np.arange(self.dim)]
        unit: NDArray[np.float32] = made / np.linalg.norm(made, axis=1, keepdims=True)
        return unit


class Simulated:
    """An LLM that is wrong on a fixed part of the texts."""

    name, model, identity = "simulated", "llm", "1"

    def __init__(self, n_classes: int) -> None:
        self._classes = n_classes

    async def answer(self, request: Request) -> Reply:
        """Answer each text."""
        said = []
        for text in request.texts:
            label, number = map(int, text.split())
            wrong = (number * 2_654_435_761) % 1_000 < 1_000 * _WRONG
            other = (label + 1 + number // self._classes) % self._classes
            said.append(Answer(f"label {other if wrong else label}"))
        return Reply(tuple(said))


def _texts(start: int, end: int, n_classes: int) -> Iterator[str]:
    return (f"{i % n_classes} {i}" for i in range(start, end))


def rate(dim: int, n_classes: int, repeats: int) -> tuple[float, float]:
    """Return texts per second of CPU time, vectors to labels and trust: median and least."""
    random = np.random.default_rng(0)
    on = TrainedOn(0, 0, "none", "2026-01-01", "none", 1.0, "nothing")
    head = Head(
        [str(c) for c in range(n_classes)],
        random.normal(size=(dim + 1, n_classes)).astype(np.float32),
        (0.0, 1.0),
        embedder="none",
        trained_on=on,
    )
    vectors = random.normal(size=(_RATE_TEXTS, dim)).astype(np.float16)
    head.labels_of(vectors[:_CHUNK])
    rates = []
    for _ in range(repeats):
        start = time.process_time()
        head.labels_of(vectors)
        rates.append(_RATE_TEXTS / (time.process_time() - start))
    return float(np.median(rates)), min(rates)


async def _labeled(folder: Path, asked: int, embedder: Synthetic, n_classes: int) -> Path:
    """Ask the LLM about some texts, and distill."""
    path = folder / "synthetic.head"
    labels = [f"label {c}" for c in range(n_classes)]
    async with TestNUC(
        labels, model=Simulated(n_classes), embedder=embedder, store=folder / "answers.db", k=0
    ) as nuc:
        async for _ in nuc.stream(_texts(0, asked, n_classes)):
            pass
        await nuc.distill(path)
    return path


def _predicted(path: Path, texts: int, embedder: Synthetic, n_classes: int) -> float:
    """Label texts in chunks; returns the part that is right."""
    head = Head.load(path, embedder)
    right = 0
    for start in range(0, texts, _CHUNK):
        end = min(start + _CHUNK, texts)
        results = head.predict(_texts(start, end, n_classes))
        gold = (f"label {i % n_classes}" for i in range(start, end))
        right += sum(map(str.__eq__, map(str, results.labels), gold))
    return right / texts


def _serve(path: Path, dim: int, n_classes: int, pipe: Connection) -> None:
    """Run what `testnuc serve --head` runs, with the synthetic embedder."""

    async def main() -> None:
        embedder = Synthetic(dim, n_classes)
        head = {"labels": list(Head.load(path).labels), "head": str(path)}
        nuc = client_of({**head, "embedder": embedder})
        service = Service(nuc, ServerSettings(port=0), page=page_of)
        urls: list[str] = []

        async def prepare() -> None:
            pipe.send(urls[0])

        async with nuc:
            await serve(service, prepare=prepare, listening=urls.append)

    run_to_end(main())


@contextmanager
def _serving(path: Path, dim: int, n_classes: int) -> Iterator[tuple[str, int]]:
    """Run the service in another process; yields its URL and process id."""
    spawning = multiprocessing.get_context("spawn")
    here, there = spawning.Pipe()
    process = spawning.Process(target=_serve, args=(path, dim, n_classes, there))
    process.start()
    there.close()
    try:
        assert process.pid is not None
        yield here.recv(), process.pid
    finally:
        process.terminate()
        process.join()


async def _through(url: str, pid: int, texts: int, n_classes: int) -> tuple[float, float]:
    """Send texts to the service; returns the part that is right, and MiB after a tenth."""
    right = sent = 0
    early = 0.0
    starts = iter(range(0, texts, _REQUEST))

    async def send(session: aiohttp.ClientSession, starts: Iterator[int]) -> None:
        nonlocal right, sent, early
        for start in starts:
            end = min(start + _REQUEST, texts)
            body = orjson.dumps({"texts": list(_texts(start, end, n_classes))})
            kind = {"Content-Type": "application/json"}
            async with session.post("/v1/classify", data=body, headers=kind) as response:
                response.raise_for_status()
                rows = orjson.loads(await response.read())["results"]
            gold = (f"label {i % n_classes}" for i in range(start, end))
            right += sum(row["label"] == label for row, label in zip(rows, gold, strict=True))
            sent += end - start
            if not early and sent >= texts / 10:
                early = process_memory(pid).get("VmHWM", 0.0)

    async with aiohttp.ClientSession(url) as session:
        await asyncio.gather(*(send(session, starts) for _ in range(_CONNECTIONS)))
    return right / texts, early


def main(argv: list[str]) -> None:
    """Measure the rate of a head, and a run of many texts."""
    parser = argparse.ArgumentParser(prog="python -m bench distill", description=__doc__)
    parser.add_argument("--texts", type=int, default=1_000_000)
    parser.add_argument("--asked", type=int, default=50_000, help="texts that the LLM labels")
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--labels", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="20,000 texts, 2,000 asked")
    parser.add_argument("--json", help="write the result to this file")
    given = parser.parse_args(argv)
    texts, asked = (20_000, 2_000) if given.quick else (given.texts, given.asked)
    report = Report(
        "distill",
        f"a head of {given.dim} dimensions and {given.labels} labels, one core (set "
        f"OPENBLAS_NUM_THREADS=1); a simulated LLM, right on {1 - _WRONG:.0%}, labels a part",
    )
    median, least = rate(given.dim, given.labels, given.repeats)
    report.row(step="vectors to labels", texts=_RATE_TEXTS, per_second=median, least=least)
    embedder = Synthetic(given.dim, given.labels)
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        path = asyncio.run(_labeled(Path(folder), asked, embedder, given.labels))
        spent = time.process_time() - start
        report.row(
            step="ask and distill", texts=asked, per_second=asked / spent,
            peak_mib=process_memory().get("VmHWM"), file_kib=path.stat().st_size / 1024,
        )  # fmt: skip
        start = time.process_time()
        accuracy = _predicted(path, texts, embedder, given.labels)
        spent = time.process_time() - start
        report.row(
            step="embed, label, results", texts=texts, per_second=texts / spent,
            peak_mib=process_memory().get("VmHWM"), accuracy=accuracy,
        )  # fmt: skip
        with _serving(path, given.dim, given.labels) as (url, pid):
            accuracy, early = asyncio.run(_through(url, pid, texts, given.labels))
            peak = process_memory(pid).get("VmHWM")
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        report.row(
            step="serve", texts=texts, per_second=texts / (used.ru_utime + used.ru_stime),
            peak_mib=peak, early_mib=early, accuracy=accuracy,
        )  # fmt: skip
    report.note("per_second: by CPU time; peak_mib: of the process; early_mib: after a tenth")
    report.note("serve: the process of the service and its start, in requests of 1,000 texts")
    report.show()
    if given.json:
        report.write(given.json)
