"""``testnuc compare``: where two files of results differ."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from testnuc._base.display import one_line
from testnuc.cli.reading import Table, read_table, require_labels, to_stderr
from testnuc.errors import InvalidInputError
from testnuc.scoring import gain_of, matched, points

#: Pairs of labels that are listed.
_PAIRS = 15
_WIDTH = 90


def run(given: SimpleNamespace) -> None:
    """Print how many labels differ, by pair of labels, and the accuracy if the truth is known."""
    first, second, label_column = given.first, given.second, given.label_column
    tables = [read_table(file, given.text_column) for file in (first, second)]
    for file, table in zip((first, second), tables, strict=True):
        require_labels(file, table.columns, label_column)
    first_texts, second_texts = (list(map(str, table.texts)) for table in tables)
    both = matched(first_texts, second_texts)
    if not both:
        raise InvalidInputError(f"{first} and {second} have no text in common")
    pairs = [(tables[0].rows[a], tables[1].rows[b]) for a, b in both]
    labels = [(_label(a, label_column), _label(b, label_column)) for a, b in pairs]
    differing = [at for at, (one, other) in enumerate(labels) if one != other]
    part = len(differing) / len(pairs)
    rows = [
        f"{len(pairs):,} texts are in both files, {len(differing):,} labels differ ({part:.1%})"
    ]
    left = [len(table.rows) - len(pairs) for table in tables]
    if any(left):
        to_stderr(f"note: {left[0]:,} texts are only in {first}, {left[1]:,} only in {second}")
    if given.gold is not None:
        rows += _accuracies(pairs, labels, given.gold, (first, second), tables)
    by_pair: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    for at in differing:
        by_pair[labels[at]].append(at)
    ordered = sorted(by_pair.items(), key=lambda of: -len(of[1]))
    if ordered:
        rows.append("")
    for (one, other), places in ordered[:_PAIRS]:
        rows.append(f"{len(places):>7,}  {one or 'no label'} -> {other or 'no label'}")
        shown = (first_texts[both[at][0]] for at in places[: given.examples])
        rows += [f"         {one_line(text, _WIDTH)}" for text in shown]
    if len(ordered) > _PAIRS:
        rows.append(f"         and {len(ordered) - _PAIRS} more pairs of labels")
    for row in rows:
        print(row)


def _accuracies(
    pairs: list[tuple[dict[str, Any], dict[str, Any]]],
    labels: list[tuple[str | None, str | None]],
    gold: str,
    files: tuple[str, str],
    tables: list[Table],
) -> list[str]:
    where = next((at for at, table in enumerate(tables) if gold in table.columns), None)
    if where is None:
        raise InvalidInputError(
            f"neither {files[0]} nor {files[1]} has a column {gold!r}; name the column of correct "
            "labels with --gold"
        )
    right, texts, judged = [], [], 0
    for (one, other), pair in zip(labels, pairs, strict=True):
        if (true := _label(pair[where], gold)) is None:
            continue
        if any(row.get("nuc_source") == "person" for row in pair):
            judged += 1
            continue
        right.append((one == true, other == true))
        texts.append(str(pair[0][tables[0].text_column]))
    if judged:
        to_stderr(
            f"{judged:,} texts that a person judged are left out of the accuracy: their label is "
            "the judgment"
        )
    if not right:
        others = " of the other texts" if judged else ""
        raise InvalidInputError(f"{files[where]} has no label{others} in column {gold!r}")
    rows = [
        f"accuracy {sum(pair[at] for pair in right) / len(right):.3f}  {file}"
        for at, file in enumerate(files)
    ]
    gain = points(gain_of(right, texts))
    rows.append(f"difference {gain}, over {len(right):,} texts with a correct label")
    return rows


def _label(row: dict[str, Any], column: str) -> str | None:
    value = row.get(column)
    return None if value is None or str(value).strip() == "" else str(value).strip()
