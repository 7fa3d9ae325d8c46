"""A study of the vote on labeled texts: prints a table, and plots a figure."""

from __future__ import annotations

import argparse
import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.evaluation import neighborhoods, studies
from bench.evaluation.datasets import load
from bench.evaluation.plots import plot
from bench.evaluation.recording import Recording, embedded, record
from testnuc.errors import TestNUCError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from testnuc.types import Usage

#: Those that need no predictions, and so make no calls.
GOLD: dict[str, Callable[[Recording], pd.DataFrame]] = {
    "purity": neighborhoods.purity_over_k,
    "gold-votes": neighborhoods.gold_votes_over_k,
}
STUDIES: dict[str, Callable[[Recording], pd.DataFrame]] = {
    **GOLD,
    "k": studies.accuracy_over_k,
    "policies": studies.accuracy_over_policies,
    "pool-size": studies.accuracy_over_pool_size,
    "choice": studies.accuracy_of_the_choice,
}


def main(argv: list[str]) -> None:
    """Run a study, and write its table and its figure."""
    parser = argparse.ArgumentParser(prog="python -m bench study", description=__doc__)
    add = parser.add_argument
    add("study", choices=STUDIES)
    add("data", help="a .csv or .jsonl file of labeled texts, or a dataset such as banking77")
    add("--data-dir", help="folder with the paper's datasets; default: download them")
    add("--limit", type=int, help="number of texts to sample; default: all")
    add("--model", default="openai/gpt-4o-mini")
    add("--base-url")
    add("--embedder", default="sentence-transformers/all-MiniLM-L6-v2")
    add("--store", help="path of the store for answers")
    add("--output", "-o", type=Path, help="a .csv or .png file; both are written")
    add("--yes", action="store_true", help="accept the estimated cost without a prompt")
    arguments = parser.parse_args(argv)
    output: Path | None = arguments.output
    if output is not None and output.suffix not in {".csv", ".png"}:
        parser.error(f"the output is {str(output)!r}; name a .csv or a .png file")
    try:
        table = asyncio.run(_table(arguments))
    except TestNUCError as error:
        sys.exit(f"bench study: {error}")
    print(table.to_string(index=False))
    if output is not None:
        table.to_csv(output.with_suffix(".csv"), index=False)
        plot(table).savefig(output.with_suffix(".png"), dpi=110)


async def _table(arguments: argparse.Namespace) -> pd.DataFrame:
    dataset = load(arguments.data, arguments.data_dir).sample(arguments.limit)
    for difference in dataset.differences:
        print(f"{dataset.name}: {difference}", file=sys.stderr)
    if arguments.study in GOLD:
        vectors = await embedded(dataset.distinct().texts, arguments.embedder)
        recording = Recording.of(dataset, {}, vectors)
    else:
        recording = await record(
            dataset,
            model=arguments.model,
            embedder=arguments.embedder,
            base_url=arguments.base_url,
            store=arguments.store,
            agree=partial(_agreed, arguments.model, accept=arguments.yes),
            progress=True,
        )
    return STUDIES[arguments.study](recording)


def _agreed(model: str, usage: Usage, *, accept: bool) -> bool:
    """Print the estimated cost; return whether the user accepts it, or it is free."""
    if usage.usd == 0 or not usage.calls:
        return True
    price = "at an unknown price" if usage.usd is None else f"about {usage.usd:.2f} US$"
    print(f"at most {usage.calls:,} calls to {model}, {price}", file=sys.stderr)
    if accept or not sys.stdin.isatty():
        return accept
    return input("continue? [y/N] ").strip().lower() in {"y", "yes"}
