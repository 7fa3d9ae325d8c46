"""``testnuc report``, a page for judging and browsing results, and ``testnuc describe``."""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

from testnuc._base.jsonl import write_whole
from testnuc._engine.reporting import cell_in
from testnuc.cli.answered_texts import changed_since, labeled, opened, texts_for
from testnuc.cli.count import groups_of
from testnuc.cli.files import require_kind, require_new
from testnuc.cli.judging import read_reviews, require_results, what_next
from testnuc.cli.label_files import read_labels
from testnuc.cli.memory import RunNote
from testnuc.cli.options_of_run import next_command
from testnuc.cli.reading import holds_rows, name_labels, read_table, to_stderr
from testnuc.errors import InvalidInputError
from testnuc.report import write
from testnuc.report.page import page_of
from testnuc.trust.counts import NONE, Counts, counted
from testnuc.trust.review import Review


async def run(given: SimpleNamespace) -> None:
    """Read results and write the page."""
    file, output, client = given.source, given.output, given.client
    require_kind(output, ".html", ".htm", *([".md"] if given.summary else []))
    if (given.by is None and given.period) or (given.by is not None and not given.summary):
        raise InvalidInputError("--period needs --by, a column of dates; --by needs --summary")
    if given.summary:
        require_new(output, overwrite=given.overwrite)
        await _describe(given, {}, brief=True)
        return
    if holds_rows(file):
        results = read_table(file, given.text_column).results
    else:
        async with opened(file, client, given.text_column) as (nuc, held):
            results = await nuc.classify_many((await texts_for(nuc, held, file)).texts)
    options = RunNote.of(file).options
    if client["labels"]:
        name_labels(results, read_labels(client["labels"]), options.get("none_label"))
    then = next_command("learn", given, "marks.json")
    title = given.title or f"testnuc: {Path(file).name}"
    # a .csv does not say it
    several = client.several or options.get("multilabel")
    if results.learned is None and (judged := sum(one.source == "person" for one in results)):
        results.learned = f"labels and trust are learned from judgments, {judged:,} of these texts"
    write(results, output, then=then, title=title, most=given.rows, several=several)
    to_stderr(f"{len(results):,} texts, written to {output}")
    if not any(result.neighbors for result in results):
        to_stderr(
            "note: the file holds no neighbors and votes; write them with "
            "`testnuc classify --full -o FILE.jsonl`"
        )


async def describe(given: SimpleNamespace) -> None:
    """Print or write how the labels of a file or a store were made."""
    require_new(given.output, ".md", overwrite=given.overwrite)
    require_results("describe", given.source, given.reviews or ())
    reviews = read_reviews(given.reviews or ())
    if empty := [file for file, review in reviews.items() if not review.judged]:
        raise InvalidInputError(f"{', '.join(empty)}: nobody has judged it; leave it out")
    await _describe(given, reviews)


def _require_texts(reviews: Mapping[str, Review], texts: Collection[str], source: str) -> None:
    """Raise an error if a review is of other texts; say of how many where it is of some."""
    for file, review in reviews.items():
        missing = sum(item.text not in texts for item in review)
        if missing == len(review):
            raise InvalidInputError(f"no text of {file} is in {source}; leave it out")
        if missing:
            to_stderr(f"note: {missing:,} texts of {file} are not in {source}")


async def _describe(
    given: SimpleNamespace, reviews: dict[str, Review], *, brief: bool = False
) -> None:
    """Print or write the page of `TestNUC.describe`; a brief one says what comes next."""
    source, output = given.source, given.output
    async with opened(source, given.client, given.text_column) as (nuc, held):
        table = await texts_for(nuc, held, source)
        groups = groups_of(table, given.by, given.period) if brief and given.by else None
        found = await labeled(nuc, table)
        merged = found.merged()
        results = found.results.with_rows([row for _, row in sorted(merged.items())])
        _require_texts(reviews, {row.text for row in results}, source)
        page = await nuc.describe(results, reviews, brief=brief)
    if holds_rows(source):
        about = f"This page is about the labels in `{source}`."
        if told := changed_since(table, merged):
            about = f"`{source}` {told}. This page is about the labels as they are now."
        # below the title, or the headline
        before = "\n\n##" if brief else "\n"
        page = page.replace(before, f"\n\n{about}{before}", 1)
    if groups is not None and nuc.learned is not None:
        of_rows = [groups[at] for at in sorted(merged)]
        try:
            counts = counted(results, nuc.learned, of_rows, periods=given.period is not None)
            shares = [*_shares(counts)]
        except InvalidInputError as exc:
            # as where all texts came later; what comes next is below
            shares = [f"Not known: {exc}".partition("; ")[0] + "."]
        head = f"\n## Shares by {cell_in(str(given.period or given.by))}"
        page += "\n".join([head, "", *shares, ""])
    if brief:
        todo = what_next(nuc.learned, given, [row.text for row in results])
        then = re.sub(r"testnuc [^;\n]+", r"`\g<0>`", todo.replace("next, ", ""))
        page += "\n\n".join(["\n## Next", *then.splitlines()]) + "\n"
    if output is None:
        print(page, end="")
        return
    if Path(output).suffix.lower() != ".md":
        page = page_of(page, given.title or f"Labels of {Path(source).name}")
    write_whole(output, [page.encode("utf-8", "replace")])
    to_stderr(f"written to {output}; it holds no text that was labeled, and no key")


def _shares(counts: Counts) -> Iterator[str]:
    """Yield a table, in Markdown, of the share of each label in each group, and what is noted."""
    shares = {(item.label or NONE, item.group or "all"): item.shown for item in counts}
    labels, groups = (list(dict.fromkeys(names)) for names in zip(*shares, strict=True))
    yield " | ".join(["| label", *map(cell_in, groups)]) + " |"
    yield "| --- |" + " --: |" * len(groups)
    for label in labels:
        cells = (shares[label, group] for group in groups)
        yield " | ".join([f"| {cell_in(label)}", *cells]) + " |"
    yield from ("", *(f"- {note}" for note in [*counts.marks, *counts.notes]))
