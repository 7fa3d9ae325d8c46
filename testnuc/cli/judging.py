"""``testnuc review``, ``learn``, ``certify``, ``distill``, ``unlearn`` and ``diagnose``."""

import shlex
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from operator import attrgetter, itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import typer

from testnuc._base.checks import hash_text, valid_text
from testnuc._base.display import one_line
from testnuc._base.loop_thread import run_to_end
from testnuc._engine.carried import added_labels
from testnuc._engine.learning import learned_in
from testnuc.cli.answered_texts import labeled, newest, opened, say_if_changed, texts_for
from testnuc.cli.answering import judge, write_page
from testnuc.cli.files import free_name, require_kind, require_new, write_results
from testnuc.cli.label_files import read_former, read_labels
from testnuc.cli.memory import AnswerStore, LessonNote, RunNote, text_mark
from testnuc.cli.options import OF_ANSWERS, client_options
from testnuc.cli.options_of_run import command, next_command, opened_store, stored_runs
from testnuc.cli.reading import content_of, existing, holds_rows, read_table, to_stderr
from testnuc.client import TestNUC, parts_of
from testnuc.errors import InvalidInputError
from testnuc.labels import LabelSet
from testnuc.report.marks import read_marks
from testnuc.results import Results, run_record
from testnuc.trust.certificates import Certificate
from testnuc.trust.diagnosis import FIRST_REVIEW
from testnuc.trust.joining import join_reviews
from testnuc.trust.learned import USUAL, Learned
from testnuc.trust.review import Review, ReviewItem
from testnuc.trust.shares import bounds_of
from testnuc.trust.thresholds import Thresholds
from testnuc.types import Classification

#: Edits that contradict so many earlier judgments, and over one in so many, are a mistake.
_CONTRADICTED, _CONTRADICTED_PART = 10, 3
#: Draws to certify of which the command does not say that fewer at a time prove more.
_AT_ONCE = 60


def review(given: SimpleNamespace) -> None:
    """Draw texts to be judged, continue a review, or join several; let a person judge; learn."""
    sources: list[str] = given.sources
    if all(map(_is_review, sources)):
        path, judged = sources[0], _read_reviews(sources, settles=True)
        if len(sources) > 1:
            path = _new_review(given.output)
            judged.save(path)
            to_stderr(f"{len(judged):,} texts, written to {path}")
        _judge(judged, path, None, given, drawn=False)
        return
    if len(sources) > 1:
        raise InvalidInputError("only reviews (.json) can be joined; name one store or file")
    given.source = source = sources[0]
    output = _new_review(given.output)
    # without what the source itself knows
    run = shlex.split(next_command("learn", given))[2:]

    to_stderr(f"reading {source}, and what is known of its texts")

    async def draw() -> tuple[Review, Results | None]:
        async with opened(source, given.client, given.text_column, learns=True) as (nuc, table):
            results = None if table is None else await newest(nuc, table)
            # what the file says of them, or will say after `learn`
            rows = {row.text: row for row in results or ()}
            goal, learned = given.goal, nuc.learned
            if goal == "count" and learned and (first := learned.first_later(len(nuc))):
                # of a new file, as others are known
                goal = "later" if learned.mostly_later(rows, first) else goal
            to_stderr(f"choosing the texts to judge: a model of {len(nuc):,} texts is fitted")
            review = await nuc.review(given.n, goal=goal)
        # a page of the file would not show the texts of others
        known = {item.text for item in review} <= {*rows}
        return _as_in(rows, review, source), results if known else None

    drawn, results = run_to_end(draw())
    if not len(drawn):
        alike = ": no candidate differs from another" if given.goal == "decide" else ""
        raise InvalidInputError(f"{source} has no text left to judge{alike}; choose another --goal")
    drawn.context = replace(drawn.context, run=tuple(run))
    if given.blind:
        drawn, results = drawn.blind(), None
    if given.judges is not None:
        _share_out(drawn.split(given.judges), output, run, pages=given.open_page is False)
        return
    if Path(output).exists():
        # another terminal has written it meanwhile
        output = _new_review(given.output)
    drawn.save(output)
    later = sum(item.goal == "later" for item in drawn)
    of = f", {later:,} of them drawn from those that came later" if later else ""
    many = drawn.ranking != "" and len(drawn) > _AT_ONCE
    of += ", all to certify one part (forty at a time, learning after each, prove more)" * many
    to_stderr(f"{len(drawn):,} of {drawn.texts:,} texts to judge{of}, written to {output}")
    _judge(drawn, output, results, given, drawn=True)


def _as_in(rows: Mapping[str, Classification], review: Review, source: str) -> Review:
    """Return a review whose items have the labels that a file says; texts of others are named."""
    others = [item.text for item in review if rows and item.text not in rows]
    if others:
        to_stderr(
            f"note: {len(others):,} of these {len(review):,} texts are not in {source}, as "
            f"{one_line(others[0], 40)!r}: they are drawn from all that were labeled with these "
            "settings, or are open as labels changed; if their file was a mistake, as with a wrong "
            "column: testnuc store erase"
        )
    items = list(review)
    for at, item in enumerate(items):
        if (row := rows.get(item.text)) is not None:
            items[at] = replace(item, label=row.label, trust=row.trust)
    return review.with_items(items)


