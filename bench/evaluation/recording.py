"""Recordings: predictions and embeddings of a dataset, the input of all studies."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from bench.evaluation.datasets import Dataset
from testnuc import embedders
from testnuc._base.checks import hash_text
from testnuc._base.jsonl import write_whole
from testnuc.client import TestNUC
from testnuc.embedders.cache import embedder_name
from testnuc.errors import InvalidInputError
from testnuc.types import Prediction, Usage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from testnuc.protocols import Embedder, Method

__all__ = ["KnownVectors", "Recording", "embedded", "record", "record_runs"]

#: Texts per call of the embedder.
_CHUNK = 2_048


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Distinct texts with their gold labels, predictions and embeddings."""

    name: str
    names: tuple[str, ...]
    texts: tuple[str, ...]
    #: int32[N]: gold label as index in `names`; -1 for texts of another dataset.
    gold: NDArray[np.int32]
    #: int32[N]: predicted label; -1 if missing or outside the label set.
    labels: NDArray[np.int32]
    #: float32[N]: confidence; NaN if unknown.
    confidences: NDArray[np.float32]
    #: float16[N, dim], unit norm.
    vectors: NDArray[np.float16]

    def __post_init__(self) -> None:
        n = len(self.texts)
        for what in ("gold", "labels", "confidences", "vectors"):
            if len(getattr(self, what)) != n:
                raise InvalidInputError(
                    f"{what} has {len(getattr(self, what))} rows for {n} texts; give one per text"
                )
        if len(set(self.texts)) != n:
            raise InvalidInputError("texts contains a text twice; give distinct texts")

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        return f"<Recording of {self.name}: {len(self)} texts, alone {self.accuracy:.3f}>"

    @property
    def accuracy(self) -> float:
        """Accuracy of the predictions without a vote."""
        return float((self.labels == self.gold).mean())

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        predictions: Mapping[str, Prediction],
        vectors: NDArray[Any],
    ) -> Recording:
        """Return a recording of the distinct texts of a dataset.

        Parameters
        ----------
        dataset : Dataset
            Duplicate texts are dropped.
        predictions : mapping
            Text -> prediction; may lack texts.
        vectors : float[n_distinct, dim]
            An embedding of each distinct text, in order of first appearance.
        """
        dataset = dataset.distinct()
        at = {name: i for i, name in enumerate(dataset.names)}
        predicted = [predictions.get(text, Prediction(None)) for text in dataset.texts]
        return cls(
            dataset.name,
            dataset.names,
            dataset.texts,
            dataset.gold,
            np.array([-1 if p.label is None else at.get(p.label, -1) for p in predicted], np.int32),
            np.array(
                [np.nan if p.confidence is None else p.confidence for p in predicted], np.float32
            ),
            np.asarray(vectors, dtype=np.float16),
        )

    def with_vectors(self, vectors: NDArray[Any]) -> Recording:
        """Return the same predictions with other embeddings, float[N, dim]."""
        return replace(self, vectors=np.asarray(vectors, dtype=np.float16))


