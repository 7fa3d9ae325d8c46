"""``testnuc batch``: the batches of a store."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from testnuc.batch.manager import BatchManager, BatchState
from testnuc.cli.classify import cost
from testnuc.cli.event_loop import run_to_end
from testnuc.errors import InvalidInputError, TestNUCError
from testnuc.stores import resolve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from testnuc.protocols import StoredBatch

__all__ = ["cancel", "list_", "resume"]

#: Digits of an id that are shown; enough to name it.
_SHOWN = 12


def list_(store: str, *, ended: bool) -> None:
    """Tell the open batches of a store, and with `ended` all others, too."""

    async def look() -> list[BatchState]:
        async with _manager(store) as manager:
            return await manager.states(ended=ended)

    states = run_to_end(look())
    for state in states:
        _print(_line(state))
    if not states:
        _print("no batch is open" if not ended else "there was no batch yet")


def resume(store: str, names: Sequence[str]) -> None:
    """Wait for batches, and put their answers in the store."""

    async def work() -> list[BatchState]:
        async with _manager(store) as manager:
            batches = await manager.pick(names)
            _tell(f"waiting for {len(batches)} batches; Ctrl-C leaves them as they are")
            return await manager.resume(batches, lambda state: _print(_line(state)))

    states = run_to_end(work())
    calls = sum(s.batch.usage.calls for s in states if s.batch.usage is not None)
    sent = sum(s.batch.requests for s in states if s.batch.outcome is not None)
    _tell(f"{calls:,} of {sent:,} requests have an answer, which is in the store")
    if calls < sent:
        _tell("classify the same texts again with --lane batch, or live: the rest is asked")
    if any(state.error is not None for state in states):
        sys.exit(1)


def cancel(store: str, names: Sequence[str], *, everything: bool) -> None:
    """Ask providers to end batches early."""
    if bool(names) == everything:
        raise InvalidInputError("name the batches to cancel, or give --all")

    async def work() -> list[BatchState]:
        async with _manager(store) as manager:
            return [await cancelled(manager, batch) for batch in await manager.pick(names)]

    async def cancelled(manager: BatchManager, batch: StoredBatch) -> BatchState:
        try:
            return await manager.cancel(batch)
        except TestNUCError as error:
            # the others are to be cancelled all the same
            return BatchState(batch, error=error)

    states = run_to_end(work())
    for state in states:
        _print(_line(state))
    _tell("what they have answered is billed: `testnuc batch resume` puts it in the store")
    if any(state.error is not None for state in states):
        sys.exit(1)


@asynccontextmanager
async def _manager(place: str) -> AsyncIterator[BatchManager]:
    _require_file(place)
    store = resolve(place)
    await store.open()
    try:
        async with BatchManager(store) as manager:
            yield manager
    finally:
        await store.close()


def _require_file(place: str) -> None:
    if "://" not in place and not Path(place).is_file():
        raise InvalidInputError(f"there is no store {place}; check the path")


def _line(state: BatchState) -> str:
    batch = state.batch
    parts = [
        batch.id.hex()[:_SHOWN],
        f"{_status(state):<13}",
        f"{_progress(state):>17}",
        f"{batch.facts.get('provider')}/{batch.facts.get('model')}",
        datetime.fromtimestamp(batch.created).astimezone().strftime("%Y-%m-%d %H:%M"),
        batch.remote_id or "no id yet",
    ]
    if state.error is not None:
        parts.append(str(state.error))
    elif batch.usage is not None and batch.usage.calls:
        parts.append(cost(batch.usage))
    return "  ".join(parts)


def _status(state: BatchState) -> str:
    if state.batch.outcome is not None:
        return state.batch.outcome
    if state.remote is not None:
        return state.remote.status
    return "unknown" if state.error is not None else _intended(state.batch)


def _intended(batch: StoredBatch) -> str:
    return "intended" if batch.remote_id is None else "open"


def _progress(state: BatchState) -> str:
    total = state.batch.requests
    if state.batch.usage is not None:
        return f"{state.batch.usage.calls:,} of {total:,}"
    return f"{total:,}" if state.remote is None else f"{state.remote.done:,} of {total:,}"


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - this is the command's output


def _tell(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201 - this is the command's output
