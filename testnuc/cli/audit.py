"""``testnuc audit``."""

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import typer

from testnuc.cli.count import write_counts
from testnuc.cli.event_loop import run_to_end
from testnuc.cli.files import require_kind, require_new, require_store
from testnuc.cli.judging_page import judge
from testnuc.cli.options_of_run import command, opened_store
from testnuc.cli.reading import to_stderr
from testnuc.errors import InvalidInputError
from testnuc.server.auditing import changed, set_summary, summary_of
from testnuc.trust.audit import Audit, AuditWeek, audited, is_audit, review_of, week_of
from testnuc.trust.review import Review

#: Seconds after which a week that is over does not get more texts.
_LATE = 3_600.0
#: Exit code of an alarm.
_ALARM = 3


def run(given: SimpleNamespace) -> None:
    """Let a person judge the texts of past weeks; print what all judged ones say, and alarms."""
    _check(given)
    store, path = given.place, given.review
    weeks, running = run_to_end(_read(store))
    if weeks:
        weeks = run_to_end(_answered(store, weeks, _answers(path, weeks[-1])))
        open_ = review_of(weeks)
        if len(open_):
            open_.save(path)
            to_stderr(f"{len(open_):,} texts to judge, written to {path}")
            if judge(open_, path, given, command("audit", given.place, {})) and open_.judged:
                weeks = run_to_end(_answered(store, weeks, _answers(path, weeks[-1])))
    if running is not None:
        to_stderr(
            f"{running.week}: {len(running.sample):,} of {running.texts:,} texts are set aside so "
            "far; judge them when the week is over (Monday, UTC)"
        )
    if not weeks:
        return
    audit = run_to_end(_concluded(store, weeks, given.since))
    print(audit)
    if given.output is not None:
        write_counts(audit.counts, given.output)
    if audit.moves:
        raise typer.Exit(_ALARM)


def _check(given: SimpleNamespace) -> None:
    require_store(given.place)
    require_kind(given.review, ".json", what="review")
    require_kind(given.output, ".csv", ".json")
    require_new(given.output, overwrite=given.overwrite)
    if given.since is not None and not re.fullmatch(r"\d{4}-W\d\d", given.since):
        raise InvalidInputError(f"--since is {given.since!r}; give a week such as 2026-W07")


async def _read(store: str) -> tuple[list[AuditWeek], AuditWeek | None]:
    """Return the weeks of the latest labels that are over, and the one that is not."""
    async with opened_store(store) as opened:
        every = [AuditWeek.of(data) for _, data in await opened.learned() if is_audit(data)]
    every.sort(key=lambda week: week.week)
    if not every:
        raise InvalidInputError(
            "the store has no texts set aside; run `testnuc serve` with it and --audit 20/week"
        )
    known = [week for week in every if week.key("") == every[-1].key("")]
    if len(known) < len(every):
        shown = ", ".join(known[0].labels[:6])
        to_stderr(f"note: the store has texts of several label sets; the latest is {shown}")
    over = week_of(time.time() - _LATE)
    return [w for w in known if w.week < over], next((w for w in known if w.week >= over), None)


def _answers(path: str, week: AuditWeek) -> dict[str, str | None]:
    """Return text -> what a person said in the review, if there is one."""
    if not Path(path).exists():
        return {}
    review = Review.load(path)
    ours = all(item.goal == "audit" for item in review)
    if not ours or review.label_set != (tuple(week.labels), week.multilabel):
        raise InvalidInputError(
            f"{path} is not a review of this audit, and is kept; name another file with --review"
        )
    return {item.text: item.answer for item in review if item.source == "person"}


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
        before = await summary_of(opened, weeks[-1])
        if since is None:
            since = str(before.get("since", ""))
        audit = audited(weeks, since)
        judged = sum(len(week.judged) for week in weeks)
        if judged:
            summary = {
                "since": since,
                "judged": judged,
                "accuracy": audit.overall.value,
                "alarms": len(audit.moves),
            }
            await set_summary(opened, weeks[-1], summary)
    return audit