def _share_out(parts: Sequence[Review], output: str, run: Sequence[str], *, pages: bool) -> None:
    """Write a file for each judge."""
    path, numbers = Path(output), range(1, len(parts) + 1)
    files = [_new_review(str(path.with_stem(f"{path.stem}-{n}"))) for n in numbers]
    then = shlex.join(["testnuc", "learn", run[0], *files, *run[1:]])
    to_stderr("to compare judges on all texts, give each a copy of one review under another name")
    for part, file in zip(parts, files, strict=True):
        part.context = replace(part.context, run=(run[0], *files, *run[1:]))
        part.save(file)
        to_stderr(
            f"{len(part):,} texts to judge, written to {file}: testnuc review {file} --judge NAME"
        )
        if pages:
            write_page(part, file, None, then)
    to_stderr(f"when all are judged: {then}")


def _judge(
    review: Review, path: str, results: Results | None, given: SimpleNamespace, *, drawn: bool
) -> None:
    """Let a person judge a review, then learn from it, or name the command that does."""
    _name_judge(review, path, given.judge)
    part = any(item.position is not None for item in review)
    words = _learning(review, path)
    then, source = shlex.join(["testnuc", *words]), words[1]
    if not judge(review, path, given, then, results):
        return
    # a review that is stopped in the terminal is continued later
    done = len(review.judged) == len(review) if given.by_hand else bool(review.judged)
    to_stderr(f"{len(review.judged):,} of {len(review):,} texts are judged, saved in {path}")
    # a review may come from another person: do not apply its options unseen
    known = "STORE" not in words if drawn else Path(source).is_file() and words[3] == "-o"
    by_draw = [] if part else [files for _, files in _by_draw(_reviews_of(source))]
    together = next((files for files in by_draw if str(Path(path)) in files), [path])
    if len(together) > 1:
        then = f"all who judged them: {shlex.join(['testnuc', *_learning(review, *together)])}"
    elif done and known and not part:
        from testnuc.cli import app

        app(words)
        return
    if not done:
        again = f"testnuc review {shlex.quote(path)}{' --answer' if given.by_hand else ''}"
        to_stderr(f"still open: {len(review) - len(review.judged):,}; to continue: {again}")
    if review.judged:
        joined = f"who shared the texts out learns from {path} and the other files together"
        to_stderr(f"next: {joined if part else then}")


def _name_judge(review: Review, path: str, judge: str | None) -> None:
    """Note who judges a review, or settles a joined one, and say so."""
    context = review.context
    if context.judges > 1:
        review.context = replace(context, settler=judge or context.settler)
    elif judge:
        if context.people not in {(), (judge,)} and review.judged:
            to_stderr(f"note: {path} was judged by {', '.join(context.people)} until now")
        review.context = replace(context, people=(judge,))
    if review.context != context:
        review.save(path)
    if who := review.context.settler or ", ".join(review.context.people):
        to_stderr(f"judged by {who}; if that is not who judges: --judge NAME")


def _learning(review: Review, *files: str) -> list[str]:
    """Return the command that learns from files of a review; of a part, with the files of all."""
    source, *more = review.context.run or ("RESULTS",)
    if all(item.position is None for item in review):
        # parts that are joined are in this file
        more = more[len(_parts(review)) :]
    # a part is among the files of all
    named = [file for file in files if file not in more]
    return ["learn", source, *named, *more, "-o", better_name(source)]


def better_name(source: str) -> str:
    """Return a free name of what `learn` writes."""
    return free_name("better.jsonl" if source.endswith(".jsonl") else "better.csv")


