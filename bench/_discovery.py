"""Which labels `testnuc.discover` finds again, with a scripted model in place of the LLM."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from bench._label_check import read_sets
from bench._report import Report
from bench.evaluation.recording import KnownVectors
from testnuc import discover, embedders
from testnuc.protocols import Answer, Reply, TokenUsage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from testnuc.protocols import Request

_SETS = ("banking77.gpt-4o-mini", "clinc.zero-shot")
#: Labels of the ten central texts that must agree for their name to be given.
_AGREE = 6
_ERRORS, _HELD_OUT = 0.3, 10


class _Scripted:
    """Names a cluster by the right label of most of its central texts; else it makes a name up."""

    name, model, identity = "scripted", "namer", "1"

    def __init__(
        self, gold: Mapping[str, str], *, errors: float = 0, doubles: bool = False
    ) -> None:
        self._gold = {" ".join(text.split())[:300]: label for text, label in gold.items()}
        self._errors, self._doubles = errors, doubles
        self._random, self.calls = random.Random(0), 0

    async def answer(self, request: Request) -> Reply:
        """Name a cluster, say whether two labels are one, or label a text."""
        self.calls += 1
        answers = [self._said(text, request.task.labels) for text in request.texts]
        return Reply(tuple(Answer(said, 0.9) for said in answers), TokenUsage(0, 0))

    def _said(self, text: str, labels: Sequence[str]) -> str:
        if not labels and text.startswith("Label "):
            # a label of the list stays, but for errors
            name = text.partition("\n")[0].removeprefix("Label ")
            return f"made up {self.calls}" if self._random.random() < self._errors else name
        if not labels:
            return self._named(text)
        if labels == ("same", "different"):
            names = [re.sub(r" \(\d\)$", "", n) for n in re.findall(r"(?m)^Label (.*)$", text)]
            return labels[len(set(names)) > 1]
        right = self._gold[" ".join(text.split())[:300]]
        found = [name for name in labels if re.sub(r" \(\d\)$", "", name) == right]
        return self._random.choice(found) if found else labels[-1]

    def _named(self, text: str) -> str:
        central = text.partition("\n\n")[0].split("\n")[1:]
        most, number = Counter(self._gold[line[2:]] for line in central).most_common(1)[0]
        if number < _AGREE or self._random.random() < self._errors:
            return f"made up {self.calls}"
        return f"{most} ({self._random.randint(1, 3)})" if self._doubles else most


def discover_report(folder: Path, cache: Path, model: str) -> Report:
    """Count the labels that are found again, and all labels."""
    report = Report("labels", "Labels that discover finds again, with a scripted namer")
    for data, texts, names in read_sets(folder, cache, model, _SETS):
        gold = {text: names[place] for text, place in zip(texts, data.gold.tolist(), strict=True)}
        embedder = KnownVectors(texts, data.texts.vectors, embedders.resolve(model))
        held_out = names[:: len(names) // _HELD_OUT][:_HELD_OUT]
        old = [name for name in names if name not in held_out]
        for namer, more, given, n in (
            ("right", {}, (), None),
            ("right", {}, (), len(names)),
            ("errs in 30 %", {"errors": _ERRORS}, (), len(names)),
            ("names duplicates", {"doubles": True}, (), len(names)),
            ("right, ten labels missing", {}, old, len(names)),
        ):
            scripted: Any = _Scripted(gold, **more)
            found = asyncio.run(discover(texts, scripted, labels=given, n=n, embedder=embedder))
            plain = {re.sub(r" \(\d\)$", "", name) for name in found.labels}
            wanted: Sequence[str] = held_out if given else names
            report.row(
                set=data.name,
                namer=namer,
                n=n,
                found=len(plain & set(wanted)),
                of=len(wanted),
                labels=len(found.labels),
                dropped=len(found.dropped),
                calls=scripted.calls,
            )
    report.note("right: the label of most of ten central texts if six have it, else a made-up name")
    report.note("n: labels that discover is told to expect; -: by the number of texts")
    report.note("found: right labels that are names; labels: all names after merging")
    return report
