"""Parquet files of records and of tables; needs pyarrow."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from testnuc._base.checks import needing
from testnuc._base.jsonl import write_whole
from testnuc.errors import InvalidInputError
from testnuc.stores.export import Record

#: Fields of any record; those that a record lacks are null, which costs almost no space.
_FIELDS = "kind scope facts key hash sample label confidence said embedder text vector data counts"
_JSON = ("facts", "counts")
#: Bytes of values that are read: a constant, and so many for each byte of the file; what a value
#: takes beside its own bytes.
_MOST_BYTES, _RATIO, _OF_VALUE = 128 * 1024 * 1024, 200, 64
#: Rows of a table that are read at a time.
_BATCH = 1_000
#: Types of columns that are no strings.
_NUMBERS = {"sample": "int32", "confidence": "float64"}


@contextmanager
def writing(path: Path) -> Iterator[Callable[[list[Record]], None]]:
    """Yield a function that writes records of a store, one row group for each batch."""
    arrow, parquet = _pyarrow()
    types = {name: _NUMBERS.get(name, "string") for name in _FIELDS.split()}
    schema = arrow.schema([(name, getattr(arrow, of)()) for name, of in types.items()])
    with parquet.ParquetWriter(str(path), schema, compression="zstd") as file:

        def write(records: list[Record]) -> None:
            plain = [
                {n: orjson.dumps(v).decode() if n in _JSON else v for n, v in record.items()}
                for record in records
            ]
            file.write_table(arrow.Table.from_pylist(plain, schema=schema))

        yield write


def read(path: Path) -> Iterator[Record]:
    """Yield the records of a file."""
    arrow, parquet = _pyarrow()
    try:
        for batch in _batches(path, parquet.read_metadata(path), whole=False):
            for row in batch.to_pylist():
                yield {n: orjson.loads(v) if v and n in _JSON else v for n, v in row.items()}
    except InvalidInputError:
        raise
    except (arrow.ArrowException, OSError, KeyError, TypeError, ValueError) as exc:
        raise InvalidInputError(f"{path} is not a Parquet file of a store: {exc}") from exc


def read_rows(path: Path) -> tuple[list[dict[str, Any]], Any]:
    """Return the rows of a table, and its schema."""
    arrow, parquet = _pyarrow()
    try:
        facts = parquet.read_metadata(path)
        rows = [row for batch in _batches(path, facts, whole=True) for row in batch.to_pylist()]
        return rows, facts.schema.to_arrow_schema()
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as exc:
        raise InvalidInputError(f"{path} is not a Parquet file: {exc}") from exc
    except (OverflowError, ValueError) as exc:  # a time after the year 9999
        raise InvalidInputError(f"{path} holds a value that Python cannot: {exc}") from exc


def _batches(path: Path, facts: Any, *, whole: bool) -> Iterator[Any]:
    """Yield the batches of a file; bounds what they unpack to, as a `whole` or each alone."""
    _, parquet = _pyarrow()
    most = _MOST_BYTES + _RATIO * path.stat().st_size
    sizes, strings = [], set()
    for group in map(facts.row_group, range(facts.num_row_groups)):
        leaves = [group.column(column) for column in range(facts.num_columns)]
        sizes.append(sum(_OF_VALUE * of.num_values + of.total_uncompressed_size for of in leaves))
        # a value that is stored once may occur a million times: strings stay numbers until counted
        strings |= {of.path_in_schema for of in leaves if of.physical_type == "BYTE_ARRAY"}
    size = sum(sizes) if whole else max(sizes, default=0)
    _require_size(path, max(size, _OF_VALUE * facts.num_rows * whole), most)
    with parquet.ParquetFile(path, metadata=facts, read_dictionary=sorted(strings)) as file:
        for batch in file.iter_batches(batch_size=_BATCH):
            unpacked = sum(map(_size, batch.columns))
            size = size + unpacked if whole else unpacked
            _require_size(path, size, most)
            yield batch


def _size(array: Any) -> int:
    """Return the bytes of an array's strings, each written out, and of its numbers."""
    from pyarrow import compute, types

    if types.is_dictionary(array.type):
        lengths = compute.binary_length(array.dictionary)
        return int(compute.sum(lengths.take(array.indices)).as_py() or 0)
    if types.is_map(array.type):
        return _size(array.keys) + _size(array.items)
    if types.is_list(array.type) or types.is_large_list(array.type):
        return _size(array.flatten())
    if types.is_struct(array.type):
        return sum(map(_size, array.flatten()))
    return int(array.nbytes)


def _require_size(path: Path, size: int, most: int) -> None:
    if size > most:
        raise InvalidInputError(
            f"{path} unpacks to more than {most:,} bytes, far too many for its size; save a .csv"
        )


def schema_of(rows: Sequence[Mapping[str, Any]], schema: Any, added: Mapping[str, str]) -> Any:
    """Return the schema of rows, inferred by default, with columns `added`: name -> Arrow type."""
    arrow, _ = _pyarrow()
    if schema is None:
        names = dict.fromkeys(name for row in rows for name in row if name not in added)
        try:
            schema = [arrow.field(n, arrow.array([r.get(n) for r in rows]).type) for n in names]
        except (arrow.ArrowException, OverflowError) as exc:
            raise InvalidInputError(f"the rows cannot be written as Parquet: {exc}") from exc
    kept = [field for field in schema if field.name not in added]
    return arrow.schema([*kept, *((name, getattr(arrow, of)()) for name, of in added.items())])


def write_rows(
    path: Path, rows: Sequence[Mapping[str, Any]], schema: Any, added: Mapping[str, str]
) -> None:
    """Write a table atomically."""
    arrow, parquet = _pyarrow()
    buffer = arrow.BufferOutputStream()
    made = schema_of(rows, schema, added)
    parquet.write_table(arrow.Table.from_pylist(list(rows), schema=made), buffer)
    write_whole(path, [buffer.getvalue()])


def _pyarrow() -> tuple[Any, Any]:
    with needing(
        "Parquet files need pyarrow: pip install 'testnuc[parquet]', or give a .jsonl file"
    ):
        import pyarrow as pa
        from pyarrow import parquet
    return pa, parquet
