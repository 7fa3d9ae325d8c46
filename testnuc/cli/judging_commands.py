"""Commands about evidence: review, learn, certify, distill, unlearn and compare."""

from __future__ import annotations

from typing import Any, Literal

import typer

from testnuc.cli.options import (
    CALL_OPTIONS,
    EVIDENCE_OPTIONS,
    LABELS_OF_RUN,
    OVERWRITE,
    RESULTS_OR_STORE,
    TEXT_COLUMN,
    argument,
    runs,
)

_SOURCES = argument(
    "RESULTS|STORE|REVIEW..",
    "A file written by `classify -o`, a store; or reviews (.json) to continue or join.",
)
_JUDGED = argument("REVIEW|MARKS..", "What the page saved; several people's files are joined.")


@runs("judging:review", *EVIDENCE_OPTIONS, labels=LABELS_OF_RUN)
def review(
    client: dict[str, Any],
    sources: list[str] = _SOURCES,
    n: int = typer.Option(50, "-n", help="Number of texts to draw.", min=1),
    goal: Literal["decide", "certify", "correct"] | None = typer.Option(
        None,
        help="decide: texts whose label is disputed; certify: at random; correct: least trusted.",
        show_default="mostly decide",
    ),
    output: str | None = typer.Option(
        None,
        "--output",
        "-o",
        help="A .json file.",
        show_default="review.json, or review-2.json, ..",
    ),
    by_hand: bool = typer.Option(False, "--answer", help="Judge the texts in the terminal."),
    open_page: bool | None = typer.Option(
        None,
        "--open/--no-open",
        help="Open the page in a browser, and learn when it is done.",
        show_default="if there is a display",
    ),
    text_column: str = TEXT_COLUMN,
) -> None:
    """Draw texts, let a person judge them on a page, and learn from that; makes no call."""


@runs("judging:learn", *EVIDENCE_OPTIONS, labels=LABELS_OF_RUN)
def learn(
    client: dict[str, Any],
    source: str = RESULTS_OR_STORE,
    judged: list[str] = _JUDGED,
    at_random: bool = typer.Option(
        False,
        "--at-random",
        help="The marked texts were drawn at random over all.",
    ),
    output: str | None = typer.Option(
        None, "--output", "-o", help="A file for all texts with the labels that follow."
    ),
    overwrite: bool = OVERWRITE,
    text_column: str = TEXT_COLUMN,
) -> None:
    """Learn from judged texts how to label, and what trust means; later runs use it."""


@runs("judging:certify", *EVIDENCE_OPTIONS, labels=LABELS_OF_RUN)
def certify(
    client: dict[str, Any],
    source: str = RESULTS_OR_STORE,
    accuracy: float = typer.Option(0.9, help="Part of the certified labels that is right."),
    confidence: float = typer.Option(0.9, help="Probability that the certificate holds."),
    level: int | None = typer.Option(
        None, help="Of labels in a tree, 1 = the top.", show_default="whole labels"
    ),
    label: str | None = typer.Option(
        None, help="Of texts with several labels: certify this one.", show_default="all of a text"
    ),
    output: str | None = typer.Option(
        None, "--output", "-o", help="A file for the certified texts and labels."
    ),
    overwrite: bool = OVERWRITE,
    text_column: str = TEXT_COLUMN,
) -> None:
    """Find the trust above which labels are right, as proved by the judged texts."""


@runs("judging:distill", *CALL_OPTIONS, "min_trust", labels=LABELS_OF_RUN)
def distill(
    client: dict[str, Any],
    source: str = RESULTS_OR_STORE,
    output: str = typer.Option("labels.head", "--output", "-o", help="A .head file."),
    text_column: str = TEXT_COLUMN,
) -> None:
    """Train a classifier of embeddings on the labels: a file that needs no LLM; makes no call."""


@runs("judging:unlearn", *EVIDENCE_OPTIONS, labels=LABELS_OF_RUN)
def unlearn(
    client: dict[str, Any], source: str = RESULTS_OR_STORE, text_column: str = TEXT_COLUMN
) -> None:
    """Undo `learn`: drop what was learned from judged texts."""


@runs("compare:run")
def compare(
    first: str = argument("A", "A file of results."),
    second: str = argument("B", "Another one."),
    gold: str | None = typer.Option(None, help="Column with the correct label, in A or B."),
    text_column: str = TEXT_COLUMN,
    label_column: str = typer.Option("nuc_label", help="Column with the labels to compare."),
    examples: int = typer.Option(2, help="Texts to show of each pair of labels.", min=0),
) -> None:
    """Show where two files of results differ, and which is more accurate."""


def add_judging(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    for command in (review, learn, certify, distill, unlearn, compare):
        app.command()(command)
