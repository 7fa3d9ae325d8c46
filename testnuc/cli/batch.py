"""The commands of ``testnuc batch``; what they do is in `testnuc.cli.batch_commands`."""

from __future__ import annotations

import typer

__all__ = ["LANE", "REST", "batch"]

_PANEL = "Batches"

#: Options of commands that ask.
LANE = typer.Option(
    "live",
    help="live, or batch: the provider's batch API, at half the price, within a day; see --store.",
    rich_help_panel=_PANEL,
)
REST = typer.Option(
    "batch",
    help="What a batch leaves without an answer: sent in another (batch), asked live, or an error.",
    rich_help_panel=_PANEL,
)

batch = typer.Typer(
    help="Look at the batches of a store, go on with them, or cancel them.", no_args_is_help=True
)

_STORE = typer.Argument(
    help="Path of an SQLite store, or postgresql://..", metavar="STORE", show_default=False
)
_IDS = typer.Argument(
    None, help="The beginning of an id, or the provider's id.", metavar="[ID]..", show_default=False
)


@batch.command("list")
def list_(
    store: str = _STORE,
    ended: bool = typer.Option(False, "--all", help="Those that have ended, too."),  # noqa: FBT001, FBT003
) -> None:
    """Tell the batches that are open, as their provider sees them."""
    from testnuc.cli.batch_commands import list_

    list_(store, ended=ended)


@batch.command("resume")
def resume(store: str = _STORE, ids: list[str] | None = _IDS) -> None:
    """Wait for open batches (all of them, or those named), and store their answers."""
    from testnuc.cli.batch_commands import resume

    resume(store, ids or [])


@batch.command("cancel")
def cancel(
    store: str = _STORE,
    ids: list[str] | None = _IDS,
    everything: bool = typer.Option(False, "--all", help="All open batches."),  # noqa: FBT001, FBT003
) -> None:
    """Ask the provider to end batches early; what they have answered is billed, and kept."""
    from testnuc.cli.batch_commands import cancel

    cancel(store, ids or [], everything=everything)
