"""What a million texts cost, by how they are asked about, with the accuracy of recorded answers."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import orjson

from bench._batch_api import BatchLLM
from bench._report import Report
from bench.evaluation.recording import KnownVectors
from testnuc import Sampling, TestNUC, UncertaintySampling, embedders
from testnuc.embedders.sentence_transformers import WHEEL_MODEL
from testnuc.limits.budget import PICO, Price
from testnuc.protocols import TokenUsage

if TYPE_CHECKING:
    from pathlib import Path

    from testnuc.types import Estimate, Usage

__all__ = ["report_of"]

_MILLION = 1_000_000
_MODEL = "gpt-4o-mini"
_PACK, _SHORT, _JUDGED = 20, 5, 50


@dataclass(frozen=True, slots=True)
class _Data:
    """Texts with recorded answers and right labels."""

    name: str
    labels: list[str]
    answers: dict[str, tuple[str, float | None]]
    gold: dict[str, str]
    embedder: KnownVectors


@dataclass(frozen=True, slots=True)
class _Way:
    """How texts are asked about."""

    name: str
    lane: Literal["live", "batch"] = "live"
    judged: bool = False
    #: Texts the LLM labels however many there are; a head trained on them labels the others.
    answers: int | None = None
    arguments: dict[str, Any] = field(default_factory=dict)


def _packed(labeler: UncertaintySampling | str = "llm") -> dict[str, Any]:
    return {"sampling": Sampling(texts_per_call=_PACK), "labeler": labeler}


def _ways() -> list[_Way]:
    quarter, tenth = UncertaintySampling(max_fraction=0.25), UncertaintySampling(max_fraction=0.1)
    pack = f"{_PACK} texts a call"
    both = f"{pack}, batch lane"
    judged = f"{_JUDGED} judged texts"
    return [
        _Way("each text alone"),
        _Way("batch lane", "batch"),
        _Way(f"shortlist={_SHORT}", arguments={"sampling": Sampling(shortlist=_SHORT)}),
        _Way(pack, arguments=_packed()),
        _Way(
            f"{pack}, shortlist={_SHORT}",
            arguments={"sampling": Sampling(texts_per_call=_PACK, shortlist=_SHORT)},
        ),
        _Way(both, "batch", arguments=_packed()),
        _Way("a quarter, where unsure", arguments={"labeler": quarter}),
        _Way(f"a quarter, {judged}", judged=True, arguments={"labeler": quarter}),
        _Way(f"a quarter, {both}", "batch", arguments=_packed(quarter)),
        _Way(f"a quarter, {both}, {judged}", "batch", judged=True, arguments=_packed(quarter)),
        _Way(f"a tenth, {both}", "batch", arguments=_packed(tenth)),
        _Way(f"a tenth, {both}, {judged}", "batch", judged=True, arguments=_packed(tenth)),
        _Way(f"5,000 texts, {both}", "batch", answers=5_000, arguments=_packed()),
        _Way(
            f"5,000 texts, {both}, {judged}",
            "batch",
            judged=True,
            answers=5_000,
            arguments=_packed(),
        ),
    ]


def _read(folder: Path, dataset: str, most: int) -> _Data:
    found = sorted((folder / "predictions").glob(f"{dataset}.*.jsonl"))
    if not found:
        sys.exit(f"bench cost: {folder}/predictions has no {dataset}.*.jsonl; check --data")
    rows = [orjson.loads(line) for line in found[0].read_bytes().splitlines() if line.strip()]
    labels = sorted({row["gold"] for row in rows})
    vectors = sorted((folder / "embeddings").glob(f"{dataset}.*.npy"))
    known = np.load(vectors[0], allow_pickle=False) if vectors else np.empty((0, 384))
    # evenly spaced, the same in every run
    step = max(len(rows) // most, 1)
    rows, known = rows[::step][:most], known[::step][:most]
    texts = [row["text"] for row in rows]
    # of the labels, for shortlists
    otherwise = embedders.resolve(WHEEL_MODEL)
    return _Data(
        found[0].stem,
        labels,
        {row["text"]: (row["prediction"], row["confidence"]) for row in reversed(rows)},
        {row["text"]: row["gold"] for row in reversed(rows)},
        KnownVectors(texts[: len(known)], known, otherwise),
    )


async def _asked(data: _Data, way: _Way) -> tuple[Estimate, Usage, float]:
    """Return what a run was estimated at, what it used, and its accuracy."""
    texts = list(data.gold)
    asked, others = texts, list[str]()
    if way.answers:
        # at random; a small set is halved
        drawn = [texts[at] for at in np.random.default_rng(0).permutation(len(texts))]
        most = min(way.answers, len(texts) // 2)
        asked, others = drawn[:most], drawn[most:]
    async with (
        BatchLLM(data.answers) as llm,
        TestNUC(
            data.labels,
            model=f"openai/{_MODEL}",
            base_url=llm.base_url,
            api_key="loopback",
            embedder=data.embedder,
            **way.arguments,
        ) as nuc,
    ):
        estimate = await nuc.estimate(asked)
        results = await nuc.classify_many(asked, lane=way.lane)
        if way.judged:
            review = await nuc.review(_JUDGED)
            for item in review:
                review.answer(item.text, data.gold[item.text])
            await nuc.learn(review)
            results = await nuc.classify_many(asked, lane=way.lane)
        if others:
            with tempfile.TemporaryDirectory() as folder:
                head = await nuc.distill(f"{folder}/million.head")
            results = head.predict(others)
        if (llm.calls, llm.input_tokens) != (nuc.usage.calls, nuc.usage.input_tokens):
            sys.exit("bench cost: the server and the client counted differently")
        right = sum(result.label == data.gold[result.text] for result in results)
        return estimate, nuc.usage, right / len(results)


def _usd(way: _Way, sent: int | None, received: int | None) -> float:
    price = Price.of("openai", _MODEL, batch=way.lane == "batch")
    assert price is not None
    return price.pico(TokenUsage(sent or 0, received or 0)) / PICO


async def report_of(folder: Path, dataset: str, most: int) -> Report:
    """Run each way on recorded answers, and scale its cost to a million texts."""
    data = _read(folder, dataset, most)
    n = len(data.gold)
    report = Report(
        "cost of a million texts",
        f"{data.name}: {n:,} texts, {len(data.labels)} labels, policy auto; US dollars for a "
        f"million such texts at the prices of {_MODEL}, and accuracy of the {n:,}; where a number "
        "of texts is given, the LLM labels these however many there are, a head the others, and "
        "accuracy is of others",
    )
    for way in _ways():
        estimate, usage, accuracy = await _asked(data, way)
        scale = 1 if way.answers else _MILLION / n
        report.row(
            way=way.name,
            **{
                "calls": round(usage.calls * scale),
                "input tokens a text": (usage.input_tokens or 0) / n,
                "output tokens a text": (usage.output_tokens or 0) / n,
                "USD": scale * _usd(way, usage.input_tokens, usage.output_tokens),
                "estimate, USD": scale * _usd(way, estimate.input_tokens, estimate.output_tokens),
                "accuracy": accuracy,
            },
        )
    report.note("USD: of the calls made; tokens estimated at 4 characters each, without the schema")
    report.note("estimate: what `estimate` says before the run, on purpose rather too high")
    report.note(
        "accuracy: the LLM was recorded with one text in a call and all labels; what packing and "
        "shortlists change in its answers is not in it"
    )
    return report
