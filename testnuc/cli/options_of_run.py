"""The options of the run that filled a store or wrote a file, so that they need not be repeated."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testnuc import stores
from testnuc._base.jsonl import table as records_of
from testnuc._engine.shortlist import ALL, AUTOMATIC_ABOVE
from testnuc.cli.answer_store import AnswerStore, noted_run
from testnuc.cli.files import require_store
from testnuc.cli.label_files import read_labels
from testnuc.cli.options import client_options
from testnuc.cli.reading import existing, holds_rows
from testnuc.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from testnuc.results import Results

__all__ = [
    "EMBEDDER",
    "OF_ANSWERS",
    "held_scopes",
    "opened_store",
    "remembered",
    "run_of",
    "with_embedder",
    "with_options_of_file",
    "with_options_of_run",
]

#: The embedder of a store that has none yet.
EMBEDDER = "sentence-transformers/all-MiniLM-L6-v2"

#: Options that decide which stored answers are used, besides labels and model.
OF_ANSWERS = (
    "base_url",
    "embedder",
    "instructions",
    "none_label",
    "texts_per_call",
    "shortlist",
    "multilabel",
    "threshold",
    "score_labels",
)
#: And how they are voted on.
_KEPT = (*OF_ANSWERS, "k", "policy")
_SHOWN = 6


def remembered(client: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run that a file of its results records."""
    defaults = client_options()
    found = {name: client[name] for name in _KEPT if client[name] != defaults[name]}
    # a password may be part of an address
    if "@" in str(found.get("base_url", "")):
        del found["base_url"]
    labels = read_labels(client["labels"])
    return {**found, **({"descriptions": dict(labels)} if isinstance(labels, dict) else {})}


def run_of(client: Mapping[str, Any], results: Results) -> dict[str, Any]:
    """Return the options of a run that later commands on its output need."""
    # as the client names them: a label that means "none of these" is one of them
    return {**remembered(client), "model": client["model"], "labels": list(results.choices)}


async def with_options_of_run(client: dict[str, Any], source: str) -> dict[str, Any]:
    """Return the options, with those of the run behind a file of results or a store.

    What the command line gave wins. Only a file that `classify --full` wrote records its run.
    """
    rows = holds_rows(source)
    store = source
    if rows:
        client = with_options_of_file(client, source)
        store = client["store"] or AnswerStore.beside(source)
    else:
        require_store(source)
    if _is_there(store):
        client = await _with_scope(client, store)
    if client["labels"] is None:
        raise InvalidInputError(
            f"{source} does not hold the label set; name it with --labels, or if `learn` wrote the "
            "file, name the results that it read"
        )
    return await with_embedder(client, store)


def with_options_of_file(client: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the options, with those of the run that wrote a file where none is given."""
    run: Mapping[str, Any] = {}
    path = existing(source)
    if path.suffix.lower() == ".jsonl":
        found = (record.get("nuc_run") for record in records_of(path))
        run = next((run for run in found if isinstance(run, dict)), {})
    options = run.get("options")
    facts = {**noted_run(source), **(options if isinstance(options, dict) else {})}
    facts |= {name: run[name] for name in ("labels", "descriptions") if run.get(name)}
    if run.get("model"):
        facts["model"] = run["model"]
    return _merged(client, facts)


async def with_embedder(client: dict[str, Any], place: str | None) -> dict[str, Any]:
    """Return the options with an embedder: as given, else that of the store, else the default."""
    if client["embedder"] is not None:
        return client
    found = [] if place is None or not _is_there(place) else await embedders_in(place)
    return {**client, "embedder": found[0] if len(found) == 1 else EMBEDDER}


def _is_there(store: str) -> bool:
    return "://" in store or Path(store).is_file()


async def embedders_in(store: str) -> list[str]:
    """Return the names of the embedders in a store."""
    async with opened_store(store) as opened:
        return [name for name, _ in await opened.embedders()]


async def _with_scope(client: Mapping[str, Any], store: str) -> dict[str, Any]:
    names = None
    if client["labels"] is not None:
        names = list(read_labels(client["labels"]))
    # a command without the option is about texts with one label
    several = "multilabel" in client
    every = [facts for facts, _ in await _held(store) if several or not facts.get("multilabel")]
    if client.get("multilabel"):
        every = [facts for facts in every if facts.get("multilabel")]
    held = [
        facts
        for facts in every
        if (names is None or [n for n in facts["labels"] if n != facts.get("none_label")] == names)
        and client["model"] in {client_options()["model"], facts.get("model")}
    ]
    if len(held) == 1:
        # without a shortlist, prompts had all labels, however many
        many = len(held[0]["labels"]) > AUTOMATIC_ABOVE
        return _merged(client, {"shortlist": ALL, **held[0]} if many else held[0])
    if client["labels"] is not None:
        return dict(client)
    if len({tuple(facts["labels"]) for facts in every}) != 1:
        raise InvalidInputError(f"{await held_scopes(store)}; name the labels with --labels")
    return {**client, "labels": list(every[0]["labels"])}


def _merged(client: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options; those that have their default are the run's."""
    defaults = client_options()
    merged = dict(client)
    if facts.get("multilabel") and "multilabel" in merged:
        # shares, and the thresholds that are learned on them, depend on these
        merged = {name: defaults[name] for name in ("k", "policy")} | merged
    for name in ("model", *_KEPT):
        if name in facts and name in merged and merged[name] == defaults[name]:
            merged[name] = facts[name]
    if merged["labels"] is None and facts.get("labels"):
        described = facts.get("descriptions") or {}
        names = [str(name) for name in facts["labels"] if name != merged.get("none_label")]
        merged["labels"] = {n: described.get(n, "") for n in names} if described else names
    return merged


async def _held(store: str) -> list[tuple[dict[str, Any], int]]:
    """Return the metadata of each scope with predictions, and their number."""
    async with opened_store(store) as opened:
        counted = [(facts, await opened.count(scope)) for scope, facts in await opened.scopes()]
    return [(facts, n) for facts, n in counted if n and facts.get("labels")]


async def held_scopes(store: str) -> str:
    """Describe the models and labels of the predictions in a store."""
    held = []
    for facts, n in await _held(store):
        more = [f" at {facts['base_url']}" if facts.get("base_url") else ""]
        more += [f", --embedder {facts['embedder']}" if facts.get("embedder") else ""]
        labels = ", ".join(map(repr, facts["labels"][:_SHOWN]))
        labels += ", .." if len(facts["labels"]) > _SHOWN else ""
        labels += " (several for a text)" if facts.get("multilabel") else ""
        model = facts.get("model", "an unknown model")
        held.append(f"{n:,} of {model}{''.join(more)} with the labels {labels}")
    if not held:
        return f"{store} holds no predictions"
    return f"{store} holds predictions: {'; '.join(held)}"


@asynccontextmanager
async def opened_store(store: str) -> AsyncIterator[Any]:
    """Open a store, which is both a `Store` and `Movable`, as all that have a path or URL."""
    opened = stores.resolve(store)
    await opened.open()
    try:
        yield opened
    finally:
        await opened.close()
