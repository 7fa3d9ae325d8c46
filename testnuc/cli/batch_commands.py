"""``testnuc batch``: the batch jobs of a store. Imports of the package are inside functions."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import typer

from testnuc.errors import InvalidInputError, TestNUCError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from testnuc.batch.manager import BatchManager, BatchState
    from testnuc.protocols import StoredBatch

__all__ = ["LANE", "REST", "batch"]

_PANEL = "Batches"

#: Options of commands that ask the LLM.
LANE = typer.Option(
    "live",
    help="live, or batch: the provider's batch API, at half the price, within a day; see --store.",
    rich_help_panel=_PANEL,
)
REST = typer.Option(
    "batch",
    help="Requests that a batch leaves unanswered: retry in another (batch), send live, or error.",
    rich_help_panel=_PANEL,
)

batch = typer.Typer(help="List, resume or cancel the batch jobs of a store.", no_args_is_help=True)

_STORE = typer.Argument(
    help="Path of an SQLite store, or postgresql://..", metavar="STORE", show_default=False
)
_IDS = typer.Argument(
    None, help="Start of an id, or the provider's id.", metavar="[ID]..", show_default=False
)

#: Digits of an id that are shown; enough to be unique.
_SHOWN = 12


@batch.command("list")
def list_(
    store: str = _STORE,
    ended: bool = typer.Option(False, "--all", help="Include batches that have ended."),  # noqa: FBT001, FBT003
) -> None:
    """List the open batches, with their status at the provider."""
    from testnuc.cli.event_loop import run_to_end

    async def look() -> list[BatchState]:
        async with _manager(store) as manager:
            return await manager.states(ended=ended)

    states = run_to_end(look())
    for state in states:
        _print(_line(state))
    if not states:
        _print("there are no batches" if ended else "no batch is open")


@batch.command("resume")
def resume(store: str = _STORE, ids: list[str] | None = _IDS) -> None:
    """Wait for open batches (all, or those named), and store their answers."""
    from testnuc.cli.event_loop import run_to_end

    async def work() -> list[BatchState]:
        async with _manager(store) as manager:
            batches = await manager.pick(ids or [])
            _tell(f"waiting for {len(batches)} batches; Ctrl-C stops waiting, not the batches")
            return await manager.resume(batches, lambda state: _print(_line(state)))

    states = run_to_end(work())
    calls = sum(s.batch.usage.calls for s in states if s.batch.usage is not None)
    sent = sum(s.batch.requests for s in states if s.batch.outcome is not None)
    _tell(f"{calls:,} of {sent:,} requests were answered; the answers are stored")
    if calls < sent:
        _tell("to request the others, classify the same texts again, with --lane batch or live")
    if any(state.error is not None for state in states):
        sys.exit(1)


@batch.command("cancel")
def cancel(
    store: str = _STORE,
    ids: list[str] | None = _IDS,
    everything: bool = typer.Option(False, "--all", help="All open batches."),  # noqa: FBT001, FBT003
) -> None:
    """Ask the provider to end batches early; answers so far are billed and can be stored."""
    from testnuc.cli.event_loop import run_to_end

    if bool(ids) == everything:
        raise InvalidInputError("name the batches to cancel, or give --all")

    async def work() -> list[BatchState]:
        async with _manager(store) as manager:
            return [await cancelled(manager, batch) for batch in await manager.pick(ids or [])]

    async def cancelled(manager: BatchManager, batch: StoredBatch) -> BatchState:
        try:
            return await manager.cancel(batch)
        except TestNUCError as error:
            from testnuc.batch.manager import BatchState

            # the others must be cancelled all the same
            return BatchState(batch, error=error)

    states = run_to_end(work())
    for state in states:
        _print(_line(state))
    _tell("answers so far are billed; `testnuc batch resume` stores them")
    if any(state.error is not None for state in states):
        sys.exit(1)


@asynccontextmanager
async def _manager(place: str) -> AsyncIterator[BatchManager]:
    from testnuc.batch.manager import BatchManager
    from testnuc.cli.files import require_store
    from testnuc.cli.options_of_run import opened_store

    require_store(place)
    async with opened_store(place) as store, BatchManager(store) as manager:
        yield manager


def _line(state: BatchState) -> str:
    from testnuc.cli.classify import cost

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
