"""``testnuc evaluate``: accuracy with and without the vote; ``testnuc compare`` and ``choose``."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from testnuc._base.display import columns
from testnuc._base.jsonl import write_whole
from testnuc._base.loop_thread import run_to_end
from testnuc.cli.answered_texts import with_empty_set
from testnuc.cli.answering import judge
from testnuc.cli.classify import end, estimate_of, label_all, show_estimate
from testnuc.cli.files import require_kind, require_new
from testnuc.cli.label_files import read_labels
from testnuc.cli.memory import AnswerStore, RunNote
from testnuc.cli.options import Options, client_options
from testnuc.cli.options_of_run import client_of, completed, stored_runs
from testnuc.cli.reading import Table, read_input, read_table, require_labels, to_stderr, usable
from testnuc.errors import InvalidInputError
from testnuc.limits.budget import BudgetAccount
from testnuc.metrics import Scores, score
from testnuc.records import text_of
from testnuc.results import Results
from testnuc.scoring import compare, not_judged
from testnuc.trust.choice import choose, in_order
from testnuc.trust.review import Review
from testnuc.types import SEPARATOR, Classification, split_labels

#: Most rows of the table.
_CLASSES = 40
#: Name of a row -> field of the scores.
_ONE = {
    "accuracy": "accuracy",
    "macro-F1": "macro_f1",
    "calibration error": "calibration_error",
    "  over texts": "with_confidence",
    "texts": "texts",
    "  without a label": "unlabeled",
}
_SEVERAL = {
    "micro-F1": "micro_f1",
    "macro-F1": "macro_f1",
    "Jaccard index": "jaccard",
    "exact match": "exact_match",
    "texts": "texts",
    "  labels unknown": "unlabeled",
}


def run(given: SimpleNamespace) -> None:
    """Score the results in a file; if it holds none, label its texts first."""
    file, output, label_column = given.file, given.output, given.label_column
    client: Options = given.client
    table = read_input(given)
    require_labels(table, label_column)
    require_new(output, ".json", overwrite=given.overwrite)
    several = client.several or bool(RunNote.of(file).options.get("multilabel"))
    try:
        gold = _gold(table.rows, label_column, several=several)
    except (json.JSONDecodeError, RecursionError) as exc:
        raise InvalidInputError(
            f"{file}: a cell of column {label_column!r} begins with [ and is not a JSON list: {exc}"
        ) from exc
    if not gold:
        raise InvalidInputError(f"{file} has no label in column {label_column!r}")
    results: Sequence[Classification]
    labeled: Results | None = None
    kept = AnswerStore(client["store"])
    if "nuc_label" in table.columns:
        where = sorted(gold)
        results = [table.results[at] for at in where]
        to_stderr(f"{file} holds results: no call was made")
    else:
        where = [at for at in usable(table)[1] if at in gold]
        _take_labels(client, gold, label_column, file)
        client, _ = completed(client, None)
        texts = [table.texts[at] for at in where]
        if given.dry_run:
            show_estimate(texts, client, kept)
            return
        labeled, _ = label_all(texts, client, kept)
        results = labeled
    pairs = not_judged([*zip(results, where, strict=True)], f"labeled texts of {file}")
    if left_out := len(where) - len(pairs):
        to_stderr(f"{left_out:,} judged texts are left out: their label is the judgment")
    results, where = [row for row, _ in pairs], [at for _, at in pairs]
    if several:
        results = [with_empty_set(result) for result in results]

    def labels(said: str | None) -> list[str] | None:
        return None if said is None else split_labels(said, several=several)

    right = [split_labels(gold[at], several=several) for at in where]
    sure = [None if r.prediction is None else r.prediction.confidence for r in results]
    alone = score(right, [labels(r.own_label) for r in results], sure)
    voted = score(right, [labels(r.label) for r in results], [r.trust for r in results])
    rows = _SEVERAL if several else _ONE
    _show(alone, voted, rows)
    if output is not None:
        content = {
            name: {field: getattr(scores, field) for field in rows.values()}
            | {"per_class": [asdict(one) for one in scores.per_class]}
            for name, scores in (("alone", alone), ("voted", voted))
        }
        write_whole(output, [(json.dumps(content, indent=2) + "\n").encode()])
    if labeled is not None:
        end(labeled, kept)


def _gold(rows: Sequence[Mapping[str, Any]], column: str, *, several: bool) -> dict[int, str]:
    """Return the gold label of each row that has one; several labels in one string."""
    if not several:
        given = ((at, text_of(row.get(column))) for at, row in enumerate(rows))
        return {at: label.strip() for at, label in given if label is not None}
    gold = {}
    for at, row in enumerate(rows):
        value = row.get(column)
        if isinstance(value, str) and value.lstrip().startswith("["):
            value = json.loads(value)
        if isinstance(value, list):
            gold[at] = SEPARATOR.join(map(str, value))
        elif text_of(value) is not None:
            labels = (part.strip() for part in str(value).split(SEPARATOR.strip()))
            gold[at] = SEPARATOR.join(filter(None, labels))
    return gold


def _take_labels(client: Options, gold: dict[int, str], label_column: str, file: str) -> None:
    """Use the labels in the file; if labels are given, check that they include all of these."""
    several = client.several
    if client["labels"] is None:
        names = {one for label in gold.values() for one in split_labels(label, several=several)}
        stored = run_to_end(stored_runs(client["store"]))
        runs = [run for run in stored if names <= {*run.labels} and run.fits(client)]
        client["labels"] = sorted(names)
        if runs:
            # with the descriptions that answers are stored for
            client["labels"] = runs[-1].labels
            to_stderr(f"the labels are those of {runs[-1]}, in {client['store']}")
        return
    known = read_labels(client["labels"])
    for at, label in gold.items():
        wrong = [one for one in split_labels(label, several=several) if one not in known]
        if wrong and label != client["none_label"]:
            raise InvalidInputError(
                f"{file}, row {at + 1}: {wrong[0]!r} in column {label_column!r} is not one of the "
                f"labels {', '.join(map(repr, list(known)[:10]))}"
            )


def _show(alone: Scores, voted: Scores, rows: Mapping[str, str]) -> None:
    figures = ((n, _figure(getattr(alone, f)), _figure(getattr(voted, f))) for n, f in rows.items())
    print(columns([("", "alone", "voted"), *figures]))
    print("\nthe labels, voted, those with the lowest F1 first")
    before = {of.label: of.f1 for of in alone.per_class}
    ordered = sorted(voted.per_class, key=lambda of: of.f1)
    lines: list[Sequence[str]] = [("label", "precision", "recall", "F1", "texts", "F1 alone")]
    for of in ordered[:_CLASSES]:
        values = (of.precision, of.recall, of.f1, of.support, before.get(of.label))
        lines.append((of.label, *map(_figure, values)))
    print(columns(lines))
    if len(ordered) > _CLASSES:
        print(f".. and {len(ordered) - _CLASSES} more: -o scores.json holds all")


def _figure(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def compare_files(given: SimpleNamespace) -> None:
    """Print how many labels differ, by pair of labels, and the accuracy if the truth is known."""
    files, column = (given.first, given.second), given.label_column
    tables = [read_table(file, given.text_column) for file in files]
    for table in tables:
        require_labels(table, column)
    first, second = (_labels_in(table, column) for table in tables)
    found = compare(first, second)
    if found.only_first or found.only_second:
        to_stderr(
            f"note: {found.only_first:,} texts are only in {files[0]}, {found.only_second:,} only "
            f"in {files[1]}"
        )
    if given.gold is not None:
        where = next((at for at, table in enumerate(tables) if given.gold in table.columns), None)
        if where is None:
            raise InvalidInputError(
                f"neither {files[0]} nor {files[1]} has a column {given.gold!r}; name that "
                "of correct labels by --gold"
            )
        gold = {row.text: row.label for row in _labels_in(tables[where], given.gold) if row.label}
        known = [row for row in first if row.text in gold]
        if not known:
            raise InvalidInputError(f"{files[where]} has no label in column {given.gold!r}")
        scored = compare(known, second, [gold[row.text] for row in known])
        found = replace(found, accuracies=scored.accuracies, gain=scored.gain, judged=scored.judged)
    print(found.describe(given.examples))


def _labels_in(table: Table, column: str) -> list[Classification]:
    """Return the texts of a file with the labels in a column."""
    labels = [(text_of(row.get(column)) or "").strip() or None for row in table.rows]
    sources = [row.get("nuc_source") for row in table.rows]
    every = enumerate(zip(table.texts, labels, sources, strict=True))
    return [Classification(at, str(text), label, source=by) for at, (text, label, by) in every]


def chosen(given: SimpleNamespace) -> None:
    """Choose among files of results, or models; let a person judge texts on which they differ."""
    path, again = given.review, shlex.join(["testnuc", *sys.argv[1:]])
    require_kind(path, ".json", what="review")
    runs, costs = _labeled_by_each(given) if given.models else (_given_runs(given), {})
    if given.dry_run:
        return
    judged = Review.load(path) if Path(path).exists() else None
    texts = {row.text for run in runs.values() for row in run}
    if judged is not None and not all(item.text in texts for item in judged):
        raise InvalidInputError(f"{path} is a review of other texts, and is kept; name another")
    rule = partial(choose, runs, margin=given.margin / 100, among=given.among)
    decide = partial(rule, costs=costs, cheapest=given.cheapest)
    choice = decide(judged)
    for name, results in runs.items():
        if more := len({row.text for row in results}) - choice.texts:
            to_stderr(f"note: {more:,} texts of {name} are not in all files, and are left out")
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


def _labeled_by_each(given: SimpleNamespace) -> tuple[dict[str, Results], dict[str, float]]:
    """Label a random sample of the texts in a file by each model; return what each costs, too."""
    if len(given.files) > 1 or len(set(given.models)) < 2:
        raise InvalidInputError("give one file of texts, and two or more different --model")
    table = read_table(given.files[0], given.text_column)
    every = in_order({str(table.texts[at]) for at in usable(table)[1]})
    texts, given.among = every[: given.sample], given.among or len(every)
    runs, costs, account = dict[str, Results](), dict[str, float](), BudgetAccount()
    for model in given.models:
        # the models are compared, so no neighbor votes
        options = client_options() | given.client | {"model": model, "k": 0}
        client, store = completed(Options(options, given.client.named | {"model"}), given.review)
        if given.dry_run:
            show_estimate(texts, client, store)
            continue
        results, _ = label_all(texts, client, store, account=account)
        end(results, store)
        # as if nothing were stored
        nuc = client_of(client, store=None, api_key="not-needed")
        if (usd := run_to_end(estimate_of(nuc, texts)).usd) is not None:
            costs[model] = 1000 * usd / len(texts)
        # what was learned, or judged, is not the model's
        own = [replace(row, label=row.own_label) for row in results]
        runs[model] = Results(own, results.usage, 0.0, choices=results.choices)
        runs[model].descriptions = results.descriptions
    return runs, costs


def _given_runs(given: SimpleNamespace) -> dict[str, Results]:
    if len({Path(file).resolve() for file in given.files}) < max(len(given.files), 2):
        raise InvalidInputError("name two files of results, or one of texts and --model twice")
    if given.cheapest or given.dry_run:
        raise InvalidInputError("--cheapest and --dry-run need --model: files name no price")
    runs = {file: read_table(file, given.text_column).results for file in given.files}
    # one judgment must be able to say which run is right
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
    return runs
