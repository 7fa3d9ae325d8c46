"""What the check of a label set finds, against correct labels: recorded answers, and others."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from bench._recorded import Recorded, distinct_rows, read_recorded
from bench._report import Report
from testnuc import embedders
from testnuc._engine.shortlist import described
from testnuc.labels import LabelSet
from testnuc.trust.label_check import LabelCheck, checked_labels
from testnuc.types import Classification, Neighbor, Prediction

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_RECORDED = (
    "banking77.gpt-4o-mini",
    "banking77_test.qwen2.5-7b",
    "banking77_test.qwen3-1.7b",
    "mr.gpt-3.5-turbo",
    "babe_media_bias.gpt-3.5",
    "babe_media_bias.gpt-4",
    "security_requirements.gpt-4o-mini",
    "security_requirements.mistral",
    "security_requirements.mistral-nemo",
)
#: Answered by the label whose name is nearest, as `local/zero-shot` does.
_ZERO_SHOT = ("clinc.zero-shot", "stackexchange.zero-shot")
_TOP, _DRAWS = 20, 20


def read_sets(
    folder: Path, cache: Path, model: str, sets: Sequence[str] = (*_RECORDED, *_ZERO_SHOT)
) -> list[tuple[Recorded, list[str], list[str]]]:
    """Return sets with their texts and label names."""
    files = [folder / "predictions" / f"{name}.jsonl" for name in sets if name in _RECORDED]
    cache.mkdir(parents=True, exist_ok=True)
    for name in (stem.partition(".")[0] for stem in sets if stem in _ZERO_SHOT):
        plain = folder / "datasets" / name / "small.jsonl"
        lines = [orjson.loads(line) for line in plain.read_bytes().splitlines()]
        plain_rows = [{"text": r["input"], "gold": r["label"], "prediction": None} for r in lines]
        files.append(cache / f"{name}.zero-shot.jsonl")
        files[-1].write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in plain_rows))
    found = []
    for file in files:
        data, rows = read_recorded(file, cache, model), distinct_rows(file)
        names = sorted({row["gold"] for row in rows.values()})
        if file.stem.endswith("zero-shot"):
            of_labels = asyncio.run(embedders.resolve(model).embed(described(LabelSet(names))))
            nearest = (data.texts.vectors.astype(np.float32) @ of_labels.T).argmax(axis=1)
            data = replace(data, texts=replace(data.texts, own=nearest.astype(np.int32)))
        found.append((data, list(rows), names))
    return found


def _check(
    data: Recorded, texts: list[str], names: list[str], own: NDArray[np.int32]
) -> LabelCheck:
    """Check labels by answers `own` and the neighbors of a set."""
    labels = [None if place < 0 else names[place] for place in own.tolist()]
    near = data.texts
    every: Any = zip(near.neighbors.tolist(), near.similarities.tolist(), strict=True)
    rows = [
        Classification(
            index=at, text=text, label=labels[at], share=0, margin=0, voters=1, complete=True,
            prediction=Prediction(labels[at], said=None if labels[at] else "outside"),
            neighbors=tuple(
                Neighbor(texts[other], similarity, labels[other], None)
                for other, similarity in zip(others, similarities, strict=True) if other >= 0
            ),
        )
        for at, (text, (others, similarities)) in enumerate(zip(texts, every, strict=True))
    ]  # fmt: skip
    return checked_labels(rows, names)


def _gain(
    own: NDArray[np.int32], gold: NDArray[np.int32], n: int, pairs: Iterable[tuple[int, int]]
) -> float:
    """Return how much more accurate answers are once pairs of labels are one."""
    one = np.arange(n + 1)  # the last is no label
    for first, second in pairs:
        one[one == one[first]] = one[second]
    return float((one[own] == one[gold]).mean() - (own == gold).mean())


def check_report(folder: Path, cache: Path, model: str) -> Report:
    """Compare what is found without correct labels with what is so."""
    report = Report("labels", "Checks of label sets by recorded answers, against correct labels")
    random = np.random.default_rng(0)
    for data, texts, names in read_sets(folder, cache, model):
        n, gold = len(names), data.gold
        shuffled = random.permutation(data.texts.own)
        for kind, own in (("LLM", data.texts.own), ("correct", gold), ("shuffled", shuffled)):
            found = _check(data, texts, names, own)
            chosen = [(names.index(p.first), names.index(p.second)) for p in found.pairs]
            wrong = np.zeros((n, n), dtype=np.int64)
            known = own >= 0
            np.add.at(wrong, (own[known], gold[known]), 1)
            both = np.triu(wrong + wrong.T, 1)
            most = np.argsort(-both, axis=None, kind="stable")[:_TOP]
            truly = {divmod(int(at), n) for at in most if both.flat[at]}
            upper = np.argwhere(np.triu(np.ones((n, n)), 1))
            draws = [random.permutation(upper)[: len(chosen)].tolist() for _ in range(_DRAWS)]
            report.row(
                set=data.name,
                answers=kind,
                labels=n,
                accuracy=float((own == gold).mean()),
                alarm="yes" if found.proved and found.pairs else "no",
                pairs=len(chosen),
                **{
                    "of the 20": len(truly & set(chosen)),
                    "gain said": sum(pair.share for pair in found.pairs),
                    "gain": _gain(own, gold, n, chosen),
                    "at random": float(np.mean([_gain(own, gold, n, d) for d in draws])),
                    "best 20": _gain(own, gold, n, truly) if n > _TOP else None,
                },
            )
    report.note("alarm: near copies disagree, and pairs of labels stand out among neighbors")
    report.note("of the 20: pairs listed among the 20 that are truly confused most often")
    report.note("gain said: without correct labels; gain: accuracy after merging these pairs, less")
    report.note(f"before; at random: of as many random pairs, the mean of {_DRAWS} draws; best 20:")
    report.note("of the 20 that are truly confused most often")
    report.note("answers: the LLM's; the correct labels, where any alarm is false; the LLM's in")
    report.note("another order, as if it guessed")
    return report
