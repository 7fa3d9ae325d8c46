"""``testnuc describe``, and the one page of ``testnuc report --summary``."""

from pathlib import Path
from types import SimpleNamespace

from testnuc._base.jsonl import write_whole
from testnuc.cli.answered_texts import labeled, opened, texts_for
from testnuc.cli.files import require_kind, require_new
from testnuc.cli.judging import what_next
from testnuc.cli.reading import existing, to_stderr
from testnuc.report.plain import page_of
from testnuc.trust.review import Review


async def run(given: SimpleNamespace) -> None:
    """Print or write how the labels of a file or a store were made."""
    require_kind(given.output, ".md")
    require_new(given.output, overwrite=given.overwrite)
    reviews = {file: Review.load(existing(file)) for file in given.reviews or ()}
    page = await _page(given, reviews)
    if given.output is None:
        print(page, end="")
    else:
        _write(page, given.output)


async def summary(given: SimpleNamespace) -> None:
    """Write one page on how good labels are, what is certified, and what comes next."""
    page = await _page(given, {}, brief=True)
    title = given.title or f"Labels of {Path(given.source).name}"
    if Path(given.output).suffix.lower() != ".md":
        page = page_of(page, title)
    _write(page, given.output)


async def _page(given: SimpleNamespace, reviews: dict[str, Review], *, brief: bool = False) -> str:
    source = given.source
    async with opened(source, given.client, given.text_column) as (nuc, held):
        table = await texts_for(nuc, held, source, None)
        found = await labeled(nuc, table, source)
        results = found.results.with_rows([row for _, row in sorted(found.merged().items())])
        page = await nuc.describe(results, reviews, brief=brief)
        return (
            f"{page}\n## Next\n\n{what_next(nuc.learned, given).removeprefix('next, ')}\n"
            if brief
            else page
        )


def _write(page: str, output: str) -> None:
    write_whole(output, [page.encode("utf-8", "replace")])
    to_stderr(f"written to {output}; it holds no text that was labeled, and no key")
