"""``testnuc classify``: label the texts of a file."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

from rich.console import Console

from testnuc.cli.clients import client_of
from testnuc.cli.files import check_output, read_table, write_results
from testnuc.cli.loop import run_to_end
from testnuc.client import SmallPoolWarning
from testnuc.errors import InvalidInputError
from testnuc.limits import BatchPolicy
from testnuc.prompts import valid_text
from testnuc.records import run_record

if TYPE_CHECKING:
    from testnuc.results import Results, Usage

__all__ = ["run"]


def run(
    file: str,
    *,
    text_column: str,
    output: str | None,
    full: bool,
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
    check_output(output, file, full=full)
    problems = {at: p for at, text in enumerate(table.texts) if (p := valid_text(text))}
    valid = [at for at in range(len(table.rows)) if at not in problems]
    if not valid:
        at, problem = next(iter(problems.items()))
        raise InvalidInputError(f"{file} has no usable text: row {at + 1} {problem}")
    nuc = client_of(client, batches=policy)

    async def label() -> Results:
        async with nuc:
            texts = [table.texts[at] for at in valid]
            return await nuc.classify_many(texts, progress=True, lane=lane)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SmallPoolWarning)
        try:
            results = run_to_end(label())
        except KeyboardInterrupt:
            if lane == "batch":
                _tell(
                    "batches under way go on; the same command goes on with them, and so does "
                    f"testnuc batch resume {client['store']}"
                )
            raise
    labeled = dict(zip(valid, results, strict=True))
    write_results(output, table, labeled, problems, run=run_record(results) if full else None)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for warning in caught:
        if issubclass(warning.category, SmallPoolWarning):
            console.print(f"note: {warning.message}")
    console.print(_summary(results, len(problems), output))
    if results.errors:
        first = results.errors[0]
        console.print(f"first error: {type(first.error).__name__}: {first.error}")
        if all(result.label is None for result in results):
            sys.exit(1)


def _tell(line: str) -> None:
    print(f"\ntestnuc: {line}", file=sys.stderr)  # noqa: T201 - the command's output


def _summary(results: Results, invalid: int, output: str | None) -> str:
    parts = [
        f"{len(results)} texts in {results.seconds:.1f} s",
        f"{results.changed} labels changed by the vote",
        *([f"{len(results.errors)} with an error"] if results.errors else []),
        *([f"{invalid} without a usable text"] if invalid else []),
        f"{results.usage.calls} calls",
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
