"""``testnuc batch``: list, resume and cancel the batch jobs of a store."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from types import SimpleNamespace

import typer

from testnuc.batch.manager import BatchManager, BatchState
from testnuc.cli.classify import cost
from testnuc.cli.files import require_store
from testnuc.cli.options_of_run import opened_store
from testnuc.cli.reading import to_stderr
from testnuc.errors import InvalidInputError, TestNUCError

#: Digits of an id that are shown; enough to be unique.
_SHOWN = 12


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
        batch.id.hex()[:_SHOWN],
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
