"""``testnuc count``, and ``testnuc audit``, which counts by week."""

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import orjson
import typer

from testnuc._base.display import one_line
from testnuc._base.jsonl import guarded, write_whole
from testnuc._base.loop_thread import run_to_end
from testnuc._version import __version__
from testnuc.cli.answered_texts import labeled, opened, say_if_changed, texts_for
from testnuc.cli.answering import judge
from testnuc.cli.files import csv_of, require_kind, require_new, require_store
from testnuc.cli.judging import say_unlearned
from testnuc.cli.label_files import read_labels
from testnuc.cli.options_of_run import command, next_command, opened_store
from testnuc.cli.reading import Table, require_column, to_stderr
from testnuc.errors import InvalidInputError
from testnuc.labels import labels_hash
from testnuc.records import CERTIFIED
from testnuc.server.served import changed, set_summary, summary_of
from testnuc.trust.audit import Audit, AuditWeek, audited, is_audit, review_of, week_of
from testnuc.trust.counts import Counts, counted
from testnuc.trust.review import Review

#: Of dates with slashes or hyphens.
_ORDERS = ("%d-%m-%Y", "%m-%d-%Y")
#: Different dates that are perhaps not meant as groups.
_MANY = 50
#: Rows of most groups, where one of a single row is told: its date may be mistyped.
_TYPICAL = 10
_PERIODS = {"year": "%Y", "quarter": "%Y-Q", "month": "%Y-%m", "week": "%G-W%V", "day": "%Y-%m-%d"}


async def run(given: SimpleNamespace) -> None:
    """Count the labels of a file or a store by the judged texts, and print them."""
    source, output, plot = given.source, given.output, given.plot

    def more(n: int) -> str:
        return next_command("review", given, "-n", f"{n}", "--goal", "count")

    require_new(output, ".csv", ".json", overwrite=given.overwrite)
    require_new(plot, ".png", ".svg", ".pdf", overwrite=given.overwrite, what="plot")
    if given.by is None and (given.period is not None or given.compare is not None):
        option, what = ("period", "dates") if given.period else ("compare", "groups")
        raise InvalidInputError(f"--{option} needs --by, a column of {what}")
    async with opened(source, given.client, given.text_column) as (nuc, held):
        table = await texts_for(nuc, held, source)
        groups = None if given.by is None else groups_of(table, given.by, given.period)
        found = await labeled(nuc, table)
        if nuc.learned is None:
            say_unlearned(None, source)
            raise InvalidInputError(
                f"nothing was judged in {source} yet; draw texts, judge them and learn: "
                f"{more(100)}; what is judged already: testnuc learn {source} REVIEW.json"
            )
    if table.rows and all(str(row.get(CERTIFIED)) in {"yes", "True"} for row in table.rows):
        chosen = "rows that `certify` chose, by trust, say nothing of the shares of others"
        to_stderr(f"note: all rows of {source} are certified; {chosen}")
    rows = sorted(found.merged().items())
    of, names = groups and [groups[at] for at, _ in rows], ("confidence", "together", "level")
    asked = {name: getattr(given, name) for name in (*names, "judge_error", "compare")}
    asked["periods"] = given.period is not None
    try:
        counts = counted([result for _, result in rows], nuc.learned, of, **asked)
    except InvalidInputError as exc:
        # as where all texts came later
        draws = "testnuc review RESULTS --goal count"
        raise InvalidInputError(f"{exc}".replace(draws, more(40))) from None
    say_if_changed(table, dict(rows), nuc.learned)
    print(counts)
    if accuracy := counts.accuracy[None]:
        print(accuracy)
    _write(counts, given)
    ends = "; to learn from them ends the certificate, so certify first"
    ends *= bool(nuc.learned.certify().coverage)
    wanted = counts[0].judgments_needed
    if not say_unlearned(nuc.learned, source) and wanted:
        to_stderr(f"to halve the intervals of shares, judge more at random: {more(wanted)}{ends}")


def _write(counts: Counts, given: SimpleNamespace) -> None:
    """Write the counts, and the figure, to the files that were asked for."""
    if given.output is not None:
        compared = given.compare and " and ".join(given.compare)
        write_counts(counts, given.output, by=given.by, period=given.period, compare=compared)
    if (plot := given.plot) is not None:
        figure = counts.plot(given.plot_label, dark=given.dark)
        figure.savefig(plot, dpi=300)
        if note := figure.get_supxlabel():
            to_stderr(f"{plot}: {note}; to choose labels: --plot-label LABEL")


