"""A store, or a file of results and its store, opened without calls."""

import warnings
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from testnuc._base.checks import hash_text, valid_text
from testnuc.cli import xlsx
from testnuc.cli.files import check_output, free_name
from testnuc.cli.memory import AnswerStore
from testnuc.cli.options import Options
from testnuc.cli.options_of_run import client_of, command, held_scopes, with_options_of_run
from testnuc.cli.reading import Table, holds_rows, kind_of, read_table, to_stderr, usable
from testnuc.client import TestNUC, parts_of
from testnuc.errors import InvalidInputError, SmallPoolWarning
from testnuc.index.matching import scanned
from testnuc.labels import as_stored
from testnuc.protocols import StoredPrediction
from testnuc.results import Results
from testnuc.trust.learned import Learned
from testnuc.types import Classification, Prediction, split_labels

#: Texts that are read from a pool at a time.
_CHUNK = 2_000


@dataclass(frozen=True, slots=True)
class LabeledTable:
    """The results of the texts of a table that have a stored answer."""

    results: Results
    #: The row of each result.
    valid: Sequence[int]
    #: What is wrong with the texts of the other rows.
    problems: Mapping[int, str]
    #: Row -> what the file says, of texts that were not asked about, or that a referee labeled.
    before: Mapping[int, Classification]

    def merged(self) -> dict[int, Classification]:
        """Return the result of each row: labels of a referee stay, but for those of a person."""
        made = dict(zip(self.valid, self.results, strict=True))
        judged = {at for at, result in made.items() if result.source in {"person", "referee"}}
        return made | {at: row for at, row in self.before.items() if at not in judged}


