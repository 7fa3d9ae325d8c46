"""Options of the run that filled a store or wrote a file, and the client that options make."""

import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from testnuc import embedders, stores
from testnuc._base.display import one_line
from testnuc._base.loop_thread import run_to_end
from testnuc._engine.carried import kept_scope
from testnuc._engine.learning import learned_in, numbered
from testnuc._engine.parameters import client_arguments
from testnuc._engine.shortlist import AUTOMATIC_ABOVE
from testnuc.cli.files import require_store
from testnuc.cli.label_files import read_former, read_labels
from testnuc.cli.memory import PROJECT, AnswerStore, RunNote
from testnuc.cli.options import LATER, OF_ANSWERS, Options, client_options
from testnuc.cli.reading import existing, holds_rows, read_table, to_stderr
from testnuc.cli.settings import has_password
from testnuc.client import TestNUC
from testnuc.errors import InvalidInputError, StoreError
from testnuc.head import Head
from testnuc.labels import labels_hash
from testnuc.stores.sql_store import TEXT_FACTS

#: The embedder of a store that has none yet.
EMBEDDER = "sentence-transformers/all-MiniLM-L6-v2"

#: Characters of what is shown of a run, and what is, besides model and labels.
_SHOWN, _TOLD = 60, ("instructions", "embedder")


async def with_options_of_run(client: Options, source: str) -> tuple[Options, AnswerStore]:
    """Return the options, with those of the run behind a file of results or a store; the store.

    What the command line names wins; the environment and the settings file, which are for new runs,
    do not. An embedder that only the user may name is not loaded: stored vectors may do.
    """
    kept, run = AnswerStore(source), dict[str, Any]()
    if holds_rows(source):
        existing(source)
        note = RunNote.of(source)
        if not note.options:
            RunNote.adopt(source, cache(lambda of: read_table(source, of, quiet=True).results))
            note = RunNote.of(source)
        run = {**note.options}
        kept = AnswerStore.of_results(client["store"], source)
        if client["store"] is None and note.named is not None:
            # a note may be anyone's, so what it names is not opened
            raise InvalidInputError(
                f"answers and judgments of {source} are in the store that its run named: add "
                f"--store {shlex.quote(note.named)}; to go without them, name a new one"
            )
        if kept.new and note.store is not None:
            to_stderr(
                f"note: {note.store} is missing, the store of {source} with its answers and "
                f"judgments; if this is a copy of a folder, copy its hidden {PROJECT}, too"
            )
    elif Path(source).suffix.lower() in {".yaml", ".yml", ".json", ".txt"}:
        raise InvalidInputError(f"{existing(source)} has no texts with labels; name a .csv of them")
    else:
        require_store(source)
    store = str(kept.where)
    if not run and not kept.new:
        run = await _scope_in(store, client)
    merged = _with_run(client, run)
    if merged["labels"] is None:
        raise InvalidInputError(
            f"{source} does not hold the label set; name it with --labels, or if `learn` wrote the "
            "file, name the results that it read; texts without labels need `classify` first; with "
            "columns of your own added, leave texts and labels as they were written (rows that "
            "several runs wrote alike are of none: name the results of one); in a copy of "
            f"a folder, copy the hidden folder {PROJECT}, too"
        )
    if merged["embedder"] is None or merged["embedder"] != client["embedder"]:
        name = merged["embedder"] or await _embedder_in(store)
        known = embedders.is_known(name)
        merged = merged.but(embedder=name if known else embedders.Unloaded(name, source))
    return merged, kept


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
    if client["embedder"] is not None:
        return client
    name = EMBEDDER if place is None else await _embedder_in(place)
    # a store may be anyone's: it must not name code to load
    if place is not None and not embedders.is_known(name):
        raise embedders.Unloaded(name, place).error
    return client.but(embedder=name)


async def _embedder_in(store: str) -> str:
    """Return the embedder of a store, if it is there and has one, else the default."""
    if AnswerStore(store).new:
        return EMBEDDER
    async with opened_store(store) as opened:
        found = [str(name) for name, _ in await opened.embedders()]
    return found[0] if len(found) == 1 else EMBEDDER


async def _scope_in(store: str, client: Options) -> dict[str, Any]:
    """Return the options of the newest run in a store with the given ones, or of ``--run``."""
    runs = await stored_runs(store)
    number = client.get("run")
    fitting = [run for run in runs if run.number == number]
    if number is None:
        fitting = [run for run in runs if run.fits(client)]
    elif not fitting:
        raise InvalidInputError(f"{store} has no run {number}; {await held_scopes(store)}")
    if not fitting:
        if client["labels"] is not None or not runs:
            return {}
        raise InvalidInputError(
            f"{await held_scopes(store)}; give the options of the run that is meant, or --run N"
        )
    if len(fitting) > 1:
        to_stderr(f"note: {store} has {len(fitting)} such runs; the newest is used: {fitting[-1]}")
        to_stderr(f"for another add --run N; to list them: testnuc store runs {store}")
    return _options_of(fitting[-1].facts, client) | {"labels": fitting[-1].labels}


def _options_of(facts: Mapping[str, Any], client: Options) -> dict[str, Any]:
    """Return the options of a scope, which names those that are not the default."""
    usual = client_options()
    # an embedder that was no name is not known, and neither is an address with a password
    unknown = {"embedder", *(["base_url"] if "@" in str(client["base_url"]) else [])}
    run = {name: usual[name] for name in OF_ANSWERS if name not in unknown} | dict(facts)
    if "shortlist" not in facts and len(facts["labels"]) > AUTOMATIC_ABOVE:
        # without a shortlist, prompts had all labels, however many
        run["shortlist"] = "all"
    return run


