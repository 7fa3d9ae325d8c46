"""Recovery of the batch lane: a job with every fault and three killed processes."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from bench._batch_api import Batches, BatchLLM, model_at
from bench._report import Report
from testnuc import BatchPolicy, Limits, TestNUC
from testnuc.stores import resolve
from testnuc.testing import Faults, HashEmbedder, by_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testnuc.protocols import StoredBatch

LABELS = [f"intent number {i}" for i in range(20)]
MODELS = {
    "openai": "openai/test",
    "anthropic": "anthropic/claude-test",
    "mistral": "mistral/test",
    "gemini": "gemini/test",
}
#: The server steps at which the client is killed: name and 1-based occurrence.
KILLS = {
    "openai": [("upload", 2), ("created", 2), ("download", 2)],
    "anthropic": [("create", 2), ("created", 2), ("retrieve", 6)],
    "mistral": [("create", 2), ("created", 2), ("download", 2)],
    "gemini": [("upload", 2), ("created", 2), ("retrieve", 6)],
}
#: Faults of single requests. They are not billed, so each text is answered once.
_ITEM_FAULTS = ("429", "500", "503", "529")

_RUN = """
import asyncio, sys
import orjson
from bench.batch import LABELS, job, texts_of

async def main(given):
    async with job(**given["client"]) as nuc:
        results = await nuc.classify_many(texts_of(given["texts"]), lane="batch")
    rows = [[r.label, r.share, r.error and repr(r.error)] for r in results]
    sys.stdout.buffer.write(orjson.dumps(rows))

