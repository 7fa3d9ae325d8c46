"""``testnuc choose``."""

import shlex
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from testnuc.cli.files import require_kind
from testnuc.cli.judging_page import judge
from testnuc.cli.memory import RunNote
from testnuc.cli.reading import read_table, require_labels, to_stderr
from testnuc.errors import InvalidInputError
from testnuc.results import Results, read_results
from testnuc.trust.choice import choose
from testnuc.trust.review import Review


def run(given: SimpleNamespace) -> None:
    """Choose among files of results; let a person judge texts on which they differ."""
    path, files, again = given.review, given.files, shlex.join(["testnuc", *sys.argv[1:]])
    require_kind(path, ".json", what="review")
    if len({Path(file).resolve() for file in files}) < max(len(files), 2):
        raise InvalidInputError("name two or more different files of results")
    runs = {file: _results(file, given.text_column) for file in files}
    _require_same_labels(runs)
    judged = Review.load(path) if Path(path).exists() else None
    texts = {row.text for row in runs[files[0]]}
    if judged is not None and not all(item.text in texts for item in judged):
        raise InvalidInputError(
            f"{path} is a review of other texts, and is kept; name another file with --review"
        )
    decide = partial(choose, runs, margin=given.margin / 100, among=given.among)
    choice = decide(judged)
    for file, results in runs.items():
        if more := len({row.text for row in results}) - choice.texts:
            to_stderr(f"note: {more:,} texts of {file} are not in all files, and are left out")
    if choice.chosen is None and choice.open:
        review = choice.review(given.n)
        review.save(path)
        to_stderr(f"{len(review) - len(review.judged):,} texts to judge, written to {path}")
        if not judge(review, path, given, again) and not choice.judged:
            return
        choice = decide(review)
        if choice.chosen is None and choice.open:
            to_stderr(f"next, judge more texts: {again}")
    print(choice)


def _results(file: str, text_column: str) -> Results:
    table = read_table(file, text_column)
    require_labels(file, table.columns, "nuc_label")
    results = read_results(table.rows, file, table.text_column)
    # a .csv has no label set
    labels = RunNote.of(file).options.get("labels") or ()
    results.choices = results.choices or tuple(map(str, labels))
    results.descriptions = results.descriptions or (labels if isinstance(labels, dict) else {})
    return results


def _require_same_labels(runs: dict[str, Results]) -> None:
    """Check that one judgment can say which run is right."""
    (first, results), *others = runs.items()
    for file, other in others:
        one, two = (set(of.choices) or set(filter(None, of.labels)) for of in (results, other))
        # of a label set that is not known, some labels may not occur
        known = bool(results.choices and other.choices)
        if one != two if known else 2 * sum(label in one for label in other.labels) < len(other):
            differing = ", ".join(map(repr, sorted(one ^ two)[:6]))
            raise InvalidInputError(
                f"{first} and {file} have different labels ({differing}), so that no judgment says "
                "which is right; `testnuc labels check --merge` renames labels"
            )