async def learn(given: SimpleNamespace) -> None:
    """Learn from reviews, or from marks of the page, and print what was learned."""
    source, output = given.source, given.output
    require_new(output, overwrite=given.overwrite)
    require_results("learn", source, given.judged or ())
    options = RunNote.of(source).options
    named = given.client["labels"] if "labels" in given.client.named else None
    former = options.get("former", {}) if named is None else read_former(named)
    take = _lesson(given, former)
    protect = [name for name in given.protect if name] if given.protect else None
    least = options.get("min_trust")
    # labels that the run withheld for it stay withheld
    client = given.client.but(min_trust=least) if isinstance(least, float) else given.client
    async with opened(source, client, given.text_column, learns=True) as (nuc, held):
        earlier = nuc.learned
        table = None if output is None else await texts_for(nuc, held, source, output)
        learned = await take(nuc, protect=protect)
        found = None if table is None else await labeled(nuc, table)
    if holds_rows(source):
        store = AnswerStore.of_results(given.client["store"], source)
        LessonNote.write(store, source, learned, options)
    print(learned)
    certificate = learned.certify()
    _say_what_ended(learned, certificate, earlier)
    if all(judgment.probability is None and not judgment.ranking for judgment in learned.judged):
        to_stderr(
            "note: marked texts were chosen, not drawn, so they correct and train, but prove "
            "nothing; draw some with `testnuc review`, or give --at-random if they were drawn"
        )
    if unfit := [repr(judgment.text[:60]) for judgment in learned.unfit_among()[0][-3:]]:
        to_stderr(f"note: a label may be missing: no label fits {', '.join(unfit)}, as you judged")
    if output is None or table is None or found is None:
        to_stderr("it labels all later texts, too; to write these with their new labels, add -o")
    else:
        placed = found.merged()
        record = run_record(found.results) if Path(output).suffix.lower() == ".jsonl" else None
        certified = {found.valid[row.index] for row in found.results.certified(certificate)}
        certified -= {*found.before}
        write_results(output, table, placed, found.problems, run=record, certified=certified)
        if holds_rows(source) and options:
            # a review, or a report, may start from it
            named = given.client.given()
            if "labels" in named:
                named["labels"] = read_labels(named["labels"])
            noted = (row for at, row in placed.items() if at not in table.later)
            RunNote.write(output, store, table.text_column, options | named, noted)
            # the commands that come next read what they are about
            given.source = output if holds_rows(output) else source
        kept = sum(found.before.get(at) is row for at, row in placed.items())
        to_stderr(
            f"{_counted(placed.values())}, written to {output}"
            + (f"; {kept:,} texts keep what {source} says of them" if kept else "")
        )
    rows = found.results if found else held.results if held else ()
    texts = [row.text for row in rows if valid_text(row.text) is None]
    if _accuracy_said(learned, given.source, texts):
        to_stderr(f"how many texts have each label: {next_command('count', given)}")
    to_stderr(what_next(learned, given, texts, certificate))


def _say_what_ended(learned: Learned, certificate: Certificate, earlier: Learned | None) -> None:
    """Say which draws and settled answers count no longer, and whether a certificate ended."""
    before = 0.0
    if earlier is not None and learned.decides == "settings" != earlier.decides:
        to_stderr(
            f"note: labels came from {earlier.name} until now; all judgments prove it no longer, "
            "so labels are as without learning. Answer what is open and learn again; or to go "
            "back, testnuc unlearn, then learn from the earlier reviews alone"
        )
    if earlier is not None and earlier.ranking not in learned.current:
        before = earlier.certify().coverage
    judged = earlier.judged if earlier else ()
    added = {*learned.judged} - {*judged}
    lost = 0 if certificate.judged else sum(bool(one.ranking) for one in added)
    said = f"{lost:,} texts were drawn to certify, but prove nothing"
    if ended := before > certificate.coverage:
        said = f"{before:.0%} of the texts were certified before, now {certificate.coverage:.0%}"
    if ended or lost:
        to_stderr(
            f"note: {said}: trust was learned anew from all judgments (or texts were erased), and "
            "a certificate takes judgments of texts drawn since, among the trusted ones"
        )
    settled = {(one.hash, one.label) for one in judged if one.source and one.agreed is False}
    if replaced := len(settled - {(one.hash, one.label) for one in learned.judged}):
        to_stderr(f"note: {replaced:,} settled answers are replaced; a joined review has them")


def _accuracy_said(learned: Learned, source: str, texts: Sequence[str]) -> bool:
    """Say how many labels of a file are right; return whether it is known, of it or of all."""
    accuracy, every = learned.accuracy(texts), learned.accuracy()
    if accuracy and accuracy.texts < learned.measured:
        print(f"In {source}: {accuracy}")
    elif texts and every and not accuracy:
        why = "too few of its texts were drawn at random and judged"
        if learned.answers.keys().isdisjoint(map(hash_text, texts)):
            why = "no text of it is judged, and what is said above is of other files"
        print(f"How many labels of {source} itself are right is not known: {why}.")
    return bool(accuracy or every)


def require_results(name: str, source: str, others: Collection[str]) -> None:
    """Raise an error that names the right command if a review is given in place of results."""
    if _is_review(source):
        files = [other for other in others if not _is_review(other)]
        files += [*Review.load(existing(source)).context.run[:1], "RESULTS"]
        then = shlex.join(["testnuc", name, files[0], source])
        raise InvalidInputError(f"{source} is a review: name the results first, then it: {then}")


def _counted(rows: Collection[Classification]) -> str:
    """Return how many rows have a label, and why others have none."""
    labels, none = ([row for row in rows if (row.label is None) is out] for out in (False, True))
    people, unfit = (sum(row.source == "person" for row in of) for of in (labels, none))
    why = {"that a person judged to have none": unfit}
    why["to which neither the LLM nor what was learned gives one"] = len(none) - unfit
    said = [f"{len(labels):,} labels, {people:,} of them judged by a person"]
    return "; no label: ".join([*said, *(f"{n:,} {of}" for of, n in why.items() if n)])


