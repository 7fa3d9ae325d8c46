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
    from testnuc.trust import Learned
    from testnuc.types import Classification

__all__ = ["run"]

_JUDGED = 50
_SHOWN = 4
_NEIGHBORS_SHOWN = 5


def run() -> None:
    """Label the included messages, judge fifty of them by their gold labels, and label again."""
    data = files("testnuc") / "data"
    labels: dict[str, str] = orjson.loads((data / "support_labels.json").read_bytes())
    lines = (data / "support_messages.jsonl").read_text(encoding="utf-8").splitlines()
    messages = [orjson.loads(line) for line in lines]
    gold = {message["text"]: message["label"] for message in messages}
    console = Console(highlight=False)
    console.print(
        f"{len(gold)} support messages, {len(labels)} intents; labeler: local/zero-shot (embedder "
        f"{WHEEL_MODEL}), no key, no network. Gold labels stand for a person who judges {_JUDGED} "
        "messages, and score the others."
    )
    before, after, learned = run_to_end(_label(labels, gold))
    _report(console, before, after, learned, gold)


async def _label(labels: dict[str, str], gold: dict[str, str]) -> tuple[Results, Results, Learned]:
    async with TestNUC(labels, model="local/zero-shot", embedder=WHEEL_MODEL) as nuc:
        before = await nuc.classify_many(gold, progress=True)
        review = await nuc.review(_JUDGED)
        for item in review:
            review.answer(item.index, gold[item.text])
        learned = await nuc.learn(review)
        return before, await nuc.classify_many(gold), learned


def _report(
    console: Console, before: Results, after: Results, learned: Learned, gold: dict[str, str]
) -> None:
    pairs = [
        (old, new)
        for old, new in zip(before, after, strict=True)
        # a judged message is right by itself
        if new.source != "person"
    ]
    corrected = [(old, new) for old, new in pairs if old.label != gold[old.text] == new.label]
    spoiled = sum(old.label == gold[old.text] != new.label for old, new in pairs)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, results in (
        ("accuracy without judgments", [old for old, _ in pairs]),
        ("accuracy after fifty judgments", [new for _, new in pairs]),
    ):
        right = sum(result.label == gold[result.text] for result in results)
        table.add_row(name, f"{right / len(pairs):.3f}")
    table.add_row("messages that were not judged", str(len(pairs)))
    table.add_row("labels corrected", str(len(corrected)))
    table.add_row("labels spoiled", str(spoiled))
    table.add_row("labeler calls", f"{before.usage.calls} (one for each distinct text)")
    table.add_row("time", f"{before.seconds + after.seconds:.1f} s")
    console.print(table)
    console.print(f"\n{escape(str(learned))}")
    # the most trusted first
    for old, new in sorted(corrected, key=lambda p: -(p[1].trust or 0))[:_SHOWN]:
        console.print(f"\n[bold]{escape(new.text)}[/bold]")
        trust = "" if new.trust is None else f" (trust {new.trust:.2f})"
        console.print(f"  before: [red]{old.label}[/red]  after: [green]{new.label}[/green]{trust}")
        _neighbors(console, new)


def _neighbors(console: Console, result: Classification) -> None:
    for neighbor in result.neighbors[:_NEIGHBORS_SHOWN]:
        console.print(
            f"    {neighbor.similarity:.2f}  {neighbor.label!s:<24} {escape(neighbor.text)}",
            overflow="ellipsis",
            no_wrap=True,
        )
