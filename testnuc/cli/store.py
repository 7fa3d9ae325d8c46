"""``testnuc store``: export, import and inspect stores."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson

from testnuc._base.jsonl import part_of, table
from testnuc.cli import parquet
from testnuc.cli.files import require_store
from testnuc.cli.options import require_folder
from testnuc.cli.options_of_run import opened_store, stored_runs
from testnuc.cli.reading import existing, to_stderr
from testnuc.errors import InvalidInputError
from testnuc.stores import export as moving
from testnuc.stores.export import Record

#: Names of counted records, in order of output.
_COUNTED = {"prediction": "predictions", "text": "texts", "vector": "other vectors"}


async def export(given: SimpleNamespace) -> None:
    """Write everything in a store to a file; counts go to stderr."""
    file, path = given.file, Path(given.file)
    kind = _kind(file)
    require_store(given.place)
    require_folder(file)
    if path.exists() and not (path.is_file() and _is_export(kind, path)):
        raise InvalidInputError(f"{file} exists and is not an export of a store; name another file")
    # a temporary file first: an interruption must not leave a partial one
    part = part_of(path)
    counts: Counter[str] = Counter()
    try:
        async with opened_store(given.place) as opened:
            with _writing(kind, part) as write:
                async for batch in moving.dump(opened):
                    counts.update(record["kind"] for record in batch)
                    write(batch)
                write([{"kind": "end", "counts": dict(counts)}])
        part.replace(path)
    except OSError as exc:
        raise InvalidInputError(f"{file} cannot be written: {exc.strerror or exc}") from exc
    finally:
        part.unlink(missing_ok=True)
    to_stderr(f"exported {_counted(counts)} to {file}")


async def import_(given: SimpleNamespace) -> None:
    """Import everything in a file into a store; counts go to stderr."""
    file = given.file
    records = _read(_kind(file), existing(file))
    seen: Counter[str] = Counter()
    try:
        async with opened_store(given.place) as opened:
            await moving.load(opened, _checked(records, seen, file))
    except OSError as exc:
        raise InvalidInputError(f"{file} cannot be read: {exc.strerror or exc}") from exc
    to_stderr(f"imported {_counted(seen)} from {file}; existing entries were kept")


async def runs(given: SimpleNamespace) -> None:
    """Print a line for each run, the newest last, and for each embedder."""
    require_store(given.place)
    lines = list(map(str, await stored_runs(given.place)))
    async with opened_store(given.place) as opened:
        _, texts = await opened.counts()
        for embedder, dim in await opened.embedders():
            lines.append(f"{texts[embedder]:,} texts, {embedder}, {dim} dimensions")
    for line in lines or ["the store is empty"]:
        print(line)


def _checked(records: Iterable[Record], seen: Counter[str], file: str) -> Iterator[Record]:
    """Pass on records, and check that the file is complete."""
    whole = False
    for record in records:
        if record.get("kind") == "end":
            whole = record.get("counts") == dict(seen)
            continue
        kind = record.get("kind")
        seen[kind if isinstance(kind, str) else type(kind).__name__] += 1
        yield record
    if not whole:
        raise InvalidInputError(
            f"{file} is truncated or was changed: its records were imported, but the exported "
            "store held more; export it again"
        )


@contextmanager
def _writing(kind: str, path: Path) -> Iterator[Callable[[list[Record]], Any]]:
    if kind == ".parquet":
        with parquet.writing(path) as write:
            yield write
        return
    option = orjson.OPT_APPEND_NEWLINE
    with path.open("wb") as file:
        yield lambda records: file.writelines(orjson.dumps(r, option=option) for r in records)


def _read(kind: str, path: Path) -> Iterator[Record]:
    if kind == ".jsonl":
        return table(path)
    return parquet.read(path)


def _is_export(kind: str, path: Path) -> bool:
    """Return whether a file may be replaced: an earlier export, or an empty file."""
    try:
        first = next(_read(kind, path), {"kind": "end"})
    except (InvalidInputError, OSError):
        return False
    return first.get("kind") in {*_COUNTED, "scope", "learned", "end"}


def _kind(file: str) -> str:
    kind = Path(file).suffix.lower()
    if kind not in {".jsonl", ".parquet"}:
        raise InvalidInputError(f"{file} is neither .jsonl nor .parquet")
    return kind


def _counted(counts: Counter[str]) -> str:
    listed = ", ".join(f"{counts[kind]:,} {name}" for kind, name in _COUNTED.items())
    return listed + (", and what was learned" if counts["learned"] else "")
