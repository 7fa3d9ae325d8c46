"""``testnuc report``: an HTML page for browsing a file of results."""

from __future__ import annotations

import sys
from pathlib import Path

from testnuc._base.jsonl import table
from testnuc.errors import InvalidInputError
from testnuc.report import write
from testnuc.results import read_results

__all__ = ["run"]


def run(file: str, *, output: str, text_column: str, title: str | None, most: int) -> None:
    """Read results and write the page."""
    place = Path(output)
    if place.suffix.lower() not in {".html", ".htm"}:
        raise InvalidInputError(f"the output is {output!r}; name a .html file")
    if not place.absolute().parent.is_dir():
        raise InvalidInputError(f"{output}: there is no folder {place.parent}; create it first")
    if not Path(file).is_file():
        raise InvalidInputError(f"there is no file {file}; check the path")
    kind = Path(file).suffix.lower()
    if kind == ".txt":
        raise InvalidInputError(
            f"{file} holds labels without texts; write a .jsonl file with `testnuc classify -o`"
        )
    if kind == ".jsonl":
        results = read_results(table(file), file, text_column)
    else:
        from testnuc.cli.files import read_table

        results = read_results(read_table(file, text_column).rows, file, text_column)
    write(results, place, title=title or f"testnuc: {Path(file).name}", most=most)
    _tell(f"{len(results):,} texts, written to {output}")
    if not any(result.neighbors for result in results):
        _tell(
            "note: the file holds no neighbors and votes; write them with "
            "`testnuc classify --full -o FILE.jsonl`"
        )


def _tell(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201 - this is the command's output