asyncio.run(main(orjson.loads(sys.argv[1])))
"""


@dataclass(slots=True)
class Outcome:
    """Results of a job."""

    kills: list[str]
    labels: list[Any]
    errors: int
    #: Text -> number of answers by the server.
    asked: Counter[str]
    #: Calls, input and output tokens: counted by the server, and by all client processes.
    served: tuple[int, ...]
    counted: tuple[int, ...]
    batches: list[StoredBatch]
    steps: Counter[str]
    faults: Counter[str]
    seconds: float


@dataclass(slots=True)
class _Killer:
    """Kills the client process at a step of the server."""

    step: str = ""
    left: int = 0
    pid: int | None = None
    steps: Counter[str] = field(default_factory=Counter)

    def on_step(self, step: str) -> None:
        self.steps[step] += 1
        if step == self.step and self.pid is not None:
            self.left -= 1
            if self.left == 0:
                os.kill(self.pid, signal.SIGKILL)


def texts_of(n: int) -> list[str]:
    """Return distinct texts."""
    return [f"message {i}: what a customer writes of it" for i in range(n)]


def job(base_url: str, model: str, store: str | None, most: int, k: int) -> TestNUC:
    """Return the client of the job, with equal settings in every process."""
    return TestNUC(
        LABELS,
        model_at(model, base_url, "key"),
        base_url=base_url,
        api_key="key",
        embedder=HashEmbedder(),
        store=_store(store),
        k=k,
        policy="weighted",
        limits=Limits(
            batches=BatchPolicy(
                max_requests=most,
                attempts=8,
                in_flight=4,
                first_poll=0.001,
                longest_poll=0.01,
                grace=0.5,
            )
        ),
    )


def _store(place: str | None) -> Any:
    if place is None or "://" not in place:
        return place
    from testnuc.stores.postgres import PostgresStore

    # leases of a killed process expire quickly
    return PostgresStore(place, lease_seconds=0.1)


async def run(provider: str, n: int, store: str, *, k: int) -> Outcome:
    """Run a job to completion, restarting it each time its process is killed.

    Parameters
    ----------
    provider : {"openai", "anthropic", "mistral", "gemini"}
    n : int
        Number of texts.
    store : str
        Path or URL of the store.
    k : int
        Neighbors that vote.
    """
    killer = _Killer()
    batches = Batches(
        validation=2,
        polls=2,
        outcomes=[None, "expired", None, "cancelled", "failed"],
        shuffle=True,
        duplicates=0.1,
        missing=0.02,
        refusals=2,
        lost=[5],
        step=killer.on_step,
    )
    faults = Faults(rate=0.05, kinds=_ITEM_FAULTS, seed=3, most_in_a_row=2)
    started = time.perf_counter()
    async with BatchLLM(by_hash(LABELS), batches=batches, faults=faults) as llm:
        client = {
            "base_url": llm.base_url,
            "model": MODELS[provider],
            "store": store,
            "most": max(50, n // 10),
            "k": k,
        }
        given = orjson.dumps({"client": client, "texts": n}).decode()
        kills = []
        for step, number in KILLS[provider]:
            killer.step, killer.left = step, number
            output = await _process(given, killer)
            if output is not None:
                break
            kills.append(step)
        else:
            killer.step = ""
            output = await _process(given, killer)
        if output is None:
            sys.exit("bench batch: the process was killed by another program")
        rows = orjson.loads(output)
        opened = resolve(store)
        await opened.open()
        try:
            ended: list[StoredBatch] = await opened.batches(ended=True)  # type: ignore[attr-defined]
        finally:
            await opened.close()
        used = [batch.usage for batch in ended if batch.usage is not None]
        return Outcome(
            kills=kills,
            labels=[label for label, *_ in rows],
            errors=sum(error is not None for *_, error in rows),
            asked=llm.asked,
            served=(llm.calls, llm.input_tokens, llm.output_tokens),
            counted=(
                sum(usage.calls for usage in used),
                sum(usage.input_tokens or 0 for usage in used),
                sum(usage.output_tokens or 0 for usage in used),
            ),
            batches=ended,
            steps=killer.steps,
            faults=llm.faults,
            seconds=time.perf_counter() - started,
        )


async def _process(given: str, killer: _Killer) -> bytes | None:
    """Run the job in a process; None if it was killed."""
    package = str(Path(__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _RUN,
        given,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    killer.pid = process.pid
    output, _ = await process.communicate()
    killer.pid = None
    if process.returncode == -signal.SIGKILL:
        return None
    if process.returncode:
        sys.exit(f"bench batch: the job exited with code {process.returncode}")
    return output


async def live_labels(n: int, k: int) -> list[str | None]:
    """Return the labels of the same texts in the live lane, without faults."""
    async with (
        BatchLLM(by_hash(LABELS)) as llm,
        job(llm.base_url, "openai/x", None, 1, k) as nuc,
    ):
        return (await nuc.classify_many(texts_of(n))).labels


async def _report(providers: Sequence[str], n: int, k: int) -> Report:
    report = Report("batch", f"{n:,} texts in the batch lane, k = {k}, store in SQLite")
    live = await live_labels(n, k)
    for provider in providers:
        with tempfile.TemporaryDirectory() as folder:
            done = await run(provider, n, str(Path(folder) / "store.db"), k=k)
        ends = Counter(batch.outcome for batch in done.batches)
        report.row(
            provider=provider,
            **{
                "killed at": ", ".join(done.kills),
                "batches": len(done.batches),
                "ended": ", ".join(f"{ends[name]} {name}" for name in sorted(ends, key=str)),
                "errors of items": sum(done.faults.values()),
                "answered once": sum(times == 1 for times in done.asked.values()),
                "twice": sum(times > 1 for times in done.asked.values()),
                "without": n - len(done.asked),
                "usage agrees": "yes" if done.served == done.counted else "no",
                "labels as live": "yes" if done.labels == live else "no",
                "seconds": round(done.seconds, 1),
            },
        )
        if done.errors or done.served != done.counted or done.labels != live:
            report.show()
            sys.exit(
                f"bench batch: {done.errors} errors; {done.served} served, {done.counted} counted"
            )
    report.note("killed at: the server step at which the client process received SIGKILL")
    report.note(
        "every batch: 2 x validating, lines shuffled, 10% duplicated, 2% missing; 5% of the"
    )
    report.note("requests fail; 2 create requests return 429, the response of one is lost")
    report.note("usage: calls, input and output tokens of the server against all stored batches")
    return report


def main(argv: list[str]) -> None:
    """Run jobs that are killed, and verify their results and usage."""
    parser = argparse.ArgumentParser(prog="python -m bench batch", description=__doc__)
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--k", type=int, default=0, help="neighbors that vote")
    parser.add_argument("--provider", choices=sorted(MODELS), help="default: all")
    parser.add_argument("--json", help="write the result to this file")
    arguments = parser.parse_args(argv)
    providers = [arguments.provider] if arguments.provider else list(MODELS)
    report = asyncio.run(_report(providers, arguments.texts, arguments.k))
    report.show()
    if arguments.json:
        report.write(arguments.json)
