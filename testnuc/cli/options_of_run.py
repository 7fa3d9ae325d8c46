"""Options of the run that filled a store or wrote a file, and the client that options make."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from testnuc import embedders, stores
from testnuc._engine.parameters import client_arguments
from testnuc._engine.shortlist import AUTOMATIC_ABOVE
from testnuc.cli.event_loop import run_to_end
from testnuc.cli.files import require_store
from testnuc.cli.label_files import read_labels
from testnuc.cli.memory import AnswerStore, RunNote
from testnuc.cli.options import OF_ANSWERS, Options, client_options
from testnuc.cli.reading import existing, holds_rows
from testnuc.cli.settings import has_password
from testnuc.client import TestNUC
from testnuc.errors import InvalidInputError
from testnuc.head import Head
from testnuc.stores.sql_store import TEXT_FACTS

#: The embedder of a store that has none yet.
EMBEDDER = "sentence-transformers/all-MiniLM-L6-v2"

_SHOWN = 6


async def with_options_of_run(client: Options, source: str) -> Options:
    """Return the options, with those of the run behind a file of results or a store.

    What the command line names wins; the environment and the settings file, which are for new runs,
    do not. An embedder that only the user may name is not loaded: the command may do with stored
    vectors.
    """
    store: str | None = source
    run: Mapping[str, Any] = {}
    if holds_rows(source):
        existing(source)
        run = RunNote.of(source).options
        store = AnswerStore.of_results(client["store"], source).where
    else:
        require_store(source)
    if not run and store is not None and _is_there(store):
        run = await _scope_in(store, client)
    merged = _with_run(client, run)
    if merged["labels"] is None:
        raise InvalidInputError(
            f"{source} does not hold the label set; name it with --labels, or if `learn` wrote the "
            "file, name the results that it read"
        )
    if merged["embedder"] is not None and merged["embedder"] == client["embedder"]:
        return merged
    merged = await _with_stored_embedder(merged, store)
    name = merged["embedder"]
    if not embedders.is_known(name):
        merged = merged.but(embedder=embedders.Unloaded(name, source))
    return merged


def _with_run(client: Options, run: Mapping[str, Any]) -> Options:
    """Return the options, with those of a run where the command line names none."""
    of_vote = ("k", "policy")
    # labels that no strategy is proved to improve stay those of the run
    merged = {name: client_options()[name] for name in of_vote} | client
    for name in ("model", "labels", *OF_ANSWERS, *of_vote):
        # a note can be edited; the client checks the other options
        fits = name not in TEXT_FACTS or isinstance(run.get(name), str | None)
        if name in run and name in merged and name not in client.named and fits:
            merged[name] = run[name]
    return Options(merged, client.named)


async def with_embedder(client: Options, place: str | None) -> Options:
    """Return the options with an embedder: as given, else that of the store, else the default."""
    found = await _with_stored_embedder(client, place)
    if client["embedder"] is None and place is not None:
        # a store may be anyone's: it must not name code to load
        name = found["embedder"]
        if not embedders.is_known(name):
            raise embedders.Unloaded(name, place).error
    return found


async def _with_stored_embedder(client: Options, place: str | None) -> Options:
    if client["embedder"] is not None:
        return client
    found = [] if place is None or not _is_there(place) else await embedders_in(place)
    return client.but(embedder=found[0] if len(found) == 1 else EMBEDDER)


def _is_there(store: str) -> bool:
    return "://" in store or Path(store).is_file()


async def embedders_in(store: str) -> list[str]:
    """Return the names of the embedders in a store."""
    async with opened_store(store) as opened:
        return [name for name, _ in await opened.embedders()]


async def _scope_in(store: str, client: Options) -> dict[str, Any]:
    """Return the options of the only run in a store that has those which are given."""
    counted = await _held(store)
    every = [facts for facts, _ in counted if facts.get("multilabel") or not client.several]
    held = [facts for facts in every if _agrees(facts, client, client.named)]
    if len(held) > 1:
        usual = client_options()
        set_ = [name for name in ("labels", "model") if client[name] != usual[name]]
        held = [facts for facts in held if _agrees(facts, client, set_)]
    if len(held) == 1:
        return _options_of(held[0], client)
    if client["labels"] is not None:
        return {}
    if len({tuple(facts["labels"]) for facts in every}) != 1:
        raise InvalidInputError(f"{await held_scopes(store)}; name the labels with --labels")
    return {"labels": list(every[0]["labels"])}


def _agrees(facts: Mapping[str, Any], client: Options, asked: Collection[str]) -> bool:
    """Whether a scope has the labels and the model of a client, as far as these are asked for."""
    if "model" in asked and client["model"] != facts.get("model"):
        return False
    if "labels" not in asked or client["labels"] is None:
        return True
    return _labels_of(facts) == list(read_labels(client["labels"]))


def _labels_of(facts: Mapping[str, Any]) -> list[str]:
    return [str(name) for name in facts["labels"] if name != facts.get("none_label")]


def _options_of(facts: Mapping[str, Any], client: Options) -> dict[str, Any]:
    """Return the options of a scope, which names those that are not the default."""
    usual = client_options()
    # an embedder that was no name is not known, and neither is an address with a password
    unknown = {"embedder", *(["base_url"] if "@" in str(client["base_url"]) else [])}
    run = {name: usual[name] for name in OF_ANSWERS if name not in unknown} | dict(facts)
    if "shortlist" not in facts and len(facts["labels"]) > AUTOMATIC_ABOVE:
        # without a shortlist, prompts had all labels, however many
        run["shortlist"] = "all"
    described = facts.get("descriptions") or {}
    names = _labels_of(facts)
    run["labels"] = {name: described.get(name, "") for name in names} if described else names
    return run


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
    """Open a store, an `SqlStore`, as all are that have a path or URL."""
    opened = stores.resolve(store)
    await opened.open()
    try:
        yield opened
    finally:
        await opened.close()


def client_of(options: Mapping[str, Any], **instead: Any) -> TestNUC:
    """Return a client of command-line options; arguments in `instead` win."""
    flat = {**options, **instead}
    if flat["labels"] is None:
        raise InvalidInputError("there are no labels; give --labels, a file or a,b,c")
    given = client_arguments({**flat, "labels": read_labels(flat["labels"])})
    if flat.get("head") is not None and flat.get("head_trust") is None:
        head = given["labeler"]
        # nothing is left to an LLM, so neither a key nor neighbors are needed
        head.least_trust = 0.0
        given.update(model=head, k=0, join_pool=False, base_url=None)
    return TestNUC(**given)


def completed(options: Options, output: str | None) -> tuple[Options, AnswerStore]:
    """Return the options, with labels that are read, what store and head know besides; the store.

    Without an output, the store is the one that earlier runs with these options have, if any.
    """
    if options["labels"] is not None:
        options = options.but(labels=read_labels(options["labels"]))
    head = None if options["head"] is None else Head.load(options["head"])
    if head is not None:
        options = options.but(
            labels=list(head.labels) if options["labels"] is None else options["labels"],
            multilabel=options.several or head.sets is not None,
        )
    store = AnswerStore.of_run(options, output)
    options = run_to_end(with_embedder(options, store.where))
    if head is not None and head.loadable and options["embedder"] == EMBEDDER:
        options = options.but(embedder=head.embedder)
    return options, store


def command(
    name: str, source: str, options: Mapping[str, Any], *more: str, text_column: str = "text"
) -> str:
    """Return a command on the results of a run, as it is typed in a shell, without passwords.

    `source` is the file or store; `more` are further arguments.
    """
    words = ["testnuc", *name.split(), source, *more]
    if text_column != "text" and holds_rows(source):
        words += ["--text-column", text_column]
    for option, value in options.items():
        flag = f"--{option.replace('_', '-')}"
        words += [flag] if value is True else [flag, str(value)]
    return shlex.join("STORE" if has_password(word) else word for word in words)


def next_command(name: str, given: SimpleNamespace, *more: str) -> str:
    """Return a command on the source of another command, with the options that this one named.

    What the source itself knows of its run is left out.
    """
    options = given.client.given()
    return command(name, given.source, options, *more, text_column=given.text_column)