class KnownVectors:
    """An `Embedder` that returns precomputed embeddings, float[len(texts), dim].

    The embedder of these vectors, `otherwise`, embeds other texts, and gives its name to this
    embedder, so that stores share their embeddings.
    """

    def __init__(
        self, texts: Sequence[str], vectors: NDArray[Any], otherwise: str | Embedder
    ) -> None:
        if len(texts) != len(vectors):
            raise InvalidInputError(
                f"{len(vectors)} vectors for {len(texts)} texts; give one per text, in the same "
                "order"
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
        Folder for .npy files, named by a hash of the embedder and the texts.
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
    # sorted by length, because the longest text of a batch sets its runtime
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    vectors = np.empty((len(texts), made.dim), dtype=np.float16)
    for start in range(0, len(order), _CHUNK):
        rows = order[start : start + _CHUNK]
        vectors[rows] = await made.embed([texts[i] for i in rows])
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = BytesIO()
        np.save(content, vectors)
        write_whole(path, [content.getvalue()])
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
    """Predict each distinct text of a dataset once and return a recording.

    Stored predictions are reused: with ``store="answers.db"`` an interrupted run resumes.

    Parameters
    ----------
    dataset : Dataset
    model, method
        As for `TestNUC`. Few-shot examples are drawn from the whole dataset.
    embedder : str or Embedder
    vectors : float[n_distinct, dim], optional
        Precomputed embeddings of the distinct texts; see `embedded`.
    labels_of : Dataset, optional
        Use the label set of another dataset, for `accuracy_with_foreign_texts`. The gold labels are
        then -1.
    rows : sequence of int, optional
        The distinct texts to predict; default: all. Other texts have no prediction.
    agree : callable, optional
        Receives the estimated maximum usage (see `TestNUC.estimate`); if it returns False, no call
        is made and `InvalidInputError` is raised.
    progress : bool
        Show a progress bar.
    **client
        Passed to `TestNUC`: ``base_url``, ``api_key``, ``store``, ``budget``, ..

    Raises
    ------
    InvalidInputError
        `agree` returned False.
    """
    distinct = dataset.distinct()
    options = distinct if labels_of is None else labels_of
    predictions, vectors = await _predict(
        distinct,
        options,
        model,
        embedder,
        vectors=vectors,
        method=method,
        rows=rows,
        agree=agree,
        progress=progress,
        **client,
    )
    if labels_of is None:
        return Recording.of(distinct, predictions, vectors)
    # gold labels of another label set are unknown
    unknown = tuple(options.names[0] for _ in distinct.texts)
    foreign = replace(distinct, labels=unknown, names=options.names)
    recording = Recording.of(foreign, predictions, vectors)
    return replace(recording, gold=np.full(len(recording), -1, dtype=np.int32))


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
    """Predict each text `runs` times; returns one recording per run.

    The runs are the samples of `SelfConsistency`, which shares their stored predictions. Parameters
    are those of `record`.
    """
    distinct = dataset.distinct()
    predictions, found = await _predict(
        distinct,
        distinct,
        model,
        embedder,
        vectors=vectors,
        method=_EachSample(runs),
        rows=rows,
        agree=agree,
        progress=progress,
        **client,
    )
    # converted once: all recordings share them
    kept = np.asarray(found, dtype=np.float16)
    samples_of = {text: orjson.loads(p.said or "[]") for text, p in predictions.items()}
    recordings = []
    for run in range(runs):
        of_run = {
            text: Prediction(*samples[run])
            for text, samples in samples_of.items()
            if run < len(samples)
        }
        recordings.append(Recording.of(distinct, of_run, kept))
    return recordings


@dataclass(frozen=True, slots=True)
class _EachSample:
    """A method that returns all samples of a text as JSON in ``said``."""

    samples: int
    context: int = 0
    labeled: bool = False

    def reduce(self, samples: Sequence[Prediction]) -> Prediction:
        listed = [[sample.label, sample.confidence] for sample in samples]
        return Prediction(samples[0].label, samples[0].confidence, orjson.dumps(listed).decode())


async def _predict(
    distinct: Dataset,
    options: Dataset,
    model: Any,
    embedder: str | Embedder,
    *,
    vectors: NDArray[Any] | None = None,
    method: Method | None = None,
    rows: Sequence[int] | None = None,
    agree: Callable[[Usage], bool] | None = None,
    progress: bool = False,
    **client: Any,
) -> tuple[dict[str, Prediction], NDArray[Any]]:
    """Return the predictions of distinct texts with the labels of `options`, and all vectors."""
    if vectors is None:
        vectors = await embedded(distinct.texts, embedder)
    # LLMs get the labels unchanged, as in the paper; the zero-shot model compares embeddings and
    # needs words
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
        texts = distinct.texts if rows is None else [distinct.texts[i] for i in rows]
        if agree is not None and not agree(await nuc.estimate(texts)):
            raise InvalidInputError("cost estimate declined; no call was made")
        results = await nuc.classify_many(texts, progress=progress)
    return {r.text: r.prediction for r in results if r.prediction is not None}, vectors
