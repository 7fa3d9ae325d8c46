"""``testnuc classify``: label the texts of a file."""

from __future__ import annotations

import shutil
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console

from testnuc.cli.client_factory import client_of
from testnuc.cli.event_loop import run_to_end
from testnuc.cli.files import check_output, read_table, usable, write_results
from testnuc.cli.progress import RunProgress
from testnuc.client import TestNUC
from testnuc.errors import InvalidInputError, SmallPoolWarning
from testnuc.limits import BatchPolicy
from testnuc.results import run_record

if TYPE_CHECKING:
    from testnuc.results import Results
    from testnuc.types import Estimate, Usage

__all__ = ["Kept", "cost", "label_all", "notes", "run", "show_estimate"]


def run(
    file: str,
    *,
    text_column: str,
    output: str | None,
    full: bool,
    dry_run: bool,
    client: dict[str, Any],
    lane: Any = "live",
    rest: Any = "batch",
) -> None:
    """Read, label, write; the bar and the summary go to stderr, so that stdout can be piped."""
    if lane == "batch" and not client["store"]:
        raise InvalidInputError(
            "--lane batch needs --store PATH: batches take hours, and the store is what finds "
            "their answers when this process has ended meanwhile"
        )
    policy = BatchPolicy(rest=rest)
    table = read_table(file, text_column)
    check_output(output, file, table, full=full)
    problems, valid = usable(table, file)
    texts = [table.texts[at] for at in valid]
    kept = Kept.of(client, output)
    if dry_run:
        show_estimate(texts, client, kept)
        return
    results, caught = label_all(texts, client, kept, lane=lane, batches=policy)
    labeled = dict(zip(valid, results, strict=True))
    try:
        write_results(output, table, labeled, problems, run=run_record(results) if full else None)
    except InvalidInputError as exc:
        if kept.where is None:
            raise
        raise InvalidInputError(f"{exc}; what was answered is kept in {kept.where}") from exc
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    notes(console, caught)
    console.print(_summary(results, len(problems), output), markup=False)
    if results.errors:
        first = results.errors[0]
        console.print(f"first error: {type(first.error).__name__}: {first.error}", markup=False)
        if kept.where is not None:
            console.print(f"to ask again for those, run it again: the others are in {kept.where}")
        if all(result.label is None for result in results):
            sys.exit(1)
    else:
        kept.tidy()


@dataclass(slots=True)
class Kept:
    """Where the answers of a run are kept until it is done."""

    #: The store; None: in memory.
    where: str | None
    #: The folder of a store that is for this run alone.
    folder: Path | None = None
    #: Whether that folder is new.
    new: bool = False

    @classmethod
    def of(cls, client: dict[str, Any], output: str | None) -> Kept:
        """Return the store of the user or, beside the output, one that goes when all is written.

        An interruption, or a machine that fails, then costs nothing. What is free needs none, and
        without an output there is no place for one.
        """
        if client["store"] is not None:
            return cls(client["store"])
        if output is None or client["model"].startswith("local/"):
            return cls(None)
        folder = Path(f"{output}.resume")
        return cls(str(folder / "answers.db"), folder, not folder.exists())

    def begin(self) -> None:
        """Make the folder."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as exc:
            raise InvalidInputError(
                f"{self.folder} cannot be made: {exc.strerror or exc}; write the output elsewhere, "
                "or name a --store"
            ) from exc

    def tidy(self) -> None:
        """Remove the folder: what it held is in the output."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def label_all(
    texts: list[str],
    client: dict[str, Any],
    kept: Kept,
    *,
    lane: Any = "live",
    batches: BatchPolicy | None = None,
) -> tuple[Results, list[warnings.WarningMessage]]:
    """Label texts; what was answered until Ctrl-C is kept, and how to go on is told."""
    nuc = client_of(client, store=kept.where, batches=batches)
    progress = RunProgress(lambda: nuc.usage)

    async def label() -> Results:
        kept.begin()
        async with nuc:
            return await nuc.classify_many(texts, progress=progress, lane=lane)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SmallPoolWarning)
        try:
            results = run_to_end(label())
        except KeyboardInterrupt:
            _interrupted(nuc, progress, kept, lane=lane)
        except Exception:
            if kept.new and not nuc.usage.calls:
                kept.tidy()
            raise
    return results, list(caught)


