"""``testnuc demo``: label real messages on this machine alone, then judge ten of them."""

from __future__ import annotations

import sys
import warnings
from functools import partial
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import orjson
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from testnuc.cli.answering import answer
from testnuc.cli.event_loop import run_to_end
from testnuc.client import TestNUC
from testnuc.embedders.sentence_transformers import WHEEL_MODEL
from testnuc.errors import SmallPoolWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from testnuc.results import Results
    from testnuc.trust import Learned, MultilabelLearned, Review
    from testnuc.types import Classification

__all__ = ["run"]

#: Messages that are shown, most and least trusted; those that a person judges; those that decide.
_SHOWN, _JUDGED, _ENOUGH = 3, 10, 50
_BAR = 10


def run() -> None:
    """Label the included messages as by default, judge some, and learn from that."""
    data = files("testnuc") / "data"
    labels: dict[str, str] = orjson.loads((data / "support_labels.json").read_bytes())
    lines = (data / "support_messages.jsonl").read_text(encoding="utf-8").splitlines()
    messages = [orjson.loads(line) for line in lines]
    gold = {message["text"]: message["label"] for message in messages}
    console = Console(highlight=False)
    console.print(
        f"{len(gold):,} messages to a web shop, {len(labels)} labels. A small model on this "
        f"machine ({WHEEL_MODEL}) labels them: no key, no network. The defaults decide the rest; "
        "the correct labels, which are included, only score."
    )
    with TemporaryDirectory(prefix="testnuc-demo-") as folder:
        place = Path(folder)
        client = partial(
            TestNUC, labels, "local/zero-shot", embedder=WHEEL_MODEL, store=place / "answers.db"
        )
        results, review = run_to_end(_label(client, gold))
        _report(console, results, gold)
        if sys.stdin.isatty() and sys.stdout.isatty():
            _judge(console, review, place / "review.json")
        by_hand = len(review.judged)
        learned, after = run_to_end(_learn(client, gold, review))
        _report_learned(console, learned, results, after, gold, by_hand)


async def _label(client: Callable[[], TestNUC], gold: Mapping[str, str]) -> tuple[Results, Review]:
    async with client() as nuc:
        results = await nuc.classify_many(gold, progress=True)
        return results, await nuc.review(_JUDGED)


async def _learn(
    client: Callable[[], TestNUC], gold: Mapping[str, str], review: Review
) -> tuple[Learned | MultilabelLearned, Results]:
    """Learn from a review, and from further texts that the correct labels judge."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallPoolWarning)
        async with client() as nuc:
            if review.judged:
                await nuc.learn(review)
            more = await nuc.review(_ENOUGH - len(review.judged))
            for item in more:
                more.answer(item.index, gold[item.text])
            learned = await nuc.learn(more)
            return learned, await nuc.classify_many(gold)


def _report(console: Console, results: Results, gold: Mapping[str, str]) -> None:
    rows = sorted(results, key=lambda row: -(row.trust or 0.0))
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for heading, width in (("trust", _BAR + 5), ("label", 18), ("", 5)):
        table.add_column(heading, no_wrap=True, overflow="ellipsis", min_width=width)
    table.add_column("message", no_wrap=True, overflow="ellipsis")
    for row in [*rows[:_SHOWN], *rows[-_SHOWN:]]:
        right = row.label == gold[row.text]
        table.add_row(
            _bar(row.trust), str(row.label),
            "[green]right[/]" if right else "[red]wrong[/]", escape(row.text),
        )  # fmt: skip
    console.print()
    console.print(table)
    third = len(rows) // 3
    parts = (rows[:third], rows[third : 2 * third], rows[2 * third :])
    shares = [f"{_accuracy(part, gold):.0%}" for part in parts]
    console.print(
        f"\n{len(rows):,} labels in {results.seconds:.1f} s; {_accuracy(rows, gold):.1%} right: "
        f"{shares[0]} in the third of most trust, then {shares[1]}, then {shares[2]}."
    )
    if results.diagnosis is not None:
        console.print(f"{results.diagnosis.sentence('see below')}.", markup=False)


def _judge(console: Console, review: Review, place: Path) -> None:
    console.print(
        f"\n[bold]Your turn: judge {len(review)} messages[/], where ways to label disagree. "
        "q skips this step."
    )
    answer(review, str(place))


def _report_learned(
    console: Console,
    learned: Learned | MultilabelLearned,
    before: Results,
    after: Results,
    gold: Mapping[str, str],
    by_hand: int,
) -> None:
    others = _ENOUGH - by_hand
    judged = f"{by_hand} by you, {others} by" if by_hand else f"{others} by"
    console.print(f"\nJudged: {judged} the included correct labels, as a person would.")
    console.print(str(learned), markup=False)
    moved = [(a, b) for a, b in zip(before, after, strict=True) if a.label != b.label and b.label]
    console.print(
        f"\nRight before: {_accuracy(before, gold):.1%}. Right now: "
        f"[bold]{_accuracy(after, gold):.1%}[/]; {len(moved):,} labels changed, for example:"
    )
    better = [(a, b) for a, b in moved if b.label == gold[b.text]]
    for a, b in sorted(better, key=lambda pair: -(pair[1].trust or 0.0))[:_SHOWN]:
        change = f"[red]{escape(str(a.label))}[/] -> [green]{escape(str(b.label))}[/]"
        console.print(f"  {change}: {escape(b.text)}", no_wrap=True, overflow="ellipsis")
    console.print(
        "\nThe same with your texts and a better model, from one command to the next:\n"
        "  testnuc classify FILE --labels LABELS --model openai/gpt-4o-mini -o labeled.csv",
        markup=False,
        soft_wrap=True,
    )


def _accuracy(rows: Results | list[Classification], gold: Mapping[str, str]) -> float:
    return sum(row.label == gold[row.text] for row in rows) / len(rows)


def _bar(trust: float | None) -> str:
    if trust is None:
        return "unknown"
    filled = round(_BAR * trust)
    return f"{'█' * filled}{'░' * (_BAR - filled)} {trust:.2f}"
