"""The studies of `bench paper`, with the paper's results for comparison."""

from __future__ import annotations

import argparse
import random
import sys
from typing import TYPE_CHECKING, Any

from bench._answers import agreement, dataset_of, recorded, recordings_by_method, vectors_of
from bench.evaluation.costs import METHODS, measure_costs
from bench.evaluation.datasets import Dataset
from bench.evaluation.paper_tables import paper_accuracy, paper_tables
from bench.evaluation.plots import plot
from bench.evaluation.recording import KnownVectors, Recording, record, record_runs
from bench.evaluation.studies import (
    accuracy_of_the_choice,
    accuracy_over_embedders,
    accuracy_over_k,
    accuracy_over_policies,
    accuracy_over_pool_size,
    accuracy_with_foreign_texts,
    consistency,
    voted_runs,
)
from testnuc import TestNUC
from testnuc.limits.budget import Price
from testnuc.testing import LoopbackLLM

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pandas as pd

    from bench._sections import Sections

    _Study = Callable[[argparse.Namespace, Sections, Dataset], Awaitable[None]]

__all__ = ["STUDIES"]

_OOD = "ood_banking_into_reddit"
_AGGREGATION = "aggregation_gpt4o_mini_K50"
_POLICY_ROWS = {
    "alone": "Standard Prompting",
    "majority": "Naive Majority Voting",
    "weighted": "Weighted Majority Voting (Distance)",
    "confidence_weighted": "Weighted Majority Voting (Distance & Confidence)",
    "filtered": "Filtered Weighted Majority Voting",
}


async def _recording(arguments: argparse.Namespace, dataset: Dataset) -> Recording:
    """Return the recording of all texts, shared by the studies of one run."""
    known: dict[str, Recording] = arguments.known
    if dataset.name not in known:
        known[dataset.name] = await _record(arguments, dataset)
    return known[dataset.name]


async def _record(arguments: argparse.Namespace, dataset: Dataset) -> Recording:
    if arguments.predictions:
        return await recorded(arguments, dataset)
    whole = argparse.Namespace(**{**vars(arguments), "whole": True})
    standard = {"Standard Prompting": METHODS["Standard Prompting"]}
    return (await recordings_by_method(whole, dataset, standard))["Standard Prompting"]


def _where(dataset: Dataset) -> str:
    differs = f" ({'; '.join(dataset.differences)})" if dataset.differences else ""
    return f"{dataset.name}{differs}: {len(dataset.distinct())} distinct texts"


def _with_paper(table: pd.DataFrame, paper: list[float | None]) -> pd.DataFrame:
    """Add columns with the paper's results and the differences."""
    import numpy as np

    table = table.copy()
    table["paper"] = np.array([np.nan if x is None else x for x in paper], dtype=float)
    table["difference"] = table["accuracy"] - table["paper"]
    return table


async def _k(arguments: argparse.Namespace, out: Sections, dataset: Dataset) -> None:
    """Accuracy over k, leave-one-out and on random test texts."""
    recording = await _recording(arguments, dataset)
    ways: list[tuple[str, int | None]] = [("leave-one-out", None)]
    if arguments.test is not None:
        ways.append((f"{arguments.test} test texts x {arguments.seeds} seeds", arguments.test))
    for way, test in ways:
        table = accuracy_over_k(recording, test=test, seeds=range(arguments.seeds))
        paper = [
            paper_accuracy(dataset.name, "Standard Prompting")
            if row["k"] == 0
            else paper_accuracy(dataset.name, f"TestNUC (K={row['k']})")
            if row["policy"] == "weighted"
            else None
            for row in table.to_dict("records")
        ]
        name = "k" if test is None else "k_splits"
        title = f"{_where(dataset)}, {way}"
        figure = plot(table, title=f"{dataset.name}: accuracy over k, {way}")
        out.add(name, title, _with_paper(table, paper), figure=figure)


