"""``testnuc count``."""

import csv
import io
import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import date
from pathlib import Path
from time import strptime
from types import SimpleNamespace
from typing import Any

import orjson

from testnuc._base.jsonl import write_whole
from testnuc.cli.answered_texts import labeled, opened, texts_for
from testnuc.cli.files import require_kind, require_new
from testnuc.cli.options_of_run import next_command
from testnuc.cli.reading import Table, require_column, to_stderr
from testnuc.errors import InvalidInputError
from testnuc.trust.counts import Counts, counted

#: Of dates with slashes or hyphens; the time that follows a date.
_ORDERS = ("%d-%m-%Y", "%m-%d-%Y")
_TIME = re.compile(r"(?<=\d)[ ,T].*")
_PERIODS = {"year": "%Y", "quarter": "%Y-Q", "month": "%Y-%m", "week": "%G-W%V", "day": "%Y-%m-%d"}


async def run(given: SimpleNamespace) -> None:
    """Count the labels of a file or a store by the judged texts, and print them."""
    source, output, plot = given.source, given.output, given.plot
    more = next_command("review", given, "-n", "100", "--goal", "count")
    require_kind(output, ".csv", ".json")
    require_new(output, overwrite=given.overwrite)
    require_kind(plot, ".png", ".svg", ".pdf", what="plot")
    require_new(plot, overwrite=given.overwrite)
    if given.period is not None and given.by is None:
        raise InvalidInputError("--period needs --by, a column of dates")
    async with opened(source, given.client, given.text_column) as (nuc, held):
        table = await texts_for(nuc, held, source, None)
        groups = None
        if given.by is not None:
            require_column(source, table.columns, given.by, "name one of them", option="--by")
            groups = _groups(table, given.by, given.period)
        found = await labeled(nuc, table, source)
        if nuc.learned is None:
            raise InvalidInputError(
                f"nothing was judged in {source} yet; draw texts, judge them and learn: {more}; "
                f"what is judged already: testnuc learn {source} REVIEW.json -o better.csv"
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
    to_stderr(f"more judgments, drawn at random, narrow the intervals: {more}")


def _groups(table: Table, column: str, period: str | None) -> list[str | None]:
    """Return the group of each row, or the period of its date; None: the cell is empty."""
    cells = ["" if (value := row.get(column)) is None else str(value) for row in table.rows]
    if period is None:
        return [cell or None for cell in cells]
    # as it is written, in any time zone
    days = [_TIME.sub("", cell.strip()) for cell in cells]
    groups = {
        day: f"{of:{_PERIODS[period]}}".replace("Q", f"Q{(of.month + 2) // 3}")
        for day, of in _dates({*days} - {""}, column).items()
    }
    return list(map(groups.get, days))


def _dates(days: Iterable[str], column: str) -> dict[str, Any]:
    """Return the date of each day; all of a column say whether the day or the month is first."""
    first, second = ({day: _date(day, order) for day in days} for order in _ORDERS)
    readings = [one for one in (first, second) if None not in one.values()]
    if len(readings) == 1 or (readings and first == second):
        return readings[0]
    unread = [day for day in first if first[day] is second[day] is None]
    problem = "is no date" if unread else "may have the day or the month first"
    one = min(unread or [day for day in first if first[day] != second[day]])
    raise InvalidInputError(
        f"the column {column!r}: {one[:40]!r} {problem}; --period takes dates such as 2026-03-31, "
        "31.3.2026 or, where other dates show what comes first, 3/31/2026: convert it"
    )


def _date(day: str, order: str) -> date | None:
    with suppress(ValueError):
        return date.fromisoformat(day)
    for form in ("%Y-%m-%d", "%d.%m.%Y", order):
        with suppress(ValueError):
            return date(*strptime(day.replace("/", "-"), form)[:3])
    return None


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
