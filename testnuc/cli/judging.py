"""``testnuc review``, ``learn``, ``certify`` and ``unlearn``: evidence about labels."""

from __future__ import annotations

import warnings
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import orjson

from testnuc._base.checks import hash_text, valid_text
from testnuc.cli.answering import answer
from testnuc.cli.classify import AnswerStore
from testnuc.cli.client_factory import client_of, parts_of
from testnuc.cli.event_loop import run_to_end
from testnuc.cli.files import (
    Table,
    check_output,
    existing,
    read_table,
    require_folder,
    require_store,
    tell,
    usable,
    write_results,
)
from testnuc.cli.options_of_run import held_scopes, with_options_of_file, with_options_of_store
from testnuc.errors import InvalidInputError, SmallPoolWarning
from testnuc.protocols import StoredPrediction
from testnuc.report.marks import read_marks
from testnuc.results import read_results
from testnuc.trust.review import GOALS, Review, ReviewItem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from testnuc.client import TestNUC
    from testnuc.results import Results
    from testnuc.trust.learned import Learned
    from testnuc.types import Classification

__all__ = ["certify", "learn", "review", "unlearn"]

_TABLES = {".csv", ".jsonl", ".parquet"}


def review(
    source: str,
    n: int,
    *,
    goal: str | None,
    output: str,
    by_hand: bool,
    text_column: str,
    client: dict[str, Any],
) -> None:
    """Draw texts to be judged, or continue a review; with `by_hand`, ask for answers here."""
    if _is_review(source):
        # the file itself says what to judge
        begun = Review.load(existing(source))
        answer(begun, source, then="testnuc learn" if begun.origin else "testnuc learn STORE")
        return
    if goal is not None and goal not in GOALS:
        raise InvalidInputError(f"--goal is {goal!r}; choose from {', '.join(GOALS)}")
    if Path(output).suffix.lower() != ".json":
        raise InvalidInputError(f"the output is {output!r}; name a .json file")
    require_folder(output)
    if Path(output).exists():
        raise InvalidInputError(
            f"{output} exists; continue it with `testnuc review {output}`, or name another -o"
        )

    async def draw() -> Review:
        async with _opened(source, client, text_column) as (nuc, _):
            return await nuc.review(n, goal=cast("Any", goal))

    drawn = run_to_end(draw())
    if not len(drawn):
        raise InvalidInputError(
            f"{source} leaves nothing to judge"
            + (": no candidate differs from another" if goal == "decide" else "")
            + "; choose another --goal"
        )
    drawn.origin = source
    drawn.save(output)
    tell(f"{len(drawn):,} of {drawn.texts:,} texts to judge, written to {output}")
    if by_hand:
        answer(drawn, output, then="testnuc learn")
        return
    tell(f"to judge them here: testnuc review {output}")
    tell(f"then: testnuc learn {output}")


def learn(
    source: str, file: str | None, *, at_random: bool, text_column: str, client: dict[str, Any]
) -> None:
    """Learn from a review, or from marks of the page, and print what was learned."""
    named = None if file is None else source
    file = source if file is None else file
    judged: Review | None = None
    texts: list[str] = []
    labels: list[str] = []
    if Path(file).suffix.lower() == ".json" and isinstance(_json(file), dict):
        judged = Review.load(file)
        if not judged.judged:
            raise InvalidInputError(f"{file} has no answers; give some: testnuc review {file}")
    else:
        texts, labels = read_marks(existing(file))
    origin = named or (None if judged is None else judged.origin)
    if origin is None:
        raise InvalidInputError(
            f"{file} does not say what it judges; name the results or the store before it: "
            f"testnuc learn RESULTS {file}"
        )

    async def take() -> Learned:
        async with _opened(origin, client, text_column) as (nuc, _):
            if judged is not None:
                return await nuc.learn(judged)
            if at_random:
                return await nuc.learn(texts, labels)
            return await nuc.learn(_chosen_by_hand(texts, labels, nuc))

    print(run_to_end(take()))  # noqa: T201 - the command's output
    if judged is None and not at_random:
        tell(
            "note: marked texts were chosen, not drawn, so they correct and train, but prove "
            "nothing; draw some with `testnuc review`, or give --at-random if they were drawn"
        )
    tell("to apply it, run `testnuc classify` again: stored answers are not requested again")


def certify(
    source: str,
    *,
    accuracy: float,
    confidence: float,
    output: str | None,
    text_column: str,
    client: dict[str, Any],
) -> None:
    """Print the certificate; write the texts that it covers."""
    if output is not None:
        require_folder(output)

    async def find() -> tuple[Any, Results, Table]:
        async with _opened(source, client, text_column) as (nuc, given):
            learned = nuc.learned
            if learned is None:
                raise InvalidInputError(
                    f"nothing was learned about {source} yet: testnuc review {source}, then "
                    "testnuc learn"
                )
            certificate = learned.certify(accuracy, confidence)
            table = await _stored_texts(nuc, source) if given is None else given
            if output is not None:
                check_output(output, source, table)
            valid = usable(table, source)[1]
            texts = [table.texts[at] for at in valid]
            calls = (await nuc.estimate(texts)).calls
            if calls:
                raise InvalidInputError(
                    f"{calls:,} texts have no stored answer; run `testnuc classify` first"
                )
            rows = [table.rows[at] for at in valid]
            results = await nuc.classify_many(texts)
            return certificate, results, Table(rows, table.columns, table.text_column, table.schema)

    certificate, results, table = run_to_end(find())
    print(certificate)  # noqa: T201 - the command's output
    if output is None:
        return
    covered = {result.index: result for result in results.certified(certificate)}
    if not covered:
        # an answer, not a mistake of the user
        tell(f"no text is certified; {output} was not written")
        return
    rows = [table.rows[at] for at in sorted(covered)]
    kept = Table(rows, table.columns, table.text_column, table.schema)
    write_results(output, kept, dict(enumerate(covered[at] for at in sorted(covered))), {})
    tell(f"{len(covered):,} of {len(results):,} texts are certified, written to {output}")


