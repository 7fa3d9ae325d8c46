"""Parquet files of records and of tables; needs pyarrow."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import orjson

from testnuc._base.jsonl import write_whole
from testnuc.errors import InvalidInputError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from testnuc.stores.export import Record

__all__ = ["read", "read_rows", "schema_of", "write_rows", "writing"]

#: Columns of each kind of record; the others are null, which costs almost no space.
_OF = {
    "scope": ("kind", "scope", "facts"),
    "prediction": ("kind", "key", "scope", "hash", "sample", "label", "confidence", "said"),
    "text": ("kind", "embedder", "text", "label", "vector"),
    "vector": ("kind", "embedder", "hash", "vector"),
    "learned": ("kind", "key", "data"),
    "end": ("kind", "counts"),
}
_JSON = ("facts", "counts")
#: Types of columns that are no strings.
_NUMBERS = {"sample": "int32", "confidence": "float64"}


@contextmanager
def writing(path: Path) -> Iterator[Callable[[list[Record]], None]]:
    """Yield a function that writes records of a store, one row group for each batch."""
    arrow, parquet = _pyarrow()
    names = dict.fromkeys(name for columns in _OF.values() for name in columns)
    schema = arrow.schema(
        [(name, getattr(arrow, _NUMBERS.get(name, "string"))()) for name in names]
    )
    with parquet.ParquetWriter(str(path), schema, compression="zstd") as file:

        def write(records: list[Record]) -> None:
            plain = [
                {
                    name: orjson.dumps(value).decode() if name in _JSON else value
                    for name, value in record.items()
                }
                for record in records
            ]
            file.write_table(arrow.Table.from_pylist(plain, schema=schema))

        yield write


def read(path: Path) -> Iterator[Record]:
    """Yield the records of a file."""
    arrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(str(path)) as file:
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    yield {
                        name: orjson.loads(row[name]) if name in _JSON else row[name]
                        for name in _OF.get(row["kind"], ("kind",))
                    }
    except (arrow.ArrowException, KeyError, TypeError) as exc:
        raise InvalidInputError(f"{path} is not a Parquet file of a store: {exc}") from exc


def read_rows(path: Path) -> tuple[list[dict[str, Any]], Any]:
    """Return the rows of a table, and its schema."""
    arrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(str(path)) as file:
            whole = file.read()
    except (arrow.ArrowException, OSError) as exc:
        raise InvalidInputError(f"{path} is not a Parquet file: {exc}") from exc
    return whole.to_pylist(), whole.schema


def schema_of(rows: Sequence[Mapping[str, Any]], schema: Any, added: Mapping[str, str]) -> Any:
    """Return the schema of rows, inferred if None is given, with added columns.

    `added` is column -> Arrow type; they replace columns of the same name.
    """
    arrow, _ = _pyarrow()
    if schema is None:
        names = dict.fromkeys(name for row in rows for name in row if name not in added)
        try:
            schema = arrow.schema(
                [(name, arrow.array([row.get(name) for row in rows]).type) for name in names]
            )
        except (arrow.ArrowException, OverflowError) as exc:
            raise InvalidInputError(f"the rows cannot be written as Parquet: {exc}") from exc
    kept = [field for field in schema if field.name not in added]
    return arrow.schema([*kept, *((name, getattr(arrow, of)()) for name, of in added.items())])


def write_rows(
    path: Path, rows: Sequence[Mapping[str, Any]], schema: Any, added: Mapping[str, str]
) -> None:
    """Write a table atomically."""
    arrow, parquet = _pyarrow()
    made = schema_of(rows, schema, added)
    table = arrow.Table.from_pylist(list(rows), schema=made)
    buffer = arrow.BufferOutputStream()
    parquet.write_table(table, buffer)
    write_whole(path, [buffer.getvalue()])


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as exc:
        raise MissingDependencyError(
            "Parquet files need pyarrow; install it with: pip install 'testnuc[parquet]', or give "
            "a .jsonl file"
        ) from exc
    return pa, parquet