def groups_of(table: Table, column: str, period: str | None) -> list[str | None]:
    """Return the group of each row, or the period of its date; None: the cell is empty."""
    require_column(table.file, table.columns, column, "name one of them", option="--by")
    cells = ["" if (value := row.get(column)) is None else str(value) for row in table.rows]
    # without the time: as it is written, in any time zone
    days = [re.sub(r"(?<=\d)[ ,T].*", "", cell.strip()) for cell in cells]
    if period in {"year", "quarter", "month"}:
        days = [f"{day}-01" if re.fullmatch(r"\d{4}-\d\d", day) else day for day in days]
    if period is None:
        dates = {*days} - {""}
        if len(dates) > _MANY and all(any(_date(day, of) for of in _ORDERS) for day in dates):
            to_stderr(f"note: {column!r} holds dates; to count by month, add --period month")
        return [cell or None for cell in cells]
    groups = {
        day: f"{of:{_PERIODS[period]}}".replace("Q", f"Q{(of.month + 2) // 3}")
        for day, of in _dates(days, column).items()
    }
    sizes = Counter(groups[day] for day in days if day)
    alone = sorted(group for group, rows in sizes.items() if rows == 1)
    if alone and median(sizes.values()) >= _TYPICAL:
        to_stderr(f"note: {', '.join(alone)}: one row each; is its date in {column!r} mistyped?")
    return list(map(groups.get, days))


def _dates(days: Sequence[str], column: str) -> dict[str, Any]:
    """Return the date of each day; all of a column say whether the day or the month is first."""
    first, second = ({day: _date(day, order) for day in {*days} - {""}} for order in _ORDERS)
    readings = [one for one in (first, second) if None not in one.values()]
    if len(readings) == 1 or (readings and first == second):
        return readings[0]
    unread = [day for day in first if first[day] is second[day] is None]
    problem = "is no date" if unread else "may have the day or the month first"
    wrong = {*unread} or {day for day in first if first[day] != second[day]}
    rows = [row for row, day in enumerate(days, 1) if day in wrong]
    one = days[rows[0] - 1]
    is_short = re.fullmatch(r"\d\d?([-./])\d\d?\1\d\d", one)
    short = " (a year needs four digits)" if is_short else ""
    raise InvalidInputError(
        f"the column {column!r}, row {rows[0]}: {one[:40]!r} {problem}{short}; such cells: "
        f"{len(rows):,}; --period takes dates such as 2026-03-31, 31.3.2026 or, where other dates "
        "show what comes first, 3/31/2026: convert it"
    )


def _date(day: str, order: str) -> date | None:
    with suppress(ValueError):
        return date.fromisoformat(day)
    for form in ("%Y-%m-%d", "%d.%m.%Y", order):
        with suppress(ValueError):
            return date(*time.strptime(day.replace("/", "-"), form)[:3])
    return None


def write_counts(counts: Counts, output: str, **facts: str | None) -> None:
    """Write counts, and facts beside each, to a .csv or .json file."""
    records = [one | facts | {"testnuc": __version__} for one in counts.records()]
    if Path(output).suffix.lower() == ".json":
        data = orjson.dumps(records, option=orjson.OPT_INDENT_2)
    else:
        # a label, or a group, may be a formula
        cells = ({name: guarded(value) for name, value in one.items()} for one in records)
        data = csv_of([*records[0]], cells).encode()
    write_whole(output, [data])
    to_stderr(f"{len(counts):,} counts, written to {output}")


def audit(given: SimpleNamespace) -> None:
    """Let a person judge the texts of past weeks; print what all judged ones say, and alarms."""
    store, path = given.place, given.review
    require_store(store)
    require_kind(path, ".json", what="review")
    require_new(given.output, ".csv", ".json", overwrite=given.overwrite)
    if given.since is not None and not re.fullmatch(r"\d{4}-W\d\d", given.since):
        raise InvalidInputError(f"--since is {given.since!r}; give a week such as 2026-W07")
    weeks, running = run_to_end(_read(store, given.label_set))
    if weeks:
        weeks = run_to_end(_answered(store, weeks, _answers(path, weeks)))
        open_ = review_of(weeks)
        if len(open_):
            open_.save(path)
            to_stderr(f"{len(open_):,} texts to judge, written to {path}")
            named = {"labels": given.label_set, "review": path, "since": given.since}
            again = command("audit", given.place, {n: v for n, v in named.items() if v is not None})
            if judge(open_, path, given, again) and open_.judged:
                weeks = run_to_end(_answered(store, weeks, _answers(path, weeks)))
    if running is not None:
        to_stderr(
            f"{running.week}: {len(running.sample):,} of {running.texts:,} texts are set aside so "
            "far; judge them when the week is over (Monday, UTC)"
        )
    if not weeks:
        return
    found = run_to_end(_concluded(store, weeks, given.since))
    print(found)
    if given.output is not None:
        write_counts(found.counts, given.output)
    if found.moves:
        # as an alarm
        raise typer.Exit(3)


