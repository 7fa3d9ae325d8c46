"""The last line of a run: the command that comes next, with the options of the run."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from testnuc._engine.learning_base import LEAST_TEXTS
from testnuc.cli.options import client_options
from testnuc.cli.options_of_run import EMBEDDER, OF_ANSWERS
from testnuc.cli.reading import holds_rows
from testnuc.cli.settings import has_password
from testnuc.trust.diagnosis import FIRST_REVIEW

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testnuc.results import Results

__all__ = ["can_be_judged", "command", "next_step"]

#: Options by which stored answers are found.
_NAMED = ("labels", "store", "model", *OF_ANSWERS)


def command(
    name: str, source: str, client: Mapping[str, Any], *more: str, text_column: str = "text"
) -> str:
    """Return a command on the results of a run, as it is typed in a shell, without passwords.

    `source` is the file or store; options in `client` are repeated, but for those that have their
    default; `more` are further arguments.
    """
    usual = client_options()
    words = ["testnuc", name, source, *more]
    if text_column != "text" and holds_rows(source):
        words += ["--text-column", text_column]
    for option, value in client.items():
        # a table in the settings file is found there again
        if value in (None, usual[option]) or str(value).startswith(("{", "[")):
            continue
        flag = f"--{option.replace('_', '-')}"
        words += [flag] if value is True else [flag, str(value)]
    return shlex.join("STORE" if has_password(word) else word for word in words)


def can_be_judged(results: Results) -> bool:
    """Whether the LLM answered enough texts for a review; a head may have labeled the others."""
    answered = sum(result.prediction is not None for result in results)
    return answered >= min(LEAST_TEXTS, len(results))


def next_step(
    results: Results, source: str | None, client: Mapping[str, Any], text_column: str = "text"
) -> str | None:
    """Return a line on what to do with results next; None: there are no results.

    `source` is the file or store that holds them, if one does; `client` has the options of the run.
    """
    if results.errors or not any(label is not None for label in results.labels):
        return None
    if not can_be_judged(results):
        return _looking(source, text_column)
    if source is None:
        return "next: name an output with -o (.csv, .xlsx, .jsonl) to judge some texts and learn"
    # the embedder of a store is found there again
    client = {name: client[name] for name in _NAMED if client.get(name, EMBEDDER) != EMBEDDER}
    if client.get("store") == source:
        del client["store"]
    if results.learned is not None:
        return "next, prove how many labels are right: " + command(
            "certify", source, client, text_column=text_column
        )
    if len(results) < LEAST_TEXTS:
        return (
            f"next, label more texts: at least {LEAST_TEXTS} are needed to judge them and to learn"
        )
    few = len(results) < FIRST_REVIEW
    more = () if few else ("-n", str(FIRST_REVIEW))
    judging = command("review", source, client, *more, text_column=text_column)
    return f"next, judge {'them' if few else 'fifty texts (about three minutes)'}: {judging}"


def _looking(source: str | None, text_column: str) -> str | None:
    if source is None or not holds_rows(source):
        return None
    return "next, look at the labels: " + command("report", source, {}, text_column=text_column)