def what_next(
    learned: Learned | None,
    given: SimpleNamespace,
    texts: Collection[str] = (),
    certificate: Certificate | None = None,
) -> str:
    """Return what comes next after these texts were labeled, or after a certificate."""

    def then(name: str, *more: str) -> str:
        return next_command(name, given, *more)

    def draw(n: int, goal: str | None = None) -> str:
        return then("review", "-n", f"{n}", *(["--goal", goal] if goal else []))

    if learned is None:
        return f"next, judge fifty texts (about three minutes): {draw(FIRST_REVIEW)}"
    certificate = certificate or learned.certify()
    ends = " (what is certified of the others ends: write it first)" if certificate.coverage else ""
    if unused := learned.unused(map(hash_text, texts)):
        what = f"{unused:,} judgments of these texts that are not used yet{ends}"
        return f"next, learn from {what}: {then('learn', '-o', better_name(given.source))}"
    if texts and _came_later(learned, texts, certificate):
        n = 50 if certificate.coverage else certificate.judgments_needed
        prove = f"to certify labels of these, too: {draw(n, 'certify')}\n"
        # labels of several go on with a new review alone
        prove *= bool(n and len(learned.given))
        what = f"which say how many of their labels are right{ends}"
        return f"{prove}next, judge some of these texts, {what}: {draw(40, 'count')}"
    lines, accuracy = list[str](), learned.accuracy(texts or None)
    if certificate.coverage:
        # a file of earlier texts stays
        asked = [*_options_of(certificate, certificate.accuracy), "-o", free_name("certified.csv")]
        if certificate.coverage < 1:
            correct = "to correct the others, which ends the certificate, so write it first"
            # unless all are known to be as right
            wrong = not accuracy or accuracy.now.low < certificate.accuracy
            lines += [
                f"to prove a larger part, judge more: {draw(50, 'certify')}",
                f"{correct}: {then('review', '--goal', 'correct')}",
            ][: 1 + wrong]
        lines.append(
            f"next, write the {certificate.coverage:.0%} of the texts whose labels are at least "
            f"{certificate.accuracy:.0%} right by your judgments: "
            f"{then('certify', *asked)}"
        )
        return "\n".join(lines)
    n, what, goal = _wanted(learned, certificate)
    if goal == "certify" and accuracy and accuracy.to_halve and not certificate.judged:
        of = f" of {given.source}" * (accuracy.texts < learned.measured)
        lines.append(
            f"to halve the range of how many labels{of} are right, now {bounds_of(accuracy.now)} "
            f"%, judge others first, drawn at random: {draw(accuracy.to_halve, 'count')}"
        )
    more = certificate.judgments_needed if goal is None else 0
    lines += [f"to certify the labels as they are instead: {draw(more, 'certify')}"] if more else []
    if certificate.achievable is not None:
        lower = _options_of(certificate, certificate.achievable[0])
        lines.append(f"to see what is proved now: {then('certify', *lower)}")
    lines += (first := _label_missing(learned, given, texts))
    start = "or, with these labels" if first else "next"
    lines.append(f"{start}, judge {n:,} more texts, {what}: {draw(n, goal)}")
    return "\n".join(lines)


def _came_later(learned: Learned, texts: Collection[str], certificate: Certificate) -> bool:
    """Whether most of these texts came later: than trust was fixed, or than the draws, unjudged."""
    judged = learned.answers.keys() & {*map(hash_text, texts)}
    since = [certificate.texts, *([] if judged or certificate.coverage else [learned.measured])]
    return any(learned.mostly_later(texts, among) for among in since)


def _label_missing(learned: Learned, given: SimpleNamespace, texts: Collection[str]) -> list[str]:
    """Return the step that comes first where judged ones of these texts, or of all, fit none."""
    if not learned.unfit_among(texts or None)[0] or learned.reopened:
        return []
    note, usual = RunNote.of(given.source), client_options()
    run = note.options | given.client.given()
    options = {n: run[n] for n in ("model", *OF_ANSWERS) if run.get(n, usual[n]) != usual[n]}
    if (column := note.text_column or given.text_column) != "text":
        options["text_column"] = column
    add = command("classify", "TEXTS", options, "--labels", "NEW.json", "--reuse", "-o", "NEW.csv")
    return [f"next, add a label, as docs/label-set.md says: {add}"]


def _wanted(learned: Learned, certificate: Certificate) -> tuple[int, str, str | None]:
    """Return how many texts to judge next, which ones, and the goal of their review."""
    if asked := len(learned.reopened):
        return asked, "whose judgment the new label set leaves open", "count"
    if learned.wants_decisions(certificate):
        return 50, "where strategies differ", None
    if (measure := learned.to_measure) and not certificate.judged:
        # before draws by trust, as what is learned from others ends a certificate
        return measure, "drawn at random, which say how many labels are right", "count"
    return certificate.judgments_needed, "drawn by trust, to prove that labels are right", "certify"


def _options_of(certificate: Certificate, accuracy: float) -> list[str]:
    """Return the options of `testnuc certify` that ask for the same at this accuracy."""
    names = ("confidence", "level", "label")
    asked = {"accuracy": accuracy} | {name: getattr(certificate, name) for name in names}
    given = ((n, v) for n, v in asked.items() if v not in {USUAL, None})
    return [word for name, value in given for word in (f"--{name}", str(value))]


