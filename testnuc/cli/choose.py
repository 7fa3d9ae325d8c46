"""``testnuc choose``."""

import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from testnuc.cli.classify import end, estimate_of, label_all, show_estimate
from testnuc.cli.event_loop import run_to_end
from testnuc.cli.files import require_kind
from testnuc.cli.judging_page import judge
from testnuc.cli.memory import RunNote
from testnuc.cli.options import Options, client_options
from testnuc.cli.options_of_run import client_of, completed
from testnuc.cli.reading import read_table, require_labels, to_stderr, usable
from testnuc.errors import InvalidInputError
from testnuc.results import Results, read_results
from testnuc.trust.choice import choose, in_order
from testnuc.trust.review import Review


def run(given: SimpleNamespace) -> None:
    """Choose among files of results, or models; let a person judge texts on which they differ."""
    path, again = given.review, shlex.join(["testnuc", *sys.argv[1:]])
    require_kind(path, ".json", what="review")
    runs, costs = _labeled(given) if given.models else (_read(given), {})
    if given.dry_run:
        return
    judged = Review.load(path) if Path(path).exists() else None
    texts = {row.text for run in runs.values() for row in run}
    if judged is not None and not all(item.text in texts for item in judged):
        raise InvalidInputError(
            f"{path} is a review of other texts, and is kept; name another file with --review"
        )
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


def _labeled(given: SimpleNamespace) -> tuple[dict[str, Results], dict[str, float]]:
    """Label a random sample of the texts in a file by each model; return what each costs, too."""
    if len(given.files) > 1 or len(set(given.models)) < 2:
        raise InvalidInputError("give one file of texts, and two or more different --model")
    table = read_table(given.files[0], given.text_column)
    every = in_order({str(table.texts[at]) for at in usable(table, given.files[0])[1]})
    texts, given.among = every[: given.sample], given.among or len(every)
    runs, costs = dict[str, Results](), dict[str, float]()
    for model in given.models:
        # the models are compared, so no neighbor votes
        options = client_options() | given.client | {"model": model, "k": 0}
        client, store = completed(Options(options, given.client.named | {"model"}), given.review)
        if given.dry_run:
            show_estimate(texts, client, store)
            continue
        results, _ = label_all(texts, client, store)
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


def _read(given: SimpleNamespace) -> dict[str, Results]:
    if len({Path(file).resolve() for file in given.files}) < max(len(given.files), 2):
        raise InvalidInputError(
            "name two or more different files of results, or a file of texts and --model twice"
        )
    if given.cheapest or given.dry_run:
        raise InvalidInputError("--cheapest and --dry-run need --model: files name no price")
    runs = {file: _results(file, given.text_column) for file in given.files}
    _require_same_labels(runs)
    return runs


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
