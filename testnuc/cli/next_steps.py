"""The last line of a run: the command that comes next, with the options of the run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from testnuc._engine.learning import LEAST_TEXTS
from testnuc.cli.options import Options
from testnuc.cli.options_of_run import OF_ANSWERS
from testnuc.cli.reading import holds_rows
from testnuc.cli.settings import has_password
from testnuc.results import Results
from testnuc.trust.diagnosis import FIRST_REVIEW

#: Options that tell the runs in a store apart.
_OF_STORE = ("labels", "model", *OF_ANSWERS)


def command(
    name: str, source: str, options: Mapping[str, Any], *more: str, text_column: str = "text"
) -> str:
    """Return a command on the results of a run, as it is typed in a shell, without passwords.

    `source` is the file or store; `more` are further arguments.
    """
    words = ["testnuc", name, source, *more]
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


def can_be_judged(results: Results) -> bool:
    """Whether the LLM answered enough texts for a review; a head may have labeled the others."""
    answered = sum(result.prediction is not None for result in results)
    return answered >= min(LEAST_TEXTS, len(results))


def next_step(results: Results, source: str | None, client: Options) -> str | None:
    """Return a line on what to do with results next; None: there are no results.

    `source` is the file or store that holds them, if one does. A file's options are noted beside
    it, all but the store.
    """
    if results.errors or not any(label is not None for label in results.labels):
        return None
    is_table = source is not None and holds_rows(source)
    if not can_be_judged(results):
        looking = command("report", str(source), {})
        return f"next, look at the labels: {looking}" if is_table else None
    if source is None:
        return "next: name an output with -o (.csv, .xlsx, .jsonl) to judge some texts and learn"
    options = client.given(("store",) if is_table else _OF_STORE)
    if results.learned is not None:
        return "next, prove how many labels are right: " + command("certify", source, options)
    if len(results) < LEAST_TEXTS:
        return (
            f"next, label more texts: at least {LEAST_TEXTS} are needed to judge them and to learn"
        )
    few = len(results) < FIRST_REVIEW
    more = () if few else ("-n", str(FIRST_REVIEW))
    judging = command("review", source, options, *more)
    return f"next, judge {'them' if few else 'fifty texts (about three minutes)'}: {judging}"
