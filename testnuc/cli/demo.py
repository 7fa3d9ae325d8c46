"""``testnuc demo``: label real messages on this machine alone, then judge ten of them."""

import shutil
import sys
import textwrap
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import orjson

from testnuc.cli.answering import answer
from testnuc.embedders.sentence_transformers import WHEEL_MODEL
from testnuc.results import Results
from testnuc.sync import SyncTestNUC
from testnuc.types import Classification

#: Messages that are shown, most and least trusted; those that a person judges; those that decide.
_SHOWN, _JUDGED, _ENOUGH = 3, 10, 50


def run(_: SimpleNamespace) -> None:
    """Label the included messages as by default, judge some, and learn from that."""
    data = files("testnuc") / "data"
    labels: dict[str, str] = orjson.loads((data / "support_labels.json").read_bytes())
    lines = (data / "support_messages.jsonl").read_text(encoding="utf-8").splitlines()
    gold = {message["text"]: message["label"] for message in map(orjson.loads, lines)}
    _say(
        f"{len(gold):,} messages to a web shop, {len(labels)} labels. A small model on this "
        f"machine ({WHEEL_MODEL}) labels them: no key, no network. The defaults decide the rest; "
        "the correct labels, which are included, only score."
    )
    with (
        TemporaryDirectory(prefix="testnuc-demo-") as folder,
        SyncTestNUC(labels, "local/zero-shot", embedder=WHEEL_MODEL) as nuc,
    ):
        results, review = nuc.classify_many(gold, progress=True), nuc.review(_JUDGED)
        _report(results, gold)
        if sys.stdin.isatty() and sys.stdout.isatty():
            _say(
                f"\nYour turn: judge {len(review)} messages, where strategies disagree. q skips it."
            )
            answer(review, str(Path(folder) / "review.json"))
        if by_hand := len(review.judged):
            nuc.learn(review)
        more = nuc.review(_ENOUGH - by_hand)
        for item in more:
            more.answer(item.index, gold[item.text])
        learned, after = nuc.learn(more), nuc.classify_many(gold)
        others = _ENOUGH - by_hand
        judged = f"{by_hand} by you, {others} by" if by_hand else f"{others} by"
        _say(f"\nJudged: {judged} the included correct labels, as a person would.\n{learned}")
        both = zip(results, after, strict=True)
        moved = [(a, b) for a, b in both if a.label != b.label and b.label]
        _say(
            f"\nRight before: {_accuracy(results, gold):.1%}. Right now: "
            f"{_accuracy(after, gold):.1%}; {len(moved):,} labels changed, for example:"
        )
        better = [(a, b) for a, b in moved if b.label == gold[b.text]]
        for a, b in sorted(better, key=lambda pair: -(pair[1].trust or 0.0))[:_SHOWN]:
            _say(f"  {a.label} -> {b.label}: {b.text}", cut=True)
        _say("\nThe same with your texts and a better model, from one command to the next:")
        print("  testnuc classify FILE --labels LABELS --model openai/gpt-4o-mini -o labeled.csv")


def _report(results: Results, gold: Mapping[str, str]) -> None:
    rows = sorted(results, key=lambda row: -(row.trust or 0.0))
    _say("")
    for row in [*rows[:_SHOWN], *rows[-_SHOWN:]]:
        right = "right" if row.label == gold[row.text] else "wrong"
        trust = "unknown" if row.trust is None else f"{row.trust:.2f}"
        _say(f"{trust:<7}  {row.label!s:<18.18}  {right}  {row.text}", cut=True)
    third = len(rows) // 3
    parts = (rows[:third], rows[third : 2 * third], rows[2 * third :])
    first, *others = (f"{_accuracy(part, gold):.0%}" for part in parts)
    _say(
        f"\n{len(rows):,} labels in {results.seconds:.1f} s; {_accuracy(rows, gold):.1%} right: "
        f"{first} in the third of most trust, then {', then '.join(others)}."
    )
    if results.diagnosis is not None:
        _say(f"{results.diagnosis.sentence('see below')}.")


def _say(text: str, *, cut: bool = False) -> None:
    """Print a text, wrapped to the terminal; or one line of it, cut."""
    width = shutil.get_terminal_size().columns
    for line in [text[:width]] if cut else text.split("\n"):
        print(line if cut else textwrap.fill(line, width))


def _accuracy(rows: Results | list[Classification], gold: Mapping[str, str]) -> float:
    return sum(row.label == gold[row.text] for row in rows) / len(rows)
