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

__all__ = ["AnswerStore", "cost", "label_all", "notes", "run", "show_estimate"]


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
    """Read, label, write; progress and summary go to stderr, so that stdout can be piped."""
    if lane == "batch" and not client["store"]:
        raise InvalidInputError(
            "--lane batch needs --store PATH: batches take hours, and the store is where a later "
            "process finds them if this one ends"
        )
    policy = BatchPolicy(rest=rest)
    table = read_table(file, text_column)
    check_output(output, file, table, full=full)
    problems, valid = usable(table, file)
    texts = [table.texts[at] for at in valid]
    store = AnswerStore.of(client, output)
    if dry_run:
        show_estimate(texts, client, store)
        return
    results, caught = label_all(texts, client, store, lane=lane, batches=policy)
    labeled = dict(zip(valid, results, strict=True))
    try:
        write_results(output, table, labeled, problems, run=run_record(results) if full else None)
    except InvalidInputError as exc:
        if store.where is None:
            raise
        raise InvalidInputError(f"{exc}; the answers are stored in {store.where}") from exc
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    notes(console, caught)
    console.print(_summary(results, len(problems), output), markup=False)
    if results.errors:
        first = results.errors[0]
        console.print(f"first error: {type(first.error).__name__}: {first.error}", markup=False)
        if store.where is not None:
            console.print(
                f"to retry those, run the command again: the others are stored in {store.where}"
            )
        if all(result.label is None for result in results):
            sys.exit(1)
    else:
        store.remove()


@dataclass(slots=True)
class AnswerStore:
    """The store of one run's answers, temporary where the user named none."""

    #: Its path or URL; None: in memory.
    where: str | None
    #: The folder of a temporary store.
    folder: Path | None = None
    #: Whether this run creates the folder.
    new: bool = False

    @classmethod
    def of(cls, client: dict[str, Any], output: str | None) -> AnswerStore:
        """Return the user's store, or a temporary one beside the output.

        An interrupted run can then be resumed without repeating calls. A local model needs no
        store, and without an output there is no place for one.
        """
        if client["store"] is not None:
            return cls(client["store"])
        if output is None or client["model"].startswith("local/"):
            return cls(None)
        folder = Path(f"{output}.resume")
        return cls(str(folder / "answers.db"), folder, not folder.exists())

    def create(self) -> None:
        """Create the folder."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as exc:
            raise InvalidInputError(
                f"{self.folder} cannot be created: {exc.strerror or exc}; write the output "
                "elsewhere, or name a --store"
            ) from exc

    def remove(self) -> None:
        """Remove the folder: its answers are in the output."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def label_all(
    texts: list[str],
    client: dict[str, Any],
    store: AnswerStore,
    *,
    lane: Any = "live",
    batches: BatchPolicy | None = None,
) -> tuple[Results, list[warnings.WarningMessage]]:
    """Label texts; after Ctrl-C, print how to resume."""
    nuc = client_of(client, store=store.where, batches=batches)
    progress = RunProgress(lambda: nuc.usage)

    async def label() -> Results:
        store.create()
        async with nuc:
            return await nuc.classify_many(texts, progress=progress, lane=lane)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SmallPoolWarning)
        try:
            results = run_to_end(label())
        except KeyboardInterrupt:
            _interrupted(nuc, progress, store, lane=lane)
        except Exception:
            if store.new and not nuc.usage.calls:
                store.remove()
            raise
    return results, list(caught)


def _interrupted(nuc: TestNUC, progress: RunProgress, store: AnswerStore, *, lane: str) -> NoReturn:
    usage = nuc.usage
    line = f"interrupted: {progress.done:,} of {progress.texts:,} texts are answered"
    if not progress.done:
        line = "interrupted before any text was answered"
    elif store.where is not None:
        line += (
            f"; the answers are stored in {store.where}; to resume, run the same command again: "
        )
        line += "stored answers are not requested again"
    elif usage.calls and not nuc.model.startswith("local/"):
        line += f"; the {usage.calls:,} answers are lost: use --store to store them"
    if lane == "batch":
        line += (
            f"; running batches continue (testnuc batch list {store.where}), and the same command "
            "resumes them"
        )
    # on a line of its own, after the progress bar
    print(f"\ntestnuc: {line}", file=sys.stderr)  # noqa: T201 - the command's output
    if store.new and not usage.calls:
        store.remove()
    sys.exit(130)


def show_estimate(texts: list[str], client: dict[str, Any], store: AnswerStore) -> None:
    """Print the estimated cost; sends nothing, and creates no store."""
    where = store.where
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
        "stored answers": f"{usage.store_hits:,}",
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
    """Format tokens and dollars; empty where nothing was spent."""
    tokens = None
    if usage.input_tokens is not None and usage.output_tokens is not None:
        tokens = usage.input_tokens + usage.output_tokens
    if not tokens:
        return "" if tokens == 0 else "tokens unknown"
    usd = "price unknown" if usage.usd is None else f"{usage.usd:.4f} USD"
    return f"{tokens:,} tokens, {usd}"
