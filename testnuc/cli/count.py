"""``testnuc count``."""

import csv
import io
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson

from testnuc._base.jsonl import write_whole
from testnuc.cli.answered_texts import labeled, opened, texts_for
from testnuc.cli.files import require_kind, require_new
from testnuc.cli.options_of_run import next_command
from testnuc.cli.reading import Table, to_stderr
from testnuc.errors import InvalidInputError
from testnuc.trust.counts import LEAST_JUDGED, Counts, counted


async def run(given: SimpleNamespace) -> None:
    """Count the labels of a file or a store by the judged texts, and print them."""
    source, output, plot = given.source, given.output, given.plot
    require_kind(output, ".csv", ".json")
    require_new(output, overwrite=given.overwrite)
    require_kind(plot, ".png", ".svg", ".pdf", what="plot")
    require_new(plot, overwrite=given.overwrite)
    if given.period is not None and given.by is None:
        raise InvalidInputError("--period needs --by, a column of dates")
    async with opened(source, given.client, given.text_column) as (nuc, held):
        table = await texts_for(nuc, held, source, None)
        groups = None if given.by is None else _groups(table, given.by, given.period)
        found = await labeled(nuc, table, source)
        if nuc.learned is None:
            raise InvalidInputError(
                f"nothing was judged in {source} yet; draw texts, judge them and learn: "
                + next_command("review", given, "-n", "100", "--goal", "count")
                + f"; what is judged already: testnuc learn {source} REVIEW.json -o better.csv"
            )
    rows = sorted(found.merged().items())
    counts = counted(
        [result for _, result in rows],
        nuc.learned,
        None if groups is None else [groups[at] for at, _ in rows],
        confidence=given.confidence,
        together=given.together,
        level=given.level,
        judge_error=given.judge_error,
        periods=given.period is not None,
    )
    print(counts)
    if output is not None:
        write_counts(counts, output)
    if plot is not None:
        # before it is written, as its suffix says how
        counts.plot(dark=given.dark).savefig(plot, dpi=150)
    least = min((count.judged for count in counts), default=0)
    if least < LEAST_JUDGED or given.output is given.plot is None:
        more = next_command("review", given, "-n", "100", "--goal", "count")
        to_stderr(f"more judgments, drawn at random, narrow the intervals: {more}")


def _groups(table: Table, column: str, period: str | None) -> list[str | None]:
    """Return the group of each row; None: the cell is empty."""
    if column not in table.columns:
        known = ", ".join(map(repr, table.columns))
        raise InvalidInputError(f"there is no column {column!r}; the columns are {known}")
    cells = [table.rows[at].get(column) for at in range(len(table.rows))]
    return [
        None if cell is None or cell == "" else _group(str(cell), period, at)
        for at, cell in enumerate(cells, 1)
    ]


def _group(cell: str, period: str | None, row: int) -> str:
    if period is None:
        return cell
    try:
        date = datetime.fromisoformat(cell.strip())
    except ValueError:
        raise InvalidInputError(
            f"row {row}: {cell[:40]!r} is no date; --period takes dates such as 2026-03-31: "
            "convert the column first"
        ) from None
    year, week, _ = date.isocalendar()
    return {
        "year": f"{date.year}",
        "quarter": f"{date.year}-Q{(date.month + 2) // 3}",
        "month": f"{date.year}-{date.month:02}",
        "week": f"{year}-W{week:02}",
        "day": f"{date.date()}",
    }[period]


def write_counts(counts: Counts, output: str) -> None:
    """Write counts to a .csv or .json file."""
    records: list[dict[str, Any]] = counts.records()
    if Path(output).suffix.lower() == ".json":
        data = orjson.dumps(records, option=orjson.OPT_INDENT_2)
    else:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
        data = text.getvalue().encode()
    write_whole(output, [data])
    to_stderr(f"{len(counts):,} counts, written to {output}")
