"""The paper's main tables: datasets x methods x policies x k, with mean and std over the seeds."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np

from bench._answers import dataset_of, recorded, recordings_by_method, vectors_of
from bench.evaluation.costs import METHODS
from bench.evaluation.neighborhoods import gold_votes_over_k, purity_over_k
from bench.evaluation.paper_tables import paper_accuracy
from bench.evaluation.plots import frame, plot
from bench.evaluation.recording import Recording
from bench.evaluation.studies import accuracy_over_k

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.figure import Figure

    from bench._sections import Sections
    from testnuc.protocols import Method

__all__ = ["neighborhoods", "reproduce"]

_MODELS = {
    "gpt-4o-mini": "GPT-4o-mini",
    "gpt-4o": "GPT-4o",
    "claude-3-haiku": "Claude-3-Haiku",
    "llama-3.1-8b": "Llama-3.1-8B",
}
_AGGREGATION = {
    "majority": "Naive Majority Voting",
    "confidence_weighted": "Weighted Majority Voting (Distance & Confidence)",
    "filtered": "Filtered Weighted Majority Voting",
}


async def reproduce(arguments: argparse.Namespace, out: Sections, names: Sequence[str]) -> None:
    """Add the table of all datasets and its figure."""
    methods = _methods(arguments)
    column = _column(arguments)
    rows: list[dict[str, Any]] = []
    for name in names:
        dataset = dataset_of(arguments, name)
        if arguments.predictions:
            recordings = {"Standard Prompting": await recorded(arguments, dataset)}
        else:
            recordings = await recordings_by_method(arguments, dataset, methods)
        for method, recording in recordings.items():
            table = accuracy_over_k(
                recording,
                ks=(0, *arguments.k),
                policies=arguments.policies,
                test=arguments.test,
                seeds=range(arguments.seeds),
            )
            rows += _rows(table, name, method, len(recording), column)
    table = frame("reproduction", rows)
    test = "leave-one-out" if arguments.test is None else f"{arguments.test} test texts"
    of = column or "GPT-4o-mini"
    notes = [f"gain: over the same method without a vote; paper: {of}, NV-Embed-v2, 500 test texts"]
    if column is None:
        notes.append(f"the paper has no results for {arguments.model}: compare the gains")
    out.add(
        "datasets",
        f"{arguments.model or 'recorded answers'}, {arguments.embedder}, {test} x "
        f"{arguments.seeds} seeds",
        table,
        figure=_figure(table, arguments),
        notes=tuple(notes),
    )


async def neighborhoods(arguments: argparse.Namespace, out: Sections, names: Sequence[str]) -> None:
    """Add purity (eq. 1) and votes over gold labels (eqs. 2, 3); makes no calls."""
    recordings = []
    for name in names:
        dataset = dataset_of(arguments, name)
        recordings.append(Recording.of(dataset, {}, await vectors_of(arguments, dataset)))
    where = ", ".join(f"{r.name} ({len(r):,})" for r in recordings)
    note = "paper: purity of 20 neighbors is about 0.3 on GoEmotion, higher elsewhere"
    for name, study, notes in (
        ("purity", purity_over_k, (note,)),
        ("gold_votes", gold_votes_over_k, ()),
    ):
        rows = [row for r in recordings for row in study(r).to_dict("records")]
        table = frame(f"{name}_over_k", rows)
        # one line per dataset: the lines of the two votes overlap
        drawn = table if len(names) == 1 or name == "purity" else table[table.vote == "weighted"]
        drawn.attrs = table.attrs
        out.add(
            name,
            f"leave-one-out over the distinct texts of {where}; {arguments.embedder}",
            table,
            figure=plot(drawn),
            notes=notes,
        )


def _rows(
    table: pd.DataFrame, dataset: str, method: str, n: int, column: str | None
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    records = table.to_dict("records")
    alone = records[0]["accuracy"]
    paper_alone = _paper(dataset, method, "", 0, column)
    for row in records:
        if row["k"] == 0 and found:
            continue  # equal for every policy
        policy = "alone" if row["k"] == 0 else row["policy"]
        paper = _paper(dataset, method, policy, row["k"], column)
        gain = None if row["k"] == 0 else row["accuracy"] - alone
        known = paper is not None and paper_alone is not None
        found.append(
            {
                "dataset": dataset,
                "texts": n,
                "method": method,
                "policy": policy,
                "k": row["k"],
                "accuracy": row["accuracy"],
                "std": row["std"],
                "gain": gain,
                "paper": paper,
                "paper gain": paper - paper_alone if known and gain is not None else None,  # type: ignore[operator]
                "difference": row["accuracy"] - paper if column and paper is not None else None,
            }
        )
    return found


def _paper(dataset: str, method: str, policy: str, k: int, column: str | None) -> float | None:
    """Return the paper's accuracy for a row; it has other methods for GPT-4o-mini only."""
    table = column or "GPT-4o-mini"
    if method != "Standard Prompting":
        row = {0: "alone"}.get(k, "w. TestNUC" if policy == "weighted" else "")
        return paper_accuracy(dataset, row, method) if table == "GPT-4o-mini" else None
    if policy in _AGGREGATION:
        fits = k == 50 and table == "GPT-4o-mini"
        row = _AGGREGATION[policy] if fits else ""
        return paper_accuracy(dataset, row, "aggregation_gpt4o_mini_K50")
    row = "Standard Prompting" if k == 0 else f"TestNUC (K={k})"
    return paper_accuracy(dataset, row, table)


def _column(arguments: argparse.Namespace) -> str | None:
    if arguments.predictions:
        return "GPT-4o-mini"
    model = arguments.model.lower().rpartition("/")[2]
    # longest name first: gpt-4o is a prefix of gpt-4o-mini
    for name in sorted(_MODELS, key=len, reverse=True):
        if model.startswith(name):
            return _MODELS[name]
    return None


def _methods(arguments: argparse.Namespace) -> dict[str, Method]:
    if arguments.methods == "all":
        return dict(METHODS)
    return {name: METHODS[name] for name in arguments.methods.split(",")}


def _figure(table: pd.DataFrame, arguments: argparse.Namespace) -> Figure:
    """Draw bars per dataset: no vote, and the similarity-weighted vote for each k."""
    from matplotlib.figure import Figure

    first = table["method"].iloc[0]
    part = table[(table["method"] == first) & table["policy"].isin(["alone", "weighted"])]
    names = list(dict.fromkeys(part["dataset"]))
    ks = [0, *arguments.k]
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(ks)
    for i, k in enumerate(ks):
        rows = part[part["k"] == k].set_index("dataset").loc[names]
        axes.bar(
            np.arange(len(names)) + (i - (len(ks) - 1) / 2) * width,
            rows["accuracy"],
            width,
            yerr=rows["std"] if rows["std"].notna().all() else None,
            error_kw={"linewidth": 0.8},
            label="alone" if k == 0 else f"weighted vote, k = {k}",
        )
    axes.set_xticks(np.arange(len(names)), names, rotation=25, ha="right", fontsize=8)
    axes.set_ylabel("accuracy")
    axes.set_title(f"{arguments.model or 'recorded answers'}: {first}", fontsize=11)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=8)
    return figure