@dataclass(frozen=True)
class StoredRun:
    """The answers in a store to one prompt: of a model, labels and settings."""

    #: From 1 on, in the order in which they began.
    number: int
    facts: Mapping[str, Any]
    answers: int
    #: Whether something was learned from judgments of it.
    learned: bool = False

    @property
    def labels(self) -> list[str] | dict[str, str]:
        """The labels, that for none of them included, with descriptions if there are any."""
        names, described = list(map(str, self.facts["labels"])), self.facts.get("descriptions")
        return {name: described.get(name, "") for name in names} if described else names

    @property
    def day(self) -> str:
        """The date of the latest answer; "": an older version did not note it."""
        dates = self.facts.get("answered") or {}
        return max((str(of[1]) for of in dates.values() if len(of) > 1), default="")

    def fits(self, client: Options) -> bool:
        """Whether it has the model and the labels of a client, as far as these are named."""
        facts = self.facts
        if client.several and not facts.get("multilabel"):
            return False
        if "model" in client.named and client["model"] != facts.get("model"):
            return False
        if "labels" not in client.named:
            return True
        # where it is not named with the others, it is the last one
        given = dict.fromkeys([*read_labels(client["labels"]), facts.get("none_label")])
        return [*self.labels] == [*filter(None, given)]

    def __str__(self) -> str:
        facts, labels = self.facts, self.labels
        digest = labels_hash(facts["labels"], facts.get("descriptions") or {})
        address = f" at {facts['base_url']}" if facts.get("base_url") else ""
        several = ", several for a text" if facts.get("multilabel") else ""
        described = " with descriptions" if isinstance(labels, dict) else ""
        listed = one_line(", ".join(labels), _SHOWN)
        parts = [
            f"run {self.number}",
            # noted when a client that made calls is used a second time, or closed
            self.day or "no date (it runs, was killed, or has answers of another run)",
            f"{self.answers:,} answers{', with judgments' * self.learned}",
            f"{facts.get('model', 'an unknown model')}{address}",
            f"{len(labels)} labels ({listed}){described}{several}, labels_hash {digest}",
            *(f"--{n} {one_line(facts[n], _SHOWN)!r}" for n in _TOLD if facts.get(n)),
            *(f"--{n} {facts[n]}" for n in LATER if n in facts),
        ]
        return ", ".join(filter(None, parts))


async def stored_runs(store: str | None) -> list[StoredRun]:
    """Return the runs in a store that have answers, the newest last; a number stays the same."""
    if store is None or AnswerStore(store).new:
        return []
    async with opened_store(store) as opened:
        counts, _ = await opened.counts()
        scopes = dict(await opened.scopes())
        learned = await learned_in(opened, scopes)
    runs = [
        StoredRun(number, scopes[scope], answers, scope in learned)
        for scope, number in numbered(scopes.items()).items()
        if (answers := counts.get(scope, 0) + counts.get(kept_scope(scope), 0))
        # a referee's answers are no labels of a run
        and scopes[scope].get("referee") is not True
    ]
    try:
        # one without a date began after those before it
        days: list[str] = [*accumulate(runs, lambda day, run: run.day or day, initial="")][1:]
        runs = [run for _, run in sorted(zip(days, runs, strict=True), key=itemgetter(0))]
        # what a store of somebody else holds fails here, not later
        list(map(str, runs))
    except (AttributeError, LookupError, TypeError, ValueError) as exc:
        raise StoreError(f"a run in {store} is damaged ({exc!r:.200}); take another copy") from exc
    return runs


async def held_scopes(store: str) -> str:
    """Describe the runs in a store."""
    return f"{store} holds: {'; '.join(map(str, await stored_runs(store))) or 'no answers'}"


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
    flat.pop("run", None)
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
    """Return the options, with labels that are read, what store and head know; the store."""
    if options["labels"] is not None:
        former = read_former(options["labels"])
        options = options.but(labels=read_labels(options["labels"]))
        if former:
            options = options.but(former=former)
    head = None if options["head"] is None else Head.load(options["head"])
    if head is not None:
        labels = list(head.labels) if options["labels"] is None else options["labels"]
        options = options.but(labels=labels, multilabel=options.several or head.sets is not None)
    store = AnswerStore.of_run(options, output)
    options = run_to_end(with_embedder(options, store.where))
    if head is not None and head.loadable and options["embedder"] == EMBEDDER:
        options = options.but(embedder=head.embedder)
    return options, store


def command(
    name: str, source: str, options: Mapping[str, Any], *more: str, text_column: str = "text"
) -> str:
    """Return a command on the results of a run, as it is typed in a shell, without passwords."""
    words = ["testnuc", *name.split(), source, *more]
    if text_column != "text" and holds_rows(source):
        words += ["--text-column", text_column]
    for option, value in options.items():
        flag = f"--{option.replace('_', '-')}"
        words += [flag] if value is True else [flag, str(value)]
    return shlex.join("STORE" if has_password(word) else word for word in words)


def next_command(name: str, given: SimpleNamespace, *more: str) -> str:
    """Return a command on the source of another command, with the options that this one named."""
    return command(name, given.source, given.client.given(), *more, text_column=given.text_column)