def _lesson(
    given: SimpleNamespace, former: Mapping[str, Sequence[str]]
) -> Callable[..., Awaitable[Learned]]:
    """Read what was judged; returns a function by which a client learns from it, with options."""
    files = given.judged or _newest_review(given.source, given.client["store"])
    if not files:
        return partial(_again, given.source)
    at_random = given.at_random
    if all(map(_is_review, files)):
        judged = _read_reviews(files)
        if not judged.judged:
            raise InvalidInputError(
                f"{', '.join(files)} has no answers; give some: testnuc review {files[0]}, or "
                "move the file here that the page saved to your downloads"
            )
        if judged.drawn or not at_random:
            return lambda nuc, **how: _carried(nuc, judged, former, **how)
        texts = [item.text for item in judged.judged]
        labels: list[Any] = [judged.as_given(item.answer) for item in judged.judged]
    elif len(files) > 1:
        raise InvalidInputError("only the .json files of reviews and of the page can be joined")
    elif Path(files[0]).suffix.lower() == ".db":
        return partial(_from_store, store=files[0], former=former)
    elif not at_random and (note := _written(files[0], given.source)) is not None:
        return _edits(given, files[0], note, former)
    else:
        texts, right = read_marks(existing(files[0]))
        labels = [*right]
    if at_random:
        return lambda nuc, **how: nuc.learn(texts, labels, **how)
    places = [f"{', '.join(files)}, {text[:60]!r}" for text in texts]
    chosen = partial(_chosen_by_hand, texts, labels, places, None)
    return lambda nuc, **how: _carried(nuc, chosen(nuc), former, **how)


def _edits(
    given: SimpleNamespace, file: str, note: RunNote, former: Mapping[str, Sequence[str]]
) -> Callable[..., Awaitable[Learned]]:
    """Read which labels a person edited in results; as `_lesson`."""
    table = read_table(file, given.text_column).results
    rows = [row for row in table if valid_text(row.text) is None]
    noted = RunNote.of(file).options
    if not noted and not _is_copy_of(given.source, rows, given.text_column):
        # of a later output
        note = note.nearest(rows)
    edited, written = note.edited(rows), {*note.texts}
    if others := sum(text_mark(row.text) not in written for row in rows if written):
        to_stderr(
            f"note: {others:,} texts in {file} are not those that were written, perhaps as a "
            "spreadsheet changed what looks like a number or a date: their labels are not taken"
        )
    if not edited:
        raise InvalidInputError(
            f"no label in {file} differs from what was written there; of a copy, name what it "
            f"was copied from first: testnuc learn OUTPUT {file}"
        )
    said = f"{len(edited):,} of {len(rows):,} labels in {file} differ from what was written"

    def refused(why: str) -> InvalidInputError:
        then = shlex.join(["testnuc", "learn", given.source, "marks.csv"])
        return InvalidInputError(
            f"{said}, and {why}; nothing is learned. Restore the column; if these are your "
            f"judgments, save them alone, in columns text and right_label, as marks.csv: {then}"
        )

    if note.moved(rows):
        raise refused("are those of other rows: a column was sorted, or moved, without the others")

    async def take(nuc: TestNUC, **how: Any) -> Learned:
        texts, labels = [row.text for row in edited], [row.label for row in edited]
        places = [f"{file}, row {row.index + 1}" for row in edited]
        of_file = LabelSet.of(noted) if noted.get("labels") else None
        review = _chosen_by_hand(texts, labels, places, of_file, nuc)
        answers = nuc.learned.answers.items() if nuc.learned else ()
        judged = {key: {label, *former.get(label or "", ())} for key, (label, _) in answers}
        before = len(judged.keys() & {hash_text(row.text) for row in rows})
        against = sum(one.answer not in judged.get(one.hash, {one.answer}) for one in review)
        if against >= _CONTRADICTED and _CONTRADICTED_PART * against > before:
            raise refused(
                f"contradict {against:,} of {before:,} earlier judgments: perhaps a column was "
                "moved, or filled with one label"
            )
        empty = sum(not label for label in labels)
        to_stderr(
            f"{said}: taken as judgments of texts chosen by hand; empty cells, which say that no "
            f"label fits: {empty:,}; earlier judgments that they replace: {against:,}"
        )
        return await _carried(nuc, review, former, **how)

    return take


def _is_copy_of(source: str, rows: Sequence[Classification], text_column: str) -> bool:
    """Whether most rows have the trust that they have in results: people edit labels alone."""
    held = {row.text: row.trust for row in read_table(source, text_column, quiet=True).results}
    known = [row for row in rows if row.text in held]
    return 2 * sum(held[row.text] == row.trust for row in known) > len(known)


def _written(file: str, source: str) -> RunNote | None:
    """Return what was written to a file, or to the source if it is an edited copy of that."""
    note = RunNote.of(file)
    if Path(file) == Path(source) or note.options:
        return note
    note, kind = RunNote.of(source), Path(file).suffix.lower()
    csv = kind == ".csv" and "nuc_label" in content_of(file)[0].partition("\n")[0]
    return note if note.rows and (csv or kind == ".xlsx") else None


async def _again(source: str, nuc: TestNUC, **how: Any) -> Learned:
    """Learn again from what was judged, if some of it was not used: texts came later."""
    if nuc.learned is None or not nuc.learned.unused(nuc.learned.answers):
        raise _no_review(source)
    return await nuc.learn(nuc.learned, **how)