async def _policies(arguments: argparse.Namespace, out: Sections, dataset: Dataset) -> None:
    """Accuracy of the policies by confidence and similarity threshold, at k = 50."""
    recording = await _recording(arguments, dataset)
    table = accuracy_over_policies(
        recording, k=50, test=arguments.test, seeds=range(arguments.seeds)
    )
    paper = [
        paper_accuracy(dataset.name, _POLICY_ROWS.get(row["policy"], ""), _AGGREGATION)
        if row["threshold"] != row["threshold"] or row["threshold"] == 0.7
        else None
        for row in table.to_dict("records")
    ]
    note = "the paper does not report its theta: its filtered row is compared with ours for 0.7"
    figure = plot(table, title=f"{dataset.name}: policies and thresholds, k = 50")
    out.add(
        "policies", f"{_where(dataset)}, k = 50", _with_paper(table, paper), figure=figure,
        notes=(note,),
    )  # fmt: skip


async def _pool(arguments: argparse.Namespace, out: Sections, dataset: Dataset) -> None:
    """Accuracy over the size of the pool."""
    recording = await _recording(arguments, dataset)
    table = accuracy_over_pool_size(
        recording, test=arguments.test or 500, seeds=range(arguments.seeds)
    )
    figure = plot(table, title=f"{dataset.name}: accuracy over pool size")
    note = "the paper finds a plateau at 8,000 to 10,000 unlabeled texts"
    out.add("pool", _where(dataset), table, figure=figure, notes=(note,))


async def _choice(arguments: argparse.Namespace, out: Sections, dataset: Dataset) -> None:
    """Accuracy of the k and policy selected on held-out texts."""
    recording = await _recording(arguments, dataset)
    table = accuracy_of_the_choice(
        recording,
        held_out=arguments.test or 500,
        test=arguments.test or 500,
        seeds=range(arguments.seeds),
    )
    notes = tuple(
        f"mean {column}: {table[column].mean():.4f} ± {table[column].std():.4f}"
        for column in ("accuracy", "alone")
    )
    out.add("choice", f"{_where(dataset)}, selected on held-out texts", table, notes=notes)


async def _embedders(arguments: argparse.Namespace, out: Sections, dataset: Dataset) -> None:
    """Accuracy over k for several embedders."""
    recording = await _recording(arguments, dataset)
    vectors = {
        name: await vectors_of(arguments, dataset, name) for name in arguments.embedders.split(",")
    }
    table = accuracy_over_embedders(
        recording, vectors, test=arguments.test, seeds=range(arguments.seeds)
    )
    rows = paper_tables()["embedders_gpt4o_mini"]["rows"]
    notes = tuple(
        f"paper, K = 50, {name}: {found}"
        for name in rows
        if (found := paper_accuracy(dataset.name, name, "embedders_gpt4o_mini")) is not None
    )
    out.add("embedders", _where(dataset), table, figure=plot(table), notes=notes)


async def _foreign(arguments: argparse.Namespace, out: Sections, dataset: Dataset) -> None:
    """Accuracy with 60% and 75% of the pool from another dataset."""
    if arguments.predictions:
        sys.exit("bench paper: the foreign study needs a live model; give --model")
    recording = await _recording(arguments, dataset)
    other = dataset_of(arguments, arguments.foreign)
    foreign = await record(
        other,
        labels_of=dataset,
        agree=agreement(arguments, f"{other.name} with the labels of {dataset.name}"),
        model=arguments.model,
        embedder=arguments.embedder,
        vectors=await vectors_of(arguments, other, arguments.embedder),
        progress=sys.stderr.isatty(),
        base_url=arguments.base_url,
        api_key=arguments.api_key,
        store=arguments.store,
    )
    table = accuracy_with_foreign_texts(
        recording, foreign, pool=arguments.pool, seeds=range(arguments.seeds)
    )
    tables = paper_tables()[_OOD]
    paper = [
        _mean(tables["by_neighbors"].get(str(row["k"])), tables["order"], row)
        for row in table.to_dict("records")
    ]
    figure = plot(table, title=f"{other.name} texts in a pool of {arguments.pool:,}")
    note = "paper: GPT-4o-mini and NV-Embed-v2; compare the trend, not absolute values"
    title = f"{_where(dataset)}; foreign: {_where(other)}; pool of {arguments.pool}"
    out.add("foreign", title, _with_paper(table, paper), figure=figure, notes=(note,))