async def _read(store: str, chosen: str | None) -> tuple[list[AuditWeek], AuditWeek | None]:
    """Return the weeks that are over, and the one that is not, of the chosen or latest labels."""
    async with opened_store(store) as opened:
        every = [AuditWeek.of(data) for _, data in await opened.learned() if is_audit(data)]
    every.sort(key=lambda week: (week.week, week.latest))
    if not every:
        raise InvalidInputError("no text is set aside; run `testnuc serve` with --audit 20/week")
    last = every[-1]
    listed = one_line(", ".join(last.labels), 80)
    digest = labels_hash(last.labels, last.context.descriptions)
    shown = f"{len(last.labels)} labels ({listed}), labels_hash {digest}"
    if chosen is not None:
        names = [*read_labels(chosen)]
        # a label that means none may be the last one
        fitting = [w for w in every if names in ([*w.labels], [*w.labels[:-1]])]
        if not fitting:
            raise InvalidInputError(
                f"--labels {chosen}: no texts of these are set aside; the latest are of {shown}"
            )
        last = min(fitting, key=lambda week: len(week.labels))
    known = [week for week in every if week.key("") == last.key("")]
    if chosen is None and len(known) < len(every):
        to_stderr(f"note: of several label sets, the latest has {shown}; for another: --labels")
    # a week that is over gets more texts for less than an hour
    over = week_of(time.time() - 3_600)
    return [w for w in known if w.week < over], next((w for w in known if w.week >= over), None)


def _answers(path: str, weeks: Sequence[AuditWeek]) -> dict[str, str | None]:
    """Return text -> what a person said in the review, if there is one."""
    if not Path(path).exists():
        return {}
    # another store of the same labels has other texts
    last, here = weeks[-1], {one.text for week in weeks for one in week.sample}
    review = Review.load(path)
    given = {item.text: item.answer for item in review if item.source}
    gone = given.keys() - here
    ours = all(item.goal == "audit" for item in review) and (not gone or given.keys() & here)
    ours = ours and review.context.instructions in {week.context.instructions for week in weeks}
    if not ours or review.label_set != (tuple(last.labels), last.multilabel):
        raise InvalidInputError(
            f"{path} is not a review of this audit, and is kept; name another file with --review"
        )
    if gone:
        to_stderr(f"texts of {path} that are not in the store any more are left out: {len(gone):,}")
    return {i.text: i.answer for i in review if i.source == "person" and i.text in here}


async def _answered(
    store: str, weeks: Sequence[AuditWeek], answers: Mapping[str, str | None]
) -> list[AuditWeek]:
    """Store answers; a text that was judged in another week is not judged again."""
    known = {text.text: text.answer for week in weeks for text in week.judged} | dict(answers)
    look = 1 + max((text.look for week in weeks for text in week.sample), default=0)

    def take(week: AuditWeek) -> bool:
        found = False
        for text in week.sample:
            if text.text in known and (not text.look or text.answer != known[text.text]):
                text.answer, text.look, found = known[text.text], text.look or look, True
        return found

    async with opened_store(store) as opened:
        return [await changed(opened, week, take) if take(week) else week for week in weeks]


async def _concluded(store: str, weeks: Sequence[AuditWeek], since: str | None) -> Audit:
    """Return what the judged texts say, and tell the service."""
    async with opened_store(store) as opened:
        if since is None:
            since = str((await summary_of(opened, weeks[-1])).get("since", ""))
        found = audited(weeks, since)
        if judged := sum(len(week.judged) for week in weeks):
            said = {"since": since, "judged": judged, "accuracy": found.overall.value}
            await set_summary(opened, weeks[-1], said | {"alarms": len(found.moves)})
    return found
