"""``testnuc store``, and ``testnuc batch``: list, resume and cancel the batch jobs of a store."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import typer

from testnuc._base.checks import hash_text
from testnuc._base.jsonl import replacing, table
from testnuc._engine.learning import erase_texts
from testnuc.batch.manager import BatchManager, BatchState
from testnuc.cli import parquet
from testnuc.cli.files import require_kind, require_store
from testnuc.cli.options import require_folder
from testnuc.cli.options_of_run import opened_store, stored_runs
from testnuc.cli.reading import existing, read_table, to_stderr, usable
from testnuc.errors import InvalidInputError, TestNUCError
from testnuc.results import cost
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
    counts: Counter[str] = Counter()
    with replacing(file) as part:
        async with opened_store(given.place) as opened:
            with _writing(kind, part) as write:
                async for batch in moving.dump(opened):
                    counts.update(record["kind"] for record in batch)
                    write(batch)
                write([{"kind": "end", "counts": dict(counts)}])
    to_stderr(f"exported {_counted(counts)} to {file}")


async def import_(given: SimpleNamespace) -> None:
    """Import everything in a file into a store; counts go to stderr."""
    file = given.file
    records = _read(_kind(file), existing(file))
    seen: Counter[str] = Counter()
    async with opened_store(given.place) as opened:
        await moving.load(opened, _checked(records, seen, file))
    to_stderr(f"imported {_counted(seen)} from {file}; existing entries were kept")


async def erase(given: SimpleNamespace) -> None:
    """Delete all that a store holds of the texts in a file; counts go to stderr."""
    require_store(given.place)
    read = read_table(given.file, given.text_column)
    hashes = {hash_text(read.texts[row]) for row in usable(read)[1]}
    async with opened_store(given.place) as opened:
        found = await erase_texts(opened, hashes)
    to_stderr(f"erased {len(found):,} of {len(hashes):,} texts")


async def runs(given: SimpleNamespace) -> None:
    """Print a line for each run, the newest last, and for each embedder."""
    require_store(given.place)
    lines = list(map(str, await stored_runs(given.place)))
    async with opened_store(given.place) as opened:
        _, texts = await opened.counts()
        for embedder, dim in await opened.embedders():
            lines.append(f"{texts[embedder]:,} texts, {embedder}, {dim} dimensions")
    print("\n".join(lines or ["the store is empty"]))


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
    return table(path) if kind == ".jsonl" else parquet.read(path)


def _is_export(kind: str, path: Path) -> bool:
    """Return whether a file may be replaced: an earlier export, or an empty file."""
    try:
        first = next(_read(kind, path), {"kind": "end"})
    except (InvalidInputError, OSError):
        return False
    return first.get("kind") in {*_COUNTED, "scope", "learned", "end"}


def _kind(file: str) -> str:
    require_kind(file, ".jsonl", ".parquet", what="export")
    return Path(file).suffix.lower()


def _counted(counts: Counter[str]) -> str:
    listed = ", ".join(f"{counts[kind]:,} {name}" for kind, name in _COUNTED.items())
    return listed + (", and what was learned" if counts["learned"] else "")


async def list_(given: SimpleNamespace) -> None:
    """List the open batches, or all."""
    async with _manager(given) as manager:
        states = await manager.states(ended=given.ended)
    _print(states)
    if not states:
        print("there are no batches" if given.ended else "no batch is open")


async def resume(given: SimpleNamespace) -> None:
    """Wait for open batches, and store their answers."""
    async with _manager(given) as manager:
        batches = await manager.pick(given.ids or [])
        to_stderr(f"waiting for {len(batches)} batches; Ctrl-C stops waiting, not the batches")
        states = await manager.resume(batches, lambda state: _print([state]))
    calls = sum(s.batch.usage.calls for s in states if s.batch.usage is not None)
    sent = sum(s.batch.requests for s in states if s.batch.outcome is not None)
    to_stderr(f"{calls:,} of {sent:,} requests were answered; the answers are stored")
    if calls < sent:
        to_stderr("to request the others, classify the same texts again, with --lane batch or live")
    _exit(states)


async def cancel(given: SimpleNamespace) -> None:
    """Ask the provider to end batches early."""
    if bool(given.ids) == given.everything:
        raise InvalidInputError("name the batches to cancel, or give --all")
    states = []
    async with _manager(given) as manager:
        for batch in await manager.pick(given.ids or []):
            try:
                states.append(await manager.cancel(batch))
            except TestNUCError as error:
                # the others must be cancelled all the same
                states.append(BatchState(batch, error=error))
    _print(states)
    to_stderr("answers so far are billed; `testnuc batch resume` stores them")
    _exit(states)


@asynccontextmanager
async def _manager(given: SimpleNamespace) -> AsyncIterator[BatchManager]:
    require_store(given.store)
    async with opened_store(given.store) as store, BatchManager(store, given.base_url) as manager:
        yield manager


def _exit(states: Iterable[BatchState]) -> None:
    if any(state.error is not None for state in states):
        raise typer.Exit(1)


def _print(states: Iterable[BatchState]) -> None:
    for state in states:
        print(_line(state), flush=True)


def _line(state: BatchState) -> str:
    batch, remote = state.batch, state.remote
    status = batch.outcome or (None if remote is None else remote.status)
    if status is None:
        status = "intended" if batch.remote_id is None else "open"
        status = status if state.error is None else "unknown"
    done = batch.usage.calls if batch.usage is not None else None if remote is None else remote.done
    parts = [
        # enough to be unique
        batch.id.hex()[:12],
        f"{status:<13}",
        f"{'' if done is None else f'{done:,} of '}{batch.requests:,}".rjust(17),
        f"{batch.facts.get('provider')}/{batch.facts.get('model')}",
        datetime.fromtimestamp(batch.created).astimezone().strftime("%Y-%m-%d %H:%M"),
        batch.remote_id or "no id yet",
    ]
    if state.error is not None:
        parts.append(str(state.error))
    elif batch.usage is not None and batch.usage.calls:
        parts.append(cost(batch.usage))
    return "  ".join(parts)
