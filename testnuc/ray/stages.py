"""The stages of a job, as Ray Data runs them: embed, predict, vote.

Each is a class whose instances live in actors, with Arrow tables as input and output. Vectors are
sent as fixed-size binary, float16. `LabelByHead` labels without an LLM.

`Labeler` is the one client of a job that calls the LLM, in an actor of its own. So limits and
budget of a job are those of a client, and a call needs nothing of other processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from testnuc import embedders, stores
from testnuc._base.arrays import Float16s
from testnuc._base.checks import hash_text, valid_text
from testnuc._base.loop_thread import Background
from testnuc._engine.components import Components
from testnuc.embedders.cache import EmbeddingCache
from testnuc.errors import InvalidInputError, TestNUCError
from testnuc.head import Head
from testnuc.labels import LabelSet, as_stored
from testnuc.limits.budget import Mark
from testnuc.protocols import Embedder, PoolText
from testnuc.ray.workers import Outcome, Settings, Shards, Vectors, Voting, without_votes
from testnuc.types import CELLS, Prediction, error_text, row

if TYPE_CHECKING:
    import pyarrow as pa

#: Seconds for an answer of a `Labeler` about errors, which takes milliseconds.
PATIENCE = 60.0
#: Columns added by a job, and their Arrow types.
_COLUMNS = {name: kind for name, kind in CELLS.items() if name not in {"complete", "own_said"}}


def columns_of(labels: LabelSet) -> tuple[str, ...]:
    """Return the columns that a job adds."""
    return (*_COLUMNS, *_lists(labels))


def _lists(labels: LabelSet) -> dict[str, str]:
    """Return the columns with a list in each row."""
    if labels.multilabel:
        return {"labels": "string", "trusts": "float64"}
    return {} if labels.tree is None else {"path": "string", "path_trusts": "float64"}


def hash_texts(table: pa.Table, column: str, labeler: Any) -> pa.Table:
    """Return the texts of a table with their hashes; raises on invalid texts."""
    import pyarrow as pa

    texts = table[column].to_pylist()
    with reporting_errors(labeler):
        for text in texts:
            problem = valid_text(text)
            if problem is not None:
                raise InvalidInputError(
                    f"column {column!r} has the value {text!r:.80}: the text {problem}; filter out "
                    "such rows"
                )
    hashes = [hash_text(text).hex() for text in texts]
    return pa.table({"hash": pa.array(hashes, pa.string()), "text": pa.array(texts, pa.string())})


@contextmanager
def reporting_errors(labeler: Any) -> Iterator[None]:
    """Report an error of testnuc to the job: Ray passes on its text only."""
    import ray

    try:
        yield
    except TestNUCError as error:
        with suppress(ray.exceptions.RayError):
            ray.get(labeler.fail.remote(error), timeout=PATIENCE)
        raise


class Labeler:
    """Predicts batches, several at a time; keeps why the job fails.

    If its process dies, Ray starts another one, which answers what the first one had not. Under a
    budget the job ends instead: nobody knows what the dead process has spent. `again`: whether this
    is such another process.
    """

    def __init__(self, settings: Settings, *, again: bool | None = None) -> None:
        self._settings = settings
        if again is None:
            import ray

            again = ray.get_runtime_context().was_current_actor_reconstructed
        self._again = again
        self._failure: Exception | None = None
        self._parts: Components | None = None
        self._reported: Mark = ()
        #: Of the texts that are predicted now, for a provider that uses them.
        self._vectors = Vectors()

    async def predict(
        self, entries: Sequence[PoolText], vectors: dict[bytes, Float16s]
    ) -> tuple[list[Outcome], Mark]:
        """Return the prediction of each text, or its error; and the usage since the last report."""
        try:
            if self._parts is None:
                self._parts = without_votes(self._settings, self._vectors)
                self._reported = self._parts.meter.mark()
            if self._again and self._parts.limits.budget is not None:
                raise TestNUCError(  # noqa: TRY301
                    "the process that calls the LLM has died, and what it spent of the budget is "
                    "unknown; run the job again: stored answers are reused"
                )
            await self._parts.ready()
            self._vectors.of |= vectors
            pipeline = self._parts.pipeline
            run = pipeline.retriever.alone(entries, pipeline.settings)
            try:
                await pipeline.predict_own(run)
            finally:
                for text_hash in vectors:
                    self._vectors.of.pop(text_hash, None)
        except TestNUCError as error:
            await self.fail(error)
            raise
        before, self._reported = self._reported, self._parts.meter.mark()
        known = run.answers
        found = [known.predictions[i] or known.errors[i] for i in range(len(entries))]
        return (
            [as_stored(one) if isinstance(one, Prediction) else error_text(one) for one in found],
            tuple(now - then for now, then in zip(self._reported, before, strict=True)),
        )

    async def close(self) -> None:
        """Close the store and the connections."""
        if self._parts is not None:
            await self._parts.aclose()

    async def fail(self, error: Exception) -> None:
        """Note why the job fails; the first error stays."""
        self._failure = self._failure or error

    async def failure(self) -> Exception | None:
        """Return why the job failed: Ray's own exception holds only the text of ours."""
        return self._failure


