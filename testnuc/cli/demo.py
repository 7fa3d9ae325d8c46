"""``testnuc demo``: label real messages on this machine alone."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

import orjson
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from testnuc.cli.event_loop import run_to_end
from testnuc.client import TestNUC
from testnuc.embedders.sentence_transformers import WHEEL_MODEL

if TYPE_CHECKING:
    from testnuc.results import Results
    from testnuc.types import Classification

__all__ = ["run"]

_SHOWN = 4
_NEIGHBORS_SHOWN = 5


def run() -> None:
    """Label the included messages and compare with their gold labels."""
    data = files("testnuc") / "data"
    labels: dict[str, str] = orjson.loads((data / "support_labels.json").read_bytes())
    lines = (data / "support_messages.jsonl").read_text(encoding="utf-8").splitlines()
    messages = [orjson.loads(line) for line in lines]
    texts = [message["text"] for message in messages]
    gold = [message["label"] for message in messages]
    console = Console(highlight=False)
    console.print(
        f"{len(texts)} support messages, {len(labels)} intents; labeler: local/zero-shot "
        f"(embedder {WHEEL_MODEL}), no key, no network. Gold labels only score the result."
    )
    results = run_to_end(_label(labels, texts))
    _report(console, results, gold)


async def _label(labels: dict[str, str], texts: list[str]) -> Results:
    # 702 short messages have too few near copies for the default policy
    async with TestNUC(
        labels, model="local/zero-shot", embedder=WHEEL_MODEL, policy="weighted"
    ) as nuc:
        return await nuc.classify_many(texts, progress=True)


def _report(console: Console, results: Results, gold: list[str]) -> None:
    pairs = list(zip(results, gold, strict=True))
    alone = [_own(result) == label for result, label in pairs]
    voted = [result.label == label for result, label in pairs]
    corrected = [
        p for p, before, now in zip(pairs, alone, voted, strict=True) if now and not before
    ]
    spoiled = sum(before and not now for before, now in zip(alone, voted, strict=True))
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("accuracy of the labeler alone", f"{sum(alone) / len(alone):.3f}")
    table.add_row("accuracy after the vote", f"[bold]{sum(voted) / len(voted):.3f}[/bold]")
    table.add_row("labels corrected by the vote", str(len(corrected)))
    table.add_row("labels spoiled by the vote", str(spoiled))
    table.add_row("labeler calls", f"{results.usage.calls} (one for each distinct text)")
    table.add_row("time", f"{results.seconds:.1f} s")
    console.print(table)
    # the clearest votes first
    for result, _ in sorted(corrected, key=lambda p: -p[0].share)[:_SHOWN]:
        console.print(f"\n[bold]{escape(result.text)}[/bold]")
        console.print(
            f"  alone: [red]{_own(result)}[/red]  voted: [green]{result.label}[/green] "
            f"(share {result.share:.2f})"
        )
        for neighbor in result.neighbors[:_NEIGHBORS_SHOWN]:
            console.print(
                f"    {neighbor.similarity:.2f}  {neighbor.label!s:<24} {escape(neighbor.text)}",
                overflow="ellipsis",
                no_wrap=True,
            )


def _own(result: Classification) -> str | None:
    return result.prediction.label if result.prediction is not None else None
