"""Cost of a label: calls, tokens and US dollars per text, by how neighbors are predicted."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import warnings
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import orjson

from bench._batch_api import BatchLLM
from bench._million import report_of
from bench._report import Report
from bench.evaluation.recording import KnownVectors
from testnuc import Sampling, SmallPoolWarning, TestNUC
from testnuc.limits.budget import PICO, Price
from testnuc.protocols import TokenUsage
from testnuc.testing import HashEmbedder, LoopbackLLM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testnuc.types import Usage

_PACKS = (1, 5, 10, 20)
_MODEL = "gpt-4o-mini"


@dataclass(frozen=True, slots=True)
class _Data:
    """Texts to label, texts of the pool, and the model's answers."""

    name: str
    labels: list[str]
    answers: dict[str, tuple[str, float | None]]
    own: list[str]
    pool: list[str]
    embedder: Any


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        sys.exit(f"bench cost: {path} does not exist; check --data and --dataset")
    return [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]


def _read(folder: Path | None, dataset: str, n: int) -> _Data:
    """Read the dataset, and recorded answers and embeddings if they exist."""
    embedder: Any = HashEmbedder()
    answers: dict[str, tuple[str, float | None]] = {}
    if folder is None:
        content = (files("testnuc") / "data" / "support_messages.jsonl").read_bytes()
        rows = [orjson.loads(line) for line in content.splitlines()]
        for row in rows:
            answers.setdefault(row["text"], (row["label"], 0.9))
        name, labels = "the demo's messages, gold labels as answers", _labels(rows)
    else:
        rows = _lines(folder / "datasets" / dataset / "large.jsonl")
        labels, name = _labels(rows), f"{dataset}, gold labels as answers"
        recorded = sorted((folder / "predictions").glob(f"{dataset}.*.jsonl"))
        vectors = sorted((folder / "embeddings").glob(f"{dataset}.*.npy"))
        for row in rows:
            answers.setdefault(row["input"], (row["label"], 0.9))
        if recorded:
            name = f"{dataset}, recorded answers ({recorded[0].stem})"
            predictions = _lines(recorded[0])
            answers = {}
            for row in predictions:
                answers.setdefault(row["text"], (row["prediction"], row["confidence"]))
            if vectors:
                texts = [row["text"] for row in predictions]
                known = np.load(vectors[0], allow_pickle=False)
                embedder = KnownVectors(texts, known, HashEmbedder(known.shape[1]))
    everything = list(answers)
    n = min(n, len(everything) // 2)
    # evenly spaced, the same in every run
    own = everything[:: len(everything) // n][:n]
    drawn = set(own)
    return _Data(name, labels, answers, own, [t for t in everything if t not in drawn], embedder)


def _labels(rows: Sequence[dict[str, Any]]) -> list[str]:
    return sorted({str(row["label"]) for row in rows})


def _client(data: _Data, llm: LoopbackLLM, k: int, **more: Any) -> TestNUC:
    return TestNUC(
        data.labels,
        model=f"openai/{_MODEL}",
        base_url=llm.base_url,
        api_key="loopback",
        embedder=data.embedder,
        k=k,
        policy="weighted",
        **more,
    )


async def _batch(
    data: _Data, k: int, lane: Literal["live", "batch"] = "live", **more: Any
) -> Usage:
    """Label the texts as one batch, which is its own pool."""
    async with BatchLLM(data.answers) as llm, _client(data, llm, k, **more) as nuc:
        await nuc.classify_many(data.own, lane=lane)
        _check(llm, nuc)
        return nuc.usage


async def _single_texts(data: _Data, k: int, neighbors: str) -> tuple[Usage, int]:
    """Label the texts as separate requests, with neighbors from the pool only.

    Returns the usage without `predict_pool`, and the number of distinct neighbors that voted.
    """
    async with (
        LoopbackLLM(data.answers) as llm,
        _client(data, llm, k, neighbors=neighbors, join_pool=False) as nuc,
    ):
        await nuc.add(data.pool)
        if neighbors == "stored":
            await nuc.predict_pool()
        before = nuc._parts.meter.mark()
        results = await nuc.classify_many(data.own)
        _check(llm, nuc)
        voted = {neighbor.text for result in results for neighbor in result.neighbors}
        return nuc._parts.meter.since(before), len(voted)


def _check(llm: LoopbackLLM, nuc: TestNUC) -> None:
    used = nuc.usage
    counted = (llm.calls, llm.input_tokens, llm.output_tokens)
    if counted != (used.calls, used.input_tokens, used.output_tokens):
        sys.exit(f"bench cost: the server counted {counted}, the client {used}")


async def _report(data: _Data, k: int) -> Report:
    n = len(data.own)
    report = Report(
        "cost",
        f"{data.name}: {n:,} texts, {len(data.labels)} labels, k = {k}; pool of "
        f"{len(data.pool):,} other texts for single texts; prices of {_MODEL}",
    )
    live, half = Price.of("openai", _MODEL), Price.of("openai", _MODEL, batch=True)

    def row(way: str, calls: int, sent: int, received: int, price: Price | None = live) -> None:
        usd = None if price is None else price.pico(TokenUsage(sent, received)) / PICO
        report.row(
            way=way,
            **{
                "calls per text": round(calls / n, 3),
                "input tokens": round(sent / n, 1),
                "output tokens": round(received / n, 1),
                "usd per 1,000 texts": None if usd is None else round(usd / n * 1_000, 5),
            },
        )

    def measured(way: str, usage: Usage, price: Price | None = live) -> None:
        row(way, usage.calls, usage.input_tokens or 0, usage.output_tokens or 0, price)

    plain = await _batch(data, 0)
    measured("plain prompting", plain)
    sent, received = plain.input_tokens or 0, plain.output_tokens or 0
    row(
        f"{k} + 1 calls per text (computed)",
        (k + 1) * plain.calls, (k + 1) * sent, (k + 1) * received,
    )  # fmt: skip
    for pack in _PACKS:
        packed = f", {pack} texts per call" if pack > 1 else ""
        way = f"a batch as its own pool{packed}"
        measured(way, await _batch(data, k, sampling=Sampling(texts_per_call=pack)))
        sent_in_batches = await _batch(data, k, "batch", sampling=Sampling(texts_per_call=pack))
        measured(f"{way}, batch lane", sent_in_batches, half)
    stored, different = await _single_texts(data, k, "stored")
    share = (n + different) / n
    row(
        "single texts, each neighbor once (computed)",
        n + different, round(share * sent), round(share * received),
    )  # fmt: skip
    measured("single texts, early exit", (await _single_texts(data, k, "predict"))[0])
    measured("single texts, stored neighbors (TestNUC-S)", stored)
    report.note("tokens: estimated at 4 characters per token, without the schema")
    report.note("batch lane: the provider's batch API, at batch prices, within 24 hours")
    report.note("K + 1 calls: plain prompting times K + 1, as if no two texts shared a neighbor")
    report.note("each neighbor once, early exit: texts share the predictions of common neighbors")
    report.note(f"stored: excludes the {len(data.pool):,} calls for predictions of the pool")
    return report


def main(argv: list[str]) -> None:
    """Measure the usage of each mode against a local server."""
    parser = argparse.ArgumentParser(prog="python -m bench cost", description=__doc__)
    parser.add_argument("--data", help="folder with datasets/; default: the demo's messages")
    parser.add_argument("--dataset", default="banking77")
    parser.add_argument("--texts", type=int, help="default: 1,000, or all with --million")
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument(
        "--million", action="store_true", help="dollars for a million texts; needs predictions/"
    )
    parser.add_argument("--json", help="write the result to this file")
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore", SmallPoolWarning)
    # silences the warning about a store in memory
    logging.getLogger("testnuc.batch").setLevel(logging.ERROR)
    folder = None if arguments.data is None else Path(arguments.data)
    if arguments.million:
        if folder is None:
            sys.exit("bench cost: --million needs --data, with recorded answers in predictions/")
        found = report_of(folder, arguments.dataset, arguments.texts or sys.maxsize)
        report = asyncio.run(found)
    else:
        data = _read(folder, arguments.dataset, arguments.texts or 1_000)
        report = asyncio.run(_report(data, arguments.k))
    report.show()
    if arguments.json:
        report.write(arguments.json)