class Embed:
    """Adds the vector of each text, or the error of one that the embedder rejects."""

    def __init__(self, settings: Settings, labeler: Any) -> None:
        self._labeler = labeler
        self._loop = Background()
        store = stores.resolve(settings.client.get("store"))
        embedder = embedders.resolve(settings.client["embedder"])
        self._embedding = EmbeddingCache(embedder, store, Vectors())
        with reporting_errors(labeler):
            self._loop.run(store.open())

    def __call__(self, table: pa.Table) -> pa.Table:
        """Embed a batch."""
        import pyarrow as pa

        texts = _texts(table)
        with reporting_errors(self._labeler):
            vectors, errors = self._loop.run(self._embedding.each(texts))
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
    """Has texts predicted by the job's `Labeler`, and puts them into the shards."""

    def __init__(self, labeler: Any, shards: Sequence[Any]) -> None:
        self._loop = Background()
        self._labeler, self._shards = labeler, Shards(shards)

    def __call__(self, table: pa.Table) -> pa.Table:
        """Predict a batch; raises if no call can succeed."""
        import pyarrow as pa
        import ray

        entries, vectors, rejected = _texts(table), _vectors(table), table["rejected"].to_pylist()
        embedded = {
            entry.hash: vector
            for entry, vector, why in zip(entries, vectors, rejected, strict=True)
            if why is None
        }
        outcomes, usage = ray.get(self._labeler.predict.remote(entries, embedded))
        known = list(zip(outcomes, rejected, strict=True))
        self._loop.run(self._shards.put(entries, vectors, known))
        return pa.table(
            {"texts": [len(entries)], "dim": [vectors.shape[1]], "usage": [list(usage)]}
        )


class Vote:
    """Adds the columns of the vote to the rows of the dataset; `voting` as for `Voting`."""

    def __init__(self, column: str, prefix: str, *voting: Any) -> None:
        self._loop = Background()
        self._column = column
        self._prefix = prefix

        async def client() -> Voting:
            return Voting(*voting)

        self._client = self._loop.run(client())

    def __call__(self, table: pa.Table) -> pa.Table:
        """Vote on a batch."""
        results = self._loop.run(self._client.vote(table[self._column].to_pylist()))
        rows = [row(result) for result in results]
        columns: dict[str, tuple[list[Any], Any]]
        columns = {name: ([r[name] for r in rows], kind) for name, kind in _COLUMNS.items()}
        for name, kind in _lists(self._client.labels).items():
            columns[name] = [_listed(r.get(name)) for r in rows], [kind]
        return _with_columns(table, self._prefix, **columns)


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
        results = self._head.predict(table[self._column].to_pylist())
        columns: dict[str, tuple[list[Any], Any]] = {
            "label": (results.labels, "string"),
            "trust": ([result.trust for result in results], "float64"),
            "error": ([error_text(result.error) for result in results], "string"),
        }
        if self._head.sets is not None:
            columns["labels"] = results.label_lists, ["string"]
        return _with_columns(table, self._prefix, **columns)


def _with_columns(
    table: pa.Table, prefix: str = "", /, **columns: tuple[Sequence[Any], str | list[str]]
) -> pa.Table:
    """Return a table with more columns, each its values and Arrow type; ``[type]``: lists of it."""
    import pyarrow as pa

    for name, (values, kind) in columns.items():
        given = pa.list_(pa.type_for_alias(*kind)) if isinstance(kind, list) else kind
        table = table.append_column(prefix + name, pa.array(values, given))
    return table


def _listed(values: Mapping[str, Any] | Sequence[Any] | None) -> list[Any] | None:
    """Return the values of a mapping in its order, which is that of the labels."""
    if values is None:
        return None
    return list(values.values() if isinstance(values, Mapping) else values)


def _texts(table: pa.Table) -> list[PoolText]:
    pairs = zip(table["text"].to_pylist(), table["hash"].to_pylist(), strict=True)
    return [PoolText(text, bytes.fromhex(digest)) for text, digest in pairs]


def _vectors(table: pa.Table) -> Float16s:
    """Return the vectors of a table, float16[rows, dim]."""
    column = table.combine_chunks()["vector"].chunk(0)
    width = column.type.byte_width
    flat = np.frombuffer(
        column.buffers()[1], np.float16, len(column) * width // 2, column.offset * width
    )
    return flat.reshape(len(column), width // 2)
