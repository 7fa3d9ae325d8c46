"""A stage of Ray Data that labels by a distilled head, without an LLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testnuc.head import Head
from testnuc.types import error_text

if TYPE_CHECKING:
    import pyarrow as pa

    from testnuc.protocols import Embedder

__all__ = ["LabelByHead"]


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
        errors = [None if row.error is None else error_text(row.error) for row in results]
        for name, values, kind in (
            ("label", results.labels, pa.string()),
            ("trust", [row.trust for row in results], pa.float64()),
            ("error", errors, pa.string()),
        ):
            table = table.append_column(self._prefix + name, pa.array(values, kind))
        if self._head.sets is not None:
            lists = pa.array(results.label_lists, pa.list_(pa.string()))
            table = table.append_column(self._prefix + "labels", lists)
        return table