def _no_review(source: str) -> InvalidInputError:
    return InvalidInputError(
        f"no review of {source} with answers is in this folder; name its file, or draw one: "
        f"testnuc review {source}; labels that you edited in it are judgments by: testnuc "
        f"learn {source} {source} -o {better_name(source)}"
    )


async def _from_store(
    nuc: TestNUC, store: str, former: Mapping[str, Sequence[str]], **how: Any
) -> Learned:
    """Learn from most judgments of a run in a store, if it can be by the same instructions."""
    existing(store)
    async with opened_store(store) as held:
        scopes = dict(await held.scopes())
        learned = await learned_in(held, scopes)
    every = [(scopes[scope], Learned.from_bytes(data)) for scope, data in learned.items()]
    names = {*nuc.labels.names}.union(*former.values())

    def rank(run: tuple[Mapping[str, Any], Learned]) -> tuple[bool, int, int]:
        alike = len(names.intersection(run[1].labels))
        several = isinstance(run[1].rule, Thresholds)
        return several == nuc.labels.multilabel and alike > 0, len(run[1].answers), alike

    # of equals the newest
    found = {facts.get("instructions"): one for facts, one in sorted(every, key=rank)}
    if not found:
        raise InvalidInputError(f"{store} has no judgments; name a review, or another store")
    judged = found.get(parts_of(nuc).instructions)
    if judged is None:
        by = f"by other --instructions than this run: {', '.join(map(repr, found))}"
        if len(found) > 1:
            raise InvalidInputError(f"{store} has judgments {by}; name a review")
        to_stderr(f"note: the judgments of {store} are {by}")
        judged = next(iter(found.values()))
    elif len(every) > len(found):
        to_stderr(
            f"note: {store} has judgments of {len(every):,} runs; of those by these instructions "
            f"the {len(judged.answers):,} of the one with the most are learned from"
        )
    return await _carried(nuc, judged, former, **how)


async def _carried(
    nuc: TestNUC, judged: Review | Learned, former: Mapping[str, Sequence[str]], **how: Any
) -> Learned:
    """Learn from judgments, which may be of other labels, and say how many are of these."""
    if tuple(judged.labels) == nuc.labels.names:
        before = nuc.learned.answers if nuc.learned else ()
        learned = await nuc.learn(judged, **how)
        if isinstance(judged, Review):
            _say_what_differs(learned, judged, before, parts_of(nuc).instructions)
        return learned
    learned = await nuc.learn(judged, was=former, **how)
    known = {one.hash for one in judged.judged if one.source is not None}
    lost = len(known - learned.answers.keys())
    said = f"{len(known) - lost:,} judgments of other labels are carried over"
    if lost:
        why = "of labels that are gone or split, or of none of the labels while some are new"
        said += f", {lost:,} {'is' if lost == 1 else 'are'} not: {why}"
        said += "; to undo this: `testnuc unlearn RESULTS`, then `testnuc learn` the right file"
    stay = {*nuc.labels.names, *(name for names in former.values() for name in names)}
    gone = ", ".join(repr(name) for name in judged.labels if name not in stay)
    new = ", ".join(map(repr, added_labels(nuc.labels, judged.labels, former)))
    if new:
        said += f"; texts that the LLM gives a new label ({new}) count as not judged"
    if gone and new:
        said += f". If one of {gone} was renamed or split, say so in --labels: `was`"
    if isinstance(judged, Learned) and (part := judged.certify().coverage):
        then = "to write its rows even now: testnuc certify BEFORE.csv -o certified.csv"
        said += f"; the certificate of {part:.0%} of the texts is not: {then}"
    to_stderr(said)
    return learned


def _say_what_differs(
    learned: Learned, review: Review, before: Collection[bytes], instructions: str | None
) -> None:
    """Say if a review is by others, which texts of it are not here, and how many answers stay."""
    asked = review.context.instructions
    if review.context.run and asked != instructions:
        to_stderr(f"note: the answers are by other --instructions than this run: {asked!r}")
    run, forget = review.context.run, "testnuc unlearn RESULTS"
    given, drawn = ({item.hash for item in items} for items in (review.judged, review))
    if run and (missing := learned.unused(given)):
        said = f"{missing:,} texts of this review, drawn from {run[0]}, are not here"
        if missing == len(given):
            said = f"no text of this review, drawn from {run[0]}, is here, and its answers change "
            said += f"nothing until these texts are labeled here; to drop them: `{forget}`"
        to_stderr(f"note: {said}")
    others = learned.answers.keys() & {*before} - given
    if not given <= {*before}:
        # a further review may be open where the answer is known
        others &= drawn
    if review.drawn and others:
        to_stderr(
            f"note: answers of before that this review lacks stay: {len(others):,}; to forget "
            f"them: `{forget}`, then the same `testnuc learn`"
        )