@asynccontextmanager
async def opened(
    source: str, client: Options, text_column: str, *, learns: bool = False
) -> AsyncIterator[tuple[TestNUC, Table | None]]:
    """Open the client of a store, or of results and their store; it makes no call.

    Options that are not given are those of the run behind the source. A store that is missing, as
    in a folder copied without its hidden one, is made by those that learn alone.
    """
    client, kept = await with_options_of_run(client, source)
    if kept.new and kept.folder is not None and not learns:
        kept = AnswerStore(None)
    table = read_table(source, text_column) if holds_rows(source) else None
    # nothing is sent, so no key is needed; the run may not have asked about neighbors
    nuc = client_of(client, store=kept.where, neighbors="stored", api_key="not-needed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallPoolWarning)
        answered = [] if table is None else _answered(nuc, table)
        kept.create_folder()
        async with nuc:
            if answered:
                await _take(nuc, answered)
            if not (await nuc.stats()).predicted:
                if table is not None and any(row.source == "head" for row in table.results):
                    raise InvalidInputError(
                        f"a head labeled {source}, and no LLM; to judge its labels, judge and "
                        "learn what it was trained on, and train it again: testnuc distill"
                    )
                raise InvalidInputError(
                    f"no answer of {nuc.model} with these labels and settings is stored: "
                    f"{await held_scopes(str(kept.where))}; give the options of that run"
                )
            yield nuc, table


async def texts_for(
    nuc: TestNUC, table: Table | None, source: str, output: str | None = None
) -> Table:
    """Return the texts of a file, or those in a store that have an answer of this client."""
    if table is None:
        parts, rows = parts_of(nuc), list[dict[str, Any]]()
        async for found in scanned(parts.pool, _CHUNK):
            known = await parts.store.get_predictions([parts.predictor.key(e.text) for e in found])
            rows += [{"text": e.text} for e, of in zip(found, known, strict=True) if of is not None]
        if not rows:
            raise InvalidInputError(
                f"{await held_scopes(source)}; it holds no text embedded by {parts.embedding.name} "
                "that this model answered with these labels and settings: give those of its run"
            )
        table = Table(rows, ["text"], "text", source)
    check_output(output, table)
    return table


async def labeled(nuc: TestNUC, table: Table) -> LabeledTable:
    """Label the texts of a file or a store by what was learned; it makes no call."""
    source, (problems, valid) = table.file, usable(table)
    parts, before = parts_of(nuc), dict[int, Classification]()
    rows: Sequence[Classification] = ()
    if holds_rows(source):
        rows = table.results
        keys = [parts.predictor.key(table.texts[at]) for at in valid]
        stored = await parts.store.get_predictions(keys)
        unasked = {at for at, answer in zip(valid, stored, strict=True) if answer is None}
        before = {at: rows[at] for at in valid if at in unasked or rows[at].source == "referee"}
        valid = [at for at in valid if at not in unasked]
    texts = [table.texts[at] for at in valid]
    if calls := (await nuc.estimate(texts)).calls:
        raise InvalidInputError(
            f"{calls:,} of {len(texts):,} texts in the column {table.text_column!r} have no stored "
            "answer; run `testnuc classify` first, or name another --text-column"
        )
    found = LabeledTable(await nuc.classify_many(texts), valid, problems, before)
    now, edited = found.merged(), list[Classification]()
    for row in table.note.edited(rows[at] for at in now) if rows else ():
        # what the file says is kept of others; what a person said is known
        kept = now[row.index].source == "person" or row.index in before
        if not kept or (row.label or "") != (now[row.index].label or ""):
            edited.append(row)
    if edited:
        ends = bool(nuc.learned and nuc.learned.certify().coverage)
        judge = "to take them as your judgments" + ", which ends the certificate" * ends
        take = command("learn", source, {}, source, "-o", free_name("better.csv"))
        to_stderr(
            f"note: labels in {source} that were edited and are not used: {len(edited):,}, as "
            f"{edited[0].label!r} in row {edited[0].index + 1}; {judge}: {take}"
        )
    return found


def changed_since(table: Table, now: Mapping[int, Classification], *, edits: bool = True) -> str:
    """Return how many labels of a file have changed since, or were edited in it; "": none."""
    said = table.results if holds_rows(table.file) else ()
    others = [
        said[at] for at, row in now.items() if said and (row.label or "") != (said[at].label or "")
    ]
    edited = len(table.note.edited(others)) if others else 0
    changed, before = len(others) - edited, "was written before the last judgments or later texts"
    told = [f"{before}: {changed:,} of its labels have changed since"] * bool(changed)
    if edits and edited:
        told.append(f"holds labels that were edited in it, and are not used: {edited:,}")
    return "; it ".join(told)


def say_if_changed(table: Table, now: Mapping[int, Classification], learned: Learned) -> None:
    """Say that labels are not those in the file, and since when; `labeled` names edited ones."""
    if told := changed_since(table, now, edits=False):
        last = max((one.day[-10:] for one in learned.judged), default="") or "an unknown date"
        by = f"by judgments until {last}"
        to_stderr(f"note: {table.file} {told}; what follows is of the labels as they are now, {by}")


async def newest(nuc: TestNUC, table: Table) -> Results:
    """Return the results of a file, after judgments with what was learned from them."""
    results = table.results
    if nuc.learned is None:
        return results
    by_now = await labeled(nuc, table)
    rows = by_now.merged()
    every = [replace(rows.get(at, row), index=at) for at, row in enumerate(results)]
    made = by_now.results.with_rows(every)
    made.usage, made.seconds = results.usage, results.seconds
    return made


def _answered(nuc: TestNUC, table: Table) -> list[Classification]:
    """Return the results of a file that hold the LLM's answer."""
    usable(table)
    source, of_cells = table.file, table.texts if kind_of(table.file) == ".xlsx" else ()
    cut = (at for at, text in enumerate(of_cells, 1) if isinstance(text, str) and xlsx.is_cut(text))
    if (row := next(cut, None)) is not None:
        raise InvalidInputError(
            f"{source}, row {row}: the text is cut at {xlsx.CELL:,} characters, the most in "
            "a cell; run the same `testnuc classify` with -o to a .csv (the answers are stored)"
        )
    if later := table.later:
        to_stderr(
            f"note: {len(later):,} texts, as in row {min(later) + 1}, were not in "
            f"{source} when it was written: what is beside them is no answer of the LLM; next: "
            + command("classify", source, {}, "-o", "NEW.csv")
        )
    answered = [r for r in table.results if r.index not in later and valid_text(r.text) is None]
    if nuc.labels.multilabel:
        answered = [with_empty_set(result) for result in answered]
    answered = [result for result in answered if result.prediction is not None]
    for result in answered:
        label = result.own_label
        if label is not None and not nuc.labels.knows(label):
            raise InvalidInputError(
                f"{source}, row {result.index + 1}: the LLM's label {label!r} is not one of the "
                "labels; give the --labels of the run, or restore nuc_own_label (1, not 1.0)"
            )
    return answered


def with_empty_set(result: Classification) -> Classification:
    """Return a result of several labels as before a CSV file had it, whose "" is no labels."""
    own = result.prediction
    if own is not None and own.stated is None:
        names = split_labels(own.label) + split_labels(own.said)
        own = replace(own, stated=tuple((name, None) for name in names))
        result = replace(result, prediction=own)
    if result.multilabel or result.source is None or result.error is not None:
        return result
    return replace(result, label=result.label or "", prediction=own or Prediction("", None))


async def _take(nuc: TestNUC, answered: list[Classification]) -> None:
    """Add the texts of results to the pool, and their answers to the store, if they lack."""
    parts = parts_of(nuc)
    key, scope = parts.predictor.key, parts.predictor.scope
    rows = [
        StoredPrediction(key(row.text), scope, hash_text(row.text), 0, as_stored(row.prediction))
        for row in answered
        if row.prediction is not None
    ]
    await parts.store.put_predictions(rows)
    texts = list(dict.fromkeys(result.text for result in answered))
    if len(nuc) < len(texts):
        to_stderr(f"embedding {len(texts):,} texts; --store stores them for later runs")
    await nuc.add(texts)