def unlearn(source: str, *, text_column: str, client: dict[str, Any]) -> None:
    """Drop what was learned; answers and judged files stay."""

    async def drop() -> bool:
        async with _opened(source, client, text_column) as (nuc, _):
            return await nuc.unlearn()

    if run_to_end(drop()):
        tell("what was learned is dropped; stored answers and review files are kept")
    else:
        tell("nothing was learned")


@asynccontextmanager
async def _opened(
    source: str, client: dict[str, Any], text_column: str
) -> AsyncIterator[tuple[TestNUC, Table | None]]:
    """Open the client of a store, or of results and their store; it makes no call."""
    table: Table | None = None
    place: str | None = source
    if _is_table(source):
        table = read_table(source, text_column)
        place = AnswerStore.beside(source) if client["store"] is None else client["store"]
    else:
        require_store(source)
    assert place is not None
    if table is not None:
        client = with_options_of_file(client, source)
    if "://" in place or Path(place).exists():  # noqa: ASYNC240 - nothing runs beside it
        client = await with_options_of_store(client, place)
    if client["labels"] is None:
        raise InvalidInputError(f"{source} does not hold the label set; name it with --labels")
    # nothing is sent, so no key is needed
    nuc = client_of({**client, "store": place}, api_key="not-needed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallPoolWarning)
        answered = [] if table is None else _answered(nuc, table, source)
        if table is not None and client["store"] is None:
            AnswerStore.of(client, source, always=True).create()
        async with nuc:
            if answered:
                await _take(nuc, answered)
            if not (await nuc.stats()).predicted:
                raise InvalidInputError(
                    f"{place} holds no answer of {nuc.model} with these labels and settings: "
                    f"{await held_scopes(place)}; give the options of the run that filled it"
                )
            yield nuc, table


def _answered(nuc: TestNUC, table: Table, source: str) -> list[Classification]:
    """Return the results of a file that hold the LLM's answer."""
    usable(table, source)
    results = read_results(table.rows, source, table.text_column)
    answered = [r for r in results if r.prediction is not None and valid_text(r.text) is None]
    for result in answered:
        label = result.own_label
        if label is not None and nuc.labels.index(label) is None:
            raise InvalidInputError(
                f"{source}, row {result.index + 1}: the LLM's label {label!r} is not one of the "
                "labels; give the --labels of the run that wrote it"
            )
    return answered


async def _take(nuc: TestNUC, answered: list[Classification]) -> None:
    """Add the texts of results to the pool, and their answers to the store, if they lack."""
    parts = parts_of(nuc)
    rows = []
    for result in answered:
        assert result.prediction is not None
        text_hash = hash_text(result.text)
        key = parts.predictor.key(result.text)
        rows.append(StoredPrediction(key, parts.predictor.scope, text_hash, 0, result.prediction))
    await parts.store.put_predictions(rows)
    await nuc.add(list(dict.fromkeys(result.text for result in answered)))


async def _stored_texts(nuc: TestNUC, store: str) -> Table:
    """Return the texts of the pool that have a stored answer of this client."""
    parts = parts_of(nuc)
    rows: list[dict[str, Any]] = []
    start: int | None = 0
    while start is not None:
        found, start = await parts.pool.scan(start, 2_000)
        known = await parts.store.get_predictions([parts.predictor.key(e.text) for e in found])
        rows += [
            {"text": entry.text}
            for entry, prediction in zip(found, known, strict=True)
            if prediction is not None
        ]
    if not rows:
        raise InvalidInputError(
            f"{store} holds no text embedded by {parts.embedding.name}; give the --embedder of "
            "the run that filled it"
        )
    return Table(rows, ["text"], "text")


def _chosen_by_hand(texts: list[str], labels: list[str], nuc: TestNUC) -> Review:
    """Return marks as a review whose texts were chosen: they correct, and prove nothing."""
    items = [
        ReviewItem(
            index=at,
            text=text,
            hash=hash_text(text),
            own_label=None,
            candidates=(),
            trust=None,
            neighbors=(),
            goal="correct",
            probability=None,
            floor=None,
        )
        for at, text in enumerate(texts)
    ]
    made = Review(items, nuc.labels.names, len(nuc), nuc.model)
    for at, label in enumerate(labels):
        made.answer(at, label)
    return made


def _is_table(source: str) -> bool:
    return "://" not in source and Path(source).suffix.lower() in _TABLES


def _is_review(source: str) -> bool:
    return "://" not in source and Path(source).suffix.lower() == ".json"


def _json(file: str) -> Any:
    try:
        return orjson.loads(existing(file).read_bytes())
    except (OSError, orjson.JSONDecodeError) as exc:
        raise InvalidInputError(f"{file} cannot be read as JSON: {exc}") from exc