async def _not_learned(source: str) -> InvalidInputError:
    """Return the error of results, or of a run in a store, of which nothing was learned."""
    runs = [] if holds_rows(source) else await stored_runs(source)
    for run in filter(attrgetter("learned"), reversed(runs)):
        of = f"of this run, but of another one: add --run {run.number} ({run})"
        return InvalidInputError(f"nothing was learned from answers {of}")
    return InvalidInputError(
        f"nothing was learned about {source} yet: testnuc review {source}, then "
        "testnuc learn; if it is an output of learn, name the results that learn read"
    )


async def certify(given: SimpleNamespace) -> None:
    """Print the certificate; write the texts that it covers."""
    source, output, label = given.source, given.output, given.label
    require_new(output, overwrite=given.overwrite)
    async with opened(source, given.client, given.text_column) as (nuc, held):
        learned = nuc.learned
        if learned is None:
            say_unlearned(None, source)
            raise await _not_learned(source)
        certificate = learned.certify(
            given.accuracy, given.confidence, level=given.level, label=label
        )
        table = await texts_for(nuc, held, source, output)
        found = await labeled(nuc, table)
    results = found.results
    covered = results.certified(certificate)
    say_if_changed(table, found.merged(), learned)
    texts = [result.text for result in results]
    if later := sum(learned.later([hash_text(text) for text in texts], certificate.texts)):
        to_stderr(
            f"note: {later:,} of {len(results):,} texts came after the draws, which prove nothing "
            "of them; some draws among them (--goal certify) may extend the certificate"
        )
    proved = f"what is certified is proved of all {certificate.texts:,} texts, not of these alone"
    part = certificate.coverage and len({*texts}) < certificate.texts
    for note in [*results.notes, *[proved][: bool(part)]]:
        to_stderr(f"note: {note}")
    print(certificate)
    if given.level is None and label is None and (accuracy := learned.accuracy()):
        print(accuracy)
        _accuracy_said(learned, source, texts)
    if label is None and results.multilabel:
        to_stderr("right: the text has exactly its labels, none is missing and none is wrong")
    if not say_unlearned(learned, source) and (output is None or not covered):
        to_stderr(what_next(learned, given, texts, certificate))
    if output is None:
        return
    if not covered:
        to_stderr(f"{output} was not written: no text would be in it")
        # a script must not go on without the file
        raise typer.Exit(3)
    rows = [table.rows[found.valid[result.index]] for result in covered]
    made = dict(enumerate(covered))
    write_results(output, replace(table, rows=rows), made, {}, certified=made)
    judged = [result for result in covered if result.source == "person"]
    none = sum(result.label is None for result in judged)
    to_stderr(
        f"{len(covered):,} of {len(results):,} texts, those certified and the {len(judged):,} that "
        f"a person judged{f' ({none:,} to fit no label)' * bool(none)}, written to {output}"
    )
    if found.before:
        to_stderr(
            f"note: the certificate says nothing of {len(found.before):,} labels in {source} that "
            "a referee gave, or a model of the texts without an answer of the LLM"
        )
    more = next_command("review", given, "--goal", "correct")
    ends = ", which ends the certificate" if certificate.coverage < 1 else ""
    to_stderr(f"to correct the least trusted labels{ends}: {more}")


async def distill(given: SimpleNamespace) -> None:
    """Train a head on the labels, write it, and print what it is."""
    # it is replaced without --overwrite, so it must not be a file of texts
    require_kind(given.output, ".head")
    async with opened(given.source, given.client, given.text_column) as (nuc, _):
        head = await nuc.distill(given.output)
    print(head)
    to_stderr(f"written to {given.output}; to use it: testnuc classify FILE --head {given.output}")


async def unlearn(given: SimpleNamespace) -> None:
    """Drop what was learned; answers and judged files stay."""
    async with opened(given.source, given.client, given.text_column) as (nuc, _):
        dropped = await nuc.unlearn()
    said = "what was learned is dropped; stored answers and review files are kept"
    to_stderr(said if dropped else "nothing was learned")


async def diagnose(given: SimpleNamespace) -> None:
    """Print the diagnosis of the predictions in a file of results or a store."""
    require_kind(given.plot, ".png", ".svg", ".pdf", what="plot")
    async with opened(given.source, given.client, given.text_column) as (nuc, _):
        found = await nuc.diagnose()
    print(found.describe(next_command("review", given, "-n", "50")))
    if given.plot is not None:
        found.plot().savefig(given.plot, dpi=110)


def read_reviews(files: Sequence[str]) -> dict[str, Review]:
    """Return each review; a file that is named twice is told."""
    if len(reviews := {file: Review.load(existing(file)) for file in files}) < len(files):
        to_stderr(f"note: a file is named twice, and counts once: {', '.join(files)}")
    return reviews


def _read_reviews(files: Sequence[str], *, settles: bool = False) -> Review:
    """Return a review, or several people's reviews as one."""
    reviews = read_reviews(files)
    if len(reviews) == 1:
        return reviews[files[0]]
    joined = join_reviews(reviews)
    to_stderr(str(joined))
    if joined.undecided and not settles:
        to_stderr(f"to settle open ones: testnuc review {shlex.join(files)} -o joined.json")
    return joined.review


