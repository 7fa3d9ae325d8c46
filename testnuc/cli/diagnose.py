"""``testnuc diagnose``: estimate from stored predictions whether a vote would help."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testnuc._base.checks import valid_text
from testnuc.cli.answer_store import AnswerStore, noted_run
from testnuc.cli.answered_texts import opened
from testnuc.cli.client_factory import client_of
from testnuc.cli.event_loop import run_to_end
from testnuc.cli.files import require_folder
from testnuc.cli.next_steps import command
from testnuc.cli.options_of_run import (
    EMBEDDER,
    with_embedder,
    with_options_of_file,
)
from testnuc.cli.reading import holds_rows, read_table, to_stderr, usable
from testnuc.errors import InvalidInputError, SmallPoolWarning
from testnuc.protocols import Answer, Reply, TokenUsage
from testnuc.results import read_results
from testnuc.types import MultilabelClassification

if TYPE_CHECKING:
    from testnuc.protocols import Request
    from testnuc.results import Results
    from testnuc.trust import Diagnosis

__all__ = ["run"]

#: Options of a run that the diagnosis of its results takes.
_OF_FILE = ("labels", "none_label", "embedder")


def run(source: str, *, text_column: str, plot: str | None, client: dict[str, Any]) -> None:
    """Print the diagnosis of the predictions in a file of results or a store."""
    if plot is not None and Path(plot).suffix.lower() not in {".png", ".svg", ".pdf"}:
        raise InvalidInputError(f"the plot is {plot!r}; name a .png, .svg or .pdf file")
    if plot is not None:
        require_folder(plot)
    asked = client
    if holds_rows(source):
        # the answers are in the file: how they were asked for does not matter
        run_of_file = with_options_of_file(client, source)
        client = {**client, **{name: run_of_file[name] for name in _OF_FILE}}
        store = client["store"] or AnswerStore.beside(source)
        if client["embedder"] is None and "://" not in store and not Path(store).is_file():
            to_stderr(
                f"note: {source} does not say what embedded its texts; without --store or "
                f"--embedder that is {EMBEDDER}"
            )
        client = run_to_end(with_embedder(client, store))
        found = run_to_end(_of_file(source, text_column, client))
    else:
        if "://" not in source and not Path(source).is_file():
            raise InvalidInputError(f"there is no file or store {source}; check the path")
        found = run_to_end(_of_store(source, client))
    then = command("review", source, asked, "-n", "50", text_column=text_column)
    print(found.describe(then))  # noqa: T201 - the command's output
    if plot is not None:
        found.plot().savefig(plot, dpi=110)


class _Recorded:
    """A provider that returns the predictions in a file."""

    name, model, identity = "recorded", "file", "1"

    def __init__(self, results: Results) -> None:
        self._said = {r.text: r.prediction for r in results if r.prediction is not None}

    async def answer(self, request: Request) -> Reply:
        said = [self._said[text] for text in request.texts]
        answers = tuple(Answer(p.label or p.said or "", p.confidence) for p in said)
        return Reply(answers, TokenUsage(0, 0))


async def _of_file(file: str, text_column: str, client: dict[str, Any]) -> Diagnosis:
    table = read_table(file, text_column)
    usable(table, file)
    results = read_results(table.rows, file, table.text_column)
    if noted_run(file).get("multilabel") or isinstance(results[0], MultilabelClassification):
        raise InvalidInputError(
            f"{file} has several labels for a text, which diagnose does not judge; draw texts to "
            f"judge them: testnuc review {file}"
        )
    with_own = [r for r in results if r.own_label is not None and valid_text(r.text) is None]
    labels = client["labels"] or sorted({r.own_label for r in with_own if r.own_label is not None})
    if len(labels) < 2:
        raise InvalidInputError(
            f"{file} holds the LLM's own label for {len(with_own)} texts (column nuc_own_label); "
            "give a file written by `testnuc classify -o`"
        )
    recorded: Any = _Recorded(results)
    nuc = client_of({**client, "labels": labels}, model=recorded, base_url=None, store=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallPoolWarning)
        async with nuc:
            await nuc.add([r.text for r in with_own])
            await nuc.predict_pool()
            return await nuc.diagnose()


async def _of_store(store: str, client: dict[str, Any]) -> Diagnosis:
    async with opened(store, client, "text") as (nuc, _):
        return await nuc.diagnose()
