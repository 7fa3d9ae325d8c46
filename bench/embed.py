"""Embedding: texts per second by backend, and accuracy of the vote and of a head."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench import _embedders
from bench._recorded import distinct_rows, recorded_of
from bench._report import Report
from testnuc import embedders
from testnuc.embedders.cache import EmbeddingCache
from testnuc.index.memory_pool import Pool
from testnuc.protocols import PoolText
from testnuc.scoring import paired_difference
from testnuc.stores.memory import MemoryStore
from testnuc.trust.head import fit_folds, predict_folds
from testnuc.trust.model import one_hot

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from bench._recorded import Recorded

_K = 10
_WARM_UP = 64


class _Tokens:
    """Counts the tokens of forward passes, and those that are padding."""

    def __init__(self) -> None:
        self.all = self.real = 0

    def watch(self, model: Any) -> None:
        """Count what a sentence-transformers model gets from now on."""
        preprocess = model.preprocess

        def counted(*args: Any, **kwargs: Any) -> Any:
            features = preprocess(*args, **kwargs)
            mask = features.get("attention_mask")
            if mask is not None:
                self.all += mask.numel()
                self.real += int(mask.sum())
            return features

        model.preprocess = counted

    @property
    def padding(self) -> float | None:
        """Part of the tokens that is padding."""
        return 1 - self.real / self.all if self.all else None


async def _by_testnuc(name: str, texts: list[str], tokens: _Tokens) -> _embedders.Timed:
    """Embed as a client does, without a store."""
    embedder = embedders.resolve(name)
    await embedder.embed(texts[:_WARM_UP])
    if hasattr(embedder, "_model"):
        tokens.watch(embedder._model)
    cache = EmbeddingCache(embedder, MemoryStore(), Pool())
    entries = [PoolText.of(text) for text in texts]
    start = time.perf_counter(), time.process_time()
    vectors = await cache.vectors(entries)
    wall, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
    await cache.close()
    close = getattr(embedder, "close", None)
    if close is not None:
        await close()
    return _embedders.Timed(vectors, wall, cpu)


def _vote(data: Recorded) -> NDArray[np.bool_]:
    """Return the texts whose label after a vote is right."""
    found = data.texts.votes(data.texts.own, k=_K, own_weight=1.0).argmax(axis=1)
    right: NDArray[np.bool_] = found == data.gold
    return right


def _points(right: NDArray[np.bool_], plain: NDArray[np.bool_]) -> str:
    """Return the difference to the first row on the same texts, with its 95 % interval."""
    wins, losses = int((right & ~plain).sum()), int((plain & ~right).sum())
    found = paired_difference(wins, losses, len(right))
    return f"{100 * found.value:+.2f} ({100 * found.low:+.2f} to {100 * found.high:+.2f})"


def _head(data: Recorded) -> NDArray[np.bool_]:
    """Return the texts on which a head is right that learned the answers to other folds."""
    texts = data.texts
    heads = fit_folds(texts.vectors, one_hot(texts.own, texts.n_classes), texts.folds)
    labels = predict_folds(heads, texts.vectors, texts.folds).argmax(axis=1)
    right: NDArray[np.bool_] = labels == data.gold
    return right


def _recall(data: Recorded, plain: Recorded) -> float:
    """Return the part of the nearest neighbors by plain vectors that are nearest here, too."""
    here, there = data.texts.neighbors[:, :_K], plain.texts.neighbors[:, :_K]
    return float((here[:, :, None] == there[:, None, :]).any(axis=2).mean())


def _report(path: Path, given: argparse.Namespace) -> Report:
    rows = distinct_rows(path)
    texts = list(rows)[: given.texts]
    rows = {text: rows[text] for text in texts}
    report = Report(
        "embed",
        f"{path.stem}: {len(texts):,} texts; texts per second, part of the tokens that is padding, "
        f"part of the {_K} nearest neighbors that are those of the first row, and accuracy of the "
        f"recorded answers after a vote of {_K} neighbors, and of a head that learned them; the "
        "difference of each to the first row in points, with its 95 % interval",
    )
    first: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None = None
    plain: Recorded | None = None
    with tempfile.TemporaryDirectory() as temporary:
        ways: dict[str, Callable[[], str | _embedders.Timed]]
        ways = {name: partial(str, name) for name in given.embedders}
        if given.others:
            folder = Path(given.cache or temporary)
            folder.mkdir(parents=True, exist_ok=True)
            made = _embedders.ways(given.embedders[0], texts, folder)
            ways |= {name: made[name] for name in given.others}
        for name, way in ways.items():
            tokens = _Tokens()
            try:
                timed = _run(way, texts, tokens)
            except Exception as error:  # noqa: BLE001 - the table says what is not installed
                said = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                report.note(f"{name}: {said}")
                continue
            data = recorded_of(path.stem, rows, timed.vectors)
            plain = plain or data
            vote, head = _vote(data), _head(data)
            first = first or (vote, head)
            report.row(
                embedder=name,
                dim=timed.vectors.shape[1],
                **{
                    "texts/s": len(texts) / timed.wall,
                    "texts/s of CPU": len(texts) / timed.cpu,
                },
                padding=tokens.padding,
                recall=_recall(data, plain),
                vote=float(vote.mean()),
                head=float(head.mean()),
                **{
                    "vote, points": _points(vote, first[0]),
                    "head, points": _points(head, first[1]),
                },
            )
            print(f"{name}: done", file=sys.stderr, flush=True)
    return report


def _run(
    way: Callable[[], str | _embedders.Timed], texts: list[str], tokens: _Tokens
) -> _embedders.Timed:
    found = way()
    return asyncio.run(_by_testnuc(found, texts, tokens)) if isinstance(found, str) else found


def main(argv: list[str]) -> None:
    """Measure embedders on recorded predictions."""
    parser = argparse.ArgumentParser(prog="python -m bench embed", description=__doc__)
    parser.add_argument("--data", required=True, help="folder with predictions/")
    parser.add_argument("--set", default="banking77.gpt-4o-mini", help="a file without .jsonl")
    parser.add_argument("--texts", type=int, help="default: all")
    parser.add_argument(
        "--embedders", nargs="+", default=list(_embedders.NAMES), help="names, the plain one first"
    )
    parser.add_argument(
        "--others",
        nargs="*",
        choices=_embedders.OTHERS,
        default=list(_embedders.OTHERS),
        help="models that are made here from the plain one, and other libraries",
    )
    parser.add_argument("--cache", help="folder for models made here (default: a temporary one)")
    parser.add_argument("--json", help="write the result to this file")
    given = parser.parse_args(argv)
    inner = Path(given.data) / "predictions"
    path = (inner if inner.is_dir() else Path(given.data)) / f"{given.set}.jsonl"
    if not path.is_file():
        sys.exit(f"bench embed: {path} does not exist; check --data and --set")
    # exporters and quantizers warn about their own internals
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    report = _report(path, given)
    report.show()
    if given.json:
        report.write(given.json)