def _newest_review(source: str, store: str | None) -> list[str]:
    """Return the files of the review in this folder that was judged last; [] if there is none."""
    for last, files in _by_draw(_reviews_of(source)):
        why = "judged last" if last in files else f"which has the answers of {last}, too"
        if len(files) > 1:
            why += "; of several judges, all files: to take one alone, name it"
        to_stderr(f"learning from {', '.join(files)}, {why}")
        return files
    if AnswerStore.of_results(store, source).new:
        raise _no_review(source)
    return []


def _by_draw(found: Mapping[str, Review]) -> Iterator[tuple[str, list[str]]]:
    """Yield, of each draw, the file judged last, and those to learn from together.

    These are the parts, or the copies of several judges; one that joins the newest goes first.
    """
    draws = dict[Any, dict[str, Review]]()
    for file, review in found.items():
        # those that join parts name them, too
        draw = [(item.hash, item.probability, item.floor) for item in review]
        draws.setdefault(tuple(_parts(review) or draw), {})[file] = review
    for of_draw in draws.values():
        answers = {file: _answers(review) for file, review in of_draw.items()}
        # a copied folder has lost the order in time
        last = next(iter(of_draw))
        whole = [file for file, given in answers.items() if answers[last] <= given]
        of = [(of_draw[file].context.judges, len(of_draw[file].judged), file) for file in whole]
        judges, _, best = max(of, key=itemgetter(0, 1))
        if any(item.position is not None for item in of_draw[best]):
            yield last, _parts(of_draw[best]) or [best]
        elif judges > 1:
            yield last, [best]
        else:
            alone = [file for file, review in of_draw.items() if review.context.judges == 1]
            more = [file for file in alone if not answers[file] <= answers[best]]
            # an earlier state of a file is no judge
            more = [a for a in more if not any(answers[a] < answers[b] for b in more)]
            yield last, sorted([best, *more])


def _parts(review: Review) -> list[str]:
    """Return the files of all parts of a review that is shared out; [] of another."""
    return [*takewhile(lambda word: not word.startswith("-"), review.context.run[1:])]


def _reviews_of(source: str) -> dict[str, Review]:
    """Return the reviews in this folder, with answers, of results or others of the same texts."""
    # a store may be large to read
    note, found = RunNote.of(source) if holds_rows(source) else RunNote(), dict[str, Review]()
    # no pipe, and no link of an editor to nothing
    files = filter(Path.is_file, Path().glob("*.json"))
    for path in sorted(files, key=lambda one: -one.stat().st_mtime):
        with suppress(InvalidInputError):
            review = Review.load(path)
            of = review.context.run[0] if review.judged and review.context.run else None
            same = of == source or (of and note.texts and note.alike(RunNote.of(of)))
            asked = review.context.instructions
            # a file of one name may have been written anew, of another question
            if of and same and note.options.get("instructions", asked) == asked:
                found[str(path)] = review
    return found


def say_unlearned(learned: Learned | None, source: str) -> bool:
    """Say which reviews of results have answers that were not learned from; whether some do."""
    known, said = {one.hash for one in (learned.judged if learned else ())}, False
    found = _reviews_of(source)
    for last, files in _by_draw(found):
        judged = {item.hash for file in files if file in found for item in found[file].judged}
        if n := len(judged - known):
            then = shlex.join(["testnuc", *_learning(found.get(files[0], found[last]), *files)])
            to_stderr(f"note: {n:,} answers in {', '.join(files)} are not learned from yet: {then}")
            said = True
    return said


def _answers(review: Review) -> set[tuple[str, str | None]]:
    """Return each text with all that people said of it."""
    said = {(item.text, label) for item in review for _, label in item.said}
    return said.union((item.text, item.answer) for item in review.judged)


def _new_review(output: str | None) -> str:
    """Return the file for a new review; where none is named, one that is free."""
    if output is None:
        output = free_name("review.json")
        with suppress(InvalidInputError):
            before = Review.load("review.json") if output != "review.json" else ()
            if any(item.source is None for item in before):
                to_stderr("note: review.json is kept; to continue it: testnuc review review.json")
        return output
    require_kind(output, ".json")
    if Path(output).exists():
        raise InvalidInputError(
            f"{output} exists; continue it with `testnuc review {output}`, or name another -o"
        )
    return output


def _chosen_by_hand(
    texts: list[str], labels: list[Any], places: list[str], before: LabelSet | None, nuc: TestNUC
) -> Review:
    """Return marks, or labels `before`, as a review of chosen texts: it proves nothing."""
    items = [ReviewItem(at, text, hash_text(text)) for at, text in enumerate(texts)]
    known = before is not None and all(one is None or before.knows(one) for one in labels)
    made = Review(items, before if before and known else nuc.labels, len(nuc), nuc.model)
    for at, label in enumerate(labels):
        try:
            made.answer(at, made.as_given(label) if isinstance(label, str | None) else label)
        except InvalidInputError as exc:
            raise InvalidInputError(f"{places[at]}: {exc}") from exc
    return made


def _is_review(source: str) -> bool:
    return Path(source).suffix.lower() == ".json" and not holds_rows(source)
