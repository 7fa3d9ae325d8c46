"""What a labeler said of each text of a dataset, and where the texts lie: what studies work on."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from testnuc import embedders
from testnuc._base.checks import hash_text
from testnuc.client import TestNUC
from testnuc.embedders.cache import embedder_name
from testnuc.errors import InvalidInputError
from testnuc.evaluation.datasets import Dataset
from testnuc.types import Prediction, Usage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from testnuc.protocols import Embedder, Method

__all__ = ["KnownVectors", "Recording", "embedded", "record", "record_runs"]

#: Texts embedded between two looks at the clock.
_CHUNK = 2_048


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Distinct texts with their gold labels, predictions and embeddings, row by row."""

    name: str
    names: tuple[str, ...]
    texts: tuple[str, ...]
    #: int32[N]: index in `names`; -1: none of them (a text of another dataset).
    gold: NDArray[np.int32]
    #: int32[N]: -1: no prediction, or one outside the label set.
    labels: NDArray[np.int32]
    #: float32[N]: NaN where the labeler gave none.
    confidences: NDArray[np.float32]
    #: float16[N, dim], unit norm.
    vectors: NDArray[np.float16]

    def __post_init__(self) -> None:
        n = len(self.texts)
        for what in ("gold", "labels", "confidences", "vectors"):
            if len(getattr(self, what)) != n:
                raise InvalidInputError(
                    f"{what} has {len(getattr(self, what))} rows for {n} texts; give one for each"
                )
        if len(set(self.texts)) != n:
            raise InvalidInputError("a text is there twice; give each wording once")

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        return f"<Recording of {self.name}: {len(self)} texts, alone {self.accuracy:.3f}>"

    @property
    def accuracy(self) -> float:
        """Part of the texts whose own prediction is right."""
        return float((self.labels == self.gold).mean())

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        predictions: Mapping[str, Prediction],
        vectors: NDArray[Any],
    ) -> Recording:
        """Put together what is known of the distinct texts of a dataset.

        Parameters
        ----------
        dataset : Dataset
            Texts that occur again are left out.
        predictions : mapping
            Text -> prediction; a text without one has none.
        vectors : float[n_distinct, dim]
            An embedding of each distinct text, in order of first appearance.
        """
        dataset = dataset.distinct()
        at = {name: i for i, name in enumerate(dataset.names)}
        said = [predictions.get(text, Prediction(None)) for text in dataset.texts]
        return cls(
            dataset.name,
            dataset.names,
            dataset.texts,
            dataset.gold,
            np.array([-1 if p.label is None else at.get(p.label, -1) for p in said], np.int32),
            np.array([np.nan if p.confidence is None else p.confidence for p in said], np.float32),
            np.asarray(vectors, dtype=np.float16),
        )

    def with_vectors(self, vectors: NDArray[Any]) -> Recording:
        """Return the same answers with the embeddings of another embedder."""
        return replace(self, vectors=np.asarray(vectors, dtype=np.float16))


