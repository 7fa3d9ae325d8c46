"""The command line in this process or one of its own, with an embedder that needs no model."""

from __future__ import annotations

import csv
import io
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from testnuc import embedders
from testnuc.cli import main
from testnuc.testing import HashEmbedder
from testnuc.trust.review import Review

_SCRIPT = (
    "import runpy\nfrom testnuc import embedders\nfrom testnuc.testing import HashEmbedder\n"
    "embedders.resolve = lambda _: HashEmbedder()\n"
    "runpy.run_module('testnuc', run_name='__main__')\n"
)


def command_line(*arguments, python=()):
    """Return the arguments of a process that runs the command line; `python` are the first ones."""
    return [sys.executable, *python, "-c", _SCRIPT, *map(str, arguments)]


def run_here(*arguments, key="test-key", replaced=True, **environment):
    """Run the command line, with this key for every provider; returns exit code, stdout, stderr.

    Without `replaced`, embedders are those of their names.
    """
    known = embedders.is_known
    with pytest.MonkeyPatch.context() as patch:
        if replaced:
            patch.setattr(embedders, "resolve", lambda _: HashEmbedder())
            patch.setattr(embedders, "is_known", lambda n: n == HashEmbedder().name or known(n))
        if key is not None:
            patch.setenv("OPENAI_API_KEY", key)
            patch.setenv("ANTHROPIC_API_KEY", key)
        for name, value in environment.items():
            patch.setenv(name, value)
        return in_process(main, ["testnuc", *arguments])


def ran(*arguments, **more):
    """Run the command line, which must succeed; returns stdout, stderr."""
    code, out, err = run_here(*arguments, **more)
    assert code == 0, err
    return out, err


def judge(path, right, items=None):
    """Answer items of a review by a function of their text; returns the review."""
    review = Review.load(path)
    for item in review[:items]:
        review.answer(item.index, right(item.text))
    review.save(path)
    return review


def rows_of(path):
    """Return the rows of a CSV file."""
    with open(path, newline="", encoding="utf-8-sig") as file:  # noqa: PTH123 - a name or a path
        return list(csv.DictReader(file))


def in_process(program, words):
    """Run a program by its words, as a process would; returns exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", [*map(str, words)])
        code = 0
        try:
            program()
        except SystemExit as exc:
            code = exc.code or 0
            if isinstance(code, str):
                print(code, file=err)
                code = 1
    return code, out.getvalue(), err.getvalue()
