"""The stages of a job, as Ray Data runs them: embed, predict, index, vote.

Each is a class whose instances live in actors, with Arrow tables as input and output. Vectors are
sent as fixed-size binary, float16. `LabelByHead` labels without an LLM.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from testnuc import embedders, stores
from testnuc._base.checks import hash_text, valid_text
from testnuc._base.loop_thread import Background
from testnuc.embedders.cache import EmbeddingCache
from testnuc.errors import InvalidInputError
from testnuc.head import Head
from testnuc.labels import as_stored
from testnuc.protocols import PoolText
from testnuc.ray.shards import Shards, Vectors
from testnuc.ray.workers import Asking, Voting
from testnuc.types import Prediction, error_text, row

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from testnuc.labels import LabelSet
    from testnuc.protocols import Embedder
    from testnuc.ray.shards import Outcome
    from testnuc.ray.workers import Settings
    from testnuc.trust import Decision

#: Columns added by a job, and their Arrow types.
_COLUMNS = {
    "label": "string",
    "share": "float64",
    "margin": "float64",
    "voters": "int64",
    "trust": "float64",
    "own_label": "string",
    "own_confidence": "float64",
    "error": "string",
    "reason": "string",
    "source": "string",
    "alternative": "string",
    "trust_of_alternative": "float64",
}
#: Columns with a list in each row: of several labels, and of labels in a tree.
_SEVERAL = {"labels": "string", "trusts": "float64"}
_TREE = {"path": "string", "path_trusts": "float64"}


def columns_of(labels: LabelSet) -> tuple[str, ...]:
    """Return the columns that a job adds."""
    return (*_COLUMNS, *_lists(labels))


def _lists(labels: LabelSet) -> dict[str, str]:
    if labels.multilabel:
        return _SEVERAL
    return {} if labels.tree is None else _TREE


def hash_texts(table: pa.Table, column: str, settings: Settings) -> pa.Table:
    """Return the texts of a table with their hashes; raises on invalid texts."""
    import pyarrow as pa

    texts = table[column].to_pylist()
    with settings.reporting_errors():
        for text in texts:
            problem = valid_text(text)
            if problem is not None:
                raise InvalidInputError(
                    f"column {column!r} has the value {text!r:.80}: the text {problem}; filter out "
                    "such rows"
                )
    hashes = [hash_text(text).hex() for text in texts]
    return pa.table({"hash": pa.array(hashes, pa.string()), "text": pa.array(texts, pa.string())})


class Embed:
    """Adds the vector of each text, or the error of one that the embedder rejects."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop = Background()
        store = stores.resolve(settings.client.get("store"))
        embedder = embedders.resolve(settings.client["embedder"])
        self._embedding = EmbeddingCache(embedder, store, Vectors())
        with settings.reporting_errors():
            self._loop.run(store.open())

    def __call__(self, table: pa.Table) -> pa.Table:
        """Embed a batch."""
        import pyarrow as pa

        texts, hashes = _texts(table)
        with self._settings.reporting_errors():
            vectors, errors = self._loop.run(self._embedding.each(texts, hashes))
            if errors and not vectors.shape[1]:
                # no text was accepted yet, so that the length of a vector is unknown
                raise errors[0]
        width = vectors.dtype.itemsize * vectors.shape[1]
        column = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(width), len(vectors), [None, pa.py_buffer(vectors.tobytes())]
        )
        said = [error_text(errors[at]) if at in errors else None for at in range(len(texts))]
        table = table.append_column("vector", column)
        return table.append_column("rejected", pa.array(said, pa.string()))


class Predict:
    """Adds the prediction of each text, or its error."""

    def __init__(self, settings: Settings) -> None:
        import ray

        self._settings = settings
        self._loop = Background()
        self._vectors = Vectors()
        limits, actor = settings.limits, ray.get_runtime_context().get_actor_id()

        async def client() -> Asking:
            return Asking(settings, limits, self._vectors, actor or "")

        with settings.reporting_errors():
            self._client = self._loop.run(client())

    def __call__(self, table: pa.Table) -> pa.Table:
        """Predict a batch; raises if no call can succeed."""
        import pyarrow as pa

        texts, hashes = _texts(table)
        self._vectors.of = {
            text_hash: vector
            for text_hash, vector, why in zip(
                hashes, _vectors(table), table["rejected"].to_pylist(), strict=True
            )
            if why is None
        }
        entries = [PoolText(text, h) for text, h in zip(texts, hashes, strict=True)]
        with self._settings.reporting_errors():
            outcomes = self._loop.run(self._client.predict(entries))
        said = [as_stored(o) if isinstance(o, Prediction) else Prediction(None) for o in outcomes]
        errors = [error_text(o) if isinstance(o, Exception) else None for o in outcomes]
        for name, values, kind in (
            ("label", [p.label for p in said], pa.string()),
            ("confidence", [p.confidence for p in said], pa.float64()),
            ("said", [p.said for p in said], pa.string()),
            ("error", errors, pa.string()),
        ):
            table = table.append_column(name, pa.array(values, kind))
        return table

    def __del__(self) -> None:
        # Ray deletes the object when the actor exits: close connections, cancel tasks
        with contextlib.suppress(Exception):
            self._loop.leave(self._client.aclose)


