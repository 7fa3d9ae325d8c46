"""Predictions for `bench paper`: from a recorded file, or from a live model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from bench.evaluation.datasets import Dataset, load
from bench.evaluation.neighborhoods import nearest, splits
from bench.evaluation.recording import Recording, embedded, record
from testnuc.errors import InvalidInputError
from testnuc.testing import HashEmbedder, LoopbackLLM

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from testnuc.protocols import Method
    from testnuc.types import Usage

__all__ = [
    "agreement",
    "answers_in",
    "dataset_of",
    "file_of",
    "recorded",
    "recordings_by_method",
    "vectors_of",
]


def file_of(path: str, what: str) -> Path:
    """Return the path of a file; exits if it does not exist."""
    found = Path(path)
    if not found.is_file():
        sys.exit(f"bench paper: the {what} {found} does not exist; check the path")
    return found


def answers_in(path: str) -> list[dict[str, Any]]:
    """Return the rows of a file with recorded predictions."""
    content = file_of(path, "predictions file").read_bytes()
    return [orjson.loads(line) for line in content.split(b"\n") if line.strip()]


def dataset_of(arguments: argparse.Namespace, name: str) -> Dataset:
    """Load a dataset, sampled to ``--limit`` rows."""
    try:
        dataset = load(name, arguments.data)
    except InvalidInputError as exc:
        sys.exit(f"bench paper: cannot load dataset {name}: {exc}")
    return dataset.sample(arguments.limit)


async def vectors_of(
    arguments: argparse.Namespace, dataset: Dataset, embedder: str | None = None
) -> NDArray[Any]:
    """Return the embeddings of the distinct texts: from a file, the cache, or computed."""
    distinct = dataset.distinct()
    if arguments.embeddings and embedder is None:
        vectors = np.load(file_of(arguments.embeddings, "embeddings file"), allow_pickle=False)
        whole = load(dataset.name, arguments.data)
        if len(vectors) != len(whole):
            sys.exit(
                f"bench paper: {arguments.embeddings} has {len(vectors)} vectors for "
                f"{len(whole)} texts; give one row per text, in the same order"
            )
        row = {text: i for i, text in enumerate(whole.texts)}
        return np.asarray(vectors[[row[text] for text in distinct.texts]])
    name = embedder or arguments.embedder
    # baseline: lexical similarity only
    made = HashEmbedder() if name == "hash" else name
    return await embedded(distinct.texts, made, cache_dir=arguments.cache)


async def recorded(arguments: argparse.Namespace, dataset: Dataset) -> Recording:
    """Return recorded predictions, served to the client by a local server."""
    rows = answers_in(arguments.predictions)
    answers: dict[str, tuple[str, float | None]] = {}
    for row in rows:
        answers.setdefault(str(row["text"]), (str(row["prediction"]), row["confidence"]))
    missing = [text for text in dataset.texts if text not in answers]
    if missing:
        sys.exit(
            f"bench paper: the predictions do not match {dataset.name}: {len(missing)} texts have "
            f"none, such as {missing[0][:60]!r}"
        )
    vectors = await vectors_of(arguments, dataset)
    async with LoopbackLLM(answers) as llm:
        return await record(
            dataset,
            model="openai/gpt-4o-mini",
            base_url=llm.base_url,
            api_key="loopback",
            embedder=arguments.embedder,
            vectors=vectors,
            progress=sys.stderr.isatty(),
        )


async def recordings_by_method(
    arguments: argparse.Namespace, dataset: Dataset, methods: dict[str, Method]
) -> dict[str, Recording]:
    """Predict the test texts and their neighbors with each method."""
    vectors = await vectors_of(arguments, dataset)
    rows = _voting_rows(arguments, dataset, vectors)
    found = {}
    for name, method in methods.items():
        found[name] = await record(
            dataset,
            model=arguments.model,
            embedder=arguments.embedder,
            vectors=vectors,
            method=method,
            rows=rows,
            agree=agreement(arguments, f"{dataset.name}, {name}"),
            progress=sys.stderr.isatty(),
            base_url=arguments.base_url,
            api_key=arguments.api_key,
            store=arguments.store,
        )
    return found


def _voting_rows(
    arguments: argparse.Namespace, dataset: Dataset, vectors: NDArray[Any]
) -> Sequence[int]:
    """Return the rows of the test texts and of their neighbors."""
    unpredicted = Recording.of(dataset, {}, vectors)
    if arguments.test is None or arguments.whole:
        return range(len(unpredicted))
    wanted = np.zeros(len(unpredicted), dtype=np.bool_)
    k = max(arguments.k)
    for _, rows, pool in splits(unpredicted, test=arguments.test, seeds=range(arguments.seeds)):
        wanted[rows] = True
        if k:
            ids = nearest(unpredicted, k, rows=rows, pool=pool).ids
            wanted[ids[ids >= 0]] = True
    return [int(row) for row in np.flatnonzero(wanted)]


def agreement(arguments: argparse.Namespace, what: str) -> Callable[[Usage], bool]:
    """Return a callback that prints the estimated maximum cost and asks for confirmation."""

    def agree(usage: Usage) -> bool:
        if usage.usd == 0 or not usage.calls:
            return True
        price = "price unknown" if usage.usd is None else f"at most {usage.usd:.2f} USD"
        stored = f" ({usage.store_hits:,} predictions are stored)" if usage.store_hits else ""
        print(
            f"{what}: at most {usage.calls:,} calls to {arguments.model}, {usage.input_tokens:,} "
            f"input tokens and {usage.output_tokens:,} output tokens, {price}{stored}",
            flush=True,
        )
        if arguments.yes:
            return True
        if sys.stdin.isatty() and input("continue? [y/N] ").strip().lower() in {"y", "yes"}:
            return True
        sys.exit("bench paper: cost estimate declined; no call was made. Confirm with --yes")

    return agree
