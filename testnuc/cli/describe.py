"""``testnuc describe``."""

from __future__ import annotations

from types import SimpleNamespace

from testnuc._base.jsonl import write_whole
from testnuc.cli.answered_texts import labeled, opened, texts_for
from testnuc.cli.files import require_kind, require_new
from testnuc.cli.reading import existing, to_stderr
from testnuc.results import Results
from testnuc.trust import Review


async def run(given: SimpleNamespace) -> None:
    """Print or write how the labels of a file or a store were made."""
    source, output = given.source, given.output
    require_kind(output, ".md")
    require_new(output, overwrite=given.overwrite)
    reviews = {file: Review.load(existing(file)) for file in given.reviews or ()}
    async with opened(source, given.client, given.text_column) as (nuc, held):
        table = await texts_for(nuc, held, source, None)
        found = await labeled(nuc, table, source)
        made = found.results
        rows = [row for _, row in sorted(found.merged().items())]
        results = Results(rows, made.usage, made.seconds, diagnosis=made.diagnosis)
        page = await nuc.describe(results, reviews)
    if output is None:
        print(page, end="")
        return
    write_whole(output, [page.encode()])
    to_stderr(f"written to {output}; it holds no text that was labeled, and no key")