class BuildIndex:
    """Adds texts, vectors and predictions to the shards; returns their number and dimension."""

    def __init__(self, shards: Sequence[Any]) -> None:
        self._loop = Background()
        self._shards = Shards(shards)

    def __call__(self, table: pa.Table) -> pa.Table:
        """Add a batch to the shards."""
        import pyarrow as pa

        texts, hashes = _texts(table)
        outcomes: list[Outcome] = [
            error if error is not None else Prediction(label, confidence, said)
            for label, confidence, said, error in zip(
                *(table[name].to_pylist() for name in ("label", "confidence", "said", "error")),
                strict=True,
            )
        ]
        vectors = _vectors(table)
        rejected = table["rejected"].to_pylist()
        self._loop.run(self._shards.put(texts, hashes, vectors, outcomes, rejected))
        return pa.table({"texts": [len(texts)], "dim": [vectors.shape[1]]})


class Vote:
    """Adds the columns of the vote to the rows of the dataset."""

    def __init__(
        self,
        settings: Settings,
        shards: Sequence[Any],
        dim: int,
        decision: Decision | None,
        learned: bytes | None,
        column: str,
        prefix: str,
    ) -> None:
        self._loop = Background()
        self._column = column
        self._prefix = prefix

        async def client() -> Voting:
            return Voting(settings, Shards(shards), dim, decision, learned)

        self._client = self._loop.run(client())

    def __call__(self, table: pa.Table) -> pa.Table:
        """Vote on a batch."""
        import pyarrow as pa

        results = self._loop.run(self._client.vote(table[self._column].to_pylist()))
        rows = [row(result) for result in results]
        for name, kind in _COLUMNS.items():
            values = pa.array([fields[name] for fields in rows], kind)
            table = table.append_column(self._prefix + name, values)
        for name, kind in _lists(self._client.labels).items():
            # of a mapping, its values: they are in the order of the labels
            lists = [_listed(fields.get(name)) for fields in rows]
            values = pa.array(lists, pa.list_(pa.type_for_alias(kind)))
            table = table.append_column(self._prefix + name, values)
        return table


class LabelByHead:
    """Adds label and trust to the rows of a dataset.

    ``dataset.map_batches(LabelByHead, fn_constructor_args=("x.head",), batch_format="pyarrow",
    concurrency=4)``.

    Parameters
    ----------
    path : str
        A file from `TestNUC.distill`, which every machine can read.
    column : str
        With the texts.
    prefix : str
        Of the added columns ``label``, ``trust`` and ``error``, and ``labels`` if texts can have
        several; a text that the embedder rejects has an error alone.
    embedder : str or Embedder, optional
        As for `Head.load`.
    """

    def __init__(
        self,
        path: str,
        column: str = "text",
        prefix: str = "nuc_",
        embedder: str | Embedder | None = None,
    ) -> None:
        self._head = Head.load(path, embedder)
        self._column, self._prefix = column, prefix

    def __call__(self, table: pa.Table) -> pa.Table:
        """Label a batch."""
        import pyarrow as pa

        results = self._head.predict(table[self._column].to_pylist())
        errors = [error_text(result.error) for result in results]
        for name, values, kind in (
            ("label", results.labels, pa.string()),
            ("trust", [result.trust for result in results], pa.float64()),
            ("error", errors, pa.string()),
        ):
            table = table.append_column(self._prefix + name, pa.array(values, kind))
        if self._head.sets is not None:
            lists = pa.array(results.label_lists, pa.list_(pa.string()))
            table = table.append_column(self._prefix + "labels", lists)
        return table


def _listed(values: Mapping[str, Any] | Sequence[Any] | None) -> list[Any] | None:
    if values is None:
        return None
    return list(values.values() if isinstance(values, Mapping) else values)


def _texts(table: pa.Table) -> tuple[list[str], list[bytes]]:
    return table["text"].to_pylist(), [bytes.fromhex(h) for h in table["hash"].to_pylist()]


def _vectors(table: pa.Table) -> NDArray[np.float16]:
    """Return the vectors of a table, float16[rows, dim]."""
    column = table.combine_chunks()["vector"].chunk(0)
    width = column.type.byte_width
    flat = np.frombuffer(
        column.buffers()[1], np.float16, len(column) * width // 2, column.offset * width
    )
    return flat.reshape(len(column), width // 2)
