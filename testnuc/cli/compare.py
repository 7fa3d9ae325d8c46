"""``testnuc compare``: where two files of results differ."""

from dataclasses import replace
from types import SimpleNamespace

from testnuc.cli.reading import Table, read_table, require_labels, to_stderr
from testnuc.errors import InvalidInputError
from testnuc.records import text_of
from testnuc.scoring import compare
from testnuc.types import Classification


def run(given: SimpleNamespace) -> None:
    """Print how many labels differ, by pair of labels, and the accuracy if the truth is known."""
    files, column = (given.first, given.second), given.label_column
    tables = [read_table(file, given.text_column) for file in files]
    for file, table in zip(files, tables, strict=True):
        require_labels(file, table.columns, column)
    first, second = (_results(table, column) for table in tables)
    found = compare(first, second)
    if found.only_first or found.only_second:
        to_stderr(
            f"note: {found.only_first:,} texts are only in {files[0]}, {found.only_second:,} only "
            f"in {files[1]}"
        )
    if given.gold is not None:
        where = next((at for at, table in enumerate(tables) if given.gold in table.columns), None)
        if where is None:
            raise InvalidInputError(
                f"neither {files[0]} nor {files[1]} has a column {given.gold!r}; name the column "
                "of correct labels with --gold"
            )
        gold = {row.text: row.label for row in _results(tables[where], given.gold) if row.label}
        known = [row for row in first if row.text in gold]
        if not known:
            raise InvalidInputError(f"{files[where]} has no label in column {given.gold!r}")
        scored = compare(known, second, [gold[row.text] for row in known])
        found = replace(found, accuracies=scored.accuracies, gain=scored.gain, judged=scored.judged)
    print(found.describe(given.examples))


def _results(table: Table, column: str) -> list[Classification]:
    """Return the texts of a file with the labels in a column."""
    return [
        Classification(
            at,
            str(text),
            (text_of(row.get(column)) or "").strip() or None,
            source=row.get("nuc_source"),
        )
        for at, (text, row) in enumerate(zip(table.texts, table.rows, strict=True))
    ]