class KnownVectors:
    """Embeddings computed earlier, as an `Embedder`; other texts go to the embedder they are from.

    Parameters
    ----------
    texts : sequence of str
    vectors : float[len(texts), dim]
    otherwise : str or Embedder
        Gives its name, too: in stores these are its embeddings.
    """

    def __init__(
        self, texts: Sequence[str], vectors: NDArray[Any], otherwise: str | Embedder
    ) -> None:
        if len(texts) != len(vectors):
            raise InvalidInputError(
                f"{len(vectors)} vectors for {len(texts)} texts; give the embeddings of these "
                "texts, row for row"
            )
        self._row = {text: row for row, text in enumerate(texts)}
        self._vectors = vectors
        self._otherwise = embedders.resolve(otherwise)
        self.dim = int(vectors.shape[1])
        self.name = embedder_name(self._otherwise)

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32[len(texts), dim]."""
        found = np.empty((len(texts), self.dim), dtype=np.float32)
        others = [i for i, text in enumerate(texts) if text not in self._row]
        for i, text in enumerate(texts):
            if text in self._row:
                found[i] = self._vectors[self._row[text]]
        if others:
            found[others] = await self._otherwise.embed([texts[i] for i in others])
        return found


async def embedded(
    texts: Sequence[str],
    embedder: str | Embedder,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
) -> NDArray[np.float16]:
    """Return the embedding of each text, float16[len(texts), dim].

    Parameters
    ----------
    texts : sequence of str
    embedder : str or Embedder
    cache_dir : path, optional
        Where embeddings are kept as .npy files, by the embedder and the texts.
    """
    made = embedders.resolve(embedder)
    name = embedder_name(made)
    path = None
    if cache_dir is not None:
        digest = blake2b(name.encode(), digest_size=16)
        for text in texts:
            digest.update(hash_text(text))
        path = Path(cache_dir) / f"{name.replace('/', '--')}-{digest.hexdigest()}.npy"
        if path.is_file():
            cached: NDArray[np.float16] = np.load(path, allow_pickle=False)
            return cached
    # texts of like length together: a batch is as slow as its longest
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    vectors = np.empty((len(texts), made.dim), dtype=np.float16)
    for start in range(0, len(order), _CHUNK):
        rows = order[start : start + _CHUNK]
        vectors[rows] = await made.embed([texts[i] for i in rows])
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part")
        with partial.open("wb") as file:
            np.save(file, vectors)
        partial.replace(path)
    return vectors


async def record(
    dataset: Dataset,
    *,
    model: Any = "openai/gpt-4o-mini",
    embedder: str | Embedder = "sentence-transformers/all-MiniLM-L6-v2",
    vectors: NDArray[Any] | None = None,
    labels_of: Dataset | None = None,
    method: Method | None = None,
    rows: Sequence[int] | None = None,
    agree: Callable[[Usage], bool] | None = None,
    progress: bool = False,
    **client: Any,
) -> Recording:
    """Ask about the distinct texts of a dataset, once each, and return what was said.

    What is stored is not asked again: with ``store="answers.db"`` an interrupted run goes on where
    it was.

    Parameters
    ----------
    dataset : Dataset
    model, method
        As for `TestNUC`. The examples of in-context methods are texts of the whole dataset.
    embedder : str or Embedder
    vectors : float[n_distinct, dim], optional
        Embeddings of the distinct texts, computed earlier; see `embedded`.
    labels_of : Dataset, optional
        Ask with the label set of another dataset: how a pool is polluted with foreign texts. The
        gold labels are -1 then.
    rows : sequence of int, optional
        Which distinct texts to ask about; default: all. The others have no prediction.
    agree : callable, optional
        Given what it will cost at most (see `TestNUC.estimate`); False: nothing is asked, and
        `InvalidInputError` is raised.
    progress : bool
    **client
        Passed to `TestNUC`: ``base_url``, ``api_key``, ``store``, ``budget``, ..
    """
    found, _ = await _asked(
        dataset, model, embedder, vectors, labels_of, method, rows, agree, progress, client
    )
    return found


async def record_runs(
    dataset: Dataset,
    runs: int = 10,
    *,
    model: Any = "openai/gpt-4o-mini",
    embedder: str | Embedder = "sentence-transformers/all-MiniLM-L6-v2",
    vectors: NDArray[Any] | None = None,
    rows: Sequence[int] | None = None,
    agree: Callable[[Usage], bool] | None = None,
    progress: bool = False,
    **client: Any,
) -> list[Recording]:
    """Ask `runs` times about each text; returns a recording of each run.

    The answers are the samples of `SelfConsistency`, and stored as such. The parameters are those
    of `record`.
    """
    method = _EachSample(runs)
    first, said = await _asked(
        dataset, model, embedder, vectors, None, method, rows, agree, progress, client
    )
    distinct = dataset.distinct()
    recordings = []
    for run in range(runs):
        predictions = {
            text: Prediction(*samples[run]) for text, samples in said.items() if run < len(samples)
        }
        recordings.append(Recording.of(distinct, predictions, first.vectors))
    return recordings


@dataclass(frozen=True, slots=True)
class _EachSample:
    """Keeps the samples of a text apart: they stand in ``said`` as JSON."""

    samples: int
    context: int = 0
    labeled: bool = False

    def reduce(self, samples: Sequence[Prediction]) -> Prediction:
        listed = [[sample.label, sample.confidence] for sample in samples]
        return Prediction(samples[0].label, samples[0].confidence, orjson.dumps(listed).decode())


async def _asked(
    dataset: Dataset,
    model: Any,
    embedder: str | Embedder,
    vectors: NDArray[Any] | None,
    labels_of: Dataset | None,
    method: Method | None,
    rows: Sequence[int] | None,
    agree: Callable[[Usage], bool] | None,
    progress: bool,  # noqa: FBT001 - private, and always given
    client: dict[str, Any],
) -> tuple[Recording, dict[str, list[tuple[str | None, float | None]]]]:
    distinct = dataset.distinct()
    if vectors is None:
        vectors = await embedded(distinct.texts, embedder)
    options = distinct if labels_of is None else labels_of
    # an LLM is given the labels as they are, as in the paper; what compares words needs words
    labels: Any = options.descriptions if model == "local/zero-shot" else options.names
    async with TestNUC(
        labels,
        model,
        embedder=KnownVectors(distinct.texts, vectors, embedder),
        k=0,
        policy="weighted",
        method=method,
        **client,
    ) as nuc:
        if method is not None and method.context:
            await nuc.add(distinct.texts)
        asked = distinct.texts if rows is None else [distinct.texts[i] for i in rows]
        if agree is not None and not agree(await nuc.estimate(asked)):
            raise InvalidInputError("nothing was asked: the estimate was not agreed to")
        results = await nuc.classify_many(asked, progress=progress)
    said = {r.text: r.prediction for r in results if r.prediction is not None}
    if labels_of is not None:
        gold = tuple(options.names[0] for _ in distinct.texts)
        distinct = replace(distinct, labels=gold, names=options.names)
    recording = Recording.of(distinct, said, vectors)
    if labels_of is not None:
        recording = replace(recording, gold=np.full(len(recording), -1, dtype=np.int32))
    samples = {}
    if isinstance(method, _EachSample):
        samples = {text: orjson.loads(p.said or "[]") for text, p in said.items()}
    return recording, samples