def _mean(cells: list[str] | None, order: list[str], row: dict[str, Any]) -> float | None:
    column = f"{row['share']:.0%} {row['policy']}"
    if cells is None or column not in order:
        return None
    return float(cells[order.index(column)].partition("±")[0]) / 100


async def _consistency(arguments: argparse.Namespace, out: Sections, dataset: Dataset) -> None:
    """Error rate and inconsistency ratio over runs."""
    if arguments.predictions:
        sys.exit("bench paper: the consistency study needs a live model; give --model")
    runs = await record_runs(
        dataset,
        arguments.runs,
        agree=agreement(arguments, f"{dataset.name}, {arguments.runs} runs"),
        model=arguments.model,
        embedder=arguments.embedder,
        vectors=await vectors_of(arguments, dataset),
        progress=sys.stderr.isatty(),
        base_url=arguments.base_url,
        api_key=arguments.api_key,
        store=arguments.store,
    )
    table = consistency(voted_runs(runs), runs[0].gold)
    out.add("consistency", f"{_where(dataset)}, {arguments.model}", table, figure=plot(table))


async def _cost(arguments: argparse.Namespace, out: Sections, dataset: Dataset) -> None:
    """Runtime, calls, tokens and cost per text, against a local server."""
    distinct = dataset.sample(1_000).distinct()
    vectors = await vectors_of(arguments, distinct, arguments.embedder)
    embedder = KnownVectors(distinct.texts, vectors, arguments.embedder)
    texts, pool = distinct.texts[:20], distinct.texts[20:]
    drawn = random.Random(0)
    answers = {
        text: (label if drawn.random() < 0.65 else drawn.choice(distinct.names), 0.8)
        for text, label in zip(distinct.texts, distinct.labels, strict=True)
    }
    async with LoopbackLLM(answers, latency=arguments.latency) as llm:

        def client(**more: Any) -> TestNUC:
            return TestNUC(
                distinct.names,
                "openai/gpt-4o-mini",
                base_url=llm.base_url,
                api_key="loopback",
                embedder=embedder,
                policy="weighted",
                **more,
            )

        # warm-up: imports, compiled code
        await measure_costs(client, texts, pool, methods={"": METHODS["KNN-ICL-P"]})
        table = await measure_costs(
            client, texts, pool, ks=(10,), price=Price.of("openai", "gpt-4o-mini")
        )
    rows = paper_tables()["runtime_cost_gpt4o_mini"]
    names = [_paper_cost(row) for row in table.to_dict("records")]
    table["paper calls"] = [
        None if name not in rows else round(rows[name]["runtime_s"] / 0.682, 1) for name in names
    ]
    table["paper seconds"] = [rows.get(name, {}).get("runtime_s") for name in names]
    table["paper usd"] = [rows.get(name, {}).get("usd") for name in names]
    title = (
        f"per text of {dataset.name}: {len(texts)} texts, pool of {len(pool)}; local server, "
        f"{arguments.latency:g} s latency, four characters per token, price of GPT-4o-mini"
    )
    note = "paper: sequential calls, 0.682 s each"
    out.add("cost", title, table, notes=(note,))


def _paper_cost(row: dict[str, Any]) -> str:
    if row["way"] == "alone":
        return str(row["method"])
    if row["method"] != "Standard Prompting":
        return ""
    names = {"neighbors asked": "w. TestNUC", "neighbors stored": "w. TestNUC-S"}
    return f"{names.get(row['way'], '')} (K={row['k']})"


STUDIES: dict[str, _Study] = {
    "k": _k,
    "policies": _policies,
    "pool": _pool,
    "choice": _choice,
    "embedders": _embedders,
    "foreign": _foreign,
    "consistency": _consistency,
    "cost": _cost,
}
