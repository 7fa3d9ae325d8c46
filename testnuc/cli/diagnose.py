"""``testnuc diagnose``: estimate from stored predictions whether a vote would help."""

from __future__ import annotations

from types import SimpleNamespace

from testnuc.cli.answered_texts import opened
from testnuc.cli.files import require_kind
from testnuc.cli.next_steps import next_command
from testnuc.cli.options import Options
from testnuc.cli.reading import holds_rows, read_table
from testnuc.cli.run_note import RunNote
from testnuc.errors import InvalidInputError
from testnuc.results import read_results
from testnuc.types import MultilabelClassification


async def run(given: SimpleNamespace) -> None:
    """Print the diagnosis of the predictions in a file of results or a store."""
    source, column, plot = given.source, given.text_column, given.plot
    require_kind(plot, ".png", ".svg", ".pdf", what="plot")
    known = _with_labels(given.client, source, column) if holds_rows(source) else given.client
    async with opened(source, known, column) as (nuc, _):
        found = await nuc.diagnose()
    print(found.describe(next_command("review", given, "-n", "50")))
    if plot is not None:
        found.plot().savefig(plot, dpi=110)


def _with_labels(client: Options, file: str, text_column: str) -> Options:
    """Return the options, with the labels in a file whose run is not known."""
    table, run = read_table(file, text_column), RunNote.of(file).options
    results = read_results(table.rows, file, table.text_column)
    if run.get("multilabel") or isinstance(results[0], MultilabelClassification):
        raise InvalidInputError(
            f"{file} has several labels for a text, which diagnose does not judge; draw texts to "
            f"judge them: testnuc review {file}"
        )
    if client["labels"] is not None or run:
        return client
    labels = sorted({row.own_label for row in results if row.own_label is not None})
    if len(labels) < 2:
        raise InvalidInputError(
            f"{file} does not hold two of the LLM's own labels (column nuc_own_label); give a file "
            "written by `testnuc classify -o`"
        )
    return client.but(labels=labels)
