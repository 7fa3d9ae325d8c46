"""Recorded predictions as arrays: distinct texts, vectors, neighbors and right labels."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from testnuc.index.nearest import NearestVectors
from testnuc.trust.head import folds_of
from testnuc.trust.model import Texts

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["Recorded", "distinct_rows", "labeled", "read_recorded", "recorded_of"]

_NEIGHBORS = 30


@dataclass(frozen=True, eq=False)
class Recorded:
    """The distinct texts of a file, in its order; answers outside the label set are -1."""

    name: str
    #: Of the texts alone: files with the same texts and labels are answers of two models.
    key: str
    texts: Texts
    gold: NDArray[np.int32]

    @property
    def alone(self) -> float:
        """Accuracy of the LLM's own labels."""
        return float((self.texts.own == self.gold).mean())

    def part(self, rows: NDArray[np.int64]) -> Recorded:
        """Return a set of some of the texts, with neighbors among them alone."""
        t = self.texts
        near = _neighbors(t.vectors[rows])
        made = Texts(t.vectors[rows], t.own[rows], *near, t.folds[rows], t.n_classes)
        return Recorded(self.name, self.key, made, self.gold[rows])


def read_recorded(path: Path, cache: Path, model: str) -> Recorded:
    """Read a file of rows with text, gold and prediction.

    Parameters
    ----------
    path : Path
    cache : Path
        Folder for embeddings and neighbors.
    model : str
        Embedder.
    """
    rows = distinct_rows(path)
    names, own, gold, hashes = labeled(rows)
    digest = blake2b(b"".join(hashes) + model.encode(), digest_size=8).hexdigest()
    file = cache / f"{path.stem.split('.')[0]}.{digest}.npy"
    if file.is_file():
        vectors = np.load(file, allow_pickle=False)
    else:
        vectors = asyncio.run(_embed(list(rows), model))
        cache.mkdir(parents=True, exist_ok=True)
        np.save(file, vectors)
    near = file.with_suffix(".neighbors.npz")
    if not near.is_file():
        ids, similarities = _neighbors(vectors)
        np.savez(near, ids=ids, similarities=similarities)
    with np.load(near, allow_pickle=False) as found:
        ids, similarities = found["ids"], found["similarities"]
    texts = Texts(vectors, own, ids, similarities, folds_of(hashes), len(names))
    return Recorded(path.stem, f"{digest} {names}", texts, gold)


def distinct_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a file by their text: the first of each."""
    rows: dict[str, dict[str, Any]] = {}
    for line in path.read_bytes().split(b"\n"):
        if line.strip():
            row = orjson.loads(line)
            rows.setdefault(row["text"], row)
    if not rows:
        sys.exit(f"bench: {path} has no rows")
    return rows


def recorded_of(
    name: str, rows: dict[str, dict[str, Any]], vectors: NDArray[np.float16]
) -> Recorded:
    """Return the set of some rows with vectors of their texts."""
    names, own, gold, hashes = labeled(rows)
    near = _neighbors(vectors)
    return Recorded(name, "", Texts(vectors, own, *near, folds_of(hashes), len(names)), gold)


def labeled(
    rows: dict[str, dict[str, Any]],
) -> tuple[list[str], NDArray[np.int32], NDArray[np.int32], list[bytes]]:
    """Return the label names, the recorded and right labels, and the hashes of texts."""
    names = sorted({row["gold"] for row in rows.values()})
    number = {name: i for i, name in enumerate(names)}
    own = np.array([number.get(row["prediction"], -1) for row in rows.values()], np.int32)
    gold = np.array([number[row["gold"]] for row in rows.values()], np.int32)
    return names, own, gold, [blake2b(text.encode(), digest_size=16).digest() for text in rows]


def _neighbors(vectors: NDArray[np.float16]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    n = len(vectors)
    index = NearestVectors(vectors.shape[1], exact_below=n + 1)
    index.add(vectors, np.arange(n, dtype=np.uint64))
    return index.search(vectors, _NEIGHBORS, exclude=np.arange(n, dtype=np.int64))


async def _embed(texts: list[str], model: str) -> NDArray[np.float16]:
    from testnuc import embedders

    embedder = embedders.resolve(model)
    out = np.empty((len(texts), embedder.dim), np.float16)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for start in range(0, len(order), 512):
        part = order[start : start + 512]
        out[part] = await embedder.embed([texts[i] for i in part])
    return out