def _interrupted(nuc: TestNUC, progress: RunProgress, kept: Kept, *, lane: str) -> NoReturn:
    usage = nuc.usage
    line = f"interrupted: {progress.done:,} of {progress.texts:,} texts have their answer"
    if not progress.done:
        line = "interrupted before any text had its answer"
    elif kept.where is not None:
        line += f", kept in {kept.where}; to go on, run the same command again: "
        line += "nothing is paid for twice"
    elif usage.calls and not nuc.model.startswith("local/"):
        line += f"; the {usage.calls:,} answers are lost: name a --store to keep them"
    if lane == "batch":
        line += (
            f"; batches under way go on (testnuc batch list {kept.where}): the same command again "
            "goes on with them"
        )
    # in a line of its own, after what is left of a progress bar
    print(f"\ntestnuc: {line}", file=sys.stderr)  # noqa: T201 - the command's output
    if kept.new and not usage.calls:
        kept.tidy()
    sys.exit(130)


def show_estimate(texts: list[str], client: dict[str, Any], kept: Kept) -> None:
    """Print what labeling would cost; sends nothing, and leaves no store behind."""
    where = kept.where
    if where is not None and "://" not in where and not Path(where).exists():
        where = None
    # nothing is sent, so no key is needed
    given = {"api_key": "not-needed"} if client.get("api_key") is None else {}
    nuc = client_of(client, store=where, **given)

    async def estimate() -> Estimate:
        async with nuc:
            return await nuc.estimate(texts)

    usage = run_to_end(estimate())
    rows = {
        "texts": f"{len(texts):,}",
        "distinct texts": f"{len(set(texts)):,}",
        "answers that are stored": f"{usage.store_hits:,}",
        "calls": f"{usage.calls:,}",
        "input tokens, about": _number(usage.input_tokens),
        "output tokens, about": _number(usage.output_tokens),
        "US dollars, about": "unknown" if usage.usd is None else f"{usage.usd:.4f}",
    }
    print(f"{nuc.model}: nothing was sent")  # noqa: T201 - the command's output
    for name, value in rows.items():
        print(f"  {name:<24}{value:>14}")  # noqa: T201
    if len(usage.lanes) > 1:
        print(f"\n{usage}")  # noqa: T201


def _number(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def notes(console: Console, caught: list[warnings.WarningMessage]) -> None:
    """Print the warnings of the client, with the options that help."""
    for warning in caught:
        message = warning.message
        if isinstance(message, SmallPoolWarning):
            console.print(f"note: {message.problem}; {message.options}", markup=False)


def _summary(results: Results, invalid: int, output: str | None) -> str:
    parts = [
        f"{len(results) + invalid} texts in {results.seconds:.1f} s",
        f"{results.changed} labels changed by the vote",
        *([f"{len(results.errors)} with an error"] if results.errors else []),
        *([f"{invalid} without a usable text"] if invalid else []),
        f"{results.usage.calls} calls",
        *([f"{results.usage.store_hits} stored"] if results.usage.store_hits else []),
        cost(results.usage),
        *([f"written to {output}"] if output else []),
    ]
    return ", ".join(part for part in parts if part)


def cost(usage: Usage) -> str:
    """Tell tokens and dollars in a few words; nothing where nothing was spent."""
    tokens = None
    if usage.input_tokens is not None and usage.output_tokens is not None:
        tokens = usage.input_tokens + usage.output_tokens
    if not tokens:
        return "" if tokens == 0 else "tokens unknown"
    usd = "price unknown" if usage.usd is None else f"{usage.usd:.4f} USD"
    return f"{tokens:,} tokens, {usd}"
